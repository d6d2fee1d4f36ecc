"""The wire to the zygote, and what its death means: nothing."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from corral.agent import jobdir
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
    until(lambda: Path(f"/proc/{pid}/task/{pid}/children").read_text().split(), "the command")
    assert os.getsid(pid) == pid
    kinds = [os.readlink(f"/proc/{pid}/fd/{fd}").partition(":")[0] for fd in os.listdir(f"/proc/{pid}/fd")]
    assert "socket" not in kinds
    status = Path(f"/proc/{pid}/status").read_text()
    assert "Name:\tcorral-shim\n" in status
    for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR2):
        os.kill(pid, signum)
    node.tell(TOKEN, jobdir.STOP, reason="cancelled", grace_s=0)
    assert node.finish(TOKEN)["stopped"] == "cancelled"


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
    # poll is where it waits; the number is the same on every machine of this kind, and says so itself
    return Path(f"/proc/{pid}/syscall").read_text().split()[0] == str(POLL[os.uname().machine])


POLL = {"x86_64": 7, "aarch64": 73}  # aarch64 has ppoll only


def wakeups(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("voluntary_ctxt_switches"):
            return int(line.split()[1])
    raise AssertionError("no count of context switches")
