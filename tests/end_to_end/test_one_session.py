"""The first whole path: a session from `corral submit` to a proven end, through the CLI, on real processes."""

from pathlib import Path

import pytest

from tests.end_to_end.control_plane import Plane, processes_marked, wait_until


def test_a_command_runs_and_its_end_is_proven(shared: Plane) -> None:
    session = shared.submit("--name", "hello", "--", "sh", "-c", "echo out; echo err >&2; exit 0")
    assert shared.run("wait", session).code == 0
    shown = shared.show(session)
    assert (shown["phase"], shown["outcome"], shown["exit_code"], shown["attempt"]) == ("ended", "succeeded", 0, 1)
    assert shown["kernels"][0]["certificate"] == "exit"
    assert shared.run("logs", session).out == "out\n"
    assert shared.run("logs", "--stderr", session).out == "err\n"
    history = [line["fact"] for line in shared.run("history", session, "-o", "json").json()]
    assert history == ["submitted", "placed", "claimed", "ready", "decided", "released"]


def test_audit_launch_prints_the_whole_chain(shared: Plane) -> None:
    session = shared.submit("--", "true")
    shared.run("wait", session)
    (launch,) = shared.run("audit-launch", session, "-o", "json").json()["launches"]
    steps = {step["step"]: step for step in launch["steps"]}
    assert set(steps) >= {"intent", "claim", "served", "accepted", "started", "result", "certified", "acknowledged"}
    times = [steps[name]["at"] for name in ("intent", "claim", "served", "started", "certified", "acknowledged")]
    assert None not in times and times == sorted(times)
    assert steps["intent"]["by"].startswith("manager:") and steps["started"]["by"].startswith("node:")
    assert steps["acknowledged"]["by"].startswith("manager:")
    assert session in shared.run("audit-launch", session).out


@pytest.mark.parametrize(
    ("command", "code"),
    [(["true"], 0), (["sh", "-c", "exit 7"], 7), (["sh", "-c", "kill -9 $$"], 137), (["/no/such/program"], 127)],
)
def test_run_answers_the_sessions_own_code(shared: Plane, command: list[str], code: int) -> None:
    assert shared.run("run", "--", *command).code == code


def test_the_time_limit_ends_it_with_124(shared: Plane) -> None:
    answer = shared.run("run", "--time", "1s", "--grace", "1s", "--", "sleep", "60")
    assert answer.code == 124
    shown = shared.show("last")
    assert (shown["outcome"], shown["exit_class"]) == ("failed", "timeout")


def test_one_that_saves_its_work_at_the_time_limit_goes_on_as_often_as_it_may(shared: Plane) -> None:
    """In slices of its time limit: it saves when it is told, and asks to go on; the third slice has no continuation."""
    script = """
        echo $((1 + $(cat "$CORRAL_CHECKPOINT_DIR/n" 2>/dev/null || echo 0))) > "$CORRAL_CHECKPOINT_DIR/n.new"
        mv "$CORRAL_CHECKPOINT_DIR/n.new" "$CORRAL_CHECKPOINT_DIR/n"
        trap 'cat "$CORRAL_CHECKPOINT_DIR/n"; exit 85' TERM
        i=0; while [ $i -lt 600 ]; do sleep 0.1; i=$((i+1)); done"""
    session = shared.submit("--time", "1s", "--continuations", "2", "--", "sh", "-c", script)
    assert shared.run("wait", session).code == 124
    shown = shared.show(session)
    assert (shown["exit_class"], shown["attempt"], shown["continuations"]) == ("timeout", 3, 2)
    assert shown["reason"]["code"] == "continuations_spent"
    slices = [shared.run("logs", session, "--attempt", str(number)).out for number in (1, 2, 3)]
    assert slices == ["1\n", "2\n", "3\n"]
    again = [one for one in shared.run("history", session, "-o", "json").json() if one["fact"] == "requeued"]
    assert [one["detail"] for one in again] == [{"continuation": 1}, {"continuation": 2}]
    assert "continuation  2 of at most 2" in shared.run("show", session).out
    assert "continuation 2 of at most 2" in shared.run("explain", session).out


