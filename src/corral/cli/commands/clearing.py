"""Defragmenting: defragment."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import click

from corral.cli import exits
from corral.cli.tables import table
from corral.cli.terminal import Terminal
from corral.cli.verbs import TOLD, option, verb
from corral.model.faults import Invalid
from corral.model.wording import number_of

MOST_NAMED = 3


@verb(
    "defragment",
    option("--gpus", type=click.IntRange(0), default=0, metavar="N", help="Also make N whole GPUs of one node free."),
    option("--count", type=click.IntRange(1), default=1, metavar="N", help="So many times (1)."),
    option("--moves", type=click.IntRange(1), default=10, metavar="N", help="At most so many moves (10)."),
    option("--moves-per-goal", type=click.IntRange(1), default=3, metavar="N", help="Of them for one goal (3)."),
    option("--group", metavar="NAME", help="For this resource group's sessions alone, on its nodes."),
    option("--plan", is_flag=True, help="Only show them, as without --run."),
    option("--run", is_flag=True, help="Have them move: they are stopped, and go on there."),
    formats=TOLD,
)  # fmt: skip
def defragment(terminal: Terminal, plan: bool, run: bool, **asked: Any) -> int:
    """Show which sessions would have to move, and where to, so that those that wait find room. Without --run nobody is
    moved."""
    if plan and run:
        raise Invalid("contradiction", "--plan only shows the moves, --run has them begin; give one of them")
    if run:
        done = terminal.client.defragment(**asked)
        answer, shown, code = done, show_done(done), exits.REFUSED if done["refused"] else 0
    else:
        answer = terminal.client.defragmentation(**asked)
        shown, code = _show(answer), 0
    if terminal.as_json:
        terminal.print_json(answer)
    else:
        terminal.print(shown)
    return code


def show_done(done: Mapping[str, Any]) -> str:
    parts = [_show(done["plan"])]
    if done["begun"]:
        parts.append(f"Asked to move: {', '.join(done['begun'])}")
    parts += [f"No move for {one['goal']} has begun ({one['code']}): {one['message']}" for one in done["refused"]]
    return "\n\n".join(parts)


def _show(found: Mapping[str, Any]) -> str:
    if not found["won"] and not found["given_up"]:
        return "Nobody waits for room."
    moves = [[one["session"], _nodes(one["here"]), _nodes(one["there"]), one["goal"]] for one in found["moves"]]
    won = [[one["goal"], _nodes(one["places"]), one["moves"]] for one in found["won"]]
    parts = [table(["MOVE", "FROM", "TO", "FOR"], moves)] if moves else [_nothing_to_move(found)]
    parts += [table(["HAS ROOM THEN", "ON", "MOVES"], won)] if won else []
    if found["given_up"]:
        parts.append(_without_room(found["given_up"]))
    return "\n\n".join(parts)


def _nothing_to_move(found: Mapping[str, Any]) -> str:
    if not found["given_up"]:
        return "There is room as it is; nobody has to move."
    return f"No move would make room for anybody{' else' * bool(found['won'])}."


def _without_room(names: Sequence[str]) -> str:
    more = f" and {len(names) - MOST_NAMED} more" * (len(names) > MOST_NAMED)
    goals = number_of(len(names), "goal finds", "goals find")
    return f"{goals} no room in this way: {', '.join(names[:MOST_NAMED])}{more}"


def _nodes(places: Iterable[Mapping[str, Any]]) -> str:
    return ", ".join(dict.fromkeys(place["node"] for place in places))
