"""What must be true of those who make way for others, and of whom they make way for (docs/protocol.md 15).

It reads the events as they are committed and the ledger as it is then. Next: `checkers.py` hands it both.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from corral.model.pin_invariants import MOVING
from corral.model.session import parse_token
from corral.reconcile.sessions import PIN_S
from corral.testing.sim_store import SimDatabase
from corral.testing.trees import GroundTruth, Tree

RULE = "PROTOCOL 15"
WAITS = "SELECT 1 FROM session WHERE id = ? AND phase = 'pending' AND wanted = 'run' AND room_by IS NOT NULL"


class MakingWay:
    """One seed's. `violate` is told the rule and what broke it."""

    def __init__(self, database: SimDatabase, truth: GroundTruth, violate: Callable[[str, str], None]) -> None:
        self._database = database
        self._truth = truth
        self._violate = violate
        self._until: dict[str, tuple[int, float]] = {}
        self._going_for: dict[str, str] = {}
        self._moving_to: dict[str, tuple[set[str], float]] = {}

    def _rows(self, statement: str, *values: object) -> list[Any]:
        return self._database.raw.execute(statement, values).fetchall()

    def see(self, session: str, fact: str, attempt: int, detail: str) -> None:
        """One event of those that a commit brought."""
        if fact in ("placed", "hold") or (fact == "update" and "group" in json.loads(detail)):
            self._until.pop(session, None)  # who is held, or goes elsewhere, gives its claim up, and may make another
        elif fact == "preempting":
            self._once(session, attempt, json.loads(detail))
        elif fact == "preempted":
            self._going_for[session] = json.loads(detail)["for"]
        elif fact == MOVING:
            told = json.loads(detail)
            self._moving_to[session] = set(told["to"]), told["room_by"] + PIN_S
            if "for" in told:
                self._going_for[session] = told["for"]
        elif fact in ("requeued", "released"):
            self._kept(session, self._going_for.pop(session, None))
            self._has_where_to_go(session, *self._moving_to.pop(session, (set(), 0.0)))

    def _once(self, claimant: str, attempt: int, detail: dict[str, Any]) -> None:
        """Nobody else is stopped for a session while some are, and those are stopped for nobody else."""
        before, until = self._until.get(claimant, (0, 0.0))
        if before == attempt and self._database.now() < until:
            self._violate(RULE, f"others were stopped for {claimant} already, and are being waited for")
        self._until[claimant] = attempt, float(detail["room_by"])
        for victim in detail["victims"]:
            stop_for, for_whom = self._rows("SELECT stop_for, preempted_for FROM session WHERE id = ?", victim)[0]
            gone = (stop_for, for_whom) == (None, None)  # its room was never used, and is free already
            if not gone and (stop_for, for_whom) != ("preempted", claimant):
                self._violate(RULE, f"{victim} is stopped for {for_whom}, by {stop_for}, not for {claimant}")

    def _kept(self, victim: str, claimant: str | None) -> None:
        """What a victim gave back is kept for whom it was stopped for, if that one waits for it."""
        if claimant is None or not self._rows(WAITS, claimant):
            return
        owners = {parse_token(row[0]).session for row in self._rows("SELECT token FROM pin WHERE owner = ?", claimant)}
        if victim not in owners:
            self._violate(RULE, f"{victim} gave its room back, and it was not kept for {claimant}")

    def _has_where_to_go(self, mover: str, nodes: set[str], until: float) -> None:
        """What was kept for one that moves is still there when it waits to go on, if its time is not over."""
        if not nodes or self._database.now() >= until or not self._rows(WAITS, mover):
            return
        kept = {row[0] for row in self._rows("SELECT node FROM pin WHERE owner = ?", mover)}
        if not nodes <= kept:
            self._violate(RULE, f"{mover} moves to {sorted(nodes)}, and has room on {sorted(kept)}")

    def begins(self, tree: Tree) -> None:
        """AL8: who held a device whole has gone before another begins there."""
        for token, other in self._truth.live.items():
            if token == tree.token or other.node != tree.node:
                continue
            for device in set(other.devices) & set(tree.devices):
                held = self._rows(
                    "SELECT exclusive FROM holding WHERE device = ? AND token IN (?, ?)", device, token, tree.token
                )
                if any(row[0] for row in held):
                    self._violate("AL8", f"{tree.token} begins on {device} of {tree.node}, where {token} lives")
