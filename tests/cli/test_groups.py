"""corral group and corral queue, and the SDK's calls below them, against a real control plane."""

import asyncio
from collections.abc import Iterator

import pytest

from corral.cli import exits
from corral.client import AsyncClient, Client
from corral.model.faults import NotFound, Refused
from tests.cli.conftest import Corral
from tests.end_to_end.control_plane import Plane


@pytest.fixture
def gpu(corral: Corral) -> Iterator[str]:
    assert corral("group", "create", "gpu", "--order", "priority", "--order-option", "ageing=2").code == 0
    yield "gpu"
    corral("group", "delete", "gpu")


def test_create_set_show_delete(corral: Corral) -> None:
    made = corral("group", "create", "gpu", "--order", "fair-share", "--order-option", "half_life=14d", "-o", "json")
    assert made.json()["order_options"]["half_life"] == 14 * 86400
    assert corral("group", "set", "gpu", "--order-option", "owner_weights=ann:2,bob:1", "-o", "name").line == "gpu"
    shown = corral("group", "show", "gpu").out
    assert (
        "half_life=14d" in shown
        and "preemption_min_runtime=1m" in shown
        and "owner_weights=ann:2,bob:1" in shown
        and "version        2" in shown
    )
    assert corral("group", "set", "gpu", "--order-option", "half_life=").code == 0
    assert corral("group", "show", "gpu", "-o", "json").json()["group"]["order_options"]["half_life"] == 7 * 86400
    assert "gpu" in corral("group", "list", "-o", "name").out.split()
    assert [line.split()[0] for line in corral("group", "list").out.splitlines()] == ["NAME", "default", "gpu"]
    assert corral("group", "delete", "gpu").code == 0
    facts = [one["fact"] for one in corral("group", "history", "gpu", "-o", "json").json()]
    assert facts[-4:] == ["group_created", "group_set", "group_set", "group_deleted"]
    told = corral("group", "history", "gpu").out
    assert "group_deleted" in told and "half_life=14d" in told


def test_bad_input_is_one_line_and_a_code(corral: Corral, gpu: str) -> None:
    before = corral("group", "show", gpu, "-o", "json").json()["group"]["version"]
    for words, part in (
        (("group", "create", gpu), "already"),
        (("group", "create", "a b"), "letters, digits"),
        (("group", "set", gpu, "--order", "best"), "'best' is not installed; there are fifo"),
        (("group", "set", gpu, "--order-option", "half_life=7d"), "has no option 'half_life'; it takes ageing"),
        (("group", "set", gpu, "--order-option", "ageing=fast"), "it takes a number"),
        (
            ("group", "set", gpu, "--option", "backfill_patience=soon"),
            "a duration like 90s, 12h or 7d between 0s and 11574d",
        ),
        (("group", "set", gpu, "--order-option", "ageing"), "is not NAME=VALUE"),
        (("group", "set", gpu, "--order-option", "ageing=1", "--order-option", "ageing=2"), "given twice"),
        (("group", "set", gpu), "say what to change"),
        (("group", "set", gpu, "--version", "99", "--order", "fifo"), ", not 99; look again"),
        (("group", "show", "nobody"), "there is no resource group 'nobody'"),
        (("group", "show", "a/b"), "there is no resource group 'a/b'"),
        (("group", "delete", "default"), "has nodes"),
        (("queue", "pause", "nobody"), "there is no resource group 'nobody'"),
        (("queue", "schedule", "nobody"), "there is no resource group 'nobody'"),
    ):
        failed = corral(*words)
        assert failed.code in (exits.USAGE, exits.NOT_FOUND, exits.REFUSED), words
        assert part in failed.error, words
    assert corral("group", "show", gpu, "-o", "json").json()["group"]["version"] == before


def test_a_paused_queue_starts_nothing_until_it_is_resumed(corral: Corral) -> None:
    assert "paused" in corral("queue", "pause", "default").out
    try:
        id_ = corral("submit", "-q", "--", "true").line
        told = corral("explain", id_).out
        assert "group_paused" in told
    finally:
        assert "open" in corral("queue", "resume", "default").out
    assert corral("wait", id_).code == 0


def test_priority_counts_once_the_group_goes_by_it(corral: Corral, client: Client) -> None:
    client.change_group("default", order="priority")
    try:
        client.pause_group("default")
        low = client.submit({"command": ["true"], "cpus": 8})["id"]
        high = client.submit({"command": ["true"], "cpus": 8, "priority": 5})["id"]
        assert client.explain(high)["position"] == 1
        assert client.explain(low)["position"] == 2
        client.resume_group("default")
        first, second = (client.wait(id_, 30)["started_at"] or "never" for id_ in (high, low))
        assert first < second
    finally:
        client.resume_group("default")
        client.change_group("default", order="fifo")


def test_policies_are_listed(corral: Corral) -> None:
    names = corral("group", "policies", "-o", "name").out.split()
    assert {"order.fifo", "order.drf", "placement.pack"} <= set(names)
    assert "half_life=7d" in corral("group", "policies").out


def test_the_sdk_both_ways(cluster: Plane, client: Client) -> None:
    made = client.create_group("sdk", order="drf", order_options={"weights": {"ann": 2}})
    assert (made["order"], made["version"]) == ("drf", 1)
    with pytest.raises(Refused):
        client.create_group("sdk")

    async def the_rest() -> None:
        async with AsyncClient(cluster.url, cluster.token()) as corral:
            assert (await corral.change_group("sdk", order="lifo"))["version"] == 2
            assert (await corral.pause_group("sdk"))["paused"]
            assert (await corral.schedule_group("sdk"))["paused"], "it changes nothing"
            assert not (await corral.resume_group("sdk"))["paused"]
            assert (await corral.group("sdk"))["shares"] == []
            assert "sdk" in [one["name"] for one in await corral.groups()]
            assert len(await corral.policies()) > 7
            await corral.delete_group("sdk")
            assert [one["seq"] for one in await corral.group_history("sdk")][-1] == 5
            with pytest.raises(NotFound):
                await corral.group("sdk")

    asyncio.run(the_rest())
    assert client.group("default")["group"]["nodes"] == 1
