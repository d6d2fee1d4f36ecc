"""Events: in commit order, resumable from any number, alive while nothing happens."""

import httpx
import pytest

from corral.api import sse
from tests.api.face import Face, Served, bearer, events_of, good, problem


def test_a_follower_sees_every_event_once_and_in_order(served: Served) -> None:
    with served.client.stream("GET", "/api/v1/events") as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        events = events_of(response.iter_lines())
        for _ in range(3):
            id_ = served.submit(hold=True)["id"]
            number, name, data = next(events)
            assert (name, data["session"], data["by"].endswith("admin")) == ("submitted", id_, True)
            assert str(data["id"]) == number
        good(served.client.post(f"/api/v1/sessions/{id_}/cancel"))
        facts = [next(events) for _ in range(2)]
        assert [data["seq"] for _, _, data in facts] == [2, 3]
        assert facts[-1][2]["to"] == "ended"


def test_a_follower_that_was_cut_off_resumes_where_it_was(served: Served) -> None:
    made = [served.submit(hold=True)["id"] for _ in range(4)]
    with served.client.stream("GET", "/api/v1/events") as response:
        events = events_of(response.iter_lines())
        seen = [next(events) for _ in range(2)]
    last = seen[-1][0]
    assert last is not None
    for headers, query in (
        ({"Last-Event-ID": last}, ""),
        ({}, f"?after={last}"),
        ({"Last-Event-ID": last}, "?after=0"),
    ):
        with served.client.stream("GET", f"/api/v1/events{query}", headers=headers) as response:
            events = events_of(response.iter_lines())
            assert [next(events)[2]["session"] for _ in range(2)] == made[2:]


def test_without_following_it_ends_when_it_has_caught_up(face: Face) -> None:
    made = [face.submit()["id"] for _ in range(3)]
    text = face.request("GET", "/api/v1/events?follow=0").text
    assert [data["session"] for _, _, data in events_of(iter(text.splitlines()))] == made
    page = face.get("/api/v1/events:page?limit=2")
    assert [one["session"] for one in page["events"]] == made[:2]
    assert page["last"] == face.get("/api/v1/events:page")["events"][-1]["id"]
    assert face.get(f"/api/v1/events:page?after={page['last']}")["events"] == []


def test_more_events_than_one_page_are_all_told(face: Face) -> None:
    face.post("/api/v1/sessions:batch", {"sessions": [{"command": ["x"]}] * 2500})
    text = face.request("GET", "/api/v1/events?follow=0").text
    ids = [int(id_ or 0) for id_, _, _ in events_of(iter(text.splitlines()))]
    assert len(ids) == 2500
    assert ids == sorted(set(ids))


def test_a_user_hears_only_of_own_sessions(served: Served) -> None:
    ann = httpx.Client(base_url=served.url, headers=bearer("ann"), timeout=20)
    with ann, ann.stream("GET", "/api/v1/events") as response:
        events = events_of(response.iter_lines())
        served.submit(hold=True)
        own = good(ann.post("/api/v1/sessions", json={"command": ["x"], "hold": True}))["id"]
        assert next(events)[2]["session"] == own


def test_a_page_is_full_of_what_the_caller_may_see(face: Face) -> None:
    face.post("/api/v1/sessions:batch", {"sessions": [{"command": ["x"]}] * 1500}, as_="bob")
    own = [face.submit("ann")["id"] for _ in range(3)]
    face.submit("bob")
    page = face.get("/api/v1/events:page?limit=2", as_="ann")
    assert [one["session"] for one in page["events"]] == own[:2]
    rest = face.get(f"/api/v1/events:page?after={page['events'][-1]['id']}", as_="ann")["events"]
    assert [one["session"] for one in rest] == own[2:]
    text = face.request("GET", "/api/v1/events?follow=0", "ann").text
    assert [data["session"] for _, _, data in events_of(iter(text.splitlines()))] == own


def test_a_quiet_stream_is_kept_alive(served: Served, monkeypatch) -> None:
    monkeypatch.setattr(sse, "HEARTBEAT_S", 0.05)
    with served.client.stream("GET", "/api/v1/events") as response:
        lines = response.iter_lines()
        assert [line for line in (next(lines) for _ in range(8)) if line] == [": alive"] * 4


def test_a_stream_that_cannot_go_on_says_so(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "HEARTBEAT_S", 0.05)
    served.submit(hold=True)
    with served.client.stream("GET", "/api/v1/events") as response:
        events = events_of(response.iter_lines())
        assert next(events)[1] == "submitted"
        served.loop.call_soon_threadsafe(served.close_store)
        number, name, data = next(events)
        assert (number, name, bool(data["code"])) == (None, "unavailable", True)
        assert list(events) == []


def test_streams_end_when_the_manager_stops(served: Served) -> None:
    with served.client.stream("GET", "/api/v1/events") as response:
        lines = response.iter_lines()
        next(lines)
        served.loop.call_soon_threadsafe(served.stopping.set)
        assert all(line == "" or line.startswith(":") for line in lines)


def test_an_id_to_resume_from_that_is_none_is_not_believed(face: Face) -> None:
    face.submit()
    odd = face.request("GET", "/api/v1/events?follow=0", headers={"Last-Event-ID": "x" * 50})
    assert problem(odd) == (422, "bad_event_id"), "to begin anew would be to say twice what was seen"
    assert problem(face.request("GET", "/api/v1/events?after=x")) == (422, "bad_request")
