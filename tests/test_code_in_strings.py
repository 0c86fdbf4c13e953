"""Programs that stand in strings of tests import only names that exist.

A `sitecustomize.py` with a wrong import prints a message that nobody reads, and its test then
passes without it.
"""

import ast
import importlib
import re
from pathlib import Path

TESTS = Path(__file__).parent
IMPORT_PATTERN = re.compile(r"from (shim[\w.]*) import ([\w, ]+)")


def list_imports_in_strings(tree):
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            for match in IMPORT_PATTERN.finditer(node.value):
                names = [part.split()[0] for part in match[2].split(",") if part.strip()]
                yield node.lineno, match[1], names


def is_importable(module_name, name):
    if hasattr(importlib.import_module(module_name), name):
        return True
    try:
        importlib.import_module(f"{module_name}.{name}")
    except ModuleNotFoundError:
        return False
    return True


def test_programs_in_strings_import_existing_names():
    missing_names, import_count = [], 0
    for path in sorted(TESTS.rglob("*.py")):
        for line, module_name, names in list_imports_in_strings(ast.parse(path.read_bytes())):
            import_count += len(names)
            missing_names += [
                f"{path.relative_to(TESTS)}:{line} {module_name}.{name}"
                for name in names
                if not is_importable(module_name, name)
            ]
    assert import_count > 10, "nothing was checked"
    assert not missing_names
