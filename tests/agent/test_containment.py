"""Whole trees die, whatever they do; limits hold; what cannot be given is said."""

from __future__ import annotations

import json
import os
import platform
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from corral.agent import birth, birthplan, jobdir, linux, quickbirth, trees, zygote
from corral.agent.jobspec import Limits
from tests.agent.node import Node, until

TOKEN = "1-k3f9x2m4qa-1-0"
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def pids_printed(node: Node, count: int) -> list[int]:
    def look() -> list[int] | None:
        found = [int(line) for line in node.output(TOKEN).split()]
        return found if len(found) >= count else None

    return until(look, f"{count} pids printed")


ESCAPES = {
    "another session": "setsid sh -c 'trap \"\" TERM; echo $$; exec sleep 1000' &",
    "two forks": "(setsid sh -c 'echo $$; exec sleep 1000' >&1 &) &",
    "closed files": "setsid sh -c 'echo $$; exec sleep 1000 <&- >&- 2>&-' &",
    "cleared environment": "env -i setsid /bin/sh -c 'echo $$; exec /bin/sleep 1000' &",
    "stopped": "setsid sh -c 'echo $$; kill -STOP $$; sleep 1000' &",
}


@pytest.mark.parametrize("escape", ESCAPES)
def test_who_outlives_the_command_is_killed(each_node: Node, escape: str) -> None:
    each_node.launch(TOKEN, "sh", "-c", f"{ESCAPES[escape]} until [ -e {each_node.root}/end ]; do sleep 0.01; done")
    (pid,) = pids_printed(each_node, 1)
    (each_node.root / "end").touch()
    assert each_node.finish(TOKEN)["exit_code"] == 0
    assert not alive(pid)


@pytest.mark.parametrize("escape", ESCAPES)
def test_a_stop_takes_them_too(each_node: Node, escape: str) -> None:
    each_node.launch(TOKEN, "sh", "-c", f"{ESCAPES[escape]} echo $$; exec sleep 1000")
    pids = pids_printed(each_node, 2)
    assert all(alive(pid) for pid in pids)
    each_node.tell(TOKEN, jobdir.STOP, reason="cancelled", grace_s=0)
    each_node.finish(TOKEN)
    assert not any(alive(pid) for pid in pids)


@pytest.mark.parametrize("escape", [name for name in ESCAPES if name != "cleared environment"])
def test_a_dead_shim_takes_the_command_along_and_the_agent_the_rest(each_node: Node, escape: str) -> None:
    each_node.launch(TOKEN, "sh", "-c", f"{ESCAPES[escape]} echo $$; exec sleep 1000")
    pids = pids_printed(each_node, 2)
    assert each_node.kill_shim(TOKEN)
    until(lambda: each_node.ended(TOKEN), "judged")
    assert each_node.wait_for(TOKEN, jobdir.EXIT)["reason"] == "supervisor_lost"
    assert not any(alive(pid) for pid in pids)


BOMB = """
import os, time
while True:
    try:
        if os.fork() == 0:
            os.setsid()
    except OSError:
        time.sleep(0.01)
"""


def test_a_fork_bomb_dies(each_node: Node) -> None:
    # bounded, so that a failing test leaves a machine that works
    limit = {"pids": 150} if each_node.containment.pids_root else {"nproc": 150}
    python = getattr(sys, "_base_executable", sys.executable)
    each_node.launch(TOKEN, python, "-S", "-E", "-c", BOMB, limits=limit)
    until(lambda: each_node.read(TOKEN, jobdir.STARTED), "started")
    started = each_node.wait_for(TOKEN, jobdir.STARTED)
    until(lambda: len(trees.descendants({started["pid"]})) > 100, "the bomb went off")
    each_node.tell(TOKEN, jobdir.STOP, reason="cancelled", grace_s=0)
    each_node.finish(TOKEN)
    assert trees.marked(TOKEN) == set()


