"""Whatever a client sends, it gets one clear problem with a stable code, and nothing is stored."""

from typing import Any

import pytest

from tests.api.face import Face, problem

RUN = {"command": ["/bin/true"]}
FIELDS: list[tuple[dict[str, Any], str, str]] = [
    # the body's fields             the code            a word the message must have
    ({"command": []},               "no_command",       "command"),
    ({"command": [""]},             "no_command",       "empty"),
    ({"command": "ls"},             "bad_request",      "command"),
    ({"command": ["a\x00b"]},       "nul_byte",         "argument 0"),
    ({"command": ["x" * 200_000]},  "too_long",         "argument 0"),
    ({"command": ["x" * 100_000] * 30}, "spec_too_large", "bytes"),
    ({"command": [1]},              "bad_request",      "command[0]"),
    ({"colour": "red"},             "bad_request",      "colour: there is no such field"),
    ({"name": "a b"},               "bad_name",         "name"),
    ({"name": 5},                   "bad_request",      "name"),
    ({"project": "-x"},             "bad_project",      "project"),
    ({"group": "no/such"},          "bad_group",        "group"),
    ({"cpus": "many"},              "bad_cpus",         "--cpus"),
    ({"cpus": "0.0001"},            "bad_cpus",         "finer"),
    ({"cpus": -1},                  "bad_cpus",         "--cpus"),
    ({"cpus": 1e300},               "bad_cpus",         "--cpus"),
    ({"cpus": True},                "bad_request",      "cpus"),
    ({"cpus": 2**62},               "amount_too_large", "--cpus"),
    ({"memory": "x" * 100},         "bad_request",      "memory: string should have at most 64 characters"),
    ({"cpus": "x" * 100, "name": 5}, "bad_request",     "(and 1 more)"),
    ({"memory": {"x": 1}},          "bad_request",      "memory: input should be a valid string"),
    ({"project": ""},               "empty_value",      "--project"),
    ({"gpu_model": ""},             "empty_value",      "--gpu-model"),
    ({"gpu_arch": "", "gpus": 1},   "empty_value",      "--gpu-arch"),
    ({"runtime": ""},               "not_available",    "--runtime"),
    ({"profile": ""},               "not_available",    "--profile"),
    ({"image": ""},                 "not_available",    "--image"),
    ({"memory": "lots"},            "bad_memory",       "4GiB"),
    ({"memory": "9999999999PB"},    "amount_too_large", "--memory"),
    ({"memory": [1]},               "bad_request",      "memory"),
    ({"cpus": 0},                   "out_of_range",     "cpus"),
    ({"cpus": "0m", "exclusive": True}, "out_of_range", "cpus"),
    ({"memory": 0},                 "out_of_range",     "memory"),
    ({"memory": "0MiB"},            "out_of_range",     "memory"),
    ({"gpus": "1.5"},               "bad_gpus",         "share"),
    ({"gpus": "A100|:1"},           "bad_gpus",         "A100|"),
    ({"gpus": 1, "gpu_model": "A100|"}, "bad_gpus",     "--gpu-model"),
    ({"gpus": "A100:x"},            "bad_gpus",         "--gpus"),
    ({"gpus": 5000},                "out_of_range",     "gpus"),
    ({"gpu_arch": "sm_80"},         "gpus_missing",     "--gpus"),
    ({"gpu_model": "A100"},         "gpus_missing",     "--gpus"),
    ({"gpus": "A100:1", "gpu_model": "H100"}, "contradiction", "A100"),
    ({"nodes": 0},                  "out_of_range",     "nodes"),
    ({"nodes": -3},                 "out_of_range",     "nodes"),
    ({"nodes": 1.5},                "bad_request",      "nodes"),
    ({"nodes": 100, "ranks_per_node": 100}, "out_of_range", "10000"),
    ({"priority": 10**7},           "out_of_range",     "priority"),
    ({"priority": 2**70},           "out_of_range",      "priority"),
    ({"priority": True},            "bad_request",      "priority"),
    ({"labels": ["novalue"]},       "bad_pair",         "KEY=VALUE"),
    ({"labels": {"a b": "c"}},      "bad_label",        "a b"),
    ({"labels": {"a": 1}},          "bad_request",      "labels"),
    ({"labels": {"a": "1"}, "label": {"b": "2"}}, "bad_request", "label"),
    ({"on": ["x"]},                 "bad_pair",         "--on"),
    ({"prefer": ["x"]},             "bad_pair",         "--prefer"),
    ({"prefer": ["a b=c"]},         "bad_label",        "--prefer"),
    ({"prefer": [""]},              "bad_pair",         "--prefer"),
    ({"prefer": ["zone!=a"]},       "bad_label",        "zone!"),
    ({"prefer": {"a": "b\x00"}},    "nul_byte",         "prefer"),
    ({"prefer": "zone=a"},          "bad_request",      "prefer"),
    ({"prefer": [f"a=v{n}" for n in range(17)]}, "too_many", "--prefer"),
    ({"node": "n 1"},               "bad_node_name",    "n 1"),
    ({"node": ["a"], "not_node": ["a"]}, "contradiction", "'a'"),
    ({"env": {"1X": "y"}},          "bad_variable",     "1X"),
    ({"env": {"CORRAL_RANK": "1"}}, "reserved_variable", "CORRAL_RANK"),
    ({"env": {"A": "b\x00"}},       "nul_byte",         "A"),
    ({"env": ["A"]},                "bad_pair",         "--env"),
    ({"env": {f"V{i}": "" for i in range(2000)}}, "too_many", "env"),
    ({"workdir": "here"},           "bad_path",         "absolute"),
    ({"workdir": "/a/../b"},        "bad_path",         ".."),
    ({"mount": ["/a"]},             "bad_mount",        "SRC:DST"),
    ({"mount": ["/a:/b:xx"]},       "bad_mount",        "SRC:DST"),
    ({"mount": ["a:/b"]},           "bad_path",         "mount"),
    ({"mount": [{"source": "/a"}]}, "bad_request",      "target"),
    ({"port": ["http"]},            "bad_port",         "NAME:PORT"),
    ({"port": ["http:99999"]},      "out_of_range",     "port"),
    ({"port": {"http": 0}},         "out_of_range",     "port"),
    ({"time": "soon"},              "bad_duration",     "--time"),
    ({"time": 0},                   "out_of_range",     "time"),
    ({"time": "-5"},                "bad_duration",     "--time"),
    ({"grace": "ever"},             "bad_duration",     "--grace"),
    ({"grace": "2d"},               "out_of_range",     "grace"),
    ({"signal": "KILL@10", "time": "1m"}, "bad_signal", "KILL"),
    ({"signal": "USR1@11y"},        "bad_duration",     "--signal"),
    ({"signal": "USR1@4000d"},      "out_of_range",     "signal"),
    ({"signal": "USR1@2m", "time": "1m"}, "out_of_range", "signal"),
    ({"signal": "USR1@x", "time": "1m"}, "bad_duration", "--signal"),
    ({"retries": -1},               "out_of_range",     "retries"),
    ({"retries": "3"},              "bad_request",      "retries"),
    ({"continuations": -1},         "out_of_range",     "continuations"),
    ({"continuations": 10_000},     "out_of_range",     "9999"),
    ({"continuations": "3"},        "bad_request",      "continuations"),
    ({"begin": "tomorrow"},         "bad_begin",        "--begin"),
    ({"begin": "2026-12-01T08:00"}, "bad_begin",        "offset"),
    ({"begin": "+never"},           "bad_begin",        "--begin"),
    ({"begin": "now+1hour"},        "bad_begin",        "--begin"),
    ({"begin": ""},                 "bad_begin",        "--begin"),
    ({"begin": "9999-01-01T00:00Z"}, "bad_begin",       "--begin"),
    ({"begin": "+20000d"},          "bad_begin",        "ten years"),
    ({"begin": 5},                  "bad_request",      "begin"),
    ({"after": ["abcd:fine"]},      "bad_dependency",   "--after"),
    ({"after": ":ok"},              "bad_dependency",   "--after"),
    ({"after": [""]},               "bad_dependency",   "--after"),
    ({"after": ["abcd"] * 1001},    "bad_dependency",   "1001"),
    ({"after": 5},                  "bad_request",      "after"),
    ({"outcome_rule": "best"},      "bad_request",      "outcome_rule"),
    ({"on_node_loss": "pray"},      "bad_request",      "on_node_loss"),
    ({"script": "run.sh"},          "bad_digest",       "script"),
    ({"upload": "sha256:00"},       "bad_digest",       "upload"),
    ({"script": "sha256:" + "0" * 64}, "no_such_blob",  "PUT"),
    ({"options": {"a b": "c"}},     "bad_label",        "option"),
    ({"idempotency_key": ""},       "bad_request",      "idempotency_key"),
    ({"idempotency_key": "k" * 300}, "bad_request",     "idempotency_key"),
    ({"idempotency_key": "a\nb"},   "bad_idempotency_key", "printable"),
]  # fmt: skip

