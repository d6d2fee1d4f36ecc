"""From what a client sent to a valid spec: amounts parsed, GPUs put together, what is not built yet refused by name.

Pure. Raises `Invalid`; never ignores a field.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from corral.api.inputs import Amount, MountIn, SessionIn, SignalIn
from corral.model.begin import begin_at
from corral.model.dependency import dependencies_of
from corral.model.faults import Invalid
from corral.model.indices import indices_of
from corral.model.resources import (
    GpuRequest,
    Resources,
    parse_cpu_milli,
    parse_duration_s,
    parse_gpu_model,
    parse_gpus,
    parse_memory_mib,
)
from corral.model.spec import CONTINUATIONS, MAX_SPEC_BYTES, EarlySignal, Mount, OutcomeRule, SessionSpec, validate
from corral.model.wording import length
from corral.wire import spec_to_json

T = TypeVar("T")
Pairs = dict[str, str] | list[str] | None

NOT_AVAILABLE = ("profile", "image", "interactive", "service", "ready_http",
                 "idle_timeout", "max_lifetime", "right_size", "env_compat")  # fmt: skip


def spec_of(asked: SessionIn) -> SessionSpec:
    """The valid spec; `Invalid` names the first option that makes no sense, or is not there yet."""
    _only_what_is_there(asked)
    _nothing_empty(asked)
    spec = validate(
        SessionSpec(
            command=tuple(asked.command),
            name=asked.name or "",
            project=asked.project or "default",
            group=asked.group,
            priority=asked.priority or 0,
            labels=_pairs("label", asked.labels),
            resources=_resources(asked),
            nodes=1 if asked.nodes is None else asked.nodes,
            ranks_per_node=1 if asked.ranks_per_node is None else asked.ranks_per_node,
            exclusive=asked.exclusive,
            on_labels=_pairs("on", asked.on),
            prefer=_preferred(asked.prefer),
            on_nodes=_list(asked.node),
            not_nodes=_list(asked.not_node),
            environment=_pairs("env", asked.env),
            workdir=asked.workdir,
            script=_digest("script", asked.script),
            upload=_digest("upload", asked.upload),
            bootstrap=_digest("bootstrap", asked.bootstrap),
            mounts=tuple(_mount(mount) for mount in asked.mount or ()),
            ports=_ports(asked.port),
            time_limit_s=_amount("time", parse_duration_s, asked.time),
            grace_s=30 if asked.grace is None else _given("grace", parse_duration_s, asked.grace),
            early_signal=_signal(asked.signal),
            retries=asked.retries or 0,
            continuations=CONTINUATIONS if asked.continuations is None else asked.continuations,
            requeue=asked.requeue,
            preemptible=asked.preemptible,
            outcome_rule=OutcomeRule(asked.outcome_rule),
            hold=asked.hold,
            array=None if asked.array is None else str(indices_of(asked.array)),
            begin=_begin(asked.begin),
            after=tuple(f"{needs}:{kind}" for needs, kind in dependencies_of(_list(asked.after))),
            options=asked.options or {},
        )
    )
    size = len(spec_to_json(spec))
    if size > MAX_SPEC_BYTES:
        raise Invalid("spec_too_large", f"the session's description is {size} bytes long; at most {MAX_SPEC_BYTES}")
    return spec


def _begin(text: str | None) -> str | None:
    if text is not None:
        begin_at(text, 0.0)  # refuses what is no time; which time it is, the stored submit says
    return text


def _nothing_empty(asked: SessionIn) -> None:
    """An unset variable of a shell, most likely: to take it for nothing said would be to ignore it."""
    for name in ("project", "gpu_model", "gpu_arch", "runtime"):
        if getattr(asked, name) == "":
            option = "--" + name.replace("_", "-")
            raise Invalid("empty_value", f"{option} is empty; leave it out, or say which", subject=option)


def _only_what_is_there(asked: SessionIn) -> None:
    for name in NOT_AVAILABLE:
        if getattr(asked, name) not in (None, False, []):
            raise _not_available(name)
    if asked.runtime not in (None, "process"):
        raise _not_available("runtime", f" {asked.runtime} is not available in this release, which starts processes")
    if asked.on_node_loss != "hold":
        raise _not_available("on_node_loss", f" {asked.on_node_loss} is not available in this release; hold is")


def _not_available(field: str, more: str = "") -> Invalid:
    option = "--" + field.replace("_", "-")
    return Invalid("not_available", f"{option}{more or ' is not available in this release'}", subject=option)


def _resources(asked: SessionIn) -> Resources:
    plain = Resources()
    return Resources(
        cpu_milli=plain.cpu_milli if asked.cpus is None else _given("cpus", parse_cpu_milli, asked.cpus),
        memory_mib=plain.memory_mib if asked.memory is None else _given("memory", parse_memory_mib, asked.memory),
        gpu=_gpu(asked),
    )


def _gpu(asked: SessionIn) -> GpuRequest | None:
    """GPUs from four options. VRAM alone is a share by memory; a model or architecture alone says too little."""
    vram_mib = _amount("vram", parse_memory_mib, asked.vram) or 0
    if asked.gpus is None and vram_mib:
        base: GpuRequest | None = GpuRequest(share_milli=0)
    else:
        base = _amount("gpus", parse_gpus, asked.gpus)
    if base is None:
        if vram_mib or asked.gpu_model or asked.gpu_arch:
            raise Invalid("gpus_missing", "--vram, --gpu-model and --gpu-arch describe GPUs; say how many with --gpus")
        return None
    if asked.gpu_model and base.model and asked.gpu_model != base.model:
        raise Invalid("contradiction", f"--gpus asks for {base.model}, --gpu-model for {asked.gpu_model}")
    model = _amount("gpu-model", parse_gpu_model, asked.gpu_model)
    return GpuRequest(
        count=base.count,
        share_milli=base.share_milli,
        vram_mib=vram_mib,
        model=model or base.model,
        arch=asked.gpu_arch,
    )


def _given(option: str, parse: Callable[[str], T], value: Amount) -> T:
    text = _plain_number(value)
    try:
        return parse(text)
    except Invalid as error:
        raise Invalid(error.code, f"--{option}: {error.message}", subject=f"--{option}") from None


def _plain_number(value: Amount) -> str:
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() and abs(value) < 2**53 else repr(value)
    return str(value)


def _amount(option: str, parse: Callable[[str], T], value: Amount | None) -> T | None:
    return None if value is None else _given(option, parse, value)


def time_limit_of(value: Amount | None) -> int | None:
    """The time limit of an update; `Invalid` when it is none."""
    seconds = _amount("time", parse_duration_s, value)
    if seconds is not None and not 1 <= seconds <= 10 * 365 * 86400:
        raise Invalid("out_of_range", f"time is {length(seconds)}; it must be between 1s and ten years")
    return seconds


def _pairs(option: str, value: Pairs) -> dict[str, str]:
    if not isinstance(value, list):
        return value or {}
    return dict(_pair(option, text) for text in value)


def _pair(option: str, text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals:
        raise Invalid("bad_pair", f"--{option} {text[:80]!r} is not KEY=VALUE", subject=f"--{option}")
    return key, value


def _preferred(value: Pairs) -> tuple[tuple[str, str], ...]:
    """In their order, each once; one key may come with several values."""
    pairs = [_pair("prefer", text) for text in value] if isinstance(value, list) else (value or {}).items()
    return tuple(dict.fromkeys(pairs))


def _list(value: Sequence[str] | str | None) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else tuple(value or ())


def _digest(option: str, value: str | None) -> str | None:
    if value is None or is_digest(value):
        return value
    raise Invalid("bad_digest", f"{option} {value[:80]!r} is not sha256:… of stored content", subject=option)


def is_digest(text: str) -> bool:
    kind, _, digits = text.partition(":")
    return kind == "sha256" and len(digits) == 64 and not set(digits) - set("0123456789abcdef")


def _mount(value: MountIn | str) -> Mount:
    if isinstance(value, MountIn):
        return Mount(value.source, value.target, value.read_only)
    parts = value.split(":")
    if len(parts) == 2 or (len(parts) == 3 and parts[2] in ("ro", "rw")):
        return Mount(parts[0], parts[1], parts[2:] == ["ro"])
    raise Invalid("bad_mount", f"--mount {value[:80]!r} is not SRC:DST or SRC:DST:ro", subject="--mount")


def _ports(value: dict[str, int] | list[str] | None) -> dict[str, int]:
    if not isinstance(value, list):
        return value or {}
    ports: dict[str, int] = {}
    for text in value:
        name, _, number = text.rpartition(":")
        if not name or not number.isascii() or not number.isdigit() or len(number) > 5:
            raise Invalid("bad_port", f"--port {text[:80]!r} is not NAME:PORT", subject="--port")
        ports[name] = int(number)
    return ports


def _signal(value: SignalIn | str | None) -> EarlySignal | None:
    if value is None:
        return None
    if isinstance(value, SignalIn):
        return EarlySignal(value.signal.removeprefix("SIG"), value.before_s)
    name, at, seconds = value.partition("@")
    if not at:
        seconds = "60"
    return EarlySignal(name.upper().removeprefix("SIG"), _given("signal", parse_duration_s, seconds))
