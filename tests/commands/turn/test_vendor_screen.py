"""`claude` without arguments on a terminal: an error, or the vendor's own program in its place."""

from pathlib import Path

import pytest
from box import SHIM
from terminal import CTRL_C, on_terminal

# Prints its identity and its arguments, then echoes lines; a vendor's interface in short.
PROGRAM = """#!/bin/sh
[ -t 0 ] && [ -t 1 ] && [ -t 2 ] && echo "pid $$ on a terminal"
echo "given <$*> <$OWN> <$SHIM_VENDOR$CLAUDE_SHIM_VENDOR> <$CLAUDECODE> <$SHIM_DEPTH>"
while read -r line; do echo "heard $line"; [ "$line" = bye ] && exit 7; done
"""


@pytest.fixture
def open_vendor_screen(box):
    """Return a function that starts `claude ARGS` on a terminal in the box. `tui` is the value in
    the settings.
    """
    program = box.path / "screen"
    program.write_text(PROGRAM)
    program.chmod(0o755)

    def start(*args, tui="vendor", more="", **environment):
        box.write_settings(f'tui = "{tui}"\n{more}' if tui else more)
        env = {"SHIM_VENDOR": "pi", "SHIM_BIN": str(program), "CLAUDECODE": "1"} | environment
        return on_terminal(
            [*SHIM, "claude", *args], env=box.build_environment(**env), cwd=str(box.cwd)
        )

    return start


@pytest.mark.parametrize("tui", [None, "none"])
def test_bare_claude_without_a_screen_prints_alternatives_in_a_single_line(
    box, open_vendor_screen, tui
):
    with open_vendor_screen(tui=tui) as terminal:
        assert terminal.wait_for_exit() == 1
    output = terminal.plain.replace("\r\n", "\n")
    assert (
        output.startswith("claude: the shim has no interactive screen: ")
        and output.count("\n") == 1
    )
    for part in ("`shim run MESSAGE`", "`claude -p MESSAGE`", 'tui = "vendor"', str(box.config)):
        assert part in output


def test_vendor_program_replaces_the_shim_process_on_the_same_terminal(open_vendor_screen):
    more = '[vendors.pi]\nargs = ["--theme", "dark"]\nenv = { OWN = "x" }\n'
    with open_vendor_screen(more=more) as terminal:
        terminal.wait_for_text(f"pid {terminal.process.pid} on a terminal")
        terminal.wait_for_text("given <--theme dark> <x> <> <> <1>")
        terminal.type_keys("hello\n")
        terminal.wait_for_text("heard hello")
        terminal.type_keys("bye\n")
        assert terminal.wait_for_exit() == 7


def test_ctrl_c_on_the_terminal_interrupts_the_vendor_program(open_vendor_screen):
    with open_vendor_screen() as terminal:
        terminal.wait_for_text("given")
        terminal.type_keys(CTRL_C)
        assert terminal.wait_for_exit() == -2


def test_real_claude_receives_its_flags_without_the_shim_flags(open_vendor_screen):
    args = (
        "--shim-vendor",
        "claude",
        "--model",
        "opus",
        "--shim-log=debug:/dev/null",
        "--resume",
        "x",
    )
    with open_vendor_screen(*args, SHIM_VENDOR="pi") as terminal:
        terminal.wait_for_text("given <--model opus --resume x>")
        terminal.type_keys("bye\n")
        assert terminal.wait_for_exit() == 7


def test_flags_not_passed_to_the_vendor_screen_are_reported(open_vendor_screen):
    with open_vendor_screen("--model", "sonnet", "--dangerously-skip-permissions") as terminal:
        terminal.wait_for_text(
            "pi's interactive screen ignores --model, --dangerously-skip-permissions"
        )
        terminal.wait_for_text("given <>")


@pytest.mark.parametrize(
    "args",
    [
        ("--permission-mode", "plan"),
        ("--resume", "x"),
        ("-c",),
        ("--disallowedTools", "Bash"),
        ("--tools", ""),
    ],
)
def test_required_flag_unsupported_by_the_vendor_screen_is_refused(open_vendor_screen, args):
    with open_vendor_screen(*args) as terminal:
        assert terminal.wait_for_exit() == 1
    assert (
        "pi's interactive screen does not support --" in terminal.plain
        and "given" not in terminal.plain
    )


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"SHIM_VENDOR": "demo"}, "demo has no interactive screen"),
        ({"SHIM_VENDOR": None}, "no vendor is set"),
        ({"SHIM_VENDOR": "nobody"}, "unknown vendor 'nobody'"),
        ({"SHIM_BIN": "/nowhere"}, "/nowhere was not found"),
        ({"SHIM_DEPTH": "3"}, "started itself"),
    ],
)
def test_reason_for_a_missing_vendor_screen_is_reported(open_vendor_screen, environment, message):
    with open_vendor_screen(**environment) as terminal:
        assert terminal.wait_for_exit() == 1
    assert message in terminal.plain


def test_first_installed_vendor_of_the_list_opens_its_screen(box, open_vendor_screen):
    codex = Path(box.bin) / "codex"
    codex.parent.mkdir(exist_ok=True)
    codex.write_text(PROGRAM)
    codex.chmod(0o755)
    with open_vendor_screen(
        SHIM_VENDOR="cursor,codex", SHIM_BIN=None, PATH=f"{box.bin}:/usr/bin:/bin"
    ) as terminal:
        terminal.wait_for_text("given <>")


def test_print_mode_on_a_terminal_does_not_open_the_vendor_screen(open_vendor_screen):
    with open_vendor_screen("-p") as terminal:
        assert terminal.wait_for_exit() == 1
    assert "Input must be provided" in terminal.plain
