"""Implements `claude agents`, which lists background sessions for programs (`--json`) and for
people (B15 to B18).

Programs run this command repeatedly, so this module imports little and starts nothing.
"""

import os
from collections.abc import Sequence
from typing import Any

import orjson

from shim.bridge import registry
from shim.bridge.registry import SessionRecord
from shim.commands.claude.command_output import (
    CommandOutput,
    build_disabled_command_error,
    build_error_output,
)

NO_TERMINAL_TEXT = (
    "'claude agents' requires an interactive terminal (output is piped or redirected) — use 'claude agents --json' "
    "for a machine-readable list."
)
TOO_MANY_TEXT = "error: too many arguments for 'agents'. Expected 0 arguments but got {count}."
MISSING_TEXT = "error: option '{option}' argument missing"
UNKNOWN_TEXT = "error: unknown option '{option}'"
SWITCH_FLAGS = (
    *("--json", "--all", "--allow-dangerously-skip-permissions", "--dangerously-skip-permissions"),
    *("--restricted", "--strict-mcp-config"),
)
# Options for sessions that the real claude starts from its list. They are spelled as in the real
# claude's error messages.
VALUE_FLAGS = {
    "--cwd": "--cwd <path>",
    "--add-dir": "--add-dir <directory>",
    "--agent": "--agent <agent>",
    "--effort": "--effort <level>",
    "--mcp-config": "--mcp-config <config>",
    "--model": "--model <model>",
    "--permission-mode": "--permission-mode <mode>",
    "--plugin-dir": "--plugin-dir <path>",
    "--setting-sources": "--setting-sources <sources>",
    "--settings": "--settings <file-or-json>",
}


def run_agents_command(args: Sequence[str]) -> CommandOutput:
    """Run `claude agents ARGS` and return its output."""
    options: dict[str, str] = {}
    positionals = []
    remaining = list(reversed(args))
    while remaining:
        name, equals, value = remaining.pop().partition("=")
        if name in VALUE_FLAGS:
            if not equals and not remaining:
                return build_error_output(MISSING_TEXT.format(option=VALUE_FLAGS[name]))
            if equals:
                options[name] = value
            else:
                options[name] = remaining.pop()
        elif name in SWITCH_FLAGS and not equals:
            options[name] = ""
        elif name.startswith("-"):
            return build_error_output(UNKNOWN_TEXT.format(option=name + equals + value))
        else:
            positionals.append(name)
    if positionals:
        return build_error_output(TOO_MANY_TEXT.format(count=len(positionals)))
    if "--json" not in options and not os.isatty(1):
        return build_error_output(NO_TERMINAL_TEXT)
    if refusal := build_disabled_command_error(
        "claude agents --json" if "--json" in options else "claude agents"
    ):
        return refusal
    sessions = filter_listed_sessions(
        registry.list_sessions(os.environ),
        include_ended="--all" in options,
        parent_folder=options.get("--cwd"),
    )
    if "--json" in options:
        return CommandOutput(
            orjson.dumps(
                [build_session_json(session) for session in sessions], option=orjson.OPT_INDENT_2
            ).decode()
            + "\n"
        )
    from shim.commands.sessions.listing import format_no_sessions_message, format_session_table

    return CommandOutput(
        format_session_table(sessions)
        if sessions
        else format_no_sessions_message(
            includes_ended="--all" in options, folder=options.get("--cwd")
        )
    )


def filter_listed_sessions(
    sessions: Sequence[SessionRecord], *, include_ended: bool, parent_folder: str | None
) -> list[SessionRecord]:
    """Return the running sessions, or all sessions, at or below a folder. The oldest session is
    first, as with the real claude.
    """
    folder = None
    if parent_folder is not None:
        folder = os.path.join(os.path.realpath(parent_folder), "")
    return [
        session
        for session in reversed(sessions)
        if (session.is_running or include_ended)
        and (
            folder is None
            or os.path.join(os.path.realpath(session.metadata["cwd"]), "").startswith(folder)
        )
    ]


def build_session_json(session: SessionRecord) -> dict[str, Any]:
    """Build the JSON object of a session with the keys of the real claude, in the same order.
    Unknown values are omitted.
    """
    metadata = session.metadata
    status_fields = {}
    if session.is_running:
        status_fields = {"status": metadata.get("status"), "waitingFor": metadata.get("waitingFor")}
    pid = None
    if session.is_running:
        pid = metadata.get("pid")
    fields = {
        "pid": pid,
        "id": session.short_id,
        "cwd": metadata["cwd"],
        "kind": "background",
        "startedAt": metadata["started"] if session.is_running else metadata["created"],
        "sessionId": session.session_id,
        "name": metadata.get("name") or (session.short_id if session.is_running else None),
        **status_fields,
        "state": metadata["state"],
    }
    return {name: value for name, value in fields.items() if value is not None}
