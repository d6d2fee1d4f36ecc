"""Idempotency keys as they come in: whoever repeats a request with its key is answered what the first one did."""

from __future__ import annotations

from typing import Annotated

from fastapi import Header

from corral.model.faults import Invalid

Key = Annotated[str | None, Header(alias="Idempotency-Key", max_length=255)]


def checked_key(key: str | None) -> str | None:
    if key is not None and not (key.strip() and key.isprintable()):
        raise Invalid("bad_idempotency_key", "an idempotency key is printable text, and not empty")
    return key
