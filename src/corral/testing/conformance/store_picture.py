"""A picture that is kept from pass to pass, held against the whole at every turn."""

from __future__ import annotations

import random

from corral.ports import Store
from corral.scheduling.kept.picture import Picture
from corral.testing.builders import Play, spec
from corral.testing.conformance.loop import on_a_loop
from corral.testing.pictures import Doings, look

SEEDS, STEPS, LOOK_EVERY = 3, 60, 4


class PictureRules:
    @on_a_loop
    async def test_a_picture_is_what_is_there_whatever_happens(self, store: Store) -> None:
        chance = random.Random(1)
        doings = Doings(store, chance.randrange)
        await doings.begin()
        for number in range(SEEDS * STEPS):
            await doings.step()
            if number % LOOK_EVERY == 0:
                assert await doings.check() == [], f"after step {number}"

    @on_a_loop
    async def test_a_pass_reads_what_changed_and_no_more(self, store: Store) -> None:
        play, picture = Play(store), Picture()
        await play.join("n1")
        await play.join("n2")
        ids = await play.submit(*(spec(cpus=5) for _ in range(4)))
        await store.read("first", lambda reads: reads.snapshot(0, picture))
        kept = {node.name: node for node in picture.nodes}
        fleet = picture.fleet
        await play.place()
        await play.exchange("n1")
        seen = await store.read("look", lambda reads: look(reads, picture))
        assert seen.wrong == ()
        assert [one.id for one in picture.waiting] == ids[2:]
        assert picture.fleet is fleet, "its arrays go on"
        assert all(node is not kept[node.name] for node in picture.nodes), "both have something placed on them"

        kept = {node.name: node for node in picture.nodes}
        await play.exchange("n1")
        await store.read("again", lambda reads: reads.snapshot(0, picture))
        assert sum(node is not kept[node.name] for node in picture.nodes) <= 2

    @on_a_loop
    async def test_a_picture_of_another_database_is_made_anew(self, store: Store) -> None:
        play, picture = Play(store), Picture()
        await play.join("n1")
        (id_,) = await play.submit(spec())
        await store.read("first", lambda reads: reads.snapshot(0, picture))
        assert picture.mark is not None
        for mark in (
            picture.mark._replace(database="another"),
            picture.mark._replace(sessions=2**60),
            picture.mark._replace(nodes=2**60),
        ):
            picture.mark = mark
            seen = await store.read("look", lambda reads: look(reads, picture))
            assert (seen.wrong, [one.id for one in picture.waiting]) == ((), [id_])
