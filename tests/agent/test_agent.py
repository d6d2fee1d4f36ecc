"""What the agent does with an order: launches, barriers, stops, refusals, uploads; with real processes."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path
from typing import Any

import pytest

from corral.model.lifecycle import ExitClass
from corral.model.resources import Resources
from corral.model.session import FactKind, Result
from tests.agent.agents import Agent, lives
from tests.agent.manager import ScriptedManager
from tests.agent.node import until

A = "aaaaaaaaaa"
T1, T2 = f"1-{A}-1-0", f"1-{A}-1-1"
OTHER = "1-bbbbbbbbbb-1-0"
LIMITED = {"time_limit_s": 1, "grace_s": 5}


def run(manager: ScriptedManager, token: str, *command: str, **changes: Any) -> Result:
    """Launch, and the result once the tree is proven gone."""
    manager.launch(token, *command, **changes)
    manager.wait_for(token, "exited")
    result = manager.wait_for(token, "result").result
    assert result is not None
    return result


def pid_in(path: Path) -> int:
    return int(until(lambda: path.exists() and path.read_text().strip(), f"a pid in {path}"))


# --- a launch and its end


def test_a_command_is_accepted_runs_and_its_end_is_reported(manager: ScriptedManager, agent: Agent) -> None:
    assert run(manager, T1, "sh", "-c", "exit 3") == Result(3, None, ExitClass.USER)
    assert manager.kinds(T1) == ["accepted", "ready", "result", "exited"]
    assert manager.wait_for(T1, "exited").why is None
    until(lambda: agent.tokens() == [], "the job directory collected")


@pytest.mark.parametrize(
    ("script", "changes", "result"),
    [
        ("exit 0", {}, Result(0, None, ExitClass.OK)),
        ("kill -9 $$", {}, Result(None, 9, ExitClass.USER)),
        ("sleep 60", LIMITED, Result(None, 15, ExitClass.TIMEOUT)),
        (
            "trap '' TERM; while :; do sleep 1; done",
            {"time_limit_s": 1, "grace_s": 1},
            Result(None, 9, ExitClass.TIMEOUT),
        ),
    ],
)
def test_how_it_ended(
    manager: ScriptedManager, agent: Agent, script: str, changes: dict[str, Any], result: Result
) -> None:
    assert run(manager, T1, "sh", "-c", script, **changes) == result


def test_a_command_that_is_not_there_ends_like_in_a_shell(manager: ScriptedManager, agent: Agent) -> None:
    assert run(manager, T1, "/no/such/command") == Result(127, None, ExitClass.USER)


def test_a_result_is_reported_while_what_it_left_behind_is_still_dying(manager: ScriptedManager, agent: Agent) -> None:
    left = agent.root / "left"
    assert run(manager, T1, "sh", "-c", f"setsid sleep 300 & echo $! >{left}; exit 0").exit_code == 0
    assert not lives(pid_in(left))


def test_orders_that_come_again_start_nothing_again(manager: ScriptedManager, agent: Agent) -> None:
    starts, go = agent.root / "starts", agent.root / "go"
    command = ("sh", "-c", f"echo x >>{starts}; until [ -e {go} ]; do sleep 0.02; done")
    launch = manager.launch_of(T1, *command)
    for _ in range(3):
        manager.order(T1, launch=launch)
    manager.wait_for(T1, "ready")
    manager.order(T1, launch=launch)
    until(lambda: sum(fact.kind is FactKind.ACCEPTED for fact in manager.arrivals) > 1, "accepted, said again")
    go.touch()
    manager.wait_for(T1, "exited")
    until(lambda: agent.tokens() == [], "the job directory collected")
    manager.forget_facts()
    manager.order(T1, launch=launch)  # a copy that was late by a lifetime
    assert "stopped" in manager.why(T1, "refused").code or manager.kinds(T1) == ["result", "exited"]
    assert starts.read_text() == "x\n"


def test_an_order_for_what_is_running_says_again_all_that_is_known(manager: ScriptedManager, agent: Agent) -> None:
    manager.launch(T1, "sleep", "300")
    manager.wait_for(T1, "ready")
    manager.forget_facts()
    manager.ask(T1)
    until(lambda: manager.kinds(T1) == ["accepted", "ready"], "both said again")


# --- what a command finds


def test_the_environment_of_a_lone_kernel(manager: ScriptedManager, agent: Agent) -> None:
    out = agent.root / "env"
    given = {"MINE": "1", "MASTER_ADDR": "127.0.0.1", "CORRAL_URL": "http://x", "CORRAL_LAUNCH_TOKEN": T1}
    run(manager, T1, "sh", "-c", f"env -0 >{out}; cat $CORRAL_HOSTFILE >{out}.hosts; pwd >{out}.cwd", environment=given)
    found = dict(line.split("=", 1) for line in out.read_text().split("\0") if line)
    assert {key: found[key] for key in given} == given
    for name in ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"):
        assert found[name] == ""
    assert (found["CUDA_DEVICE_ORDER"], found["OMP_NUM_THREADS"]) == ("PCI_BUS_ID", "1")
    assert 0 < int(found["MASTER_PORT"]) < 65536
    assert {"PATH", "HOME", "USER", "LANG"} <= found.keys()
    assert "CORRAL_CRASH" not in found
    workspace = Path(found["CORRAL_WORKSPACE"])
    assert Path(found["CORRAL_CHECKPOINT_DIR"]).is_dir()
    assert (agent.root / "env.cwd").read_text().strip() == str(workspace)
    assert workspace.stat().st_mode & 0o77 == 0
    assert (agent.root / "env.hosts").read_text() == "127.0.0.1\n"


def test_the_devices_granted_are_the_devices_seen(manager: ScriptedManager, agent: Agent) -> None:
    out = agent.root / "env"
    devices = [("SIM-node-1-1", 1, 80 * 1024, 1000)]
    run(
        manager,
        T1,
        "sh",
        "-c",
        f"echo $CUDA_VISIBLE_DEVICES $OMP_NUM_THREADS >{out}",
        devices=devices,
        resources=Resources(cpu_milli=4000),
    )
    assert out.read_text() == "SIM-node-1-1 4\n"


def test_a_device_that_is_not_here_is_refused(manager: ScriptedManager, agent: Agent) -> None:
    manager.launch(T1, "true", devices=[("SIM-node-9-0", 0, 1024, 1000)])
    assert manager.why(T1, "refused").code == "device_missing"
    assert agent.tokens() == []


def test_a_stop_file_appears_before_the_command_is_ended(manager: ScriptedManager, agent: Agent) -> None:
    out, ready = agent.root / "seen", agent.root / "ready"
    script = f"trap 'cat $CORRAL_STOP_FILE >{out}; exit 0' TERM; touch {ready}; while :; do sleep 0.05; done"
    manager.launch(T1, "sh", "-c", script)
    until(ready.exists, "the trap set")
    manager.stop(T1, "preempted", grace_s=20)
    result = manager.wait_for(T1, "result").result
    assert result == Result(0, None, ExitClass.CANCELLED)
    assert json.loads(out.read_text())["reason"] == "preempted"


def test_a_stop_may_name_the_signal_to_send(manager: ScriptedManager, agent: Agent) -> None:
    ready = agent.root / "ready"
    script = f"trap 'exit 85' USR2; trap 'exit 1' TERM; touch {ready}; while :; do sleep 0.05; done"
    manager.launch(T1, "sh", "-c", script)
    until(ready.exists, "the traps set")
    manager.stop(T1, "preempted", grace_s=20, signal="USR2")
    result = manager.wait_for(T1, "result").result
    assert result is not None and result.exit_code == 85


# --- several ranks


def test_ranks_wait_at_the_barrier_and_learn_where_rank_0_listens(manager: ScriptedManager, agent: Agent) -> None:
    out = agent.root / "ranks"
    for rank, token in enumerate((T1, T2)):
        manager.launch(token, "sh", "-c", f"echo {rank} $MASTER_ADDR $MASTER_PORT >>{out}", ranks=2)
    port = manager.wait_for(T1, "ready").port
    assert port is not None
    assert manager.wait_for(T2, "ready").port is None
    assert not out.exists()
    for token in (T1, T2):
        manager.order(token, go={"master_address": "10.0.0.1", "master_port": port})
    for token in (T1, T2):
        manager.wait_for(token, "exited")
    assert sorted(out.read_text().splitlines()) == [f"0 10.0.0.1 {port}", f"1 10.0.0.1 {port}"]


def test_a_stop_at_the_barrier_runs_nothing(manager: ScriptedManager, agent: Agent) -> None:
    out = agent.root / "ran"
    manager.launch(T1, "touch", str(out), ranks=2)
    manager.wait_for(T1, "ready")
    manager.stop(T1)
    manager.wait_for(T1, "exited")
    assert manager.wait_for(T1, "result").result == Result(None, None, ExitClass.CANCELLED, started=False)
    assert not out.exists()


# --- stops


def test_a_stop_for_what_never_came_is_a_tombstone(manager: ScriptedManager, agent: Agent) -> None:
    out = agent.root / "ran"
    manager.stop(T1)
    manager.wait_for(T1, "void")
    manager.launch(T1, "touch", str(out))
    assert manager.why(T1, "refused").code == "stopped_before"
    assert not out.exists()


def test_a_stop_ends_a_running_command(manager: ScriptedManager, agent: Agent) -> None:
    manager.launch(T1, "sleep", "300")
    manager.wait_for(T1, "ready")
    manager.stop(T1)
    manager.wait_for(T1, "exited")
    assert manager.wait_for(T1, "result").result == Result(None, 15, ExitClass.CANCELLED)


def test_a_second_stop_may_shorten_the_grace(manager: ScriptedManager, agent: Agent) -> None:
    ready = agent.root / "ready"
    manager.launch(T1, "sh", "-c", f"trap '' TERM; touch {ready}; while :; do sleep 0.05; done")
    until(ready.exists, "the trap set")
    manager.stop(T1, grace_s=3600)
    manager.stop(T1, grace_s=0)
    manager.wait_for(T1, "exited")
    assert manager.wait_for(T1, "result").result == Result(None, 9, ExitClass.CANCELLED)


def test_a_stop_reaches_a_launch_still_being_prepared(manager: ScriptedManager, agent: Agent) -> None:
    manager.blob_gate.clear()
    manager.launch(T1, script=manager.put_blob(b"echo no"))
    until(lambda: manager.blob_requests, "the blob asked for")
    manager.stop(T1)
    manager.wait_for(T1, "void")
    assert manager.kinds(T1) == ["void"]


def test_one_slow_preparation_delays_no_other(manager: ScriptedManager, agent: Agent) -> None:
    manager.blob_gate.clear()
    script = manager.put_blob(b"exit 4")
    slow = [f"1-{letter * 10}-1-0" for letter in "cdefghjkmnpqrstvwxyz"]
    for token in slow:
        manager.launch(token, script=script)
    until(lambda: manager.blob_requests, "a blob asked for")
    assert run(manager, OTHER, "true").good
    manager.blob_gate.set()
    for token in slow:
        assert manager.wait_for(token, "result").result == Result(4, None, ExitClass.USER)


# --- refusals


def test_an_older_attempt_never_starts(manager: ScriptedManager, agent: Agent) -> None:
    assert run(manager, f"1-{A}-2-0", "true").good
    manager.launch(T1, "true")
    assert manager.why(T1, "refused").code == "later_attempt"


def test_another_epoch_is_refused(manager: ScriptedManager, agent: Agent) -> None:
    manager.order(T1, launch=manager.launch_of(T1, "true", node_epoch=7))
    assert manager.why(T1, "refused").code == "stale_epoch"


def test_a_kernel_of_another_run_directory_is_lost(manager: ScriptedManager, agent: Agent) -> None:
    manager.order(T1, run_id="another", launch=None)
    assert manager.why(T1, "exited").code == "run_dir_lost"
    manager.order(OTHER, run_id="another", launch=manager.launch_of(OTHER, "true", run_id="another"))
    until(lambda: manager.kinds(OTHER), "an answer")
    assert "accepted" not in manager.kinds(OTHER)


# --- scripts and uploads


def test_a_script_runs_as_it_was_at_submit(manager: ScriptedManager, agent: Agent) -> None:
    out = agent.root / "out"
    script = manager.put_blob(f'#!/bin/sh\necho "$@" >{out}\nexit 5\n'.encode())
    assert run(manager, T1, "one", "two", script=script).exit_code == 5
    assert out.read_text() == "one two\n"


def test_a_script_without_its_interpreter_is_a_shell_script(manager: ScriptedManager, agent: Agent) -> None:
    assert run(manager, T1, script=manager.put_blob(b"exit 6")).exit_code == 6


def test_a_bootstrap_that_fails_is_the_result(manager: ScriptedManager, agent: Agent) -> None:
    out = agent.root / "ran"
    assert run(manager, T1, "touch", str(out), bootstrap=manager.put_blob(b"exit 9")).exit_code == 9
    assert not out.exists()


def test_a_blob_that_nobody_has_fails_the_session(manager: ScriptedManager, agent: Agent) -> None:
    manager.launch(T1, script=f"sha256:{'0' * 64}")
    assert manager.why(T1, "failed").code == "blob_missing"


def test_a_blob_that_is_not_what_it_is_called_is_never_used(manager: ScriptedManager, agent: Agent) -> None:
    digest = manager.put_blob(b"exit 0")
    manager.blobs[digest] = b"exit 1"
    manager.launch(T1, script=digest)
    assert manager.why(T1, "refused").code == "blob_corrupt"


def tree_of(*members: tuple[str, bytes | str | None], mode: str = "w:gz") -> bytes:
    """An archive: content, a link's target, or None for a device."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode=mode) as archive:  # type: ignore[call-overload]
        for name, content in members:
            member = tarfile.TarInfo(name)
            if content is None:
                member.type = tarfile.CHRTYPE
            elif isinstance(content, str):
                member.type, member.linkname = tarfile.SYMTYPE, content
            else:
                member.size = len(content)
            archive.addfile(member, io.BytesIO(content) if isinstance(content, bytes) else None)
    return out.getvalue()