NOT_YET: list[tuple[dict[str, Any], str]] = [
    ({"profile": "big"}, "--profile"),
    ({"image": "busybox"}, "--image"),
    ({"runtime": "container"}, "--runtime"),
    ({"interactive": True}, "--interactive"),
    ({"service": True}, "--service"),
    ({"ready_http": "80/x"}, "--ready-http"),
    ({"idle_timeout": "2h"}, "--idle-timeout"),
    ({"max_lifetime": "2h"}, "--max-lifetime"),
    ({"right_size": True}, "--right-size"),
    ({"env_compat": ["slurm"]}, "--env-compat"),
    ({"on_node_loss": "requeue"}, "--on-node-loss"),
    ({"on_node_loss": "fail"}, "--on-node-loss"),
]


@pytest.mark.parametrize(
    ("fields", "code", "word"), FIELDS, ids=[f"{i}-{code}" for i, (_, code, _) in enumerate(FIELDS)]
)
def test_fields_that_make_no_sense(deaf: Face, fields: dict[str, Any], code: str, word: str) -> None:
    for path in ("/api/v1/sessions", "/api/v1/sessions:plan"):
        if code in ("no_such_blob", "bad_idempotency_key") and path.endswith("plan"):
            continue
        response = deaf.request("POST", path, json=RUN | fields)
        assert problem(response) == (422, code), response.text
        assert word in response.json()["detail"]
    assert deaf.get("/api/v1/sessions")["sessions"] == []


