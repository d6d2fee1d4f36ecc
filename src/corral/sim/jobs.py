"""What a trace tells of one job, and the request that the engine sees of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache

from corral.model.resources import WHOLE_GPU_MILLI, GpuRequest, Resources
from corral.scheduling.snapshot import Shape


@dataclass(frozen=True, slots=True)
class Job:
    """Times in seconds, in a replay from the first submit. `limit_s` is what the scheduler may know of the run time."""

    id: str
    submitted_s: float
    run_s: float
    shape: Shape
    limit_s: float | None = None
    owner: str = "-"
    project: str = "default"
    priority: int = 0

    @property
    def gpus(self) -> float:
        """All ranks together; a share counts as what it is of one GPU."""
        gpu = self.shape.resources.gpu
        ranks = self.shape.nodes * self.shape.ranks_per_node
        return 0.0 if gpu is None else ranks * gpu.count * gpu.share_milli / WHOLE_GPU_MILLI

    @property
    def size(self) -> float:
        """What it is reported under: GPUs, or CPUs when it wants no GPU."""
        ranks = self.shape.nodes * self.shape.ranks_per_node
        return self.gpus or ranks * self.shape.resources.cpu_milli / 1000


@dataclass(frozen=True, slots=True)
class Trace:
    """`left_out` counts rows that tell of nothing to run, by why. `cpus` is the machine a trace says it was made on,
    when it says so."""

    name: str
    jobs: tuple[Job, ...]
    left_out: Mapping[str, int] = field(default_factory=dict[str, int])
    cpus: int | None = None


@lru_cache(maxsize=4096)
def gpu_shape(gpus: int, per_node: int, cpu_milli: int = 0, memory_mib: int = 0) -> Shape:
    """Whole GPUs: on one node as far as one has so many, else on the fewest nodes, equally many on each."""
    nodes = -(-gpus // per_node)
    each = -(-gpus // nodes) if nodes else 0
    return shape_of(Resources(cpu_milli, memory_mib, GpuRequest(each) if each else None), max(1, nodes))


def cpu_shape(cpus: int, per_node: int) -> Shape:
    """CPUs: on one node, or on the fewest nodes, equally many on each."""
    nodes = max(1, -(-cpus // per_node))
    return shape_of(Resources(-(-cpus // nodes) * 1000, 0), nodes)


def shape_of(resources: Resources, nodes: int = 1, ranks_per_node: int = 1, group: str | None = None) -> Shape:
    return Shape(group, resources, nodes, ranks_per_node, False, (), (), (), "process")
