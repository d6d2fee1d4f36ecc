"""Starting a process of Corral with what it cannot use: one line that names the thing and what to do."""

import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.end_to_end.control_plane import CORRAL, Plane, plane, wait_until


def corral(*words: str | bytes, timeout_s: float = 60) -> tuple[int, str]:
    """Exit code and the one line of error."""
    command = [*CORRAL, *words]
    done = subprocess.run(command, capture_output=True, timeout=timeout_s)
    assert done.stdout == b""
    (line,) = done.stderr.decode().splitlines()
    assert line.startswith("corral: ")
    assert not [word for word in ("Error", "[Errno", "Traceback") if word in line], line
    return done.returncode, line


def up(data_dir: Path | str, *more: str) -> tuple[int, str]:
    return corral("up", "--no-login", "--listen", "127.0.0.1:0", "--data-dir", str(data_dir), *more)


# --- tokens

NO_TOKENS = [b"", b" \n\t", b"\xff\xfe\x00\x01", b"two words\n", b"x" * 5000, "tökén\n".encode()]
BAD_FILES = [*(("admin.token", content) for content in NO_TOKENS), ("agent.token", b"")]


@pytest.mark.parametrize(("name", "content"), BAD_FILES, ids=repr)
def test_a_file_that_holds_no_token_is_refused_at_start(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    code, line = up(tmp_path)
    assert code == 1
    assert f"{tmp_path}/{name}" in line
    assert "delete the file" in line
    assert (tmp_path / name).read_bytes() == content
    assert not (tmp_path / "client.toml").exists()


def test_one_token_for_administrators_and_agents_is_refused(tmp_path: Path) -> None:
    for name in ("admin.token", "agent.token"):
        (tmp_path / name).write_text("the-same\n")
    code, line = up(tmp_path)
    assert code == 1
    assert "the same token" in line


def test_a_manager_and_an_agent_refuse_such_a_file_too(tmp_path: Path) -> None:
    database = f"sqlite:///{tmp_path}/c.db"
    assert subprocess.run([*CORRAL, "db", "upgrade", "--database", database], timeout=60).returncode == 0
    token = tmp_path / "t"
    token.write_bytes(b"")
    code, line = corral("manager", "--database", database, "--listen", "127.0.0.1:0", "--token-file", str(token))
    assert (code, str(token) in line) == (1, True)
    for content in (b"", b"\xff\n", b"a b\n"):
        token.write_bytes(content)
        code, line = agent(tmp_path, "--token-file", str(token))
        assert (code, str(token) in line) == (2, True)


# --- places

ODD_PLACES = ["/proc/x", "/proc/self/fd/x/y", "/dev/null", "/dev/null/x", "/sys/kernel/x", "/x" * 3000, "/" + "x" * 300]


@pytest.mark.parametrize("place", ODD_PLACES, ids=lambda place: place[:20])
def test_a_place_that_cannot_be_used_is_named(place: str) -> None:
    code, line = up(place)
    assert code == 2
    assert line.startswith(f"corral: --data-dir {place[:200]} cannot be used: ")


def test_a_database_that_is_none_is_named(tmp_path: Path) -> None:
    (tmp_path / "garbage").mkdir()
    (tmp_path / "garbage" / "corral.db").write_bytes(b"no database at all" * 500)
    (tmp_path / "folder" / "corral.db").mkdir(parents=True)
    for name in ("garbage", "folder"):
        code, line = up(tmp_path / name)
        assert (code, f"{tmp_path / name}/corral.db" in line) == (1, True), line
        assert corral("db", "upgrade", "--database", f"sqlite:///{tmp_path / name}/corral.db") == (1, line)


@pytest.mark.parametrize("place", ["/proc/x.db", "/nowhere/at/all.db", "/dev/null/x.db"])
def test_a_database_in_a_place_that_is_none_is_named(place: str) -> None:
    code, line = corral("db", "upgrade", "--database", f"sqlite://{place}")
    assert (code, place in line) == (1, True), line


def test_a_path_that_is_no_text_is_one_line(tmp_path: Path) -> None:
    code, line = corral("up", "--no-login", "--data-dir", os.fsencode(tmp_path) + b"/\xff\xfe")
    assert code == 2
    assert "UTF-8" in line


def test_an_address_that_is_taken_is_named(tmp_path: Path) -> None:
    code, line = corral("up", "--no-login", "--data-dir", str(tmp_path), "--listen", "192.0.2.1:1")
    assert (code, "192.0.2.1:1" in line) == (1, True)
    code, line = corral("up", "--no-login", "--data-dir", str(tmp_path), "--listen", "no-such-host.invalid:0")
    assert (code, "no-such-host.invalid" in line) == (1, True)


# --- a copy


def test_a_manager_takes_as_many_connections_as_the_hard_limit_allows(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
    try:
        with plane(tmp_path) as running:
            assert running.process is not None
            assert resource.prlimit(running.process.pid, resource.RLIMIT_NOFILE) == (min(hard, 65536), hard)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.fixture
def copied(tmp_path: Path) -> Iterator[tuple[Plane, Path]]:
    with plane(tmp_path / "first", check=False) as original:
        original.submit("--name", "kept", "--hold", "--", "true")
        original.stop()
        copy = tmp_path / "copy"
        shutil.copytree(original.data_dir, copy)
        yield original, copy


def test_a_copy_of_the_data_says_what_it_is_and_the_original_goes_on(
    copied: tuple[Plane, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original, copy = copied
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    command = [*CORRAL, "up", "--data-dir", str(copy), "--listen", "127.0.0.1:0"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    line = done.stderr.splitlines()[-1]
    assert (done.returncode, done.stdout) == (1, "")
    assert line.startswith(f"corral: the data in {copy} was made in another place")
    assert "--data-dir" in line
    assert not (tmp_path / "config" / "corral").exists(), "the user's own configuration was changed"
    original.start()
    assert [one["name"] for one in original.run("ps", "-o", "json").json()] == ["kept"]


# --- agents


def agent(folder: Path, *more: str) -> tuple[int, str]:
    """An agent with these options in place of good ones."""
    (folder / "good.token").write_text("good\n")
    good = {"--manager": "http://127.0.0.1:1", "--token-file": str(folder / "good.token"), "--name": "n",
            "--state-dir": str(folder / "state"), "--run-dir": str(folder / "run")}  # fmt: skip
    given = dict(zip(more[::2], more[1::2], strict=True))
    return corral("agent", *[word for pair in (good | given).items() for word in pair])


BAD_AGENTS = [
    ("--name", "a b", 2), ("--name", "", 2), ("--group", "a/b", 2), ("--manager", "nowhere", 2), ("--manager", "", 2),
    ("--manager", "ftp://x", 2), ("--label", "x", 2), ("--label", "=x", 2), ("--cpus", "x", 2), ("--cpus", "", 2),
    ("--memory", "lots", 2), ("--cpus", "0", 2), ("--memory", "0", 2),
    ("--simulate-gpus", "many", 2), ("--token-file", "/nowhere", 2),
    ("--token-file", "/proc", 2), ("--state-dir", "/proc/x", 1), ("--state-dir", "/dev/null", 1),
    ("--run-dir", "/" + "x" * 200, 2), ("--run-dir", "/proc/x", 1), ("--keeper", "x", 2), ("--keeper", "0", 2),
    ("--keeper", "1", 1), ("--address", "", 2), ("--address", "a b", 2), ("--frob", "x", 2),
]  # fmt: skip


@pytest.mark.parametrize(("option", "value", "code"), BAD_AGENTS)
def test_what_an_agent_cannot_use_is_one_line(tmp_path: Path, option: str, value: str, code: int) -> None:
    found, line = agent(tmp_path, option, value)
    assert found == code, line
    assert option.strip("-") in line or value[:40] in line


def test_an_agent_says_what_is_missing_and_helps() -> None:
    code, line = corral("agent")
    assert (code, "--manager" in line) == (2, True)
    done = subprocess.run([*CORRAL, "agent", "--help"], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout.startswith("Usage: corral agent ")) == (0, True)


def test_a_node_whose_directory_is_a_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "nodes").mkdir()
    (tmp_path / "nodes" / "node-1").write_text("")
    code, line = up(tmp_path)
    assert (code, f"{tmp_path}/nodes/node-1" in line) == (2, True), line


def test_up_ends_when_an_agent_never_can_run(tmp_path: Path) -> None:
    """An agent that refuses its options refuses them each time: `up` says so, once, and ends."""
    command = [*CORRAL, "up", "--no-login", "--data-dir", str(tmp_path), "--listen", "127.0.0.1:0", "--label", "a b=x"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (1, "")
    assert any("--label 'a b=x'" in line for line in done.stderr.splitlines())
    assert done.stderr.splitlines()[-1].startswith("corral: the agent of node-1 cannot run")


def test_one_agent_of_a_state_directory(tmp_path: Path) -> None:
    (tmp_path / "good.token").write_text("good\n")
    words = ["agent", "--manager", "http://127.0.0.1:1", "--token-file", str(tmp_path / "good.token"), "--name", "n",
             "--state-dir", str(tmp_path / "state"), "--run-dir", str(tmp_path / "run")]  # fmt: skip
    first = subprocess.Popen([sys.executable, "-m", "corral", *words], stderr=subprocess.DEVNULL)
    try:
        wait_until(lambda: (tmp_path / "run" / "agent.lock").exists(), "the first agent has its directories")
        code, line = corral(*words)
        assert (code, "another agent runs on" in line) == (1, True)
    finally:
        first.terminate()
        first.wait(30)
