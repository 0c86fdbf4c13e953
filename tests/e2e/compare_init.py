"""Compares what the drop-in tells a client about itself with what the real claude tells.

It starts the real claude and the drop-in over each vendor with the same flags against scripted
models. It prints `init`, the answer to `initialize` and the answers to further control requests side
by side, field by field.

    python tests/e2e/compare_init.py [VENDOR ...] [-- FLAGS]
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from clis import build_isolated_environment, install_drop_in
from programs import install_program
from sandbox import Line, LineProcess, Sandbox
from sdk_suite import VENDORS, print_line
from vendor_setups import CLAUDE_ITSELF, QWEN, Vendor

STREAM_FLAGS = (
    *("--input-format", "stream-json", "--output-format", "stream-json", "--verbose"),
    *("--permission-prompt-tool", "stdio"),
)
# The requests of the SDKs that a client can send at any time, with their parameters.
REQUESTS: Mapping[str, Line] = {
    "mcp_status": {},
    "get_settings": {},
    "list_models": {},
    "get_usage": {},
    "get_session_cost": {},
    "list_permission_rules": {},
    "get_binary_version": {},
    "get_context_usage": {"detail": "summary"},
    "generate_session_title": {"description": "count the files", "persist": False},
    "reload_skills": {},
    "reload_plugins": {},
    "reload_output_styles": {},
    "stop_task": {"task_id": "unknown"},
    "rewind_files": {"user_message_id": "unknown"},
    "mcp_reconnect": {"serverName": "unknown"},
    "mcp_toggle": {"serverName": "unknown", "enabled": False},
    "mcp_set_servers": {"servers": {}},
    "set_max_thinking_tokens": {"max_thinking_tokens": None},
    "background_tasks": {},
    "seed_read_state": {"path": "absent.txt", "mtime": 0},
    "read_file": {"path": "absent.txt"},
    "cancel_async_message": {"message_uuid": "unknown"},
    "rename_session": {"title": "a title"},
}
MAX_VALUE_CHARS = 60
MISSING = object()


class ClientView(NamedTuple):
    """What a client sees of one claude: `init`, and the responses to control requests by name."""

    init: Line
    responses: Mapping[str, Line]


class FieldRow(NamedTuple):
    """One field of the comparison. A value is MISSING if its side does not have the field."""

    path: str
    real: object
    ours: object

    @property
    def comparison(self) -> str:
        if self.ours is MISSING:
            return "missing in ours"
        if self.real is MISSING:
            return "only ours"
        if self.real == self.ours:
            return "equal"
        if _name_type(self.real) == _name_type(self.ours):
            return "other value"
        return "OTHER TYPE"


def compare_values(path: str, real: object, ours: object) -> Iterator[FieldRow]:
    """Compare two values. Objects are compared by their fields, and lists of objects by the fields of
    their first items.
    """
    if isinstance(real, dict) and isinstance(ours, dict):
        for name in dict.fromkeys((*real, *ours)):
            yield from compare_values(
                f"{path}.{name}", real.get(name, MISSING), ours.get(name, MISSING)
            )
    elif _has_objects(real) and _has_objects(ours):
        assert isinstance(real, list) and isinstance(ours, list)
        yield from compare_values(f"{path}[0]", real[0], ours[0])
    else:
        yield FieldRow(path, real, ours)


def read_view(vendor: Vendor, flags: Sequence[str]) -> ClientView:
    """Run one turn over a vendor, and return what a client sees. CLAUDE_ITSELF is the real claude."""
    with tempfile.TemporaryDirectory() as folder, vendor.server() as server:
        root = Path(folder)
        program = install_program(vendor.package)
        environment = build_isolated_environment(vendor, program, server.url, root)
        claude = program.executable
        if vendor is not CLAUDE_ITSELF:
            claude = install_drop_in(vendor, environment, root)
        work_folder = root / "work"
        work_folder.mkdir()
        sandbox = Sandbox(claude, work_folder, environment)
        try:
            return _read_conversation(sandbox, [*vendor.claude_flags, *flags])
        finally:
            sandbox.close()


def _read_conversation(sandbox: Sandbox, flags: Sequence[str]) -> ClientView:
    argv = [str(sandbox.claude), *STREAM_FLAGS, *flags]
    process = LineProcess(argv, sandbox.folder, sandbox.environment)
    sandbox.started.append(process)
    responses = {"initialize": send_request(process, "initialize", {"hooks": None})}
    process.send({"type": "user", "message": {"role": "user", "content": "[[text]] say hello"}})
    process.read_until(lambda line: line["type"] == "result")
    for name, parameters in REQUESTS.items():
        responses[name] = send_request(process, name, parameters)
    process.close_stdin()
    process.read_to_end()
    init = next(line for line in process.lines if line.get("subtype") == "init")
    return ClientView(init, responses)


def send_request(process: LineProcess, subtype: str, parameters: Line) -> Line:
    """Send a control request, and return its response without the envelope's id."""
    request = {"subtype": subtype, **parameters}
    process.send({"type": "control_request", "request_id": subtype, "request": request})
    line = process.read_until(
        lambda line: (
            line["type"] == "control_response" and line["response"]["request_id"] == subtype
        )
    )
    response = dict(line["response"])
    del response["request_id"]
    return response


def _has_objects(value: object) -> bool:
    return isinstance(value, list) and bool(value) and isinstance(value[0], dict)


def _name_type(value: object) -> str:
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, int | float):
        return "number"
    return type(value).__name__


def print_rows(title: str, rows: Sequence[FieldRow]) -> None:
    """Print one table of fields. Equal fields are named in one line below it."""
    print_line(f"\n### {title}\n\n| field | verdict | real | ours |\n|---|---|---|---|")
    for row in rows:
        if row.comparison != "equal":
            print_line(
                f"| {row.path} | {row.comparison} | {_shorten(row.real)} | {_shorten(row.ours)} |"
            )
    equal_paths = [row.path for row in rows if row.comparison == "equal"]
    print_line(f"\nequal: {', '.join(equal_paths) or '–'}")


def _shorten(value: object) -> str:
    if value is MISSING:
        return ""
    text = json.dumps(value, ensure_ascii=False).replace("|", "\\|")
    if len(text) > MAX_VALUE_CHARS:
        return f"`{text[:MAX_VALUE_CHARS]}…`"
    return f"`{text}`"


def main(arguments: Sequence[str]) -> None:
    """Compare the drop-in over the named vendors with the real claude. The default is qwen."""
    names, flags = list(arguments), []
    if "--" in names:
        position = names.index("--")
        flags = names[position + 1 :]
        del names[position:]
    chosen = [vendor for vendor in VENDORS if vendor.name in (names or [QWEN.name])]
    real = read_view(CLAUDE_ITSELF, flags)
    for vendor in chosen:
        ours = read_view(vendor, flags)
        print_line(f"\n## {vendor.name}")
        print_rows("init", list(compare_values("init", real.init, ours.init)))
        for name, response in real.responses.items():
            print_rows(name, list(compare_values(name, response, ours.responses[name])))


if __name__ == "__main__":
    main(sys.argv[1:])
