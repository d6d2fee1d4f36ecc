"""Lists: what cannot be read is in them all the same, and who gives a name for an id is told the id."""

import pytest

from tests.api.face import Face, problem

PATH = "/api/v1/sessions"
LIVE = "phase=pending&phase=placed&phase=starting&phase=running&phase=stopping"


def break_row(face: Face, table: str, id_: str) -> None:
    statement = f"UPDATE {table} SET spec = '{{' WHERE id = '{id_}' RETURNING id"
    assert face.tx(lambda tx: tx._connection.rows(statement))  # pyright: ignore


@pytest.mark.parametrize("query", ["", LIVE, "owner=ann", f"{LIVE}&owner=ann", "name=odd", "label=k%3Dv"])
def test_a_session_that_cannot_be_read_is_listed_with_its_error(face: Face, query: str) -> None:
    broken = face.submit("ann", name="odd", project="p", labels={"k": "v"})["id"]
    sound = face.submit("bob", name="odd", project="p", labels={"k": "v"})
    break_row(face, "session", broken)
    found = face.get(f"{PATH}?{query}")["sessions"]
    (one,) = [one for one in found if one["id"] == broken]
    assert one.keys() == sound.keys(), "it has the shape of every other"
    assert "cannot be read" in one["error"]
    assert (one["owner"], one["name"], one["project"], one["phase"]) == ("ann", "odd", "p", "pending")
    assert (one["kind"], one["kernels"], one["command"], one["resources"]["gpus"]) == ("unknown", [], [], None)
    assert [one["id"] for one in face.get(f"{PATH}?label=k%3Dw")["sessions"]] == []


def test_whose_it_is_sees_it_and_nobody_else(face: Face) -> None:
    broken = face.submit("ann")["id"]
    break_row(face, "session", broken)
    assert [one["id"] for one in face.get(PATH, "ann")["sessions"]] == [broken]
    assert face.get(PATH, "bob")["sessions"] == []
    for method, path in (("GET", ""), ("GET", "/explain"), ("POST", "/cancel"), ("POST", "/hold")):
        answer = face.request(method, f"{PATH}/{broken}{path}", "ann")
        assert problem(answer) == (409, "broken_record")
        assert "an administrator" in answer.json()["detail"]
        assert problem(face.request(method, f"{PATH}/{broken}{path}", "bob")) == (404, "no_such_session")


def test_an_array_that_cannot_be_read_is_listed_too(face: Face) -> None:
    broken, sound = face.submit("ann", array="0-3", name="sweep")["id"], face.submit("ann", array="0-3")["id"]
    break_row(face, "session_array", broken)
    for query in ("", LIVE):
        first, second = face.get(f"{PATH}?{query}", "ann")["sessions"]
        assert (first["id"], second["id"], second["name"], second["kind"]) == (sound, broken, "sweep", "array")
        assert second["error"]
    assert problem(face.request("GET", f"{PATH}/{broken}", "ann")) == (409, "broken_record")
    assert problem(face.request("POST", f"{PATH}/{broken}/cancel")) in (
        (404, "no_such_session"),
        (409, "broken_record"),
    )


def test_pages_with_some_that_cannot_be_read_miss_none(face: Face) -> None:
    made = [face.submit("ann", **({"array": "0-1"} if number % 3 == 0 else {}))["id"] for number in range(9)]
    for number in (0, 4, 8):
        break_row(face, "session" if number % 3 else "session_array", made[number])
    seen: list[str] = []
    cursor = ""
    for _ in range(9):
        page = face.get(f"{PATH}?limit=2{cursor}", "ann")
        seen += [one["id"] for one in page["sessions"]]
        if page["next"] is None:
            break
        cursor = f"&cursor={page['next']}"
    assert seen == made[::-1]


def test_a_name_for_an_id_is_answered_with_the_ids(face: Face) -> None:
    one = face.submit("ann", name="train")["id"]
    assert problem(face.request("GET", f"{PATH}/train", "bob")) == (404, "no_such_session")

    def told(text: str, method: str = "GET", path: str = "", as_: str = "ann") -> str:
        answer = face.request(method, f"{PATH}/{text}{path}", as_)
        assert problem(answer) == (404, "no_such_session")
        return answer.json()["detail"]

    assert one in told("train")
    assert f"'train' is the name of session {one}" in told("train", "POST", "/cancel")
    assert one in told("train", as_="admin")
    assert one not in told("train", as_="bob")
    more = [face.submit("ann", name="train")["id"] for _ in range(6)]
    assert f"the sessions {more[-1]}, {more[-2]}, " in told("train", "POST", "/hold")
    assert told("train").count("…") == 1
    sweep = face.submit("ann", name="sweep", array="0-9")["id"]
    assert sweep in told("sweep[3]")
    assert "corral ps" in told("nobody")
