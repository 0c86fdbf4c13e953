"""MCP servers in a user's own pi settings. In one-shot mode nothing can ask for permission to use
their tools.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from frontend import DropInFrontend
from vendor_setups import PI, Vendor

pytestmark = pytest.mark.e2e

SERVER = Path(__file__).with_name("mcp_server.py")


@pytest.mark.parametrize("vendor", [PI], indirect=True, ids=str)
@pytest.mark.parametrize(
    ("flags", "runs"),
    [
        (("--dangerously-skip-permissions",), True),
        (("--permission-mode", "plan"), False),
        (("--permission-mode", "acceptEdits"), False),
        (("--dangerously-skip-permissions", "--disallowedTools", "mcp__srv__make"), False),
    ],
)
def test_mcp_tool_configured_in_pi_runs_only_in_bypass_mode_without_deny_rules(
    frontend: DropInFrontend, vendor: Vendor, flags: Sequence[str], runs: bool
) -> None:
    server = {"command": sys.executable, "args": [str(SERVER)], "exposure": "direct"}
    config = Path(frontend.environment["PI_CODING_AGENT_DIR"]) / "mcp.json"
    config.write_text(json.dumps({"mcpServers": {"srv": server}}))
    made = frontend.folder / "made"
    frontend.run_prompt("[[call]] mcp__srv__make " + json.dumps({"path": str(made)}), *flags)
    assert made.exists() is runs
