"""Which control plane is meant: options, environment, files, in that order; a token goes only where it belongs."""

from pathlib import Path

import pytest

from corral.client.config import Connection, resolve
from corral.model.faults import Invalid

HERE, THERE = "http://here:7700", "http://there:7700"


@pytest.fixture
def home(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "corral").mkdir()
    (tmp_path / "corral" / "client.toml").write_text(f'url = "{HERE}"\ntoken = "of-here"\n')
    return {"XDG_CONFIG_HOME": str(tmp_path)}


def test_nothing_said_is_this_machine() -> None:
    assert resolve({"HOME": "/nowhere"}) == Connection("http://127.0.0.1:7700", None)


def test_the_users_file_is_read(home: dict[str, str]) -> None:
    assert resolve(home) == Connection(HERE, "of-here")


def test_the_environment_comes_before_the_file(home: dict[str, str]) -> None:
    assert resolve(home | {"CORRAL_URL": THERE, "CORRAL_TOKEN": "t"}) == Connection(THERE, "t")
    assert resolve(home | {"CORRAL_TOKEN": "t"}) == Connection(HERE, "t")


def test_options_come_before_the_environment(home: dict[str, str]) -> None:
    said = resolve(home | {"CORRAL_URL": HERE, "CORRAL_TOKEN": "t"}, url=THERE, token="own")
    assert said == Connection(THERE, "own")


def test_a_token_from_a_file_goes_to_no_other_address(home: dict[str, str]) -> None:
    assert resolve(home, url=THERE) == Connection(THERE, None)
    assert resolve(home | {"CORRAL_URL": THERE}) == Connection(THERE, None)
    assert resolve(home, url=HERE + "/") == Connection(HERE, "of-here")


def test_a_file_named_by_the_caller_comes_before_the_environment(home: dict[str, str], tmp_path: Path) -> None:
    file = tmp_path / "other.toml"
    file.write_text(f'url = "{THERE}"\ntoken = "of-there"\n')
    assert resolve(home | {"CORRAL_URL": HERE, "CORRAL_TOKEN": "t"}, config=file) == Connection(THERE, "of-there")


def test_a_token_is_not_shown() -> None:
    assert "secret" not in repr(Connection(HERE, "secret"))


@pytest.mark.parametrize("content", [b"url = ", b"\xff", b"url = 3", b'token = ["x"]'])
def test_a_file_that_is_wrong_is_named(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "c.toml"
    file.write_bytes(content)
    with pytest.raises(Invalid, match=r"c\.toml") as wrong:
        resolve({}, config=file)
    assert wrong.value.code == "bad_config"


@pytest.mark.parametrize("url", ["ftp://x", "http://", "here:7700", "http://x:99999", "http://x\n.y", "http://[::1"])
def test_an_address_that_is_none(url: str) -> None:
    with pytest.raises(Invalid) as wrong:
        resolve({}, url=url)
    assert wrong.value.code == "bad_url"