def test_cancel_stops_the_whole_tree(shared: Plane) -> None:
    script = "trap '' TERM; (setsid sleep 300 &) ; sleep 300"
    session = shared.submit("--grace", "1s", "--", "sh", "-c", script)
    shared.wait_phase(session, "running")
    wait_until(lambda: len(processes_marked(session)) >= 3, "the tree to grow")
    assert shared.run("cancel", session).code == 0
    assert shared.run("wait", session).code == 130
    assert shared.show(session)["outcome"] == "cancelled"
    assert processes_marked(session) == []


def test_cancel_twice_and_of_an_ended_session_changes_nothing(shared: Plane) -> None:
    session = shared.submit("--", "true")
    shared.run("wait", session)
    before = shared.show(session)
    assert shared.run("cancel", session).code == 0
    assert shared.run("cancel", session).code == 0
    assert shared.show(session) == before


def test_what_the_process_is_given(shared: Plane, tmp_path: Path) -> None:
    values = tmp_path / "values.env"
    values.write_text("FROM_FILE=b\n")
    session = shared.submit(
        "--gpus", "2", "--env", "MINE=a b", "--env-file", str(values), "--port", "web:8080", "--", "env"
    )
    assert shared.run("wait", session).code == 0
    out = shared.run("logs", session).out
    given = dict(line.split("=", 1) for line in out.splitlines() if "=" in line)
    devices = shared.show(session)["kernels"][0]["devices"]
    assert given["MINE"] == "a b" and given["FROM_FILE"] == "b"
    assert given["CORRAL_SESSION_ID"] == session
    assert (given["RANK"], given["WORLD_SIZE"], given["LOCAL_RANK"], given["NODE_RANK"]) == ("0", "1", "0", "0")
    assert given["CUDA_VISIBLE_DEVICES"] == ",".join(devices) and len(devices) == 2
    assert given["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    assert {"CORRAL_ATTEMPT", "CORRAL_RANK", "CORRAL_LAUNCH_TOKEN", "CORRAL_NODE_LIST", "CORRAL_HOSTFILE", "CORRAL_URL",
            "CORRAL_STOP_FILE", "CORRAL_WORKSPACE", "CORRAL_CHECKPOINT_DIR", "MASTER_ADDR", "MASTER_PORT",
            "OMP_NUM_THREADS", "CORRAL_GPUS_PER_NODE"} <= set(given)  # fmt: skip
    assert not any(name.startswith("PYTEST") for name in given)


def test_without_gpus_the_variables_are_empty_not_absent(shared: Plane) -> None:
    session = shared.submit("--", "env")
    shared.run("wait", session)
    lines = shared.run("logs", session).out.splitlines()
    assert "CUDA_VISIBLE_DEVICES=" in lines and "NVIDIA_VISIBLE_DEVICES=" in lines and "ROCR_VISIBLE_DEVICES=" in lines


def test_a_script_runs_as_it_was_when_submitted(shared: Plane, tmp_path: Path) -> None:
    script = tmp_path / "job.sh"
    script.write_text('#!/bin/sh\n#CORRAL --name from-script --cpus 2\necho "first $1"\n')
    session = shared.submit("--hold", str(script), "argument")
    script.write_text("#!/bin/sh\necho second\n")
    shared.run("release", session)
    assert shared.run("wait", session).code == 0
    assert shared.run("logs", session).out == "first argument\n"
    shown = shared.show(session)
    assert (shown["name"], shown["resources"]["cpus"]) == ("from-script", 2)


