"""Implements `claude --bg`, which starts a background session, prints its id and returns (B1 to
B8).

Everything that can be checked is checked before the session starts. This command therefore reports
the errors, and not the session later. For the check, the vendor's program is asked for its version.
"""

import os
from collections.abc import Mapping
from typing import NamedTuple

from shim.adapters import FLAT_ADAPTERS
from shim.bridge import registry
from shim.bridge.launch import (
    SessionSpec,
    build_resume_invocation,
    read_start_invocation,
    start_host,
)
from shim.commands.claude.command_output import (
    CommandOutput,
    build_disabled_command_error,
    build_error_output,
    print_command_output,
)
from shim.conversation.drivers.dry_launcher import ProgramProbingLauncher
from shim.conversation.startup import prepare_conversation
from shim.core.claude.argv.flags import Invocation
from shim.core.claude.argv.merge import build_conversation_args, build_resume_point_args
from shim.core.claude.argv.paths import resolve_invocation_paths
from shim.core.errors import FrontendError, ShimError, format_error
from shim.core.reading import MAX_LINE_BYTES
from shim.core.reading.values import as_str, canonicalize_uuid, escape_control_chars, none_if_empty
from shim.io.prompt import read_background_prompt
from shim.io.stderr import warn
from shim.process.environment import get_working_directory
from shim.state import store

SESSION_ID_WARNING = (
    "warning: --bg manages the session id; ignoring --session-id "
    "(use --resume <id> to continue an existing session)\n"
)
STREAM_INPUT_TEXT = "--bg takes its prompt as an argument or as text on stdin, not as stream-json"
IDLE_TEXT = "(idle — send a prompt to start)"
NEXT_COMMANDS = {
    "agents": "list sessions",
    "attach": "open in this terminal",
    "logs": "show recent output",
    "stop": "stop this session",
}
# Notes that are printed before the session id. {id} is the new id.
COPIED_RUNNING_NOTE = (
    "note: session {original} is already running in the background, so this started a copy as {id}. "
    "`claude attach {original}` opens the original.\n"
)
COPIED_NOTE = (
    "note: started a copy of that conversation as {id}. To continue a session under its own id, pass its full session "
    "id (lowercase, as `claude agents --json` prints it) to --resume.\n"
)
RESUMED_NOTE = "note: woke session {id} with its saved options ({options}).\n"


class BackgroundSessionStartOptions(NamedTuple):
    """The options of a new background session.

    `session_id` is the UUID of a session to resume. `copied_id` is the id of a session to copy.
    """

    invocation: Invocation
    session_id: str = ""
    copied_id: str = ""
    cwd: str = ""
    note: str = ""


def start_background_session(invocation: Invocation, installed_options: Mapping[str, str]) -> int:
    """Run `claude --bg` and return the exit status."""
    if refusal := build_disabled_command_error("--bg"):
        return print_command_output(refusal)
    if invocation.session_id is not None:
        warn(SESSION_ID_WARNING)
        invocation = invocation._replace(session_id=None)
    try:
        if invocation.machine is not None:
            return print_command_output(_start_on_machine(invocation))
        return print_command_output(_start(invocation, installed_options))
    except ShimError as error:
        return print_command_output(build_error_output(format_error(error)))


def _start(invocation: Invocation, installed_options: Mapping[str, str]) -> CommandOutput:
    if invocation.input_format == "stream-json":
        raise FrontendError(STREAM_INPUT_TEXT, hint="remove --input-format")
    origin = _resolve_origin(invocation)
    invocation = origin.invocation
    startup = prepare_conversation(
        _build_host_invocation(origin), installed_options, launcher_class=ProgramProbingLauncher
    )
    startup.plan_first_child_launch()
    prompt = read_background_prompt(invocation, 0, startup.settings.max_inbound_bytes)
    name = as_str(invocation.name)
    spec = SessionSpec(
        arguments=tuple(build_conversation_args(invocation)),
        installed=installed_options,
        cwd=origin.cwd,
        vendor=startup.adapter.name,
        name=name,
        prompt={"role": "user", "content": prompt} if prompt else None,
        forked=origin.copied_id,
        resumes=bool(origin.session_id),
        beginning=tuple(build_resume_point_args(invocation)),
    )
    record = start_host(spec, os.environ, origin.session_id)
    warn(origin.note.replace("{id}", record.short_id))
    return CommandOutput(_format_start_message(record.short_id, name, is_idle=not prompt))


def _start_on_machine(invocation: Invocation) -> CommandOutput:
    """Start the session on another machine, with that machine's environment, vendors and settings."""
    from shim.bridge.machines.frontend import build_background_args
    from shim.bridge.remote import run_command_on_machine
    from shim.state.machines import find_machine

    if invocation.resume is not None or invocation.continue_last:
        raise FrontendError(
            "--machine starts a new session",
            hint="`claude respawn MACHINE:ID` resumes a session of another machine",
        )
    machine = find_machine(invocation.machine or "", os.environ)
    args = ["claude", "--bg", *build_background_args(invocation)]
    prompt = read_background_prompt(invocation, 0, MAX_LINE_BYTES)
    output = run_command_on_machine(
        machine, args, os.environ, cwd=invocation.cwd or "", input_text=prompt
    )
    return CommandOutput(*output, is_requested=True)


