"""Process trees on a real machine: agent.ports.Trees over `trees`, for when the shim that held one is dead."""

from __future__ import annotations

from corral.agent import trees
from corral.agent.jobspec import JsonObject
from corral.agent.trees import Containment


class ProcessTrees:
    """Trees in this agent's own containment."""

    def __init__(self, containment: JsonObject) -> None:
        self._containment = Containment.from_json(containment)

    async def kill(self, token: str) -> None:
        trees.kill_tree(self._containment, token)

    async def is_empty(self, token: str) -> bool:
        return trees.tree_is_empty(self._containment, token)

    async def remove(self, token: str) -> None:
        trees.remove_tree(self._containment, token)

    async def tokens(self) -> list[str]:
        return trees.list_trees(self._containment)
