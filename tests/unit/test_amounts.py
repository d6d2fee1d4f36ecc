"""What people write as amounts and times, and the one error for what makes no sense."""

from dataclasses import replace

import pytest

from corral.model.faults import Invalid
from corral.model.resources import (
    GpuRequest,
    parse_cpu_milli,
    parse_duration_s,
    parse_fleet,
    parse_gpus,
    parse_memory_mib,
)
from corral.model.session import Token, parse_token
from corral.model.spec import EarlySignal, Mount, Resources, SessionSpec, validate


@pytest.mark.parametrize(
    ("text", "mib"),
    [
        ("512MiB", 512),
        ("4GiB", 4096),
        ("4G", 4096),
        ("20GB", 19074),
        ("1TiB", 2**20),
        ("0", 0),
        ("1B", 1),
        ("1.5GiB", 1536),
    ],
)
def test_memory(text: str, mib: int) -> None:
    assert parse_memory_mib(text) == mib


@pytest.mark.parametrize(("text", "milli"), [("1", 1000), ("0.5", 500), ("500m", 500), ("2.25", 2250), ("0", 0)])
def test_cpus(text: str, milli: int) -> None:
    assert parse_cpu_milli(text) == milli


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90", 90), ("90s", 90), ("10m", 600), ("2h", 7200), ("1d12h", 129600), ("1:30:00", 5400), ("1-00:00:00", 86400),
     ("2:30", 150), ("0.2s", 1)],
)  # fmt: skip
def test_durations(text: str, seconds: int) -> None:
    assert parse_duration_s(text) == seconds


@pytest.mark.parametrize(
    ("text", "request_"),
    [("2", GpuRequest(2)), ("A100:2", GpuRequest(2, model="A100")), ("0.5", GpuRequest(share_milli=500)),
     ("L4", GpuRequest(model="L4")), ("A100:0.25", GpuRequest(share_milli=250, model="A100")), ("0", None)],
)  # fmt: skip
def test_gpus(text: str, request_: GpuRequest | None) -> None:
    assert parse_gpus(text) == request_


def test_a_fleet_of_simulated_gpus() -> None:
    first, second = parse_fleet("2xH100:80GB:sm_90,1xL4:24GB")
    assert (first.count, first.model, first.arch) == (2, "H100", "sm_90")
    assert (second.count, second.memory_mib, second.arch) == (1, 22889, None)


@pytest.mark.parametrize("parse", [parse_memory_mib, parse_cpu_milli, parse_duration_s, parse_gpus, parse_fleet])
@pytest.mark.parametrize("text", ["", "x y", "-1", "1e400", "1e999999999", "٣", "1/0", "9" * 40, "\x00", "1.2.3"])
def test_nonsense_is_one_clear_error(parse, text: str) -> None:
    with pytest.raises(Invalid) as raised:
        parse(text)
    assert raised.value.code and "\n" not in raised.value.message


def a_spec(**changes) -> SessionSpec:
    return replace(SessionSpec(command=("true",)), **changes)


@pytest.mark.parametrize(
    ("spec", "code"),
    [
        (a_spec(command=()), "no_command"),
        (a_spec(command=("",)), "no_command"),
        (a_spec(command=("a\x00b",)), "nul_byte"),
        (a_spec(command=("\ud800",)), "not_text"),
        (a_spec(command=("x" * 200_000,)), "too_long"),
        (a_spec(nodes=0), "out_of_range"),
        (a_spec(nodes=100, ranks_per_node=100), "out_of_range"),
        (a_spec(resources=Resources(cpu_milli=-1)), "out_of_range"),
        (a_spec(resources=Resources(gpu=GpuRequest(count=2, share_milli=500))), "bad_gpus"),
        (a_spec(name="no spaces"), "bad_name"),
        (a_spec(name="../up"), "bad_name"),
        (a_spec(name="line\n"), "bad_name"),
        (a_spec(project="line\n"), "bad_project"),
        (a_spec(labels={"line\n": "c"}), "bad_label"),
        (a_spec(environment={"LINE\n": "y"}), "bad_variable"),
        (a_spec(labels={"a b": "c"}), "bad_label"),
        (a_spec(environment={"1X": "y"}), "bad_variable"),
        (a_spec(environment={"CORRAL_RANK": "7"}), "reserved_variable"),
        (a_spec(workdir="relative"), "bad_path"),
        (a_spec(mounts=(Mount("/a/../etc", "/b"),)), "bad_path"),
        (a_spec(early_signal=EarlySignal("USR1", 11), time_limit_s=9), "out_of_range"),
        (a_spec(early_signal=EarlySignal("KILL", 5), time_limit_s=9), "bad_signal"),
        (a_spec(on_nodes=("a",), not_nodes=("a",)), "contradiction"),
        (a_spec(time_limit_s=0), "out_of_range"),
        (a_spec(retries=-1), "out_of_range"),
        (a_spec(ports={"web": 70_000}), "out_of_range"),
        (a_spec(env_compat=("pbs",)), "bad_env_compat"),
        (a_spec(labels={f"k{number}": "" for number in range(2000)}), "too_many"),
    ],
)
def test_a_spec_that_makes_no_sense_is_refused(spec: SessionSpec, code: str) -> None:
    with pytest.raises(Invalid) as raised:
        validate(spec)
    assert raised.value.code == code


def test_a_launch_token_reads_back() -> None:
    token = Token(1, "k3f9x2m4qa", 12, 3)
    assert parse_token(str(token)) == token
    for text in ("", "1-s-1", "1-s-x-0", "a-s-1-0", "1-s-1-0-9"):
        with pytest.raises(Invalid):
            parse_token(text)


def test_a_bare_number_that_could_only_be_a_mistake_is_refused() -> None:
    with pytest.raises(Invalid, match="write a unit"):
        parse_memory_mib("5")
    assert (parse_memory_mib("1B"), parse_memory_mib("1048576"), parse_memory_mib("0")) == (1, 1, 0)
