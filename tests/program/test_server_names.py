"""Tools of MCP servers whose names contain underscores: the longest configured name wins, in
whichever file it is.
"""

import json

import pytest
from box import run_shim

from shim.process.vendor_servers import list_mcp_server_names

EVENTS = (
    {"type": "init", "session_id": "ba8d3a3a-4a4e-4a4a-8a4a-aaaaaaaaaaaa", "model": "m"},
    {"type": "tool_use", "tool_id": "a", "tool_name": "mcp_my_server_x", "parameters": {"n": 1}},
    {"type": "tool_result", "tool_id": "a", "status": "success", "output": "yes"},
    {"type": "message", "role": "assistant", "content": "hi", "delta": True},
    {"type": "result", "status": "success", "stats": {}},
)
CONFIG = json.dumps({"mcpServers": {"my": {"command": "x"}, "my_server": {"command": "x"}}})


@pytest.fixture
def gemini_setup(tmp_path):
    """Return a folder, a home, and the environment of a gemini that prints EVENTS."""
    program = tmp_path / "gemini"
    lines = "\n".join(json.dumps(event) for event in EVENTS)
    program.write_text(f"#!/bin/sh\ncat <<'END'\n{lines}\nEND\n")
    program.chmod(0o755)
    (tmp_path / "home" / ".gemini").mkdir(parents=True)
    (tmp_path / "work" / ".gemini").mkdir(parents=True)
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path / "home"), "SHIM_VENDOR": "gemini"}
    return tmp_path, environment | {"SHIM_BIN": str(program)}


@pytest.mark.parametrize(
    ("args", "file"),
    [
        (("--mcp-config", CONFIG), None),
        (("--allowedTools", "mcp__my_server"), None),
        (("--allowedTools", "mcp__my_server__x"), None),
        ((), "home"),
        ((), "work"),
    ],
)
def test_longest_configured_server_name_is_used(gemini_setup, args, file):
    folder, environment = gemini_setup
    if file is not None:
        (folder / file / ".gemini" / "settings.json").write_text(CONFIG)
    command = ["claude", "-p", "go", "--output-format", "stream-json", "--verbose", *args]
    done = run_shim(command, env=environment, cwd=folder / "work")
    assert done.status == 0, done.stderr
    calls = [line for line in done.stdout.splitlines() if b'"tool_use"' in line]
    assert [json.loads(line)["message"]["content"][0]["name"] for line in calls] == [
        "mcp__my_server__x"
    ]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"mcpServers": []}', "\xff"])
def test_invalid_settings_file_yields_no_server_names(tmp_path, text):
    (tmp_path / "settings.json").write_bytes(text.encode("latin-1"))
    assert (
        list_mcp_server_names(
            {"settings.json": "mcpServers", "none.json": "x"}, ("", str(tmp_path))
        )
        == []
    )
