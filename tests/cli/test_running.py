"""run, wait and logs: output as it is, and the exit codes of docs/submitting.md."""

import io
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.cli.labelled import Labelled
from corral.client import Client
from tests.cli.conftest import Corral
from tests.end_to_end.control_plane import wait_until

CORRAL = [sys.executable, "-m", "corral"]


@pytest.mark.parametrize(
    ("options", "script", "code"),
    [
        ([], "exit 0", 0),
        ([], "exit 7", 7),
        ([], "kill -KILL $$", 128 + 9),
        ([], "kill -SEGV $$", 128 + 11),
        (["--time", "1s", "--grace", "1s"], "sleep 60", 124),
        (["--outcome-rule", "main-only", "--ranks-per-node", "2"], "exit $((RANK * 5))", 0),
        (["--outcome-rule", "all", "--ranks-per-node", "2"], "exit $((RANK * 5))", 5),
    ],
)
def test_run_exits_as_the_session_did(corral: Corral, options: list[str], script: str, code: int) -> None:
    assert corral("run", *options, "--", "sh", "-c", script).code == code


def test_run_shows_both_streams_as_they_are(environment: dict[str, str]) -> None:
    script = "printf 'a\\377\\n'; printf 'b\\r\\n' >&2"
    done = subprocess.run(
        [*CORRAL, "run", "-q", "--", "sh", "-c", script], capture_output=True, env=environment, timeout=60
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, b"a\xff\n", b"b\r\n")


def test_run_shows_every_attempt(corral: Corral) -> None:
    script = "echo attempt $CORRAL_ATTEMPT; test $CORRAL_ATTEMPT = 2"
    done = corral("run", "-q", "--retries", "1", "--", "sh", "-c", script)
    assert (done.code, done.out) == (0, "attempt 1\nattempt 2\n")


def test_run_of_what_was_never_started_ends(corral: Corral, client: Client) -> None:
    done = corral("run", "-q", "-o", "json", "--workdir", "/nowhere/at/all", "--", "true")
    assert done.code != 0
    assert done.json()["outcome"] == "failed"


def test_ctrl_c_asks_to_stop(environment: dict[str, str], client: Client) -> None:
    command = [*CORRAL, "run", "--", "sh", "-c", "echo begun; sleep 60"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment, text=True) as run:
        assert run.stdout is not None
        assert run.stdout.readline() == "begun\n"
        run.send_signal(signal.SIGINT)
        _, err = run.communicate(timeout=60)
    id_ = err.split()[2]
    assert run.returncode == 130
    assert client.get(id_)["outcome"] == "cancelled"


def test_a_second_ctrl_c_leaves_it_alone(environment: dict[str, str], client: Client) -> None:
    script = "trap '' TERM; echo begun; sleep 60 & wait; wait"
    command = [*CORRAL, "run", "--grace", "10s", "--", "sh", "-c", script]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment, text=True) as run:
        assert run.stdout is not None
        assert run.stderr is not None
        id_ = run.stderr.readline().split()[2]
        assert run.stdout.readline() == "begun\n"
        run.send_signal(signal.SIGINT)
        assert "asking" in run.stderr.readline()
        wait_until(lambda: client.get(id_)["phase"] == "stopping", "the stop")
        run.send_signal(signal.SIGINT)
        err = run.stderr.read()
        run.wait(30)
    assert run.returncode == 130
    assert "alone" in err
    assert client.get(id_)["phase"] == "stopping"


