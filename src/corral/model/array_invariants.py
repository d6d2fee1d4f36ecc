"""What is true of arrays and their members, over the plain rows that `model.invariants` gathers. It calls this module
with them, and nobody else does; each finding is a code, what it is about, and what was found."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

from corral.model.array import member_of
from corral.model.lifecycle import Phase

Row = Mapping[str, Any]
Found = Iterator[tuple[str, str, str]]
THROTTLE: Final = "throttle"  # the line in the history of an array that lets more members live at once, or fewer
STOPPED = (Phase.STOPPING, Phase.ENDED)


def check_arrays(arrays: Mapping[str, Row], sessions: Sequence[Row], events: Mapping[str, Sequence[Row]]) -> Found:
    """`events` by what they are of, in order."""
    members: defaultdict[str, list[Row]] = defaultdict(list)
    for session in sorted((row for row in sessions if row.get("in_array")), key=lambda row: row["ordinal"]):
        members[session["in_array"]].append(session)
    for id_ in members.keys() - arrays.keys():
        yield "AR1", id_, "members of an array that is not there"
    for id_, array in arrays.items():
        yield from _each_once(array, members[id_])
        if all(event["fact"] != THROTTLE for event in events.get(id_, ())):  # those that had their turn may keep it
            yield from _few_enough(array, members[id_])
        yield from _over_with_its_members(array, members[id_])
        numbers = [event["seq"] for event in events.get(id_, ())]
        if numbers != list(range(1, array["seq"] + 1)):
            yield "EV1", id_, f"its seq is {array['seq']}, its events are numbered {numbers[:50]}"


def _each_once(array: Row, members: Sequence[Row]) -> Found:
    """AR1: the rows there are, are those of its places, in the order of their indices, and each place's but once."""
    id_, first = array["id"], array["ordinal"] + 1
    names = [member_of(row["id"]) for row in members]
    if any(name is None or name[0] != id_ for name in names):
        yield "AR1", id_, f"members that are not called after it: {[row['id'] for row in members][:20]}"
    indices = [name[1] for name in names if name is not None]
    if any(before >= after for before, after in pairwise(indices)):
        yield "AR1", id_, f"its members' indices are out of order: {indices[:50]}"
    places = [row["ordinal"] - first for row in members]
    if any(not 0 <= place < array["size"] for place in places):
        yield "AR1", id_, f"it has {array['size']} places, and members in {places[:50]}"
    if len(places) != array["made"]:
        yield "AR1", id_, f"its row says {array['made']} members were made, there are {len(places)}"
    if sum(place < array["reached"] for place in places) != array["reached"]:
        yield "AR1", id_, f"its row says that the first {array['reached']} were made, and some are not there"


def _few_enough(array: Row, members: Sequence[Row]) -> Found:
    """AR2: no more members have their turn, and have not ended, than may live at once."""
    turned = sum(row["phase"] != Phase.ENDED and not row["after_open"] for row in members)
    if array["throttle"] is not None and turned > array["throttle"]:
        yield "AR2", array["id"], f"{turned} members have their turn, and {array['throttle']} may live at once"


def _over_with_its_members(array: Row, members: Sequence[Row]) -> Found:
    """AR3: it has ended once all of them have, or will never be; who is stopped stops them."""
    live = [row["id"] for row in members if row["phase"] != Phase.ENDED]
    stopped = array["wanted"] == "stop"
    if array["ended_at"] is not None and (live or (array["made"] < array["size"] and not stopped)):
        yield "AR3", array["id"], f"it has ended, with {array['made']} of {array['size']} made, and these live: {live}"
    counted = [sum(row["outcome"] == outcome for row in members) for outcome in ("succeeded", "failed")]
    if array["ended_at"] is not None and counted != [array["succeeded"], array["failed"]]:
        yield "AR3", array["id"], f"its row says {array['succeeded']} and {array['failed']}, its members {counted}"
    if stopped and any(row["phase"] not in STOPPED for row in members):
        yield "CB1", array["id"], "cancelled, and not all of its members are stopping"


def array_went_on(before: Row, after: Row) -> Iterator[tuple[str, str]]:
    """What may never change of an array."""
    for name in ("ended_at", "outcome"):
        if before["ended_at"] is not None and before[name] != after[name]:
            yield "AR3", f"it had ended, and its {name} went from {before[name]} to {after[name]}"
    for name in ("ordinal", "size"):
        if before[name] != after[name]:
            yield "AR1", f"its {name} went from {before[name]} to {after[name]}"
    for name in ("reached", "made", "seq"):
        if before[name] > after[name]:
            yield "AR1", f"its {name} went back from {before[name]} to {after[name]}"
    if before["wanted"] == "stop" != after["wanted"]:
        yield "CB2", f"cancelled, and then wanted to {after['wanted']}"
