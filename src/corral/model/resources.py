"""Amounts: CPU in milli-CPUs, memory and VRAM in MiB, GPUs whole or in thousandths of one.

Fractions are integers of a thousandth, never floats, so that sums are exact. Parsers accept what people write
(`4GiB`, `20GB`, `1.5`, `A100:2`, `2h`) and raise `Invalid` with what would have been accepted.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

from corral.model.faults import Invalid

WHOLE_GPU_MILLI = 1000
MAX_AMOUNT = 2**50  # far above any machine, far below what a 64-bit column overflows at

_NUMBER = re.compile(r"^[0-9]{1,20}(?:\.[0-9]{1,20})?$")
_MEMORY = re.compile(r"^\s*([0-9]+(?:\.[0-9]+)?)\s*([KMGTP]?)(i?)(B?)\s*$", re.IGNORECASE)
_DURATION = re.compile(
    r"^\s*(?:([0-9]+)d)?\s*(?:([0-9]+)h)?\s*(?:([0-9]+)m)?\s*(?:([0-9]+(?:\.[0-9]+)?)s?)?\s*$", re.IGNORECASE
)
_CLOCK = re.compile(r"^(?:([0-9]+)-)?([0-9]+):([0-9]{2})(?::([0-9]{2}))?$")
_FLEET = re.compile(r"^([0-9]+)x([A-Za-z0-9][A-Za-z0-9_.-]*):([0-9]+(?:\.[0-9]+)?[KMGT]i?B)(?::(sm_[0-9]+))?$")
_MODEL = re.compile(r"^[A-Za-z][A-Za-z0-9_.-]*(?:\|[A-Za-z][A-Za-z0-9_.-]*)*\Z")


@dataclass(frozen=True, slots=True)
class GpuRequest:
    """GPUs one rank asks for.

    `count` whole GPUs when `share_milli` is 1000; otherwise one GPU, shared: `share_milli` of its time and
    `vram_mib` of its memory (0: the same share of the memory as of the time). For whole GPUs `vram_mib` is the least
    total memory each must have. `model` and `arch` (`sm_86`) name what is acceptable, the model perhaps as one of
    several (`A100|H100`); None accepts any.
    """

    count: int = 1
    share_milli: int = WHOLE_GPU_MILLI
    vram_mib: int = 0
    model: str | None = None
    arch: str | None = None

    @property
    def whole(self) -> bool:
        return self.share_milli == WHOLE_GPU_MILLI


@dataclass(frozen=True, slots=True)
class Resources:
    """What one rank needs on its node."""

    cpu_milli: int = 1000
    memory_mib: int = 1024
    gpu: GpuRequest | None = None


@dataclass(frozen=True, slots=True)
class SimulatedGpu:
    """One kind of GPU in a simulated fleet: `count` of `model`, each with `memory_mib`, compute capability `arch`."""

    count: int
    model: str
    memory_mib: int
    arch: str | None


@lru_cache(maxsize=256)  # a batch names the same few amounts a thousand times, and fractions are slow
def parse_memory_mib(text: str) -> int:
    """MiB from `4GiB`, `20GB`, `512M` (M, G, T alone are binary, as Slurm has it); rounded up to a whole MiB."""
    match = _MEMORY.match(text)
    if not match:
        raise Invalid("bad_memory", f"{text!r} is not an amount of memory; write for example 512MiB, 4GiB or 20GB")
    number, unit, binary, byte = match.groups()
    if not unit and not byte and 0 < Fraction(number) < 2**20:
        raise Invalid("bad_memory", f"{text!r} would be bytes, less than one MiB; write a unit, for example 4GiB")
    power = " KMGTP".index(unit.upper()) if unit else 0
    base = 1000 if byte and not binary and unit else 1024
    amount = math.ceil(Fraction(number) * base**power / 2**20)
    return _bounded(amount, text, "memory")


@lru_cache(maxsize=256)
def parse_cpu_milli(text: str) -> int:
    """Milli-CPUs from `2`, `0.5` or `500m`."""
    number, milli = (text[:-1], 1) if text.endswith("m") else (text, 1000)
    if not _NUMBER.match(number):
        raise Invalid("bad_cpus", f"{text!r} is not a number of CPUs; write for example 2, 0.5 or 500m")
    amount = Fraction(number) * milli
    if amount.denominator != 1:
        raise Invalid("bad_cpus", f"{text!r} is finer than a thousandth of a CPU")
    return _bounded(int(amount), text, "number of CPUs")


def parse_duration_s(text: str) -> int:
    """Seconds, rounded up, from `90`, `90s`, `10m`, `2h`, `1d12h`, `1:30:00` or `1-00:00:00` (days-hours:…)."""
    clock = _CLOCK.match(text)
    if clock:
        days, first, second, third = clock.groups()
        hours, minutes, seconds = (first, second, third) if third is not None else (0, first, second)
        total = int(days or 0) * 86400 + int(hours) * 3600 + int(minutes) * 60 + int(seconds)
        return _bounded(total, text, "duration")
    match = _DURATION.match(text)
    if not match or not any(match.groups()):
        raise Invalid("bad_duration", f"{text!r} is not a duration; write for example 90s, 10m, 2h or 1d12h")
    days, hours, minutes, seconds = match.groups()
    whole = int(days or 0) * 86400 + int(hours or 0) * 3600 + int(minutes or 0) * 60
    return _bounded(math.ceil(whole + Fraction(seconds or 0)), text, "duration")


def parse_gpus(text: str) -> GpuRequest | None:
    """GPUs from `2`, `A100:2`, `A100`, `A100|H100:2`, `0.5` or `A100:0.5`; None for 0."""
    model, _, amount = text.rpartition(":")
    if not model and _MODEL.match(amount):
        model, amount = amount, "1"
    if model and not _MODEL.match(model):
        raise Invalid("bad_gpus", f"{model[:80]!r} is not the name of a GPU model, nor several like A100|H100")
    if not _NUMBER.match(amount):
        raise Invalid("bad_gpus", f"{text!r} is not a number of GPUs; write 2, 0.5 or A100:2")
    milli = Fraction(amount) * WHOLE_GPU_MILLI
    if milli.denominator != 1:
        raise Invalid("bad_gpus", f"{text!r} is finer than a thousandth of a GPU")
    if milli == 0:
        return None
    if milli < WHOLE_GPU_MILLI:
        return GpuRequest(share_milli=int(milli), model=model or None)
    if milli % WHOLE_GPU_MILLI:
        raise Invalid("bad_gpus", f"{text!r}: a share is of one GPU; ask for less than 1, or for whole GPUs")
    return GpuRequest(count=_bounded(int(milli) // WHOLE_GPU_MILLI, text, "number of GPUs"), model=model or None)


def parse_gpu_model(text: str) -> str:
    """The name of a model, or of several of which any will do: `A100|H100`."""
    if not all(part.strip() for part in text.split("|")):
        raise Invalid("bad_gpus", f"{text[:80]!r} is not the name of a GPU model, nor several like A100|H100")
    return text


def parse_fleet(text: str) -> tuple[SimulatedGpu, ...]:
    """Simulated GPUs from `4xA100:80GB` or `2xH100:80GB:sm_90,1xL4:24GB:sm_89`."""
    kinds: list[SimulatedGpu] = []
    for part in text.split(","):
        match = _FLEET.match(part.strip())
        if not match:
            raise Invalid("bad_gpu_spec", f"{part!r} is not COUNTxMODEL:MEMORY[:ARCH]; write for example 4xA100:80GB")
        count, model, memory, arch = match.groups()
        if not 1 <= int(count) <= 1024:
            raise Invalid("bad_gpu_spec", f"{part!r}: between 1 and 1024 GPUs of a kind")
        kinds.append(SimulatedGpu(int(count), model, parse_memory_mib(memory), arch))
    return tuple(kinds)


def _bounded(amount: int, text: str, what: str) -> int:
    if amount > MAX_AMOUNT:
        raise Invalid("amount_too_large", f"{text!r} is too large for a {what}")
    return amount
