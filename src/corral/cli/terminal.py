"""One run of a command: whom it speaks to, in which form it answers, and how it tells an error.

Output is for the reader, errors are one line on stderr; with `-o json` they are the problem document, on one line too.
"""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from corral.cli import exits
from corral.model.faults import Fault
from corral.model.wording import span

if TYPE_CHECKING:
    from corral.client import AsyncClient, Client


REMIND_S = 10.0
LONGEST_LINE = 1000


@dataclass
class Terminal:
    """`output` is table, wide, json or name; `patience_s` is how long a broken connection is tried again; the rest is
    where to find the control plane."""

    url: str | None = None
    token: str | None = None
    config: Path | None = None
    output: str = "table"
    patience_s: float = 60.0
    _reminded_s: float = -math.inf

    @property
    def as_json(self) -> bool:
        return self.output == "json"

    @cached_property
    def client(self) -> Client:
        without_httpx_command_line()
        from corral.client.sync import Client

        return Client(self.url, self.token, config=self.config, patience_s=self.patience_s, on_retry=self.reconnecting)

    def async_client(self) -> AsyncClient:
        without_httpx_command_line()
        from corral.client.aio import AsyncClient

        return AsyncClient(
            self.url, self.token, config=self.config, patience_s=self.patience_s, on_retry=self.reconnecting
        )

    def reconnecting(self, fault: Fault, waited_s: float) -> None:
        """Say now and then that nothing comes because nobody answers, once for all streams that wait together."""
        now_s = time.monotonic()
        if now_s - self._reminded_s >= REMIND_S:
            self._reminded_s = now_s
            self.note(f"{fault.message}; trying again, {span(waited_s)} of {span(self.patience_s)}")

    def print(self, text: str) -> None:
        print(text)

    def print_json(self, value: Any) -> None:
        print(json.dumps(value, indent=2, ensure_ascii=False))

    def note(self, text: str) -> None:
        """One line beside the output, for people."""
        print(f"corral: {one_line(text)}", file=sys.stderr, flush=True)

    def fail(self, fault: Fault) -> int:
        """Tell an error; answers the exit code."""
        tell(fault, as_json=self.as_json)
        return exits.code_of(fault)

    def each(self, ids: Sequence[str], act: Callable[[str], Any]) -> tuple[list[Any], int]:
        """Act on each id, the rest even when one fails; what came of them, and the first error's exit code."""
        done: list[Any] = []
        code = 0
        for id_ in ids:
            try:
                done.append(act(id_))
            except Fault as fault:
                code = code or self.fail(fault)
        return done, code

    def close(self) -> None:
        if "client" in self.__dict__:
            self.client.close()


def tell(fault: Fault, *, as_json: bool) -> None:
    """One error on stderr."""
    if as_json:
        from corral.client.errors import document_of

        print(json.dumps(document_of(fault), ensure_ascii=False), file=sys.stderr)
    else:
        line = one_line(fault.message)
        print(f"corral: {line[:LONGEST_LINE]}{'…' * (len(line) > LONGEST_LINE)}", file=sys.stderr)


def one_line(text: str) -> str:
    """Text from elsewhere, fit for a terminal: no line ends, no control characters."""
    return "".join(
        char if char.isprintable() else " " if char in "\n\t" else "\N{REPLACEMENT CHARACTER}" for char in text
    )


def write_bytes(pieces: Iterable[bytes]) -> None:
    """A session's output as it is."""
    for piece in pieces:
        sys.stdout.buffer.write(piece)
    sys.stdout.flush()


def without_httpx_command_line() -> None:
    """httpx imports its own command line where it can, which takes as long as the rest of it together."""
    sys.modules.setdefault("httpx._main", None)  # pyright: ignore[reportArgumentType]
