"""Every route says who may use it, and lets nobody else in."""

from typing import Any

import pytest
from fastapi import APIRouter, FastAPI

from corral.api.policy import Policy, PolicyRoute, policy_of, routes
from tests.api.face import Face, problem

PATHS = {"session_id": "last", "name": "n1", "digest": "sha256:" + "0" * 64, "stream_id": "x"}


async def undeclared() -> None: ...


def test_a_route_without_a_policy_does_not_register() -> None:
    with pytest.raises(TypeError, match="undeclared declares no policy"):
        routes("x").get("/x")(undeclared)
    app = FastAPI()
    app.router.route_class = PolicyRoute
    with pytest.raises(TypeError, match="declares no policy"):
        app.get("/x")(undeclared)


def every_route(app: FastAPI) -> list[tuple[str, str, Policy]]:
    found: list[tuple[str, str, Policy]] = []

    def walk(items: Any) -> None:
        for item in items:
            inner = getattr(item, "original_router", None) or getattr(item, "router", None)
            if isinstance(inner, APIRouter):
                walk(inner.routes)
            elif isinstance(item, PolicyRoute):
                found.extend((method, item.path.format(**PATHS), item.policy) for method in sorted(item.methods or ()))
            else:
                assert policy_of(item.endpoint) is Policy.AGENT, item

    walk(app.routes)
    return found


def test_each_route_lets_in_whom_it_says_and_nobody_else(face: Face) -> None:
    listed = every_route(face.app)
    assert len(listed) > 30
    assert {policy for _, _, policy in listed} == set(Policy)
    face.stopping.set()
    for method, path, policy in listed:
        got: dict[str, int] = {}
        for who in ("nobody", "stranger", "agents", "ann", "admin"):
            headers = {"nobody": {}, "stranger": {"Authorization": "Bearer no-such-token"}}.get(who)
            response = (
                face.client.request(method, path, headers=headers)
                if headers is not None
                else face.request(method, path, who)
            )
            got[who] = response.status_code
            if response.status_code in (401, 403) and method != "HEAD":
                assert problem(response)[1] in ("no_credential", "bad_credential", "not_allowed")
        refused = {who for who, status in got.items() if status in (401, 403)}
        expected = {
            Policy.PUBLIC: set[str](),
            Policy.USER: {"nobody", "stranger", "agents"},
            Policy.ADMIN: {"nobody", "stranger", "agents", "ann"},
            Policy.AGENT: {"nobody", "stranger", "ann", "admin"},
        }[policy]
        assert refused == expected, (method, path, got)
        assert all(got[who] == 401 for who in refused & {"nobody", "stranger"})
        assert 500 not in got.values()


@pytest.mark.parametrize("header", ["", "Bearer", "Bearer ", "Basic YWRtaW46YWRtaW4=", "admin-token", "Bearer a b"])
def test_a_header_that_is_no_bearer_token_is_refused(face: Face, header: str) -> None:
    response = face.client.get("/api/v1/sessions", headers={"Authorization": header})
    assert problem(response)[0] == 401
    assert response.headers["www-authenticate"].startswith("Bearer")


def test_what_is_not_yours_does_not_exist(face: Face) -> None:
    own = face.submit("ann")["id"]
    assert face.get(f"/api/v1/sessions/{own}", "ann")["owner"] == "ann"
    assert face.get(f"/api/v1/sessions/{own}")["owner"] == "ann"
    verbs = [("GET", ""), ("POST", "/cancel"), ("POST", "/hold"), ("GET", "/history"), ("GET", "/logs"),
             ("GET", "/explain"), ("GET", "/launches"), ("GET", "/spec"), ("GET", "/wait")]  # fmt: skip
    for method, verb in verbs:
        response = face.request(method, f"/api/v1/sessions/{own}{verb}", "bob")
        assert problem(response) == (404, "no_such_session"), verb
    assert face.get("/api/v1/sessions", "bob")["sessions"] == []
    assert face.get("/api/v1/sessions?owner=ann", "bob")["sessions"] == []
    assert [one["session"] for one in face.get("/api/v1/events:page", "ann")["events"]] == [own]
    assert face.get("/api/v1/events:page", "bob")["events"] == []
    assert face.get(f"/api/v1/sessions/{own}")["wanted"] == "run"
