"""The three rings of the house: who may import whom (house page, "Rooms")."""

import ast
from pathlib import Path

import pytest
from support import ROOT

SHIM = ROOT / "shim"

# Sans-IO: fed parsed objects, gives back bytes. No clock, no file, no environment, no randomness, no await.
CORE = {
    "abilities",
    "account",
    "answers",
    "argv",
    "blocks",
    "calls",
    "caps",
    "casts.cast",
    "casts.clean",
    "casts.seams",
    "casts.stats_page",
    "casts.verify",
    "control",
    "decode",
    "dialects",
    "drift",
    "dumping",
    "ending",
    "errors",
    "events",
    "exports.exported",
    "exports.neutral",
    "exports.trace",
    "exports.unified",
    "failures",
    "findings",
    "frame",
    "halves",
    "hooks",
    "ids",
    "lanes",
    "lines",
    "messages",
    "nested",
    "outcomes",
    "passing",
    "patterns",
    "pen",
    "permissions",
    "policy",
    "profiles.check",
    "profiles.checking",
    "profiles.draft",
    "profiles.draft_calls",
    "profiles.draft_ends",
    "profiles.draft_results",
    "profiles.draft_seen",
    "profiles.draft_texts",
    "profiles.draft_words",
    "profiles.draft_write",
    "profiles.emits",
    "profiles.ends",
    "profiles.engine",
    "profiles.fields",
    "profiles.files",
    "profiles.launch",
    "profiles.parts",
    "profiles.paths",
    "profiles.profile",
    "profiles.regular",
    "profiles.rules",
    "profiles.tools",
    "profiles.tracing",
    "profiles.watched",
    "profiles.words",
    "redact",
    "redacted",
    "redacted_lines",
    "replays.difference",
    "replays.script",
    "replays.words",
    "routing",
    "shapes",
    "spoken",
    "story.edits",
    "story.figures",
    "story.remarks",
    "story.steps",
    "story.story",
    "story.timeline",
    "summary",
    "tail",
    "terms",
    "tools",
    "translation",
    "translator",
    "tried",
    "turn",
    "usage",
    "vendor",
    "verbatim",
    "versions",
    "wording",
    "yume.argv",
    "yume.control",
    "yume.pen",
    "yume.words",
}
# Owns every file descriptor, every timeout and every task; knows nothing of any vendor's words.
SHELL = {
    "beginning",
    "blanking",
    "candidates",
    "capabilities",
    "casts.drifts",
    "casts.files",
    "casts.fixture",
    "casts.reading",
    "casts.recorder",
    "casts.recording",
    "casts.redact",
    "casts.search",
    "child",
    "config",
    "demo_child",
    "diagnosis",
    "drivers",
    "early",
    "environment",
    "exports.atif",
    "exports.gathered",
    "exports.html",
    "exports.markdown",
    "exports.ndjson",
    "exports.otel",
    "exports.otel_send",
    "exports.spans",
    "exports.traces",
    "fallback",
    "given",
    "guard",
    "home",
    "install",
    "installed",
    "launcher",
    "listing",
    "log",
    "loop",
    "machine",
    "one_way",
    "own_vendors",
    "probe",
    "profiles.captured",
    "profiles.loading",
    "programs",
    "prompt",
    "relay",
    "replays.check",
    "replays.choice",
    "replays.replay",
    "report",
    "runs",
    "session",
    "sinks",
    "source",
    "spill",
    "start",
    "state",
    "store",
    "strays",
    "structured",
    "summaries",
    "transcript",
    "translate",
    "two_way",
    "unstartable",
    "windows",
    "yume.start",
}
# What a person runs.
FRONT = {
    "__main__",
    "casts.command",
    "casts.stats",
    "casts.tables",
    "cli",
    "conform.command",
    "conform.control",
    "conform.doors",
    "conform.judge",
    "conform.partial",
    "conform.process",
    "conform.report",
    "conform.runs",
    "conform.seen",
    "conform.sessions",
    "conform.stream",
    "doctor",
    "dropin",
    "exports.command",
    "manual",
    "profiles.command",
    "replays.command",
    "replays.report",
    "showing.command",
    "showing.draw",
    "showing.marked",
    "showing.paper",
    "showing.raw",
    "showing.show",
    "showing.sums",
    "subcommands",
    "vendor_table",
    "yume.cli",
}
# vendors/ is core, whole; of the other folders each module has a ring of its own.
PACKAGES = {"__init__", "vendors", "casts", "conform", "exports", "profiles", "replays", "showing", "story", "yume"}

NOT_IN_CORE = {
    "anyio", "asyncio", "logging", "os", "pathlib", "platformdirs", "random", "rich", "secrets", "select", "shutil",
    "signal", "socket", "structlog", "subprocess", "sys", "tempfile", "threading", "time", "typer", "uuid",
}  # fmt: skip
NOT_IN_SHELL = {"typer", "rich"}
LINES = 400  # house: no module over ~400


