"""Arrays on real processes: every member runs once, with its own index, no more at a time than the throttle allows."""

from pathlib import Path

import pytest

from corral.store import upgrade
from tests.chaos.world import managed_world
from tests.end_to_end.control_plane import Plane, wait_until
from tests.services.postgres import Server

SCRIPT = """
set -e
cd "$1"
touch "live-$CORRAL_ARRAY_INDEX"
set -- live-*
echo "$#" >"peak-$CORRAL_ARRAY_INDEX"
printf '%s %s %s %s\\n' "$CORRAL_ARRAY_ID" "$CORRAL_ARRAY_INDEX" "$CORRAL_ARRAY_SIZE" "$CORRAL_SESSION_ID" \
    >>"ran-$CORRAL_ARRAY_INDEX"
echo "index $CORRAL_ARRAY_INDEX in $(basename $CORRAL_WORKSPACE)"
rm "live-$CORRAL_ARRAY_INDEX"
exit $((CORRAL_ARRAY_INDEX == 14 ? 3 : 0))
"""


def test_each_member_runs_once_within_the_throttle(shared: Plane, tmp_path: Path) -> None:
    options = ("--array", "0-28:2,100,200%3", "--cpus", "0.1", "--memory", "16MiB")
    id_ = shared.submit(*options, "--", "sh", "-c", SCRIPT, "sh", str(tmp_path))
    child = shared.submit("--after", f"{id_}:any", "--cpus", "0.1", "--", "true")
    assert shared.run("wait", id_).code == 3, "the first that did not end well"
    indices = [*range(0, 29, 2), 100, 200]
    for index in indices:
        (line,) = (tmp_path / f"ran-{index}").read_text().splitlines()
        assert line == f"{id_} {index} {len(indices)} {id_}[{index}]"
    assert sorted(path.name for path in tmp_path.glob("ran-*")) == sorted(f"ran-{index}" for index in indices)
    peaks = [int(path.read_text()) for path in tmp_path.glob("peak-*")]
    assert max(peaks) <= 3
    shown = shared.show(id_)
    assert shown["array"]["outcomes"] == {"succeeded": len(indices) - 1, "failed": 1}
    assert shared.run("logs", f"{id_}[16]").out == f"index 16 in {id_}_16\n"
    assert shared.run("wait", f"{id_}[14]").code == 3
    assert shared.run("wait", child).code == 0
    assert shared.run("audit-launch", f"{id_}[0]").code == 0
    assert shared.run("doctor").code == 0


def test_a_script_says_what_it_is_an_array_of(shared: Plane, tmp_path: Path) -> None:
    script = tmp_path / "job.sh"
    script.write_text('#!/bin/sh\n#SBATCH --array=1-3%2\n#CORRAL --cpus 0.1\necho "$1 $CORRAL_ARRAY_INDEX"\n')
    id_ = shared.submit(str(script), "hello")
    assert shared.run("wait", id_).code == 0
    assert [shared.run("logs", f"{id_}[{index}]").out for index in (1, 2, 3)] == [
        f"hello {index}\n" for index in (1, 2, 3)
    ]


def test_cancelling_an_array_stops_who_runs_and_starts_nobody_else(shared: Plane) -> None:
    id_ = shared.submit("--array", "0-99999%2", "--cpus", "0.1", "--grace", "1s", "--", "sleep", "300")
    wait_until(lambda: shared.show(id_)["array"]["phases"].get("running") == 2, "two members to run")
    shown = shared.show(id_)["array"]["phases"]
    assert shown == {"pending": 99_998, "running": 2}
    assert shared.run("cancel", id_).code == 0
    assert shared.run("wait", id_).code == 130
    assert shared.show(id_)["array"]["outcomes"] == {"cancelled": 100_000}
    listed = shared.run("ps", "-a", "--members", "--array", id_, "-n", "5", "-o", "json").json()
    assert [one["outcome"] for one in listed] == ["cancelled"] * 5


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_two_managers_of_which_one_is_killed_again_and_again(postgres_server: Server, tmp_path: Path) -> None:
    """Whoever is there gives turns: every member runs once, and never more at a time than the throttle allows."""
    script = SCRIPT.replace("exit $((CORRAL_ARRAY_INDEX == 14 ? 3 : 0))", "exit 0")
    with postgres_server.fresh_database() as database:
        upgrade(database)
        with managed_world(tmp_path, [database, database]) as world:
            marks = world.marks / "array"
            marks.mkdir()
            body = {"command": ["sh", "-c", script, "sh", str(marks)], "cpus": 0.1, "memory": "32MiB",
                    "array": "0-59%4"}  # fmt: skip
            id_ = world.ask("POST", "sessions", body, "the-array", prefer=1)["id"]
            for done in (8, 20, 32):
                wait_until(lambda done=done: len(list(marks.glob("ran-*"))) >= done, f"{done} members to run", 60)
                world.managers[0].kill()
                world.heal()
            wait_until(lambda: world.ask("GET", f"sessions/{id_}", prefer=1)["phase"] == "ended", "its end", 90)
            shown = world.ask("GET", f"sessions/{id_}", prefer=1)
            assert shown["array"]["outcomes"] == {"succeeded": 60}
            ran = {int(path.name.removeprefix("ran-")): path.read_text() for path in marks.glob("ran-*")}
            assert ran == {index: f"{id_} {index} 60 {id_}[{index}]\n" for index in range(60)}
            assert max(int(path.read_text()) for path in marks.glob("peak-*")) <= 4
            world.ready()
            wait_until(lambda: world.ask("GET", "doctor", prefer=1)["ok"], "doctor", 30)
        assert world.left_over() == []
