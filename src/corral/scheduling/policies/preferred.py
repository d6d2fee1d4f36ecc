"""What a session would rather have of its nodes (`--prefer`): among those that fit, nodes that meet more of it come
first, and the group's placement policy chooses among equals. It never keeps a session from starting.
"""

from __future__ import annotations

import numpy as np

from corral.model.spec import MOST_PREFERRED
from corral.scheduling.engine.pool import Floats, Pool
from corral.scheduling.policies.scorer import Scorer
from corral.scheduling.snapshot import Preferred

WHERE_IT_WAS = 2.0 ** (2 * MOST_PREFERRED)


def met(pool: Pool, preferred: Preferred) -> Floats:
    """How much of it each node meets: where it was before all; then how many labels; of as many, the earlier ones."""
    labels = preferred.labels
    found = np.zeros(len(pool))
    for place, (key, value) in enumerate(labels, 1):
        found += pool.labelled(key, value) * (2.0 ** len(labels) + 2.0 ** (len(labels) - place))
    if preferred.nodes:
        found[[pool.row_of[name] for name in preferred.nodes if name in pool.row_of]] += WHERE_IT_WAS
    return found


def most_met(pool: Pool, scores: Floats, count: int, preferred: Preferred) -> float:
    """How much of it the best `count` nodes that fit meet together; -inf where fewer fit."""
    fitting = np.sort(met(pool, preferred)[scores > -np.inf])
    return float(fitting[len(fitting) - count :].sum()) if len(fitting) >= count else -np.inf


def choose(scorer: Scorer, scores: Floats, count: int, preferred: Preferred) -> list[int]:
    """The `count` rows to take, those that meet most first; fewer where fewer fit."""
    meets = np.where(scores > -np.inf, met(scorer.pool, preferred), -1.0)  # by which those are past that had their turn
    chosen: list[int] = []
    while len(chosen) < count and (level := meets.max(initial=-1.0)) >= 0:
        now = meets == level
        here = np.where(now, scores, -np.inf)
        wanted = count - len(chosen)
        chosen += scorer.choose(here, wanted if wanted == 1 else min(wanted, int(now.sum())))
        meets[now] = -1.0
    return chosen
