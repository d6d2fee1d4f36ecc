"""corral reservation, planned starts and estimates on the command line, and the SDK's calls below them."""

import asyncio
from datetime import datetime

import pytest

from corral.cli import exits
from corral.client import AsyncClient, Client
from corral.model.faults import NotFound, Refused
from tests.cli.conftest import Corral
from tests.end_to_end.control_plane import Plane


def node_of(corral: Corral) -> str:
    return corral("nodes", "-o", "name").out.split()[0]


def test_create_list_show_delete(corral: Corral) -> None:
    node = node_of(corral)
    made = corral(
        "reservation", "create", "maint", "--node", node, "--begin", "+2d", "--for", "2h", "--reason", "new disks",
        "--owner", "eve", "--project", "vision", "-o", "json",
    ).json()  # fmt: skip
    try:
        assert (made["state"], made["nodes"], made["owners"], made["projects"]) == (
            "ahead",
            [node],
            ["eve"],
            ["vision"],
        )
        listed = corral("reservation", "list").out.splitlines()
        assert [line.split()[0] for line in listed] == ["NAME", "maint"]
        assert "eve, project vision" in listed[1] and "new disks" in listed[1]
        shown = corral("reservation", "show", "maint").out
        assert node in shown and "conflicts" in shown and "none" in shown
    finally:
        assert corral("reservation", "delete", "maint", "-o", "name").line == "maint"
    assert corral("reservation", "list", "-o", "name").out == ""
    assert "deleted" in corral("reservation", "list", "--all").out
    assert "user:" in corral("reservation", "list", "--all", "-o", "wide").out


def test_times_are_those_where_the_caller_is(corral: Corral) -> None:
    made = corral("reservation", "create", "m", "--group", "default", "--begin", "18:00", "--for", "1h", "-o", "json")
    try:
        asked = datetime.now().astimezone().replace(hour=18, minute=0, second=0, microsecond=0)
        begins = datetime.fromisoformat(made.json()["starts_at"])
        assert begins.astimezone().hour == 18 and abs((begins - asked).days) <= 1
    finally:
        corral("reservation", "delete", "m")


def test_bad_input_is_one_line_and_a_code(corral: Corral) -> None:
    node = node_of(corral)
    for words, part in (
        (("create", "m", "--node", node), "when it ends"),
        (("create", "m", "--node", node, "--for", "1h", "--end", "+2h"), "one of --end and --for"),
        (("create", "m", "--for", "1h"), "which nodes"),
        (("create", "m", "--for", "1h", "--node", node, "--begin", ""), "--begin ''"),
        (("create", "m", "--for", "", "--node", node), "is not a duration"),
        (("create", "m", "--for", "1h", "--node", "nowhere"), "there is no node 'nowhere'"),
        (("create", "m", "--for", "1h", "--node", node, "--begin", "yesterday"), "--begin 'yesterday'"),
        (("create", "m", "--for", "1h", "--node", node, "--begin", "2020-01-01T00:00+00:00"), "in the past"),
        (("create", "m", "--end", "+1h", "--node", node, "--begin", "+2h"), "must end after it begins"),
        (("create", "m", "--for", "1h", "--group", "default", "--nodes", "99"), "has 1 node, not 99"),
        (("create", "m", "--for", "1h", "--group", "default", "--nodes", "0"), "0 is not in the range"),
        (("create", "a b", "--for", "1h", "--node", node), "letters, digits"),
        (("show", "nobody"), "there is no reservation 'nobody'"),
        (("delete", "a/b"), "there is no reservation 'a/b'"),
    ):
        failed = corral("reservation", *words)
        assert failed.code in (exits.USAGE, exits.NOT_FOUND, exits.REFUSED), words
        assert part in failed.error, words
    assert corral("reservation", "list", "-o", "json").json() == []


def test_what_would_run_into_a_reservation_says_so_and_what_to_do(corral: Corral) -> None:
    assert corral("reservation", "create", "soon", "--group", "default", "--begin", "+1h", "--for", "1h").code == 0
    try:
        plan = corral("submit", "--dry-run", "--time", "2h", "--", "true")
        assert "reserved from" in plan.out and "(soon)" in plan.out
        assert "with --time 59m it would start now" in plan.out
        assert "estimated start" in plan.out
        id_ = corral("submit", "-o", "name", "--time", "2h", "--", "true").line
        told = corral("explain", id_).out
        assert "reserved" in told and "at the latest" in told
        assert "if everybody takes all of its time limit" in told or "as such sessions did lately" in told
        ran = corral("run", "--time", "10m", "--", "echo", "through")
        assert (ran.code, ran.out.strip()) == (0, "through")
        assert corral("cancel", id_).code == 0
    finally:
        assert corral("reservation", "delete", "soon").code == 0


def test_the_sdk_has_the_same_calls(cluster: Plane) -> None:
    fields = {"group": "default", "nodes": 1, "begin": "+2d", "length": "1h"}
    with Client(cluster.url, cluster.token()) as client:
        made = client.create_reservation("one", **fields)
        assert client.reservation("one") == made
        assert client.reservations() == [made]
        with pytest.raises(Refused):
            client.create_reservation("one", **fields)
        assert client.delete_reservation("one") == made
        with pytest.raises(NotFound):
            client.reservation("one")
        assert client.reservations(every=True)[0]["state"] == "deleted"

    async def same() -> None:
        async with AsyncClient(cluster.url, cluster.token()) as client:
            made = await client.create_reservation("two", **fields)
            assert await client.reservation("two") == made
            assert await client.reservations() == [made]
            assert await client.delete_reservation("two") == made

    asyncio.run(same())
