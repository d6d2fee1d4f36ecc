"""What both clients share about HTTP: how to set it up, what an answer means, what breaks a connection."""

from __future__ import annotations

import json
import re
from ipaddress import ip_address
from typing import Any
from urllib.parse import urlsplit

import httpx

from corral.client.calls import Call
from corral.client.config import Connection
from corral.client.errors import Unreachable, answered, unreachable

CONNECT_TIMEOUT_S = 10.0
PAUSES_S = (0.2, 0.5, 1.0)  # between the tries of a request that is safe to repeat
NEVER_SENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.UnsupportedProtocol, httpx.PoolTimeout)


def options_of(connection: Connection) -> dict[str, Any]:
    """Arguments for either of httpx's clients. Plain HTTP needs no certificates; loopback needs no proxy."""
    headers = {"User-Agent": "corral-client", "Accept-Encoding": "identity"}
    if connection.token:
        headers["Authorization"] = f"Bearer {connection.token}"
    return {
        "base_url": connection.url,
        "headers": headers,
        "verify": connection.url.startswith("https:"),
        "trust_env": not _loopback(connection.url),
        "limits": httpx.Limits(max_connections=None, max_keepalive_connections=20),  # each stream is one
    }


def request_of(call: Call, content: Any = None) -> dict[str, Any]:
    """Arguments for httpx's `request` and `stream`; `content` in place of the call's own body."""
    return {
        "method": call.method,
        "url": call.path,
        "params": call.params or None,
        "content": call.body if content is None else content,
        "headers": dict(call.headers),
        "timeout": httpx.Timeout(call.timeout_s, connect=CONNECT_TIMEOUT_S),
    }


def pauses_of(call: Call) -> tuple[float | None, ...]:
    """How long to pause after each failed try; None after the last."""
    return (*PAUSES_S, None) if call.repeatable else (None,)


def broken(connection: Connection, error: httpx.HTTPError | httpx.InvalidURL) -> Unreachable:
    return unreachable(connection.url, error, _plainly(error))


def _plainly(error: Exception) -> str:
    """Why, without the names that Python and its libraries have for it."""
    if isinstance(error, httpx.TimeoutException):
        return "no answer in time"
    if isinstance(error, httpx.RemoteProtocolError):
        return "what answers there broke off, or speaks no HTTP"
    return re.sub(r"^\[Errno -?\d+\] ", "", str(error)) or "the connection broke"


def cut_off(connection: Connection) -> Unreachable:
    """The stream ended and had not said that it was over."""
    return unreachable(connection.url, ConnectionError("the stream was cut off"))


def content_of(connection: Connection, response: httpx.Response) -> Any:
    """The JSON of a success; raises the fault otherwise."""
    require_success(response)
    try:
        return json.loads(response.content)
    except ValueError:
        raise unreachable(connection.url, ValueError("what answers there is no control plane")) from None


def require_success(response: httpx.Response) -> None:
    """Raise what the answer says; its body must have been read."""
    if not response.is_success:
        raise answered(response.status_code, response.content)


def _loopback(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