@pytest.mark.parametrize("mode", ["w", "w:gz", "w:xz"])
def test_an_upload_is_the_working_directory(manager: ScriptedManager, agent: Agent, mode: str) -> None:
    upload = manager.put_blob(tree_of(("a/b.txt", b"hello"), ("link", "a/b.txt"), mode=mode))
    assert run(manager, T1, "sh", "-c", "[ $(cat a/b.txt) = hello ] && [ $(cat link) = hello ]", upload=upload).good


def test_an_upload_is_unpacked_once_for_all_attempts(manager: ScriptedManager, agent: Agent) -> None:
    upload = manager.put_blob(tree_of(("a.txt", b"first")))
    assert run(manager, T1, "sh", "-c", "echo second >a.txt", upload=upload).good
    assert run(manager, f"1-{A}-2-0", "grep", "-q", "second", "a.txt", upload=upload).good


@pytest.mark.parametrize(
    "members",
    [
        [("../escape", b"x")],
        [("/tmp/corral-test-escape", b"x"), ("../../escape", b"x")],
        [("link", "/etc"), ("link/escape", b"x")],
        [("link", "../../.."), ("link/escape", b"x")],
        [("device", None)],
    ],
    ids=["parent", "absolute", "link-to-etc", "link-upwards", "device"],
)
def test_an_upload_that_would_leave_the_workspace_is_refused(
    manager: ScriptedManager, agent: Agent, members: list[tuple[str, bytes | str | None]]
) -> None:
    manager.launch(T1, "true", upload=manager.put_blob(tree_of(*members)))
    assert manager.why(T1, "failed").code == "bad_upload"
    assert not list(agent.root.glob("**/escape"))
    assert not Path("/etc/escape").exists()
    assert not Path("/tmp/corral-test-escape").exists()


@pytest.mark.parametrize(
    "content", [b"", b"not an archive", tree_of(("a", b"x" * 5000))[:-40]], ids=["empty", "text", "cut"]
)
def test_an_upload_that_is_no_archive_is_refused(manager: ScriptedManager, agent: Agent, content: bytes) -> None:
    manager.launch(T1, "true", upload=manager.put_blob(content))
    assert manager.why(T1, "failed").code == "bad_upload"
