"""`--mcp-config` with the path of a file, and vendors that accept no MCP servers: real programs, a
scripted model.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from frontend import DropInFrontend
from model_scripts import REPLY_AFTER_TOOL
from sandbox import Line, LineProcess
from vendor_setups import CODEX, GEMINI, OPENCODE, QWEN, Vendor

pytestmark = [pytest.mark.e2e, pytest.mark.full]

TALK = ("--verbose", "--input-format", "stream-json", "--output-format", "stream-json")
ASKING = ("--permission-prompt-tool", "stdio")
MAKE = "mcp__my_srv__make"
VENDOR_TOOL_NAMES = {
    "gemini": "mcp_my_srv_make",
    "opencode": "my_srv_make",
    "codex": "mcp__my_srv.make",
}
SERVER = {"command": sys.executable, "args": [str(Path(__file__).with_name("mcp_server.py"))]}


@pytest.mark.parametrize("vendor", [QWEN, GEMINI, OPENCODE, CODEX], ids=str, indirect=True)
@pytest.mark.parametrize("allowed", [True, False], ids=("allowed", "denied"))
def test_mcp_server_of_a_config_file_runs_only_if_the_frontend_allows_the_call(
    frontend: DropInFrontend, vendor: Vendor, allowed: bool, tmp_path: Path
) -> None:
    file = tmp_path / "servers.json"
    file.write_text(json.dumps({"mcpServers": {"my_srv": SERVER}}))
    argv = [str(frontend.claude), *TALK, *ASKING, *frontend.extra_args, "--mcp-config", str(file)]
    process = LineProcess(argv, frontend.folder, frontend.environment)
    frontend.started.append(process)
    made = frontend.folder / "made"
    prompt = f"[[call]] {VENDOR_TOOL_NAMES.get(vendor.name, MAKE)} " + json.dumps(
        {"path": str(made)}
    )
    process.send({"type": "user", "message": {"role": "user", "content": prompt}})
    request = process.read_until(_asks)
    assert request["request"]["tool_name"] == MAKE and not made.exists()
    answer: Line = (
        {"behavior": "allow"} if allowed else {"behavior": "deny", "message": "rather not"}
    )
    response = {"subtype": "success", "request_id": request["request_id"], "response": answer}
    process.send({"type": "control_response", "response": response})
    result = process.read_until(lambda line: line["type"] == "result")
    assert result["result"] == REPLY_AFTER_TOOL and made.exists() is allowed
    (init,) = (line for line in process.lines if line.get("subtype") == "init")
    assert [server["name"] for server in init["mcp_servers"]] == ["my_srv"]


def _asks(line: Line) -> bool:
    return line["type"] == "result" or line.get("request", {}).get("subtype") == "can_use_tool"
