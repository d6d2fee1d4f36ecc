"""`begin`: a session waits for its time, says so, and starts then."""

from datetime import datetime
from typing import Any

from corral.reconcile import intents
from tests.api.face import Face, Served
from tests.api.test_groups import place


def codes(told: list[dict[str, Any]]) -> set[str]:
    return {one["code"] for one in told}


def test_a_session_waits_for_its_time_and_says_so(face: Face) -> None:
    face.node().register()
    later = face.submit(begin="+2h")
    now = face.submit(begin="2020-01-01T00:00Z")
    assert place(face) == [now["id"]]
    shown = face.get(f"/api/v1/sessions/{later['id']}")
    assert codes(shown["refusals"]) == {"begin_not_reached"}
    assert codes(face.get("/api/v1/sessions")["sessions"][1]["refusals"]) == {"begin_not_reached"}
    told = face.get(f"/api/v1/sessions/{later['id']}/explain")
    assert "begin_not_reached" in codes(told["blockers"]) and "backing_off" not in codes(told["blockers"])
    assert face.get(f"/api/v1/sessions/{later['id']}/spec")["begin"] == "+2h"
    assert face.post(f"/api/v1/sessions/{later['id']}/cancel")["phase"] == "ended"


def test_the_same_request_with_the_same_key_is_the_same_session(face: Face) -> None:
    first = face.submit(begin="+2h", idempotency_key="k")
    assert face.submit(begin="+2h", idempotency_key="k")["id"] == first["id"]


def test_running_it_again_does_not_wait_again(face: Face) -> None:
    id_ = face.submit(begin="+2h")["id"]
    face.post(f"/api/v1/sessions/{id_}/cancel")
    again = face.tx(lambda tx: intents.requeue(tx, id_, "againagain", "user:admin"))
    assert (again.spec.begin, again.not_before) == (None, 0.0)


def test_it_starts_at_its_time(served: Served) -> None:
    node = served.node().register()
    id_ = served.submit(begin="+1s")["id"]

    def started() -> bool:
        node.exchange()
        return served.get(f"/api/v1/sessions/{id_}")["phase"] == "starting"

    served.until(started, "the session starts")
    history = served.get(f"/api/v1/sessions/{id_}/history")
    submitted, placed = (datetime.fromisoformat(one["at"]) for one in history[:2])
    assert 1.0 <= (placed - submitted).total_seconds() < 10.0
