"""Unpacks one uploaded tree: `python -I -S unpack.py ARCHIVE DIGEST FOLDER`, a process of its own.

So that a large archive delays nothing in the agent, and a hostile one meets limits. Takes regular files, folders and
links that stay inside, and nothing else. Its exit status says what happened; one line on stderr says why. `provision`
starts it.
"""

from __future__ import annotations

import errno
import hashlib
import lzma
import os
import sys
import tarfile
import zlib

MAX_UNPACKED_BYTES = 4 * 2**30
MAX_MEMBERS = 200_000
OK, BAD, TOO_LARGE, NO_ROOM, OTHER_BLOB, FAILED = 0, 3, 4, 5, 6, 7
_CHUNK_BYTES = 1 << 20
_FULL = (errno.ENOSPC, errno.EDQUOT)
_NOT_AN_ARCHIVE = (tarfile.TarError, EOFError, lzma.LZMAError, zlib.error, UnicodeError)


class TooLarge(Exception):
    """More than a node takes."""


class BadMember(tarfile.TarError):
    """A member that no honest archive has."""


def unpack(archive: str, folder: str) -> None:
    total = 0
    with tarfile.open(archive) as tree:
        for count, member in enumerate(tree):
            total += member.size
            if count >= MAX_MEMBERS or total > MAX_UNPACKED_BYTES:
                raise TooLarge(f"it unpacks to more than {MAX_MEMBERS} files or {MAX_UNPACKED_BYTES} bytes")
            if member.name.startswith("/") or ".." in member.name.split("/"):
                raise BadMember(f"{member.name[:200]!r} leads out of the tree")
            tree.extract(member, folder, filter="data")


def digest_of(path: str) -> str:
    sha = hashlib.sha256()
    with open(path, "rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            sha.update(chunk)
    return f"sha256:{sha.hexdigest()}"


def main(archive: str, digest: str, folder: str) -> int:
    try:
        if digest_of(archive) != digest:
            return _say(OTHER_BLOB, "the blob is not what it is named by")
        os.makedirs(folder, 0o700)
        unpack(archive, folder)
    except TooLarge as error:
        return _say(TOO_LARGE, str(error))
    except _NOT_AN_ARCHIVE as error:
        return _say(BAD, str(error) or type(error).__name__)
    except OSError as error:
        # bz2 and gzip say of a damaged stream that it is an OSError without a number
        code = NO_ROOM if error.errno in _FULL else BAD if error.errno is None else FAILED
        return _say(code, f"{error.strerror or error} {error.filename or ''}".strip())
    return OK


def _say(code: int, text: str) -> int:
    sys.stderr.write(text[:500])
    return code


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
