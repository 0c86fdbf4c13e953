"""Limits for the names in the tree. Lower a limit when its measure is better; never raise one."""

import ast
from collections import Counter

import pytest
from readability import ROOT, Measures, has_dialect_word, list_dialect_names, measure, split_name

AT_LEAST = ("verb_first_percent",)
LIMITS = {
    "shim": Measures(
        single_word_percent=5.5,
        verb_first_percent=96.8,
        lone_participle_percent=0.1,
        empty_words=0.4,
        ambiguous_types=0,
        long_lines_percent=0.5,
        properties_per_100=4.1,
        dialect_names=58,
    ),
    "tests": Measures(
        single_word_percent=12.0,
        verb_first_percent=89.0,
        lone_participle_percent=0.2,
        empty_words=0.1,
        ambiguous_types=18,
        long_lines_percent=0.5,
        properties_per_100=0.9,
        dialect_names=41,
    ),
}


@pytest.mark.parametrize("name", LIMITS)
def test_readability_measures_are_within_their_limits(name):
    measured = measure(ROOT / name)._asdict()
    worse = {
        key: (value, limit)
        for (key, value), limit in zip(measured.items(), LIMITS[name], strict=True)
        if (value < limit if key in AT_LEAST else value > limit)
    }
    assert not worse, f"measured and limit; `python tests/readability.py` prints all: {worse}"


def test_dialect_word_is_detected_as_a_part_of_a_name():
    assert has_dialect_word("said_text") and has_dialect_word("SaidText")
    assert not has_dialect_word("text") and not has_dialect_word("items")


def test_all_bound_names_are_measured():
    code = "class Told:\n    def known(self, given):\n        self.kept = said = given\n"
    names = Counter(list_dialect_names(ast.walk(ast.parse(code))))
    assert names == Counter({"Told": 1, "known": 1, "given": 1, "kept": 1, "said": 1})


def test_names_in_import_except_and_match_are_measured():
    code = (
        "import os as told, sys\n"
        "try: pass\n"
        "except OSError as said: pass\n"
        "except ValueError: pass\n"
        "match x:\n"
        "    case [known, *kept]: pass\n"
        "    case int() as given: pass\n"
        "    case _: pass\n"
    )
    assert sorted(list_dialect_names(ast.walk(ast.parse(code)))) == [
        "given",
        "kept",
        "known",
        "said",
        "told",
    ]


def test_name_is_split_at_capitals_and_underscores():
    assert split_name("HTTPError_and_heardWord") == ["httperror", "and", "heard", "word"]


MAX_CONSTRUCTOR_PARAMETERS = 7  # without `self`


def list_methods(tree):
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            for method in node.body:
                if isinstance(method, (ast.FunctionDef, ast.AsyncFunctionDef)):
                    yield f"{node.name}.{method.name}", method


def returns_part_of_another_object(method):
    """Return whether a property only returns an attribute of an attribute."""
    if "property" not in {
        ast.unparse(decorator).split(".")[-1] for decorator in method.decorator_list
    }:
        return False
    match [
        node
        for node in method.body
        if ast.get_docstring(method) is None or node is not method.body[0]
    ]:
        case [ast.Return(value=ast.Attribute(value=ast.Attribute()))]:
            return True
    return False


def find_weak_classes(tree):
    """Return the properties that only return a part of another object, the constructors with too
    many parameters, and the deletions of an object's attribute.
    """
    for name, method in list_methods(tree):
        parameters = method.args
        count = len(parameters.posonlyargs + parameters.args + parameters.kwonlyargs) - 1
        if returns_part_of_another_object(method):
            yield name
        if method.name == "__init__" and count > MAX_CONSTRUCTOR_PARAMETERS:
            yield name
    for node in ast.walk(tree):
        if isinstance(node, ast.Delete):
            yield from (
                ast.unparse(node) for target in node.targets if isinstance(target, ast.Attribute)
            )


def test_classes_are_complete_and_expose_no_parts_of_others():
    weak = {
        name
        for path in (ROOT / "shim").rglob("*.py")
        for name in find_weak_classes(ast.parse(path.read_text()))
    }
    assert not weak


def test_weak_class_is_detected():
    source = '''
class Box:
    def __init__(self, a, b, c, d, e, f, g, h): del self.a

    @property
    def size(self):
        """The size."""
        return self._file.size

    @property
    def name(self): return self._name
'''
    assert set(find_weak_classes(ast.parse(source))) == {"Box.__init__", "Box.size", "del self.a"}
