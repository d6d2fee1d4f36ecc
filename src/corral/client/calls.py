"""Every call of the REST face as a value: method, path, what goes along, and whether repeating it is safe."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast
from urllib.parse import quote

from corral.client.shapes import SessionFields
from corral.model.faults import Invalid, NotFound

API = "/api/v1"
SESSIONS = f"{API}/sessions"
READ_TIMEOUT_S = 60.0
HEARTBEAT_TIMEOUT_S = 45.0  # three of the server's heartbeats
LONGEST_POLL_S = 30.0
LEADING_ELSEWHERE = ("", ".", "..")
Params = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Call:
    """One request. `repeatable`: sent twice it does what it does once, so a lost answer is asked for again."""

    method: str
    path: str
    params: Params = ()
    body: bytes | None = None
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    timeout_s: float = READ_TIMEOUT_S
    repeatable: bool = False


def get(path: str, params: Mapping[str, object] | None = None, timeout_s: float = READ_TIMEOUT_S) -> Call:
    return Call("GET", path, _params(params or {}), timeout_s=timeout_s, repeatable=True)


def submit(fields: SessionFields, key: str) -> Call:
    """A key among the fields goes before the other."""
    if fields.get("idempotency_key") is not None:
        return _post(SESSIONS, fields, {})
    return _post(SESSIONS, fields, _with_key(key))


def submit_batch(sessions: Sequence[SessionFields], key: str) -> Call:
    """All or none. Sessions with keys of their own keep them; the key of the whole is for those that have none."""
    if any("idempotency_key" in one for one in sessions):
        return _post(f"{SESSIONS}:batch", {"sessions": list(sessions)}, None)
    return _post(f"{SESSIONS}:batch", {"sessions": list(sessions)}, _with_key(key))


def plan(fields: SessionFields) -> Call:
    return _post(f"{SESSIONS}:plan", fields, {})


def list_sessions(filters: Mapping[str, object]) -> Call:
    return get(SESSIONS, filters)


def show(session: str) -> Call:
    return get(_of(session))


def act(session: str, verb: str) -> Call:
    """cancel, hold, release: asked twice they do what they do once."""
    return Call("POST", f"{_of(session)}/{verb}", repeatable=True)


def requeue(session: str, key: str) -> Call:
    return Call("POST", f"{_of(session)}/requeue", headers=_with_key(key), repeatable=True)


def update(session: str, changes: Mapping[str, object]) -> Call:
    return Call("PATCH", _of(session), body=encode(changes), headers=_JSON, repeatable=True)


def wait(session: str, timeout_s: float) -> Call:
    return get(f"{_of(session)}/wait", {"timeout_s": round(timeout_s, 3)}, timeout_s + 15.0)


def story(session: str, what: str) -> Call:
    """spec, history, attempts, launches or explain."""
    return get(f"{_of(session)}/{what}")


def read_logs(session: str, rank: int, stream: str, offset: int, attempt: int | None) -> Call:
    params = {"rank": rank, "stream": stream, "offset": offset, "attempt": attempt}
    return get(f"{_of(session)}/logs", params)


def follow_logs(session: str, rank: int, stream: str, offset: int, attempt: int | None) -> Call:
    params = {"rank": rank, "stream": stream, "offset": offset, "attempt": attempt, "follow": 1}
    return get(f"{_of(session)}/logs", params, HEARTBEAT_TIMEOUT_S)


def follow_events(after: int) -> Call:
    return get(f"{API}/events", {"after": after}, HEARTBEAT_TIMEOUT_S)


def page_of_events(after: int, limit: int) -> Call:
    return get(f"{API}/events:page", {"after": after, "limit": limit})


def has_blob(digest: str) -> Call:
    return Call("HEAD", f"{API}/blobs/{quote(digest, safe=':')}", repeatable=True)


def put_blob(digest: str) -> Call:
    """The content goes along as the client sends it."""
    return Call("PUT", f"{API}/blobs/{quote(digest, safe=':')}", timeout_s=300.0, repeatable=True,
                headers={"Content-Type": "application/octet-stream"})  # fmt: skip


def node(name: str) -> Call:
    return get(_of_node(name))


def confirm_dead(name: str) -> Call:
    return Call("POST", f"{_of_node(name)}/confirm-dead", repeatable=True)


def group(name: str, what: str = "") -> Call:
    """The group itself, or its `history`."""
    return get(_of_group(name) + (f"/{what}" if what else ""))


def create_group(fields: Mapping[str, object]) -> Call:
    return _post(f"{API}/groups", fields, None)


def change_group(name: str, changes: Mapping[str, object]) -> Call:
    return Call("PATCH", _of_group(name), body=encode(changes), headers=_JSON, repeatable="version" not in changes)


def delete_group(name: str) -> Call:
    return Call("DELETE", _of_group(name))


def act_on_group(name: str, verb: str) -> Call:
    """pause, resume and schedule."""
    return Call("POST", f"{_of_group(name)}/{verb}", repeatable=True)


def defragmentation(asked: Mapping[str, int | str | None]) -> Call:
    return get(f"{API}/defragmentation", {name: str(value) for name, value in asked.items() if value is not None})


def defragment(asked: Mapping[str, int | str | None]) -> Call:
    return _post(f"{API}/defragmentation", asked, None)


def reservations(every: bool) -> Call:
    return get(f"{API}/reservations", {"every": "true"} if every else None)


def reservation(name: str) -> Call:
    return get(_of_reservation(name))


def create_reservation(name: str, fields: Mapping[str, object]) -> Call:
    return Call("POST", f"{API}/reservations", body=encode({"name": name, **fields}), headers=_JSON)


def delete_reservation(name: str) -> Call:
    return Call("DELETE", _of_reservation(name))


def quota(name: str, what: str = "") -> Call:
    """The quota itself, or its `history`."""
    return get(_of_quota(name) + (f"/{what}" if what else ""))


def set_quota(name: str, fields: Mapping[str, object]) -> Call:
    return Call("PUT", _of_quota(name), body=encode(fields), headers=_JSON, repeatable="version" not in fields)


def delete_quota(name: str) -> Call:
    return Call("DELETE", _of_quota(name))


def encode(body: Any) -> bytes:
    """JSON bytes; `Invalid` for text that no Unicode encoding can carry, and for what is no JSON."""
    try:
        return json.dumps(body, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()
    except UnicodeEncodeError:
        raise Invalid("not_text", "the request holds text that is not valid Unicode") from None
    except TypeError:
        raise Invalid("not_json", "the request holds what JSON cannot carry, like a date; write it as text") from None
    except (ValueError, RecursionError):
        raise Invalid("not_json", "the request holds a number without end, or itself; JSON has neither") from None


_JSON = {"Content-Type": "application/json"}


def _with_key(key: str) -> dict[str, str]:
    if not (key.isascii() and key.isprintable() and key == key.strip() and key):
        raise Invalid("bad_idempotency_key", "an idempotency key is printable ASCII, without spaces at its ends")
    return {"Idempotency-Key": key}


def _post(path: str, body: Any, headers: Mapping[str, str] | None) -> Call:
    return Call("POST", path, body=encode(body), headers=_JSON | dict(headers or {}), repeatable=headers is not None)


def _of(session: str) -> str:
    """The session's path. A name that would lead elsewhere is nobody's id."""
    if session in LEADING_ELSEWHERE or "/" in session:
        raise NotFound("no_such_session", f"there is no session {session[:80]!r}; `corral ps` lists them",
                       subject=session[:80])  # fmt: skip
    return f"{SESSIONS}/{quote(session, safe='')}"


def _of_node(name: str) -> str:
    if name in LEADING_ELSEWHERE or "/" in name:
        raise NotFound("no_such_node", f"there is no node {name[:80]!r}; `corral nodes` lists them", subject=name[:80])
    return f"{API}/nodes/{quote(name, safe='')}"


def _of_group(name: str) -> str:
    if name in LEADING_ELSEWHERE or "/" in name:
        raise NotFound("group_unknown", f"there is no resource group {name[:80]!r}; `corral group list` lists them",
                       subject=name[:80])  # fmt: skip
    return f"{API}/groups/{quote(name, safe='')}"


def _of_reservation(name: str) -> str:
    if name in LEADING_ELSEWHERE or "/" in name:
        raise NotFound("no_such_reservation", f"there is no reservation {name[:80]!r}; `corral reservation list` shows "
                       "them", subject=name[:80])  # fmt: skip
    return f"{API}/reservations/{quote(name, safe='')}"


def _of_quota(name: str) -> str:
    if name in LEADING_ELSEWHERE or "/" in name:
        raise NotFound("no_such_quota", f"there is no quota {name[:80]!r}; `corral quota list` lists them",
                       subject=name[:80])  # fmt: skip
    return f"{API}/quotas/{quote(name, safe='')}"


def _params(values: Mapping[str, object]) -> Params:
    """A list is a parameter repeated; None is none."""
    pairs: list[tuple[str, str]] = []
    for name, value in values.items():
        many = cast("Sequence[object]", value) if isinstance(value, list | tuple) else [value]
        pairs += [(name, str(one)) for one in many if one is not None]
    return tuple(pairs)
