"""The OpenAPI document is true: whatever fits it, and whatever does not, is answered as it says."""

from typing import Any

import hypothesis
import pytest
import schemathesis
from jsonschema_rs import validator_for
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from tests.api.face import Face, bearer, problem

CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
WITHOUT_END = ("/api/v1/events",)


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
def test_made_up_requests_never_break_it(face: Face) -> None:
    face.node(gpus=2).register()
    face.post("/api/v1/sessions", {"command": ["/bin/true"]})
    face.stopping.set()
    schema = schemathesis.openapi.from_dict(face.get("/openapi.json"))
    tried: dict[str, int] = {}

    def attempt(case: Any) -> None:
        tried[case.operation.label] = tried.get(case.operation.label, 0) + 1
        path = case.formatted_path.replace("//", "/")
        response = case.call(session=face.client, base_url="http://testserver", headers=bearer("admin"))
        case.validate_response(response, checks=CHECKS)
        if response.status_code >= 400 and case.method != "HEAD" and not path.startswith("/readyz"):
            problem(response)

    for result in schema.get_all_operations():
        operation = result.ok()
        run = hypothesis.given(operation.as_strategy())(attempt)
        hypothesis.settings(
            max_examples=25, deadline=None, suppress_health_check=list(hypothesis.HealthCheck), database=None
        )(run)()
    assert len(tried) > 25
