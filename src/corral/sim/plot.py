"""Replays side by side as one SVG: use of the fleet, who waits, and how completion times are spread."""

from __future__ import annotations

import math
from collections.abc import Sequence
from xml.sax.saxutils import escape

from corral.sim.replay import Replayed
from corral.sim.report import completion_s

WIDTH, PANEL, LEFT, TOP, GAP = 900, 190, 70, 40, 60
STEPS = 400
COLOURS = ("#0b62a4", "#d9541e", "#2e8b57", "#8b3a9e", "#b8860b", "#444444")
Points = Sequence[tuple[float, float]]


def plot(title: str, replays: Sequence[Replayed]) -> str:
    """The picture's text. Times are hours since the first event."""
    used, waiting, spread = ([_series(replay, what) for replay in replays] for what in ("used", "waiting", "spread"))
    height = TOP + 3 * (PANEL + GAP) + 20
    body = [
        f'<text x="{LEFT}" y="20" font-size="15">{escape(title)}</text>',
        *_legend([replay.policy for replay in replays]),
        *_panel(0, "in use, % of the fleet; over hours", used),
        *_panel(1, "sessions that wait; over hours", waiting),
        *_panel(2, "% of sessions completed within; over log10 of seconds", spread),
    ]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" font-family="sans-serif" '
        f'font-size="12"><rect width="100%" height="100%" fill="white"/>\n' + "\n".join(body) + "\n</svg>\n"
    )


def _series(replay: Replayed, what: str) -> Points:
    watch = replay.watch
    if what == "spread":
        times = sorted(math.log10(max(1.0, completion_s(run))) for run in replay.ended)
        return _thinned([(at, 100 * (number + 1) / len(times)) for number, at in enumerate(times)])
    begin = watch.series[0][0] if watch.series else 0.0
    return _thinned([
        ((at - begin) / 3600, 100 * used if what == "used" else waiting) for at, used, waiting in watch.series
    ])  # fmt: skip


def _thinned(points: Points) -> Points:
    """No more points than can be told apart: of each step the highest."""
    if len(points) <= STEPS:
        return points
    step = (points[-1][0] - points[0][0]) / STEPS or 1.0
    best: dict[int, tuple[float, float]] = {}
    for point in points:
        bin_ = int((point[0] - points[0][0]) / step)
        if bin_ not in best or point[1] > best[bin_][1]:
            best[bin_] = point
    return list(best.values())


def _legend(names: Sequence[str]) -> list[str]:
    lines: list[str] = []
    for number, name in enumerate(names):
        colour, x = COLOURS[number % len(COLOURS)], LEFT + number * 150
        lines.append(f'<text x="{x}" y="38" fill="{colour}">— {escape(name)}</text>')
    return lines


def _panel(number: int, title: str, series: Sequence[Points]) -> list[str]:
    top = TOP + 30 + number * (PANEL + GAP)
    every = [point for points in series for point in points]
    right = max((x for x, _ in every), default=0.0) or 1.0
    left = min((x for x, _ in every), default=0.0)
    high = max((y for _, y in every), default=0.0) or 1.0
    span = (right - left) or 1.0

    def at(point: tuple[float, float]) -> str:
        x = LEFT + (point[0] - left) / span * (WIDTH - LEFT - 20)
        return f"{x:.1f},{top + PANEL - point[1] / high * PANEL:.1f}"

    lines = [
        f'<text x="{LEFT}" y="{top - 6}">{escape(title)}</text>',
        f'<rect x="{LEFT}" y="{top}" width="{WIDTH - LEFT - 20}" height="{PANEL}" fill="none" stroke="#999"/>',
        f'<text x="{LEFT - 6}" y="{top + 10}" text-anchor="end">{high:.4g}</text>',
        f'<text x="{LEFT - 6}" y="{top + PANEL}" text-anchor="end">0</text>',
        f'<text x="{LEFT}" y="{top + PANEL + 15}">{left:.4g}</text>',
        f'<text x="{WIDTH - 20}" y="{top + PANEL + 15}" text-anchor="end">{right:.4g}</text>',
    ]
    for index, points in enumerate(series):
        path = " ".join(at(point) for point in points)
        lines.append(f'<polyline points="{path}" fill="none" stroke="{COLOURS[index % len(COLOURS)]}"/>')
    return lines
