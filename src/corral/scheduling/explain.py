"""Why a session does not start now, and whether it ever can: the same rules as the pass, asked about one shape."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from corral.scheduling.ordering import HELD_BACK, standing_of
from corral.scheduling.plan import Refusal
from corral.scheduling.room import MESSAGES, NEVER, NodeRoom, excluded
from corral.scheduling.snapshot import Shape, Snapshot


@dataclass(frozen=True, slots=True)
class Explanation:
    """`fits_now`: room is free at this moment. `infeasible`: no set of the nodes known could ever hold it, even empty;
    always False while no node is known, since then nothing is known."""

    fits_now: bool
    infeasible: bool
    refusals: tuple[Refusal, ...]


def explain(snapshot: Snapshot, shape: Shape) -> Explanation:
    """Every node's own reason, counted; first against the room that is free now, then against all there is."""
    fits, reasons = _judge(snapshot, shape, full=False)
    fits_ever, hard = _judge(snapshot, shape, full=True)
    infeasible = bool(snapshot.nodes) and not fits_ever
    counted = hard if infeasible else reasons
    if not snapshot.nodes:
        counted = Counter({"no_nodes": 0})
    words = NEVER if infeasible else {**MESSAGES, **HELD_BACK}
    refusals = tuple(
        Refusal(code, f"{count} {'node' if count == 1 else 'nodes'}: {words[code]}" if count else words[code],
                {"nodes": count} if count else {})
        for code, count in sorted(counted.items())
    )  # fmt: skip
    return Explanation(fits, infeasible, () if fits else refusals)


def fits_now(snapshot: Snapshot, shape: Shape) -> bool:
    return _judge(snapshot, shape, full=False)[0]


def _judge(snapshot: Snapshot, shape: Shape, *, full: bool) -> tuple[bool, Counter[str]]:
    reasons: Counter[str] = Counter()
    fitting: Counter[str] = Counter()
    held_back = {} if full else standing_of(snapshot.groups.values()).held_back
    for node in snapshot.nodes:
        why = excluded(node, shape, None if full else snapshot.now)
        if why is None and node.group in held_back:
            why = held_back[node.group].code
        if why is None:
            places = NodeRoom(node, snapshot.devices.get(node.name, ()), full=full).place(shape)
            if not isinstance(places, str):
                fitting[node.group] += 1
                continue
            why = places
        reasons[why] += 1
    fits = any(count >= shape.nodes for count in fitting.values())
    if not fits and fitting:
        reasons["not_enough_nodes"] = sum(fitting.values())
    return fits, reasons
