"""What the agent's process remembers of one launch between two looks at its directory. Plain data and arithmetic.

Never the truth: the directory, the ledger and the process tree are. `jobs` reads those, and decides.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from corral.agent import jobdir
from corral.agent.jobspec import JsonObject
from corral.model.session import FactKind

KILL_GRACE_S = 60.0
RESPAWN_S = 2.0
LONGEST_RESPAWN_S = 10.0


@dataclass(slots=True)
class Job:
    """`reported` are the kinds put into the outbox since it was last asked; `asked_again`: this very process was told
    to start it, without which it asks for no shim (docs/protocol.md 7); `decided`: what `started` says, once it
    is there."""

    token: str
    barrier: bool = False
    start_before_s: float = 0.0
    kill_grace_s: float = KILL_GRACE_S
    asked_again: bool = False
    spawned_s: float | None = None
    time_limit_s: float | None = None
    stop: JsonObject | None = None
    stop_overdue_s: float | None = None
    told: set[str] = field(default_factory=set[str])
    untold: dict[str, JsonObject] = field(default_factory=dict[str, JsonObject])
    reported: set[FactKind] = field(default_factory=set[FactKind])
    decided: JsonObject | None = None
    watched: tuple[int, int] | None = None
    failed_looks: int = 0

    def quiet(self, now_s: float) -> bool:
        """Nothing is to be done or seen until its shim hints or ends."""
        if FactKind.EXITED in self.reported:
            return True
        if self.untold or self.failed_looks or self.stop is not None:
            return False
        if self.decided is None:
            return self.spawned_s is not None and now_s - self.spawned_s < RESPAWN_S
        return self.watched is not None and FactKind.READY in self.reported

    def needs_shim(self, now_s: float, last_began_s: float) -> bool:
        """Whether to ask (again) for a shim: not while others begin, for then its turn has not come yet."""
        if self.spawned_s is None:
            return self.asked_again
        waited_s = now_s - max(self.spawned_s, last_began_s)
        return self.asked_again and (waited_s >= RESPAWN_S or now_s - self.spawned_s >= LONGEST_RESPAWN_S)

    def told_to_stop(self, stop: JsonObject, now_s: float) -> None:
        """From now on; a later stop can only bring the instant nearer by which its shim must have acted."""
        self.stop = stop
        self.untold[jobdir.STOP] = stop
        overdue_s = now_s + stop["grace_s"] + self.kill_grace_s
        self.stop_overdue_s = overdue_s if self.stop_overdue_s is None else min(self.stop_overdue_s, overdue_s)


def job_of(spec: JsonObject) -> Job:
    """From spec.json; what cannot be read there is what permits least."""
    start_before_s, kill_grace_s = spec.get("start_before_s") or 0.0, spec.get("kill_grace_s") or KILL_GRACE_S
    return Job(
        str(spec["token"]),
        bool(spec.get("barrier")),
        float(start_before_s),
        float(kill_grace_s),
        time_limit_s=spec.get("time_limit_s"),
    )
