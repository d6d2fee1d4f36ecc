"""What the replay knows of one job while it goes on."""

from __future__ import annotations

import math
from dataclasses import dataclass

from corral.scheduling.claiming.contention import Places
from corral.sim.jobs import Job


@dataclass(slots=True, eq=False)
class Run:
    """`left_s` is the work left when it began (or now, while it waits), `restart_s` what a restart costs on top of it.
    `planned_s` is the first planned start it was given."""

    job: Job
    ordinal: int
    left_s: float
    attained_s: float = 0.0
    restart_s: float = 0.0
    began_s: float | None = None
    first_began_s: float | None = None
    ended_s: float | None = None
    planned_s: float | None = None
    places: Places = ()
    starts: int = 0
    preempted: int = 0
    failed: int = 0
    lost_s: float = 0.0
    end_token: int = 0
    overdue: bool = False

    @property
    def id(self) -> str:
        """Its own within a replay, whatever the trace calls it."""
        return str(self.ordinal)

    @property
    def size(self) -> float:
        return self.job.size

    @property
    def is_over(self) -> bool:
        return self.ended_s is not None

    @property
    def limit_s(self) -> float:
        return math.inf if self.job.limit_s is None else self.job.limit_s

    def attained_at(self, now_s: float) -> float:
        return self.attained_s + (0.0 if self.began_s is None else now_s - self.began_s)

    def left_at(self, now_s: float) -> float:
        """Time on GPUs that it still needs, with what its last restart costs."""
        return self.left_s + self.restart_s - (0.0 if self.began_s is None else now_s - self.began_s)

    @property
    def ends_s(self) -> float:
        assert self.began_s is not None
        return self.began_s + self.left_s + self.restart_s

    def begin(self, now_s: float, places: Places) -> None:
        self.places, self.began_s = places, now_s
        self.starts += 1
        if self.first_began_s is None:
            self.first_began_s = now_s

    def pause(self, now_s: float, kept_s: float, restart_s: float) -> None:
        """It stops; `kept_s` of the work since it began is not lost, starting again costs `restart_s`."""
        assert self.began_s is not None
        held_s = now_s - self.began_s
        self.lost_s += held_s - kept_s
        self.attained_s += held_s
        self.left_s -= kept_s
        self.restart_s = restart_s
        self.places, self.began_s = (), None

    def worked_s(self, now_s: float) -> float:
        """Work done since it began, after its restart was paid for."""
        assert self.began_s is not None
        return max(0.0, now_s - self.began_s - self.restart_s)
