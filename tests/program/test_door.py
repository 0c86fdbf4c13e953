"""The doors: what is imported before it is known what is asked for. Frontends start one process for every turn."""

import subprocess
import sys

import pytest
from box import ANSWER, ASK

# Nothing here may be imported on a turn's way; see the house page, "Doors".
HEAVY = {"typer", "rich", "structlog", "importlib.metadata", "pydantic", "platformdirs", "click", "pathlib", "tomllib"}


WRAPPER = """
import sys
from shim.__main__ import main
try:
    main()
finally:
    sys.stderr.write("\\n".join(sys.modules))
"""


def ours(modules):
    return {name for name in modules if name == "shim" or name.startswith("shim.")}


@pytest.fixture
def look(box):
    """Run `shim ARGUMENTS` and say what it imported."""

    def run(*arguments, **environment):
        done = subprocess.run(
            [sys.executable, "-P", "-c", WRAPPER, *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            env=box.environment(**environment),
            cwd=box.cwd,
            timeout=20,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return set(done.stderr.split())

    return run


def test_a_turn_imports_nothing_for_people(box, look):
    modules = look("claude", *ASK, SHIM_VENDOR="demo", SHIM_BIN=box.fake(["out", ANSWER]))
    assert {"shim.conversation.message_loop", "anyio"} <= modules, "a turn was run"
    assert not HEAVY & modules
    own = {name for name in ours(modules) if name.startswith("shim.vendors.")}
    assert own == {"shim.vendors.demo", "shim.vendors.demo_stream"}


@pytest.mark.parametrize("word", ["--version", "-v"])
def test_the_version_is_said_before_anything_is_imported(look, word):
    """P2"""
    assert ours(look("claude", word)) == {"shim", "shim.__main__"}


def test_a_flag_before_it_costs_the_parser_and_no_more(look):
    """P2"""
    modules = look("claude", "-p", "--version")
    assert not HEAVY & modules


def test_the_version_of_the_two_doors_is_the_same(capsys):
    """P1"""
    from shim.__main__ import _claude
    from shim.core.claude.pen import CLAUDE_VERSION

    assert _claude(["--version"], {}) == 0
    assert capsys.readouterr().out == f"{CLAUDE_VERSION} (Claude Code)\n"
    assert tuple(map(int, CLAUDE_VERSION.split("."))) >= (2, 0, 0)


def test_a_log_is_imported_only_for_who_asks(box, look):
    modules = look("claude", *ASK, SHIM_VENDOR="demo", SHIM_BIN=box.fake(["out", ANSWER]), SHIM_LOG="error")
    assert "structlog" in modules and "typer" not in modules


@pytest.mark.parametrize("redact", ["casts", "none", "all"])
def test_the_patterns_of_secrets_are_imported_only_for_who_redacts(box, look, redact):
    modules = look("claude", *ASK, SHIM_VENDOR="demo", SHIM_BIN=box.fake(["out", ANSWER]), SHIM_REDACT=redact)
    found = ours(modules) & {
        "shim.core.secrets.redactor",
        "shim.core.secrets.turn_without_secrets",
        "shim.core.secrets.lines",
        "shim.core.secrets.patterns",
    }
    assert len(found) == (4 if redact == "all" else 0)
    assert not HEAVY & modules
