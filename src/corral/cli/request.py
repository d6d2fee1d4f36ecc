"""From options to the body of a request. Names what is wrong by its option; judges nothing that the server judges."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from corral.cli.terminal import one_line
from corral.model.faults import Invalid
from corral.model.spec import VARIABLE

AS_GIVEN = (
    "name", "project", "group", "profile", "priority", "cpus", "memory", "gpus", "vram", "gpu_arch", "gpu_model",
    "nodes", "ranks_per_node", "exclusive", "prefer", "node", "not_node", "time", "begin", "after", "array", "retries",
    "continuations", "requeue", "preemptible", "signal", "grace", "on_node_loss", "outcome_rule", "hold", "image",
    "runtime", "workdir",
    "env_compat", "interactive", "service", "ready_http", "idle_timeout", "max_lifetime", "right_size",
    "idempotency_key",
)  # fmt: skip
EITHER_WAY = ("requeue", "preemptible")
NEVER_COPIED = ("CORRAL_",)  # what Corral itself tells a process; the caller's own token is among them


def fields_of(values: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that the options give, the environment included; files are not read here but for `--env-file`."""
    fields = {name: values[name] for name in AS_GIVEN if _given(name, values[name])}
    if "begin" in fields:
        fields["begin"] = begin_of(fields["begin"], datetime.now().astimezone())
    if values["label"]:
        fields["labels"] = pairs("label", values["label"])
    if values["on"]:
        fields["on"] = pairs("on", values["on"])
    if values["mount"]:
        fields["mounts"] = list(values["mount"])
    if values["port"]:
        fields["ports"] = dict(_port(text) for text in values["port"])
    if environment := _environment(values):
        fields["env"] = environment
    return fields


def begin_of(text: str, here: datetime) -> str:
    """A time of the caller's clock with its offset: `18:00` is the next time it is that, a day alone its beginning.
    What is no such time is left to the control plane to judge."""
    for form in ("%H:%M", "%H:%M:%S"):
        with suppress(ValueError):
            asked = datetime.strptime(text, form).time()  # noqa: DTZ007 - a time of day, in the caller's zone
            day = here.date() if asked > here.time() else here.date() + timedelta(days=1)
            return _where_it_is(datetime.combine(day, asked)).astimezone(here.tzinfo).isoformat()
    with suppress(ValueError, OverflowError):
        moment = datetime.fromisoformat(text)
        if moment.tzinfo is None:
            return _where_it_is(moment).isoformat()
    return text


def _where_it_is(wall: datetime) -> datetime:
    """A time that the clocks pass over is as much after they were put forward; one that they show twice the first."""
    return datetime.fromtimestamp(wall.timestamp(), UTC).astimezone()


def _given(name: str, value: Any) -> bool:
    """A number may be 0, and what can be said either way may be said no; a switch that is off says nothing."""
    return value is not None and value != () and (value is not False or name in EITHER_WAY)


def pairs(option: str, texts: Iterable[str]) -> dict[str, str]:
    """K=V texts as a mapping; a later one wins."""
    return dict(_pair(option, text) for text in texts)


def require_text(words: Sequence[str], what: str) -> None:
    """`Invalid` for a word that is not Unicode text, which is how Python shows bytes it could not read."""
    for number, word in enumerate(words):
        try:
            word.encode()
        except UnicodeEncodeError:
            raise Invalid("not_text", f"{what} {number} is not valid UTF-8 text; pass such bytes in a file") from None


def _pair(option: str, text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise Invalid("bad_pair", f"--{option} {one_line(text[:80])!r} is not KEY=VALUE", subject=f"--{option}")
    return key, value


def _port(text: str) -> tuple[str, int]:
    name, _, number = text.rpartition(":")
    if not name or not re.fullmatch(r"\d{1,5}", number, re.ASCII):
        raise Invalid("bad_port", f"--port {one_line(text[:80])!r} is not NAME:PORT", subject="--port")
    return name, int(number)


def _environment(values: Mapping[str, Any]) -> dict[str, str]:
    """Widest first: the caller's own environment, files, single variables."""
    environment: dict[str, str] = {}
    if values["env_all"]:
        environment |= {key: value for key, value in os.environ.items() if _may_be_copied(key)}
    for path in values["env_file"]:
        environment |= read_env_file(path)
    for text in values["env"]:
        key, equals, value = text.partition("=")
        if equals:
            environment[key] = value
        elif key in os.environ:
            environment[key] = os.environ[key]
        else:
            raise Invalid("bad_pair", f"--env {one_line(text[:80])!r}: write K=V; the caller has no such variable")
    require_text([f"{key}={value}" for key, value in environment.items()], "environment variable")
    return environment


def _may_be_copied(key: str) -> bool:
    return VARIABLE.match(key) is not None and not key.startswith(NEVER_COPIED)


def read_env_file(path: Path) -> dict[str, str]:
    """K=V lines. Blank lines, `#` lines and a leading `export` are skipped; a value in quotes loses them."""
    environment: dict[str, str] = {}
    for number, line in enumerate(read_text(path, "--env-file").splitlines(), 1):
        text = line.strip().removeprefix("export ").strip()
        if not text or text.startswith("#"):
            continue
        key, equals, value = text.partition("=")
        if not equals or not VARIABLE.match(key):
            raise Invalid("bad_env_file", f"{path} line {number}: {one_line(text[:80])!r} is not K=V")
        quoted = len(value) >= 2 and value[0] == value[-1] and value[0] in "\"'"
        environment[key] = value[1:-1] if quoted else value
    return environment


def read_text(path: Path, option: str) -> str:
    try:
        return read_bytes(path, option).decode()
    except UnicodeDecodeError:
        raise Invalid("not_text", f"{option} {path} is not UTF-8 text", subject=option) from None


def read_bytes(path: Path, option: str, limit: int = 8 * 1024 * 1024) -> bytes:
    """The content of a file that an option names."""
    try:
        with path.open("rb") as file:
            data = file.read(limit + 1)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise Invalid("cannot_read", f"{option} {one_line(str(path))}: {why}", subject=option) from None
    if len(data) > limit:
        raise Invalid("too_large", f"{option} {path} is larger than {limit // 1024**2} MiB", subject=option)
    return data
