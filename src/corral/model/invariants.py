"""What is true of the ledger however Corral was killed, cut off or lied to, stated once over plain rows.

Knows the rows that `Reads.ledger` yields and nothing of where they come from: the simulator, the tests and
`corral doctor` call this one module. Never repairs anything. `check` looks at one state; `compare` at two, for what
may never change. docs/simulation.md says what each code means.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from corral.model.array_invariants import array_went_on, check_arrays
from corral.model.lifecycle import Fact, Phase, step
from corral.model.pin_invariants import check_pins, check_stops
from corral.model.quota_invariants import check_quotas
from corral.model.resources import WHOLE_GPU_MILLI

Row = Mapping[str, Any]
Tables = Mapping[str, Sequence[Row]]

FACTS: Final = frozenset(fact.value for fact in Fact)
HOLDING: Final = frozenset(phase.value for phase in Phase if phase.holds_room)
STOPPED: Final = (Phase.STOPPING.value, Phase.ENDED.value)
TABLES: Final = (
    "session",
    "attempt",
    "kernel",
    "holding",
    "pin",
    "node",
    "device",
    "event",
    "array",
    "quota",
    "domain",
)


class Violation(NamedTuple):
    """One thing that should not be: the invariant's code, what it is about, and what was found."""

    code: str
    subject: str
    message: str

    def __str__(self) -> str:
        return f"{self.code} {self.subject}: {self.message}"


def gather(rows: Iterable[tuple[str, Row]]) -> dict[str, list[Row]]:
    """The rows of `Reads.ledger` by table; every table is there, if empty."""
    tables: dict[str, list[Row]] = {name: [] for name in TABLES}
    for table, row in rows:
        tables[table].append(row)
    return tables


def check(tables: Mapping[str, Iterable[Row]]) -> list[Violation]:
    """Everything that is wrong with this one state of the ledger, in the order of the rules."""
    listed = {name: list(tables.get(name, ())) for name in TABLES}
    view = _View(listed)
    return [violation for rule in _RULES for violation in rule(view)]


def compare(before: Mapping[str, Iterable[Row]], after: Mapping[str, Iterable[Row]]) -> list[Violation]:
    """What changed between two states, the second later, that may never change."""
    found: list[Violation] = []
    for table, (key, rule) in _NEVER_UNDONE.items():
        later = {tuple(row[name] for name in key): row for row in after.get(table, ())}
        for row in before.get(table, ()):
            name = tuple(row[part] for part in key)
            now = later.get(name)
            subject = "/".join(str(part) for part in name)
            if now is None:
                found.append(Violation(_LOST[table], subject, f"its row in {table} is gone"))
            elif now != row:
                found += [Violation(code, subject, message) for code, message in rule(row, now)]
    return found


class _View:
    """The rows, and the groupings that several rules want."""

    def __init__(self, tables: Tables) -> None:
        self.tables = tables
        self.sessions: dict[str, Row] = {row["id"]: row for row in tables["session"]}
        self.attempts = tables["attempt"]
        self.kernels = tables["kernel"]
        self.holdings = tables["holding"]
        self.nodes: dict[str, Row] = {row["name"]: row for row in tables["node"]}
        self.devices = tables["device"]
        self.held = [row for row in self.holdings if row["released_at"] is None]
        self.pins = tables["pin"]
        self.kernel_of: dict[str, Row] = {row["token"]: row for row in self.kernels}
        self.events: defaultdict[str, list[Row]] = defaultdict(list)
        self.arrays: dict[str, Row] = {row["id"]: row for row in tables["array"]}
        self.array_events: defaultdict[str, list[Row]] = defaultdict(list)
        for row in sorted(tables["event"], key=lambda row: row["seq"]):
            of = self.array_events if row["session"] in self.arrays else self.events
            of[row["session"]].append(row)
        self.kernels_of: defaultdict[tuple[str, int], list[Row]] = defaultdict(list)
        for row in self.kernels:
            self.kernels_of[row["session"], row["attempt"]].append(row)


# --- the story of each session ----------------------------------------------------------------------------------------


def _history_follows_the_table(view: _View) -> Iterator[Violation]:
    for id_, events in view.events.items():
        ends = 0
        before: Row | None = None
        for event in events:
            wrong = _wrong_step(before, event)
            if wrong:
                yield Violation("SE1", id_, f"event {event['seq']} ({event['fact']}): {wrong}")
            ends += event["target"] == Phase.ENDED and event["source"] != Phase.ENDED
            before = event
        if ends > 1:
            yield Violation("SE1", id_, f"it ended {ends} times")


