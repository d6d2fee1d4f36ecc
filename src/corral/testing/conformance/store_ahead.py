"""What lies ahead: reservations that nobody places against, and planned starts."""

from __future__ import annotations

from typing import Any

from corral.model.faults import Invalid, NotFound, Refused
from corral.model.lifecycle import Phase
from corral.model.reservation import AskedReservation, ReservationRow
from corral.ports import Store
from corral.reconcile import reserving
from corral.reconcile.placement import commit, new_refusals
from corral.scheduling.cycle import cycle
from corral.testing.builders import BY, Play, raising, ready, spec, whole_run
from corral.testing.conformance.loop import on_a_loop

ADMIN = "user:root"


async def reserve(store: Store, name: str = "maint", **fields: Any) -> ReservationRow:
    said: dict[str, Any] = {"begins": "now", "length": "1h", **fields}
    asked = AskedReservation(name, **said)
    return await store.tx("create reservation", lambda tx: reserving.create(tx, asked, ADMIN))


async def delete(store: Store, name: str = "maint") -> ReservationRow:
    return await store.tx("delete reservation", lambda tx: reserving.delete(tx, name, ADMIN))


class AheadRules:
    @on_a_loop
    async def test_a_reservation_keeps_its_nodes_and_is_kept_itself(self, store: Store) -> None:
        play = Play(store)
        await play.join("n1")
        made = await reserve(store, nodes=("n1",), reason="new disks")
        assert made.ends_at == made.starts_at + 3600
        assert await store.read("look", lambda reads: reads.reservations()) == [made]
        (id_,) = await play.submit(spec())
        assert await play.place() + await play.place() == 0
        (why,) = (await store.read("look", lambda reads: reads.refusals([id_])))[id_]
        assert (why["code"], why["counts"]) == ("reserved", {"nodes": 1})
        planned = await store.read("look", lambda reads: reads.planned([id_]))
        assert planned == {id_: made.ends_at}
        await delete(store)
        assert await store.read("look", lambda reads: reads.reservations()) == []
        (kept,) = await store.read("look", lambda reads: reads.all_reservations(10))
        assert (kept.deleted_by, kept.reason, kept.made_by) == (ADMIN, "new disks", ADMIN)
        assert kept.deleted_at is not None
        assert await play.place() == 1
        assert await store.read("look", lambda reads: reads.promises()) == {}
        again = await reserve(store, nodes=("n1",), begins="+1h")
        assert (again.version, made.version) == (2, 1)
        assert await play.violations() == []

    @on_a_loop
    async def test_a_reservation_made_meanwhile_stops_a_placement(self, store: Store) -> None:
        play = Play(store)
        for node in ("n1", "n2"):
            await play.join(node, cpus=1)
        short, endless, hers = await play.submit(spec(time_limit_s=60), spec(), spec(project="p"))
        snapshot = await store.read("snapshot", lambda reads: reads.snapshot(8))
        plan = cycle(snapshot)
        assert len(plan.placements) == 2
        await reserve(store, nodes=("n1", "n2"), begins="+10m", projects=("p",))
        told = new_refusals(snapshot, plan)
        assert await store.tx("place", lambda tx: commit(tx, plan, told, BY)) == 1
        assert (await play.session(short)).phase is Phase.PLACED
        assert await play.place() == 1
        assert (await play.session(hers)).phase is Phase.PLACED
        assert (await play.session(endless)).phase is Phase.PENDING

    @on_a_loop
    async def test_what_runs_into_a_reservation_is_told_and_goes_on(self, store: Store) -> None:
        play = Play(store)
        await play.join("n1")
        short, endless, hers = await play.submit_and_claim(spec(time_limit_s=60), spec(), spec(project="p"))
        await play.exchange("n1")
        await play.exchange("n1", *(ready(token) for token in await play.tokens([short, endless, hers])))
        made = await reserve(store, nodes=("n1",), begins="+10m", projects=("p",))
        found = await store.read("look", lambda reads: reserving.conflicts(reads, [made]))
        assert {key: [run.id for run in runs] for key, runs in found.items()} == {("maint", 1): [endless]}
        assert (await play.session(endless)).phase is Phase.RUNNING

    @on_a_loop
    async def test_nodes_of_a_group_are_chosen_where_least_is_in_the_way(self, store: Store) -> None:
        play = Play(store)
        for node in ("n1", "n2", "n3"):
            await play.join(node, cpus=1)
        await play.submit_and_claim(spec(on_nodes=("n1",)), spec(on_nodes=("n2",), time_limit_s=5, grace_s=0))
        assert (await reserve(store, "a", group="default", count=2, begins="+1h")).nodes == ("n2", "n3")
        with raising(Refused, "reserved"):
            await reserve(store, "b", group="default", count=2, begins="+1h")
        assert (await reserve(store, "c", group="default", count=3, begins="+3h")).nodes == ("n1", "n2", "n3")
        assert (await reserve(store, "d", group="default", begins="+5h")).nodes == ("n1", "n2", "n3")

    @on_a_loop
    async def test_what_makes_no_sense_is_refused_and_changes_nothing(self, store: Store) -> None:
        await Play(store).join("n1")
        await reserve(store, "a", nodes=("n1",), begins="+1h", owners=("ann",))
        one: dict[str, Any] = {"nodes": ("n1",)}
        wrong: list[tuple[type[Exception], str, dict[str, Any]]] = [
            (Invalid, "in_the_past", one | {"begins": "2020-01-01T00:00+00:00"}),
            (Invalid, "ends_before_it_begins", one | {"begins": "+2h", "length": None, "ends": "+1h"}),
            (Invalid, "bad_end", one | {"ends": "+1h"}),
            (Invalid, "bad_end", one | {"length": None, "ends": "soon"}),
            (Invalid, "bad_begin", one | {"begins": "soon"}),
            (Invalid, "no_nodes", {}),
            (Invalid, "contradiction", one | {"group": "default"}),
            (Invalid, "out_of_range", {"group": "default", "count": 0}),
            (Refused, "not_enough_nodes", {"group": "default", "count": 2}),
            (NotFound, "group_unknown", {"group": "none"}),
            (NotFound, "no_such_node", {"nodes": ("n1", "n9")}),
            (Invalid, "bad_name", one | {"name": "a b"}),
            (Invalid, "bad_name", one | {"owners": ("",)}),
            (Refused, "reservation_exists", one | {"name": "a", "begins": "+9h"}),
            (Refused, "reserved", one | {"begins": "+90m"}),
            (Refused, "reserved", one | {"begins": "+90m", "owners": ("bob",)}),
        ]
        for kind, code, fields in wrong:
            with raising(kind, code):
                await reserve(store, **fields)
        with raising(NotFound, "no_such_reservation"):
            await delete(store, "maint")
        assert len(await store.read("look", lambda reads: reads.reservations())) == 1
        same = await reserve(store, "b", nodes=("n1",), begins="+90m", owners=("ann",))
        assert same.owners == ("ann",)

    @on_a_loop
    async def test_a_planned_start_is_noted_and_forgotten_when_it_comes(self, store: Store) -> None:
        play = Play(store)
        await play.join("n1", cpus=2)
        (first,) = await play.submit_and_claim(spec(cpus=2, time_limit_s=100, grace_s=0))
        (second,) = await play.submit(spec(cpus=2))
        await play.place()
        await play.place()
        (running,) = await store.read("look", lambda reads: reads.running(["default"]))
        assert running.ends_at is not None
        assert await store.read("look", lambda reads: reads.planned([second])) == {second: running.ends_at}
        await play.exchange("n1")
        (token,) = await play.tokens([first])
        await play.exchange("n1", *whole_run(token))
        assert await play.place() == 1
        assert await store.read("look", lambda reads: reads.promises()) == {}

    @on_a_loop
    async def test_a_planned_start_of_one_that_was_cancelled_is_shown_to_nobody(self, store: Store) -> None:
        play = Play(store)
        await play.join("n1", cpus=2)
        await play.submit_and_claim(spec(cpus=2, time_limit_s=100))
        second, third = await play.submit(spec(cpus=2), spec(cpus=2, time_limit_s=50))
        await play.place()
        await play.place()
        await play.cancel(second)
        assert await store.read("look", lambda reads: reads.planned([second])) == {}
        for _ in range(2):  # who runs is read once somebody was refused
            await play.place()
        assert set(await store.read("look", lambda reads: reads.promises())) == {third}
