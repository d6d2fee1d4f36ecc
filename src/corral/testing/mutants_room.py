"""Mutants of preempting and of the room that is kept for whom it was freed (docs/protocol.md 15).

Each is a function that names what it replaces, and its text says which rule is gone. Next: `mutants.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from corral.model.lifecycle import Phase, Wanted
from corral.model.node import Device
from corral.model.session import Session
from corral.ports import NOTHING_KEPT, Keep
from corral.reconcile import placement, preempting, sessions
from corral.scheduling import cycle, pins
from corral.scheduling.places import RankPlace
from corral.scheduling.plan import Plan
from corral.scheduling.snapshot import Pin, Running, Snapshot, Waiting
from corral.scheduling.stopping import ground, preemption
from corral.store import tx as tx_module
from corral.testing.patches import Patch


def _owner(name: str) -> type:
    """The class of the store's transaction that defines this method."""
    return next(base for base in tx_module.SqlTx.__mro__ if name in base.__dict__)


def _victims_are_not_guarded() -> list[Patch]:
    def whoever(session: Session, planned: Running) -> bool:
        return session.phase is not Phase.ENDED

    return [Patch(preempting, "may_go", whoever)]


def _claimants_claim_twice() -> list[Patch]:
    """Neither the plan nor the transaction looks whether others stop for it already."""

    def still(session: Session, planned: Waiting, now: float) -> bool:
        return session.phase is Phase.PENDING and session.wanted is Wanted.RUN

    claimants = preemption._claimants  # pyright: ignore[reportPrivateUsage]

    def all_of_them(snapshot: Snapshot, plan: Plan) -> Iterator[Waiting]:
        blind = replace(snapshot, waiting=[one._replace(room_by=None) for one in snapshot.waiting])
        return claimants(blind, plan)

    return [Patch(preempting, "may_claim", still), Patch(preemption, "_claimants", all_of_them)]


def _pins_stay() -> list[Patch]:
    def nothing(self: object, owners: Sequence[str]) -> None:
        return None

    return [Patch(_owner("drop_pins"), "drop_pins", nothing)]


def _pins_are_not_counted() -> list[Patch]:
    owner = _owner("give_room_back")
    give_room_back = owner.__dict__["give_room_back"]

    def changed(self: Any, attempts: Sequence[tuple[str, int]], kept: Mapping[str, Keep] = NOTHING_KEPT) -> None:
        give_room_back(self, attempts, kept)
        self._free(
            [(pin.place.node, "", pin.place.cpu_milli, pin.place.memory_mib, 0, 0)
             for pin in self.pins({keep.owner for keep in kept.values()})][-1:]
        )  # fmt: skip

    return [Patch(owner, "give_room_back", changed)]


def _others_pins_are_room() -> list[Patch]:
    """The writer takes what is kept for others for free, and so does the plan."""
    kept_for = pins.kept_for

    def everybodys(
        found: Iterable[Pin], devices: Mapping[str, Sequence[Device]], nodes: Collection[str] | None = None
    ) -> Any:
        kept = kept_for(found, devices, nodes)
        return _Everybodys([place for places in kept.values() for place in places])

    return [Patch(cycle, "kept_for", everybodys), Patch(placement, "kept_for", everybodys)]


class _Everybodys(dict[str, list[RankPlace]]):
    """Whatever is kept, for whoever asks."""

    def __init__(self, places: list[RankPlace]) -> None:
        super().__init__()
        self._places = places

    def __contains__(self, key: object) -> bool:
        return bool(self._places)

    def get(self, key: str, default: Any = None) -> Any:
        return self._places or default


def _room_goes_to_anyone() -> list[Patch]:
    """What a victim gives back is free at once."""

    def nothing(tx: Any, freed: Any) -> Mapping[str, Keep]:
        return {}

    return [Patch(sessions, "_kept", nothing)]


def _pins_for_who_is_gone() -> list[Patch]:
    """Room is kept for the one that a victim was stopped for, whatever became of it."""

    def always(tx: Any, freed: Sequence[Session]) -> Mapping[str, Keep]:
        return {
            one.id: Keep(one.preempted_for, tx.now + sessions.PIN_S) for one in freed if one.preempted_for is not None
        }

    return [Patch(sessions, "_kept", always)]


def _movers_have_no_room() -> list[Patch]:
    def nothing(self: object, owner: str, places: Mapping[str, RankPlace], until: float) -> None:
        return None

    return [Patch(_owner("pin"), "pin", nothing)]


def _claimants_pass_whom_they_like() -> list[Patch]:
    """Who is in front, and when its start is planned, is nothing to those that have others stopped."""

    def whatever(self: object, claimant: Waiting, row: int, victims: set[int], own: Sequence[RankPlace]) -> bool:
        return True

    return [Patch(ground.Ground, "_keeps_promises", whatever)]


ROOM_MUTANTS: dict[str, tuple[str, str, Callable[[], list[Patch]]]] = {
    "victims_are_not_guarded": ("15", "preempting guards every victim", _victims_are_not_guarded),
    "claimants_claim_twice": ("15", "nobody else is stopped while some make way", _claimants_claim_twice),
    "claimants_pass_whom_they_like": (
        "15",
        "nobody has others stopped to the delay of who is in front",
        _claimants_pass_whom_they_like,
    ),
    "room_goes_to_anyone": ("15", "what a victim gives back is kept for its claimant", _room_goes_to_anyone),
    "pins_stay": ("15", "a claimant's end or placement drops its pins", _pins_stay),
    "pins_are_not_counted": ("15", "pins are counted with what is held", _pins_are_not_counted),
    "pins_for_who_is_gone": ("15", "no pin is made for a claimant that has gone", _pins_for_who_is_gone),
    "movers_have_no_room": ("15", "one that moves has its next room kept from the start", _movers_have_no_room),
    "others_pins_are_room": ("15", "a pin is room for its owner alone", _others_pins_are_room),
}
