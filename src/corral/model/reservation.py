"""Reservations: nodes kept free for a time, for maintenance or for the sessions of some owners and projects.

Pure. `checked` refuses what makes no sense before anything is looked up; which nodes there are, and whether others hold
them then, is `reconcile.reserving`'s to say.
"""

from __future__ import annotations

from dataclasses import dataclass

from corral.model.begin import begin_at
from corral.model.faults import Invalid
from corral.model.resources import parse_duration_s
from corral.model.spec import NAME, PROJECT

LONGEST_S = 10 * 365 * 86400
LONGEST_REASON = 500
LONGEST_WHOSE = 256
LONGEST_SHOWN = 80
MOST_NODES = 100_000
MOST_WHOSE = 1000
NEAR_PAST_S = 60.0  # how far clocks and keyboards may be behind


@dataclass(frozen=True, slots=True)
class AskedReservation:
    """What somebody asks for. Times are texts as `--begin` and `--time` have them: `ends` or `length`. `nodes` by name,
    or `count` of a group's, or all of a group's."""

    name: str
    begins: str
    ends: str | None = None
    length: str | None = None
    nodes: tuple[str, ...] = ()
    group: str | None = None
    count: int | None = None
    owners: tuple[str, ...] = ()
    projects: tuple[str, ...] = ()
    reason: str = ""


@dataclass(frozen=True, slots=True)
class ReservationRow:
    """One reservation as it was made. `version` tells those of one name apart; one that was deleted is kept."""

    name: str
    version: int
    starts_at: float
    ends_at: float
    nodes: tuple[str, ...]
    owners: tuple[str, ...]
    projects: tuple[str, ...]
    reason: str
    made_at: float
    made_by: str
    deleted_at: float | None = None
    deleted_by: str | None = None


def checked(asked: AskedReservation) -> AskedReservation:
    """The same, or `Invalid` with the first thing that is wrong."""
    if not NAME.fullmatch(asked.name):
        words = "letters, digits, '.', '_' and '-', beginning with a letter or digit, at most 128 of them"
        raise _bad("bad_name", f"reservation {asked.name[:LONGEST_SHOWN]!r}: {words}", "name")
    if (asked.ends is None) == (asked.length is None):
        raise _bad("bad_end", "say when it ends, or how long it takes: one of --end and --for", "--end")
    _check_nodes(asked)
    for option, words in (("--owner", asked.owners), ("--project", asked.projects)):
        if len(words) > MOST_WHOSE:
            raise _bad("too_many", f"{len(words)} times {option}; at most {MOST_WHOSE}", option)
        for word in words:
            if not (0 < len(word) <= LONGEST_WHOSE and word.isprintable()):
                raise _bad("bad_name", f"{option} {word[:LONGEST_SHOWN]!r} is not a name", option)
    if wrong := [word for word in asked.projects if not PROJECT.match(word)]:
        shown = wrong[0][:LONGEST_SHOWN]
        raise _bad("bad_name", f"--project {shown!r} is not a name, nor names like vision/detect", "--project")
    if len(asked.reason) > LONGEST_REASON or not asked.reason.isprintable():
        raise _bad("bad_reason", f"--reason takes one line of at most {LONGEST_REASON} characters", "--reason")
    return asked


def _check_nodes(asked: AskedReservation) -> None:
    if not asked.nodes and asked.group is None:
        raise _bad("no_nodes", "say which nodes: --node NAME for each, or --group NAME with --nodes N or all of it",
                   "--node")  # fmt: skip
    if asked.nodes and (asked.group is not None or asked.count is not None):
        raise _bad("contradiction", "--node names nodes, --group and --nodes let them be chosen: not both", "--node")
    if asked.count is not None and not 1 <= asked.count <= MOST_NODES:
        raise _bad("out_of_range", f"--nodes is {asked.count}; it must be between 1 and {MOST_NODES}", "--nodes")
    if len(asked.nodes) > MOST_NODES:
        raise _bad("too_many", f"{len(asked.nodes)} nodes; at most {MOST_NODES}", "--node")


def span(asked: AskedReservation, now: float) -> tuple[float, float]:
    """From when to when, in seconds since 1970. Nothing begins in the past, or ends before it begins."""
    starts = begin_at(asked.begins, now, "--begin")
    if starts < now - NEAR_PAST_S:
        raise _bad("in_the_past", f"--begin {asked.begins[:LONGEST_SHOWN]!r} is in the past; leave it out to begin now",
                   "--begin")  # fmt: skip
    if asked.length is not None:
        length = parse_duration_s(asked.length)
        ends = starts + length
    else:
        ends = begin_at(asked.ends or "", now, "--end")
    if ends <= starts:
        raise _bad("ends_before_it_begins", "it must end after it begins", "--end")
    if ends - starts > LONGEST_S:
        raise _bad("out_of_range", "a reservation takes ten years at most", "--end")
    return max(starts, now), ends


def _bad(code: str, message: str, option: str) -> Invalid:
    return Invalid(code, message, subject=option)
