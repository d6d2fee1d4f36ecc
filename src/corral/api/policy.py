"""Who may use a route. A route that does not say so fails to register, so that none is ever open by oversight.

A bearer token is known by its digest alone. What is not the caller's own does not exist for it (404).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, TypeVar, get_args, get_origin

from fastapi import APIRouter, Depends, Request, Response
from fastapi.routing import APIRoute
from starlette.requests import HTTPConnection

from corral.api.bodies import JsonRequest, nothing_else, read_json
from corral.api.context import context_of
from corral.api.problems import Forbidden
from corral.model.array import Array
from corral.model.faults import Denied, Invalid
from corral.model.session import Session

Endpoint = TypeVar("Endpoint", bound=Callable[..., Any])


class Policy(StrEnum):
    """Who may: anyone, who has a user's credential (administrators have), administrators, agents."""

    PUBLIC = "public"
    USER = "user"
    ADMIN = "admin"
    AGENT = "agent"


KINDS = {Policy.USER: ("user", "admin"), Policy.ADMIN: ("admin",), Policy.AGENT: ("agent",)}


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks: the credential's name and kind."""

    name: str
    kind: str

    @property
    def by(self) -> str:
        """How the caller is named in history."""
        return f"{'agent' if self.kind == 'agent' else 'user'}:{self.name}"

    @property
    def owner(self) -> str | None:
        """Whose sessions the caller sees; None: everyone's."""
        return None if self.kind == "admin" else self.name

    def sees(self, session: Session | Array) -> bool:
        return self.owner is None or session.owner == self.owner


def allow(policy: Policy) -> Callable[[Endpoint], Endpoint]:
    """Declare who may use the endpoint; stands right below the route."""

    def declare(endpoint: Endpoint) -> Endpoint:
        vars(endpoint)["__policy__"] = policy
        return endpoint

    return declare


def policy_of(endpoint: Callable[..., Any]) -> Policy:
    policy = getattr(endpoint, "__policy__", None)
    if not isinstance(policy, Policy):
        raise TypeError(f"{endpoint.__module__}.{endpoint.__qualname__} declares no policy: add @allow(Policy.…) to it")
    return policy


async def admit(connection: HTTPConnection, policy: Policy) -> Caller | None:
    """The caller, if the policy lets it in. None: nobody needs to be known."""
    if policy is Policy.PUBLIC:
        return None
    scheme, _, token = connection.headers.get("authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not token.strip():
        raise Denied(
            "no_credential",
            "this needs a token (CORRAL_TOKEN, --token or --config); in HTTP: 'Authorization: Bearer …'",
        )
    found = await context_of(connection).credentials.of(token.strip())
    if found is None:
        raise Denied("bad_credential", "this token is not known here")
    caller = Caller(found.name, found.kind)
    if caller.kind not in KINDS[policy]:
        raise Forbidden("not_allowed", f"{caller.name} may not do this; it is for credentials of kind {policy}")
    return caller


class PolicyRoute(APIRoute):
    """A route that knows its caller before it reads a body, and reads bodies strictly."""

    def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        self.policy = policy_of(endpoint)
        super().__init__(path, endpoint, **options)

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        inner = super().get_route_handler()
        takes_json = self.body_field is not None
        reads_itself = self.dependant.request_param_name is not None
        takes_nothing = not (takes_json or reads_itself or {"GET", "HEAD"}.intersection(self.methods or ()))
        known = {field.alias: _is_list(field.field_info.annotation) for field in self.dependant.query_params}

        async def guarded(request: Request) -> Response:
            request.state.caller = await admit(request, self.policy)
            if self.policy is not Policy.PUBLIC:  # probes of all kinds add what they like
                _only_known(request, known)
            if takes_nothing:
                nothing_else(await read_json(request))
            return await inner(JsonRequest(request, await read_json(request)) if takes_json else request)

        return guarded


def _is_list(annotation: Any) -> bool:
    return any(get_origin(one) is list for one in (annotation, *get_args(annotation)))


def _only_known(request: Request, known: Mapping[str, bool]) -> None:
    """A parameter that is not read, or read once of two, would be ignored in silence."""
    counts = Counter(name for name, _ in request.query_params.multi_items())
    for name, count in counts.items():
        if name not in known:
            there = f"there are {', '.join(sorted(known))}" if known else "there are none here"
            raise Invalid("unknown_parameter", f"there is no query parameter {name[:80]!r}; {there}", subject=name[:80])
        if count > 1 and not known[name]:
            raise Invalid("bad_request", f"query parameter {name!r} is given {count} times; give it once", subject=name)


def routes(tag: str) -> APIRouter:
    """A router whose every route declares its policy."""
    return APIRouter(tags=[tag], route_class=PolicyRoute)


async def caller_of(request: Request) -> Caller:  # a coroutine, since a plain function is sent to a thread
    return request.state.caller


Asking = Annotated[Caller, Depends(caller_of)]
