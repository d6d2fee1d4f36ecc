"""corral defragment on the command line, and the SDK's call below it."""

import asyncio

import pytest

from corral.cli import exits
from corral.cli.commands.clearing import show_done
from corral.client import AsyncClient, Client
from corral.model.faults import Fault
from tests.cli.conftest import Corral
from tests.end_to_end.control_plane import Plane


def test_a_plan_is_shown(corral: Corral) -> None:
    assert corral("defragment").out == corral("defragment", "--plan").out == "Nobody waits for room.\n"
    shown = corral("defragment", "--gpus", "512").out
    assert "No move would make room for anybody." in shown and "1 goal finds no room in this way: room-1" in shown
    assert "There is room as it is; nobody has to move." in corral("defragment", "--gpus", "1").out
    assert corral("defragment", "--gpus", "512", "-o", "json").json() == {
        "moves": [], "won": [], "given_up": ["room-1"]
    }  # fmt: skip


def test_a_plan_without_moves_is_carried_out_by_moving_nobody(corral: Corral) -> None:
    assert corral("defragment", "--run").out.strip() == "Nobody waits for room."
    told = corral("defragment", "--run", "--gpus", "512", "-o", "json")
    assert told.json() == {"plan": {"moves": [], "won": [], "given_up": ["room-1"]}, "begun": [], "refused": []}
    assert told.code == 0


def test_what_has_begun_and_what_has_not_is_said() -> None:
    place = {"node": "n1", "gpus": []}
    plan = {"moves": [{"session": "s1", "here": [place], "there": [place], "goal": "s2"}], "won": [], "given_up": []}
    why = {"goal": "s3", "code": "no_room", "message": "it is taken"}
    shown = show_done({"plan": plan, "begun": ["s1"], "refused": [why]})
    assert "Asked to move: s1" in shown
    assert "No move for s3 has begun (no_room): it is taken" in shown


def test_bad_input_is_one_line_and_a_code(corral: Corral) -> None:
    failed = corral("defragment", "--group", "nowhere")
    assert (failed.code, "there is no resource group 'nowhere'" in failed.error) == (exits.NOT_FOUND, True)
    assert "`corral group list` lists them" in failed.error
    assert corral("defragment", "--moves", "0").code == exits.USAGE
    both = corral("defragment", "--plan", "--run")
    assert (both.code, both.out, "give one of them" in both.error) == (exits.USAGE, "", True)
    assert corral("defragment", "--run", "--group", "nowhere").code == exits.NOT_FOUND


def test_the_sdk_has_the_same_call(cluster: Plane) -> None:
    nothing = {"moves": [], "won": [], "given_up": []}
    with Client(cluster.url, cluster.token()) as client:
        assert client.defragmentation() == nothing
        assert client.defragment() == {"plan": nothing, "begun": [], "refused": []}
        with pytest.raises(Fault):
            client.defragmentation(moves=0)

    async def same() -> None:
        async with AsyncClient(cluster.url, cluster.token()) as client:
            assert (await client.defragmentation(gpus=512))["given_up"] == ["room-1"]
            assert (await client.defragment(gpus=512))["plan"]["given_up"] == ["room-1"]

    asyncio.run(same())
