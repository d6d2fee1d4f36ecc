"""Writes to arrays, and the making of their members' rows. Whoever makes or lets go of members has the array locked.

An array is locked before nodes and sessions are.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from corral import wire
from corral.model.array import Array
from corral.model.begin import begin_at
from corral.model.dependency import Dependency
from corral.model.lifecycle import Phase, Wanted
from corral.model.session import Entry
from corral.ports import NewSession
from corral.store import array_sql, rows, sql
from corral.store.faults import Conflict
from corral.store.session_writes import PENDING_CHECK_S, SessionWrites, other_request


class ArrayWrites(SessionWrites):
    """The part of ports.Tx that is about arrays."""

    def submit_arrays(self, new: Sequence[NewSession]) -> list[Array]:
        self._connection.lock_submits()  # so that no key is taken, and no place, once they have been looked at
        ids = [known if (known := self._known(one)) is not None else self._add(one) for one in new]
        found = self.arrays(ids)
        return [found[id_] for id_ in ids]

    def _known(self, new: NewSession) -> str | None:
        if new.idempotency_key is None:
            return None
        key, project = new.idempotency_key, new.spec.project
        rows_ = [row for row in self._rows(array_sql.ARRAY_KEYS, keys=[key]) if row[0] == project]
        found = [(row[2], row[3]) for row in rows_] or self._rows(sql.SESSION_KEY, project=project, key=key)
        if found and (found[0][1] not in (new.digest, *new.older) or not rows_):
            raise other_request(key, found[0][0])
        return found[0][0] if found else None

    def _add(self, new: NewSession) -> str:
        spec = new.spec
        indices = Array(new.id, 0, spec, new.owner, 0.0).indices
        if self.sessions([new.id]):
            raise Conflict(f"session id {new.id} is taken")
        self._run(
            array_sql.ADD_ARRAY,
            id=new.id,
            ordinal=self._connection.take_ordinals(1 + indices.size),
            spec=wire.spec_to_json(spec),
            owner=new.owner,
            now=self.now,
            wanted="hold" if spec.hold else "run",
            grp=spec.group,
            priority=spec.priority,
            time_limit_s=spec.time_limit_s,
            size=indices.size,
            throttle=indices.throttle,
            not_before=0.0 if spec.begin is None else begin_at(spec.begin, self.now),
            requeue_of=new.requeue_of,
            project=spec.project,
            name=spec.name,
            key=new.idempotency_key,
            digest=new.digest,
        )
        entry = Entry("submitted", None, None, 1, new.by or f"user:{new.owner}", {"members": indices.size})
        self._add_events([(new.id, 1, entry)])
        return new.id

    def lock_arrays(self, ids: Iterable[str]) -> dict[str, Array]:
        """These arrays as they are once nobody else can change them."""
        if listed := sorted(set(ids)):
            self._rows(array_sql.LOCK_ARRAYS, ids=listed)
            self.forget_now()
        return self.arrays(listed)

    def write_array(self, before: Array, after: Array, entry: Entry) -> Array:
        """Write a locked array with its line of history; the array as it is then."""
        reason = after.reason
        changed = after._replace(seq=before.seq + 1)
        self._whole(
            array_sql.WRITE_ARRAY,
            1,
            id=before.id,
            old_seq=before.seq,
            seq=changed.seq,
            spec=wire.spec_to_json(after.spec),
            throttle=after.indices.throttle,
            wanted=after.wanted.value,
            grp=after.group,
            priority=after.priority,
            time_limit_s=after.time_limit_s,
            ended_at=after.ended_at,
            outcome=after.outcome and after.outcome.value,
            exit_class=after.exit_class and after.exit_class.value,
            exit_code=after.exit_code,
            reason_code=reason and reason.code,
            reason_message=reason and reason.message,
            succeeded=after.succeeded,
            failed=after.failed,
        )
        self._add_events([(before.id, changed.seq, entry)])
        return changed

    def make_members(self, array: Array, places: Sequence[int], reached: int, by: str, *, turn: bool) -> list[str]:
        """Make the rows of a locked array's members in these places. With `turn` they may start, else their turn is
        still to come (`give_turns`)."""
        if places or reached > array.reached:
            self._whole(array_sql.REACH, 1, id=array.id, reached=reached, more=len(places))
        made = [self._member_row(array, place, turn=turn) for place in places]
        self._all(array_sql.ADD_MEMBER, made)
        detail = {"array": array.id}
        self._add_events([(row["id"], 1, Entry("submitted", None, Phase.PENDING, 1, by, detail)) for row in made])
        return [row["id"] for row in made]

    def _member_row(self, array: Array, place: int, *, turn: bool) -> dict[str, Any]:
        spec = array.spec
        text = wire.spec_to_json(spec)
        return {
            "ordinal": array.ordinal_at(place),
            "in_array": array.id,
            "after_open": int(not turn),
            "id": array.id_at(place),
            "spec": text,
            "owner": array.owner,
            "submitted_at": array.submitted_at,
            "wanted": Wanted.RUN.value if turn else array.wanted.value,
            "grp": array.group,
            "priority": array.priority,
            "time_limit_s": array.time_limit_s,
            "now": self.now,
            "not_before": array.not_before,
            "next_check_at": array.not_before or self.now + PENDING_CHECK_S,
            "project": spec.project,
            "name": spec.name,
            "labels": rows.dumps(spec.labels),
            "shape": rows.shape_name(text),
        }

    def give_turns(self, ids: Sequence[str]) -> int:
        """Let these members start, of a locked array; how many still could."""
        self._forget(ids)
        return sum(self._each(array_sql.GIVE_TURN, [{"id": id_} for id_ in sorted(ids)]))

    def take_turns_back(self, ids: Sequence[str]) -> None:
        """These pending members wait for their turn again, so that others have it. Of what is no member nothing."""
        self._each(array_sql.TAKE_TURN_BACK, [{"id": id_} for id_ in sorted(ids)])
        self._forget(ids)

    def array_waits_for(self, array_id: str, needs: Sequence[Dependency]) -> None:
        self._whole(array_sql.OPEN_ARRAY_AFTER, 1, id=array_id)
        self._each(sql.ADD_DEPENDENCY, [{"session": array_id, "needs": n, "kind": kind.value} for n, kind in needs])

    def array_waited(self, array_id: str) -> None:
        self._whole(array_sql.CLOSE_ARRAY_AFTER, 1, id=array_id)
