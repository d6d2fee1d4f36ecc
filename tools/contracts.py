"""An import contract that fails closed: these modules may import what is listed, and nothing else.

Used where a list of forbidden things would always be one library behind: code that must stay pure, and programs that
must stay on the standard library. `stdlib` in the list stands for all of it. Run by import-linter.
"""

import sys
from typing import Any

from grimp import ImportGraph
from importlinter import Contract, ContractCheck, fields, output
from importlinter.domain.helpers import module_expressions_to_modules
from importlinter.domain.imports import ModuleExpression

STDLIB = "stdlib"


class AllowOnlyContract(Contract):
    """`modules` (with what is below them) import only `allowed` (with what is below it) and one another.

    A module in parentheses may be missing still, as in a contract of layers.
    """

    type_name = "allow_only"

    modules = fields.SetField(subfield=fields.StringField())
    allowed = fields.SetField(subfield=fields.StringField())

    def check(self, graph: ImportGraph, verbose: bool) -> ContractCheck:
        sources = self.sources_in(graph)
        allowed = self.allowed_roots() | set(sources)
        illegal = [
            (source, imported)
            for source in sources
            for imported in sorted(graph.find_modules_directly_imported_by(source))
            if not any(imported == root or imported.startswith(root + ".") for root in allowed)
        ]
        return ContractCheck(kept=not illegal, metadata={"illegal": illegal})

    def sources_in(self, graph: ImportGraph) -> list[str]:
        listed: Any = self.modules
        present = [name.strip("()") for name in listed if not name.startswith("(") or name.strip("()") in graph.modules]
        expressions = [ModuleExpression(name) for name in present]
        return sorted(module.name for module in module_expressions_to_modules(graph, expressions, as_packages=True))

    def allowed_roots(self) -> set[str]:
        listed: Any = self.allowed
        roots = set[str](listed)
        return roots - {STDLIB} | set(sys.stdlib_module_names) if STDLIB in roots else roots

    def render_broken_contract(self, check: ContractCheck) -> None:
        for source, imported in check.metadata["illegal"]:
            output.print_error(f"{source} imports {imported}, which its contract does not list.")
        output.new_line()
