"""Rules for tools of a server whose name has characters that tool names may not have."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from frontend import DropInFrontend
from vendor_setups import QWEN, Vendor

pytestmark = pytest.mark.e2e

SERVER = Path(__file__).with_name("mcp_server.py")
VENDOR_TOOL_NAME = "mcp__s_x__make_{hash}"


def hash_name(name: str) -> str:
    """Return qwen's hash of a name: FNV-1a, in base 36."""
    number = 2166136261
    for letter in name:
        number = ((number ^ ord(letter)) * 16777619) % 2**32
    digits = ""
    while number:
        number, digit = divmod(number, 36)
        digits = "0123456789abcdefghijklmnopqrstuvwxyz"[digit] + digits
    return digits.rjust(7, "0")


@pytest.mark.parametrize("vendor", [QWEN], indirect=True, ids=str)
@pytest.mark.parametrize(
    ("rules", "runs"),
    [
        ((), True),
        (("--disallowedTools", "mcp__s_x__make"), False),
        pytest.param(("--disallowedTools", "mcp__s.x__make"), False, marks=pytest.mark.full),
        pytest.param(("--disallowedTools", "mcp__s_x"), False, marks=pytest.mark.full),
        (("--disallowedTools", "mcp__s.x__*"), False),
        (("--disallowedTools", "mcp__s_x__mak"), True),
    ],
)
def test_deny_rule_matches_a_tool_of_a_server_with_a_dot_in_its_name(
    frontend: DropInFrontend, vendor: Vendor, rules: Sequence[str], runs: bool
) -> None:
    config = json.dumps({"mcpServers": {"s.x": {"command": sys.executable, "args": [str(SERVER)]}}})
    made = frontend.folder / "made"
    name = VENDOR_TOOL_NAME.format(hash=hash_name("mcp__s.x__make"))
    done = frontend.run_prompt(
        f"[[call]] {name} " + json.dumps({"path": str(made)}),
        "--dangerously-skip-permissions",
        f"--mcp-config={config}",
        *rules,
    )
    assert made.exists() is runs
    if runs:
        assert "mcp__s_x__make" in json.dumps(done.lines)