def test_a_reader_that_leaves_is_no_traceback(environment: dict[str, str]) -> None:
    pipe = (
        " ".join(CORRAL) + " run -q -- sh -c 'i=0; while [ $i -lt 20000 ]; do echo line $i; i=$((i+1)); done' | head -1"
    )
    done = subprocess.run(["sh", "-c", pipe], capture_output=True, env=environment, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("line 0\n", "")


def test_wait_is_the_first_failure_in_the_order_given(corral: Corral) -> None:
    ids = [corral("submit", "--", "sh", "-c", f"exit {code}").line for code in (0, 3, 5)]
    assert corral("wait", *ids).code == 3
    assert corral("wait", *reversed(ids)).code == 5
    assert corral("wait", ids[0]).code == 0


def test_wait_for_what_was_cancelled_is_130(corral: Corral) -> None:
    id_ = corral("submit", "--hold", "--", "true").line
    assert corral("cancel", id_).line == id_
    assert corral("wait", id_).code == 130


def test_a_wait_that_runs_out_is_6(corral: Corral) -> None:
    id_ = corral("submit", "--hold", "--", "true").line
    done = corral("wait", "--timeout", "0.2", id_)
    assert done.code == 6
    assert id_ in done.error
    corral("cancel", id_)


def test_wait_shows_the_ended_as_json(corral: Corral) -> None:
    id_ = corral("submit", "--", "sh", "-c", "exit 4").line
    done = corral("wait", "-o", "json", id_)
    assert (done.code, done.json()["exit_code"]) == (4, 4)


def test_logs_of_a_rank_a_stream_an_offset(corral: Corral) -> None:
    script = "echo out $RANK; echo err $RANK >&2"
    id_ = corral("submit", "--ranks-per-node", "2", "--outcome-rule", "all", "--", "sh", "-c", script).line
    assert corral("wait", id_).code == 0
    assert corral("logs", id_).out == "out 0\n"
    assert corral("logs", id_, "--rank", "1").out == "out 1\n"
    assert corral("logs", id_, "--rank", "1", "--stderr").out == "err 1\n"
    assert corral("logs", id_, "--offset", "4").out == "0\n"
    assert corral("logs", id_, "-f").out == "out 0\n"
    assert corral("logs", id_, "--rank", "2").code == 3


def test_logs_follow_what_has_not_begun(environment: dict[str, str], corral: Corral) -> None:
    id_ = corral("submit", "--hold", "--", "sh", "-c", "echo one; sleep 0.3; echo two").line
    with subprocess.Popen([*CORRAL, "logs", "-f", id_], stdout=subprocess.PIPE, env=environment, text=True) as logs:
        corral("release", id_)
        out, _ = logs.communicate(timeout=60)
    assert (logs.returncode, out) == (0, "one\ntwo\n")


def test_a_script_may_be_run(corral: Corral, tmp_path: Path) -> None:
    script = tmp_path / "job.sh"
    script.write_text("#!/bin/sh\n#CORRAL --gpus 1\necho $CUDA_VISIBLE_DEVICES; exit 5\n")
    done = corral("run", "-q", str(script))
    assert (done.code, done.out.startswith("SIM-")) == (5, True)


RANKS = "echo out $RANK; echo err $RANK >&2; printf 'no end %s' $RANK"


def test_run_shows_all_ranks_each_line_after_its_number(environment: dict[str, str]) -> None:
    command = [*CORRAL, "run", "-q", "--ranks-per-node", "3", "--cpus", "0.1", "--", "sh", "-c", RANKS]
    done = subprocess.run(command, capture_output=True, env=environment, timeout=60, text=True)
    assert done.returncode == 0
    assert sorted(done.stdout.splitlines()) == sorted(
        line for rank in range(3) for line in (f"{rank}: out {rank}", f"{rank}: no end {rank}")
    )
    assert sorted(done.stderr.splitlines()) == [f"{rank}: err {rank}" for rank in range(3)]


def test_run_of_one_rank_among_several_is_as_it_is(corral: Corral) -> None:
    words = ["run", "-q", "--ranks-per-node", "3", "--cpus", "0.1"]
    assert corral(*words, "--rank", "1", "--", "sh", "-c", RANKS).out == "out 1\nno end 1"
    refused = corral(*words, "--rank", "3", "--", "true")
    assert (refused.code, "ranks 0 to 2" in refused.error) == (2, True)


@given(st.lists(st.binary(max_size=20).filter(lambda data: data != b""), max_size=12))
def test_labelled_lines_are_whole_however_they_come(pieces: list[bytes]) -> None:
    out = io.BytesIO()
    labelled = Labelled(out, b"7: ")
    for piece in pieces:
        labelled.write(piece)
    labelled.finish()
    lines = b"".join(pieces).split(b"\n")
    whole = lines[:-1] + ([lines[-1]] if lines[-1] else [])
    assert out.getvalue() == b"".join(b"7: " + line + b"\n" for line in whole)


def test_a_line_without_end_is_not_kept_for_ever() -> None:
    out = io.BytesIO()
    Labelled(out, b"7: ").write(b"x" * 200_000)
    assert len(out.getvalue()) > 190_000
