"""Whose turn it is: the waiting sessions of all groups in one line, each group's in the order that its policy says.

Groups take turns by whose head was submitted first. A session that names no group stands in the line of the home
group (`line_of`), and goes wherever there is room: so it has its turn there though the home group itself is paused, and
by age where that one's order is broken. What a group's policy does wrong holds back that group alone.
"""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from corral.model.faults import Invalid
from corral.model.node import ResourceGroup
from corral.model.resources import WHOLE_GPU_MILLI
from corral.scheduling.plan import Refusal, refusal
from corral.scheduling.policies.atwork import AT_WORK, said
from corral.scheduling.policies.guarded import guarded
from corral.scheduling.policies.order import FIFO, Capacity, OrderView, Turns
from corral.scheduling.policies.registry import ORDERS, Policies, policies_of
from corral.scheduling.policies.score import PLACEMENTS
from corral.scheduling.snapshot import Shape, Snapshot, Waiting

__all__ = [
    "HELD_BACK",
    "Policies",
    "capacity_of",
    "groups_of",
    "home_of",
    "line_of",
    "ordered",
    "policies_of",
    "position_of",
    "turns_of",
]

HOME = "default"
HELD_BACK: Mapping[str, str] = {
    "group_paused": "in a group that is paused",
    "group_broken": "in a group whose policies are broken",
}
NOTHING = Capacity(0, 0, 0, 0, 0.0)
Refusals = dict[str, tuple[Refusal, ...]]


class Groups(NamedTuple):
    """The groups that take sessions, and why the others do not. What a stranger's placement policy does wrong on the
    way is noted in `held_back` then. `sound` are those with policies that work, paused or not."""

    usable: dict[str, Policies]
    held_back: dict[str, Refusal]
    sound: dict[str, Policies]


def groups_of(groups: Iterable[ResourceGroup]) -> Groups:
    usable: dict[str, Policies] = {}
    held_back: dict[str, Refusal] = {}
    sound: dict[str, Policies] = {}
    for group in groups:
        try:
            policies = policies_of(group)
        except BaseException as error:  # also what a stranger's declarations do
            why = error.message if isinstance(error, Invalid) else said(error)
            held_back[group.name] = _broken(group.name, why[:500])
            continue
        sound[group.name] = policies
        if group.paused:
            why = f"group {group.name} is paused; `corral queue resume {group.name}` lets it start sessions again"
            held_back[group.name] = Refusal("group_paused", why)
            continue
        if group.placement not in PLACEMENTS:
            note = partial(_note_broken, held_back, group.name)
            name = f"placement policy {group.placement} of group {group.name}"
            policies = policies._replace(placement=guarded(policies.placement, note, name))
        usable[group.name] = policies
    return Groups(usable, held_back, sound)


def _note_broken(held_back: dict[str, Refusal], group: str, why: str) -> None:
    held_back[group] = _broken(group, why)


def home_of(groups: Iterable[str]) -> str | None:
    """The group, of all there are, in whose line sessions stand that name none: `default`, or the first by name."""
    return min(groups, key=lambda name: (name != HOME, name), default=None)


def line_of(group: str | None, groups: Iterable[str]) -> str | None:
    """In whose line a session stands that names this group, or none; None: there is no group at all."""
    return home_of(groups) if group is None else group


def ordered(snapshot: Snapshot, refusals: Refusals) -> Iterator[tuple[Waiting, Mapping[str, Policies]]]:
    """Waiting sessions in the order to try them, each with the groups that take sessions. What was yielded last counts
    as placed unless it stands in `refusals` when the next one is asked for."""
    AT_WORK.passes += 1
    usable, held_back, sound = groups_of(snapshot.groups.values())
    home = home_of(snapshot.groups)
    members: dict[str | None, list[Waiting]] = {}
    for waiting in snapshot.waiting:
        group = waiting.shape.group
        if group in usable or group is None:
            members.setdefault(home if group is None else group, []).append(waiting)
    named = [one for one in snapshot.waiting if one.shape.group is not None and one.shape.group not in usable]
    for name, line in _by_group(named).items():
        _refuse(line, held_back.get(name) or refusal("group_unknown", {}), refusals)
    lines = [_Line(name, snapshot, sound, line, refusals) for name, line in members.items()]
    heap = [(head.ordinal, number, head) for number, one in enumerate(lines) if (head := one.next(None)) is not None]
    heapq.heapify(heap)
    told = _Retold(snapshot, held_back)
    while heap:
        _, number, head = heap[0]
        yield head, usable
        if held_back and head.id in refusals:
            refusals[head.id] = told.of(head.shape, refusals[head.id])
        following = lines[number].next(head.id not in refusals)
        if following is None:
            heapq.heappop(heap)
        else:
            heapq.heapreplace(heap, (following.ordinal, number, following))


def position_of(snapshot: Snapshot, session_id: str) -> int | None:
    """Its place in its group's line as the group's order has it now, if everyone before it got room."""
    sound, home = groups_of(snapshot.groups.values()).sound, home_of(snapshot.groups)
    named = {one.id: home if one.shape.group is None else one.shape.group for one in snapshot.waiting}
    name = named.get(session_id)
    if name is None or name not in sound:
        return None
    line = _Line(name, snapshot, sound, [one for one in snapshot.waiting if named[one.id] == name], {})
    place, following = 1, line.next(None)
    while following is not None and following.id != session_id:
        place, following = place + 1, line.next(True)
    return None if following is None else place


