"""Implements `claude attach`, `logs`, `stop`, `rm` and `respawn`, which act on a single background
session (B21 to B28).
"""

import os
from collections.abc import Callable, Sequence

from shim.bridge import registry
from shim.bridge.registry import SessionRecord
from shim.bridge.session_lookup import (
    NO_MATCH_WITH_HINT,
    resolve_session_id,
    resolve_session_reference,
)
from shim.bridge.stop import describe_unanswered_messages
from shim.bridge.stop import stop_hosts as end
from shim.commands.claude.claude_help import USAGE_TEXTS
from shim.commands.claude.command_output import (
    CommandOutput,
    build_disabled_command_error,
    build_error_output,
)
from shim.core.errors import ShimError
from shim.core.reading.values import escape_control_chars
from shim.io.stderr import warn

ALL_FLAG = "--all"
STILL_RUNNING_TEXT = (
    "couldn't confirm {id} was stopped — its host does not exit. `kill -9 {pid}` kills the host."
)


def dispatch_session_command(name: str, args: Sequence[str]) -> CommandOutput:
    """Run `claude NAME ARGS` and return its output."""
    if refusal := build_disabled_command_error(name):
        return refusal
    if len(args) > 1:
        warn(escape_control_chars(f"warning: extra arguments ignored: {' '.join(args[1:])}\n"))
    if not args or not args[0]:
        return build_error_output(
            USAGE_TEXTS[name].replace("Usage", "usage") if name == "respawn" else USAGE_TEXTS[name]
        )
    if args[0].startswith("-") and (name, args[0]) != ("respawn", ALL_FLAG):
        return build_error_output(f"unknown option '{args[0]}'\n{USAGE_TEXTS[name]}")
    try:
        return _COMMANDS[name](args)
    except ShimError as error:
        return build_error_output(f"{error}\n{error.hint}".rstrip())


def _answer_logs(args: Sequence[str]) -> CommandOutput:
    session = resolve_session_reference(args[0], is_only_arg=len(args) == 1)
    if session.machine and not session.metadata.get("away"):
        return _run_claude_command_on_machine(session, "logs")
    from shim.commands.sessions.logs import (
        format_copied_session_output,
        format_recent_session_output,
    )

    if session.machine:
        return CommandOutput(format_copied_session_output(session, os.environ))
    return CommandOutput(format_recent_session_output(session))


def _answer_attach(args: Sequence[str]) -> CommandOutput:
    session = resolve_session_reference(args[0], is_only_arg=len(args) == 1)
    from shim.commands.sessions.terminal.attach import attach_terminal_to_session

    return CommandOutput("", attach_terminal_to_session(session, os.environ))


def _answer_stop(args: Sequence[str]) -> CommandOutput:
    session = resolve_session_id(args[0], NO_MATCH_WITH_HINT)
    if session.machine:
        return _run_claude_command_on_machine(session, "stop")
    if end([session], os.environ):
        return _build_survivor_refusal(session)
    if lost_text := describe_unanswered_messages(session, os.environ):
        warn(f"{lost_text}\n")  # programs parse stdout, so the note goes to stderr
    return CommandOutput(f"stopped {session.short_id}\n")


def _answer_remove(args: Sequence[str]) -> CommandOutput:
    session = resolve_session_id(args[0])
    if session.machine:
        return _run_claude_command_on_machine(session, "rm")
    if end([session], os.environ):
        return _build_survivor_refusal(session)
    if not registry.remove_session(session):
        return build_error_output(
            f"couldn't remove {session.short_id} — {session.folder} cannot be removed"
        )
    return CommandOutput(f"removed {session.short_id}\n")


def _answer_respawn(args: Sequence[str]) -> CommandOutput:
    sessions = registry.list_sessions(os.environ)
    if args[0] != ALL_FLAG:
        session = resolve_session_id(args[0], sessions=sessions)
        if session.machine:
            return _run_claude_command_on_machine(session, "respawn")
        if end([session], os.environ):
            return _build_survivor_refusal(session)
        return _restart_session(session)
    running = [session for session in sessions if session.is_running]
    if not running:
        return CommandOutput("no running sessions to restart\n")
    surviving_ids = {session.session_id for session in end(running, os.environ)}
    restarted_lines = list[str]()
    for session in running:
        if session.session_id in surviving_ids:
            warn(
                f"{session.short_id}: still running — couldn't confirm restart, retry in a moment\n"
            )
            continue
        try:
            restarted_lines.append(_restart_session(session).text)
        except ShimError as error:  # all other stopped sessions must still be restarted
            warn(f"{session.short_id}: not restarted — {error}\n")
    return CommandOutput("".join(restarted_lines), int(len(restarted_lines) < len(running)))


def _run_claude_command_on_machine(session: SessionRecord, name: str) -> CommandOutput:
    """Run `claude NAME` on the machine of a session, and return its output."""
    from shim.bridge.remote import run_session_command

    return CommandOutput(
        *run_session_command(session.session_id, ("claude", name), os.environ), is_requested=True
    )


def _restart_session(session: SessionRecord) -> CommandOutput:
    from shim.bridge.launch import respawn_session

    respawn_session(session, os.environ)
    return CommandOutput(f"restarted {session.short_id}\n")


def _build_survivor_refusal(session: SessionRecord) -> CommandOutput:
    return build_error_output(
        STILL_RUNNING_TEXT.format(id=session.short_id, pid=session.metadata.get("pid") or "PID")
    )


_COMMANDS: dict[str, Callable[[Sequence[str]], CommandOutput]] = {
    "attach": _answer_attach,
    "logs": _answer_logs,
    "stop": _answer_stop,
    "rm": _answer_remove,
    "respawn": _answer_respawn,
}