@pytest.mark.parametrize(("fields", "option"), NOT_YET, ids=[option for _, option in NOT_YET])
def test_options_that_are_not_built_yet_are_refused_by_name(deaf: Face, fields: dict[str, Any], option: str) -> None:
    response = deaf.request("POST", "/api/v1/sessions", json=RUN | fields)
    assert problem(response) == (422, "not_available")
    assert option in response.json()["detail"]


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"", "bad_request"),
        (b"{", "bad_json"),
        (b"null", "bad_request"),
        (b"[]", "bad_request"),
        (b'"x"', "bad_request"),
        (b"\xff\xfe", "bad_json"),
        (b'{"command": ["\\ud800"]}', "bad_json"),
        (b'{"command": ["x"], "cpus": NaN}', "bad_json"),
        (b'{"command": ["x"], "cpus": 1e999}', "bad_json"),
        (b'{"command": ["x"], "priority": ' + b"9" * 5000 + b"}", "bad_json"),
        (b"[" * 100_000, "bad_json"),
        (b'{"a":' * 5000 + b"1" + b"}" * 5000, "bad_json"),
        (b'{"command": ["\xc3"]}', "bad_json"),
    ],
)
def test_bodies_that_are_not_json(deaf: Face, body: bytes, code: str) -> None:
    for path in ("/api/v1/sessions", "/api/v1/sessions:batch", "/api/v1/sessions:plan"):
        response = deaf.request("POST", path, content=body)
        status, got = problem(response)
        assert status == 422
        assert got == code or (path.endswith("batch") and got == "bad_request"), response.text


