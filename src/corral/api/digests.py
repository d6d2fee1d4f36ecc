"""What identifies a request, so that a repeated idempotency key is known to repeat it, also across an upgrade.

Only what is not as it is by default counts: a field that a later Corral adds changes no digest. Forms in which earlier
ones wrote digests are known too.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

import msgspec

from corral.model.spec import SessionSpec
from corral.wire import plain

NAMES_THEN = (
    "command", "name", "kind", "project", "group", "priority", "labels", "resources", "nodes", "ranks_per_node",
    "exclusive", "on_labels", "on_nodes", "not_nodes", "environment", "workdir", "script", "upload", "bootstrap",
    "mounts", "ports", "time_limit_s", "grace_s", "early_signal", "retries", "requeue", "on_node_loss", "outcome_rule",
    "image", "runtime", "hold", "begin", "after", "env_compat", "options",
)  # fmt: skip
ADDED_SINCE = ((), ("after",), ("begin", "after"))  # to the earliest form, and the ones between
DEFAULTS: Mapping[str, Any] = plain(SessionSpec())


def digests_of(specs: Sequence[SessionSpec]) -> tuple[str, ...]:
    """The request's digest, then those that earlier forms gave it."""
    written: list[dict[str, Any]] = [plain(spec) for spec in specs]
    found = [_digest([msgspec.json.encode(_changed(one, DEFAULTS), order="sorted") for one in written])]
    for added in ADDED_SINCE:
        forms = list(_forms(written, added))
        if len(forms) == len(written):
            found.append(_digest(forms))
    return tuple(dict.fromkeys(found))


def _digest(parts: Sequence[bytes]) -> str:
    return hashlib.sha256(b"\n".join(parts)).hexdigest()


def _changed(value: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """The entries that are not the default, of nested ones too."""
    return {
        name: _changed(cast("Mapping[str, Any]", one), cast("Mapping[str, Any]", defaults[name]))
        if isinstance(one, Mapping) and isinstance(defaults.get(name), Mapping)
        else one
        for name, one in value.items()
        if name not in defaults or one != defaults[name]
    }


def _forms(specs: Sequence[Mapping[str, Any]], added: Sequence[str]) -> Iterator[bytes]:
    """Each as it was written before these fields; those that use what was not there have no such form."""
    for one in specs:
        names = [name for name in NAMES_THEN if name not in added]
        if all(value == DEFAULTS[name] for name, value in one.items() if name not in names):
            yield msgspec.json.encode({name: one[name] for name in names})
