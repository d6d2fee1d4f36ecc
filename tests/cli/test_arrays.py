"""Arrays on the command line: one line for all members, and each by its own name."""

import pytest

from corral.client import Client
from tests.cli.conftest import Corral

HELD = ("--hold", "--cpus", "0.1")


def test_an_array_is_one_line_that_counts(corral: Corral) -> None:
    id_ = corral("submit", *HELD, "--array", "0-99%8", "--name", "sweep", "--", "true").line
    listed = corral("ps").out.splitlines()
    (line,) = [line for line in listed if id_ in line]
    assert line.split()[:3] == [id_, "sweep", "held"]
    assert "100 members: 100 pending" in line
    shown = corral("show", id_).out
    assert ["indices", "0-99"] in [line.split() for line in shown.splitlines()]
    assert ["at", "once", "8"] in [line.split() for line in shown.splitlines()]
    assert "100 members: 100 pending" in shown
    members = corral("ps", "--members", "--name", "sweep", "-n", "3", "-o", "name").out.split()
    assert members == [f"{id_}[{index}]" for index in (99, 98, 97)]
    own = corral("ps", "--array", id_, "-n", "0", "-o", "name").out.split()
    assert own == [f"{id_}[{index}]" for index in range(99, -1, -1)]
    assert corral("show", f"{id_}_7", "-o", "name").line == f"{id_}[7]"
    assert "held" in corral("explain", f"{id_}[7]").out
    assert corral("history", id_).code == 0
    assert corral("cancel", id_).code == 0
    assert corral("wait", id_).code == 130
    assert "100 cancelled" in corral("show", id_).out


def test_everything_is_done_to_one_member_or_to_all(corral: Corral) -> None:
    id_ = corral("submit", *HELD, "--array", "1-5%2", "--", "true").line
    assert corral("cancel", f"{id_}[2]").line == f"{id_}[2]"
    assert corral("update", f"{id_}[3]", "--priority", "4").line == f"{id_}[3]"
    assert corral("update", id_, "--time", "1h").line == id_
    assert corral("release", id_).line == id_
    assert corral("wait", id_).code == 130, "one was cancelled"
    assert corral("wait", f"{id_}[1]", f"{id_}[5]").code == 0
    again = corral("requeue", f"{id_}[5]").line
    assert corral("wait", again).code == 0
    anew = corral("requeue", id_).line
    assert corral("wait", anew).code == 0


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("logs", "{}"), 2, "{}[0]"),
        (("audit-launch", "{}"), 2, "{}[0]"),
        (("show", "{}[100]"), 3, "no member 100"),
        (("show", "{}[x]"), 2, "ID[7]"),
        (("cancel", "{}[100]"), 3, "no member 100"),
        (("logs", "{}[1]"), 4, "nothing yet"),
    ],
)
def test_what_makes_no_sense_of_an_array_is_said(corral: Corral, words: tuple[str, ...], code: int, said: str) -> None:
    id_ = corral("submit", *HELD, "--array", "0-3", "--", "true").line
    done = corral(*(word.format(id_) for word in words))
    assert (done.code, said.format(id_) in done.error) == (code, True), done.error
    corral("cancel", id_)


def test_run_follows_no_array(corral: Corral) -> None:
    done = corral("run", "--array", "0-3", "--", "true")
    assert (done.code, "use submit" in done.error) == (2, True)


def test_only_asking_says_how_many(corral: Corral) -> None:
    assert "members" in corral("submit", "--dry-run", "--array", "0-9", "--", "true").out


def test_the_sdk_submits_and_waits(client: Client) -> None:
    array = client.submit({"command": ["true"], "array": "0-3%2", "cpus": 0.1})
    assert array["array"] is not None and array["array"]["size"] == 4
    ended = client.wait(array["id"])
    assert (ended["outcome"], ended["array"] and ended["array"]["outcomes"]) == ("succeeded", {"succeeded": 4})
    page = client.sessions(array=array["id"])["sessions"]
    assert [one["member"] and one["member"]["index"] for one in page] == [3, 2, 1, 0]
