"""What must be true at each commit, at each start and at the end: small checks, each with the code it stands for.

It reads the ledger as it is, the ground truth of processes, and what users were told. It never changes anything, and
is nobody's step. docs/simulation.md lists the codes. Next: `world.py` hooks it in and asks for the last look.
"""

from __future__ import annotations

import json
import math
import random
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from corral.agent.job import KILL_GRACE_S
from corral.agent.looking import OVERDUE_SLACK_S
from corral.model.dependency import is_met
from corral.model.faults import Invalid
from corral.model.invariants import check, compare, gather
from corral.model.lifecycle import ExitClass, Outcome, Phase
from corral.model.session import Certificate, Result, Session, parse_token
from corral.model.spec import OutcomeRule
from corral.reconcile.arrays import WINDOW
from corral.scheduling.cycle import cycle
from corral.scheduling.reserving import in_the_way
from corral.testing.checkers_way import MakingWay
from corral.testing.sim_store import SimDatabase
from corral.testing.simloop import SimLoop
from corral.testing.trees import GroundTruth, Tree

FULL_CHECK_IN = 0.06
FORCE_AFTER_S = 0.98 * (KILL_GRACE_S + OVERDUE_SLACK_S)  # by clocks that drift
SHOWN = 6


@dataclass(slots=True)
class Records:
    """What really happened on the nodes, noted as it happens. Keyed by token."""

    said_run: set[str] = field(default_factory=set[str])
    said_void: set[str] = field(default_factory=set[str])
    results: dict[str, tuple[int | None, int | None]] = field(default_factory=dict[str, tuple[int | None, int | None]])
    forgotten: set[str] = field(default_factory=set[str])


@dataclass(slots=True)
class Told:
    """What users were told, and so may rely on."""

    keys: dict[str, str] = field(default_factory=dict[str, str])
    cancelled: dict[str, str] = field(default_factory=dict[str, str])
    asked_keys: set[str] = field(default_factory=set[str])
    seen_events: defaultdict[str, list[int]] = field(default_factory=lambda: defaultdict[str, list[int]](list))