def _wrong_step(before: Row | None, event: Row) -> str | None:
    fact, source, target = event["fact"], event["source"], event["target"]
    if before is None:
        first = (fact, source, target, event["attempt"]) == ("submitted", None, Phase.PENDING, 1)
        return None if first else "the first event of a session is its submit"
    if source != before["target"]:
        return f"it leaves {source}, but the one before it led to {before['target']}"
    attempt = before["attempt"] + (before["fact"] == Fact.REQUEUED)
    if event["attempt"] != attempt:
        return f"it is of attempt {event['attempt']}; {attempt} was due"
    if fact not in FACTS:
        return None if source == target else f"what is no fact leads from {source} to {target}"
    edge = step(Phase(source), Fact(fact))
    if edge is None:
        return f"the table has no such fact in {source}"
    return None if edge.target == target else f"it leads to {edge.target}, not to {target}"


def _history_is_gapless(view: _View) -> Iterator[Violation]:
    for id_, session in view.sessions.items():
        events = view.events.get(id_, [])
        numbers = [event["seq"] for event in events]
        if numbers != list(range(1, len(numbers) + 1)):
            yield Violation("EV1", id_, f"its events are numbered {numbers[:50]}")
        if not events:
            yield Violation("EV1", id_, "it has no events")
            continue
        last = events[-1]
        told = (last["seq"], last["target"], last["attempt"] + (last["fact"] == Fact.REQUEUED))
        shown = (session["seq"], session["phase"], session["attempt"])
        if told != shown:
            yield Violation("EV1", id_, f"its row says (seq, phase, attempt) {shown}, its events {told}")
    for id_ in view.events.keys() - view.sessions.keys():
        yield Violation("EV1", id_, "events of a session that is not there")


def _an_end_is_complete(view: _View) -> Iterator[Violation]:
    for id_, session in view.sessions.items():
        said = [session[name] is not None for name in ("ended_at", "outcome", "exit_class")]
        if any(said) != all(said) or all(said) != (session["phase"] == Phase.ENDED):
            shown = {name: session[name] for name in ("phase", "ended_at", "outcome", "exit_class")}
            yield Violation("SE3", id_, f"ended, and how, belong together: {shown}")


def _attempts_follow_death(view: _View) -> Iterator[Violation]:
    for kernel in view.kernels:
        session = view.sessions.get(kernel["session"])
        if session is None:
            yield Violation("SE4", kernel["token"], "a kernel of a session that is not there")
            continue
        if kernel["attempt"] > session["attempt"]:
            yield Violation("SE4", kernel["token"], f"its session is at attempt {session['attempt']}")
        over = kernel["attempt"] < session["attempt"] or session["phase"] not in HOLDING
        if over and kernel["certificate"] is None:
            yield Violation("SE4", kernel["token"], "its attempt is over, and no death certificate says so")


def _one_attempt_lives(view: _View) -> Iterator[Violation]:
    live: defaultdict[str, list[int]] = defaultdict(list)
    numbers: defaultdict[str, list[int]] = defaultdict(list)
    for row in view.attempts:
        numbers[row["session"]].append(row["attempt"])
        if row["live"]:
            live[row["session"]].append(row["attempt"])
        if bool(row["live"]) == (row["ended_at"] is not None):
            yield Violation("SE4", f"{row['session']}/{row['attempt']}", "live and ended exclude each other")
    for id_, session in view.sessions.items():
        expected = [session["attempt"]] if session["phase"] in HOLDING else []
        if live[id_] != expected:
            yield Violation("SE4", id_, f"live attempts {live[id_]} in phase {session['phase']}, expected {expected}")
        if sorted(numbers[id_]) != list(range(1, len(numbers[id_]) + 1)):
            yield Violation("SE4", id_, f"its attempts are numbered {sorted(numbers[id_])}")


def _no_silent_state(view: _View) -> Iterator[Violation]:
    for id_, session in view.sessions.items():
        if session["phase"] != Phase.ENDED and session["next_check_at"] is None:
            yield Violation("SE5", id_, f"{session['phase']}, and nobody will look at it again")


def _gangs_are_whole(view: _View) -> Iterator[Violation]:
    sizes: dict[str, int] = {}
    for (id_, attempt), kernels in view.kernels_of.items():
        ranks = sorted(kernel["rank"] for kernel in kernels)
        if ranks != list(range(sizes.setdefault(id_, len(ranks)))):
            yield Violation("SE6", f"{id_}/{attempt}", f"its kernels have the ranks {ranks[:50]}")
        claimed = {kernel["claimed_version"] is not None for kernel in kernels}
        if len(claimed) > 1:
            yield Violation("SE6", f"{id_}/{attempt}", "some of its kernels are claimed and some are not")
    for id_, session in view.sessions.items():
        if session["phase"] in HOLDING and (id_, session["attempt"]) not in view.kernels_of:
            yield Violation("SE6", id_, f"{session['phase']} without a kernel")


def _cancelled_means_stopping(view: _View) -> Iterator[Violation]:
    for id_, session in view.sessions.items():
        if session["wanted"] == "stop" and session["phase"] not in STOPPED:
            yield Violation("CB1", id_, f"cancelled, and still {session['phase']}")


