"""The recorded data of MCP servers does not contain what may be secret, in any format."""

import json

import pytest
from sweeps import loop_over_rows

from shim.core.cast.secrets import RecordingRedactor, apply_string_edits

OPAQUE = "hunter2-Zq81xPlm"  # of no known format
TABLES = {
    "local": {"command": "node", "args": ["--token", OPAQUE], "env": {"X_SAID": OPAQUE}},
    "far": {"type": "http", "url": "http://localhost/", "headers": {"X-Said": OPAQUE}},
}
PAIRS = [
    {
        "name": "local",
        "command": "node",
        "args": ["--token", OPAQUE],
        "env": [{"name": "X_SAID", "value": OPAQUE}],
    },
    {
        "name": "far",
        "type": "http",
        "url": "http://localhost/",
        "headers": [{"name": "X-Said", "value": OPAQUE}],
    },
]


@loop_over_rows("letter", ["i", "I", "o", "O"])
@loop_over_rows("key", ["mcpServers", "mcp_servers"])
@loop_over_rows("servers", [TABLES, PAIRS])
def test_mcp_server_secrets_are_redacted_and_names_are_preserved(letter, key, servers):
    line = json.dumps({"method": "session/new", "params": {"cwd": "/w", key: servers}}).encode()
    written = RecordingRedactor().redact_record(letter, line)
    assert OPAQUE.encode() not in written
    params = json.loads(written)["params"]
    assert params["cwd"] == "/w"
    for text in ("local", "far", "node", "http://localhost/", "X_SAID", "X-Said"):
        assert f'"{text}"' in json.dumps(params)


@pytest.mark.parametrize(
    "message",
    [
        {"type": "system", "mcp_servers": [{"name": "local", "status": "connected"}]},
        {"env": {"mcpServers": "x"}, "args": ["y"]},
        {"text": json.dumps({"mcpServers": {"local": {"args": ["y"]}}})},
    ],
)
def test_line_without_mcp_server_values_is_written_unchanged(message):
    line = json.dumps(message).encode()
    assert RecordingRedactor().redact_record("o", line) is line


def test_secret_split_across_lines_is_redacted_after_an_mcp_servers_line():
    """The edits of a line refer to a string by its number in the line."""
    cleaner, secret = RecordingRedactor(), f"ghp_{'aB3dE6gH9k' * 4}"
    first = {"mcpServers": TABLES, "delta": f"so: {secret[:9]}"}
    lines = [json.dumps(message).encode() for message in (first, {"delta": secret[9:]})]
    written, _ = cleaner.redact_record("o", lines[0]), cleaner.redact_record("o", lines[1])
    cleaner.close()
    assert (
        json.loads(apply_string_edits(written, cleaner.edits[0]))["delta"]
        == "so: [REDACTED:github-token]"
    )
