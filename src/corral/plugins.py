"""Policies that other distributions bring: entry points of the group `corral.policies`, named `order.<name>` and
`placement.<name>`. Only names are read here; what one stands for is imported when a resource group first asks for it.
Next: `scheduling/policies/registry.py`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from importlib.metadata import EntryPoint, entry_points

from corral.scheduling.policies import registry
from corral.scheduling.policies.registry import PolicyKind

GROUP = "corral.policies"


def offer_policies() -> list[str]:
    """Offer all that are installed by name; what is wrong with the rest, a line each."""
    found = [(_key(entry), entry) for entry in entry_points(group=GROUP)]
    times = Counter(key for key, _ in found)
    wrong: list[str] = []
    for key, entry in found:
        if key is None:
            wrong.append(f"{entry.name!r} of {_whose(entry)}: a name is order.NAME or placement.NAME")
        elif key[1] in registry.own_names(key[0]):
            wrong.append(f"{entry.name!r} of {_whose(entry)}: Corral has a policy of this name")
        else:
            registry.offer(*key, entry.load if times[key] == 1 else _ambiguous(entry.name))
    return wrong


def _key(entry: EntryPoint) -> tuple[PolicyKind, str] | None:
    kind, _, name = entry.name.partition(".")
    return (PolicyKind(kind), name) if kind in list(PolicyKind) and name else None


def _whose(entry: EntryPoint) -> str:
    return entry.dist.name if entry.dist is not None else "an unknown distribution"


def _ambiguous(name: str) -> Callable[[], object]:
    """Nobody could say which of them a group meant."""
    return partial(_refuse, name)


def _refuse(name: str) -> object:
    raise LookupError(f"several distributions bring {name}")
