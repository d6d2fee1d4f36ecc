"""Whatever is wrong: one line, the right exit code, never a traceback."""

import json
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from corral.client.config import DEFAULT_URL
from corral.client.errors import unreachable
from tests.cli.conftest import Corral

BAD = [
    # usage
    ([], 2), (["frobnicate"], 2), (["submit"], 2), (["submit", "--"], 2), (["run"], 2),
    (["submit", "--nodes", "x", "--", "true"], 2),
    (["submit", "--nodes"], 2),
    (["submit", "--frob", "--", "true"], 2),
    (["submit", "--outcome-rule", "maybe", "--", "true"], 2),
    (["submit", "--on-node-loss", "panic", "--", "true"], 2),
    (["submit", "--env", "=x", "--", "true"], 2),
    (["submit", "--env", "NOT_SET_ANYWHERE", "--", "true"], 2),
    (["submit", "--env", "1A=x", "--", "true"], 2),
    (["submit", "--env", "CORRAL_RANK=1", "--", "true"], 2),
    (["submit", "--label", "x", "--", "true"], 2),
    (["submit", "--on", "x", "--", "true"], 2),
    (["submit", "--port", "web", "--", "true"], 2),
    (["submit", "--mount", "x", "--", "true"], 2),
    (["submit", "--memory", "lots", "--", "true"], 2),
    (["submit", "--memory", "99999999999999999999TB", "--", "true"], 2),
    (["submit", "--cpus", "-1", "--", "true"], 2),
    (["submit", "--gpus", "1.5", "--", "true"], 2),
    (["submit", "--gpus", "2:A100", "--", "true"], 2),
    (["submit", "--time", "soon", "--", "true"], 2),
    (["submit", "--time", "0", "--", "true"], 2),
    (["submit", "--signal", "FOO@3", "--time", "1h", "--", "true"], 2),
    (["submit", "--signal", "WHAT@3", "--", "true"], 2),
    (["submit", "--nodes", "0", "--", "true"], 2),
    (["submit", "--retries", "-1", "--", "true"], 2),
    (["submit", "--priority", "99999999999", "--", "true"], 2),
    (["submit", "--name", "a b", "--", "true"], 2),
    (["submit", "--name", "x" * 500, "--", "true"], 2),
    (["submit", "--node", "node-1", "--not-node", "node-1", "--", "true"], 2),
    (["submit", "--workdir", "relative", "--", "true"], 2),
    (["submit", "--env-file", "/nowhere", "--", "true"], 2),
    (["submit", "--bootstrap", "/nowhere", "--", "true"], 2),
    (["submit", "--upload", "/nowhere", "--", "true"], 2),
    (["submit", "-f", "/nowhere"], 2),
    (["submit", "/nowhere/script.sh"], 2),
    (["submit", "true"], 2),
    (["submit", "--", ""], 2),
    (["submit", "--idempotency-key", "x" * 300, "--", "true"], 2),
    # not in this release: said by the control plane, never ignored
    *[(["submit", *option, "--", "true"], 2) for option in (
        ["--image", "x"], ["--runtime", "container"], ["--after", "abc:well"],
        *(["--array", indices] for indices in ("5-1", "0-9%0", "0-1000000", "a-b")),
        ["--begin", "whenever"], ["--profile", "p"], ["-it"], ["--service"], ["--ready-http", "80/"],
        ["--idle-timeout", "1h"], ["--max-lifetime", "1h"], ["--right-size"], ["--env-compat", "slurm"],
        ["--on-node-loss", "requeue"],
    )],
    (["wait", "last", "--timeout", "-1"], 2), (["wait"], 2), (["show"], 2), (["update", "last"], 2),
    (["ps", "--phase", "dreaming"], 2), (["ps", "-o", "xml"], 2), (["ps", "--label", "x"], 2), (["ps", "-n", "-1"], 2),
    (["logs", "last", "--rank", "-1"], 2), (["node"], 2), (["db"], 2), (["db", "upgrade"], 2),
    (["up", "--nodes", "0"], 2), (["up", "--listen", "nowhere"], 2), (["up", "--simulate-gpus", "many"], 2),
    (["up", "--cpus", "x"], 2), (["up", "--cpus", "0"], 2), (["up", "--memory", "0"], 2),
    *[(["db", "upgrade", "--database", f"postgresql://{rest}"], 1) for rest in ("a b", "/?x=1")],
    *[(["submit", "--idempotency-key", key, "--", "true"], 2) for key in ("", " ", "a\nb")],
    (["up", "--memory", "x"], 2), (["up", "--label", "x"], 2),
    (["manager"], 2), (["manager", "--database", "mysql://x"], 2), (["db", "upgrade", "--database", "x"], 2),
    *[(["wait", "zzzzzzzzzz", option, amount], 2) for option in ("--timeout", "--patience")
      for amount in ("nan", "inf", "1e999", "-0.1", "x", "")],
    (["version", "--config", "/nowhere"], 2), (["version", "--url", "nonsense"], 2),
    (["ps", "--token", "two words"], 2), (["ps", "--token", "tökén"], 2), (["ps", "--token", "a\nb"], 2),
    *[(["show", text], 2) for text in ("\udcff\udcfe",)],
    *[(["node", "show", name], 3) for name in ("", ".", "..", "a/b", "x" * 5000)],
    *[(["node", "confirm-dead", name], 3) for name in ("", "..", "a/b", "x" * 5000)],
    *[(["submit", option, "", "--", "true"], 2) for option in (
        "--upload", "--bootstrap", "--env-file", "--config", "--project", "--gpu-model", "--gpu-arch", "--profile",
        "--image", "--array", "--begin", "--group", "--workdir", "--node", "--memory", "--time", "--retries",
    )],
    (["submit", "-f", "", "--", "true"], 2), (["submit", ""], 2), (["submit", "x" * 5000], 2),
    (["submit", "--upload", "x" * 5000, "--", "true"], 2), (["submit", "--nodes", "x" * 100_000, "--", "true"], 2),
    (["up", "--data-dir", ""], 2), (["manager", "--database", "sqlite:////x", "--token-file", ""], 2),
    # not there
    *[([verb, "zzzzzzzzzz"], 3) for verb in (
        "show", "wait", "cancel", "hold", "release", "requeue", "explain", "history", "audit-launch", "logs",
    )],
    (["update", "zzzzzzzzzz", "--priority", "1"], 3),
    (["show", ""], 3), (["show", ".."], 3), (["show", "a/b"], 3), (["show", "ünïcode"], 3), (["show", "zz"], 3),
    (["node", "show", "node-77"], 3), (["node", "confirm-dead", "node-77"], 3),
    (["submit", "--group", "nowhere", "--", "true"], 3),
    # refused
    (["submit", "--cpus", "5000", "--", "true"], 4),
    (["submit", "--gpus", "H100:1", "--", "true"], 4),
    (["submit", "--memory", "900TB", "--", "true"], 4),
    (["submit", "--nodes", "9", "--", "true"], 4),
    (["submit", "--node", "node-77", "--", "true"], 4),
]  # fmt: skip


