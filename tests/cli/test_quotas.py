"""corral quota, the SDK's calls below it, and --quotas FILE, against a real control plane."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from corral.cli import exits
from corral.client import AsyncClient, Client
from corral.model.faults import Invalid, NotFound, Refused
from corral.model.quota import Quota
from corral.settings import QuotaFile, parse_quotas
from tests.cli.conftest import Corral
from tests.end_to_end.control_plane import Plane, plane, wait_until


@pytest.fixture(autouse=True)
def none_left(client: Client) -> Iterator[None]:
    yield
    for one in client.quotas():
        client.delete_quota(one["name"])


def test_set_show_delete(corral: Corral) -> None:
    made = corral("quota", "set", "mine", "--owner", "*", "--group", "default", "--gpus", "1.5", "--memory", "4GiB")
    assert made.code == 0
    assert corral("quota", "set", "lab", "--project", "vision", "--sessions", "4", "-o", "name").line == "lab"
    head, *rows = corral("quota", "list").out.splitlines()
    assert head.split() == ["NAME", "OF", "WHAT", "USED", "LIMIT", "VERSION"]
    assert [row.split() for row in rows] == [
        ["lab", "project", "vision", "sessions", "0", "4", "1"],
        ["mine", "each", "owner", "in", "group", "default", "memory", "-", "4GiB", "1"],
        ["mine", "each", "owner", "in", "group", "default", "gpus", "-", "1.5", "1"],
    ]
    assert corral("quota", "show").out == corral("quota", "list").out
    assert corral("quota", "list", "-o", "name").out.split() == ["lab", "mine"]
    assert corral("quota", "show", "lab", "-o", "json").json()["limits"]["sessions"] == 4
    changed = corral("quota", "set", "lab", "--project", "vision", "--cpus", "2", "--version", "1", "-o", "json").json()
    assert (changed["version"], changed["limits"]["sessions"], changed["limits"]["cpus"]) == (2, None, 2.0)
    assert corral("quota", "delete", "mine").code == 0
    facts = [one["fact"] for one in corral("quota", "history", "lab", "-o", "json").json()]
    assert facts[-2:] == ["quota_set", "quota_set"]
    assert "quota_deleted" in corral("quota", "history", "mine").out


def test_bad_input_is_one_line_and_a_code(corral: Corral) -> None:
    assert corral("quota", "set", "q", "--owner", "ann", "--cpus", "1").code == 0
    for words, code, part in (
        (("quota", "set", "q"), exits.USAGE, "is about nobody"),
        (("quota", "set", "q", "--owner", "ann"), exits.USAGE, "limits nothing"),
        (("quota", "set", "q", "--owner", "ann", "--gpus", "A100:2"), exits.USAGE, "--gpus: 'A100:2' is not a number"),
        (("quota", "set", "q", "--owner", "ann", "--sessions", "-1"), exits.USAGE, "--sessions"),
        (("quota", "set", "a b", "--owner", "ann", "--cpus", "1"), exits.USAGE, "letters, digits"),
        (("quota", "set", "q", "--owner", "ann", "--cpus", "2", "--version", "9"), exits.REFUSED, "version 1, not 9"),
        (("quota", "set", "q", "--owner", "ann", "--cpus", "2", "--version", "0"), exits.REFUSED, "version 1, not 0"),
        (("quota", "show", "nobody"), exits.NOT_FOUND, "there is no quota 'nobody'"),
        (("quota", "show", "a/b"), exits.NOT_FOUND, "there is no quota 'a/b'"),
        (("quota", "delete", "nobody"), exits.NOT_FOUND, "there is no quota"),
        (("quota", "history", "nobody"), exits.NOT_FOUND, "there is no quota"),
    ):
        failed = corral(*words)
        assert failed.code == code, words
        assert part in failed.error, (words, failed.error)
    assert corral("quota", "show", "q", "-o", "json").json()["version"] == 1


def test_who_is_over_a_quota_waits_and_is_told_and_goes_when_it_is_raised(corral: Corral) -> None:
    corral("quota", "set", "few", "--project", "few", "--cpus", "2")
    first = corral("submit", "-q", "--project", "few", "--cpus", "2", "--", "sleep", "60").line
    second = corral("submit", "-q", "--project", "few/below", "--cpus", "1", "--", "true").line
    other = corral("submit", "-q", "--project", "other", "--cpus", "1", "--", "true").line
    assert corral("wait", other, "--timeout", "30").code == 0, "it stands behind nobody"
    told = corral("explain", second).out
    assert "quota_project: quota few: project few may hold 2 CPUs at once, this asks for 1 CPU, it holds 2 CPUs" in told
    assert "quota few" in corral("ps", "--project", "few/below").out
    plan = corral("submit", "--dry-run", "--project", "few", "--cpus", "1", "--", "true").out
    assert "quota_project" in plan
    refused = corral("submit", "--project", "few", "--cpus", "3", "--", "true")
    assert refused.code == exits.REFUSED and "this can never start: quota few" in refused.error
    corral("quota", "set", "few", "--project", "few", "--cpus", "3")
    assert corral("wait", second, "--timeout", "30").code == 0
    corral("cancel", first)
    assert corral("wait", first, "--timeout", "30").code == exits.CANCELLED


def test_the_sdk_both_ways(client: Client, cluster: Plane) -> None:
    made = client.set_quota("a", owner="ann", gpus=2, waiting=3)
    assert made["limits"]["gpus"] == 2 and client.quota("a") == made and client.quotas() == [made]

    async def main() -> None:
        async with AsyncClient(cluster.url, cluster.token()) as corral:
            assert await corral.quotas() == [made]
            changed = await corral.set_quota("a", owner="ann", gpus=3, version=1)
            assert (await corral.quota("a"))["version"] == changed["version"] == made["version"] + 1
            with pytest.raises(Refused):
                await corral.set_quota("a", owner="ann", gpus=4, version=1)
            assert (await corral.quota_history("a"))[-1]["quota"] == "a"
            await corral.delete_quota("a")
            with pytest.raises(NotFound):
                await corral.quota("a")

    asyncio.run(main())
    with pytest.raises(Invalid):
        client.set_quota("b", owner="ann")


# --- from a file

FILE = """
[domains]
lab = ["vision", "speech"]

