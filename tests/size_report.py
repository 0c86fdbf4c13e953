"""Prints what is large in `shim/`: long modules, crowded folders, classes with many attributes.

    python tests/size_report.py

The report is a hint for a reader and not a check: an enforced limit would move code to a place with
space for it instead of the place where it belongs. `tests/test_layering.py` enforces the rules
about imports.
"""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

SHIM = Path(__file__).resolve().parent.parent / "shim"

LONG_MODULE_LINES = 400
CROWDED_FOLDER_ENTRIES = 12
LARGE_CLASS_ATTRIBUTES = 20

NOT_COUNTED = frozenset({"__pycache__", "__init__.py", "py.typed"})


def list_long_modules() -> Iterator[str]:
    """Return a line for each module with more than LONG_MODULE_LINES lines."""
    for path in sorted(SHIM.rglob("*.py")):
        length = len(path.read_text(encoding="utf-8").splitlines())
        if length > LONG_MODULE_LINES:
            yield f"{path.relative_to(SHIM.parent)}: {length} lines"


def list_crowded_folders() -> Iterator[str]:
    """Return a line for each folder with more than CROWDED_FOLDER_ENTRIES entries."""
    folders = [path for path in SHIM.rglob("*") if path.is_dir() and path.name != "__pycache__"]
    for folder in sorted([SHIM, *folders]):
        entries = [path for path in folder.iterdir() if path.name not in NOT_COUNTED]
        if len(entries) > CROWDED_FOLDER_ENTRIES:
            yield f"{folder.relative_to(SHIM.parent)}: {len(entries)} entries"


def list_large_classes() -> Iterator[str]:
    """Return a line for each class that gives its objects more than LARGE_CLASS_ATTRIBUTES
    attributes.
    """
    for path in sorted(SHIM.rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            if not isinstance(node, ast.ClassDef):
                continue
            count = len(collect_attributes(node))
            if count > LARGE_CLASS_ATTRIBUTES:
                yield f"{path.relative_to(SHIM.parent)}: {node.name} has {count} attributes"


def collect_attributes(node: ast.ClassDef) -> set[str]:
    """Return the names of the annotated fields and of the attributes that a method assigns on
    `self`.
    """
    names = {
        statement.target.id
        for statement in node.body
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name)
    }
    for child in ast.walk(node):
        is_assigned = isinstance(child, ast.Attribute) and isinstance(child.ctx, ast.Store)
        if is_assigned and ast.unparse(child.value) == "self":
            names.add(child.attr)
    return names


def main() -> None:
    """Write the report to stdout."""
    sections = (
        ("modules", list_long_modules()),
        ("folders", list_crowded_folders()),
        ("classes", list_large_classes()),
    )
    for title, lines in sections:
        sys.stdout.write(f"Large {title}:\n")
        sys.stdout.writelines(f"  {line}\n" for line in lines)


if __name__ == "__main__":
    main()
