"""What a session would have to ask for instead, to start now: each the smallest change of one thing.

What is free says how much less could do; whether it would start then, at the end of the line, is asked of a pass in
which everybody else has had his turn (`cycle.turn_of`): so quotas, those in front and reservations count, and what is
suggested works. A change of two things is none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from typing import NamedTuple

import numpy as np

from corral.model.resources import WHOLE_GPU_MILLI, GpuRequest
from corral.scheduling.cycle import Turn, turn_of
from corral.scheduling.engine.pool import CPU, MEMORY, DeviceKind, Flags, Ints
from corral.scheduling.engine.room import suits
from corral.scheduling.engine.standing import UNBOUNDED, need_of, vram_needed
from corral.scheduling.explaining.explain import survey_of
from corral.scheduling.explaining.survey import Part, Survey
from corral.scheduling.ordering import groups_of
from corral.scheduling.snapshot import Shape, Snapshot, Waiting

MIB_OF_GIB = 1024
SHARE_STEP_MILLI = 50
WHOLE_CPU_MILLI = 1000
MOST_GROUPS = 8  # looked at, each in a pass of its own
MOST_GROUPS_NAMED = 3


@dataclass(frozen=True, slots=True)
class Suggestion:
    """An option of `submit` and the value with which the session would start now; None: without the option."""

    option: str
    value: str | None
    shape: Shape


class _Trial(NamedTuple):
    """The session as it would be submitted anew, and its turn then."""

    snapshot: Snapshot
    survey: Survey
    anew: Waiting
    turn: Turn

    def starts(self, shape: Shape) -> bool:
        return self.survey.fits(shape) and self.turn.would_start(self.anew._replace(shape=shape))


def suggest(snapshot: Snapshot, asked: Waiting) -> list[Suggestion]:
    """Every single change that would do for a session of the snapshot's line, or one that is not submitted yet; empty
    when none would, or when none is needed."""
    snapshot, anew = submitted_anew(snapshot, asked)
    turn = turn_of(snapshot, anew.id)
    if turn is None:
        return []
    trial = _Trial(snapshot, survey_of(snapshot), anew, turn)
    return [] if trial.starts(anew.shape) else list(_changes(trial))


def submitted_anew(snapshot: Snapshot, asked: Waiting) -> tuple[Snapshot, Waiting]:
    """As if it stood at the end of the line, and nowhere else."""
    others = [one for one in snapshot.waiting if one.id != asked.id]
    last = max((one.ordinal for one in others), default=0)
    anew = asked._replace(
        ordinal=last + 1, attempt=1, submitted_at=snapshot.now, refused=None, cpu_s=0.0, gpu_s=0.0, room_by=None,
        shunned=frozenset(),
    )  # fmt: skip
    return replace(snapshot, waiting=[*others, anew]), anew


def _changes(trial: _Trial) -> Iterator[Suggestion]:
    shape = trial.anew.shape
    yield from _less(trial, shape)
    yield from _fewer_ranks(trial, shape)
    for one in (*_other_gpus(trial, shape), *_without(shape)):
        if trial.starts(one.shape):
            yield one
    yield from islice(_other_groups(trial, shape), MOST_GROUPS_NAMED)


def _without(shape: Shape) -> Iterator[Suggestion]:
    if shape.exclusive:
        yield Suggestion("exclusive", None, replace(shape, exclusive=False))
    for key, _ in shape.on_labels:
        kept = tuple(label for label in shape.on_labels if label[0] != key)
        yield Suggestion(f"on {key}", None, replace(shape, on_labels=kept))
    if shape.on_nodes:
        yield Suggestion("node", None, replace(shape, on_nodes=()))
    if shape.not_nodes:
        yield Suggestion("not-node", None, replace(shape, not_nodes=()))


def _other_groups(trial: _Trial, shape: Shape) -> Iterator[Suggestion]:
    """Groups where it would start, each in its own line."""
    if shape.group is None:
        return
    usable = groups_of(trial.snapshot.groups.values()).usable
    others = [replace(shape, group=name) for name in sorted(usable) if name != shape.group]
    for there in [one for one in others if trial.survey.fits(one)][:MOST_GROUPS]:
        snapshot, anew = submitted_anew(trial.snapshot, trial.anew._replace(shape=there))
        turn = turn_of(snapshot, anew.id)
        if turn is not None and turn.would_start(anew):
            yield Suggestion("group", there.group, there)


def _less(trial: _Trial, shape: Shape) -> Iterator[Suggestion]:
    """Fewer CPUs, less memory, fewer GPUs or a smaller share on each rank."""
    yield from _fewer_cpus(trial, shape)
    yield from _less_memory(trial, shape)
    asked, ranks, gpu = shape.resources, shape.ranks_per_node, shape.resources.gpu
    if gpu is None:
        return
    if gpu.whole:
        one = _with_gpu(shape, count=1)
        free = _most(trial.survey, one, lambda part: part.gpu_ranks(need_of(one, part.pool), UNBOUNDED) // ranks)
        count = _largest(min(free, gpu.count - 1), lambda number: trial.starts(_with_gpu(shape, count=number)))
        if count:
            yield Suggestion("gpus", str(count), _with_gpu(shape, count=count))
        return
    free = WHOLE_GPU_MILLI
    if ranks == 1:
        free = _most(trial.survey, _with_gpu(shape, share_milli=1), lambda part: _largest_share(part, asked.gpu))
    steps = min(free, gpu.share_milli - 1) // SHARE_STEP_MILLI
    share = SHARE_STEP_MILLI * _largest(
        steps, lambda number: trial.starts(_with_gpu(shape, share_milli=SHARE_STEP_MILLI * number))
    )
    if share:
        yield Suggestion("gpus", f"{share / WHOLE_GPU_MILLI:g}", _with_gpu(shape, share_milli=share))


def _fewer_cpus(trial: _Trial, shape: Shape) -> Iterator[Suggestion]:
    """In whole ones, if one would do."""
    free = _most(trial.survey, _with(shape, cpu_milli=1), lambda part: part.room()[:, CPU] // shape.ranks_per_node)
    most = min(free, shape.resources.cpu_milli - 1)
    for unit, number in ((WHOLE_CPU_MILLI, most // WHOLE_CPU_MILLI), (1, min(most, WHOLE_CPU_MILLI - 1))):
        cpu = unit * _largest(number, lambda count, unit=unit: trial.starts(_with(shape, cpu_milli=unit * count)))
        if cpu:
            yield Suggestion("cpus", f"{cpu / WHOLE_CPU_MILLI:g}", _with(shape, cpu_milli=cpu))
            return


def _less_memory(trial: _Trial, shape: Shape) -> Iterator[Suggestion]:
    """In whole GiB, if one would do."""
    ranks = shape.ranks_per_node
    free = _most(trial.survey, _with(shape, memory_mib=1), lambda part: part.room()[:, MEMORY] // ranks)
    most = min(free, shape.resources.memory_mib - 1)
    for unit, number, name in ((MIB_OF_GIB, most // MIB_OF_GIB, "GiB"), (1, min(most, MIB_OF_GIB - 1), "MiB")):
        count = _largest(number, lambda count, unit=unit: trial.starts(_with(shape, memory_mib=unit * count)))
        if count:
            yield Suggestion("memory", f"{count}{name}", _with(shape, memory_mib=unit * count))
            return


def _fewer_ranks(trial: _Trial, shape: Shape) -> Iterator[Suggestion]:
    free = max((int(part.fitting(shape).sum()) for part in trial.survey.parts), default=0)
    nodes = _largest(min(free, shape.nodes - 1), lambda number: trial.starts(replace(shape, nodes=number)))
    if nodes:
        yield Suggestion("nodes", str(nodes), replace(shape, nodes=nodes))
    ranks = _largest(shape.ranks_per_node - 1, lambda number: trial.starts(replace(shape, ranks_per_node=number)))
    if ranks:
        yield Suggestion("ranks-per-node", str(ranks), replace(shape, ranks_per_node=ranks))


def _other_gpus(trial: _Trial, shape: Shape) -> Iterator[Suggestion]:
    gpu, snapshot = shape.resources.gpu, trial.snapshot
    if gpu is None:
        return
    devices = [device for node in snapshot.nodes for device in snapshot.devices.get(node.name, ())]
    if gpu.model is not None or gpu.arch is not None:
        for model in sorted({device.model for device in devices if not suits(device, gpu)}):
            yield Suggestion("gpu-model", model, _with_gpu(shape, model=model, arch=None))
    if gpu.vram_mib:
        for capacity in sorted({device.capacity_mib for device in devices}, reverse=True):
            smaller = _with_gpu(shape, vram_mib=capacity)
            if capacity < gpu.vram_mib and trial.starts(smaller):
                yield Suggestion("vram", f"{capacity}MiB", smaller)
                return
        if gpu.whole:
            return
        number = _largest((gpu.vram_mib - 1) // MIB_OF_GIB,
                          lambda count: trial.starts(_with_gpu(shape, vram_mib=MIB_OF_GIB * count)))  # fmt: skip
        if number:
            yield Suggestion("vram", f"{number}GiB", _with_gpu(shape, vram_mib=MIB_OF_GIB * number))


def _largest(most: int, works: Callable[[int], bool]) -> int:
    """Of the numbers from 1 to the most that may be the largest that works; 0: none does. Where one works all smaller
    ones do."""
    if most < 1 or works(most):
        return max(most, 0)
    below, above = 0, most
    while above - below > 1:
        middle = (below + above) // 2
        below, above = (middle, above) if works(middle) else (below, middle)
    return below


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
