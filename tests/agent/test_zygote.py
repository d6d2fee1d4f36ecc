"""The wire to the zygote, and what its death means: nothing."""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
from array import array
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from corral.agent import jobdir
from corral.agent.shimpool import MOST_LAUNCHES
from tests.agent.node import Node, Zygote, until

TOKEN = "1-k3f9x2m4qa-1-0"


def test_requests_sent_together_are_answered_in_order(node: Node) -> None:
    tokens = [f"1-a-{number}-0" for number in range(1, 31)]
    for token in tokens:
        node.accept(token, "true")
    node.zygote.send(*(node.request(token) for token in tokens))
    answers = [node.zygote.answer() for _ in tokens]
    assert [answer["jobdir"] for answer in answers] == [node.folder(token) for token in tokens]
    for token, answer in zip(tokens, answers, strict=True):
        assert node.finish(token)["exit_code"] == 0
        started = node.wait_for(token, jobdir.STARTED)
        assert started["pid"] == answer["pid"]
        assert answer["start_time"] in (started["start_time"], None)


def test_a_line_in_pieces_is_one_request(node: Node) -> None:
    node.accept(TOKEN, "true")
    line = f'{{"jobdir": "{node.folder(TOKEN)}", "run_id": "run-1", "node_epoch": 3}}\n'.encode()
    for piece in (line[:5], line[5:20], line[20:]):
        node.zygote.channel.sendall(piece)
    assert node.zygote.answer()["pid"] > 0
    node.finish(TOKEN)


def test_a_line_that_makes_no_sense_is_answered_and_changes_nothing(node: Node) -> None:
    for line in (b"nonsense\n", b"{}\n", b"[]\n", b'{"jobdir": "x", "run_id": "r", "node_epoch": "soon"}\n'):
        node.zygote.channel.sendall(line)
        assert "a request needs" in node.zygote.answer()["error"]
    node.launch(TOKEN, "true")
    assert node.finish(TOKEN)["exit_code"] == 0


def test_a_job_directory_that_is_not_there_hurts_nobody(node: Node) -> None:
    node.zygote.send({"jobdir": str(node.jobs / "no"), "run_id": "run-1", "node_epoch": 3})
    assert node.zygote.answer()["pid"] > 0
    node.launch(TOKEN, "true")
    assert node.finish(TOKEN)["exit_code"] == 0


def test_the_zygote_ends_when_its_agent_does_and_the_shims_live_on(node: Node) -> None:
    node.launch(TOKEN, "sh", "-c", f"until [ -e {node.root}/end ]; do sleep 0.01; done; exit 3")
    node.wait_for(TOKEN, jobdir.STARTED)
    node.zygote.close()
    assert node.zygote.process.returncode == 0
    assert jobdir.probe_lock(node.folder(TOKEN))
    (node.root / "end").touch()
    assert node.finish(TOKEN)["exit_code"] == 3


def test_a_killed_zygote_harms_no_shim(node: Node) -> None:
    node.launch(TOKEN, "sh", "-c", f"until [ -e {node.root}/end ]; do sleep 0.01; done; exit 3")
    node.wait_for(TOKEN, jobdir.STARTED)
    node.zygote.kill()
    node.zygote = Zygote()
    node.launch("1-other-1-0", "true")
    node.finish("1-other-1-0")
    (node.root / "end").touch()
    assert node.finish(TOKEN)["exit_code"] == 3


def test_a_shim_stands_alone(node: Node) -> None:
    answer = (node.accept(TOKEN, "sleep", "1000"), node.spawn(TOKEN))[1]
    node.wait_for(TOKEN, jobdir.STARTED)
    pid = answer["pid"]
    until(lambda: at_rest(pid), "the command running and its shim at rest")
    assert os.getsid(pid) == pid
    kinds = [os.readlink(f"/proc/{pid}/fd/{fd}").partition(":")[0] for fd in os.listdir(f"/proc/{pid}/fd")]
    assert kinds.count("socket") == 1  # by which the next launch comes
    status = Path(f"/proc/{pid}/status").read_text()
    assert "Name:\tcorral-shim\n" in status
    for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR2):
        os.kill(pid, signum)
    node.tell(TOKEN, jobdir.STOP, reason="cancelled", grace_s=0)
    assert node.finish(TOKEN)["stopped"] == "cancelled"


