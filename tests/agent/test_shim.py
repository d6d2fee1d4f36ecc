"""One launch on real processes, from its job directory to the proof of its end."""

from __future__ import annotations

import os
import signal
import socket
import time
from pathlib import Path

import pytest

from corral.agent import jobdir, trees
from tests.agent.node import Node, Zygote, until

TOKEN = "1-k3f9x2m4qa-1-0"


def alive(pid: int) -> bool:
    stat = Path(f"/proc/{pid}/stat")
    try:
        return stat.read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def printed(node: Node, line: bytes) -> None:
    until(lambda: line in node.output(TOKEN), f"{line!r} printed")


def test_a_command_runs_and_its_end_is_proven(each_node: Node) -> None:
    each_node.launch(TOKEN, "sh", "-c", "echo out; echo err >&2; exit 7")
    result = each_node.finish(TOKEN)
    assert (result["exit_code"], result["signal"], result["not_started"]) == (7, None, False)
    assert each_node.output(TOKEN) == b"out\n"
    assert each_node.output(TOKEN, "stderr") == b"err\n"
    started = each_node.wait_for(TOKEN, jobdir.STARTED)
    assert started["says"] == "run"
    assert started["boot_id"] == each_node.boot_id
    ended = each_node.wait_for(TOKEN, jobdir.EXIT)
    assert ended["logs"] == {"stdout": {"end": 4, "lost": 0}, "stderr": {"end": 4, "lost": 0}}
    until(lambda: not jobdir.probe_lock(each_node.folder(TOKEN)), "the shim gone")
    assert TOKEN not in trees.list_trees(each_node.containment)


def test_a_signal_is_reported_as_one(node: Node) -> None:
    node.launch(TOKEN, "sh", "-c", "kill -SEGV $$")
    result = node.finish(TOKEN)
    assert (result["exit_code"], result["signal"]) == (None, signal.SIGSEGV)


def test_the_command_gets_exactly_what_the_spec_says(node: Node) -> None:
    script = """
import os, signal, sys
print(sorted(os.environ.items()))
print(os.getcwd(), os.getsid(0) == os.getpid() == os.getpgid(0))
print(sorted(int(fd) for fd in os.listdir('/proc/self/fd') if os.path.exists(f'/proc/self/fd/{fd}')))
print(os.readlink('/proc/self/fd/0'), signal.pthread_sigmask(signal.SIG_BLOCK, []), oct(os.umask(0)))
status = open('/proc/self/status').read()
print([line.split()[1] for line in status.splitlines() if line.startswith(('SigIgn', 'SigBlk'))])
print(open('/proc/self/oom_score_adj').read().strip())
"""
    env = {"PATH": "/usr/bin:/bin", trees.MARKER: TOKEN, "A": "b c"}
    node.launch(TOKEN, "/usr/bin/env", "python3", "-S", "-E", "-c", script, env=env | {"PATH": os.environ["PATH"]})
    assert node.finish(TOKEN)["exit_code"] == 0, node.output(TOKEN, "stderr")
    lines = node.output(TOKEN).decode().splitlines()
    assert "('A', 'b c')" in lines[0]
    assert "CORRAL_CRASH" not in lines[0]
    assert lines[1] == f"{node.root}/workspaces/{TOKEN} True"
    assert lines[2] == "[0, 1, 2]"
    assert lines[3] == "/dev/null set() 0o22"
    # Python itself ignores SIGPIPE (13) and SIGXFSZ (25); nothing else is ignored or blocked
    assert lines[4] == "['0000000000000000', '0000000001001000']"
    assert lines[5] == Path("/proc/self/oom_score_adj").read_text().strip()


@pytest.mark.parametrize(
    ("argv", "code", "words"),
    [
        (["no-such-command"], 127, b"corral: no-such-command: command not found\n"),
        (["/no/such/command"], 127, b"corral: /no/such/command: command not found\n"),
        (["/etc/passwd"], 126, b"corral: /etc/passwd: Permission denied\n"),
        (["/etc"], 126, b"corral: /etc: Permission denied\n"),
    ],
)
def test_a_command_that_cannot_be_executed_ends_as_in_a_shell(
    node: Node, argv: list[str], code: int, words: bytes
) -> None:
    node.launch(TOKEN, *argv)
    result = node.finish(TOKEN)
    assert result["exit_code"] == code
    assert result["error"]["code"] == "exec_failed"
    assert node.output(TOKEN, "stderr") == words