def _resolve_origin(invocation: Invocation) -> BackgroundSessionStartOptions:
    """Return the options for the requested start: a new session, a resumed session, or a copy."""
    if invocation.resume is None and invocation.continue_last:
        last_session = store.find_last_session(
            get_working_directory(), os.environ, invocation.shim_vendor
        )
        if last_session is None:
            return BackgroundSessionStartOptions(invocation)
        return _build_copy_origin(invocation, last_session[0], COPIED_NOTE)
    if not invocation.resume:
        return BackgroundSessionStartOptions(invocation)
    session_id = canonicalize_uuid(invocation.resume)
    if session_id is None:
        return _build_copy_origin(
            invocation, invocation.resume, "" if invocation.fork_session else COPIED_NOTE
        )
    record = registry.find_session(session_id, os.environ)
    if record is None and not invocation.fork_session:
        return BackgroundSessionStartOptions(invocation, session_id=session_id)
    if (
        record
        and record.is_running
        and store.find_session(session_id, os.environ) is None
        and record.metadata["vendor"] not in FLAT_ADAPTERS
    ):
        hint = f"`claude attach {record.short_id}` opens the session"
        raise FrontendError(
            f"session {record.short_id} has not finished its first turn, so there is "
            "nothing to copy yet",
            hint=hint,
        )
    if invocation.fork_session or record is None:
        return _build_copy_origin(invocation, session_id, "")
    if record.is_running:
        return _build_copy_origin(
            invocation, session_id, COPIED_RUNNING_NOTE.replace("{original}", record.short_id)
        )
    saved_invocation = read_start_invocation(record)
    current_folder = get_working_directory()
    cwd = str(record.metadata["cwd"])
    resumed = build_resume_invocation(
        record, current_folder, resolve_invocation_paths(invocation, current_folder, cwd)
    )
    options = ", ".join(
        argument.partition("=")[0]
        for argument in build_conversation_args(saved_invocation)
        if argument.startswith("--")
    )
    note = ""
    if options:
        note = RESUMED_NOTE.replace("{options}", escape_control_chars(options))
    return BackgroundSessionStartOptions(resumed, session_id=session_id, cwd=cwd, note=note)


def _build_copy_origin(
    invocation: Invocation, original_id: str, note: str
) -> BackgroundSessionStartOptions:
    """Return the options for a copy of a session. A copy of a background session has the same
    restrictions as the original.
    """
    session_id = canonicalize_uuid(original_id)
    record = None
    if session_id:
        record = registry.find_session(session_id, os.environ)
    if record is not None:
        invocation = build_resume_invocation(
            record, get_working_directory(), invocation, is_copy=True
        )
    return BackgroundSessionStartOptions(invocation, copied_id=original_id, note=note)


def _build_host_invocation(origin: BackgroundSessionStartOptions) -> Invocation:
    """Return an invocation like the one that the host process will use, for the check before the
    start. It is a conversation that asks for tool permissions.
    """
    resumed_id = origin.copied_id or origin.session_id
    if (
        origin.session_id
        and store.find_session(origin.session_id, os.environ) is None
        and registry.find_session(origin.session_id, os.environ) is not None
    ):
        # The session ended before it finished its first turn.
        resumed_id = ""
    return origin.invocation._replace(
        input_format="stream-json",
        output_format="stream-json",
        verbose=True,
        partial=True,
        replay_user_messages=True,
        permission_prompt_tool="stdio",
        shim_dialect="claude",
        shim_terminator="none",
        background=False,
        name=None,
        resume=none_if_empty(resumed_id),
        continue_last=False,
        fork_session=bool(origin.copied_id),
    )


def _format_start_message(short_id: str, name: str, *, is_idle: bool) -> str:
    """Return the lines from which clients parse the session id (B1, B2)."""
    if os.isatty(1):
        cyan = "\x1b[36m"
        dim = "\x1b[2m"
        reset = "\x1b[0m"
    else:
        cyan = ""
        dim = ""
        reset = ""
    name_text = " ".join(escape_control_chars(name).split())
    first = f"backgrounded · {cyan}{short_id}{reset}" + (f" · {name_text}" if name_text else "")
    lines = [first + (f"{dim} {IDLE_TEXT}{reset}" if is_idle else "")]
    for command_name, purpose in NEXT_COMMANDS.items():
        if command_name == "agents":
            command = f"claude {command_name}"
        else:
            command = f"claude {command_name} {short_id}"
        lines.append(f"{dim}  {command:26}{purpose}{reset}")
    return "\n".join(lines) + "\n"
