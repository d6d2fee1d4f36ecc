"""Probes, metrics and doctor: they say what is so, also when it is not well."""

from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from corral.api.app import create_app
from corral.api.routes.cluster import loop_findings
from corral.clock import SystemClock, SystemIds
from corral.ports import Tx
from corral.reconcile.intents import cancel
from corral.reconcile.loop import LoopHealth
from corral.store import sql
from corral.store.create import open_store
from corral.store.reads import SqlReads
from tests.api.face import Face, Served, problem


def test_probes_need_no_credential(served: Served) -> None:
    for path in ("/livez", "/readyz", "/metrics", "/version", "/", "/openapi.json"):
        assert served.client.get(path, headers={"Authorization": ""}).status_code == 200, path
    ready = served.until(
        lambda: (view := served.get("/readyz"))["ready"] and all(one["ticks"] for one in view["loops"]) and view,
        "ready",
    )
    assert {one["name"] for one in ready["loops"]} >= {"placement", "claims", "sessions", "nodes", "members"}
    assert all(one["running"] for one in ready["loops"])


def test_metrics_count_sessions_loops_exchanges_and_transactions(served: Served) -> None:
    served.node().register().exchange()
    served.submit(hold=True)
    page = served.client.get("/metrics").text
    for line in ('corral_sessions{phase="pending"} 1.0', 'corral_nodes{state="up"} 1.0',
                 'corral_exchanges_total{answer="empty"} 1.0', 'corral_transaction_seconds_count{name="submit"} 1.0',
                 'corral_loop_running{loop="placement"} 1.0'):  # fmt: skip
        assert line in page, line
    assert 'corral_loop_ticks{loop="placement"}' in page


def test_metrics_count_ends_and_not_what_was_taken_back(face: Face) -> None:
    assert "corral_sessions_ended_total{" not in face.client.get("/metrics").text
    for _ in range(2):
        id_ = face.submit(hold=True)["id"]
        for _ in range(2):
            face.post(f"/api/v1/sessions/{id_}/cancel")
    left = face.submit(hold=True)["id"]

    def breaks_off(tx: Tx) -> None:
        cancel(tx, left, "user:ann")
        raise ValueError("and it is not committed")

    with pytest.raises(ValueError, match="not committed"):
        face.tx(breaks_off)
    page = face.client.get("/metrics").text
    assert 'corral_sessions_ended_total{exit_class="cancelled",outcome="cancelled"} 2.0' in page


def test_doctor_is_clean_on_a_clean_house(served: Served) -> None:
    served.submit(hold=True)
    doctor = served.until(lambda: (found := served.get("/api/v1/doctor"))["ok"] and found, "a clean house")
    assert doctor["findings"] == []
    assert doctor["checked"]["session"] == 1


def test_a_policy_that_kept_the_manager_is_named(database: Path) -> None:
    with Face(database, slow_policies={"order policy mine of group gpu": 12.3}) as face:
        found = face.get("/api/v1/doctor")
    assert found["ok"], "it is a warning"
    (finding,) = found["findings"]
    assert (finding["code"], finding["subject"]) == ("policy_slow", "order policy mine of group gpu")
    assert "for 12s in one pass" in finding["message"]


def test_a_loop_that_is_ill_is_named() -> None:
    well = LoopHealth("well", 2.0, ticks=3, running=True, last_success_at=99.0)
    new = LoopHealth("new", 2.0, ticks=1, running=True)
    dead = LoopHealth("dead", 2.0, running=False)
    late = LoopHealth("late", 2.0, ticks=9, running=True, last_success_at=50.0, last_error="it broke", errors=4)
    failing = LoopHealth("failing", 2.0, ticks=9, running=True, last_error="it broke", errors=9)
    found = {one.subject: one.code for one in loop_findings([well, new, dead, late, failing], 100.0)}
    assert found == {"dead": "loop_stopped", "late": "loop_overdue", "failing": "loop_failing"}


def test_a_database_that_cannot_be_reached_is_a_503_that_says_when_to_come_again(face: Face) -> None:
    face.close_store()
    response = face.request("POST", "/api/v1/sessions", json={"command": ["x"]})
    assert response.status_code == 503, response.text
    assert problem(response)[0] == 503
    assert int(response.headers["retry-after"]) > 0
    assert face.client.get("/livez").status_code == 200
    ready = face.client.get("/readyz")
    assert (ready.status_code, ready.json()["ready"]) == (503, False)


def test_a_fault_of_ours_is_one_problem_without_a_traceback(database: Path) -> None:
    store = open_store(f"sqlite:///{database}", SystemClock(), SystemIds())
    app = create_app(store, SystemClock(), SystemIds(), url="http://127.0.0.1:1")
    app.state.context = None
    try:
        with TestClient(app, raise_server_exceptions=False) as client:
            response = client.get("/api/v1/sessions", headers={"Authorization": "Bearer x"})
    finally:
        store.close()
    assert problem(response) == (500, "internal")
    assert "Traceback" not in response.text


def counted(face: Face) -> dict[str, float]:
    lines = face.client.get("/metrics").text.splitlines()
    return {line.split('"')[1]: float(line.split()[-1]) for line in lines if line.startswith("corral_sessions{")}


def test_counting_looks_at_what_lives_and_now_and_then_at_all(face: Face, monkeypatch: pytest.MonkeyPatch) -> None:
    over, _ = face.submit(), face.submit()
    face.post(f"/api/v1/sessions/{over['id']}/cancel")
    assert counted(face) == {"pending": 1, "ended": 1}
    scans: list[str] = []
    whole = SqlReads.count_sessions
    monkeypatch.setattr(SqlReads, "count_sessions", lambda self: scans.append("all") or whole(self))
    face.submit()
    face.app.state.context.ended.due += 1000
    for _ in range(3):
        assert counted(face) == {"pending": 2, "ended": 1}
        assert face.client.get("/").status_code == 200
    assert scans == []
    face.app.state.context.ended.due -= 2000
    face.post("/api/v1/sessions/last/cancel")
    assert counted(face) == {"pending": 1, "ended": 2}
    assert scans == ["all"]


def test_what_lives_is_counted_by_its_index_and_content_is_looked_up_without_being_read(face: Face) -> None:
    def plan(statement: str, *parameters: str) -> str:
        rows = face.tx(lambda tx: tx._connection.raw.execute(f"EXPLAIN QUERY PLAN {statement}", parameters).fetchall())  # pyright: ignore
        return " ".join(str(row[-1]) for row in rows)

    assert "USING COVERING INDEX session_live" in plan(sql.SESSION_COUNTS_LIVE)
    assert "USING COVERING INDEX" in plan(sql.HAS_BLOB.replace(":digest", "?"), "x")