# --- kernels ----------------------------------------------------------------------------------------------------------


def _running_means_started(view: _View) -> Iterator[Violation]:
    for id_, session in view.sessions.items():
        if session["phase"] != Phase.RUNNING:
            continue
        for kernel in view.kernels_of[id_, session["attempt"]]:
            if kernel["ready_at"] is None and kernel["result_at"] is None:
                yield Violation("KE4", kernel["token"], "its session is running, and nothing says it started")


def _claims_are_of_their_node(view: _View) -> Iterator[Violation]:
    for kernel in view.kernels:
        node = view.nodes.get(kernel["node"])
        if node is None:
            yield Violation("KE3", kernel["token"], f"there is no node {kernel['node']}")
        elif kernel["node_epoch"] > node["epoch"]:
            yield Violation("EP1", kernel["token"], f"of epoch {kernel['node_epoch']}, its node is at {node['epoch']}")
        elif (kernel["claimed_version"] or 0) > node["desired_version"]:
            message = f"claimed in version {kernel['claimed_version']}, its node is at {node['desired_version']}"
            yield Violation("KE3", kernel["token"], message)
    for name, node in view.nodes.items():
        if node["served_version"] > node["desired_version"]:
            yield Violation("KE3", name, "more was served than desired")


# --- room -------------------------------------------------------------------------------------------------------------


def _room_is_enough(view: _View) -> Iterator[Violation]:
    holders: defaultdict[tuple[str, str], list[Row]] = defaultdict(list)
    for row in (*view.held, *view.pins):
        holders[row["node"], row["device"]].append(row)
    for device in view.devices:
        rows = holders[device["node"], device["uuid"]]
        vram, share = _sum(rows, "vram_mib"), _sum(rows, "share_milli")
        subject = f"{device['node']}/{device['uuid']}"
        if vram > device["capacity_mib"]:
            yield Violation("AL1", subject, f"{vram} MiB held or kept of {device['capacity_mib']}")
        if share > WHOLE_GPU_MILLI:
            yield Violation("AL1", subject, f"{share} thousandths held or kept")
        if any(row.get("exclusive") for row in rows) and len(rows) > 1:
            yield Violation("AL1", subject, f"held whole by one of {len(rows)} holders")
    for name, node in view.nodes.items():
        for what in ("cpu_milli", "memory_mib"):
            held = _sum(holders[name, ""], what)
            if held > node[what]:
                yield Violation("AL1", name, f"{held} {what} held or kept of {node[what]}")


def _sums_are_right(view: _View) -> Iterator[Violation]:
    used: defaultdict[tuple[str, str], list[int]] = defaultdict(lambda: [0, 0])
    for row in (*view.held, *view.pins):
        sums = used[row["node"], row["device"]]
        sums[0] += row["vram_mib"] if row["device"] else row["cpu_milli"]
        sums[1] += row["share_milli"] if row["device"] else row["memory_mib"]
    for name, node in view.nodes.items():
        kept = [node["cpu_used_milli"], node["memory_used_mib"]]
        if kept != used.pop((name, ""), [0, 0]):
            yield Violation("AL2", name, f"its row says {kept} used, the holdings and pins another sum")
    for device in view.devices:
        kept = [device["used_mib"], device["used_milli"]]
        if kept != used.pop((device["node"], device["uuid"]), [0, 0]):
            yield Violation("AL2", f"{device['node']}/{device['uuid']}", f"its row says {kept} used, the holdings not")
    for node, device in used:
        yield Violation("AL2", f"{node}/{device}", "held, and there is no such device or node")


def _room_goes_with_death(view: _View) -> Iterator[Violation]:
    for row in view.holdings:
        kernel = view.kernel_of.get(row["token"])
        subject = f"{row['token']}/{row['device']}"
        if kernel is None:
            yield Violation("AL3", subject, "held for a kernel that is not there")
        elif row["released_at"] is not None and kernel["certificate"] is None:
            yield Violation("AL3", subject, "given back while nothing proves its kernel dead")
        elif kernel["node"] != row["node"]:
            yield Violation("AL3", subject, f"held on {row['node']}, its kernel is on {kernel['node']}")


def _held_is_what_lives(view: _View) -> Iterator[Violation]:
    live = {(row["session"], row["attempt"]) for row in view.attempts if row["live"]}
    for row in view.holdings:
        lives = (row["session"], row["attempt"]) in live
        if lives and row["released_at"] is not None:
            yield Violation("AL4", f"{row['token']}/{row['device']}", "given back before its attempt was over")
        if not lives and row["released_at"] is None:
            yield Violation("AL9", f"{row['token']}/{row['device']}", "still held, though its attempt is over")
    holding = {row["token"] for row in view.held}
    for kernel in view.kernels:
        if (kernel["session"], kernel["attempt"]) in live and kernel["token"] not in holding:
            yield Violation("AL9", kernel["token"], "of a live attempt, and holds nothing")