def launched(node: Node, token: str, *argv: str, **changes: Any) -> int:
    """The pid of the shim that served a launch to its end, once it has said so and waits for another, or is gone."""
    node.accept(token, *argv, **changes)
    pid = node.spawn(token)["pid"]
    node.finish(token)
    until(lambda: waits_in(pid) in (RECEIVE[os.uname().machine], None), "the shim free")
    return pid


def waits_in(pid: int) -> int | None:
    """The number of the system call a process is in, -1 for none; None where it is no more."""
    try:
        word = Path(f"/proc/{pid}/syscall").read_text().split()[0]
    except (FileNotFoundError, ProcessLookupError, IndexError):
        return None
    return int(word) if word.isdigit() else -1


def descriptors(pid: int) -> list[str]:
    found = [os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")]
    return sorted(name.partition(":")[0] for name in found)


def test_a_shim_whose_launch_ended_takes_the_next_as_if_it_were_new(node: Node) -> None:
    report = "umask; ulimit -n; pwd; env | sort; ls /proc/self/fd | wc -l"
    first = launched(node, "1-a-1-0", "sh", "-c", report, cwd="/", make_dirs=[])
    before = descriptors(first)
    limits = {
        "limits": {"nofile": 77},
        "env": {"PATH": "/usr/bin:/bin", "MORE": "1"},
        "barrier": True,
        "time_limit_s": 60,
    }
    token = "1-a-2-0"
    node.accept(token, "sh", "-c", "umask 077; (sleep 1000 &) ; echo out; echo err >&2; exit 3", **limits)
    assert node.spawn(token)["pid"] == first
    node.wait_for(token, jobdir.READY)
    node.tell(token, jobdir.GO, env={"MASTER_PORT": "1"})
    assert node.finish(token)["exit_code"] == 3
    assert launched(node, "1-a-3-0", "no-such-command") == first
    assert node.result("1-a-3-0")["exit_code"] == 127
    assert launched(node, "1-a-4-0", "sh", "-c", report, cwd="/", make_dirs=[]) == first
    same = [node.output(token).replace(token.encode(), b"TOKEN") for token in ("1-a-1-0", "1-a-4-0")]
    assert same[0] == same[1] and same[0]
    until(lambda: descriptors(first) == before, "nothing left open")


@pytest.mark.parametrize(
    "harm",
    [
        "prlimit --pid $PPID --nofile=400:400",
        "renice -n 5 -p $PPID",
        "taskset -cp 0 $PPID",
        "ionice -c 3 -p $PPID",
        "echo 500 > /proc/$PPID/oom_score_adj",
    ],
)
def test_what_a_command_did_to_its_shim_meets_no_other_launch(node: Node, harm: str) -> None:
    if shutil.which(harm.split()[0]) is None:
        pytest.skip(f"{harm.split()[0]} is not installed here")
    if "taskset" in harm and len(os.sched_getaffinity(0)) == 1:
        pytest.skip("with one processor there is nothing to choose")
    before = launched(node, "1-a-0-0", "true")
    launched(node, "1-a-1-0", "sh", "-c", f"{harm} >/dev/null || exit 9")
    assert node.result("1-a-1-0")["exit_code"] == 0
    until(lambda: waits_in(before) is None, "the shim gone")
    assert launched(node, "1-a-2-0", "true") != before


def test_a_launch_whose_decision_was_removed_is_not_started_again(node: Node) -> None:
    launched(node, TOKEN, "sh", "-c", f"echo start >> {node.root}/starts")
    os.unlink(f"{node.folder(TOKEN)}/{jobdir.STARTED}")
    assert jobdir.decision_of(node.folder(TOKEN)) == "run"
    node.spawn(TOKEN)
    launched(node, "1-other-1-0", "true")
    assert (node.root / "starts").read_text() == "start\n"


def test_a_shim_retires_in_its_time_and_nothing_is_lost(node: Node) -> None:
    count = 2 * MOST_LAUNCHES + 10
    served = Counter(launched(node, f"1-a-{number}-0", "true", cwd="/", make_dirs=[]) for number in range(count))
    assert sum(served.values()) == count
    assert max(served.values()) <= MOST_LAUNCHES


def test_a_free_shim_that_was_killed_is_not_counted_on(node: Node) -> None:
    first = launched(node, "1-a-1-0", "true")
    os.kill(first, signal.SIGKILL)
    until(lambda: not Path(f"/proc/{first}").exists(), "dead")
    assert launched(node, "1-a-2-0", "true") != first


def test_free_shims_go_after_a_while_and_with_their_zygote(node: Node) -> None:
    first = launched(node, "1-a-1-0", "true")
    until(lambda: not Path(f"/proc/{first}").exists(), "gone after a while")
    second = launched(node, "1-a-2-0", "true")
    node.zygote.kill()
    until(lambda: not Path(f"/proc/{second}").exists(), "gone with its zygote")
    node.zygote = Zygote()


def test_commands_that_last_keep_no_launch_waiting(node: Node) -> None:
    tokens = [f"1-a-{number}-0" for number in range(40)]
    for token in tokens:
        node.accept(token, "sleep", "1000", cwd="/", make_dirs=[])
    node.zygote.send(*(node.request(token) for token in tokens))
    pids = {node.zygote.answer()["pid"] for _ in tokens}
    assert len(pids) == len(tokens)
    for token in tokens:
        node.wait_for(token, jobdir.STARTED)
        node.tell(token, jobdir.STOP, reason="cancelled", grace_s=0)
    for token in tokens:
        node.finish(token)


def ignore_some() -> None:
    """As a parent may leave them: one that Python can name, and one that the C library keeps for itself."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    ignored = array("Q", [1, 0, 0, 0])
    number = {"x86_64": 13, "aarch64": 134}[os.uname().machine]
    ctypes.CDLL(None).syscall(number, 32, ctypes.c_void_p(ignored.buffer_info()[0]), None, ctypes.c_size_t(8))


def test_a_command_ignores_no_signal_that_the_agent_was_started_ignoring(node: Node) -> None:
    node.zygote.close()
    node.zygote = Zygote(first=ignore_some)
    launched(node, TOKEN, "grep", "SigIgn", "/proc/self/status")
    assert node.output(TOKEN).split() == [b"SigIgn:", b"0" * 16]


def test_an_idle_shim_sleeps(node: Node) -> None:
    node.launch(TOKEN, "sleep", "1000", time_limit_s=1000)
    pid = node.wait_for(TOKEN, jobdir.STARTED)["pid"]
    until(lambda: at_rest(pid), "the command running and its shim at rest")
    before = wakeups(pid)
    node.launch("1-clock-1-0", "sleep", "0.5")
    node.finish("1-clock-1-0")
    assert wakeups(pid) == before
    node.tell(TOKEN, jobdir.STOP, reason="cancelled", grace_s=0)
    node.finish(TOKEN)


def at_rest(pid: int) -> bool:
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    if [Path(f"/proc/{child}/comm").read_text() for child in children] != ["sleep\n"]:
        return False
    return waits_in(pid) == POLL[os.uname().machine]


POLL = {"x86_64": 7, "aarch64": 73}  # aarch64 has ppoll only
RECEIVE = {"x86_64": 45, "aarch64": 207}


def wakeups(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("voluntary_ctxt_switches"):
            return int(line.split()[1])
    raise AssertionError("no count of context switches")
