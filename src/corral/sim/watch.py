"""What is measured between events: how much is used, how much lies idle while somebody waits."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from corral.scheduling.claiming.contention import Amounts, need_of
from corral.scheduling.snapshot import Shape


@dataclass(slots=True)
class Watch:
    """Sums over time. `by_gpu`: GPUs are counted, else CPUs. Nothing is counted before the first event. `series` is
    of time, part of the fleet in use, and how many wait."""

    capacity: Amounts
    by_gpu: bool
    used: int = 0
    waiting: int = 0
    at_s: float | None = None
    span_s: float = 0.0
    capacity_time: float = 0.0
    used_time: float = 0.0
    idle_while_waiting_time: float = 0.0
    waiting_time: float = 0.0
    series: list[tuple[float, float, int]] = field(default_factory=list[tuple[float, float, int]])

    @property
    def whole(self) -> int:
        return self.capacity.gpu_milli if self.by_gpu else self.capacity.cpu_milli

    def until(self, now_s: float) -> None:
        """Everything stayed as it is until now."""
        if self.at_s is not None and now_s > self.at_s:
            span_s = now_s - self.at_s
            self.span_s += span_s
            self.capacity_time += span_s * self.whole
            self.used_time += span_s * self.used
            self.waiting_time += span_s * self.waiting
            if self.waiting:
                self.idle_while_waiting_time += span_s * max(0, self.whole - self.used)
        self.at_s = now_s

    def settle(self, waiting: int) -> None:
        """The pass of this moment is over."""
        self.waiting = waiting
        if self.at_s is not None:
            self.series.append((self.at_s, self.used / (self.whole or 1), waiting))

    def so_far(self) -> Watch:
        """What was measured until now, whatever comes."""
        return replace(self, series=list(self.series))

    def taken(self, shape: Shape, sign: int) -> None:
        need = need_of(shape)
        self.used += sign * (need.gpu_milli if self.by_gpu else need.cpu_milli)
