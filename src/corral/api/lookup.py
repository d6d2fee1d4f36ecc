"""From what a person calls a session to the session: the id, an unambiguous beginning of it, or `last`; with `[7]` or
`_7` after it that member of an array, which may have no row yet."""

from __future__ import annotations

import re

from corral.api.policy import Caller
from corral.api.problems import Ambiguous
from corral.model.array import Array, member
from corral.model.faults import Invalid, NotFound, Refused
from corral.model.session import ID_ALPHABET, ID_LENGTH, Session
from corral.model.spec import NAME
from corral.ports import Reads, Unreadable
from corral.reconcile.arrays import no_such_member

SHORTEST = 4
MOST_CANDIDATES = 5
BROKEN = "broken_record"
_INDEXED = re.compile(r"([^\[_]*)(?:\[(.*)\]|_(\d+))", re.DOTALL)


def find(reads: Reads, caller: Caller, text: str) -> Session:
    """The one session meant. `NotFound` also for one that is another user's; `Ambiguous` names what it could be."""
    found = find_any(reads, caller, text)
    if isinstance(found, Array):
        example = found.id_at(0)
        raise Invalid("is_array", f"{found.id} is an array of {found.size} members; name one of them, like {example}",
                      subject=found.id)  # fmt: skip
    return found


def find_any(reads: Reads, caller: Caller, text: str) -> Session | Array:
    """The one session, or array, meant."""
    id_, index = _parts(text.lower())
    if id_ == "last":
        newest = reads.newest_session(caller.name)
        if newest is None:
            raise NotFound("no_such_session", "you have submitted no session yet; `corral submit` makes one")
        ids = [newest]
    elif not SHORTEST <= len(id_) <= ID_LENGTH or set(id_) - set(ID_ALPHABET):
        raise _not_found(reads, caller, text)
    else:
        ids = [id_] if len(id_) == ID_LENGTH else reads.find_sessions(id_, MOST_CANDIDATES, caller.owner)
    found = _visible(reads, caller, ids, text)
    if len(found) > 1:
        raise Ambiguous(text, [one.id for one in found])
    return found[0] if index is None else _member(reads, caller, found[0], index)


def _parts(text: str) -> tuple[str, int | None]:
    """The id, and the index behind it."""
    match = _INDEXED.fullmatch(text)
    if match is None:
        return text, None
    index = match[2] if match[3] is None else match[3]
    if not re.fullmatch(r"\d{1,9}", index, re.ASCII):
        raise Invalid("bad_member_id", f"{text[:80]!r} names no member of an array; write its index, as in ID[7]",
                      subject=text[:80])  # fmt: skip
    return match[1], int(index)


def _member(reads: Reads, caller: Caller, array: Session | Array, index: int) -> Session:
    if isinstance(array, Session):
        raise NotFound("no_such_member", f"session {array.id} is no array and has no members", subject=array.id)
    place = array.indices.place_of(index)
    if place is None:
        raise no_such_member(array, index)
    if not reads.has_member(array, place):
        return member(array, place)
    id_ = array.id_at(place)
    if (session := reads.sessions([id_]).get(id_)) is not None:
        return session
    _refuse_broken(reads, caller, [id_])
    raise no_such_session(id_)


def find_id(reads: Reads, caller: Caller, text: str) -> Array | str:
    """The array meant, or the id of the one session, though its record cannot be read, for whoever sees everyone's."""
    try:
        found = find_any(reads, caller, text)
        return found if isinstance(found, Array) else found.id
    except Refused as fault:
        if fault.code != BROKEN or fault.subject is None or caller.owner is not None:
            raise
        return fault.subject


def no_such_session(text: str) -> NotFound:
    return NotFound(
        "no_such_session",
        f"there is no session {text[:80]!r} of yours; `corral ps` lists them (at least {SHORTEST} characters of an id)",
        subject=text[:80],
    )


def _not_found(reads: Reads, caller: Caller, text: str) -> NotFound:
    """Says so, if it is the name of sessions that the caller sees, and which they are."""
    name = text.partition("[")[0]
    ids = reads.named(name, caller.owner, MOST_CANDIDATES + 1) if NAME.match(name) else []
    if not ids:
        return no_such_session(text)
    listed = ", ".join(ids[:MOST_CANDIDATES]) + ", …" * (len(ids) > MOST_CANDIDATES)
    of_whom = f"session {listed}" if len(ids) == 1 else f"the sessions {listed}"
    return NotFound(
        "no_such_session", f"{name!r} is the name of {of_whom}, and no id; give the id instead", subject=text[:80]
    )


def _visible(reads: Reads, caller: Caller, ids: list[str], text: str) -> list[Session | Array]:
    sessions = reads.sessions(ids)
    found: list[Session | Array] = [one for one in sessions.values() if caller.sees(one)]
    if len(sessions) < len(ids):
        found += [one for one in reads.arrays(ids).values() if caller.sees(one)]
    if not found:
        _refuse_broken(reads, caller, ids)
        raise _not_found(reads, caller, text)
    return found


def _refuse_broken(reads: Reads, caller: Caller, ids: list[str]) -> None:
    for one in reads.unreadable(ids):
        if caller.owner in (None, one.owner):
            raise Refused(BROKEN, _told_to(caller, one), subject=one.id)


def _told_to(caller: Caller, one: Unreadable) -> str:
    if one.is_array:
        return f"the record of array {one.id} cannot be read: {one.error}; keep the database and report it"
    if caller.owner is None:
        return broken_line(one.id, one.error)
    return f"the record of session {one.id} cannot be read: {one.error}; an administrator can set it aside and end it"


def broken_line(id_: str, error: str) -> str:
    """What is said of a record that cannot be read, and what can be done."""
    return f"the record of session {id_} cannot be read: {error}; `corral cancel {id_}` sets it aside and ends it"
