"""Lists and stories: every form of output, and the verbs that change a session."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from corral import __version__
from corral.client import Client
from tests.cli.conftest import Corral
from tests.end_to_end.control_plane import wait_until


@pytest.fixture
def held(corral: Corral) -> str:
    return corral("submit", "--hold", "--name", "held", "--label", "of=showing", "--gpus", "1", "--", "true").line


def test_ps_shows_what_has_not_ended(corral: Corral, held: str) -> None:
    over = corral("submit", "--label", "of=showing", "--", "true").line
    corral("wait", over)
    assert corral("ps", "-o", "name", "--label", "of=showing").out.split()[0] == held
    both = corral("ps", "-a", "-o", "name", "--label", "of=showing").out.split()
    assert both[:2] == [over, held]
    ended = corral("ps", "--phase", "ended", "-o", "json", "--label", "of=showing").json()
    assert {one["phase"] for one in ended} == {"ended"}
    corral("cancel", held)


def test_ps_in_every_form(corral: Corral, held: str) -> None:
    words = ["ps", "--name", "held"]
    head, row, *_ = corral(*words).out.splitlines()
    assert head.split() == ["ID", "NAME", "STATE", "NODE", "GPUS", "AGE", "RAN", "NOTE"]
    assert row.split()[:5] == [held, "held", "held", "-", "1"]
    wide_head, *_ = corral(*words, "-o", "wide").out.splitlines()
    assert wide_head.split()[-1] == "COMMAND"
    assert corral(*words, "-o", "json").json()[0]["id"] == held
    assert corral(*words, "-o", "name").out.split()[0] == held
    corral("cancel", held)


def test_ps_pages_through_all_and_says_when_there_are_more(corral: Corral) -> None:
    for _ in range(3):
        corral("submit", "--project", "pages", "--", "true")
    words = ["ps", "-a", "--project", "pages", "-o", "name"]
    assert len(corral(*words, "-n", "0").out.split()) == 3
    some = corral(*words, "-n", "2")
    assert len(some.out.split()) == 2
    assert "more than these 2" in some.err


def test_an_id_may_be_shortened_and_last_is_the_newest(corral: Corral, held: str) -> None:
    assert corral("show", held[:6], "-o", "json").json()["id"] == held
    assert corral("show", "last", "-o", "name").line == held
    corral("cancel", held)


def test_show_is_one_object_for_one_and_a_list_for_several(corral: Corral, held: str) -> None:
    assert corral("show", held, "-o", "json").json()["id"] == held
    assert [one["id"] for one in corral("show", held, held, "-o", "json").json()] == [held, held]
    text = corral("show", held).out
    assert ["state", "held"] in [line.split() for line in text.splitlines()]
    assert "of=showing" in text
    corral("cancel", held)


def test_hold_release_update(corral: Corral, client: Client, held: str) -> None:
    assert corral("update", held, "--priority", "7", "--time", "10m").line == held
    assert (client.get(held)["priority"], client.get(held)["time_limit_s"]) == (7, 600)
    assert corral("hold", held).line == held
    assert corral("release", held).line == held
    assert corral("wait", held).code == 0
    assert corral("hold", held).code == 4
    assert corral("update", held, "--priority", "1").code == 4


def test_requeue_of_an_ended_session_is_a_new_one(corral: Corral, client: Client) -> None:
    id_ = corral("submit", "--", "true").line
    corral("wait", id_)
    again = corral("requeue", id_).line
    assert again != id_
    assert client.get(again)["requeue_of"] == id_
    assert corral("wait", again).code == 0


def test_requeue_of_a_live_one_is_its_next_attempt(corral: Corral, client: Client) -> None:
    id_ = corral("submit", "--", "sh", "-c", "test $CORRAL_ATTEMPT = 2 || sleep 60").line
    wait_until(lambda: client.get(id_)["phase"] == "running", "the first attempt")
    assert corral("requeue", id_).line == id_
    assert corral("wait", id_).code == 0
    assert [one["attempt"] for one in client.attempts(id_)] == [1, 2]


def test_the_story_of_a_session(corral: Corral, client: Client) -> None:
    id_ = corral("submit", "--", "true").line
    corral("wait", id_)
    history = corral("history", id_, "-o", "json").json()
    assert [one["seq"] for one in history] == list(range(1, len(history) + 1))
    assert [one["fact"] for one in history][:4] == ["submitted", "placed", "claimed", "ready"]
    assert corral("history", id_).out.splitlines()[0].split()[:4] == ["SEQ", "AT", "FROM", "FACT"]
    audit = corral("audit-launch", id_)
    assert audit.code == 0
    assert "no launch began more than once" in audit.out
    launches = corral("audit-launch", id_, "-o", "json").json()["launches"]
    assert [step["step"] for step in launches[0]["steps"]] == [
        "intent", "claim", "served", "accepted", "started", "result", "certified", "acknowledged",
    ]  # fmt: skip
    assert "ended, succeeded" in corral("explain", id_).out


def test_explain_counts_what_is_in_the_way(corral: Corral, held: str) -> None:
    assert corral("explain", held, "-o", "json").json()["blockers"][0]["code"] == "held"
    assert "corral release" in corral("explain", held).out
    corral("cancel", held)


def test_events_are_in_order_and_go_on_from_a_number(corral: Corral, held: str) -> None:
    events = [json.loads(line) for line in corral("events", "-o", "json").out.splitlines()]
    ids = [one["id"] for one in events]
    assert ids == sorted(ids)
    rest = corral("events", "--after", str(ids[-2]), "-o", "json").out.splitlines()
    assert json.loads(rest[0])["id"] == ids[-1]
    assert len(corral("events", "--after", str(ids[-2])).out.splitlines()) == len(rest)
    corral("cancel", held)


def test_events_follow_what_happens(corral: Corral, environment: dict[str, str], client: Client, held: str) -> None:
    after = client.events(limit=10_000)[-1]["id"]
    command = [sys.executable, "-m", "corral", "events", "-f", "--after", str(after), "-o", "json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment, text=True) as events:
        corral("cancel", held)
        assert events.stdout is not None
        seen = json.loads(events.stdout.readline())
        events.terminate()
    assert (seen["session"], seen["fact"]) == (held, "cancel")


def test_nodes_in_every_form(corral: Corral) -> None:
    assert corral("nodes", "-o", "name").line == "node-1"
    (node,) = corral("nodes", "-o", "json").json()
    assert (node["name"], node["state"], node["cpus"], node["labels"]["zone"]) == ("node-1", "up", 8.0, "a")
    head, row = corral("nodes").out.splitlines()
    assert head.split()[:3] == ["NAME", "STATE", "GROUP"]
    assert row.split()[:2] == ["node-1", "up"]
    assert "zone=a" in corral("nodes", "-o", "wide").out
    assert "SIM-node-1-0" in corral("node", "show", "node-1").out
    assert len(corral("node", "show", "node-1", "-o", "json").json()["devices"]) == 2


def test_devices_in_every_form(corral: Corral) -> None:
    assert corral("devices", "-o", "name").out.split() == ["SIM-node-1-0", "SIM-node-1-1"]
    assert {one["model"] for one in corral("devices", "-o", "json").json()} == {"A100"}
    assert corral("devices").out.splitlines()[0].split()[:3] == ["NODE", "INDEX", "MODEL"]
    assert "sm_80" in corral("devices", "-o", "wide").out


def test_doctor_is_clean(corral: Corral) -> None:
    assert corral("doctor").out.startswith("clean: every invariant holds")
    assert corral("doctor", "-o", "json").json()["ok"] is True


def test_version_needs_nobody(corral: Corral) -> None:
    assert corral("version").line == f"corral {__version__}, control plane {__version__}"
    assert corral("version", "--url", "http://127.0.0.1:1").line == f"corral {__version__}"


def test_db_upgrade_may_be_repeated(corral: Corral, tmp_path: Path) -> None:
    for _ in range(2):
        assert corral("db", "upgrade", "--database", f"sqlite:///{tmp_path}/new.db").code == 0
    assert (tmp_path / "new.db").exists()


def test_what_others_wrote_cannot_steer_the_terminal(corral: Corral) -> None:
    id_ = corral("submit", "--hold", "--", "sh", "-c", "\x1b[2Jboo\r\nx").line
    for words in (["show", id_], ["ps", "-o", "wide"]):
        out = corral(*words).out
        assert "boo" in out
        assert "\x1b" not in out
        assert "\r" not in out
    corral("cancel", id_)
