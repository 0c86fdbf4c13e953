"""The modules that each command imports at its start. Frontends start one process for every
turn.
"""

import subprocess
import sys

import pytest
from box import ANSWER, ASK, ROOT, TELL_VERSION, TIMEOUT_S

# No turn may import these modules, because their import takes too long.
HEAVY = {
    "typer",
    "rich",
    "structlog",
    "importlib.metadata",
    "pydantic",
    "platformdirs",
    "click",
    "pathlib",
    "tomllib",
}


# The modules that may be loaded when the vendor's program is started: the launch and its decisions.
# Each additional module delays every turn; `make bench` measures the delay.
BEFORE_THE_CHILD = {
    "shim", "shim.__main__",
    "shim.adapters",
    "shim.commands", "shim.commands.claude", "shim.commands.claude.dropin",
    "shim.conversation", "shim.conversation.drivers", "shim.conversation.drivers.context",
    "shim.conversation.drivers.launcher", "shim.conversation.drivers.vendor_program",
    "shim.conversation.plan", "shim.conversation.session_state", "shim.conversation.startup",
    "shim.conversation.vendor_list",
    "shim.core", "shim.core.adapter", "shim.core.adapter.adapter", "shim.core.adapter.request",
    "shim.core.adapter.tools", "shim.core.adapter.versions", "shim.core.claude",
    "shim.core.claude.argv", "shim.core.claude.argv.flags", "shim.core.claude.argv.models",
    "shim.core.claude.session_state", "shim.core.dialects", "shim.core.errors", "shim.core.policy",
    "shim.core.policy.policy", "shim.core.policy.settings", "shim.core.reading",
    "shim.core.reading.typed", "shim.core.reading.values",
    "shim.io", "shim.io.ids", "shim.io.prompt", "shim.io.signals", "shim.io.stderr",
    "shim.process", "shim.process.environment", "shim.process.find_program", "shim.process.spawn",
    "shim.state", "shim.state.claude_settings", "shim.state.config", "shim.state.files",
    "shim.state.own_profiles", "shim.state.stored_versions",
}  # fmt: skip
# The number of modules (without packages) that are loaded then for a vendor with a hand-written
# adapter. Lower it when the number falls.
MAX_MODULES_BEFORE_CHILD = 35
OF_A_PROFILE = {
    "shim.profiles", "shim.profiles.check", "shim.profiles.check.config_node",
    "shim.profiles.compile", "shim.profiles.compile.tools",
    "shim.profiles.load", "shim.profiles.load.profile_file", "shim.profiles.load.launch", "shim.profiles.load.adapter",
    "shim.profiles.load.profile_adapter",
    "shim.profiles.load.prompt", "shim.profiles.load.argv_parts", "shim.state.files", "shim.state.profile_files",
}  # fmt: skip
OF_THE_VENDOR = {
    "pi": {"shim.adapters.pi"},
    "qwen": {"shim.adapters.qwen"},
    "cursor": {"shim.adapters.cursor", "shim.adapters.cursor_tools"},
    "claude": {"shim.adapters.claude"},
    "demo": {"shim.adapters.demo"},
    "codex": OF_A_PROFILE
    | {"shim.core.policy.serialize", "shim.core.adapter.policy_hook", "shim.adapters.codex_rules"},
    "gemini": OF_A_PROFILE | {"shim.profiles.load.denials"},
    "opencode": OF_A_PROFILE | {"shim.profiles.load.denials"},
}
LATE = {
    "anyio",
    "asyncio",
    "ctypes",
    "dataclasses",
    "inspect",
    "json",
    "orjson",
    "re",
    "subprocess",
    "tomllib",
}
LATE |= {"typing", "uuid"}

AT_THE_START = """
import os, sys
from shim.__main__ import main

def started(event, arguments):
    if event in ("os.posix_spawn", "subprocess.Popen"):
        sys.stderr.write("\\n".join(sys.modules))
        sys.stderr.flush()
        os._exit(0)

sys.addaudithook(started)
main()
sys.exit(1)
"""

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


def is_package(name):
    return (ROOT / name.replace(".", "/") / "__init__.py").exists()


