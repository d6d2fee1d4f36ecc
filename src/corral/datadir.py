"""The files of a control plane: its folder, its tokens, and the client's configuration, private to its user.

Whatever is wrong with one of them is one error that names the file and what to do. Knows nothing of what is in the
database; `server` puts the tokens' digests there.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import tempfile
from collections.abc import Callable, Generator
from pathlib import Path

from corral.model.faults import Invalid, Refused

_TOKEN = re.compile(r"[!-~]+")  # what an HTTP header can carry
LONGEST_TOKEN = 4096
PROBE = ".writable"


def make_folder(folder: Path, option: str) -> None:
    """A folder that this user can write in, made with mode 0700 unless it is there; `Invalid` where it cannot be."""
    with _named(folder, option):
        str(folder).encode()  # what is not text can be in no address and no message
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        probe = folder / PROBE
        os.close(os.open(probe, os.O_WRONLY | os.O_CREAT, 0o600))
        probe.unlink(missing_ok=True)


@contextlib.contextmanager
def _named(place: Path, option: str) -> Generator[None]:
    try:
        yield
    except UnicodeError:
        raise Invalid("not_text", f"{option}: the path is not UTF-8 text; choose another", subject=option) from None
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or "no such path can be"
        raise Invalid(
            "cannot_use_path",
            f"{option} {str(place)[:200]} cannot be used: {why}; choose one that this user can write",
            subject=option,
        ) from None  # fmt: skip


def token_in(path: Path, make: Callable[[], str], option: str) -> str:
    """The token in the file, which is made, readable by us alone, unless it is there.

    `Refused` for a file that holds none: nobody could use it, or anybody might, and a new one in its place would lock
    out whoever has the old one.
    """
    with _named(path, option):
        if not os.path.lexists(path):
            with contextlib.suppress(FileExistsError), _private(path, make() + "\n") as partial:
                os.link(partial, path)  # of several managers that begin at once the first one's stands
        with path.open("rb") as file:
            data = file.read(LONGEST_TOKEN + 1)
    token = data.decode("utf-8", "replace").strip()
    if len(data) <= LONGEST_TOKEN and _TOKEN.fullmatch(token):
        return token
    what = "is empty" if not token else "does not hold a token, which is one word of printable ASCII"
    raise Refused(
        "bad_token_file",
        f"{path} {what}; put the token back into it, or delete the file to have a new token made at the next start",
        subject=str(path),
    )


def write_private(path: Path, text: str) -> None:
    """Replace the file at once and durably; nobody else can read it."""
    with _private(path, text) as partial:
        partial.replace(path)


@contextlib.contextmanager
def _private(path: Path, text: str) -> Generator[Path]:
    """The text in a file of its own beside `path`, durable and for us alone; gone afterwards unless it was moved."""
    descriptor, partial = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "w") as out:
            out.write(text)
            out.flush()
            os.fsync(descriptor)
        yield Path(partial)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(partial)


def write_login(folder: Path, url: str, token: str) -> None:
    """The client's configuration: where the control plane is, and the token for it."""
    path = folder / "client.toml"
    with _named(path, "the client's configuration"):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_private(path, f"url = {json.dumps(url)}\ntoken = {json.dumps(token)}\n")