[quotas.each-owner]
owner = "*"
gpus = 1.5
sessions = 10

[quotas.lab]
domain = "lab"
cpus = 2
time = "2h"
"""


def test_what_a_file_says() -> None:
    assert parse_quotas(FILE, "f") == QuotaFile(
        (
            Quota("each-owner", owner="*", limits={"gpu_milli": 1500, "sessions": 10}),
            Quota("lab", domain="lab", limits={"cpu_milli": 2000, "time_limit_s": 7200}),
        ),
        {"vision": "lab", "speech": "lab"},
    )
    assert parse_quotas("", "f") == QuotaFile()


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[quotas", "is not TOML"),
        ("[quota.x]\nowner='a'", "no section 'quota'"),
        ("quotas = 3", "quotas is not a table"),
        ("[quotas]\nx = 3", "'x' is not a table"),
        ("[quotas.x]\nowner = 3\ncpus = 1", "owner is not text"),
        ("[quotas.x]\nowner = 'a'", "limits nothing"),
        ("[quotas.x]\ncpus = 1", "is about nobody"),
        ("[quotas.x]\nowner = 'a'\ndisk = 1", "'disk' is no limit"),
        ("[quotas.x]\nowner = 'a'\ncpus = [1]", "is not a number of CPUs"),
        ("[quotas.x]\nowner = 'a'\ncpus = 'many'", "is not a number of CPUs"),
        ("[domains]\na = 'vision'", "is not a list of projects"),
        ("[domains]\na = ['vision']\nb = ['vision']", "is of two domains"),
    ],
)
def test_a_file_that_makes_no_sense_is_one_clear_error(text: str, why: str) -> None:
    with pytest.raises(Invalid) as caught:
        parse_quotas(text, "--quotas q.toml")
    assert caught.value.code == "bad_quota_file"
    assert caught.value.message.startswith("--quotas q.toml") and why in caught.value.message


def test_a_control_plane_that_is_started_with_a_file_holds_to_it(tmp_path: Path) -> None:
    """Started again it changes nothing, and leaves alone what the file does not speak of."""
    file = tmp_path / "quotas.toml"
    file.write_text(FILE)
    size = ("--cpus", "8", "--memory", "4GiB", "--quotas", str(file))
    with plane(tmp_path / "data", *size) as running, Client(running.url, running.token()) as client:
        assert {one["name"]: one["version"] for one in client.quotas()} == {"each-owner": 1, "lab": 1}
        client.set_quota("more", owner="ann", cpus=1)
        with pytest.raises(Refused, match="may take 2h, this one has no time limit"):
            client.submit({"command": ["true"], "project": "vision"})
        ids = [client.submit({"command": ["sleep", "20"], "project": name, "cpus": 2, "time": "1h"})["id"]
               for name in ("vision", "speech/asr", "other")]  # fmt: skip
        wait_until(lambda: {client.get(ids[0])["phase"], client.get(ids[2])["phase"]} == {"running"}, "two to run")
        assert [one["code"] for one in client.get(ids[1])["refusals"]] == ["quota_domain"]
        for id_ in ids:
            client.cancel(id_)
    with plane(tmp_path / "data", *size) as running, Client(running.url, running.token()) as client:
        assert {one["name"]: one["version"] for one in client.quotas()} == {"each-owner": 1, "lab": 1, "more": 1}


def test_a_session_is_of_the_domain_of_its_project_and_names_none(corral: Corral, client: Client) -> None:
    told = corral("submit", "--domain", "lab", "--", "true")
    assert (told.code, "No such option '--domain'" in told.err) == (exits.USAGE, True)
    unknown: Any = {"command": ["true"], "domain": "lab"}
    with pytest.raises(Invalid, match="domain: there is no such field"):
        client.submit(unknown)
    client.set_quota("lab", domain="lab", sessions=0)
    client.set_quota("default", domain="default", sessions=7)
    assert corral("run", "--cpus", "0.1", "--", "true").code == 0, "no project is of the domain lab here"


def test_a_dry_run_is_refused_where_the_submit_would_be(corral: Corral) -> None:
    assert corral("quota", "set", "few", "--project", "few", "--waiting", "1").code == 0
    try:
        waits = corral("submit", "-o", "name", "--project", "few", "--hold", "--", "true").line
        planned = corral("submit", "--dry-run", "--project", "few", "--", "true")
        assert (planned.code, corral("submit", "--project", "few", "--", "true").code) == (exits.REFUSED, exits.REFUSED)
        assert "1 session may wait, with this there would be 2" in planned.error
        assert "quota_waiting" in planned.out and "room for it" not in planned.out
        assert corral("cancel", waits).code == 0
        assert corral("submit", "--dry-run", "--project", "few", "--", "true").code == 0
    finally:
        assert corral("quota", "delete", "few").code == 0
    hopeless = corral("quota", "set", "short", "--owner", "*", "--time", "1h")
    assert hopeless.code == 0
    try:
        planned = corral("submit", "--dry-run", "--time", "2h", "--", "true")
        assert planned.code == exits.REFUSED and "this can never start: quota short" in planned.error
    finally:
        assert corral("quota", "delete", "short").code == 0
