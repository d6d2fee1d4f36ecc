"""Bodies as they come in: never larger than agreed, JSON read strictly, whatever content type a client names.

Knows sizes and syntax, never what a field means. `Gate` stands before the application and also checks the Host.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from ipaddress import ip_address
from typing import Any, cast

import msgspec
from fastapi import Request
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from corral.api.problems import TooLarge, answer
from corral.model.faults import Fault, Invalid

JSON_LIMIT_BYTES = 8 * 1024 * 1024
UPLOAD_LIMIT_BYTES = 256 * 1024 * 1024
UPLOADS = "/api/v1/blobs/"
ABSENT = object()


class JsonRequest(Request):
    """A request whose JSON has been read already."""

    def __init__(self, request: Request, value: Any) -> None:
        headers = [(name, text) for name, text in request.scope["headers"] if name != b"content-type"]
        if value is not ABSENT:
            headers.append((b"content-type", b"application/json"))
        super().__init__({**request.scope, "headers": headers}, request.receive)
        self._value = value
        self._body = b"" if value is ABSENT else b"{}"

    async def json(self) -> Any:
        return self._value


async def read_json(request: Request) -> Any:
    """The body as plain values: no NaN, no unpaired surrogates, no numbers without end."""
    body = await request.body()
    if not body.strip():
        return ABSENT
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Invalid("bad_json", f"the body is not JSON: {error}") from None
    except RecursionError:
        raise Invalid("bad_json", "the body is nested too deeply") from None


def nothing_else(body: Any) -> None:
    """A body where none is read would be ignored in silence; an empty object says nothing."""
    if body is ABSENT or body == {}:
        return
    if not isinstance(body, dict):
        raise Invalid("bad_request", "body: there is nothing to say here; leave it out")
    names = [str(name)[:80] for name in cast("dict[Any, Any]", body)]
    more = f" (and {len(names) - 1} more)" if len(names) > 1 else ""
    raise Invalid("bad_request", f"{names[0]}: there is no such field{more}")


class Gate:
    """Turns away foreign Host headers and bodies larger than agreed, before anything reads them."""

    def __init__(self, app: ASGIApp, hosts: Sequence[str], json_limit: int, upload_limit: int) -> None:
        self._app = app
        self._hosts = frozenset(host.lower() for host in hosts)
        self._json_limit = json_limit
        self._upload_limit = upload_limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        limit = self._upload_limit if str(scope["path"]).startswith(UPLOADS) else self._json_limit
        if not self._known(headers.get("host", "")):
            await self._refuse(scope, receive, send, _foreign_host(headers.get("host", "")))
        elif _announced(headers) > limit:
            await self._refuse(scope, receive, send, _too_large(limit))
        else:
            await self._app(scope, _counted(receive, limit), send)

    def _known(self, host: str) -> bool:
        """A name must be ours, so that no foreign page can rebind its own to us; an address cannot be rebound."""
        name = re.sub(r":\d{1,5}$", "", host).lower().strip("[]")
        return name in self._hosts or _is_address(name)

    async def _refuse(self, scope: Scope, receive: Receive, send: Send, fault: Fault) -> None:
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
        else:
            await answer(fault)(scope, receive, send)


def _is_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


def _foreign_host(host: str) -> Fault:
    fault = Fault(
        "bad_host", f"this manager does not answer for host {host[:80]!r}; its own --url names the host it has"
    )
    fault.status = 421
    return fault


def _announced(headers: Headers) -> int:
    length = headers.get("content-length", "")
    return int(length) if length.isascii() and length.isdigit() and len(length) < 20 else 0


def _too_large(limit: int) -> TooLarge:
    return TooLarge("too_large", f"the body is larger than {limit // 1024**2} MiB")


def _counted(receive: Receive, limit: int) -> Receive:
    seen = 0

    async def counted() -> Message:
        nonlocal seen
        message = await receive()
        if message["type"] == "http.request":
            seen += len(message.get("body", b""))
            if seen > limit:
                raise _too_large(limit)
        return message

    return counted
