"""Another process looks into a database while its manager has it open: it sees what is there and changes nothing."""

import asyncio
from pathlib import Path

import psycopg
import pytest

from corral.clock import SystemClock
from corral.model.faults import Invalid, Refused, Unavailable
from corral.model.node import Device
from corral.ports import Reads, Store
from corral.sim.stored import cluster_in
from corral.store import look
from corral.testing.builders import Play, spec


def test_it_sees_what_a_manager_has_open(store: Store, database_url: str) -> None:
    async def submit() -> str:
        await Play(store).join("n1", gpus=2)
        (made,) = await Play(store).submit(spec())
        return made

    made = asyncio.run(submit())
    found = look(database_url, SystemClock(), lambda reads: reads.sessions([made]))
    assert list(found) == [made]

    def nodes_and_devices(reads: Reads) -> tuple[list[str], list[Device]]:
        return list(reads.nodes()), reads.devices()

    names, devices = look(database_url, SystemClock(), nodes_and_devices)
    assert names == ["n1"] and len(devices) == 2
    cluster = look(database_url, SystemClock(), lambda reads: cluster_in(reads, None, with_nodes=True))
    machines = cluster.machines()
    assert cluster.sessions == "[]" and ([one.name for one in machines.nodes], machines.gpus) == (["n1"], 2)


def test_it_can_change_nothing(store: Store, database_url: str) -> None:
    def insist(reads: Reads) -> None:
        reads._connection.run("UPDATE session SET priority = 1")  # pyright: ignore

    with pytest.raises((Unavailable, psycopg.Error), match=r"readonly database|read-only transaction"):
        look(database_url, SystemClock(), insist)


def test_a_database_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="no database"):
        look(f"sqlite://{tmp_path}/none.db", SystemClock(), lambda reads: reads.nodes())
    assert not list(tmp_path.iterdir())
    with pytest.raises(Invalid):
        look("mysql://here", SystemClock(), lambda reads: reads.nodes())