def test_a_working_directory_that_is_not_there_is_said(node: Node) -> None:
    node.launch(TOKEN, "true", cwd="/no/such/place")
    result = node.finish(TOKEN)
    assert (result["exit_code"], result["not_started"]) == (None, True)
    assert result["error"] == {
        "code": "workdir_failed",
        "message": "working directory /no/such/place: No such file or directory",
    }


def test_a_workspace_that_cannot_be_made_is_said(node: Node) -> None:
    node.launch(TOKEN, "true", make_dirs=["/proc/no"])
    assert node.finish(TOKEN)["error"]["code"] == "workspace_failed"


@pytest.mark.parametrize("change", [{"boot_id": "other"}, {"run_id": "other"}, {"node_epoch": 4}])
def test_an_old_permission_starts_nothing_and_decides_nothing(node: Node, change: dict[str, object]) -> None:
    node.launch(TOKEN, "true", **change)
    assert node.wait_for(TOKEN, jobdir.TROUBLE)["code"] == "stale_permission"
    assert jobdir.decision_of(node.folder(TOKEN)) is None


def test_a_spec_that_cannot_be_understood_starts_nothing(node: Node) -> None:
    node.launch(TOKEN, "true", colour="red")
    trouble = node.wait_for(TOKEN, jobdir.TROUBLE)
    assert trouble["code"] == "bad_spec"
    assert "colour" in trouble["message"]


# --- stop ---


def test_a_stop_is_announced_then_sent_to_the_whole_group(node: Node) -> None:
    script = "trap 'cat \"$STOP\"; exit 3' TERM; echo up; sleep 100 & wait"
    stop_file = str(node.root / "stops" / "file")
    env = {"PATH": "/usr/bin:/bin", "STOP": stop_file}
    node.launch(TOKEN, "sh", "-c", script, stop_file=stop_file, env=env)
    printed(node, b"up")
    node.tell(TOKEN, jobdir.STOP, reason="cancelled", message="by its owner", grace_s=30, deadline="at noon")
    result = node.finish(TOKEN)
    assert (result["exit_code"], result["stopped"], result["killed"]) == (3, "cancelled", False)
    assert b'"reason": "cancelled"' in node.output(TOKEN)
    assert b'"deadline": "at noon"' in node.output(TOKEN)


def test_a_stop_with_a_signal_of_its_own_sends_that_one_and_no_other(node: Node) -> None:
    script = "trap 'cat \"$STOP\"; exit 85' USR1; trap 'echo wrong' TERM; echo up; while :; do sleep 0.05; done"
    stop_file = str(node.root / "stops" / "file")
    node.launch(TOKEN, "sh", "-c", script, stop_file=stop_file, env={"PATH": "/usr/bin:/bin", "STOP": stop_file})
    printed(node, b"up")
    node.tell(TOKEN, jobdir.STOP, reason="preempted", message="for another", grace_s=30, signal=int(signal.SIGUSR1))
    result = node.finish(TOKEN)
    assert (result["exit_code"], result["stopped"], result["killed"]) == (85, "preempted", False)
    assert b'"reason": "preempted"' in node.output(TOKEN)
    assert b"wrong" not in node.output(TOKEN)


def test_who_ignores_the_stop_is_killed_after_the_grace(each_node: Node) -> None:
    each_node.launch(TOKEN, "sh", "-c", "trap '' TERM; echo up; while :; do sleep 1; done")
    printed(each_node, b"up")
    told = time.monotonic()
    each_node.tell(TOKEN, jobdir.STOP, reason="cancelled", grace_s=0.3)
    result = each_node.finish(TOKEN)
    assert time.monotonic() - told >= 0.3
    assert (result["signal"], result["stopped"], result["killed"]) == (signal.SIGKILL, "cancelled", True)


def test_a_later_stop_shortens_the_grace(node: Node) -> None:
    node.launch(TOKEN, "sh", "-c", "trap 'echo told' TERM; echo up; while :; do sleep 0.05; done")
    printed(node, b"up")
    node.tell(TOKEN, jobdir.STOP, reason="cancelled", grace_s=1000)
    printed(node, b"told")
    node.tell(TOKEN, jobdir.STOP, reason="cancelled", grace_s=0)
    assert node.finish(TOKEN)["killed"]


def test_a_real_end_before_the_stop_is_kept(node: Node) -> None:
    node.launch(TOKEN, "true")
    node.finish(TOKEN)
    node.tell(TOKEN, jobdir.STOP, reason="cancelled", grace_s=0)
    assert node.result(TOKEN)["stopped"] is None