def modules() -> dict[str, Path]:
    """Every module of the package by its dotted name without `shim.`."""
    return {
        ".".join(path.relative_to(SHIM).with_suffix("").parts).removesuffix(".__init__"): path
        for path in sorted(SHIM.rglob("*.py"))
    }


MODULES = modules()


def ring(name: str) -> str:
    """The ring of a module: vendors/ is core."""
    if name in CORE or name.partition(".")[0] == "vendors":
        return "core"
    return "shell" if name in SHELL else "front" if name in FRONT else "package"


def imports(path: Path) -> set[str]:
    """All modules that a file imports, also inside functions; `if TYPE_CHECKING` does not run."""
    found: set[str] = set()

    def visit(node: ast.AST) -> None:
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            for child in node.orelse:
                visit(child)
            return
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path.name}: imports are absolute"
            found.add(node.module or "")
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
        for child in ast.iter_child_nodes(node):
            visit(child)

    visit(ast.parse(path.read_text(encoding="utf-8")))
    return found


def ours(imported: set[str]) -> set[str]:
    """The modules of the package among the imported, by their names without `shim.`."""
    names = {name.removeprefix("shim.") for name in imported if name.startswith("shim.")}
    return {name for name in names if name in MODULES}


def test_every_module_stands_in_exactly_one_ring():
    names = {name for name in MODULES if not name.startswith("vendors.")} - PACKAGES
    gone = (CORE | SHELL | FRONT) - names
    assert not gone, f"{sorted(gone)} are no modules any more"
    homeless = names - CORE - SHELL - FRONT
    assert not homeless, f"{sorted(homeless)} have no ring: add each to CORE, SHELL or FRONT in this file"
    twice = (CORE & SHELL) | (CORE & FRONT) | (SHELL & FRONT)
    assert not twice, f"{sorted(twice)} stand in two rings"


@pytest.mark.parametrize("name", [name for name in MODULES if ring(name) == "core"])
def test_the_core_does_no_io(name):
    found = {imported.partition(".")[0] for imported in imports(MODULES[name])} & NOT_IN_CORE
    assert not found, f"{name} is core and may not import {sorted(found)}"


@pytest.mark.parametrize("name", [name for name in MODULES if ring(name) == "core"])
def test_the_core_imports_only_the_core(name):
    outward = {other for other in ours(imports(MODULES[name])) if ring(other) in ("shell", "front")}
    assert not outward, f"{name} is core and may not import {sorted(outward)}"


@pytest.mark.parametrize("name", [name for name in MODULES if ring(name) == "shell"])
def test_the_shell_imports_the_core_and_the_shell(name):
    found = imports(MODULES[name])
    assert not {imported.partition(".")[0] for imported in found} & NOT_IN_SHELL, f"{name}: typer and rich are for cli"
    outward = {other for other in ours(found) if ring(other) == "front"}
    assert not outward, f"{name} is shell and may not import {sorted(outward)}"


@pytest.mark.parametrize("name", [name for name in MODULES if not name.startswith("vendors")])
def test_only_the_table_knows_the_vendors(name):
    """No module outside vendors/ names one vendor: what differs is data."""
    named = {other for other in ours(imports(MODULES[name])) if other.startswith("vendors.")}
    assert not named, f"{name} may ask the table for a vendor, not import {sorted(named)}"


@pytest.mark.parametrize("name", MODULES)
def test_no_module_is_too_long_to_read(name):
    length = len(MODULES[name].read_text(encoding="utf-8").splitlines())
    assert length <= LINES, f"{name} has {length} lines"


@pytest.mark.parametrize("name", MODULES)
def test_every_public_name_says_what_it_is(name):
    """Modules, public classes and functions, and public methods of classes that override nothing."""
    tree = ast.parse(MODULES[name].read_text(encoding="utf-8"))
    assert ast.get_docstring(tree) or not tree.body, f"{name} has no docstring"
    silent = []
    for node in tree.body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and not node.name.startswith("_"):
            if not ast.get_docstring(node):
                silent.append(node.name)
            if isinstance(node, ast.ClassDef) and not _is_translator(node):
                silent += [
                    f"{node.name}.{inner.name}"
                    for inner in node.body
                    if isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef)
                    and not inner.name.startswith("_")
                    and not ast.get_docstring(inner)
                ]
    assert not silent, f"{name}: {silent} have no docstring"


def _is_translator(node: ast.ClassDef) -> bool:
    """A translator's methods are named by the events that they handle."""
    return any(isinstance(base, ast.Name) and base.id.endswith("Translator") for base in node.bases)