@pytest.fixture
def look(box):
    """Run `shim ARGUMENTS`, at most until it starts a program. Return the modules that it imported."""

    def run(*args, wrapper=WRAPPER, **environment):
        done = subprocess.run(
            [sys.executable, "-P", "-c", wrapper, *args],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            env=box.build_environment(**environment),
            cwd=box.cwd,
            timeout=TIMEOUT_S,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return set(done.stderr.split())

    return run


def test_turn_imports_no_heavy_modules_and_only_its_adapter(box, look):
    modules = look("claude", *ASK, SHIM_VENDOR="demo", SHIM_BIN=box.create_fake(["out", ANSWER]))
    assert {"shim.conversation.message_loop", "anyio"} <= modules, "a turn was run"
    assert not HEAVY & modules
    vendor_modules = {name for name in ours(modules) if name.startswith("shim.adapters.")}
    assert vendor_modules == {"shim.adapters.demo", "shim.adapters.demo_stream"}


@pytest.mark.parametrize("vendor", OF_THE_VENDOR)
def test_vendor_process_starts_before_unneeded_modules_are_imported(box, look, vendor):
    program = box.write_program("standin", f"{TELL_VERSION}head -c 1 > /dev/null\n")
    environment = {"SHIM_VENDOR": vendor, "SHIM_BIN": program}
    args = (*ASK, "--output-format", "text")
    box.run_claude(*args, **environment)  # stores the checked profile and the program's version
    modules = look("claude", *args, wrapper=AT_THE_START, **environment)
    assert ours(modules) - BEFORE_THE_CHILD == OF_THE_VENDOR[vendor] - BEFORE_THE_CHILD
    assert not (LATE | HEAVY) & modules
    if vendor == "qwen":
        assert ours(modules) >= BEFORE_THE_CHILD, "the list has no module that is loaded later"
        module_names = [name for name in ours(modules) if not is_package(name)]
        assert len(module_names) <= MAX_MODULES_BEFORE_CHILD, sorted(module_names)


@pytest.mark.parametrize("flag", ["--version", "-v"])
def test_version_flag_imports_no_further_modules(look, flag):
    """P2"""
    assert ours(look("claude", flag)) == {"shim", "shim.__main__"}


def test_version_flag_after_another_flag_imports_no_heavy_modules(look):
    """P2"""
    modules = look("claude", "-p", "--version")
    assert not HEAVY & modules


def test_claude_command_prints_the_emulated_claude_version(capsys):
    """P1"""
    from shim.__main__ import _run_claude
    from shim.core.claude.writer import CLAUDE_VERSION

    assert _run_claude(["--version"], {}) == 0
    assert capsys.readouterr().out == f"{CLAUDE_VERSION} (Claude Code)\n"
    assert tuple(map(int, CLAUDE_VERSION.split("."))) >= (2, 0, 0)


def test_report_modules_are_imported_on_request(look):
    import_handlers = "import sys, shim.core.claude.control.state_handlers"
    modules = look(wrapper=f'{import_handlers}; sys.stderr.write("\\n".join(sys.modules))')
    reports = {name for name in modules if name.endswith(("_reports", "policy.serialize"))}
    assert reports == {"shim.core.claude.control.session_reports"}


def test_enabled_log_imports_structlog_without_typer(box, look):
    modules = look(
        "claude",
        *ASK,
        SHIM_VENDOR="demo",
        SHIM_BIN=box.create_fake(["out", ANSWER]),
        SHIM_LOG="error",
    )
    assert "structlog" in modules and "typer" not in modules


@pytest.mark.parametrize("redact", ["casts", "none", "all"])
def test_redaction_modules_are_imported_only_if_all_output_is_redacted(box, look, redact):
    modules = look(
        "claude",
        *ASK,
        SHIM_VENDOR="demo",
        SHIM_BIN=box.create_fake(["out", ANSWER]),
        SHIM_REDACT=redact,
    )
    redaction_modules = ours(modules) & {
        "shim.core.secrets.redactor",
        "shim.core.secrets.redacted_turn",
        "shim.core.secrets.claude_lines",
        "shim.core.secrets.patterns",
    }
    assert len(redaction_modules) == (4 if redact == "all" else 0)
    assert not HEAVY & modules


READERS = {
    "qwen": "shim.adapters.qwen_stream",
    "qwen-rfc": "shim.adapters.qwen_rfc_stream",
    "gemini": "shim.profiles.acp.translator",
    "opencode": "shim.profiles.acp.translator",
}


@pytest.mark.parametrize("vendor", READERS)
def test_persistent_child_starts_before_its_translator_is_imported(box, look, vendor):
    program = box.write_program("standin", "head -c 1 > /dev/null\n")
    asks = ("--permission-prompt-tool", "stdio", "--output-format", "stream-json", "--verbose")
    modules = look(
        "claude", *ASK, *asks, wrapper=AT_THE_START, SHIM_VENDOR=vendor, SHIM_BIN=program
    )
    assert "shim.core.adapter.child_stream" in modules
    assert READERS[vendor] not in modules


@pytest.mark.parametrize(
    ("args", "lived"),
    [(("--resume", "0b5ca2c8-6f4e-4b9a-8f5e-0d9a3b1f2c3d"), False), ((), True)],
)
def test_turn_imports_no_bridge_modules(box, look, args, lived):
    """The shim checks once whether background sessions exist, and only if a session is resumed."""
    box.state.mkdir(parents=True, mode=0o700)
    if lived:
        (box.state / "bridge").mkdir(mode=0o700)
    wrapper = WRAPPER.replace("main()\n", "main()\nexcept SystemExit:\n    pass\n", 1)
    modules = look(
        "claude",
        *ASK,
        *args,
        wrapper=wrapper,
        SHIM_VENDOR="demo",
        SHIM_BIN=box.create_fake(["out", ANSWER]),
    )
    assert "shim.conversation.startup" in modules
    assert not {name for name in modules if "bridge" in name}
