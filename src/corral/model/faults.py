"""The errors Corral raises on purpose, each with a stable code that users and programs may rely on.

    Fault
      x Invalid        the request makes no sense (usage; HTTP 422)
      x NotFound       no such thing, or not yours (HTTP 404)
      x Refused        understood and not done: infeasible, quota, wrong phase (HTTP 409)
      x Denied         no valid credential (HTTP 401)
      x Unavailable    a database or node cannot be reached just now (HTTP 503)

An error says what, which id, and what to do.
"""

from __future__ import annotations


class Fault(Exception):
    """An error with a stable `code`, a one-line `message` and, where there is one, the `subject` it is about."""

    status = 500

    def __init__(self, code: str, message: str, *, subject: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.subject = subject

    def __str__(self) -> str:
        return self.message


class Invalid(Fault):
    status = 422


class Denied(Fault):
    status = 401


class NotFound(Fault):
    status = 404


class Refused(Fault):
    status = 409


class Unavailable(Fault):
    status = 503
