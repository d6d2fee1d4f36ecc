"""What a client raises: the faults of `corral.model`, as the control plane or the network gave them."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from typing import Any, cast

from corral.client.config import DEFAULT_URL
from corral.model.faults import Denied, Fault, Invalid, NotFound, Refused, Unavailable


class Answered(Fault):
    """Answered by the control plane; `document` is the whole problem document (RFC 9457)."""

    def __init__(self, status: int, document: Mapping[str, Any]) -> None:
        message = str(document.get("detail") or document.get("title") or f"the control plane answered {status}")
        subject = document.get("subject")
        super().__init__(
            str(document.get("code") or f"http_{status}"), message, subject=None if subject is None else str(subject)
        )
        self.status = status
        self.document = dict(document)


class AnsweredInvalid(Answered, Invalid):
    pass


class AnsweredNotFound(Answered, NotFound):
    pass


class AnsweredRefused(Answered, Refused):
    pass


class AnsweredDenied(Answered, Denied):
    pass


class AnsweredUnavailable(Answered, Unavailable):
    pass


class Unreachable(Unavailable):
    """No answer: the address is wrong, nothing listens there, or the network broke."""


_KINDS: dict[int, type[Answered]] = {
    400: AnsweredInvalid,
    413: AnsweredInvalid,
    421: AnsweredInvalid,
    422: AnsweredInvalid,
    401: AnsweredDenied,
    403: AnsweredDenied,
    404: AnsweredNotFound,
    409: AnsweredRefused,
    429: AnsweredRefused,
    502: AnsweredUnavailable,
    503: AnsweredUnavailable,
    504: AnsweredUnavailable,
}


def answered(status: int, body: bytes) -> Answered:
    """The fault for an answer that is not a success; a body that is no problem document says little."""
    document: Any = {}
    with contextlib.suppress(ValueError):
        document = json.loads(body)
    if not isinstance(document, dict) or not document:
        document = {"detail": f"the answer {status} is not from a control plane; check the address"}
    return _KINDS.get(status, Answered)(status, cast("dict[str, Any]", document))


def unreachable(url: str, error: Exception, why: str = "") -> Unreachable:
    """No answer from `url`."""
    why = why or str(error) or "the connection broke"
    other = "; `corral up` starts one, CORRAL_URL, --url or --config names another" if url == DEFAULT_URL else ""
    text = f"cannot reach the control plane at {url}: {why}; is it running?{other}"
    return Unreachable("unreachable", text, subject=url)


def document_of(fault: Fault) -> dict[str, Any]:
    """The problem document: the one answered, or one made for a fault that never left this machine."""
    if isinstance(fault, Answered):
        return fault.document
    made = {"type": f"urn:corral:problem:{fault.code}", "status": fault.status, "code": fault.code,
            "title": fault.message, "detail": fault.message}  # fmt: skip
    return made if fault.subject is None else made | {"subject": fault.subject}
