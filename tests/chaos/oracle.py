"""What must be true however Corral was killed, held against what jobs wrote themselves and what lives in /proc."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path
from typing import Any

from tests.chaos.work import Tale, Work
from tests.chaos.world import World
from tests.end_to_end.control_plane import wait_until

SETTLE_S = 240.0


def lines_of(world: World, kind: str) -> list[str]:
    return [line for path in world.marks.glob(f"*.{kind}") for line in path.read_text().splitlines()]


def no_double(world: World) -> None:
    """At most one start per token, for ever; at most one live execution of a rank."""
    twice = [token for token, count in Counter(lines_of(world, "starts")).items() if count > 1]
    assert not twice, f"started twice: {twice}"
    overlaps = world.marks / "overlaps"
    assert not overlaps.exists(), f"two executions of one rank at once: {overlaps.read_text()}"


def ledger_covers_what_lives(world: World, patience_s: float = 5.0) -> None:
    """Each launch that lived all the while its row was read holds its room there (KE3); ranks live once (KE2)."""
    before = world.live_tokens()
    try:
        sessions = world.sessions(patience_s)
    except AssertionError:
        return  # nobody can be asked at this moment
    held = {one["token"] for session in sessions.values() for one in session["kernels"] if one["certificate"] is None}
    alive = before.keys() & world.live_tokens().keys()
    assert alive <= held, f"alive, and the ledger does not know: {sorted(alive - held)}"
    ranks = Counter(tuple(token.split("-")[i] for i in (1, 3)) for token in alive)
    assert not [rank for rank, count in ranks.items() if count > 1], f"alive twice: {sorted(alive)}"


def settled(world: World, tale: Tale, timeout_s: float = SETTLE_S) -> dict[str, Any]:
    """All sessions have ended; who has not is shown with its story."""
    deadline = time.monotonic() + timeout_s
    open_ones: list[str] = []
    while time.monotonic() < deadline:
        world.heal()
        sessions = world.sessions()
        open_ones = [id_ for id_, one in sessions.items() if one["phase"] != "ended"]
        if not open_ones:
            return sessions
        time.sleep(0.2)
    stories = [(id_, tale.submitted.get(id_), _story(world, id_)) for id_ in open_ones[:3]]
    raise AssertionError(f"not ended within {timeout_s} s: {open_ones}; {stories}")


def _story(world: World, id_: str) -> list[str]:
    told = world.ask("GET", f"sessions/{id_}/history")
    events = told if isinstance(told, list) else told["items"]
    launches = world.ask("GET", f"sessions/{id_}/launches")["launches"]
    steps = [f"{one['token']} on {one['node']}: {[s['step'] for s in one['steps'] if s['at']]}" for one in launches]
    return [f"{event['fact']}->{event['to']} {event['detail']}" for event in events] + steps


def everything_holds(world: World, tale: Tale) -> dict[str, Any]:
    """The whole oracle, once all faults are healed and all sessions have ended."""
    sessions = settled(world, tale)
    assert sessions.keys() == tale.submitted.keys(), "acknowledged and kept are not the same sessions"
    no_double(world)
    wait_until(lambda: not world.live_tokens(), "the last process of a job to be gone", 20)
    ends = dict(line.split() for line in lines_of(world, "ends"))
    records = world.exit_records()
    for id_, session in sessions.items():
        _result_is_what_happened(world, id_, session, tale, ends, records)
    wait_until(lambda: _nothing_is_held(world), "all room to be given back", 20)
    _doctor_is_content(world)
    _no_directory_is_unknown(world, sessions)
    return sessions


def _result_is_what_happened(
    world: World,
    id_: str,
    session: dict[str, Any],
    tale: Tale,
    ends: dict[str, str],
    records: dict[str, dict[str, Any]],
) -> None:
    work = tale.submitted[id_]
    launches = world.ask("GET", f"sessions/{id_}/launches")
    assert launches["double_starts"] == []
    for launch in launches["launches"]:
        _launch_is_as_recorded(launch, work, ends, records)
    what = f"{id_} {work}: {[session[name] for name in ('outcome', 'exit_class', 'exit_code', 'reason', 'cause')]}"
    tokens = [one["token"] for one in session["kernels"]]
    if id_ in tale.cancelled and session["outcome"] == "cancelled":
        return
    if session["exit_class"] == "infra":
        assert tale.lost_supervisors, f"a failure of ours, and none was caused: {what} {_story(world, id_)}"
        return
    assert session["exit_code"] == work.code, what
    assert session["outcome"] == ("succeeded" if work.code == 0 else "failed"), what
    assert {ends.get(token) for token in tokens} == {str(work.code)}, f"{what}: {tokens}"


def _launch_is_as_recorded(
    launch: dict[str, Any], work: Work, ends: dict[str, str], records: dict[str, dict[str, Any]]
) -> None:
    token = launch["token"]
    steps = {step["step"]: step for step in launch["steps"]}
    assert steps["certified"]["at"], f"{token} has no death certificate"
    recorded = records.get(token, {}).get("result")
    told = steps["result"]["detail"] if steps["result"]["at"] else None
    assert (told is None) == (recorded is None), f"{token}: the control plane has {told}, its node {recorded}"
    if told is None or recorded is None:
        return
    result = recorded["result"]
    if result.get("exit_code") is not None and told["exit_class"] != "timeout":
        assert told["exit_code"] == result["exit_code"], f"{token}: {told} is not {result}"
        if result.get("started", True):
            assert ends.get(token) == str(result["exit_code"]), f"{token} wrote {ends.get(token)}, recorded {result}"


def _nothing_is_held(world: World) -> bool:
    return all(node["cpus_used"] == 0 and node["memory_used_mib"] == 0 for node in world.ask("GET", "nodes"))


def _doctor_is_content(world: World) -> None:
    for number, _ in enumerate(world.urls):
        wait_until(
            lambda n=number: world.ask("GET", "doctor", prefer=n)["ok"], f"doctor: {world.ask('GET', 'doctor')}", 30
        )


def _no_directory_is_unknown(world: World, sessions: dict[str, Any]) -> None:
    """Every job directory is of a session that the ledger knows (KE7)."""
    unknown: list[Path] = []
    for run in world.runs.values():
        for folder in run.glob("jobs/[!.]*"):
            if folder.name.split("-")[1] not in sessions:
                unknown.append(folder)
    assert not unknown, unknown
