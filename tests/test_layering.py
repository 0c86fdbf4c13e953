"""The layers of the package: which folder may import which (topic "contributing")."""

import ast
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest
from fixture_cases import ROOT

SHIM = ROOT / "shim"

# Sans-IO code: it is fed parsed objects and returns bytes. It uses no clock, file, environment,
# randomness or await.
PURE = ("core", "adapters", "profiles", "story.diff", "story.events", "story.timeline")
IMPURE = {
    "anyio", "asyncio", "logging", "os", "pathlib", "platformdirs", "random", "rich", "secrets", "select", "shutil",
    "signal", "socket", "structlog", "subprocess", "sys", "tempfile", "threading", "time", "typer", "uuid",
}  # fmt: skip
FOR_PEOPLE = {"typer", "rich"}

# A layer may import itself and the layers before it.
FLOORS = (
    "core", "profiles", "adapters", "io", "state", "process", "recording", "conversation", "story", "bridge", "fleet",
    "commands", "__main__",
)  # fmt: skip
DRAWS = ("story", "commands", "__main__")  # may import libraries that draw for a person

VENDORS = "adapters"  # one file per vendor


def modules() -> dict[str, Path]:
    """Return every module of the package by its dotted name without `shim.`."""
    return {
        ".".join(path.relative_to(SHIM).with_suffix("").parts).removesuffix(".__init__"): path
        for path in sorted(SHIM.rglob("*.py"))
    }


MODULES = modules()


BLOCKS = ("body", "orelse", "finalbody", "handlers", "cases")


def statements(node: ast.AST) -> list[ast.AST]:
    """Return every statement inside a node, at any depth. Expressions are not searched."""
    nodes: list[ast.AST] = []
    for block in BLOCKS:
        inner = getattr(node, block, ())
        for statement in inner if isinstance(inner, list) else ():
            nodes.append(statement)
            nodes += statements(statement)
    return nodes


class Outline(NamedTuple):
    """The parts of a module that the rules need. The syntax tree is not stored, because each
    garbage collection would search all trees.
    """

    docstring: str | None
    imports: frozenset[str]  # including imports in functions and for the type checker


@cache
def outline(name: str) -> Outline:
    """Return the outline of a module of the package."""
    tree = ast.parse(MODULES[name].read_text(encoding="utf-8"))
    names: set[str] = set()
    for node in statements(tree):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name}: imports are absolute"
            names.update(
                full
                if (full := f"{node.module}.{alias.name}").removeprefix("shim.") in MODULES
                else str(node.module)
                for alias in node.names
            )
    return Outline(ast.get_docstring(tree), frozenset(names))


def imports(name: str) -> frozenset[str]:
    """Return all modules that a module imports."""
    return outline(name).imports


def ours(imported: Iterable[str]) -> set[str]:
    """Return the imported modules that belong to the package, without `shim.`."""
    names = {name.removeprefix("shim.") for name in imported if name.startswith("shim.")}
    return {name for name in names if name in MODULES}


def find_top_folder(name: str) -> str:
    """Return the top-level folder of a module, or its own name."""
    return name.partition(".")[0]


def circles(graph: Mapping[str, set[str]]) -> list[list[str]]:
    """Return the import cycles, each as a path that ends with its first module."""
    cycles: list[list[str]] = []
    done: set[str] = set()

    def follow(name: str, path: list[str]) -> None:
        if name in path:
            cycles.append([*path[path.index(name) :], name])
        elif name not in done:
            for other in sorted(graph.get(name, ())):
                follow(other, [*path, name])
            done.add(name)

    for name in graph:
        follow(name, [])
    return cycles


def all_imports() -> dict[str, frozenset[str]]:
    """Return the imports of every module of the package."""
    return {name: imports(name) for name in MODULES}


def import_graph() -> dict[str, set[str]]:
    """Return module → the other modules of the package that it imports."""
    return {name: ours(imported) - {name} for name, imported in all_imports().items() if name}


def test_core_imports_no_io_module():
    for name, imported_names in all_imports().items():
        if name.startswith(PURE):
            impure = {imported.partition(".")[0] for imported in imported_names} & IMPURE
            assert not impure, f"{name} is pure and may not import {sorted(impure)}"


def test_no_top_folder_imports_a_higher_layer():
    for name, imported in import_graph().items():
        upward = {
            other
            for other in imported
            if FLOORS.index(find_top_folder(other)) > FLOORS.index(find_top_folder(name))
        }
        assert not upward, (
            f"{name} may not import {sorted(upward)}: {find_top_folder(name)} stands below"
        )


def test_only_user_facing_folders_import_typer_or_rich():
    for name, imported_names in all_imports().items():
        drawing = {imported.partition(".")[0] for imported in imported_names} & FOR_PEOPLE
        assert not drawing or find_top_folder(name) in DRAWS, (
            f"{name} may not import {sorted(drawing)}"
        )


def test_modules_have_no_import_cycles():
    assert circles(import_graph()) == []


def test_folders_have_no_import_cycles():
    folders: dict[str, set[str]] = {}
    for name, imported in import_graph().items():
        here = name if MODULES[name].name == "__init__.py" else name.rpartition(".")[0]
        for other in imported:
            imported_folder = (
                other if MODULES[other].name == "__init__.py" else other.rpartition(".")[0]
            )
            if here != imported_folder and here and imported_folder:
                folders.setdefault(here, set()).add(imported_folder)
    assert circles(folders) == []


def test_only_adapters_import_adapter_modules():
    """Other modules must not name a vendor, because the differences between vendors are data."""
    for name, imported in import_graph().items():
        vendor_modules = {other for other in imported if other.startswith(f"{VENDORS}.")}
        assert find_top_folder(name) == VENDORS or not vendor_modules, (
            f"{name} may ask the table for a vendor, not import {sorted(vendor_modules)}"
        )


def test_only_main_imports_the_commands():
    for name, imported in import_graph().items():
        if find_top_folder(name) not in ("commands", "__main__"):
            assert not {other for other in imported if find_top_folder(other) == "commands"}, name


def test_every_module_has_a_docstring():
    for name in MODULES:
        assert outline(name).docstring, f"{name} has no docstring"


@pytest.mark.parametrize(
    "graph", [{"a": {"b"}, "b": {"a"}}, {"a": {"b"}, "b": {"c"}, "c": {"a"}}, {"a": {"a"}}]
)
def test_import_cycle_is_detected(graph):
    assert circles(graph)