@needs_root
def test_a_job_that_leaves_its_cgroup_is_killed_all_the_same(node: Node) -> None:
    if node.containment.kind != "cgroup2":
        pytest.skip("no cgroup v2 here")
    root = node.containment.tree_root
    script = f"setsid sh -c 'echo 0 > {root}/cgroup.procs; echo $$; exec sleep 1000' & wait"
    node.launch(TOKEN, "sh", "-c", script)
    (pid,) = pids_printed(node, 1)
    assert str(pid) not in Path(f"{root}/{TOKEN}/cgroup.procs").read_text().split()
    node.tell(TOKEN, jobdir.STOP, reason="cancelled", grace_s=0)
    node.finish(TOKEN)
    assert not alive(pid)


def test_the_command_is_born_inside_its_cgroup(node: Node) -> None:
    if node.containment.kind != "cgroup2":
        pytest.skip("no cgroup v2 here")
    node.launch(TOKEN, "sh", "-c", "grep ^0: /proc/self/cgroup")
    node.finish(TOKEN)
    assert node.output(TOKEN).decode().strip().endswith(f"/{TOKEN}")


def test_where_birth_inside_is_refused_the_command_moves_in(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    if node.containment.kind != "cgroup2":
        pytest.skip("no cgroup v2 here")

    def refuse(cgroup_fd: int) -> int:
        raise OSError(38, "no clone3 here")

    monkeypatch.setattr(linux, "fork_into_cgroup", refuse)
    monkeypatch.setattr(quickbirth, "try_birth", lambda birth: None)
    assert f"/{TOKEN}\n" in output_of_birth(node, "cat", "/proc/self/cgroup")
    assert trees.remove_tree(node.containment, TOKEN)


def output_of_birth(node: Node, *argv: str) -> str:
    """What a command says that is born straight from the test."""
    move_into = trees.make_tree(node.containment, TOKEN, None, 50)
    reader, writer = os.pipe()
    null = os.open(os.devnull, os.O_RDWR)
    born = birthplan.Birth(
        argv=argv,
        env={"PATH": "/no/such/place:/usr/bin:/bin", "EMPTY": "", "A": "b=c", "TOKEN": TOKEN},
        cwd="/usr",
        stdin=null,
        stdout=writer,
        stderr=writer,
        limits=Limits(nofile=123),
        mounts=(),
        uid=None,
        gid=None,
        born_in=trees.birth_folder(node.containment, TOKEN),
        move_into=move_into,
        inherited=birthplan.Inherited({}, Path("/proc/self/oom_score_adj").read_text().strip()),
    )
    pid, report = birth.give_birth(born)
    os.close(writer)
    os.close(null)
    with open(reader) as out:
        said = out.read()
    assert os.waitpid(pid, 0)[1] == 0, said
    assert report is None or birth.trouble_of(report) is None
    return said


def ignored_and_reserved() -> int:
    """What this process ignores of the two signals that the C library keeps, and of those that a shell has what it
    starts in the background ignore (hangup, quit): in a node the zygote takes these back."""
    status = Path("/proc/self/status").read_text().splitlines()
    ignored = next(int(line.split()[1], 16) for line in status if line.startswith("SigIgn"))
    return ignored & (0b11 << 31 | 0b101)


@pytest.mark.parametrize("quick", [True, False])
def test_quick_and_slow_birth_bear_the_same(each_node: Node, monkeypatch: pytest.MonkeyPatch, quick: bool) -> None:
    tried: list[int | None] = []
    real = quickbirth.try_birth

    def try_birth(born: birthplan.Birth) -> int | None:
        tried.append(real(born) if quick else None)
        return tried[-1]

    monkeypatch.setattr(quickbirth, "try_birth", try_birth)
    script = (
        "env | sort; pwd; umask; ulimit -n; grep -c /$TOKEN /proc/self/cgroup;"
        "grep -E '^Sig(Blk|Ign)' /proc/self/status; echo caught;"
    )
    said = output_of_birth(each_node, "sh", "-c", f"{script} cat /proc/self/oom_score_adj; ps -o sid= -p $$; echo $$")
    lines = said.splitlines()
    if quick and platform.machine() == "x86_64":
        assert tried[0] is not None
    assert lines[:5] == ["A=b=c", "EMPTY=", "PATH=/no/such/place:/usr/bin:/bin", "PWD=/usr", f"TOKEN={TOKEN}"]
    places = {"cgroup2": "2", "cgroup1": "2", "marker": "1"}[each_node.containment.kind]
    assert lines[5:9] == ["/usr", "0022", "123", places]
    assert [int(line.split()[1], 16) for line in lines[9:11]] == [0, ignored_and_reserved()]
    assert lines[12] == Path("/proc/self/oom_score_adj").read_text().strip()
    assert lines[13].strip() == lines[14]
    assert trees.remove_tree(each_node.containment, TOKEN)


def test_a_quick_birth_that_fails_has_run_nothing_and_leaves_no_child(node: Node) -> None:
    before = set(Path(f"/proc/self/task/{os.getpid()}/children").read_text().split())
    with pytest.raises(AssertionError, match=r"corral: no-such-command: command not found"):
        output_of_birth(node, "no-such-command")
    after = set(Path(f"/proc/self/task/{os.getpid()}/children").read_text().split())
    assert after - before <= {str(node.zygote.process.pid)}


def test_limits_of_the_process_hold(node: Node) -> None:
    limits = {"nofile": 77, "core": 0, "fsize": 4096, "nproc": 5000}
    node.launch(TOKEN, "sh", "-c", "ulimit -n; ulimit -c; ulimit -f; head -c 9000 /dev/zero > big", limits=limits)
    node.finish(TOKEN)
    assert node.output(TOKEN).split()[:2] == [b"77", b"0"]
    assert (node.root / "workspaces" / TOKEN / "big").stat().st_size == 4096


def test_a_limit_of_processes_holds(node: Node) -> None:
    if not node.containment.pids_root:
        pytest.skip("no pids controller here")
    script = "i=0; while [ $i -lt 20 ]; do sleep 1000 & i=$((i+1)); done; echo all"
    node.launch(TOKEN, "sh", "-c", script, limits={"pids": 5})
    assert node.finish(TOKEN)["exit_code"] != 0
    assert b"all" not in node.output(TOKEN)


def test_memory_over_the_limit_is_an_oom(node: Node) -> None:
    if not node.containment.memory_root:
        pytest.skip("no memory controller here")
    python = getattr(sys, "_base_executable", sys.executable)
    limits = {"memory_bytes": 32 << 20}
    node.launch(
        TOKEN, python, "-S", "-E", "-c", "x = b'x' * (200 << 20); print('had')", limits=limits, memory_enforced=True
    )
    result = node.finish(TOKEN)
    assert (result["signal"], result["oom_killed"]) == (signal.SIGKILL, True)
    assert TOKEN not in trees.list_trees(node.containment)


def test_memory_is_not_limited_unless_enforced(node: Node) -> None:
    node.launch(TOKEN, "true", limits={"memory_bytes": 1})
    result = node.finish(TOKEN)
    assert (result["exit_code"], result["oom_killed"]) == (0, False)


def test_a_limit_that_cannot_be_held_is_said(node: Node) -> None:
    without = {"kind": node.containment.kind, "tree_root": node.containment.tree_root}
    node.launch(TOKEN, "true", limits={"pids": 5}, containment=without)
    result = node.finish(TOKEN)
    assert result["not_started"]
    assert result["error"]["code"] == "containment_failed"


@needs_root
def test_mounts_are_seen_by_the_job_alone(node: Node) -> None:
    data = node.root / "data"
    data.mkdir()
    (data / "file").write_text("in data\n")
    places = [node.root / name for name in ("readable", "writable")]
    for place in places:
        place.mkdir()
    mounts = [
        {"src": str(data), "dst": str(places[0]), "read_only": True},
        {"src": str(data), "dst": str(places[1]), "read_only": False},
    ]
    script = f"cat {places[0]}/file; touch {places[1]}/new; touch {places[0]}/no"
    node.launch(TOKEN, "sh", "-c", script, mounts=mounts)
    node.finish(TOKEN)
    assert node.output(TOKEN) == b"in data\n"
    assert b"Read-only file system" in node.output(TOKEN, "stderr")
    assert sorted(path.name for path in data.iterdir()) == ["file", "new"]
    assert not any(any(place.iterdir()) for place in places)


@needs_root
def test_a_mount_that_cannot_be_made_is_said(node: Node) -> None:
    node.launch(TOKEN, "true", mounts=[{"src": "/no/such", "dst": str(node.root), "read_only": False}])
    error = node.finish(TOKEN)["error"]
    assert error["code"] == "mount_failed"
    assert "/no/such" in error["message"]


@needs_root
def test_the_command_runs_as_its_user_and_still_dies_with_its_shim(node: Node) -> None:
    node.root.chmod(0o755)
    (node.root / "workspaces").mkdir()
    node.launch(TOKEN, "sh", "-c", "id -u; id -G; touch mine; echo $$ > pid; sleep 1000", uid=12345, gid=12346)
    until(lambda: node.output(TOKEN).count(b"\n") == 2, "printed")
    workspace = node.root / "workspaces" / TOKEN
    pid = int(until(lambda: (workspace / "pid").exists() and (workspace / "pid").read_text(), "pid written"))
    assert node.output(TOKEN) == b"12345\n12346\n"
    assert ((workspace / "mine").stat().st_uid, workspace.stat().st_mode & 0o777) == (12345, 0o700)
    assert node.kill_shim(TOKEN)
    until(lambda: not alive(pid), "the command dead with its shim")


def test_a_tree_of_an_unknown_token_is_listed_and_can_be_ended(each_node: Node) -> None:
    each_node.launch(TOKEN, "sh", "-c", "echo $$; exec sleep 1000")
    (pid,) = pids_printed(each_node, 1)
    assert TOKEN in trees.list_trees(each_node.containment)
    assert not trees.tree_is_empty(each_node.containment, TOKEN)
    trees.kill_tree(each_node.containment, TOKEN)
    until(lambda: trees.tree_is_empty(each_node.containment, TOKEN), "empty")
    assert not alive(pid)
    assert each_node.finish(TOKEN)["signal"] == signal.SIGKILL


def test_a_pid_that_belongs_to_another_is_never_signalled() -> None:
    innocent = subprocess.Popen(["sleep", "100"])
    try:
        began = jobdir.start_time_of(innocent.pid)
        assert began is not None
        assert not trees.signal_exactly(innocent.pid, began - 1, signal.SIGKILL)
        assert innocent.poll() is None
        assert trees.signal_exactly(innocent.pid, began, signal.SIGKILL)
        assert innocent.wait(10) == -signal.SIGKILL
        assert not trees.signal_exactly(innocent.pid, began, signal.SIGKILL)
    finally:
        innocent.kill()


def test_a_containment_that_is_not_there_is_refused_not_weakened() -> None:
    with pytest.raises(OSError, match="colour"):
        trees.detect("corral-test-none", "colour")


def as_nobody(act: Callable[[], bool]) -> bool:
    """What `act` says when asked by a user without any right."""
    pid = os.fork()
    if pid == 0:
        good = False
        try:
            os.setgroups([])
            os.setresgid(65534, 65534, 65534)
            os.setresuid(65534, 65534, 65534)
            good = act()
        finally:
            os._exit(0 if good else 1)
    return os.waitpid(pid, 0)[1] == 0


@needs_root
def test_without_privilege_the_marker_is_in_force() -> None:
    assert as_nobody(lambda: trees.detect("corral-test-none").kind == "marker")


@needs_root
def test_a_whole_launch_without_privilege(node: Node) -> None:
    marker = trees.Containment("marker").to_json()
    script = "setsid sleep 1000 & echo $!; id -u; cat /proc/self/oom_score_adj"
    folder = node.accept(TOKEN, "sh", "-c", script, containment=marker)
    for path in (node.root, node.jobs, Path(folder), *Path(folder).iterdir()):
        os.chown(path, 65534, 65534)

    def serve_one() -> bool:
        ours, theirs = socket.socketpair()
        if os.fork() == 0:
            ours.close()
            zygote.serve(theirs)
            os._exit(0)
        theirs.close()
        ours.sendall(json.dumps(node.request(TOKEN)).encode() + b"\n")
        answered = b"start_time" in ours.recv(1000)
        return answered and node.finish(TOKEN)["exit_code"] == 0

    assert as_nobody(serve_one)
    pid, uid, score = node.output(TOKEN).split()
    assert (uid, score) == (b"65534", Path("/proc/self/oom_score_adj").read_bytes().strip())
    assert not alive(int(pid))