def test_json_is_read_whatever_the_content_type_says(face: Face) -> None:
    for type_ in ("application/json", "text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""):
        response = face.request(
            "POST", "/api/v1/sessions", content=b'{"command": ["/bin/true"]}', headers={"Content-Type": type_}
        )
        assert response.status_code == 201, (type_, response.text)


def test_a_body_larger_than_agreed_is_refused_before_it_is_read(database: Any) -> None:
    with Face(database, json_limit_bytes=1000, upload_limit_bytes=2000) as face:
        assert problem(face.request("POST", "/api/v1/sessions", content=b"x" * 1001)) == (413, "too_large")
        chunks = iter([b" " * 600, b" " * 600])
        assert problem(face.request("POST", "/api/v1/sessions", content=chunks)) == (413, "too_large")
        assert problem(face.request("PUT", "/api/v1/blobs/sha256:" + "0" * 64, content=b"x" * 2001)) == (
            413,
            "too_large",
        )
        assert problem(face.request("PUT", "/api/v1/blobs/sha256:" + "0" * 64, content=b"x" * 1500))[0] == 422


@pytest.mark.parametrize(
    ("path", "status", "code"),
    [
        ("/api/v1/sessions/zz", 404, "no_such_session"),
        ("/api/v1/sessions/zzzz", 404, "no_such_session"),
        ("/api/v1/sessions/0000000000", 404, "no_such_session"),
        ("/api/v1/sessions/last", 404, "no_such_session"),
        ("/api/v1/sessions/abcdefghij[7]", 404, "no_such_session"),
        ("/api/v1/sessions/%00%00%00%00", 404, "no_such_session"),
        ("/api/v1/sessions/%ff%ff%ff%ff", 404, "no_such_session"),
        ("/api/v1/sessions/a'%20OR%201=1", 404, "no_such_session"),
        ("/api/v1/sessions/" + "x" * 5000, 404, "no_such_session"),
        ("/api/v1/sessions/..%2f..%2fetc", 404, "no_such_route"),
        ("/api/v1/sessions?limit=0", 422, "bad_request"),
        ("/api/v1/sessions?limit=5000", 422, "bad_request"),
        ("/api/v1/sessions?limit=x", 422, "bad_request"),
        ("/api/v1/sessions?cursor=x", 422, "bad_cursor"),
        ("/api/v1/sessions?cursor=-1", 422, "bad_cursor"),
        ("/api/v1/sessions?cursor=" + "9" * 40, 422, "bad_cursor"),
        ("/api/v1/sessions?phase=dancing", 422, "bad_request"),
        ("/api/v1/sessions?owner=%00", 422, "bad_request"),
        ("/api/v1/sessions?label=x", 422, "bad_pair"),
        ("/api/v1/sessions?phase=pending&phase=dancing", 422, "bad_request"),
        ("/api/v1/sessions?state=pending", 422, "unknown_parameter"),
        ("/api/v1/sessions?=", 422, "unknown_parameter"),
        ("/api/v1/sessions?limit=1&limit=2", 422, "bad_request"),
        ("/api/v1/sessions?limit=nan", 422, "bad_request"),
        ("/api/v1/sessions?limit=1e3", 422, "bad_request"),
        ("/api/v1/nodes?name=n1", 422, "unknown_parameter"),
        ("/api/v1/doctor?repair=1", 422, "unknown_parameter"),
        ("/api/v1/sessions/last/wait?timeout_s=nan", 422, "bad_request"),
        ("/api/v1/sessions/last/wait?timeout_s=inf", 422, "bad_request"),
        ("/api/v1/sessions/last/wait?timeout_s=-inf", 422, "bad_request"),
        ("/api/v1/sessions/last/wait?timeout=3", 422, "unknown_parameter"),
        ("/api/v1/sessions/last/logs?rank=inf", 422, "bad_request"),
        ("/api/v1/sessions/last/logs?stream=stdin", 422, "bad_request"),
        ("/api/v1/events?follow=maybe", 422, "bad_request"),
        ("/api/v1/events:page?after=-1", 422, "bad_request"),
        ("/api/v1/events:page?after=" + "9" * 30, 422, "bad_request"),
        ("/api/v1/nodes/none", 404, "no_such_node"),
        ("/api/v1/nodes/%00", 404, "no_such_node"),
        ("/api/v1/nope", 404, "no_such_route"),
        ("/api/v1", 404, "no_such_route"),
        ("/api/v1/sessions/last/nope", 404, "no_such_route"),
    ],
)
def test_paths_and_queries_that_make_no_sense(deaf: Face, path: str, status: int, code: str) -> None:
    assert problem(deaf.request("GET", path)) == (status, code)


def test_a_method_that_a_path_does_not_have(deaf: Face) -> None:
    response = deaf.request("DELETE", "/api/v1/sessions")
    assert problem(response) == (405, "method_not_allowed")
    assert response.headers["allow"]


@pytest.mark.parametrize("host", ["evil.example", "evil.example:7700", "localhost.evil.example", "", "a b"])
def test_a_foreign_host_is_turned_away(deaf: Face, host: str) -> None:
    assert problem(deaf.request("GET", "/api/v1/sessions", headers={"Host": host})) == (421, "bad_host")


@pytest.mark.parametrize("host", ["localhost", "localhost:1", "127.0.0.1:7700", "[::1]:7700", "10.1.2.3"])
def test_addresses_and_own_names_are_answered(deaf: Face, host: str) -> None:
    assert deaf.request("GET", "/api/v1/sessions", headers={"Host": host}).status_code == 200


def test_a_body_that_announces_nonsense_as_its_length_is_no_fault_of_ours(face: Face) -> None:
    for length in ("x", "-1", "9" * 40):
        response = face.request("POST", "/api/v1/sessions", content=b"{}", headers={"Content-Length": length})
        assert response.status_code < 500, (length, response.text)


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({}, "nothing_asked"),
        ({"priority": 10**9}, "out_of_range"),
        ({"time": 0}, "out_of_range"),
        ({"time": "x"}, "bad_duration"),
        ({"group": "a b"}, "bad_group"),
        ({"name": "x"}, "bad_request"),
    ],
)
def test_updates_that_make_no_sense(face: Face, body: dict[str, Any], code: str) -> None:
    id_ = face.submit()["id"]
    assert problem(face.request("PATCH", f"/api/v1/sessions/{id_}", json=body)) == (422, code)