# --- the time limit ---


def test_a_time_limit_warns_stops_and_is_named(node: Node) -> None:
    script = "trap 'echo warned' USR1; trap 'echo told; exit 9' TERM; echo up; while :; do sleep 0.02; done"
    limits = {"time_limit_s": 0.6, "warn_signal": int(signal.SIGUSR1), "warn_before_s": 0.3, "grace_s": 20}
    node.launch(TOKEN, "sh", "-c", script, **limits)
    result = node.finish(TOKEN)
    assert node.output(TOKEN) == b"up\nwarned\ntold\n"
    assert (result["exit_code"], result["timed_out"], result["killed"]) == (9, True, False)


def test_a_time_limit_kills_who_does_not_listen(node: Node) -> None:
    node.launch(TOKEN, "sh", "-c", "trap '' TERM; while :; do sleep 1; done", time_limit_s=0.1, grace_s=0.1)
    result = node.finish(TOKEN)
    assert (result["signal"], result["timed_out"], result["killed"]) == (signal.SIGKILL, True, True)


def test_a_time_limit_can_be_moved_while_it_runs(node: Node) -> None:
    node.launch(TOKEN, "sh", "-c", "echo up; exec sleep 100", time_limit_s=1000, grace_s=1)
    printed(node, b"up")
    node.tell(TOKEN, jobdir.LIMIT, time_limit_s=0.01)
    assert node.finish(TOKEN)["timed_out"]


# --- barrier ---


def test_a_gang_member_waits_for_go_and_holds_its_port(node: Node) -> None:
    node.launch(TOKEN, "sh", "-c", "echo $MASTER_PORT $A", barrier=True, hold_port=True)
    port = node.wait_for(TOKEN, jobdir.READY)["port"]
    with socket.socket() as other, pytest.raises(OSError, match="in use"):
        other.bind(("127.0.0.1", port))
    assert node.read(TOKEN, jobdir.RESULT) is None
    node.tell(TOKEN, jobdir.GO, env={"MASTER_PORT": str(port), "A": "b"})
    assert node.finish(TOKEN)["exit_code"] == 0
    assert node.output(TOKEN) == b"%d b\n" % port
    with socket.socket() as other:
        other.bind(("127.0.0.1", port))


def test_the_port_is_free_for_the_command(node: Node) -> None:
    script = "import os,socket; s=socket.socket(); s.bind(('127.0.0.1', int(os.environ['P']))); print('bound')"
    env = {"PATH": os.environ["PATH"]}
    node.launch(TOKEN, "python3", "-c", script, barrier=True, hold_port=True, env=env)
    port = node.wait_for(TOKEN, jobdir.READY)["port"]
    node.tell(TOKEN, jobdir.GO, env={"P": str(port)})
    node.finish(TOKEN)
    assert node.output(TOKEN) == b"bound\n", node.output(TOKEN, "stderr")


def test_a_port_that_cannot_be_had_is_said(node: Node) -> None:
    node.launch(TOKEN, "true", barrier=True, hold_port=True, port_address="192.0.2.1")
    assert node.finish(TOKEN)["error"]["code"] == "port_failed"


def test_a_stop_before_go_runs_nothing(node: Node) -> None:
    node.launch(TOKEN, "sh", "-c", f"touch {node.root}/ran", barrier=True)
    node.wait_for(TOKEN, jobdir.READY)
    node.tell(TOKEN, jobdir.STOP, reason="cancelled", grace_s=30)
    result = node.finish(TOKEN)
    assert (result["not_started"], result["stopped"], result["exit_code"]) == (True, "cancelled", None)
    assert result["started_at"] is None
    assert not (node.root / "ran").exists()


def test_a_stop_written_before_the_shim_began_needs_no_hint(node: Node) -> None:
    node.accept(TOKEN, "true")
    jobdir.write_object(node.folder(TOKEN), jobdir.STOP, {"reason": "cancelled"})
    node.spawn(TOKEN)
    assert node.finish(TOKEN)["not_started"]


# --- bootstrap ---


def bootstrap(node: Node, text: str, mode: int = 0o755) -> str:
    path = node.root / "bootstrap"
    path.write_text(text)
    path.chmod(mode)
    return str(path)


