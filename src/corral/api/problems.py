"""Errors as problem documents (RFC 9457) with a stable `code`. Whatever a client sends, it gets one and no traceback.

Fault (model.faults)     its own code and status
bad JSON, bad fields     bad_json, bad_request: one line naming the field
no such route, method    no_such_route, method_not_allowed
anything else            internal (a fault of ours, logged)
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any

import msgspec
import structlog
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from corral.model.faults import Denied, Fault, Invalid, Refused, Unavailable

MEDIA_TYPE = "application/problem+json"
RETRY_AFTER_S = "2"
LONGEST_DETAIL = 2000

log = structlog.get_logger("corral.api")


class Problem(msgspec.Struct, omit_defaults=True):
    """The document. `subject` names what it is about, `candidates` what an ambiguous id could mean."""

    type: str
    title: str
    status: int
    detail: str
    code: str
    subject: str | None = None
    candidates: list[str] = []


class Forbidden(Fault):
    """A valid credential that does not allow this."""

    status = 403


class TooLarge(Fault):
    status = 413


class Ambiguous(Refused):
    """A shortened id that several sessions begin with."""

    def __init__(self, text: str, candidates: Sequence[str]) -> None:
        named = ", ".join(candidates)
        super().__init__("ambiguous_id", f"id {text!r} could mean {named}; write more of it", subject=text)
        self.candidates = list(candidates)


def problem_of(fault: Fault) -> Problem:
    return Problem(
        type=f"urn:corral:problem:{fault.code}",
        title=HTTPStatus(fault.status).phrase,
        status=fault.status,
        detail=printable(fault.message)[:LONGEST_DETAIL],
        code=fault.code,
        subject=None if fault.subject is None else printable(fault.subject)[:200],
        candidates=fault.candidates if isinstance(fault, Ambiguous) else [],
    )


def printable(text: str) -> str:
    """Text that can be sent: an unpaired surrogate in what a client sent must not break the answer about it."""
    return text.encode("utf-8", "backslashreplace").decode()


def answer(fault: Fault, headers: Mapping[str, str] | None = None) -> Response:
    extra = dict(headers or {})
    if isinstance(fault, Unavailable):
        extra["Retry-After"] = RETRY_AFTER_S
    if isinstance(fault, Denied):
        extra["WWW-Authenticate"] = 'Bearer realm="corral"'
    body = msgspec.json.encode(problem_of(fault))
    return Response(body, fault.status, extra, media_type=MEDIA_TYPE)


def invalid_fields(errors: Sequence[Mapping[str, Any]]) -> Invalid:
    """One line for the first field that does not fit, and how many more there are. Of a field that may be of several
    kinds the last kind's error is told, which is that of text: the widest."""
    if not errors:
        return Invalid("bad_request", "the request does not fit")
    told = {_place(error): error for error in errors}
    place = _place(errors[0])
    more = f" (and {len(told) - 1} more)" if len(told) > 1 else ""
    return Invalid("bad_request", f"{place or 'body'}: {_words(told[place])}{more}")


_PLAINER = {"Extra inputs are not permitted": "there is no such field", "Field required": "is missing"}


_KIND = re.compile(r"int|float|str|bool|.*[\[(-].*|[A-Z].*")  # what stands in a place for one of several kinds


def _place(error: Mapping[str, Any]) -> str:
    place = ""
    for part in error.get("loc", ())[1:]:
        if isinstance(part, int):
            place += f"[{part}]"
        elif not _KIND.fullmatch(str(part)) or not place:
            place += f".{part}" if place else str(part)
    return place


def _words(error: Mapping[str, Any]) -> str:
    message = str(error.get("msg", "does not fit"))
    message = _PLAINER.get(message, message)
    return f"{message[:1].lower()}{message[1:]}"


CLIENT_CLOSED_REQUEST = 499  # what web servers write in their logs for it


def install(app: FastAPI) -> None:
    """Turn every exception into its document."""

    async def on_fault(request: Request, error: Exception) -> Response:
        assert isinstance(error, Fault)
        return answer(error)

    async def on_fields(request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        return answer(invalid_fields(error.errors()))

    async def on_http(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        return answer(_of_http(request, error), error.headers)

    async def on_surprise(request: Request, error: Exception) -> Response:
        log.error("request failed", path=request.scope["path"], error=repr(error), exc_info=error)
        return answer(Fault("internal", "the server failed at this request; its log says why"))

    async def on_hang_up(request: Request, error: Exception) -> Response:
        return Response(status_code=CLIENT_CLOSED_REQUEST)  # nobody is there to read it

    app.add_exception_handler(ClientDisconnect, on_hang_up)
    app.add_exception_handler(Fault, on_fault)
    app.add_exception_handler(RequestValidationError, on_fields)
    app.add_exception_handler(HTTPException, on_http)
    app.add_exception_handler(Exception, on_surprise)


_HTTP_CODES = {400: "bad_request", 404: "no_such_route", 405: "method_not_allowed", 413: "too_large"}
_HTTP_WORDS = {404: "there is nothing at this path; /openapi.json lists what there is", 405: "not with this method"}


def _of_http(request: Request, error: HTTPException) -> Fault:
    code = _HTTP_CODES.get(error.status_code, "http_error")
    fault = Fault(code, _HTTP_WORDS.get(error.status_code, str(error.detail)), subject=request.scope["path"])
    fault.status = error.status_code
    return fault