@pytest.mark.parametrize(
    ("words", "code"), BAD, ids=lambda value: " ".join(value)[:60] if isinstance(value, list) else ""
)
def test_bad_input_is_one_line(corral: Corral, words: list[str], code: int) -> None:
    done = corral(*words)
    assert done.code == code, done.err
    if words:
        assert done.error.startswith("corral: ")
        assert len(done.error) < 1100
        assert done.out == ""


@pytest.mark.parametrize(
    ("words", "code", "name"),
    [
        (["show", "zzzzzzzzzz", "-o", "json"], 3, "no_such_session"),
        (["submit", "-o", "json", "--image", "x", "--", "true"], 2, "not_available"),
        (["submit", "-ojson", "--nodes", "x", "--", "true"], 2, "usage"),
        (["ps", "--output=json", "--frob"], 2, "usage"),
        (["submit", "-o", "json", "nowhere.sh"], 2, "no_script"),
    ],
)
def test_an_error_as_json_is_the_problem_document(corral: Corral, words: list[str], code: int, name: str) -> None:
    done = corral(*words)
    document = json.loads(done.error)
    assert (done.code, document["code"]) == (code, name)
    assert document["detail"]


def test_asking_json_of_the_command_itself_is_not_asking_us(corral: Corral) -> None:
    done = corral("submit", "--gpus", "H100:1", "--", "x", "-o", "json")
    assert done.error.startswith("corral: ")


