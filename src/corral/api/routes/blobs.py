"""Content by its digest: scripts and uploaded trees, stored once and never changed."""

from __future__ import annotations

import hashlib

import msgspec
from fastapi import Request, Response

from corral.api.context import Here
from corral.api.openapi import bytes_of, json_of, problems, respond
from corral.api.policy import Policy, allow, routes
from corral.api.specs import is_digest
from corral.model.faults import Invalid, NotFound

router = routes("blobs")


class BlobView(msgspec.Struct):
    digest: str
    size_bytes: int


@router.put("/api/v1/blobs/{digest}", status_code=201, responses=json_of(BlobView, 201))
@allow(Policy.USER)
async def put(here: Here, request: Request, digest: str) -> Response:
    """Store the body, which must have this digest."""
    _checked(digest)
    body = bytearray()
    seen = hashlib.sha256()
    async for part in request.stream():
        seen.update(part)
        body += part
    if digest != f"sha256:{seen.hexdigest()}":
        raise Invalid(
            "digest_differs", f"the content's digest is sha256:{seen.hexdigest()}, not {digest}; send it again"
        )
    data = bytes(body)
    await here.store.tx("store content", lambda tx: tx.put_blob(digest, data))
    return respond(BlobView(digest, len(data)), 201)


@router.head("/api/v1/blobs/{digest}", responses=problems())
@allow(Policy.USER)
async def head(here: Here, digest: str) -> Response:
    """Whether it is stored."""
    found = await here.store.read("has content", lambda reads: reads.has_blob(_checked(digest)))
    return Response(status_code=200 if found else 404)


@router.get("/api/v1/agent/blobs/{digest}", responses=bytes_of("application/octet-stream"))
@allow(Policy.AGENT)
async def get(here: Here, digest: str) -> Response:
    """The content, for a node that is to run it."""
    data = await here.store.read("content", lambda reads: reads.blob(_checked(digest)))
    if data is None:
        raise NotFound("no_such_blob", f"{digest} is not stored here", subject=digest)
    return Response(data, media_type="application/octet-stream")


def _checked(digest: str) -> str:
    if not is_digest(digest):
        raise Invalid("bad_digest", f"{digest[:80]!r} is not sha256: and 64 hexadecimal digits")
    return digest
