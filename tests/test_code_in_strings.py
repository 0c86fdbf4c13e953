"""Programs in strings of tests only use names of the package that exist.

A `sitecustomize.py` with a wrong name prints a message that no test reads. Its test would pass
without having tested anything.
"""

import ast
import importlib
import importlib.util
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


def list_attributes_in_strings(tree):
    """Yield the attributes that a program reads from the modules that it imports by name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            for match in IMPORT_PATTERN.finditer(node.value):
                for name in re.findall(r"\w+", match[2]):
                    module_name = f"{match[1]}.{name}"
                    if importlib.util.find_spec(match[1]) and is_module(module_name):
                        attributes = re.findall(rf"\b{name}\.(\w+)", node.value)
                        yield node.lineno, module_name, attributes


def is_module(name):
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False


def is_importable(module_name, name):
    return hasattr(importlib.import_module(module_name), name) or is_module(f"{module_name}.{name}")


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


def test_programs_in_strings_use_existing_attributes():
    missing_names, attribute_count = [], 0
    for path in sorted(TESTS.rglob("*.py")):
        for line, module_name, names in list_attributes_in_strings(ast.parse(path.read_bytes())):
            attribute_count += len(names)
            missing_names += [
                f"{path.relative_to(TESTS)}:{line} {module_name}.{name}"
                for name in names
                if not is_importable(module_name, name)
            ]
    assert attribute_count > 5, "nothing was checked"
    assert not missing_names