def test_nobody_there_is_5(corral: Corral) -> None:
    for words in (["ps"], ["submit", "--", "true"], ["run", "--", "true"], ["wait", "last"], ["logs", "-f", "last"]):
        done = corral(*words, "--url", "http://127.0.0.1:1") if "--" not in words else None
        if done is None:
            done = corral(words[0], "--url", "http://127.0.0.1:1", *words[1:])
        assert done.code == 5
        assert "http://127.0.0.1:1" in done.error


def test_a_wrong_token_is_not_allowed(corral: Corral) -> None:
    done = corral("ps", "--token", "corral_wrong")
    assert done.code == 3
    assert "token" in done.error


def test_what_is_no_control_plane_is_said(corral: Corral, tmp_path: Path) -> None:
    for words, code in (
        (["--url", "ftp://x"], 2),
        (["--url", "no address"], 2),
        (["--config", str(tmp_path / "none.toml")], 2),
    ):
        done = corral("ps", *words)
        assert done.code == code
        assert done.error


def test_several_ids_are_all_tried(corral: Corral) -> None:
    id_ = corral("submit", "--hold", "--", "true").line
    done = corral("cancel", "zzzzzzzzzz", id_)
    assert (done.code, done.line) == (3, id_)
    assert corral("show", id_, "-o", "json").json()["wanted"] == "stop"


def test_a_spec_file_that_is_wrong(corral: Corral, tmp_path: Path) -> None:
    spec = tmp_path / "spec"
    for content in (
        b"", b"# nothing\n", b"[", b"{", b"a: [", b"just text", b"- 3", b"1: 2", b"\xff\xfe", b"\0", b"a: !!python/x y",
        b"command: [true]", b"command: ['true']\nfrob: 1", b'{"command": ["true"], "nodes": "x"}', b"x: &a [*a]",
        b'{"command": ["true"], "cpus": NaN}', b"[" * 5000, b'{"sessions": []}',
    ):  # fmt: skip
        spec.write_bytes(content)
        done = corral("submit", "-f", str(spec))
        assert (content, done.code) == (content, 2), done.err
        assert done.error


def test_huge_specs_are_one_line(corral: Corral, tmp_path: Path) -> None:
    spec = tmp_path / "spec.json"
    spec.write_text(json.dumps({"command": ["true"], "env": {f"V{n}": "x" * 1000 for n in range(1500)}}))
    assert corral("submit", "-f", str(spec)).code == 2
    spec.write_text(json.dumps({"command": ["x" * 200_000]}))
    assert corral("submit", "-f", str(spec)).code == 2
    spec.write_bytes(b" " * (9 * 1024 * 1024))
    assert "larger than" in corral("submit", "-f", str(spec)).error


@pytest.mark.parametrize(
    "where", [["--", b"\xff\xfe"], ["--name", b"\xff", "--", b"true"], ["--env", b"A=\xff", "--", b"true"]]
)
def test_bytes_that_are_no_text_are_one_line(environment: dict[str, str], where: list[str | bytes]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "corral", "submit", *where], capture_output=True, env=environment, timeout=60
    )
    assert done.returncode == 2
    assert done.stderr.count(b"\n") == 1
    assert b"Traceback" not in done.stderr


