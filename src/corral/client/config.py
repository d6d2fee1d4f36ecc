"""Which control plane to speak to, and with which token: what was said, else the environment, else a file.

A token from a file goes to the address written beside it and to no other.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from corral.model.faults import Invalid

DEFAULT_URL = "http://127.0.0.1:7700"


@dataclass(frozen=True, slots=True)
class Connection:
    """The address of a control plane, and the bearer token to show it."""

    url: str
    token: str | None = field(default=None, repr=False)


def resolve(
    environment: Mapping[str, str], *, url: str | None = None, token: str | None = None, config: Path | None = None
) -> Connection:
    """The connection to use. A file named by the caller comes before the environment, the usual one after it."""
    said = Connection(url or "", token)
    variables = Connection(environment.get("CORRAL_URL", ""), environment.get("CORRAL_TOKEN") or None)
    file = _read(config or usual_file(environment), must_exist=config is not None)
    sources = [said, file, variables] if config is not None else [said, variables, file]
    address = _checked(next((one.url for one in sources if one.url), DEFAULT_URL))
    fitting = [one for one in sources if one is not file or _same(file.url, address)]
    return Connection(address, _checked_token(next((one.token for one in fitting if one.token), None)))


def usual_file(environment: Mapping[str, str]) -> Path:
    """Where `corral up` leaves the address and token of what it started."""
    home = environment.get("XDG_CONFIG_HOME") or str(Path(environment.get("HOME") or "~").expanduser() / ".config")
    return Path(home) / "corral" / "client.toml"


def _read(path: Path, *, must_exist: bool) -> Connection:
    try:
        content: dict[str, Any] = tomllib.loads(path.read_text())
    except FileNotFoundError:
        if must_exist:
            raise Invalid("no_config", f"there is no file {path}; `corral up` writes one") from None
        return Connection("")
    except OSError as error:
        raise Invalid("bad_config", f"{path} cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise Invalid("bad_config", f"{path} is not TOML: {error}") from None
    for key in ("url", "token"):
        if not isinstance(content.get(key, ""), str):
            raise Invalid("bad_config", f"{path}: {key} is not text")
    return Connection(content.get("url", ""), content.get("token") or None)


def _checked(url: str) -> str:
    try:
        parts = urlsplit(url)
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        good = False
    if not good or not url.isprintable():
        raise Invalid("bad_url", f"{url[:80]!r} is not the address of a control plane; write for example {DEFAULT_URL}")
    return url.rstrip("/")


def _checked_token(token: str | None) -> str | None:
    if token is not None and not re.fullmatch("[!-~]+", token.strip()):
        raise Invalid("bad_token", "the token is not one word of printable ASCII, as every token is; copy it anew")
    return token and token.strip()


def _same(url: str, other: str) -> bool:
    return url.rstrip("/") == other.rstrip("/")
