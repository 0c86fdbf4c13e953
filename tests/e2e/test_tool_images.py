"""An image that an MCP tool returns: real clients, real vendors, and the real claude, which proves
that the test is right.

The SDKs have the server in their own process; the editor names a program. pi and copilot accept
neither, so their users name the program in the settings of the vendor.
"""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from acp_clients import AcpClient
from client_matrix import add_dialog
from clis import Cli
from model_scripts import REPLY_AFTER_TOOL, ScriptedServer
from sandbox import Line, Sandbox
from sdk_clients import PYTHON, SdkClient
from test_dialogs import ADAPTER, SDKS, png
from vendor_setups import CODEX, COPILOT, GEMINI, KIMI, OPENCODE, PI, QWEN, Vendor

pytestmark = pytest.mark.e2e

NAME, LOOK = "srv", "mcp__srv__look"
# How each vendor's model calls the tool.
VENDOR_TOOL_NAMES: Mapping[Vendor, str] = {
    CODEX: "mcp__srv.look",
    COPILOT: "srv-look",
    GEMINI: "mcp_srv_look",
    KIMI: "look",
    OPENCODE: "srv_look",
}
PROGRAM: Line = {
    "command": sys.executable,
    "args": [str(Path(__file__).with_name("mcp_server.py"))],
}
# Paths below the home, for the user's own servers.
SETTINGS = {PI: "pi/mcp.json", COPILOT: ".copilot/mcp-config.json"}
HIDING = (QWEN, GEMINI, KIMI)  # they print a sentence in place of the image
BLIND = (QWEN, COPILOT)  # they pass it to no unknown model


def prepare(cli: Cli, sandbox: Sandbox) -> tuple[str, str]:
    """Write a picture, and the vendor's settings if only they can name a server. Return the prompt
    and the picture.
    """
    picture = png()
    file = sandbox.folder / "picture.png"
    file.write_bytes(base64.b64decode(picture))
    write_settings(cli, sandbox)
    return (
        f"[[call]] {VENDOR_TOOL_NAMES.get(cli.vendor, LOOK)} {json.dumps({'path': str(file)})}",
        picture,
    )


def write_settings(cli: Cli, sandbox: Sandbox) -> None:
    if cli.vendor in SETTINGS:
        file = Path(sandbox.environment["HOME"]) / SETTINGS[cli.vendor]
        file.parent.mkdir(exist_ok=True)
        server = {**PROGRAM, "type": "stdio", "tools": ["*"], "exposure": "direct"}
        file.write_text(json.dumps({"mcpServers": {NAME: server}}))


@add_dialog("an image of an MCP tool", SDKS)
def test_sdk_frontend_receives_the_image_of_an_mcp_tool(
    client: SdkClient, cli: Cli, sandbox: Sandbox, service: ScriptedServer
) -> None:
    prompt, picture = prepare(cli, sandbox)
    conversation = client.connect(
        sandbox, asks=True, serves=None if cli.vendor in SETTINGS else NAME
    )
    start_index = len(conversation.lines)
    conversation.send_message(prompt)
    # kimi asks about the tool, and the shim asks about the server's tool.
    for _ in range(2 if cli.vendor is KIMI else 1):
        conversation.await_saw("asked")
        conversation.allow_call()
    turn = conversation.read_turn(start_index)
    conversation.disconnect()
    (result,) = turn.list_lines("tool_result")
    expected_images = (
        []
        if cli.vendor in HIDING
        else [{"type": "base64", "media_type": "image/png", "data": picture}]
    )
    assert result["images"] == expected_images
    assert result["text"].startswith("here") and not result["is_error"]
    assert (picture in json.dumps(service.list_requests("call")[-1].body)) is (
        cli.vendor not in BLIND
    )
    assert turn.result["text"] == REPLY_AFTER_TOOL


@add_dialog("an image of an MCP tool", ADAPTER)
def test_editor_receives_the_image_of_an_mcp_tool(
    client: AcpClient, cli: Cli, sandbox: Sandbox, service: ScriptedServer
) -> None:
    prompt_text, picture = prepare(cli, sandbox)
    editor = client.connect(sandbox)
    editor.open_session(
        servers=[] if cli.vendor in SETTINGS else [{"name": NAME, "env": [], **PROGRAM}]
    )
    prompt = editor.run_prompt(prompt_text, choice="allow_once")
    editor.shut_down()
    (call,) = prompt.calls.values()
    contents = [block["content"] for block in call["content"]]
    expected_images = (
        []
        if cli.vendor in HIDING
        else [{"type": "image", "mimeType": "image/png", "data": picture}]
    )
    assert [block for block in contents if block["type"] == "image"] == expected_images
    assert contents[0]["text"].startswith("here") and call["status"] == "completed"
    assert (picture in json.dumps(service.list_requests("call")[-1].body)) is (
        cli.vendor not in BLIND
    )
    assert len(prompt.permission_requests) == 1 and prompt.text.endswith(REPLY_AFTER_TOOL)


@pytest.mark.full
@pytest.mark.parametrize(
    ("client", "cli"), [pytest.param(PYTHON, Cli(COPILOT), id="python-copilot")]
)
def test_unnamed_mcp_tool_is_prompted_each_time(
    client: SdkClient, cli: Cli, sandbox: Sandbox
) -> None:
    """copilot does not name a server's tool. A permanent permission for one tool would cover all of
    them.
    """
    write_settings(cli, sandbox)
    conversation = client.connect(sandbox, asks=True)
    for made in ("one", "two"):
        start_index = len(conversation.lines)
        conversation.send_message(
            f"[[call]] srv-make {json.dumps({'path': str(sandbox.folder / made)})}"
        )
        conversation.await_saw("asked")
        assert not (sandbox.folder / made).exists()
        conversation.allow_call(always=True)
        conversation.read_turn(start_index)
        assert (sandbox.folder / made).exists()
    conversation.disconnect()
