"""What a session would have to ask for instead, to start now: each the smallest change of one thing.

Every suggestion was held against the same rules as the pass before it is made; a change of two things is none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from corral.model.resources import WHOLE_GPU_MILLI, GpuRequest
from corral.scheduling.engine.pool import CPU, MEMORY, DeviceKind, Flags, Ints
from corral.scheduling.engine.room import suits
from corral.scheduling.engine.standing import UNBOUNDED, need_of, vram_needed
from corral.scheduling.explaining.explain import survey_of
from corral.scheduling.explaining.survey import Part, Survey
from corral.scheduling.snapshot import Shape, Snapshot

MIB_OF_GIB = 1024
SHARE_STEP_MILLI = 50


@dataclass(frozen=True, slots=True)
class Suggestion:
    """An option of `submit` and the value with which the session would start now; None: without the option."""

    option: str
    value: str | None
    shape: Shape


def suggest(snapshot: Snapshot, shape: Shape, survey: Survey | None = None) -> list[Suggestion]:
    """Every single change that would do; empty when none would, or when none is needed."""
    survey = survey or survey_of(snapshot)
    if survey.fits(shape):
        return []
    return [one for one in _changes(snapshot, survey, shape) if survey.fits(one.shape)]


def _changes(snapshot: Snapshot, survey: Survey, shape: Shape) -> Iterator[Suggestion]:
    yield from _less(survey, shape)
    yield from _fewer_nodes(survey, shape)
    yield from _other_gpus(snapshot, survey, shape)
    if shape.exclusive:
        yield Suggestion("exclusive", None, replace(shape, exclusive=False))
    for key, _ in shape.on_labels:
        kept = tuple(label for label in shape.on_labels if label[0] != key)
        yield Suggestion(f"on {key}", None, replace(shape, on_labels=kept))
    if shape.on_nodes:
        yield Suggestion("node", None, replace(shape, on_nodes=()))
    if shape.not_nodes:
        yield Suggestion("not-node", None, replace(shape, not_nodes=()))
    if shape.group is not None:
        yield Suggestion("group", None, replace(shape, group=None))


def _less(survey: Survey, shape: Shape) -> Iterator[Suggestion]:
    """Fewer CPUs, less memory, fewer GPUs or a smaller share on each rank."""
    asked, ranks = shape.resources, shape.ranks_per_node
    cpu = _most(survey, _with(shape, cpu_milli=1), lambda part: part.room()[:, CPU] // ranks)
    cpu -= cpu % 1000 if cpu >= 1000 else 0
    if 0 < cpu < asked.cpu_milli:
        yield Suggestion("cpus", f"{cpu / 1000:g}", _with(shape, cpu_milli=cpu))
    memory = _most(survey, _with(shape, memory_mib=1), lambda part: part.room()[:, MEMORY] // ranks)
    memory -= memory % MIB_OF_GIB if memory >= MIB_OF_GIB else 0
    if 0 < memory < asked.memory_mib:
        text = f"{memory}MiB" if memory % MIB_OF_GIB else f"{memory // MIB_OF_GIB}GiB"
        yield Suggestion("memory", text, _with(shape, memory_mib=memory))
    if asked.gpu is None:
        return
    if asked.gpu.whole:
        one = _with_gpu(shape, count=1)
        count = _most(survey, one, lambda part: part.gpu_ranks(need_of(one, part.pool), UNBOUNDED) // ranks)
        if 0 < count < asked.gpu.count:
            yield Suggestion("gpus", str(count), _with_gpu(shape, count=count))
    elif ranks == 1:
        share = _most(survey, _with_gpu(shape, share_milli=1), lambda part: _largest_share(part, asked.gpu))
        share -= share % SHARE_STEP_MILLI
        if 0 < share < asked.gpu.share_milli:
            yield Suggestion("gpus", f"{share / 1000:g}", _with_gpu(shape, share_milli=share))


def _fewer_nodes(survey: Survey, shape: Shape) -> Iterator[Suggestion]:
    nodes = max((int(part.fitting(shape).sum()) for part in survey.parts), default=0)
    if 0 < nodes < shape.nodes:
        yield Suggestion("nodes", str(nodes), replace(shape, nodes=nodes))


def _other_gpus(snapshot: Snapshot, survey: Survey, shape: Shape) -> Iterator[Suggestion]:
    gpu = shape.resources.gpu
    if gpu is None:
        return
    devices = [device for node in snapshot.nodes for device in snapshot.devices.get(node.name, ())]
    if gpu.model is not None or gpu.arch is not None:
        for model in sorted({device.model for device in devices if not suits(device, gpu)}):
            yield Suggestion("gpu-model", model, _with_gpu(shape, model=model, arch=None))
    if gpu.vram_mib:
        for capacity in sorted({device.capacity_mib for device in devices}, reverse=True):
            smaller = _with_gpu(shape, vram_mib=capacity)
            if capacity < gpu.vram_mib and survey.fits(smaller):
                yield Suggestion("vram", f"{capacity}MiB", smaller)
                return


def _most(survey: Survey, least: Shape, amount: Callable[[Part], Ints]) -> int:
    """The largest amount that as many nodes of one group have as the session needs, among those where `least` fits."""
    best = 0
    for part in survey.parts:
        fitting: Flags = part.fitting(least)
        if int(fitting.sum()) >= least.nodes:
            amounts = np.sort(amount(part)[fitting])
            best = max(best, int(amounts[len(amounts) - least.nodes]))
    return best


def _largest_share(part: Part, request: GpuRequest | None) -> Ints:
    """The largest share of one GPU that each node has free."""
    assert request is not None
    suited: Flags = np.array([_suits(kind, request) for kind in part.pool.kinds], bool)
    capacity: Ints = np.array([max(1, kind.capacity_mib) for kind in part.pool.kinds], np.int64)
    share, vram = part.devices()
    by_memory = WHOLE_GPU_MILLI if request.vram_mib else vram * WHOLE_GPU_MILLI // capacity[part.pool.kind]
    usable = suited[part.pool.kind] & (vram >= request.vram_mib)
    shares = np.where(usable, np.minimum(share, by_memory), 0)
    return shares.max(axis=1, initial=0)


def _suits(kind: DeviceKind, request: GpuRequest) -> bool:
    """Whether devices of this kind are what is asked for, whatever is free on them."""
    return vram_needed(request, kind.model, kind.arch, kind.capacity_mib) < UNBOUNDED


def _with(shape: Shape, **changes: int) -> Shape:
    return replace(shape, resources=replace(shape.resources, **changes))


def _with_gpu(shape: Shape, **changes: int | str | None) -> Shape:
    assert shape.resources.gpu is not None
    return replace(shape, resources=replace(shape.resources, gpu=replace(shape.resources.gpu, **changes)))
