"""Collects the names in `shim/` that other programs read: JSON keys, flags, variables, settings,
frame kinds and file names.

They are read from the source without running it. Renaming Python names must not change any of them.
"""

import ast
import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import cache

from fixture_cases import ROOT

from shim.bridge.gateway.tokens import GatewayTokenPair
from shim.bridge.launch import SessionSpec
from shim.commands.doctor.findings import VendorDiagnosis
from shim.commands.profile.lint import LineExplanation, LintReportEntry
from shim.core.bridge.frames import LogCursor
from shim.core.bridge.prompts import PermissionPromptOutcome
from shim.core.cast.compare import OutputDifference
from shim.core.cast.verify import RecordingFinding
from shim.core.claude.argv.flags import Invocation
from shim.core.policy.policy import UnsupportedRule
from shim.recording.folders import CastVerificationReport
from shim.recording.rewrite import CastRewriteResult
from shim.state.store import StoredSession
from shim.state.stored_versions import ExecutedDeniedCall
from shim.story.export.view_model import SessionStepView

GOLDEN = ROOT / "tests" / "golden" / "wire.json"

# Types whose fields become JSON keys or flags: by `_asdict()`, `asdict()` or a loop over their
# names.
WRITTEN_TYPES: tuple[type, ...] = (
    ExecutedDeniedCall, RecordingFinding, LogCursor, OutputDifference, LintReportEntry, LineExplanation,
    PermissionPromptOutcome, CastRewriteResult, StoredSession, SessionStepView, GatewayTokenPair, UnsupportedRule,
    VendorDiagnosis,
    CastVerificationReport, SessionSpec,
)  # fmt: skip

# Calls whose first argument names something in Python: a type, or the path of an attribute.
NAMING_CALLS = ("TypeVar", "cast", "forward_attribute")

# Constants whose texts are Python names: attributes, or keyword arguments of a library.
NAMING_CONSTANTS = ("__slots__", "__all__", "SESSION_CONSOLE_OPTIONS")

# Calls whose keywords are attributes of a Python object.
ATTRIBUTE_CALLS = ("copy_with",)

FLAG = re.compile(r"--?[A-Za-z][\w-]*=?")
VARIABLE = re.compile(r"[A-Z][A-Z0-9]*_[A-Z0-9_]*")
FILE_NAME = re.compile(r"[\w.*-]*\.[a-z][a-z0-9]{0,7}(\.[a-z]+)?")
WORD = re.compile(r"[\w$@.:/<>*~+=-]{1,80}")


@cache
def list_nodes() -> tuple[tuple[ast.AST, ...], ...]:
    """Return the syntax nodes of every module of the package."""
    paths = sorted((ROOT / "shim").rglob("*.py"))
    return tuple(tuple(ast.walk(ast.parse(path.read_text(encoding="utf-8")))) for path in paths)


def list_strings() -> dict[str, list[str]]:
    """Return the string constants that are a single word, by kind: flags, variables, files and
    other words.

    Docstrings, quoted types, the texts of `NAMING_CONSTANTS` and the modules of the package are
    left out, because they name something in Python.
    """
    texts: dict[str, set[str]] = {
        "flags": set(),
        "variables": set(),
        "files": set(),
        "words": set(),
    }
    for nodes in list_nodes():
        internal = set(_find_internal_nodes(nodes))
        for node in nodes:
            if (
                isinstance(node, ast.Constant)
                and isinstance(node.value, str | bytes)
                and node not in internal
            ):
                text = node.value if isinstance(node.value, str) else node.value.decode("latin-1")
                if kind := _classify_text(text):
                    texts[kind].add(text)
    return {kind: sorted(strings) for kind, strings in texts.items()}


def _classify_text(text: str) -> str:
    """Return the kind of a constant, or "" if it is a sentence, a pattern, punctuation or a module
    of the package.
    """
    if text.startswith("shim.") or not WORD.fullmatch(text) or not any(map(str.isalpha, text)):
        return ""
    if FLAG.fullmatch(text):
        return "flags"
    if VARIABLE.fullmatch(text):
        return "variables"
    return "files" if FILE_NAME.fullmatch(text) else "words"


def _find_internal_nodes(nodes: Iterable[ast.AST]) -> Iterator[ast.AST]:
    """Yield the constants that name something in Python, and the docstrings."""
    for node in nodes:
        if isinstance(node, ast.Expr):
            yield node.value
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.returns:
            yield from _find_quoted_types(node.returns)
        elif isinstance(node, ast.arg | ast.AnnAssign) and node.annotation:
            yield from _find_quoted_types(node.annotation)
        if _get_assigned_name(node) in NAMING_CONSTANTS:
            yield from ast.walk(node.value)
        if isinstance(node, ast.Call) and _get_called_name(node) in NAMING_CALLS:
            yield from node.args[:1]


def _get_assigned_name(node: ast.AST) -> str:
    """Return the name that an assignment sets, or "" if the node is something else."""
    if isinstance(node, ast.Assign):
        return str(getattr(node.targets[0], "id", ""))
    if isinstance(node, ast.AnnAssign) and node.value:
        return str(getattr(node.target, "id", ""))
    return ""


def _find_quoted_types(annotation: ast.expr) -> Iterator[ast.AST]:
    """Yield the quoted types of an annotation. The texts of a `Literal` are values."""
    if isinstance(annotation, ast.Subscript) and getattr(annotation.value, "id", "") == "Literal":
        return
    yield annotation
    for child in ast.iter_child_nodes(annotation):
        if isinstance(child, ast.expr):
            yield from _find_quoted_types(child)


def _get_called_name(call: ast.Call) -> str:
    """Return the last part of the name of a called function, or "" if it is an expression."""
    return str(getattr(call.func, "attr", getattr(call.func, "id", "")))


def list_keywords() -> list[str]:
    """Return the keywords that calls pass to a `**` parameter. Most of them become JSON keys."""
    named_parameters = _find_open_functions()
    keywords: set[str] = set()
    for nodes in list_nodes():
        for node in nodes:
            if isinstance(node, ast.Call) and _get_called_name(node) in named_parameters:
                passed = {keyword.arg for keyword in node.keywords if keyword.arg}
                keywords |= passed - named_parameters[_get_called_name(node)]
    return sorted(keywords)


def _find_open_functions() -> dict[str, set[str]]:
    """Return the functions with a `**` parameter, and the named parameters of all functions of the
    same name.
    """
    open_functions: set[str] = set()
    parameters: defaultdict[str, set[str]] = defaultdict(set)
    for nodes in list_nodes():
        for node in nodes:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                parameters[node.name] |= {
                    argument.arg for argument in (*node.args.args, *node.args.kwonlyargs)
                }
                if node.args.kwarg:
                    open_functions.add(node.name)
    return {name: parameters[name] for name in open_functions.difference(ATTRIBUTE_CALLS)}


def list_written_fields() -> list[list[str]]:
    """Return the field names of each type that is written with its field names."""
    shim_fields = [field for field in Invocation._fields if field.startswith("shim_")]
    return sorted([shim_fields, *(_list_fields(written) for written in WRITTEN_TYPES)])


def _list_fields(written: type) -> list[str]:
    fields = getattr(written, "_fields", None) or getattr(written, "__slots__", None)
    return list(fields or written.__dataclass_fields__)  # type: ignore[attr-defined]


def describe_wire() -> bytes:
    """Return all names of the wire as JSON, one per line, so that a diff shows each change."""
    names = {**list_strings(), "keywords": list_keywords(), "fields": list_written_fields()}
    return (json.dumps(names, indent=1, ensure_ascii=False) + "\n").encode()
