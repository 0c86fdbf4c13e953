"""Implements `claude agents`, which lists background sessions for programs (`--json`) and for
people (B15 to B18).

Programs run this command repeatedly, so this module imports little. It starts `ssh` only if the
settings file names other machines.
"""

import os
from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from shim.bridge import registry
from shim.bridge.registry import SessionRecord
from shim.commands.claude.command_output import (
    CommandOutput,
    build_disabled_command_error,
    build_error_output,
    print_command_output,
)
from shim.core.errors import ShimError
from shim.core.reading.values import shorten_session_id, split_machine
from shim.state.machines import select_machines

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
# Options for sessions that the real claude starts from its list.
# They are spelled as in the real claude's error messages.
VALUE_FLAGS = {
    "--cwd": "--cwd <path>",
    "--machine": "--machine <name>",
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
    writer: _JsonWriter | _TableWriter = _TableWriter(options)
    if "--json" in options:
        writer = _JsonWriter()
    try:
        return _print_session_lists(options, writer)
    except ShimError as error:
        return build_error_output(f"{error}\n{error.hint}".rstrip())


def _print_session_lists(
    options: Mapping[str, str], writer: "_JsonWriter | _TableWriter"
) -> CommandOutput:
    """Print the sessions of this machine immediately, and the sessions of other machines as they
    arrive. Return the rest of the output.
    """
    machine_name = options.get("--machine")
    machines = select_machines(machine_name, os.environ)
    if machine_name is None:
        sessions = _select_sessions(registry.list_sessions(os.environ), options)
        print_command_output(CommandOutput(writer.format_sessions(sessions)))
    if not machines:
        return CommandOutput(writer.format_end())
    from shim.bridge.listings import list_other_machines

    for listing in list_other_machines(machines, os.environ, includes_ended="--all" in options):
        sessions = _select_sessions(listing.sessions, options)
        print_command_output(CommandOutput(writer.format_sessions(sessions)))
    return CommandOutput(writer.format_end())


class _JsonWriter:
    """Writes a JSON array, whose elements arrive in several parts."""

    def __init__(self) -> None:
        self._is_empty = True

    def format_sessions(self, sessions: Sequence[SessionRecord]) -> str:
        """Return the next part of the list."""
        text = ""
        for session in sessions:
            fields = build_session_json(session)
            separator = "[\n" if self._is_empty else ",\n"
            self._is_empty = False
            # The element without the brackets of the array, with which it is indented.
            text += separator + orjson.dumps([fields], option=orjson.OPT_INDENT_2)[2:-2].decode()
        return text

    def format_end(self) -> str:
        """Return the end of the list."""
        if self._is_empty:
            return "[]\n"
        return "\n]\n"


class _TableWriter:
    """Writes one table per machine."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._options = options
        self._is_empty = True

    def format_sessions(self, sessions: Sequence[SessionRecord]) -> str:
        from shim.commands.sessions.listing import format_session_table

        if not sessions:
            return ""
        self._is_empty = False
        return format_session_table(sessions)

    def format_end(self) -> str:
        from shim.commands.sessions.listing import format_no_sessions_message

        if not self._is_empty:
            return ""
        return format_no_sessions_message(
            includes_ended="--all" in self._options, folder=self._options.get("--cwd")
        )


def _select_sessions(
    sessions: Sequence[SessionRecord], options: Mapping[str, str]
) -> list[SessionRecord]:
    return filter_listed_sessions(
        sessions, include_ended="--all" in options, parent_folder=options.get("--cwd")
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
        and (folder is None or _resolve_folder(session).startswith(folder))
    ]


def _resolve_folder(session: SessionRecord) -> str:
    """Return a session's folder with a slash at its end. Links on another machine are unknown."""
    cwd = str(session.metadata["cwd"])
    if not session.machine:
        cwd = os.path.realpath(cwd)
    return os.path.join(cwd, "")


def build_session_json(session: SessionRecord) -> dict[str, Any]:
    """Build the JSON object of a session with the keys of the real claude, in the same order.
    Unknown values are omitted. A session of another machine has `machine`, and `away` if the machine
    does not answer.
    """
    machine, uuid = split_machine(session.session_id)
    metadata = session.metadata
    status_fields = {}
    if session.is_running:
        status_fields = {"status": metadata.get("status"), "waitingFor": metadata.get("waitingFor")}
    pid = None
    if session.is_running and not machine:  # a pid of another machine is of no use here
        pid = metadata.get("pid")
    fields = {
        "pid": pid,
        "id": shorten_session_id(uuid),
        "cwd": metadata["cwd"],
        "kind": "background",
        "startedAt": metadata["started"] if session.is_running else metadata["created"],
        "sessionId": uuid,
        "name": metadata.get("name") or (session.short_id if session.is_running else None),
        **status_fields,
        "state": metadata["state"],
        "machine": machine or None,
        "away": metadata.get("away"),
    }
    return {name: value for name, value in fields.items() if value is not None}