@pytest.mark.parametrize("mode", [0o755, 0o644])
def test_a_bootstrap_runs_first_in_the_same_output(node: Node, mode: int) -> None:
    node.launch(TOKEN, "sh", "-c", "echo then; exit 4", bootstrap=bootstrap(node, "#!/bin/sh\necho first\n", mode))
    result = node.finish(TOKEN)
    assert (result["exit_code"], result["ended_in"]) == (4, "main")
    assert node.output(TOKEN) == b"first\nthen\n"


def test_a_bootstrap_that_fails_is_the_result(node: Node) -> None:
    node.launch(TOKEN, "echo", "never", bootstrap=bootstrap(node, "#!/bin/sh\necho first; exit 6\n"))
    result = node.finish(TOKEN)
    assert (result["exit_code"], result["ended_in"]) == (6, "bootstrap")
    assert node.output(TOKEN) == b"first\n"


def test_what_a_bootstrap_left_behind_dies_with_the_job(node: Node) -> None:
    script = bootstrap(node, "#!/bin/sh\nsetsid sleep 1000 & echo $!\n")
    node.launch(TOKEN, "true", bootstrap=script)
    node.finish(TOKEN)
    assert not alive(int(node.output(TOKEN)))


def test_a_stop_during_the_bootstrap_keeps_the_command_from_starting(node: Node) -> None:
    script = bootstrap(node, "#!/bin/sh\ntrap 'exit 0' TERM; echo up; while :; do sleep 0.02; done\n")
    node.launch(TOKEN, "echo", "never", bootstrap=script)
    printed(node, b"up")
    node.tell(TOKEN, jobdir.STOP, reason="cancelled", grace_s=30)
    result = node.finish(TOKEN)
    assert (result["not_started"], result["exit_code"], result["ended_in"]) == (True, None, "bootstrap")
    assert node.output(TOKEN) == b"up\n"


# --- hints ---


def test_the_agent_is_told_of_every_step(node: Node) -> None:
    node.launch(TOKEN, "true", barrier=True)
    assert node.zygote.news() == TOKEN
    assert node.read(TOKEN, jobdir.READY)
    node.tell(TOKEN, jobdir.GO)
    assert node.zygote.news() == TOKEN
    assert node.read(TOKEN, jobdir.RESULT)
    assert node.read(TOKEN, jobdir.EXIT)
    assert not jobdir.probe_lock(node.folder(TOKEN))


def test_the_agent_is_told_of_a_result_before_what_is_left_has_to_be_killed(node: Node) -> None:
    path = str(node.root / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as heard:
        heard.bind(path)
        heard.settimeout(20)
        node.launch(TOKEN, "sh", "-c", "sleep 1000 &", notify=path)
        assert heard.recv(100).decode() == TOKEN
        assert node.read(TOKEN, jobdir.RESULT)
        assert [node.zygote.news() for _ in range(2)] == [TOKEN, TOKEN]
        assert node.read(TOKEN, jobdir.EXIT)


def test_without_its_zygote_a_shim_tells_the_agent_itself(node: Node) -> None:
    path = str(node.root / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as heard:
        heard.bind(path)
        heard.settimeout(20)
        node.accept(TOKEN, "true", notify=path, barrier=True)
        with jobdir.held_lock(node.folder(TOKEN)):  # so that it cannot begin before its zygote is dead
            pid = node.spawn(TOKEN)["pid"]
            node.zygote.kill()
        assert heard.recv(100).decode() == TOKEN
        assert node.read(TOKEN, jobdir.READY)
        node.tell(TOKEN, jobdir.GO)
        node.finish(TOKEN)
        until(lambda: not os.path.exists(f"/proc/{pid}"), "the shim gone, which tells the rest")
    node.zygote = Zygote()


def test_a_listener_that_is_not_there_changes_nothing(node: Node) -> None:
    node.launch(TOKEN, "true", notify=str(node.root / "nobody"))
    assert node.finish(TOKEN)["exit_code"] == 0


def test_words_that_no_program_can_be_given_end_it_with_a_reason(node: Node) -> None:
    node.launch(TOKEN, "echo", "\ud800")
    result = node.finish(TOKEN)
    assert result["exit_code"] == 126
    assert result["error"]["code"] == "exec_failed"


def test_more_words_than_the_kernel_takes_end_it_with_a_reason(node: Node) -> None:
    node.launch(TOKEN, "echo", "x" * (1 << 20))
    result = node.finish(TOKEN)
    assert (result["exit_code"], result["error"]["message"]) == (126, "echo: Argument list too long")
