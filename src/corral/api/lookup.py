"""From what a person calls a session to the session: the id, an unambiguous beginning of it, or `last`."""

from __future__ import annotations

from corral.api.policy import Caller
from corral.api.problems import Ambiguous
from corral.model.faults import NotFound, Refused
from corral.model.session import ID_ALPHABET, ID_LENGTH, Session
from corral.ports import Reads

SHORTEST = 4
MOST_CANDIDATES = 5
BROKEN = "broken_record"


def find(reads: Reads, caller: Caller, text: str) -> Session:
    """The one session meant. `NotFound` also for one that is another user's; `Ambiguous` names what it could be."""
    id_ = text.lower()
    if id_ == "last":
        newest = reads.newest_session(caller.name)
        if newest is None:
            raise NotFound("no_such_session", "you have submitted no session yet; `corral submit` makes one")
        return _visible(reads, caller, [newest], text)[0]
    if not SHORTEST <= len(id_) <= ID_LENGTH or set(id_) - set(ID_ALPHABET):
        raise no_such_session(text)
    ids = [id_] if len(id_) == ID_LENGTH else reads.find_sessions(id_, MOST_CANDIDATES)
    found = _visible(reads, caller, ids, text)
    if len(found) > 1:
        raise Ambiguous(text, [session.id for session in found])
    return found[0]


def find_id(reads: Reads, caller: Caller, text: str) -> str:
    """The id of the one session meant, though its record cannot be read, for whoever sees everyone's."""
    try:
        return find(reads, caller, text).id
    except Refused as fault:
        if fault.code != BROKEN or fault.subject is None:
            raise
        return fault.subject


def no_such_session(text: str) -> NotFound:
    return NotFound(
        "no_such_session",
        f"there is no session {text[:80]!r} of yours; `corral ps` lists them (at least {SHORTEST} characters of an id)",
        subject=text[:80],
    )


def _visible(reads: Reads, caller: Caller, ids: list[str], text: str) -> list[Session]:
    found = [session for session in reads.sessions(ids).values() if caller.sees(session)]
    if not found:
        if caller.owner is None and (broken := reads.broken(ids)):
            id_, error = next(iter(broken.items()))
            raise Refused(BROKEN, broken_line(id_, error), subject=id_)
        raise no_such_session(text)
    return found


def broken_line(id_: str, error: str) -> str:
    """What is said of a record that cannot be read, and what can be done."""
    return f"the record of session {id_} cannot be read: {error}; `corral cancel {id_}` sets it aside and ends it"