def turns_of(snapshot: Snapshot, name: str | None, sound: Mapping[str, Policies], waiting: Sequence[Waiting]) -> Turns:
    """What the group's order policy makes of these sessions; of no group's, fifo."""
    if name is None or name not in sound:
        return FIFO.turns(OrderView(snapshot.now, waiting, {}, (), NOTHING))
    order, options = sound[name].order, sound[name].order_options
    usage = [one for one in snapshot.usage if one.group == name]
    capacity = capacity_of(snapshot, name) if order.needs else NOTHING
    return order.turns(OrderView(snapshot.now, waiting, options, usage, capacity))


def capacity_of(snapshot: Snapshot, group: str | None) -> Capacity:
    nodes = [node for node in snapshot.nodes if node.group == group]
    vram = [one.capacity_mib for node in nodes for one in snapshot.devices.get(node.name, ()) if one.present]
    return Capacity(
        len(nodes),
        sum(node.cpu_milli for node in nodes),
        sum(node.memory_mib for node in nodes),
        WHOLE_GPU_MILLI * len(vram),
        sum(vram) / len(vram) if vram else 0.0,
    )


class _Retold:
    """A fleet's answers, with what it does not know: why the nodes of some groups take nothing."""

    def __init__(self, snapshot: Snapshot, held_back: Mapping[str, Refusal]) -> None:
        self._held_back = held_back
        self._nodes = snapshot.nodes
        self._sizes: Counter[str] | None = None  # counted when a group is held back, which may be on the way
        self._answers: dict[int, tuple[tuple[Refusal, ...], tuple[Refusal, ...]]] = {}

    def of(self, shape: Shape, answer: tuple[Refusal, ...]) -> tuple[Refusal, ...]:
        """One object for one object, since equal answers are told once; the first is kept, so that its id stays its."""
        kept = self._answers.get(id(answer))
        if kept is None:
            kept = self._answers[id(answer)] = (answer, self._retold(shape, answer))
        return kept[1]

    def _retold(self, shape: Shape, answer: tuple[Refusal, ...]) -> tuple[Refusal, ...]:
        if shape.group is not None:
            why = self._held_back.get(shape.group)
            return answer if why is None else (why,)
        others = [one for one in answer if one.code != "group_unknown"]
        self._sizes = self._sizes or Counter(node.group for node in self._nodes)
        by_code = Counter[str]()
        for name, why in self._held_back.items():
            by_code[why.code] += self._sizes[name]
        return (*others, *(counted(code, nodes) for code, nodes in sorted(by_code.items()) if nodes))


def counted(code: str, nodes: int) -> Refusal:
    return Refusal(code, f"{nodes} {'node' if nodes == 1 else 'nodes'}: {HELD_BACK[code]}", {"nodes": nodes})


class _Line:
    """One group's turns, with what its policy may do wrong kept within the group."""

    def __init__(
        self,
        group: str | None,
        snapshot: Snapshot,
        sound: Mapping[str, Policies],
        members: Sequence[Waiting],
        refusals: Refusals,
    ) -> None:
        self._group = group
        self._begin = partial(turns_of, snapshot, group, sound, members)
        self._turns: Turns | None = None
        order = FIFO.name if group is None or group not in sound else sound[group].order.name
        self._stranger = None if order in ORDERS else f"order policy {order} of group {group}"
        self._left = {one.id: one for one in members}
        self._refusals = refusals

    def next(self, taken: bool | None) -> Waiting | None:
        """The next one to try, told whether the last one was taken; None when all had their turn. The rest of those
        that a broken policy did not come to are refused."""
        try:
            AT_WORK.name = self._stranger
            self._turns = self._turns or self._begin()
            one = self._turns.send(taken)
            its_own = self._left.pop(getattr(one, "id", ""), None)
        except StopIteration:
            return self._end("it left sessions out")
        except BaseException as error:
            return self._end(said(error))
        finally:
            AT_WORK.name = None
        return self._end("it named a session that is not its to name, or one twice") if its_own is None else its_own

    def _end(self, why: str) -> None:
        if self._left:
            _refuse(self._left.values(), _broken(self._group or HOME, f"its order policy failed: {why}"[:500]),
                    self._refusals)  # fmt: skip
            self._left = {}


def _by_group(named: Iterable[Waiting]) -> dict[str, list[Waiting]]:
    found: defaultdict[str, list[Waiting]] = defaultdict(list)
    for one in named:
        found[one.shape.group or ""].append(one)
    return found


def _broken(group: str, why: str) -> Refusal:
    return Refusal("group_broken", f"group {group}: {why}")


def _refuse(waiting: Iterable[Waiting], why: Refusal, refusals: Refusals) -> None:
    """One answer for each shape, so that its first is told and speaks for those behind it."""
    answers: defaultdict[Shape, tuple[Refusal, ...]] = defaultdict(lambda: (why,))
    for one in waiting:
        refusals[one.id] = answers[one.shape]
