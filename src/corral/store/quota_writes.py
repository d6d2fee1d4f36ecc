"""Writes to quotas, each with its line of history in the same transaction. Quotas are locked after all else is."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from corral.model.quota import Quota
from corral.ports import EVENTS, Above
from corral.store import quota_sql, rows
from corral.store.quota_reads import quota_columns
from corral.store.writes import Writes


class QuotaWrites(Writes):
    """The part of ports.Tx that is about quotas."""

    def lock_quotas(self, names: Iterable[str]) -> None:
        if listed := sorted(set(names)):
            self._rows(quota_sql.LOCK_QUOTAS, names=listed)

    def set_quota(self, quota: Quota, above: Sequence[Above], old_version: int | None) -> bool:
        row = quota_columns(quota) | {"above": rows.dumps([[list(bucket), dict(held)] for bucket, held in above])}
        if old_version is None:
            return bool(self._run(quota_sql.ADD_QUOTA, **row))
        return bool(self._run(quota_sql.SET_QUOTA, **row, old_version=old_version))

    def drop_quota(self, name: str, old_version: int) -> bool:
        return bool(self._run(quota_sql.DROP_QUOTA, name=name, old_version=old_version))

    def set_domains(self, domains: Mapping[str, str]) -> None:
        self._each(quota_sql.SET_DOMAIN, [{"project": one, "domain": domains[one]} for one in sorted(domains)])

    def note_quota(self, name: str, version: int, fact: str, by: str, detail: Mapping[str, object]) -> None:
        line = {"name": name, "seq": version, "fact": fact, "by": by, "detail": rows.dumps(detail), "now": self.now}
        self._all(quota_sql.ADD_QUOTA_EVENT, [line | {"n": self._connection.next_event()}])
        self.hint(EVENTS)
