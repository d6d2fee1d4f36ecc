"""What --help shows is what works."""

import inspect
import subprocess
import sys

import pytest

from corral.api.inputs import SessionIn
from corral.api.specs import NOT_AVAILABLE, spec_of
from corral.cli.main import MODULE_OF, app
from corral.cli.options import NOT_YET, SUBMIT
from corral.model.faults import Invalid


def shown(*words: str) -> str:
    command = [sys.executable, "-m", "corral", *words, "--help"]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout


@pytest.mark.parametrize("verb", ["submit", "run"])
def test_options_that_would_be_refused_are_not_among_those_to_choose_from(verb: str) -> None:
    options, _, below = shown(verb).partition("Not built yet")
    for field in NOT_YET:
        flag = f"--{field.replace('_', '-')}"
        assert f"{flag} " not in options
        assert flag in below
    assert "--gpus" in options and "--array" in options


def test_they_are_those_that_the_control_plane_refuses() -> None:
    assert set(NOT_AVAILABLE) <= set(NOT_YET)
    values = {"runtime": "container", "on_node_loss": "fail", "env_compat": ["slurm"], "interactive": True,
              "service": True, "right_size": True}  # fmt: skip
    for field in NOT_YET:
        with pytest.raises(Invalid) as refused:
            spec_of(SessionIn(command=["x"], **{field: values.get(field, "x")}))
        assert refused.value.code == "not_available"
    assert {one.name for one in SUBMIT} >= set(NOT_YET)


@pytest.mark.parametrize("name", MODULE_OF)
def test_every_command_says_what_it_does(name: str) -> None:
    command = app.get_command(None, name)  # pyright: ignore[reportArgumentType]
    assert command is not None and command.help
    assert inspect.cleandoc(command.help).endswith(".")
    assert shown(name).startswith(f"Usage: corral {name}")


def test_every_command_is_listed_with_its_whole_sentence() -> None:
    listed = " ".join(shown().split())
    for name in MODULE_OF:
        command = app.get_command(None, name)  # pyright: ignore[reportArgumentType]
        assert command is not None
        assert f"{name} {' '.join(command.get_short_help_str(1000).split())}" in listed
    assert "..." not in shown().partition("Commands:")[2] + shown("group").partition("Commands:")[2]
