"""The blocking client. Every method is one call of the REST face; what waits or follows outlives a connection."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import httpx

from corral.client import calls, explained, host, shapes
from corral.client.ahead import Reservation
from corral.client.calls import Call
from corral.client.clearing import CarriedOut, Defragmentation
from corral.client.config import Connection, resolve
from corral.client.errors import AnsweredNotFound
from corral.client.following import PATIENCE_S, Followed, FollowedEvents, FollowedLog, LogChunk, OnRetry, Patience
from corral.client.http import (
    NEVER_SENT,
    broken,
    content_of,
    cut_off,
    options_of,
    pauses_of,
    request_of,
    require_success,
)
from corral.client.sse import EventReader
from corral.model.faults import Fault

T = TypeVar("T")


class Client:
    """A control plane. Without arguments, the one that `corral` on the command line would use.

    What waits or follows outlives a connection: it tries again for `patience_s` seconds from the first failure on, and
    raises `Unreachable` after them. `on_retry` hears of each failure, and how many seconds there was nothing else.
    """

    def __init__(
        self,
        url: str | None = None,
        token: str | None = None,
        *,
        config: Path | None = None,
        transport: httpx.BaseTransport | None = None,
        patience_s: float = PATIENCE_S,
        on_retry: OnRetry | None = None,
    ) -> None:
        self.connection: Connection = resolve(host.environment(), url=url, token=token, config=config)
        self._patience = partial(Patience, patience_s, host.now_s, on_retry)
        self._answered = False
        self._http = httpx.Client(**options_of(self.connection), transport=transport)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._http.close()

    # --- submitting

    def submit(self, fields: shapes.SessionFields, *, idempotency_key: str | None = None) -> shapes.Session:
        """Submit one session. With the same key again: the session that the first call made."""
        return self._ask(calls.submit(fields, host.key_or_new(idempotency_key)))

    def submit_batch(
        self, sessions: Sequence[shapes.SessionFields], *, idempotency_key: str | None = None
    ) -> list[shapes.Session]:
        """Submit many: all, or none."""
        return self._ask(calls.submit_batch(sessions, host.key_or_new(idempotency_key)))["sessions"]

    def plan(self, fields: shapes.SessionFields) -> explained.Plan:
        """What submitting this would meet, without submitting it."""
        return self._ask(calls.plan(fields))

    def has_blob(self, digest: str) -> bool:
        """Whether content is stored already."""
        try:
            require_success(self._send(calls.has_blob(digest)))
        except AnsweredNotFound:
            return False
        return True

    def put_blob(self, digest: str, content: Path | bytes) -> None:
        """Store content under its digest; a file is sent piece by piece."""
        require_success(self._send(calls.put_blob(digest), content))

    # --- sessions

    def get(self, session: str) -> shapes.Session:
        """One session, by id, an unambiguous beginning of it, or `last`."""
        return self._ask(calls.show(session))

    def spec(self, session: str) -> dict[str, Any]:
        """What was asked for, in full and as it is stored."""
        return self._ask(calls.story(session, "spec"))

    def sessions(self, **filters: object) -> shapes.SessionPage:
        """A page, newest first. Filters: phase, owner, project, group, name, label, members, array,
        limit, cursor."""
        return self._ask(calls.list_sessions(filters))

    def all_sessions(self, **filters: object) -> Iterator[shapes.Session]:
        """All sessions that fit, page by page."""
        while True:
            page = self.sessions(**filters)
            yield from page["sessions"]
            if page["next"] is None:
                return
            filters["cursor"] = page["next"]

    def cancel(self, session: str) -> shapes.Session:
        return self._ask(calls.act(session, "cancel"))

    def hold(self, session: str) -> shapes.Session:
        return self._ask(calls.act(session, "hold"))

    def release(self, session: str) -> shapes.Session:
        return self._ask(calls.act(session, "release"))

    def requeue(self, session: str, *, idempotency_key: str | None = None) -> shapes.Session:
        """Run it again: a live one is stopped and queued again, an ended one gets a new session. With the same key
        again it does no more."""
        return self._ask(calls.requeue(session, host.key_or_new(idempotency_key)))

    def update(self, session: str, **changes: object) -> shapes.Session:
        """Change priority and group while it is pending; time and preemptible (a bool) until it ends; of an array also
        throttle, how many members may live at once (0: all)."""
        return self._ask(calls.update(session, changes))

    def history(self, session: str) -> list[shapes.Event]:
        """Everything that happened to it, in order and without gaps."""
        return self._ask(calls.story(session, "history"))

    def attempts(self, session: str) -> list[shapes.Attempt]:
        """Every try that got room, oldest first."""
        return self._ask(calls.story(session, "attempts"))

    def launches(self, session: str) -> shapes.Launches:
        """The chain of records that shows each launch began at most once."""
        return self._ask(calls.story(session, "launches"))

    def explain(self, session: str) -> explained.Explanation:
        """Why it does not start, or what is still missing until it runs."""
        return self._ask(calls.story(session, "explain"))

    def wait(self, session: str, timeout_s: float | None = None) -> shapes.Session:
        """The session once it has ended, or as it is when the time is out."""
        patience = self._patience(worked=self._answered)
        deadline = None if timeout_s is None else host.now_s() + timeout_s
        while True:
            left_s = calls.LONGEST_POLL_S if deadline is None else deadline - host.now_s()
            try:
                found = self._ask(calls.wait(session, max(0.0, min(left_s, calls.LONGEST_POLL_S))))
            except Fault as fault:
                host.pause(patience.pause_s(fault))
                continue
            patience.went_well()
            if found["phase"] == "ended" or (deadline is not None and host.now_s() >= deadline):
                return found

    # --- output and events

    def logs(
        self, session: str, *, rank: int = 0, stream: str = "stdout", offset: int = 0, attempt: int | None = None
    ) -> Iterator[bytes]:
        """The output of one rank up to now, in pieces."""
        with self._stream(calls.read_logs(session, rank, stream, offset, attempt)) as pieces:
            yield from pieces

    def follow_logs(
        self, session: str, *, rank: int = 0, stream: str = "stdout", offset: int = 0, attempt: int | None = None
    ) -> Iterator[LogChunk]:
        """The output of one rank of one attempt (the newest) as it comes, to its end."""
        return self._follow(FollowedLog(session, rank, stream, offset, attempt))

    def follow_events(self, after: int = 0) -> Iterator[shapes.Event]:
        """Every event after the given one, then each as it is committed, without end."""
        return self._follow(FollowedEvents(after))

    def events(self, after: int = 0, limit: int = 1000) -> list[shapes.Event]:
        """A page of events, oldest first."""
        return self._ask(calls.page_of_events(after, limit))["events"]

    # --- the cluster

    def nodes(self) -> list[shapes.Node]:
        return self._ask(calls.get(f"{calls.API}/nodes"))

    def node(self, name: str) -> shapes.NodeDetail:
        """One node, its devices and the sessions that live on it."""
        return self._ask(calls.node(name))

    def confirm_dead(self, node: str) -> shapes.Freed:
        """Give back the room of a node that is gone for good. Of one that lives, this can start a session twice."""
        return self._ask(calls.confirm_dead(node))

    def devices(self) -> list[shapes.Device]:
        return self._ask(calls.get(f"{calls.API}/devices"))

    def groups(self) -> list[shapes.Group]:
        return self._ask(calls.get(f"{calls.API}/groups"))

    def group(self, name: str) -> shapes.GroupDetail:
        """One resource group, and who has which share of it."""
        return self._ask(calls.group(name))

    def create_group(self, name: str, **fields: object) -> shapes.Group:
        """Make a group. Fields: order, order_options, placement, placement_options, options."""
        return self._ask(calls.create_group({"name": name, **fields}))

    def change_group(self, name: str, **changes: object) -> shapes.Group:
        """Change policies and options, from the next pass on. With `version`, only while it is at that one."""
        return self._ask(calls.change_group(name, changes))

    def delete_group(self, name: str) -> shapes.Group:
        """Delete a group without nodes and live sessions; the group as it was last."""
        return self._ask(calls.delete_group(name))

    def pause_group(self, name: str) -> shapes.Group:
        """Start nothing new in it; what has room goes on."""
        return self._ask(calls.act_on_group(name, "pause"))

    def resume_group(self, name: str) -> shapes.Group:
        return self._ask(calls.act_on_group(name, "resume"))

    def schedule_group(self, name: str) -> shapes.Group:
        """Have every manager look now whose turn it is."""
        return self._ask(calls.act_on_group(name, "schedule"))

    def group_history(self, name: str) -> list[shapes.Event]:
        """Every change of it, oldest first."""
        return self._ask(calls.group(name, "history"))

    def defragmentation(
        self, *, moves: int = 10, moves_per_goal: int = 3, gpus: int = 0, count: int = 1, group: str | None = None
    ) -> Defragmentation:
        """Who would have to move so that those that wait, and so many GPUs of one node, find room. Nobody is moved."""
        asked = {"moves": moves, "moves_per_goal": moves_per_goal, "gpus": gpus, "count": count, "group": group}
        return self._ask(calls.defragmentation(asked))

    def defragment(
        self, *, moves: int = 10, moves_per_goal: int = 3, gpus: int = 0, count: int = 1, group: str | None = None
    ) -> CarriedOut:
        """Plan, and have those move: each is stopped, and goes on in room that is kept for it."""
        asked = {"moves": moves, "moves_per_goal": moves_per_goal, "gpus": gpus, "count": count, "group": group}
        return self._ask(calls.defragment(asked))

    def reservations(self, every: bool = False) -> list[Reservation]:
        """Those that are not over, soonest first; `every`: all that were ever made, newest first."""
        return self._ask(calls.reservations(every))

    def reservation(self, name: str) -> Reservation:
        return self._ask(calls.reservation(name))

    def create_reservation(self, name: str, **fields: object) -> Reservation:
        """Keep nodes free. Fields: begin, end or length, node (a list) or group with nodes, owner and project (lists:
        whose sessions may start there), reason."""
        return self._ask(calls.create_reservation(name, fields))

    def delete_reservation(self, name: str) -> Reservation:
        """Its nodes are for everybody again; the reservation as it was last."""
        return self._ask(calls.delete_reservation(name))

    def quotas(self) -> list[shapes.Quota]:
        """Those that one falls under, and what is used of them; for administrators, all."""
        return self._ask(calls.get(f"{calls.API}/quotas"))

    def quota(self, name: str) -> shapes.Quota:
        return self._ask(calls.quota(name))

    def set_quota(self, name: str, **fields: object) -> shapes.Quota:
        """The quota is exactly this from then on. Fields: owner, project, domain, group (`*`: each), cpus, memory,
        gpus, vram, sessions, waiting, time; with `version`, only while it is at that one."""
        return self._ask(calls.set_quota(name, fields))

    def delete_quota(self, name: str) -> shapes.Quota:
        """It limits nothing any more; the quota as it was last."""
        return self._ask(calls.delete_quota(name))

    def quota_history(self, name: str) -> list[shapes.Event]:
        """Every change of it, oldest first."""
        return self._ask(calls.quota(name, "history"))

    def policies(self) -> list[shapes.InstalledPolicy]:
        """Every order and placement policy there is, with the options it takes."""
        return self._ask(calls.get(f"{calls.API}/policies"))

    def doctor(self) -> shapes.Diagnosis:
        """Every invariant held against every row, and the state of the loops and nodes."""
        return self._ask(calls.get(f"{calls.API}/doctor"))

    def version(self) -> shapes.Version:
        return self._ask(calls.get("/version"))

    # --- how

    def _ask(self, call: Call) -> Any:
        return content_of(self.connection, self._send(call))

    def _send(self, call: Call, content: Path | bytes | None = None) -> httpx.Response:
        for pause_s in pauses_of(call):
            try:
                response = self._once(call, content)
                self._answered = True
                return response
            except (httpx.HTTPError, httpx.InvalidURL) as error:
                if pause_s is None or isinstance(error, NEVER_SENT):
                    raise broken(self.connection, error) from error
                host.pause(pause_s)
        raise AssertionError("the last try answers or raises")

    def _once(self, call: Call, content: Path | bytes | None) -> httpx.Response:
        if not isinstance(content, Path):
            return self._http.request(**request_of(call, content))
        with content.open("rb") as file:
            return self._http.request(**request_of(call, file))

    @contextmanager
    def _stream(self, call: Call) -> Generator[Iterable[bytes]]:
        try:
            with self._http.stream(**request_of(call)) as response:
                if not response.is_success:
                    response.read()
                    require_success(response)
                yield response.iter_bytes()
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise broken(self.connection, error) from error

    def _follow(self, followed: Followed[T]) -> Iterator[T]:
        patience = self._patience(worked=self._answered)
        while not followed.over:
            reader = EventReader()
            try:
                with self._stream(followed.call()) as pieces:
                    for piece in pieces:
                        for event in reader.feed(piece):
                            taken = followed.take(event)
                            if taken is not None:
                                patience.went_well()
                                yield taken
                        patience.connected()
                        if followed.over:
                            return
                raise cut_off(self.connection)
            except Fault as fault:
                host.pause(patience.pause_s(fault))