class Checkers:
    """One seed's. `violate` stops the run at the step that broke the rule."""

    def __init__(self, loop: SimLoop, database: SimDatabase, truth: GroundTruth, seed: int) -> None:
        self.loop = loop
        self.database = database
        self.truth = truth
        self.records = Records()
        self.told = Told()
        self._chance = random.Random(f"{seed}:checkers")
        self._last_event = 0
        self._stop_asked_s: dict[str, float] = {}
        self._making_way = MakingWay(database, truth, self._violate)
        self._before: dict[str, Any] | None = None
        self.full_checks = 0
        self.at_the_end: Callable[[], object] | None = None
        database.on_commit.append(self._committed)
        truth.on_start.append(self._started)

    def _violate(self, code: str, message: str) -> None:
        self.loop.violate(f"{code}: {message}")

    def _rows(self, statement: str, *values: object) -> list[Any]:
        return self.database.raw.execute(statement, values).fetchall()

    def _named(self, statement: str, **values: object) -> list[Any]:
        return self.database.raw.execute(statement, values).fetchall()

    # --- at each commit

    def _committed(self, name: str) -> None:
        if self.database.wrote("event"):
            self._look_at_events()
        if self.database.wrote("kernel", "holding"):
            self._reports_are_true()
            self._live_is_held()
            self._note_stops()
        if self._chance.random() < FULL_CHECK_IN:
            self.look_at_all(name)

    def _note_stops(self) -> None:
        for (token,) in self._rows("SELECT token FROM kernel WHERE stop_asked = 1 AND certificate IS NULL"):
            self._stop_asked_s.setdefault(token, self.loop.now_s)

    def stop_was_asked(self, token: str) -> bool:
        return token in self._stop_asked_s

    def agent_kills(self, node: str, token: str) -> None:
        """PROTOCOL 5: an agent ends a tree whose shim lives only where a stop has been overdue for long. The death is
        then judged like any other, with the lock in hand."""
        asked_s = self._stop_asked_s.get(token)
        if asked_s is None or self.loop.now_s - asked_s < FORCE_AFTER_S:
            self._violate("PROTOCOL 5", f"the agent of {node} kills {token}, whose shim lives")

    def _look_at_events(self) -> None:
        events = self._rows(
            "SELECT id, session, fact, attempt, by_whom, detail FROM event WHERE id > ? ORDER BY id", self._last_event
        )
        for id_, session, fact, attempt, _, detail in events:
            self._last_event = id_
            self._making_way.see(session, fact, attempt, detail)
            if fact == "ready":
                self._running_means_started(session, attempt)
            elif fact == "placed":
                self._placed_as_wanted(session)
            elif fact == "requeued":
                self._finished_is_finished(session, attempt)
            elif fact == "disputed" and not self._came_too_late(json.loads(detail)):
                self._violate("PROTOCOL 1", f"session {session}: a fact that cannot be was reported: {detail}")

    def look_at_all(self, name: str) -> None:
        """The invariants of the ledger: this state, and what changed since the last look."""
        self.full_checks += 1
        tables = gather(self.database.reads().ledger())
        found = check(tables)
        if self._before is not None:
            found += compare(self._before, tables)
        self._before = tables
        if found:
            shown = "; ".join(str(violation) for violation in found[:SHOWN])
            self._violate(found[0].code, f"after {name}: {shown}")

    def _running_means_started(self, session: str, attempt: int) -> None:
        """KE4, at the commit that says so: later a reboot may take the files."""
        tokens = self._rows("SELECT token, result_at FROM kernel WHERE session = ? AND attempt = ?", session, attempt)
        for token, result_at in tokens:
            if token not in self.records.said_run and result_at is None:
                self._violate("KE4", f"session {session} is running, and {token} has no `started` that says run")

    def _came_too_late(self, fact: dict[str, str]) -> bool:
        """A result whose launch was proven lost with its directory, or dead by an operator's word, before it came."""
        confirmed = self._rows("SELECT 1 FROM kernel WHERE token = ? AND certificate = 'operator'", fact["token"])
        return fact["kind"] == "result" and (bool(confirmed) or fact["token"] in self.records.forgotten)

    def _reports_are_true(self) -> None:
        """KE4 and KE5, for what this commit recorded."""
        now = self.database.now()
        for token, exit_code, signal in self._rows(
            "SELECT token, exit_code, signal FROM kernel WHERE result_at = ?", now
        ):
            if self.records.results.get(token) != (exit_code, signal):
                written = self.records.results.get(token)
                self._violate(
                    "KE5", f"{token} is recorded to have ended with {(exit_code, signal)}, it wrote {written}"
                )
        for (token,) in self._rows("SELECT token FROM kernel WHERE ready_at = ?", now):
            if token not in self.records.said_run:
                self._violate("KE4", f"{token} is recorded as ready, and has no `started` that says run")

    def _finished_is_finished(self, session: str, attempt: int) -> None:
        """docs/protocol.md 2: an attempt whose results decide a success is never run again."""
        spec = self.database.reads().sessions([session])[session].spec
        codes = self._rows(
            "SELECT exit_class FROM kernel WHERE session = ? AND attempt = ? ORDER BY rank", session, attempt
        )
        deciding = codes[:1] if spec.outcome_rule is OutcomeRule.MAIN_ONLY else codes
        if all(row[0] == "ok" for row in deciding):
            self._violate("PROTOCOL 2", f"session {session} is run again though attempt {attempt} had succeeded")

    def _placed_as_wanted(self, session: str) -> None:
        wanted = self._rows("SELECT wanted FROM session WHERE id = ?", session)[0][0]
        if wanted != "run":
            self._violate("CB1", f"session {session} was placed, and wanted was {wanted}")
        self._group_takes_sessions(session)
        self._needs_are_met(session)
        self._keeps_off_reservations(session)

    def _group_takes_sessions(self, session: str) -> None:
        """Pausing is a barrier from its acknowledgement on."""
        paused = "SELECT g.name FROM session s JOIN resource_group g ON g.name = s.grp WHERE s.id = ? AND g.paused = 1"
        for (name,) in self._rows(paused, session):
            self._violate("PAUSE", f"session {session} was placed in group {name}, which is paused")

    def _keeps_off_reservations(self, id_: str) -> None:
        """RV1: a reservation counts from its acknowledgement on, whenever whoever placed had looked."""
        reads = self.database.reads()
        if not (reservations := reads.reservations()):
            return
        session = reads.sessions([id_])[id_]
        nodes = [kernel.node for kernel in reads.kernels([id_]).get(id_, ())]
        limit_s = session.time_limit_s
        until = math.inf if limit_s is None else reads.now + limit_s + session.spec.grace_s
        met = in_the_way(reservations, nodes, session.owner, session.spec.project, reads.now, until)
        if met is not None:
            self._violate("RV1", f"session {id_} was placed on {nodes}, and would run into reservation {met.name}")

    def _needs_are_met(self, session: str) -> None:
        """DE1: whoever waits for others is placed when each has ended as it was to."""
        for row in self.database.reads().dependencies([session]).get(session, []):
            if not is_met(row.kind, row.phase, row.outcome):
                what = f"{row.needs}:{row.kind}, which is {row.outcome or row.phase}"
                self._violate("DE1", f"session {session} was placed, and waits for {what}")

    def _live_is_held(self) -> None:
        """KE3: whatever lives has its room, and nothing certifies it dead."""
        for token, tree in self.truth.live.items():
            self._check_held(token, tree)

    def _check_held(self, token: str, tree: Tree) -> None:
        kernel = self._rows("SELECT node, certificate, claimed_version FROM kernel WHERE token = ?", token)
        if not kernel:
            self._violate("KE3", f"{token} lives on {tree.node}, and the ledger does not know it")
            return
        node, certificate, claimed = kernel[0]
        if certificate is not None:
            self._violate("KE3", f"{token} lives on {tree.node}, and is certified dead: {certificate}")
        if node != tree.node or claimed is None:
            self._violate("KE3", f"{token} lives on {tree.node}; the ledger has it on {node}, claimed {claimed}")
        held = self._rows("SELECT device FROM holding WHERE token = ? AND released_at IS NULL", token)
        missing = set(tree.devices) - {row[0] for row in held}
        if not held or missing:
            self._violate("KE3", f"{token} lives on {tree.node} and holds no room ({sorted(missing)})")

    # --- at each start

    def _started(self, tree: Tree) -> None:
        """KE1 and KE2 are the ground truth's own; here that the start was allowed at all (CB1, KE3)."""
        token = tree.token
        if token in self.records.said_void:
            self._violate("CB1", f"{token} was started though its `started` says void")
        if token not in self.records.said_run:
            self._violate("KE4", f"{token} was started without a `started` that says run")
        self._check_held(token, tree)
        self._making_way.begins(tree)
        parsed = parse_token(token)
        gang, released = self._rows(
            "SELECT COUNT(*), MIN(go) FROM kernel WHERE session = ? AND attempt = ?", parsed.session, parsed.attempt
        )[0]
        if gang > 1 and not released:
            self._violate("BARRIER", f"{token} was started before every rank of its session was ready")
        newest = self._rows("SELECT attempt, phase FROM session WHERE id = ?", parsed.session)
        if newest and (newest[0][0] != parsed.attempt or newest[0][1] in (Phase.PENDING, Phase.ENDED)):
            attempt, phase = newest[0]
            self._violate("KE6", f"{token} was started while its session is {phase} at attempt {attempt}")

    def preparing(self) -> set[str]:
        """The nodes that were told of a launch that has not begun."""
        rows = self._rows("SELECT token, node FROM kernel WHERE certificate IS NULL AND served_at IS NOT NULL")
        decided = self.records.said_run | self.records.said_void
        return {node for token, node in rows if token not in decided}

    def begun_on(self, node: str) -> bool:
        """Whether a launch that nothing certifies was decided to run there."""
        tokens = self._rows("SELECT token FROM kernel WHERE node = ? AND certificate IS NULL", node)
        return any(row[0] in self.records.said_run for row in tokens)

    # --- at the end

    def is_settled(self) -> bool:
        busy = self._rows("SELECT 1 FROM session WHERE phase NOT IN ('pending', 'ended') LIMIT 1")
        return not busy and not self.unsettled()

    def unsettled(self) -> list[str]:
        """SE7 and CB3: the sessions that neither ended nor wait for a true reason."""
        reads = self.database.reads()
        ids = [row[0] for row in self._rows("SELECT id FROM session WHERE phase <> 'ended' ORDER BY ordinal")]
        sessions = reads.sessions(ids)
        due = [f"array {id_} has members whose turn has come" for id_ in reads.arrays_due(WINDOW, len(ids) + SHOWN)]
        due += [f"session {id_} waits for what is decided" for id_ in reads.decided_dependents(SHOWN)]
        if not sessions or due:
            return due
        turns = reads.still_dependent(ids)  # of an array, and who is before them waits for a true reason
        waits = {id_ for id_, session in sessions.items() if session.phase is Phase.PENDING}
        fitting = {placed.session.id for placed in cycle(reads.snapshot(1000)).placements}
        refused = reads.refusals(waits)
        found: list[str] = []
        for id_, session in sessions.items():
            held = id_ in waits and session.wanted == "hold"
            true_reason = id_ in turns or (id_ in waits and id_ not in fitting and bool(refused.get(id_)))
            if session.not_before > self.database.now() or not (held or true_reason):
                found.append(self.story(session))
        return found

    def story(self, session: Session) -> str:
        kernels = self.database.reads().kernels([session.id]).get(session.id, [])
        return f"{session.id} {session.phase} attempt {session.attempt} wanted {session.wanted}: " + ", ".join(
            f"{kernel.token} on {kernel.node} {kernel.phase}" for kernel in kernels
        )

    def last_look(self) -> None:
        """After all faults are healed and nothing moves any more."""
        self.look_at_all("the end")
        rules = (self._acknowledged_is_kept, self._results_are_true, self._watched_all, self._ended_by_its_rule)
        for code, message in (found for rule in rules for found in rule()):
            self._violate(code, message)
        for token in self.truth.live:
            self._violate("SE7", f"{token} still lives")
        if self.at_the_end is not None:
            self.at_the_end()

    def _acknowledged_is_kept(self) -> Iterator[tuple[str, str]]:
        """SE2, CB3: what was acknowledged is there, once."""
        rows = self._rows("SELECT idempotency_key, id, phase FROM session")
        rows += self._rows(
            "SELECT idempotency_key, id, CASE WHEN ended_at IS NULL THEN 'live' ELSE 'ended' END FROM session_array"
        )
        by_key = {row[0]: row[1] for row in rows if row[0] is not None}
        phases = {row[1]: row[2] for row in rows}
        for key, id_ in self.told.keys.items():
            if by_key.get(key) != id_:
                yield "SE2", f"submit {key} was acknowledged as {id_}; the ledger has {by_key.get(key)}"
        for key in by_key.keys() - self.told.asked_keys:
            yield "SE2", f"nobody asked for {key}"
        for id_ in self.told.cancelled:
            phase = phases.get(id_) or phases.get(id_.partition("[")[0])  # who ended with its array may have no row
            if phase != Phase.ENDED:
                yield "CB3", f"the cancel of {id_} was acknowledged; it is {phase}"

    def _results_are_true(self) -> Iterator[tuple[str, str]]:
        """KE5: what the ledger says of an end is what the node wrote, and what the node wrote is in the ledger."""
        rows = self._rows("SELECT token, result_at, exit_code, signal, certificate FROM kernel")
        for token, result_at, exit_code, signal, certificate in rows:
            written = self.records.results.get(token)
            if result_at is not None and written != (exit_code, signal):
                yield "KE5", f"{token}: the ledger says ({exit_code}, {signal}), the node wrote {written}"
            lost = token in self.records.forgotten or certificate not in (Certificate.EXIT, None)
            if result_at is None and written is not None and not lost:
                yield "KE5", f"{token}: the node wrote {written}, and the ledger has no result"

    def _watched_all(self) -> Iterator[tuple[str, str]]:
        """EV3: a watcher that resumed wherever it was cut off has seen each session's events once, in order."""
        for id_, numbers in self.told.seen_events.items():
            if numbers != list(range(1, len(numbers) + 1)):
                yield "EV3", f"a watcher saw {id_} as {numbers}"

    def _ended_by_its_rule(self) -> Iterator[tuple[str, str]]:
        """docs/protocol.md 3 and 14, judged anew: the outcome is what the recorded results say, and only the user's own
        failures spend retries."""
        reads = self.database.reads()
        ids = [row[0] for row in self._rows("SELECT id FROM session")]
        kernels = reads.kernels(ids)
        for id_, session in reads.sessions(ids).items():
            results = [kernel.result for kernel in kernels.get(id_, [])]
            wrong = _contradiction(session, results) if session.outcome is not None else None
            if wrong:
                yield "PROTOCOL 3", f"{id_} ended as {session.outcome} by {session.spec.outcome_rule}: {wrong}"
            spent = self._named(
                "SELECT COUNT(*) FROM (SELECT attempt FROM attempt WHERE session = :id AND exit_class IN "
                "('user', 'oom', 'timeout') UNION "
                "SELECT attempt FROM kernel WHERE session = :id AND exit_class = 'infra')",
                id=id_,
            )[0][0]
            if session.failures > spent:
                yield "PROTOCOL 14", f"{id_} spent {session.failures} retries; {spent} attempts failed by themselves"


