"""OpenAPI 3.1 of what goes out: the schemas are made from the very structs that are encoded, so they cannot part.

What comes in is described by FastAPI from the input models.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from fastapi import FastAPI, Response
from fastapi.openapi.utils import get_openapi

from corral.api.problems import MEDIA_TYPE, Problem

Responses = dict[int | str, dict[str, Any]]
_SHOWN: dict[str, type] = {"Problem": Problem}
REF = "#/components/schemas/{name}"


def respond(value: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(msgspec.json.encode(value), status, dict(headers or {}), media_type="application/json")


def json_of(type_: type, *statuses: int) -> Responses:
    """The `responses=` of a route that answers this struct; every route may answer a problem instead."""
    _SHOWN[type_.__name__] = type_
    content = {"application/json": {"schema": {"$ref": REF.format(name=type_.__name__)}}}
    return {status: {"description": "as asked", "content": content} for status in statuses or (200,)} | problems()


def bytes_of(*media_types: str) -> Responses:
    content: dict[str, Any] = {media_type: {} for media_type in media_types}
    return {200: {"description": "as asked", "content": content}, **problems()}


def problems() -> Responses:
    content = {MEDIA_TYPE: {"schema": {"$ref": REF.format(name="Problem")}}}
    return {"default": {"description": "a problem document", "content": content}}


def describe(app: FastAPI) -> dict[str, Any]:
    """The document, made once."""
    if app.openapi_schema:
        return app.openapi_schema
    document = get_openapi(title=app.title, version=app.version, openapi_version="3.1.0", routes=app.routes,
                           description=app.description)  # fmt: skip
    _, components = msgspec.json.schema_components(list(_SHOWN.values()), ref_template=REF)
    schemas: dict[str, Any] = document.setdefault("components", {}).setdefault("schemas", {})
    schemas.update(components)
    for path in document["paths"].values():
        for operation in path.values():
            operation.get("responses", {}).pop("422", None)
    document["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
    document["security"] = [{"token": []}]
    app.openapi_schema = document
    return document
