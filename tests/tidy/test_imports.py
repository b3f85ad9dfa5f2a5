"""docs/internals/imports.md: its table of permitted imports against the imports of the code."""

import ast
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

from syntax import syntax_tree

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("managed_ledger", "pybroker")


@dataclass(frozen=True, slots=True)
class Unit:
    name: str
    modules: tuple[str, ...]
    may_import: tuple[str, ...]


def split_cell(cell: str) -> tuple[str, ...]:
    return tuple(item.strip() for item in cell.split(",") if item.strip())


def read_table(text: str) -> list[Unit]:
    lines = iter(text.splitlines())
    for line in lines:
        if line.startswith("| unit | modules |"):
            break
    next(lines)
    units = []
    for line in lines:
        if not line.startswith("|"):
            break
        name, modules, may_import = (cell.strip() for cell in line.strip("|").split("|"))
        units.append(Unit(name, split_cell(modules), split_cell(may_import)))
    return units


TABLE = "docs/internals/imports.md"
UNITS = read_table((ROOT / TABLE).read_text())


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


SOURCES = {module_name(path): path for name in PACKAGES for path in (ROOT / name).rglob("*.py")}


# Packages whose modules belong to several units; the table lists each module.
SHARED_PACKAGES = ("pybroker", "pybroker.process")


def is_within(module: str, prefix: str) -> bool:
    below = prefix not in SHARED_PACKAGES and module.startswith(prefix + ".")
    return module == prefix or below


def unit_of(module: str) -> Unit | None:
    owners = [unit for unit in UNITS if any(is_within(module, prefix) for prefix in unit.modules)]
    return owners[0] if owners else None


def statements(node: ast.AST) -> Iterator[ast.stmt]:
    """All statements below the node, at any depth; `ast.walk` would also visit each expression."""
    for name in ("body", "orelse", "finalbody", "handlers", "cases"):
        for each in getattr(node, name, ()):
            if isinstance(each, ast.stmt):
                yield each
            yield from statements(each)


def imported_modules(module: str, text: str) -> Iterator[str]:
    for node in statements(syntax_tree(text)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}: write relative imports out in full"
            source = node.module or ""
            for alias in node.names:
                whole = f"{source}.{alias.name}"
                yield whole if whole in SOURCES else source


def imports_of(sources: Mapping[str, str]) -> dict[str, set[str]]:
    """Imports by module, including those for types only and those within functions."""
    return {module: set(imported_modules(module, text)) for module, text in sources.items()}


@cache
def all_imports() -> dict[str, set[str]]:
    return imports_of({module: path.read_text() for module, path in SOURCES.items()})


def circle(imports: Mapping[str, set[str]]) -> list[str]:
    """A circle, each module before one that it imports; empty if there is none.

    A name that is not a key of `imports` is not ours, and imports nothing of ours.
    """
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        found: list[str] = error.args[1]
        return found[::-1]
    return []


def is_allowed(unit: Unit, imported: str) -> bool:
    top = imported.partition(".")[0]
    if top in sys.stdlib_module_names:
        return True
    if top not in PACKAGES:
        return top in unit.may_import
    owner = unit_of(imported)
    if owner is not None and (owner == unit or owner.name in unit.may_import):
        return True
    return imported in unit.may_import


def test_the_table_names_each_module_once() -> None:
    for module in SOURCES:
        owners = [u.name for u in UNITS if any(is_within(module, prefix) for prefix in u.modules)]
        assert len(owners) == 1, f"{module} belongs to {owners or 'no unit'} in {TABLE}"


def test_modules_import_only_what_the_table_allows() -> None:
    forbidden = {}
    for module, names in all_imports().items():
        unit = unit_of(module)
        assert unit is not None, f"{module} belongs to no unit in {TABLE}"
        for name in names:
            if not is_allowed(unit, name):
                forbidden[module, unit.name] = name
    assert not forbidden, f"{TABLE} has it not"


def test_only_the_app_builds_server_side_packages() -> None:
    for unit in UNITS:
        if unit.name not in ("app", "server"):
            assert "server" not in unit.may_import, f"{unit.name} may not import the server"


def test_no_modules_import_each_other_in_a_circle() -> None:
    """Not even for types: a name that two modules share belongs in a module that both import."""
    found = circle(all_imports())
    assert not found, f"import circle: {' -> '.join(found)}"


def test_an_import_for_types_only_closes_a_circle() -> None:
    above, below = "pybroker.server.connections.session", "pybroker.server.publishing.sends"
    guarded = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    "
    sources = {
        above: "from pybroker.server.publishing import sends",
        below: f"{guarded}from {above} import Session",
    }
    assert set(circle(imports_of(sources))) == {above, below}
    late = sources | {below: f"def session():\n    from {above} import Session"}
    assert set(circle(imports_of(late))) == {above, below}
    assert circle(imports_of(sources | {below: "from typing import Protocol"})) == []
