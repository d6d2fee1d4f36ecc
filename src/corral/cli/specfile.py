"""`-f spec.yaml`: one request, a list of them, or several YAML documents, with the fields of the REST body."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from corral.cli.request import read_text
from corral.cli.terminal import one_line
from corral.model.faults import Invalid

LIMIT_BYTES = 8 * 1024 * 1024
MOST_VALUES = 1_000_000


def read(name: str) -> list[dict[str, Any]]:
    """The requests in a file, or on stdin for `-`."""
    text = _stdin() if name == "-" else read_text(Path(name), "-f")
    documents = _documents(name, text)
    _require_small(name, documents)
    requests = [one for document in documents for one in (_as_list(document))]
    if not requests:
        raise Invalid("empty_spec", f"-f {name} holds no request", subject="-f")
    return [_request(name, number, one) for number, one in enumerate(requests)]


def _stdin() -> str:
    try:
        data = sys.stdin.buffer.read(LIMIT_BYTES + 1)
        text = data.decode()
    except UnicodeDecodeError:
        raise Invalid("not_text", "-f -: stdin is not UTF-8 text", subject="-f") from None
    if len(data) > LIMIT_BYTES:
        raise Invalid("too_large", f"-f -: stdin holds more than {LIMIT_BYTES // 1024**2} MiB", subject="-f")
    return text


def _documents(name: str, text: str) -> list[Any]:
    if text.lstrip()[:1] in ("{", "["):  # JSON, or YAML that looks like it
        try:
            return [json.loads(text)]
        except RecursionError:
            raise Invalid("bad_yaml", f"-f {name}: nested too deeply", subject="-f") from None
        except ValueError:
            pass
    import yaml

    try:
        return [
            document
            for document in yaml.load_all(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))
            if document is not None
        ]
    except yaml.YAMLError as error:
        raise Invalid("bad_yaml", f"-f {name} is neither YAML nor JSON: {one_line(str(error))}", subject="-f") from None
    except (RecursionError, ValueError) as error:
        raise Invalid("bad_yaml", f"-f {name}: {one_line(str(error)) or 'nested too deeply'}", subject="-f") from None


def _require_small(name: str, documents: list[Any]) -> None:
    """A few lines of YAML that refer to one another can stand for more than any memory holds."""
    left: list[Any] = list(documents)
    seen = 0
    while left:
        seen += 1
        if seen > MOST_VALUES:
            raise Invalid("too_large", f"-f {name} stands for more than {MOST_VALUES} values", subject="-f")
        value: Any = left.pop()
        if isinstance(value, dict):
            left.extend(cast("dict[Any, Any]", value).values())
        elif isinstance(value, list):
            left.extend(cast("list[Any]", value))


def _as_list(document: Any) -> list[Any]:
    """A list as it is, the body of a batch as its sessions, anything else as one."""
    inner: Any = document
    if isinstance(document, Mapping) and set(cast("Mapping[str, Any]", document)) == {"sessions"}:
        inner = cast("Mapping[str, Any]", document)["sessions"]
    return cast("list[Any]", inner) if isinstance(inner, list) else [inner]


def _request(name: str, number: int, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise Invalid("bad_spec", f"-f {name}: request {number} is no mapping of fields", subject="-f")
    fields = cast("dict[Any, Any]", value)
    wrong = next((key for key in fields if not isinstance(key, str)), None)
    if wrong is not None:
        raise Invalid("bad_spec", f"-f {name}: request {number} has a field {wrong!r} that is no text", subject="-f")
    return fields
