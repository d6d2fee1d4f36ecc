"""Mutants of the node's half: the shim's decision, the agent's permission, horizon and proofs.

Each names what it replaces; its text says which rule is gone. Next: `mutants.py`.
"""

from __future__ import annotations

from collections.abc import Callable

from corral.testing.patches import Patch

NODE_MUTANTS: dict[str, tuple[str, str, Callable[[], list[Patch]]]] = {}