def test_a_process_that_cannot_start_says_why(corral: Corral, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        done = corral("up", "--data-dir", str(tmp_path / "data"), "--no-login", "--listen", address)
    assert (done.code, address in done.error) == (1, True)
    done = corral("manager", "--database", f"sqlite:///{tmp_path}/none.db")
    assert (done.code, "corral db upgrade" in done.error) == (1, True)
    assert corral("db", "upgrade", "--database", "sqlite:////proc/none/x.db").code == 1


def test_an_agents_own_options_reach_it(environment: dict[str, str]) -> None:
    words = [sys.executable, "-m", "corral", "agent"]
    helped = subprocess.run([*words, "--help"], capture_output=True, text=True, env=environment, timeout=60)
    assert (helped.returncode, "--token-file" in helped.stdout) == (0, True)
    wrong = subprocess.run([*words, "--frob"], capture_output=True, text=True, env=environment, timeout=60)
    assert wrong.returncode == 2
    assert "Traceback" not in wrong.stderr


def test_a_binary_is_no_script(corral: Corral) -> None:
    done = corral("submit", "/bin/true")
    assert done.code == 2
    assert "after `--`" in done.error


def test_nobody_there_is_said_in_plain_words(corral: Corral) -> None:
    assert corral("ps", "--url", "http://127.0.0.1:1").error == (
        "corral: cannot reach the control plane at http://127.0.0.1:1: Connection refused; is it running?"
    )
    assert "; is it running?; `corral up` starts one, CORRAL_URL, --url or --config names another" in str(
        unreachable(DEFAULT_URL, OSError("refused"))
    )
    with socket.create_server(("127.0.0.1", 0)) as other:

        def hang_up() -> None:
            with other.accept()[0] as connection:
                connection.recv(65536)

        thread = threading.Thread(target=hang_up, daemon=True)
        thread.start()
        line = corral("group", "create", "x", "--url", f"http://127.0.0.1:{other.getsockname()[1]}").error
        thread.join(10)
    assert "Error" not in line
    assert "broke off" in line


@pytest.mark.parametrize("closed", ["1", "2", "0 1", "0 1 2"])
@pytest.mark.parametrize(
    "words", [["ps"], ["show", "zzzzzzzzzz"], ["frobnicate"], ["submit", "--dry-run", "--", "true"]]
)
def test_streams_that_are_closed_are_no_traceback(environment: dict[str, str], closed: str, words: list[str]) -> None:
    shut = " ".join(f"{number}{'<' if number == '0' else '>'}&-" for number in closed.split())
    done = subprocess.run(
        ["sh", "-c", f'exec "$@" {shut}', "sh", sys.executable, "-m", "corral", *words],
        capture_output=True, env=environment, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == {"ps": 0, "show": 3, "frobnicate": 2, "submit": 0}[words[0]], done.stderr
    assert len(done.stderr.splitlines()) == (1 if done.returncode and "2" not in closed else 0), done.stderr
    assert done.stdout == "" or "1" not in closed


def test_a_full_disk_under_the_output_is_one_line(environment: dict[str, str]) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "corral", "version"],
            stdout=full, stderr=subprocess.PIPE, env=environment, text=True, timeout=60,
        )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr == "corral: No space left on device\n"


def test_a_fault_of_our_own_is_one_line_too(corral: Corral, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise KeyError("unforeseen")

    monkeypatch.setattr("corral.client.sync.Client.nodes", broken)
    done = corral("nodes")
    assert (done.code, "unforeseen" in done.error, "CORRAL_TRACEBACK" in done.error) == (1, True, True)


BAD_SPECS = {
    "no text": b"\xff\xfe",
    "itself": b"a: &a [*a]",
    "a date": b"command: [x]\nbegin: 2020-01-01",
    "bytes": b"command: !!binary aGVsbG8=",
    "no number": b"command: [x]\ncpus: .nan",
    "an empty key": b'{"command": ["x"], "idempotency_key": ""}',
    "a bomb": b"a: &a [x,x,x,x,x,x,x,x,x,x]\n" + b"".join(
        b"%c: &%c [%b]\n" % (name, name, b",".join([b"*%c" % (name - 1)] * 10)) for name in b"bcdefghij"
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", BAD_SPECS)
def test_a_request_on_stdin_that_is_none_is_one_line(environment: dict[str, str], what: str) -> None:
    command = [sys.executable, "-m", "corral", "submit", "-f", "-"]
    done = subprocess.run(command, input=BAD_SPECS[what], capture_output=True, env=environment, timeout=60)
    (line,) = done.stderr.decode().splitlines()
    assert (done.returncode, done.stdout) == (2, b""), line
    assert not [word for word in ("codec", "serializable", "Errno", "Traceback") if word in line], line


@pytest.mark.parametrize(
    "option", ["--url http://127.0.0.1:1", "--url=http://127.0.0.1:1", "--token x", "--config x", "-h"]
)
def test_a_script_does_not_say_whom_to_speak_to(corral: Corral, tmp_path: Path, option: str) -> None:
    script = tmp_path / "job.sh"
    script.write_text(f"#!/bin/sh\n#CORRAL {option}\n")
    done = corral("submit", str(script))
    assert (done.code, "line 2" in done.error, done.out) == (2, True, "")


def test_an_idempotency_key_may_be_any_text(corral: Corral) -> None:
    words = ["submit", "--idempotency-key", "schlüssel", "--hold", "--", "true"]
    first, again = corral(*words).line, corral(*words).line
    assert first == again
    corral("cancel", first)
