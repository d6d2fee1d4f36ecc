"""Whether a repeated idempotency key repeats its request, also across upgrades."""

from dataclasses import replace

import pytest

from corral.api.digests import digests_of
from corral.model.resources import GpuRequest, Resources
from corral.model.spec import SessionSpec
from corral.ports import NewSession
from corral.reconcile import intents
from tests.api.face import Face, problem

ASKED = SessionSpec(
    command=("true", "x y"),
    name="n",
    labels={"b": "2", "a": "1"},
    resources=Resources(2500, 64, GpuRequest(2, model="A100")),
    time_limit_s=60,
)
BODY = {"command": ["true", "x y"], "name": "n", "labels": {"b": "2", "a": "1"}, "cpus": 2.5, "memory": "64MiB",
        "gpus": "A100:2", "time": 60}  # fmt: skip
EARLIER = {  # what Corral itself gave this request before `begin`, before `after`, and with both
    "first": "84f2f2e15b504d0b7b05e4439fd6935104c391c0ffff65ada65bf9462a2904fd",
    "begin": "ade04623d227812144c3e8a8dbad9f46aeec64e3cc37fbfcd02776ac0ca2544f",
    "after": "1fbc698b97f8a4c11f7e327743e5556290e108f1832b25c00dd4913af58c98d1",
}


def test_earlier_digests_are_known() -> None:
    assert set(EARLIER.values()) < set(digests_of([ASKED]))
    later = digests_of([replace(ASKED, begin="+2h")])
    assert len(later) == 3 and not set(later) & set(digests_of([ASKED])), "it could not be asked at first"


def test_a_default_that_is_said_changes_nothing_and_whatever_else_does() -> None:
    first = digests_of([ASKED])[0]
    assert digests_of([replace(ASKED, nodes=1, hold=False, begin=None)])[0] == first
    for other in (
        replace(ASKED, command=("true", "x", "y")),
        replace(ASKED, labels={}),
        replace(ASKED, resources=Resources(2500, 64)),
        replace(ASKED, time_limit_s=61),
        replace(ASKED, hold=True),
        replace(ASKED, environment={"A": ""}),
    ):
        assert digests_of([other])[0] != first
    assert digests_of([ASKED, ASKED])[0] != first


@pytest.mark.parametrize("stored", EARLIER.values())
def test_a_key_from_before_the_upgrade_is_answered(face: Face, stored: str) -> None:
    face.node(gpus=2).register()
    old = NewSession("0123456789", ASKED, "admin", "nightly", stored)
    face.tx(lambda tx: intents.submit(tx, [old], "user:admin"))
    again = face.request("POST", "/api/v1/sessions", json=BODY | {"idempotency_key": "nightly"})
    assert (again.status_code, again.json()["id"]) == (200, "0123456789")
    other = face.request("POST", "/api/v1/sessions", json=BODY | {"idempotency_key": "nightly", "time": 61})
    assert problem(other) == (409, "idempotency_conflict")
