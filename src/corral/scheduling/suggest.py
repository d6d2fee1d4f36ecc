"""What a session would have to ask for instead, to start now: each the smallest change of one thing.

Every suggestion was held against the same rules as the pass before it is made; a change of two things is none.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from corral.model.resources import WHOLE_GPU_MILLI, GpuRequest
from corral.scheduling.explain import fits_now
from corral.scheduling.ordering import standing_of
from corral.scheduling.room import NodeRoom, excluded, suits
from corral.scheduling.snapshot import Shape, Snapshot

MIB_OF_GIB = 1024
SHARE_STEP_MILLI = 50


@dataclass(frozen=True, slots=True)
class Suggestion:
    """An option of `submit` and the value with which the session would start now; None: without the option."""

    option: str
    value: str | None
    shape: Shape


def suggest(snapshot: Snapshot, shape: Shape) -> list[Suggestion]:
    """Every single change that would do; empty when none would, or when none is needed."""
    held_back = standing_of(snapshot.groups.values()).held_back
    snapshot = replace(snapshot, nodes=[node for node in snapshot.nodes if node.group not in held_back])
    if fits_now(snapshot, shape):
        return []
    return [one for one in _changes(snapshot, shape) if fits_now(snapshot, one.shape)]


def _changes(snapshot: Snapshot, shape: Shape) -> Iterator[Suggestion]:
    yield from _less(snapshot, shape)
    yield from _fewer_nodes(snapshot, shape)
    yield from _other_gpus(snapshot, shape)
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


def _less(snapshot: Snapshot, shape: Shape) -> Iterator[Suggestion]:
    """Fewer CPUs, less memory, fewer GPUs or a smaller share on each rank."""
    asked, ranks = shape.resources, shape.ranks_per_node
    cpu = _most(snapshot, _with(shape, cpu_milli=1), lambda room: room.cpu_free_milli // ranks)
    cpu -= cpu % 1000 if cpu >= 1000 else 0
    if 0 < cpu < asked.cpu_milli:
        yield Suggestion("cpus", f"{cpu / 1000:g}", _with(shape, cpu_milli=cpu))
    memory = _most(snapshot, _with(shape, memory_mib=1), lambda room: room.memory_free_mib // ranks)
    memory -= memory % MIB_OF_GIB if memory >= MIB_OF_GIB else 0
    if 0 < memory < asked.memory_mib:
        text = f"{memory}MiB" if memory % MIB_OF_GIB else f"{memory // MIB_OF_GIB}GiB"
        yield Suggestion("memory", text, _with(shape, memory_mib=memory))
    if asked.gpu is None:
        return
    if asked.gpu.whole:
        count = _most(snapshot, _with_gpu(shape, count=1), lambda room: _idle(room, asked.gpu) // ranks)
        if 0 < count < asked.gpu.count:
            yield Suggestion("gpus", str(count), _with_gpu(shape, count=count))
    elif ranks == 1:
        share = _most(snapshot, _with_gpu(shape, share_milli=1), lambda room: _largest_share(room, asked.gpu))
        share -= share % SHARE_STEP_MILLI
        if 0 < share < asked.gpu.share_milli:
            yield Suggestion("gpus", f"{share / 1000:g}", _with_gpu(shape, share_milli=share))


def _fewer_nodes(snapshot: Snapshot, shape: Shape) -> Iterator[Suggestion]:
    fitting = _rooms_that_fit(snapshot, shape)
    nodes = max(map(len, fitting.values()), default=0)
    if 0 < nodes < shape.nodes:
        yield Suggestion("nodes", str(nodes), replace(shape, nodes=nodes))


def _other_gpus(snapshot: Snapshot, shape: Shape) -> Iterator[Suggestion]:
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
            if capacity < gpu.vram_mib and fits_now(snapshot, smaller):
                yield Suggestion("vram", f"{capacity}MiB", smaller)
                return


def _most(snapshot: Snapshot, least: Shape, amount: Callable[[NodeRoom], int]) -> int:
    """The largest amount that as many nodes of one group have as the session needs, among those where `least` fits."""
    best = 0
    for rooms in _rooms_that_fit(snapshot, least).values():
        amounts = sorted(map(amount, rooms), reverse=True)
        if len(amounts) >= least.nodes:
            best = max(best, amounts[least.nodes - 1])
    return best


def _rooms_that_fit(snapshot: Snapshot, shape: Shape) -> dict[str, list[NodeRoom]]:
    fitting: defaultdict[str, list[NodeRoom]] = defaultdict(list)
    for node in snapshot.nodes:
        room = NodeRoom(node, snapshot.devices.get(node.name, ()))
        if excluded(node, shape, snapshot.now) is not None:
            continue
        places = room.place(shape)
        if not isinstance(places, str):
            room.give_back(places)
            fitting[node.group].append(room)
    return fitting


def _idle(room: NodeRoom, request: GpuRequest | None) -> int:
    assert request is not None
    return sum(
        suits(one.device, request) and one.free_milli == WHOLE_GPU_MILLI and one.free_mib == one.device.capacity_mib
        for one in room.devices
    )


def _largest_share(room: NodeRoom, request: GpuRequest | None) -> int:
    assert request is not None
    shares = [0]
    for one in room.devices:
        if suits(one.device, request) and one.free_mib >= request.vram_mib:
            by_memory = (
                WHOLE_GPU_MILLI
                if request.vram_mib
                else one.free_mib * WHOLE_GPU_MILLI // max(1, one.device.capacity_mib)
            )
            shares.append(min(one.free_milli, by_memory))
    return max(shares)


def _with(shape: Shape, **changes: int) -> Shape:
    return replace(shape, resources=replace(shape.resources, **changes))


def _with_gpu(shape: Shape, **changes: int | str | None) -> Shape:
    assert shape.resources.gpu is not None
    return replace(shape, resources=replace(shape.resources, gpu=replace(shape.resources.gpu, **changes)))
