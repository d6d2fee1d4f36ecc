"""A name that is not known is told, and asked about if one like it is; of what a caller may not see nothing is told."""

import pytest

from tests.api.face import Face, problem


def told(face: Face, method: str, path: str, as_: str = "admin", **options: object) -> tuple[int, str, str]:
    answer = face.request(method, f"/api/v1/{path}", as_, **options)
    return *problem(answer), answer.json()["detail"]


@pytest.mark.parametrize(
    ("method", "path", "body", "code", "lists"),
    [
        ("GET", "groups/{}", None, "group_unknown", "group list"),
        ("GET", "groups/{}/history", None, "group_unknown", "group list"),
        ("PATCH", "groups/{}", {"order": "fifo"}, "group_unknown", "group list"),
        ("POST", "groups/{}/pause", None, "group_unknown", "group list"),
        ("DELETE", "groups/{}", None, "group_unknown", "group list"),
        ("POST", "sessions", {"command": ["x"], "group": "{}"}, "group_unknown", "group list"),
        ("GET", "quotas/{}", None, "no_such_quota", "quota list"),
        ("GET", "quotas/{}/history", None, "no_such_quota", "quota list"),
        ("DELETE", "quotas/{}", None, "no_such_quota", "quota list"),
        ("GET", "reservations/{}", None, "no_such_reservation", "reservation list"),
        ("DELETE", "reservations/{}", None, "no_such_reservation", "reservation list"),
        ("GET", "nodes/{}", None, "no_such_node", "nodes"),
        ("POST", "nodes/{}/confirm-dead", None, "no_such_node", "nodes"),
    ],
)
def test_a_name_that_is_nearly_right_is_asked_about(
    face: Face, method: str, path: str, body: dict[str, object] | None, code: str, lists: str
) -> None:
    face.node("vision").register()
    face.post("/api/v1/groups", {"name": "vision"})
    face.request("PUT", "/api/v1/quotas/vision", json={"owner": "ann", "sessions": 3})
    face.post("/api/v1/reservations", {"name": "vision", "begin": "+1h", "length": "1h", "node": ["vision"]})

    def ask(name: str) -> str:
        fields = body and {key: name if value == "{}" else value for key, value in body.items()}
        status, found, detail = told(face, method, path.format(name), json=fields)
        assert (status, found) == (404, code)
        assert f"`corral {lists}`" in detail
        return detail

    assert "did you mean 'vision'?" in ask("vison")
    assert "did you mean" not in ask("nothing-like-it")


def test_what_one_may_not_see_is_not_offered(face: Face) -> None:
    face.request("PUT", "/api/v1/quotas/vision", json={"owner": "ann", "sessions": 3})
    assert "'vision'" in told(face, "GET", "quotas/vison", "ann")[2]
    assert "'vision'" not in told(face, "GET", "quotas/vison", "bob")[2]
