"""The loops of one manager, by name. Any number of managers run the same ones against one database."""

from __future__ import annotations

from collections.abc import Sequence

from corral.model.faults import Fault
from corral.ports import CLAIM, MEMBERS, PLACE, SETTLE, Clock, Member, Store, Tx
from corral.reconcile.agenda import Agenda
from corral.reconcile.dependencies import Pace
from corral.reconcile.loop import Loop
from corral.reconcile.nodes import nodes_pass
from corral.reconcile.placement import Look, claim_pass, no_look, place_pass
from corral.reconcile.sessions import sweep_due
from corral.reconcile.spread import BEAT_ALONE_S, INTERVAL_S, Spread
from corral.scheduling.kept.picture import Picture

KEEP_OPERATIONS_S = 3600.0
COUNT_LIMIT = 2000  # ended holdings counted in one transaction, while others wait for it


def manager_loops(
    store: Store,
    member: str,
    url: str,
    clock: Clock,
    *,
    claiming: bool = True,
    interval_s: float = INTERVAL_S,
    look_at: Look = no_look,
) -> Sequence[Loop]:
    """placement, claims, sessions, nodes, members: each wakes by hint and by sweep, and placement takes turns with
    other managers. `claiming`: placing claims at once, and the claims loop is left with what another manager only
    placed. `look_at` is shown each plan."""
    by = f"manager:{member}"
    picture, pace, agenda = Picture(), Pace(clock.mono), Agenda(clock.mono)
    spread = Spread(member, clock.mono, interval_s)

    async def place() -> None:
        try:
            await place_pass(store, by, claiming=claiming, look_at=look_at, picture=picture, pace=pace, agenda=agenda)
        except Fault:
            raise
        except Exception:
            picture.lose_track()
            raise

    def until_turn() -> float:
        return min(spread.until_tick(), pace.until_due(), agenda.until_due())

    async def claim() -> None:
        await claim_pass(store, by)

    async def sessions() -> None:
        await sweep_due(store, by)

    async def nodes() -> None:
        await nodes_pass(store, by)

    async def members() -> None:
        spread.learn(*await store.tx("seen member", lambda tx: _beat(tx, member, url)))

    async def prune() -> None:
        await store.tx("prune", lambda tx: tx.prune(tx.now - KEEP_OPERATIONS_S))
        while await store.tx("count usage", lambda tx: tx.count_usage(COUNT_LIMIT)) >= COUNT_LIMIT:
            pass

    return (
        Loop("placement", (PLACE,), interval_s, place, until_turn),
        Loop("claims", (CLAIM,), 2.0, claim),
        Loop("sessions", (SETTLE,), 1.0, sessions),
        Loop("nodes", (), 3.0, nodes),
        Loop("members", (MEMBERS,), BEAT_ALONE_S, members, spread.until_beat),
        Loop("pruning", (), 60.0, prune),
    )


def _beat(tx: Tx, member: str, url: str) -> tuple[float, Sequence[Member]]:
    """Be seen, and see the others and when; who is new wakes them, so that they make room between their turns."""
    before = tx.members()
    tx.seen_member(member, url)
    if all(one.id != member for one in before):
        tx.hint(MEMBERS, PLACE)
    return tx.now, before
