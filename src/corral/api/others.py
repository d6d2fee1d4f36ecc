"""What a caller is told of others' sessions that stand in the way of its own, or for which its own made way: that there
is one, its group and its priority, never which. Administrators are told everything.

What is stored names them all, since administrators and the ledger's checks need it; so whatever tells a caller of a
session goes through here. Every text is looked through for ids, and each that is another's is put into words.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar, cast

from corral.api.policy import Caller
from corral.model.array import Array
from corral.model.session import ID_ALPHABET, ID_LENGTH, Session
from corral.ports import Reads

View = TypeVar("View")
Say = Callable[[str], str]
ID = re.compile(
    rf"(?:\b(?:session|array) )?(?<![0-9A-Za-z])([{ID_ALPHABET}]{{{ID_LENGTH}}}(?:\[\d{{1,9}}\])?)(?![0-9A-Za-z])"
)
# Where views say something of others; what its owner wrote, as a name or a label, stays as it is.
TOLD = (
    "refusals", "blockers", "reason", "cause", "error", "summary", "missing", "preempted_for", "detail", "message",
    "classes", "changes", "estimate_unknown",
)  # fmt: skip


def told_to(reads: Reads, asking: Caller, views: Sequence[View]) -> list[View]:
    """The views as this caller may see them; changed in place."""
    if asking.owner is None:
        return list(views)
    named: set[str] = set()

    def note(text: str) -> str:
        named.update(ID.findall(text))
        return text

    for view in views:
        _each_text(view, note)
    words = _in_words(reads, asking, named) if named else {}
    if words:
        for view in views:
            _each_text(view, lambda text: ID.sub(lambda found: words.get(found[1], found[0]), text))
    return list(views)


def _in_words(reads: Reads, asking: Caller, ids: set[str]) -> dict[str, str]:
    """Of those that are others', what is said instead."""
    wholes = ids | {id_.partition("[")[0] for id_ in ids}
    sessions = reads.sessions(ids)
    arrays = reads.arrays(wholes - sessions.keys())
    broken = reads.broken(sorted(ids - sessions.keys() - arrays.keys()))
    found: dict[str, str] = {}
    for id_ in ids:
        one = sessions.get(id_) or arrays.get(id_) or arrays.get(id_.partition("[")[0])
        if one is not None and not asking.sees(one):
            found[id_] = _words(one)
        elif one is None and id_ in broken:
            found[id_] = "another session"
    return found


def _words(one: Session | Array) -> str:
    what = "array" if isinstance(one, Array) else "session"
    group = f"group {one.group}, " if one.group else ""
    return f"another {what} ({group}priority {one.priority})"


def _each_text(view: Any, say: Say) -> None:
    for name in TOLD:
        value = getattr(view, name, None)
        if value:
            setattr(view, name, _said(value, say))


def _said(value: Any, say: Say) -> Any:
    if isinstance(value, str):
        return say(value)
    if isinstance(value, list | tuple):
        return [_said(one, say) for one in cast("Sequence[Any]", value)]
    if isinstance(value, Mapping):
        return {name: _said(one, say) for name, one in cast("Mapping[str, Any]", value).items()}
    _each_text(value, say)
    return value
