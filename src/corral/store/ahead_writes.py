"""Writes of what lies ahead: reservations, and planned starts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from corral.model.reservation import ReservationRow
from corral.scheduling.plan import PlannedStart
from corral.store import ahead_sql, rows
from corral.store.writes import Writes


class AheadWrites(Writes):
    """The part of ports.Tx that is about what lies ahead."""

    def add_reservation(self, new: ReservationRow) -> bool:
        row = {
            "name": new.name,
            "version": new.version,
            "starts_at": new.starts_at,
            "ends_at": new.ends_at,
            "nodes": rows.dumps(new.nodes),
            "owners": rows.dumps(new.owners),
            "projects": rows.dumps(new.projects),
            "reason": new.reason,
            "by": new.made_by,
        }
        return bool(self._run(ahead_sql.ADD_RESERVATION, **row, now=self.now))

    def drop_reservation(self, name: str, version: int, by: str) -> bool:
        return bool(self._run(ahead_sql.DROP_RESERVATION, name=name, version=version, by=by, now=self.now))

    def note_planned(self, planned: Mapping[str, PlannedStart], gone: Sequence[str]) -> None:
        self._each(
            ahead_sql.PUT_PLANNED,
            [{"session": id_, "at": planned[id_].at, "grp": planned[id_].group} for id_ in sorted(planned)],
        )
        if gone:
            self._run(ahead_sql.DROP_PLANNED, ids=sorted(gone))