def _contradiction(session: Session, results: list[Result | None]) -> str | None:
    """Why these results cannot have led to that outcome."""
    rule, decided = session.spec.outcome_rule, results
    if rule is OutcomeRule.MAIN_ONLY:
        decided = results[:1]
    known = [result for result in decided if result is not None]
    if session.outcome is Outcome.SUCCEEDED:
        good = len(known) == len(decided) and all(result.good or result.exit_code == 0 for result in known)
        return None if good and known else f"success needs {len(decided)} good results: {known}"
    if session.outcome is Outcome.FAILED and session.exit_class in (ExitClass.USER, ExitClass.OOM):
        complete = rule is not OutcomeRule.ALL or len(known) == len(decided)
        return None if complete and any(not result.good for result in known) else f"no failure decided it: {known}"
    return None


def is_known(database: SimDatabase, token: str) -> bool:
    """KE7: the ledger knows the token, as a kernel or as reported foreign."""
    try:
        parse_token(token)
    except Invalid:
        return False
    found = database.raw.execute(
        "SELECT 1 FROM kernel WHERE token = ? UNION SELECT 1 FROM foreign_token WHERE token = ?", (token, token)
    )
    return found.fetchone() is not None


def certified(database: SimDatabase, token: str) -> bool:
    row = database.raw.execute("SELECT certificate FROM kernel WHERE token = ?", (token,)).fetchone()
    return row is not None and row[0] is not None


def last_heard(database: SimDatabase, node: str) -> float:
    """When a valid exchange or registration of the node was last accepted; long ago if never."""
    row = database.raw.execute("SELECT seen_at FROM node WHERE name = ?", (node,)).fetchone()
    return row[0] if row is not None else 0.0