def test_an_uploaded_tree_is_the_working_directory(shared: Plane, tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    (tree / "sub").mkdir(parents=True)
    (tree / "sub" / "data.txt").write_text("inside\n")
    (tree / "secret.log").write_text("no\n")
    (tree / ".gitignore").write_text("*.log\n")
    session = shared.submit("--upload", str(tree), "--", "sh", "-c", "cat sub/data.txt; ls")
    assert shared.run("wait", session).code == 0
    out = shared.run("logs", session).out
    assert out.startswith("inside\n") and "secret.log" not in out


def test_bootstrap_runs_first_and_its_failure_is_the_result(shared: Plane, tmp_path: Path) -> None:
    good, bad = tmp_path / "good.sh", tmp_path / "bad.sh"
    good.write_text("#!/bin/sh\necho prepared\n")
    bad.write_text("#!/bin/sh\nexit 9\n")
    first = shared.submit("--bootstrap", str(good), "--", "echo", "main")
    second = shared.submit("--bootstrap", str(bad), "--", "echo", "never")
    assert (shared.run("wait", first).code, shared.run("wait", second).code) == (0, 9)
    assert shared.run("logs", first).out == "prepared\nmain\n"
    assert shared.run("logs", second).out == ""


def test_hold_keeps_it_waiting_and_release_lets_it_go(shared: Plane) -> None:
    session = shared.submit("--hold", "--", "true")
    assert shared.show(session)["wanted"] == "hold"
    assert shared.run("wait", "--timeout", "1", session).code == 6
    assert shared.run("release", session).code == 0
    assert shared.run("wait", session).code == 0


def test_a_failure_is_retried_as_often_as_asked(shared: Plane, tmp_path: Path) -> None:
    marks = tmp_path / "marks"
    session = shared.submit("--retries", "1", "--", "sh", "-c", f"echo $CORRAL_ATTEMPT >> {marks}; exit 3")
    assert shared.run("wait", session).code == 3
    assert marks.read_text().split() == ["1", "2"]
    assert shared.show(session)["attempt"] == 2


def test_requeue_of_an_ended_session_makes_a_new_one_linked_to_it(shared: Plane) -> None:
    session = shared.submit("--", "echo", "again")
    shared.run("wait", session)
    answer = shared.run("requeue", session, "-o", "json")
    new = answer.json()["id"]
    assert new != session and shared.show(new)["requeue_of"] == session
    assert shared.run("wait", new).code == 0


def test_requeue_of_a_running_session_is_a_new_attempt(shared: Plane, tmp_path: Path) -> None:
    marks = tmp_path / "marks"
    script = f"echo $CORRAL_ATTEMPT >> {marks}; [ $CORRAL_ATTEMPT = 2 ] || sleep 300"
    session = shared.submit("--grace", "1s", "--", "sh", "-c", script)
    wait_until(lambda: marks.exists() and marks.read_text().strip() == "1", "the first attempt to begin")
    assert shared.run("requeue", session).code == 0
    assert shared.run("wait", session).code == 0
    assert marks.read_text().split() == ["1", "2"]


def test_a_request_no_node_can_ever_meet_is_refused_at_once(shared: Plane) -> None:
    answer = shared.run("submit", "--gpus", "H100:1", "--", "true")
    assert answer.code == 4
    assert "H100" in answer.err or "GPU" in answer.err
    assert answer.err.count("\n") == 1


def test_explain_says_what_it_waits_for(shared: Plane) -> None:
    first = shared.submit("--gpus", "4", "--grace", "0s", "--", "sleep", "300")
    shared.wait_phase(first, "running")
    second = shared.submit("--gpus", "1", "--", "true")
    wait_until(lambda: shared.show(second)["refusals"], "a reason")
    assert shared.show(second)["refusals"][0]["code"] == "not_enough_gpus"
    assert "GPU" in shared.run("explain", second).out
    shared.run("cancel", first)
    assert shared.run("wait", second).code == 0


def test_the_same_idempotency_key_makes_one_session(shared: Plane) -> None:
    first = shared.submit("--idempotency-key", "once", "--", "true")
    assert shared.submit("--idempotency-key", "once", "--", "true") == first
    other = shared.run("submit", "--idempotency-key", "once", "--", "false")
    assert other.code == 4 and "once" in other.err


def test_the_stop_file_says_why_before_the_signal(shared: Plane) -> None:
    script = "trap 'cat $CORRAL_STOP_FILE; exit 5' TERM; while :; do sleep 0.1; done"
    session = shared.submit("--", "sh", "-c", script)
    shared.wait_phase(session, "running")
    shared.run("cancel", session)
    assert shared.run("wait", session).code == 130
    assert "cancelled" in shared.run("logs", session).out


def test_the_warning_signal_comes_before_the_limit(shared: Plane) -> None:
    script = "trap 'echo warned; exit 0' USR1; while :; do sleep 0.1; done"
    answer = shared.run("run", "--time", "5s", "--signal", "USR1@4", "--", "sh", "-c", script)
    assert answer.code == 0 and answer.out == "warned\n"


def test_an_extended_limit_reaches_the_running_job(shared: Plane) -> None:
    session = shared.submit("--time", "10s", "--grace", "0s", "--", "sh", "-c", "sleep 12; echo done")
    shared.wait_phase(session, "running")
    assert shared.run("update", session, "--time", "60s").code == 0
    assert shared.run("wait", session).code == 0