def _room_is_kept_for_who_waits(view: _View) -> Iterator[Violation]:
    yield from (Violation(*found) for found in check_pins(view.pins, view.sessions))


def _nobody_makes_way_twice(view: _View) -> Iterator[Violation]:
    yield from (Violation(*found) for found in check_stops(view.events))


def _quotas_let_in_no_more(view: _View) -> Iterator[Violation]:
    yield from (Violation(*found) for found in check_quotas(view.tables, view.sessions, view.held))


def _sum(rows: Iterable[Row], name: str) -> int:
    return sum(row[name] for row in rows)


def _arrays_are_their_members(view: _View) -> Iterator[Violation]:
    sessions = list(view.sessions.values())
    yield from (Violation(*found) for found in check_arrays(view.arrays, sessions, view.array_events))


_RULES: Final[tuple[Callable[[_View], Iterator[Violation]], ...]] = (
    _history_follows_the_table,
    _history_is_gapless,
    _an_end_is_complete,
    _attempts_follow_death,
    _one_attempt_lives,
    _no_silent_state,
    _gangs_are_whole,
    _cancelled_means_stopping,
    _running_means_started,
    _claims_are_of_their_node,
    _room_is_enough,
    _sums_are_right,
    _room_goes_with_death,
    _held_is_what_lives,
    _quotas_let_in_no_more,
    _room_is_kept_for_who_waits,
    _nobody_makes_way_twice,
    _arrays_are_their_members,
)


# --- what may never change --------------------------------------------------------------------------------------------

Found = Iterator[tuple[str, str]]


def _session_went_on(before: Row, after: Row) -> Found:
    if before["phase"] == Phase.ENDED:
        for name in ("phase", "attempt", "outcome", "exit_class", "ended_at"):
            if before[name] != after[name]:
                yield "SE3", f"it had ended, and its {name} went from {before[name]} to {after[name]}"
    if not before["attempt"] <= after["attempt"]:
        yield "SE4", f"its attempt went from {before['attempt']} to {after['attempt']}"
    if before["seq"] > after["seq"]:
        yield "EV1", f"its seq went from {before['seq']} to {after['seq']}"
    if before["wanted"] == "stop" != after["wanted"]:
        yield "CB2", f"cancelled, and then wanted to {after['wanted']}"


def _attempt_went_on(before: Row, after: Row) -> Found:
    if not before["live"] and after["live"]:
        yield "SE4", "it was over and lives again"


def _kernel_went_on(before: Row, after: Row) -> Found:
    for name in ("session", "attempt", "rank", "node", "node_epoch"):
        if before[name] != after[name]:
            yield "SE4", f"its {name} went from {before[name]} to {after[name]}"
    for name in ("claimed_version", "ready_at", "result_at", "certificate"):
        if before[name] is not None and before[name] != after[name]:
            yield "KE5", f"its {name} was {before[name]} and became {after[name]}"


def _holding_went_on(before: Row, after: Row) -> Found:
    if before["released_at"] is not None and before["released_at"] != after["released_at"]:
        yield "AL4", f"given back at {before['released_at']}, and then {after['released_at']}"
    for name in ("session", "attempt", "node", "cpu_milli", "memory_mib", "share_milli", "vram_mib", "exclusive"):
        if before[name] != after[name]:
            yield "AL4", f"its {name} went from {before[name]} to {after[name]}"


def _node_went_on(before: Row, after: Row) -> Found:
    if before["epoch"] > after["epoch"]:
        yield "EP1", f"its epoch went from {before['epoch']} to {after['epoch']}"
    for name in ("desired_version", "served_version"):
        if before[name] > after[name]:
            yield "EP1", f"its {name} went from {before[name]} to {after[name]}"


def _event_went_on(before: Row, after: Row) -> Found:
    yield "EV1", f"what happened was rewritten: {dict(before)} became {dict(after)}"


Key = tuple[str, ...]
_NEVER_UNDONE: Final[Mapping[str, tuple[Key, Callable[[Row, Row], Found]]]] = {
    "session": (("id",), _session_went_on),
    "attempt": (("session", "attempt"), _attempt_went_on),
    "kernel": (("token",), _kernel_went_on),
    "holding": (("token", "device"), _holding_went_on),
    "node": (("name",), _node_went_on),
    "event": (("session", "seq"), _event_went_on),
    "array": (("id",), array_went_on),
}
_LOST: Final[Mapping[str, str]] = {
    "session": "SE2",
    "attempt": "SE4",
    "kernel": "SE4",
    "holding": "AL4",
    "node": "EP1",
    "event": "EV1",
    "array": "SE2",
}
