"""What owners hold and have used while a trace is replayed, faded as a group's order has it."""

from __future__ import annotations

import math
from dataclasses import dataclass

from corral.model.quota import NOTHING, Amounts, Claimant, Held
from corral.scheduling.snapshot import Usage
from corral.sim.state import Run

Key = tuple[str, str, str]  # group, owner, project


@dataclass(slots=True)
class _Account:
    held: Amounts = NOTHING
    cpu_s: float = 0.0
    gpu_s: float = 0.0
    at_s: float = 0.0


class Ledger:
    """What was used counts half after each `half_life_s`."""

    def __init__(self, half_life_s: float) -> None:
        self._half_life_s = half_life_s
        self._accounts: dict[Key, _Account] = {}

    def took(self, group: str, run: Run, now_s: float) -> None:
        account = self._of((group, run.job.owner, run.job.project), now_s)
        account.held = account.held.plus(amounts_of(run))

    def gave_back(self, group: str, run: Run, now_s: float) -> None:
        account = self._of((group, run.job.owner, run.job.project), now_s)
        account.held = account.held.less(amounts_of(run))

    def usage(self, now_s: float) -> list[Usage]:
        found: list[Usage] = []
        for key in sorted(self._accounts):
            one = self._of(key, now_s)
            held = one.held
            amounts = (float(held.cpu_milli), float(held.memory_mib), float(held.gpu_milli))
            found.append(Usage(*key, *amounts, one.cpu_s, one.gpu_s))
        return found

    def held(self) -> tuple[Held, ...]:
        return tuple(
            Held(Claimant(owner, project, group), self._accounts[group, owner, project].held)
            for group, owner, project in sorted(self._accounts)
        )

    def _of(self, key: Key, now_s: float) -> _Account:
        """The account as it is now: what is held has been used since it was looked at."""
        account = self._accounts.setdefault(key, _Account(at_s=now_s))
        faded = 2.0 ** -min(1000.0, (now_s - account.at_s) / self._half_life_s)
        seconds = self._half_life_s / math.log(2) * (1.0 - faded)
        account.cpu_s = account.cpu_s * faded + account.held.cpu_milli / 1000 * seconds
        account.gpu_s = account.gpu_s * faded + account.held.gpu_milli / 1000 * seconds
        account.at_s = now_s
        return account


def amounts_of(run: Run) -> Amounts:
    """What it holds where it is."""
    grants = [grant for place in run.places for grant in place.grants]
    return Amounts(
        sum(place.cpu_milli for place in run.places),
        sum(place.memory_mib for place in run.places),
        sum(grant.share_milli for grant in grants),
        sum(grant.vram_mib for grant in grants),
        1,
    )