def test_a_parameter_that_would_change_nothing_stores_nothing(deaf: Face) -> None:
    for path in ("/api/v1/sessions?dry_run=1", "/api/v1/sessions:batch?hold=1", "/api/v1/sessions:plan?x"):
        body = {"sessions": [RUN]} if "batch" in path else RUN
        response = deaf.request("POST", path, json=body)
        assert problem(response) == (422, "unknown_parameter")
    assert deaf.get("/api/v1/sessions")["sessions"] == []


def test_probes_may_carry_what_they_like(deaf: Face) -> None:
    for path in ("/livez", "/metrics", "/version"):
        assert deaf.request("GET", f"{path}?_=123").status_code == 200


@pytest.mark.parametrize("key", ["", " ", "\t", "a\x7fb", "x" * 256])
def test_an_idempotency_key_that_is_none_is_not_ignored(deaf: Face, key: str) -> None:
    for path, body in (("/api/v1/sessions", RUN), ("/api/v1/sessions:batch", {"sessions": [RUN]})):
        response = deaf.request("POST", path, json=body, headers={"Idempotency-Key": key})
        assert problem(response)[0] == 422, response.text
        assert "key" in response.json()["detail"].lower()
    assert deaf.get("/api/v1/sessions")["sessions"] == []


@pytest.mark.parametrize("path", ["/api/v1/events?follow=false", "/api/v1/sessions/{id}/logs?follow=true"])
def test_a_place_to_resume_from_that_is_none_is_not_the_beginning(face: Face, path: str) -> None:
    path = path.replace("{id}", face.submit(hold=True)["id"])
    for id_ in ("x", "-1", "9" * 30, "1.5"):
        assert problem(face.request("GET", path, headers={"Last-Event-ID": id_})) == (422, "bad_event_id")


@pytest.mark.parametrize("amount", ["nan", "inf", "-inf", "1e999", "0x10", "1_000", "٣"])
def test_numbers_that_are_none_as_text(deaf: Face, amount: str) -> None:
    for field in ("cpus", "memory", "vram", "time", "grace"):
        response = deaf.request("POST", "/api/v1/sessions", json=RUN | {field: amount})
        assert problem(response)[0] == 422, (field, response.text)
