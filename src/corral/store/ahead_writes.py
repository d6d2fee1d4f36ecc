"""Writes of what lies ahead: reservations, and planned starts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from corral.model.reservation import ReservationRow
from corral.scheduling.snapshot import Promise
from corral.store import ahead_reads, ahead_sql, rows
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

    def note_planned(self, planned: Mapping[str, Promise], gone: Sequence[str]) -> None:
        self._each(
            ahead_sql.PUT_PLANNED,
            [
                {"session": id_, "at": one.told, "grp": one.group, "kept": ahead_reads.kept_text(one)}
                for id_, one in sorted(planned.items())
            ],
        )
        if gone:
            self._run(ahead_sql.DROP_PLANNED, ids=sorted(gone))
