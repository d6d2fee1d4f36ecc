"""The OpenAPI document is true: whatever fits it, and whatever does not, is answered as it says."""

from collections import Counter
from contextlib import suppress

import hypothesis
import pytest
import schemathesis
from hypothesis.errors import Unsatisfiable
from jsonschema_rs import validator_for
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.core.result import Ok
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from tests.api.face import Face, Served, bearer

OF_THE_TRANSPORT = {"connection", "content-length", "expect", "host", "te", "trailer", "transfer-encoding", "upgrade"}
CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]


def test_the_document_is_a_valid_one_of_3_1(face: Face) -> None:
    document = face.get("/openapi.json")
    assert document["openapi"] == "3.1.0"
    assert {"SessionView", "Problem", "SessionIn", "ExplainView"} <= set(document["components"]["schemas"])
    for schema in document["components"]["schemas"].values():
        validator_for(schema | {"components": document["components"]})
    operations = [operation for path in document["paths"].values() for operation in path.values()]
    assert len(operations) > 25
    assert all("default" in operation["responses"] for operation in operations)
    assert not [path for path in document["paths"] if path.startswith("/api/v1/agent/re")]


def test_every_operation_has_an_id_of_its_own(face: Face) -> None:
    paths = face.get("/openapi.json")["paths"].values()
    ids = [operation["operationId"] for path in paths for operation in path.values()]
    assert len(set(ids)) == len(ids)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_made_up_requests_never_break_it(served: Served) -> None:
    served.node(gpus=2).register()
    served.submit()
    served.loop.call_soon_threadsafe(served.stopping.set)  # so that no request waits or follows
    schema = schemathesis.openapi.from_dict(served.get("/openapi.json"))
    tried: Counter[tuple[str, bool]] = Counter()

    def attempt(case: schemathesis.Case, known: bool) -> None:
        if known and "session_id" in (case.path_parameters or {}):
            case.path_parameters["session_id"] = "last"
        for name in [name for name in case.headers or () if name.lower() in OF_THE_TRANSPORT]:
            del case.headers[name]
        response = case.call(base_url=served.url, headers=bearer("admin"))
        tried[case.operation.label, response.status_code < 300] += 1
        following = case.operation.path.endswith("/logs") and response.status_code == 503
        if following and response.json()["code"] == "manager_stopping":
            return  # whoever follows a log is told so, rightly
        case.validate_response(response, checks=CHECKS)
        if response.status_code >= 400 and case.method != "HEAD":
            assert response.headers["content-type"][0].startswith("application/problem+json")

    def wise(case: schemathesis.Case) -> None:
        attempt(case, known=True)

    def unwise(case: schemathesis.Case) -> None:
        attempt(case, known=False)

    settings = hypothesis.settings(
        max_examples=15,
        suppress_health_check=[
            hypothesis.HealthCheck.too_slow,
            hypothesis.HealthCheck.filter_too_much,
            hypothesis.HealthCheck.data_too_large,
        ],
        database=None,
    )
    told_to_stop = schema.exclude(path="/readyz")  # which rightly says 503 now
    for result in told_to_stop.get_all_operations():
        assert isinstance(result, Ok)
        operation = result.ok()
        for mode, known in ((GenerationMode.POSITIVE, True), (GenerationMode.NEGATIVE, False)):
            strategy = operation.as_strategy(generation_mode=mode)
            with suppress(Unsatisfiable):  # an operation without parameters has no wrong ones
                settings(hypothesis.given(strategy)(wise if known else unwise))()
    assert len({label for label, _ in tried}) > 25
    assert len({label for label, went_well in tried if went_well}) > 18
