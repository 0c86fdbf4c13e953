"""Implements `claude daemon`. The shim has no daemon, but the output contains the texts that
programs search for (B37 to B43).
"""

import os
from collections.abc import Sequence

from shim.bridge import registry
from shim.bridge.registry import SessionRecord
from shim.bridge.stop import stop_hosts
from shim.commands.claude.command_output import CommandOutput, build_error_output
from shim.core.reading.diagnostics import pluralize
from shim.core.reading.values import escape_control_chars
from shim.io.stderr import warn

# Texts that `claude daemon` prints.
# The status starts with the same line as the real claude, and the reason follows below.
NO_DAEMON_TEXT = (
    "there is no daemon, and none is needed: each background session is its own process"
)
STATUS_TEXT = (
    "not running\n\nbg sessions:\n  folder:      {folder}\n  running:     {running}\n\n"
    + NO_DAEMON_TEXT
    + "\n"
)
NOT_RUNNING_TEXT = "no daemon running"
NEEDS_ANY_TEXT = (
    "no background service is installed, but {running} ({ids}), each as its own process. "
    "Run `claude daemon stop --any` to stop them."
)
NOT_STARTED_TEXT = (
    "claude daemon{action}: "
    + NO_DAEMON_TEXT
    + ": `claude --bg` starts a session, `claude agents --json` lists all sessions"
)
NOT_INSTALLED_TEXT = "`claude daemon {action}` is disabled: " + NO_DAEMON_TEXT
USAGE_TEXT = (
    "Usage: claude daemon [subcommand] [options]\n\n  status     Show the number of running "
    "background sessions (there is no daemon)\n  logs       Print what the hosts of background "
    "sessions wrote to stderr\n  stop       Stop all background sessions; requires --any\n"
    "               --any           required to stop the sessions\n"
    "               --keep-workers  stop nothing, because there is no daemon\n"
    "  uninstall  Do nothing, because no daemon is installed\n"
)
MAX_LOG_BYTES = 64 * 1024  # printed bytes at the end of each session's log
ACTION_FLAGS = {"stop": ("--any", "--keep-workers")}


def run_daemon_command(args: Sequence[str]) -> CommandOutput:
    """Run `claude daemon ARGS` and return its output."""
    action = next((argument for argument in args if not argument.startswith("-")), "")
    extra_args = [
        argument
        for argument in args
        if argument != action and argument not in ACTION_FLAGS.get(action, ())
    ]
    if extra_args and action in ("status", "stop", "logs", "uninstall"):
        warn(escape_control_chars(f"warning: extra arguments ignored: {' '.join(extra_args)}\n"))
    if action == "status":
        return _answer_status()
    if action == "stop":
        return _answer_stop(stop_any="--any" in args, leaves_running="--keep-workers" in args)
    if action == "logs":
        return _answer_logs()
    if action == "uninstall":
        return CommandOutput("uninstalled\n")
    if action in ("install", "start", "restart"):
        return build_error_output(NOT_INSTALLED_TEXT.format(action=action))
    if action in ("", "run"):
        return build_error_output(NOT_STARTED_TEXT.format(action=f" {action}" if action else ""))
    return build_error_output(f"unknown subcommand: {action[:60]}\n\n{USAGE_TEXT}".rstrip())


def _list_running() -> list[SessionRecord]:
    return [session for session in registry.list_sessions(os.environ) if session.is_running]


def _answer_status() -> CommandOutput:
    folder = registry.get_bridge_folder(os.environ)
    return CommandOutput(
        STATUS_TEXT.format(folder=escape_control_chars(folder), running=len(_list_running())),
        1,
        is_requested=True,
    )


def _answer_stop(*, stop_any: bool, leaves_running: bool) -> CommandOutput:
    sessions = _list_running()
    if not sessions:
        return CommandOutput(NOT_RUNNING_TEXT + "\n")
    if not stop_any:
        running_text = pluralize(len(sessions), "background session") + (
            " runs" if len(sessions) == 1 else " run"
        )
        return build_error_output(
            NEEDS_ANY_TEXT.format(
                running=running_text, ids=", ".join(session.short_id for session in sessions)
            )
        )
    if leaves_running:
        return CommandOutput(
            "stopped\nnote: nothing was stopped: there is no daemon, and --keep-workers "
            "keeps the sessions\n"
        )
    survivors = stop_hosts(sessions, os.environ)
    ended_text = pluralize(len(sessions) - len(survivors), "background session")
    if survivors:
        return build_error_output(
            f"stopped {ended_text}; still running: "
            f"{', '.join(session.short_id for session in survivors)}"
        )
    return CommandOutput(f"stopped (ended {ended_text})\n")


def _answer_logs() -> CommandOutput:
    lines = []
    for session in registry.list_sessions(os.environ):
        text = _read_tail(session.stderr_path)
        lines += [
            f"[{session.short_id}] {line}\n" for line in escape_control_chars(text).splitlines()
        ]
    return CommandOutput(
        "".join(lines) or "no host of a background session has written anything to stderr\n"
    )


def _read_tail(path: str) -> str:
    """Return the last lines of a file, or "" if the file does not exist."""
    try:
        with open(path, "rb") as file:
            file.seek(max(os.fstat(file.fileno()).st_size - MAX_LOG_BYTES, 0))
            return file.read().decode("utf-8", "replace")
    except OSError:
        return ""
