"""Writes to sessions and their attempts, each with its lines of history in the same transaction."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Any

from corral import wire
from corral.model.begin import begin_at
from corral.model.dependency import Dependency
from corral.model.faults import Refused
from corral.model.lifecycle import Phase, Wanted
from corral.model.session import Change, Entry, KernelFact, Session, StopFor, parse_token
from corral.model.spec import UNREADABLE, SessionSpec
from corral.ports import EVENTS, Deed, NewSession, session_channel
from corral.store import array_sql, rows, sql
from corral.store.faults import Conflict
from corral.store.writes import Writes

PENDING_CHECK_S = 300.0


class SessionWrites(Writes):
    """The half of ports.Tx that is about sessions."""

    def submit(self, new: Sequence[NewSession]) -> list[Session]:
        counts = self._each(sql.SUBMIT, [self._submit_row(one) for one in new])
        ids = [one.id if count else self._already_submitted(one) for one, count in zip(new, counts, strict=True)]
        created = {one.id: one for one, count in zip(new, counts, strict=True) if count}
        self._not_of_arrays(list(created.values()))
        found = self.sessions(ids)
        self._add_events(
            [
                (id_, 1, Entry("submitted", None, Phase.PENDING, 1, one.by or f"user:{one.owner}"))
                for id_, one in created.items()
            ]
        )
        return [found[id_] for id_ in ids]

    def _submit_row(self, new: NewSession) -> dict[str, Any]:
        spec = new.spec
        text = wire.spec_to_json(spec)
        begin = 0.0 if spec.begin is None else begin_at(spec.begin, self.now)
        return {
            "id": new.id,
            "spec": text,
            "owner": new.owner,
            "now": self.now,
            "wanted": "hold" if spec.hold else "run",
            "grp": spec.group,
            "priority": spec.priority,
            "time_limit_s": spec.time_limit_s,
            "not_before": begin,
            "next_check_at": begin or self.now + PENDING_CHECK_S,
            "requeue_of": new.requeue_of,
            "project": spec.project,
            "name": spec.name,
            "labels": rows.dumps(spec.labels),
            "shape": rows.shape_name(text),
            "key": new.idempotency_key,
            "digest": new.digest,
        }

    def _not_of_arrays(self, created: Sequence[NewSession]) -> None:
        """An array's key is as taken as a session's."""
        keys = {(one.spec.project, one.idempotency_key) for one in created if one.idempotency_key is not None}
        for project, key, id_, _ in self._rows(array_sql.ARRAY_KEYS, keys=[key for _, key in keys]) if keys else ():
            if (project, key) in keys:
                raise other_request(key, id_)

    def _already_submitted(self, new: NewSession) -> str:
        found = self._rows(sql.SESSION_KEY, project=new.spec.project, key=new.idempotency_key)
        if not found:
            raise Conflict(f"session id {new.id} is taken")
        if found[0][1] not in (new.digest, *new.older):
            raise other_request(new.idempotency_key, found[0][0])
        return found[0][0]

    def write(self, changes: Sequence[Change], by: str) -> set[str]:
        counts = self._each(sql.WRITE_SESSION, [_write_row(change) for change in changes])
        taken = [change for change, count in zip(changes, counts, strict=True) if count]
        events: list[tuple[str, int, Entry]] = []
        for change in taken:
            first = change.before.seq + 1
            events += [(change.after.id, first + offset, entry) for offset, entry in enumerate(change.history)]
        self._add_events(events)
        self._write_attempts(taken)
        self.deeds.update(deed for change in taken if (deed := _deed(change)) is not None)
        ids = {change.before.id for change in taken}
        self._forget(ids)
        return ids

    def _write_attempts(self, taken: Sequence[Change]) -> None:
        started = [
            {"session": change.after.id, "attempt": change.after.attempt, "now": change.after.started_at}
            for change in taken
            if change.verdict is None and change.after.started_at and change.before.started_at is None
        ]
        ended = [self._end_row(change) for change in taken if change.verdict and change.before.phase.holds_room]
        self._all(sql.START_ATTEMPT, started)
        self._all(sql.END_ATTEMPT, ended)

    def _end_row(self, change: Change) -> dict[str, Any]:
        verdict = change.verdict
        assert verdict is not None
        reason, cause = verdict.reason, verdict.cause
        return {
            "session": change.before.id,
            "attempt": change.before.attempt,
            "now": self.now,
            "started_at": change.started_at,
            "outcome": verdict.outcome.value,
            "exit_class": verdict.exit_class.value,
            "exit_code": verdict.exit_code,
            "reason_code": reason and reason.code,
            "reason_message": reason and reason.message,
            "cause_code": cause and cause.code,
            "cause_message": cause and cause.message,
        }

    def _add_events(self, events: Sequence[tuple[str, int, Entry]]) -> None:
        if not events:
            return
        now, next_event = self.now, self._connection.next_event
        self._all(
            sql.ADD_EVENT,
            [
                {
                    "n": next_event(),
                    "now": now,
                    "session": session,
                    "seq": seq,
                    "fact": entry.fact,
                    "source": entry.source and entry.source.value,
                    "target": entry.target.value if entry.target else "",
                    "attempt": entry.attempt,
                    "by": entry.by,
                    "detail": rows.dumps(entry.detail) if entry.detail else "{}",
                }
                for session, seq, entry in events
            ],
        )
        self.hint(*(session_channel(session) for session, _, _ in events), EVENTS)

    def dispute(self, session: Session, fact: KernelFact, by: str) -> Session:
        """Keep a fact that cannot be with the session's story; answers the session with its new `seq`."""
        detail = {"token": fact.token, "kind": fact.kind.value, "why": fact.why and fact.why.code}
        entry = Entry("disputed", session.phase, session.phase, parse_token(fact.token).attempt, by, detail)
        after = session._replace(seq=session.seq + 1)
        if not self.write([Change(session, after, (entry,))], by):
            raise Conflict(f"session {session.id} moved while it was locked")
        return after

    def wait_for(self, session_id: str, needs: Sequence[Dependency]) -> None:
        self._whole(sql.OPEN_AFTER, 1, id=session_id)
        self._each(sql.ADD_DEPENDENCY, [{"session": session_id, "needs": n, "kind": kind.value} for n, kind in needs])

    def stop_waiting(self, ids: Sequence[str]) -> None:
        self._whole(sql.CLOSE_AFTER, len(ids), ids=list(ids))

    def set_spec(self, session_id: str, spec: SessionSpec) -> None:
        text = wire.spec_to_json(spec)
        self._whole(sql.SET_SPEC, 1, id=session_id, spec=text, shape=rows.shape_name(text))
        self._forget([session_id])

    def set_aside(self, session_id: str) -> str | None:
        found = self._rows(sql.RAW_SESSION, id=session_id)
        if not found:
            return None
        text, project, name, phase, wanted, stop_for = found[0]
        data = str(text).encode("utf-8", "surrogateescape")
        digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
        self._run(sql.PUT_BLOB, digest=digest, data=data, now=self.now)
        ranks = len(self.kernels([session_id]).get(session_id, []))
        spec = SessionSpec(("false",), name, project=project, nodes=max(1, ranks), requeue=False,
                           options={UNREADABLE: digest})  # fmt: skip
        told = self._rows(sql.LAST_TARGET, id=session_id)
        self._run(
            sql.SET_ASIDE,
            id=session_id,
            spec=wire.spec_to_json(spec),
            phase=phase if phase in _words(Phase) or not told else told[0][0],
            wanted=wanted if wanted in _words(Wanted) else Wanted.RUN.value,
            stop_for=stop_for if stop_for in _words(StopFor) else None,
        )
        self._forget([session_id])
        return digest

    def note_refusals(self, refusals: Mapping[str, str]) -> None:
        self._each(sql.NOTE_REFUSALS, [{"id": id_, "refused": why} for id_, why in refusals.items()])

    def mark_broken(self, session_id: str, error: str, check_at: float) -> None:
        self._run(sql.MARK_BROKEN, id=session_id, error=error, check_at=check_at)
        self._forget([session_id])

    def postpone(self, ids: Iterable[str], check_at: float) -> None:
        if listed := list(ids):
            self._run(sql.POSTPONE, ids=listed, check_at=check_at)
            self._forget(listed)


def _words(kind: type[StrEnum]) -> set[str]:
    return {word.value for word in kind}


def other_request(key: str | None, id_: str) -> Refused:
    return Refused(
        "idempotency_conflict",
        f"idempotency key {key!r} was used for another request, session {id_}; use a new key for a new request",
        subject=id_,
    )


def _write_row(change: Change) -> dict[str, Any]:
    before, columns = change.before, rows.session_columns(change.after)
    columns["old_phase"], columns["old_attempt"], columns["old_seq"] = before.phase.value, before.attempt, before.seq
    return columns


def _deed(change: Change) -> Deed | None:
    before, after = change.before, change.after
    if after.phase is Phase.ENDED and before.phase is not Phase.ENDED:
        return Deed("ended", after.outcome or "", after.exit_class or "")
    if after.preemptions > before.preemptions:
        return Deed("moved" if after.room_by is not None else "preempted")
    return None
