"""The same client for asyncio: every method of `sync.Client`, awaited. A test holds the two alike."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
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
PIECE_BYTES = 256 * 1024


class AsyncClient:
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
        transport: httpx.AsyncBaseTransport | None = None,
        patience_s: float = PATIENCE_S,
        on_retry: OnRetry | None = None,
    ) -> None:
        self.connection: Connection = resolve(host.environment(), url=url, token=token, config=config)
        self._patience = partial(Patience, patience_s, host.now_s, on_retry)
        self._answered = False
        self._http = httpx.AsyncClient(**options_of(self.connection), transport=transport)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        await self._http.aclose()

    # --- submitting

    async def submit(self, fields: shapes.SessionFields, *, idempotency_key: str | None = None) -> shapes.Session:
        """Submit one session. With the same key again: the session that the first call made."""
        return await self._ask(calls.submit(fields, host.key_or_new(idempotency_key)))

    async def submit_batch(
        self, sessions: Sequence[shapes.SessionFields], *, idempotency_key: str | None = None
    ) -> list[shapes.Session]:
        """Submit many: all, or none."""
        answer = await self._ask(calls.submit_batch(sessions, host.key_or_new(idempotency_key)))
        return answer["sessions"]

    async def plan(self, fields: shapes.SessionFields) -> explained.Plan:
        """What submitting this would meet, without submitting it."""
        return await self._ask(calls.plan(fields))

    async def has_blob(self, digest: str) -> bool:
        """Whether content is stored already."""
        try:
            require_success(await self._send(calls.has_blob(digest)))
        except AnsweredNotFound:
            return False
        return True

    async def put_blob(self, digest: str, content: Path | bytes) -> None:
        """Store content under its digest; a file is sent piece by piece."""
        require_success(await self._send(calls.put_blob(digest), content))

    # --- sessions

    async def get(self, session: str) -> shapes.Session:
        """One session, by id, an unambiguous beginning of it, or `last`."""
        return await self._ask(calls.show(session))

    async def spec(self, session: str) -> dict[str, Any]:
        """What was asked for, in full and as it is stored."""
        return await self._ask(calls.story(session, "spec"))

    async def sessions(self, **filters: object) -> shapes.SessionPage:
        """A page, newest first. Filters: phase, owner, project, group, name, label, members, array,
        limit, cursor."""
        return await self._ask(calls.list_sessions(filters))

    async def all_sessions(self, **filters: object) -> AsyncIterator[shapes.Session]:
        """All sessions that fit, page by page."""
        while True:
            page = await self.sessions(**filters)
            for session in page["sessions"]:
                yield session
            if page["next"] is None:
                return
            filters["cursor"] = page["next"]

    async def cancel(self, session: str) -> shapes.Session:
        return await self._ask(calls.act(session, "cancel"))

    async def hold(self, session: str) -> shapes.Session:
        return await self._ask(calls.act(session, "hold"))

    async def release(self, session: str) -> shapes.Session:
        return await self._ask(calls.act(session, "release"))

    async def requeue(self, session: str, *, idempotency_key: str | None = None) -> shapes.Session:
        """Run it again: a live one is stopped and queued again, an ended one gets a new session. With the same key
        again it does no more."""
        return await self._ask(calls.requeue(session, host.key_or_new(idempotency_key)))

    async def update(self, session: str, **changes: object) -> shapes.Session:
        """Change priority and group while it is pending; time and preemptible (a bool) until it ends; of an array also
        throttle, how many members may live at once (0: all)."""
        return await self._ask(calls.update(session, changes))

    async def history(self, session: str) -> list[shapes.Event]:
        """Everything that happened to it, in order and without gaps."""
        return await self._ask(calls.story(session, "history"))

    async def attempts(self, session: str) -> list[shapes.Attempt]:
        """Every try that got room, oldest first."""
        return await self._ask(calls.story(session, "attempts"))

    async def launches(self, session: str) -> shapes.Launches:
        """The chain of records that shows each launch began at most once."""
        return await self._ask(calls.story(session, "launches"))

    async def explain(self, session: str) -> explained.Explanation:
        """Why it does not start, or what is still missing until it runs."""
        return await self._ask(calls.story(session, "explain"))

    async def wait(self, session: str, timeout_s: float | None = None) -> shapes.Session:
        """The session once it has ended, or as it is when the time is out."""
        patience = self._patience(worked=self._answered)
        deadline = None if timeout_s is None else host.now_s() + timeout_s
        while True:
            left_s = calls.LONGEST_POLL_S if deadline is None else deadline - host.now_s()
            try:
                found = await self._ask(calls.wait(session, max(0.0, min(left_s, calls.LONGEST_POLL_S))))
            except Fault as fault:
                await host.pause_async(patience.pause_s(fault))
                continue
            patience.went_well()
            if found["phase"] == "ended" or (deadline is not None and host.now_s() >= deadline):
                return found

    # --- output and events

    async def logs(
        self, session: str, *, rank: int = 0, stream: str = "stdout", offset: int = 0, attempt: int | None = None
    ) -> AsyncIterator[bytes]:
        """The output of one rank up to now, in pieces."""
        async with self._stream(calls.read_logs(session, rank, stream, offset, attempt)) as pieces:
            async for piece in pieces:
                yield piece

    def follow_logs(
        self, session: str, *, rank: int = 0, stream: str = "stdout", offset: int = 0, attempt: int | None = None
    ) -> AsyncIterator[LogChunk]:
        """The output of one rank of one attempt (the newest) as it comes, to its end."""
        return self._follow(FollowedLog(session, rank, stream, offset, attempt))

    def follow_events(self, after: int = 0) -> AsyncIterator[shapes.Event]:
        """Every event after the given one, then each as it is committed, without end."""
        return self._follow(FollowedEvents(after))

    async def events(self, after: int = 0, limit: int = 1000) -> list[shapes.Event]:
        """A page of events, oldest first."""
        return (await self._ask(calls.page_of_events(after, limit)))["events"]

    # --- the cluster

    async def nodes(self) -> list[shapes.Node]:
        return await self._ask(calls.get(f"{calls.API}/nodes"))

    async def node(self, name: str) -> shapes.NodeDetail:
        """One node, its devices and the sessions that live on it."""
        return await self._ask(calls.node(name))

    async def confirm_dead(self, node: str) -> shapes.Freed:
        """Give back the room of a node that is gone for good. Of one that lives, this can start a session twice."""
        return await self._ask(calls.confirm_dead(node))

    async def devices(self) -> list[shapes.Device]:
        return await self._ask(calls.get(f"{calls.API}/devices"))

    async def groups(self) -> list[shapes.Group]:
        return await self._ask(calls.get(f"{calls.API}/groups"))

    async def group(self, name: str) -> shapes.GroupDetail:
        """One resource group, and who has which share of it."""
        return await self._ask(calls.group(name))

    async def create_group(self, name: str, **fields: object) -> shapes.Group:
        """Make a group. Fields: order, order_options, placement, placement_options, options."""
        return await self._ask(calls.create_group({"name": name, **fields}))

    async def change_group(self, name: str, **changes: object) -> shapes.Group:
        """Change policies and options, from the next pass on. With `version`, only while it is at that one."""
        return await self._ask(calls.change_group(name, changes))

    async def delete_group(self, name: str) -> shapes.Group:
        """Delete a group without nodes and live sessions; the group as it was last."""
        return await self._ask(calls.delete_group(name))

    async def pause_group(self, name: str) -> shapes.Group:
        """Start nothing new in it; what has room goes on."""
        return await self._ask(calls.act_on_group(name, "pause"))

    async def resume_group(self, name: str) -> shapes.Group:
        return await self._ask(calls.act_on_group(name, "resume"))

    async def schedule_group(self, name: str) -> shapes.Group:
        """Have every manager look now whose turn it is."""
        return await self._ask(calls.act_on_group(name, "schedule"))

    async def group_history(self, name: str) -> list[shapes.Event]:
        """Every change of it, oldest first."""
        return await self._ask(calls.group(name, "history"))

    async def defragmentation(
        self, *, moves: int = 10, moves_per_goal: int = 3, gpus: int = 0, count: int = 1, group: str | None = None
    ) -> Defragmentation:
        """Who would have to move so that those that wait, and so many GPUs of one node, find room. Nobody is moved."""
        asked = {"moves": moves, "moves_per_goal": moves_per_goal, "gpus": gpus, "count": count, "group": group}
        return await self._ask(calls.defragmentation(asked))

    async def defragment(
        self, *, moves: int = 10, moves_per_goal: int = 3, gpus: int = 0, count: int = 1, group: str | None = None
    ) -> CarriedOut:
        """Plan, and have those move: each is stopped, and goes on in room that is kept for it."""
        asked = {"moves": moves, "moves_per_goal": moves_per_goal, "gpus": gpus, "count": count, "group": group}
        return await self._ask(calls.defragment(asked))

    async def reservations(self, every: bool = False) -> list[Reservation]:
        """Those that are not over, soonest first; `every`: all that were ever made, newest first."""
        return await self._ask(calls.reservations(every))

    async def reservation(self, name: str) -> Reservation:
        return await self._ask(calls.reservation(name))

    async def create_reservation(self, name: str, **fields: object) -> Reservation:
        """Keep nodes free. Fields: begin, end or length, node (a list) or group with nodes, owner and project (lists:
        whose sessions may start there), reason."""
        return await self._ask(calls.create_reservation(name, fields))

    async def delete_reservation(self, name: str) -> Reservation:
        """Its nodes are for everybody again; the reservation as it was last."""
        return await self._ask(calls.delete_reservation(name))

    async def quotas(self) -> list[shapes.Quota]:
        """Those that one falls under, and what is used of them; for administrators, all."""
        return await self._ask(calls.get(f"{calls.API}/quotas"))

    async def quota(self, name: str) -> shapes.Quota:
        return await self._ask(calls.quota(name))

    async def set_quota(self, name: str, **fields: object) -> shapes.Quota:
        """The quota is exactly this from then on. Fields: owner, project, domain, group (`*`: each), cpus, memory,
        gpus, vram, sessions, waiting, time; with `version`, only while it is at that one."""
        return await self._ask(calls.set_quota(name, fields))

    async def delete_quota(self, name: str) -> shapes.Quota:
        """It limits nothing any more; the quota as it was last."""
        return await self._ask(calls.delete_quota(name))

    async def quota_history(self, name: str) -> list[shapes.Event]:
        """Every change of it, oldest first."""
        return await self._ask(calls.quota(name, "history"))

    async def policies(self) -> list[shapes.InstalledPolicy]:
        """Every order and placement policy there is, with the options it takes."""
        return await self._ask(calls.get(f"{calls.API}/policies"))

    async def doctor(self) -> shapes.Diagnosis:
        """Every invariant held against every row, and the state of the loops and nodes."""
        return await self._ask(calls.get(f"{calls.API}/doctor"))

    async def version(self) -> shapes.Version:
        return await self._ask(calls.get("/version"))

    # --- how

    async def _ask(self, call: Call) -> Any:
        return content_of(self.connection, await self._send(call))

    async def _send(self, call: Call, content: Path | bytes | None = None) -> httpx.Response:
        for pause_s in pauses_of(call):
            try:
                response = await self._once(call, content)
                self._answered = True
                return response
            except (httpx.HTTPError, httpx.InvalidURL) as error:
                if pause_s is None or isinstance(error, NEVER_SENT):
                    raise broken(self.connection, error) from error
                await host.pause_async(pause_s)
        raise AssertionError("the last try answers or raises")

    async def _once(self, call: Call, content: Path | bytes | None) -> httpx.Response:
        if not isinstance(content, Path):
            return await self._http.request(**request_of(call, content))
        return await self._http.request(**request_of(call, _pieces(content)))

    @asynccontextmanager
    async def _stream(self, call: Call) -> AsyncGenerator[AsyncIterator[bytes]]:
        try:
            async with self._http.stream(**request_of(call)) as response:
                if not response.is_success:
                    await response.aread()
                    require_success(response)
                yield response.aiter_bytes()
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise broken(self.connection, error) from error

    async def _follow(self, followed: Followed[T]) -> AsyncIterator[T]:
        patience = self._patience(worked=self._answered)
        while not followed.over:
            reader = EventReader()
            try:
                async with self._stream(followed.call()) as pieces:
                    async for piece in pieces:
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
                await host.pause_async(patience.pause_s(fault))


async def _pieces(path: Path) -> AsyncIterator[bytes]:
    with path.open("rb") as file:
        while piece := file.read(PIECE_BYTES):
            yield piece
