"""`claude` without arguments on a terminal with real vendors: `tui = "vendor"` starts the vendor's
own interface in place of the shim's.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from frontend import DropInFrontend
from programs import install_program
from sandbox import EXIT_SECONDS
from terminal import CTRL_C, on_terminal
from vendor_setups import CLAUDE_ITSELF, CODEX, OPENCODE, PI, QWEN, Vendor

pytestmark = pytest.mark.e2e

SCREEN_SECONDS = 60.0
# The first terminal queries of each program's interface: the colours, the keyboard, or another
# screen buffer.
SCREEN = re.compile(r"\x1b\[\?(1049|2004|2026|25|1004)[hl]|\x1b\[>|\x1b\]1[01];\?|\x1b\[6n|\x1b\[c")
REST = [pytest.param(vendor, marks=pytest.mark.full) for vendor in (QWEN, OPENCODE, CODEX)]


def settings(frontend: DropInFrontend, text: str) -> None:
    file = Path(frontend.environment["HOME"]) / ".config" / "shim" / "config.toml"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text + (file.read_text() if file.exists() else ""))


@pytest.mark.parametrize("vendor", [PI, CLAUDE_ITSELF, *REST], ids=str, indirect=True)
def test_tui_setting_opens_the_vendor_screen(frontend: DropInFrontend, vendor: Vendor) -> None:
    settings(frontend, 'tui = "vendor"\n')
    with on_terminal([str(frontend.claude)], env=frontend.environment, cwd=str(frontend.folder),
                     timeout_s=SCREEN_SECONDS) as terminal:  # fmt: skip
        terminal.wait_for_condition(lambda: SCREEN.search(terminal.drawn) is not None, "a screen")
        command = Path(f"/proc/{terminal.process.pid}/cmdline").read_bytes().decode()
        assert "shim.__main__" not in command
        terminal.type_keys(CTRL_C)
    assert frontend.wait_for_end(str(install_program(vendor.package).executable), EXIT_SECONDS)


@pytest.mark.parametrize("vendor", [PI], ids=str, indirect=True)
def test_vendor_is_not_started_without_the_tui_setting(frontend: DropInFrontend) -> None:
    with on_terminal(
        [str(frontend.claude)], env=frontend.environment, cwd=str(frontend.folder)
    ) as terminal:
        assert terminal.wait_for_exit() == 1
    assert "has no interactive screen" in terminal.plain
    assert SCREEN.search(terminal.drawn) is None
