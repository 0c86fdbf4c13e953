"""`claude --bg`: begins a session that lives on its own, says its id and returns (background page,
B1 to B8).

All that can be checked without a start is checked before: a mistake is told here, not by the
session later. The vendor's program is asked for its version for that.
"""

import os
from collections.abc import Mapping
from typing import NamedTuple

from shim.adapters import FLAT_ADAPTERS
from shim.bridge import registry
from shim.bridge.start import (
    SessionSpec,
    build_resume_invocation,
    read_start_invocation,
    start_host,
)
from shim.commands.claude.answers import CommandOutput, build_refusal, check_disabled, print_output
from shim.conversation.decide import ConversationStartup
from shim.conversation.drivers.dry_launcher import CheckingLauncher
from shim.core.claude.argv.invocation import Invocation
from shim.core.claude.argv.rooted import resolve_invocation_paths
from shim.core.claude.argv.words import build_conversation_args, build_fork_args
from shim.core.errors import FrontendError, ShimError
from shim.core.reading.account import escape_control_chars
from shim.core.reading.ids import parse_uuid
from shim.io.prompt import read_background_prompt
from shim.io.raw_output import warn
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
# What is said beside the id; {id} is the new one.
COPIED_RUNNING_NOTE = (
    "note: session {original} is already running in the background, so this started a copy as {id}. "
    "`claude attach {original}` opens the original.\n"
)
COPIED_NOTE = (
    "note: started a copy of that conversation as {id}. To continue a session under its own id, pass its full session "
    "id (lowercase, as `claude agents --json` prints it) to --resume.\n"
)
RESUMED_NOTE = "note: woke session {id} with its saved options ({options}).\n"


class BackgroundOrigin(NamedTuple):
    """What a session goes on from: `session` is the UUID that it keeps, `copied` the session that
    it is a copy of.
    """

    invocation: Invocation
    session_id: str = ""
    copied_id: str = ""
    cwd: str = ""
    note: str = ""


def start_background(invocation: Invocation, installed: Mapping[str, str]) -> int:
    """`claude --bg`. Returns the exit status."""
    if off := check_disabled("--bg"):
        return print_output(off)
    if invocation.session.session_id is not None:
        warn(SESSION_ID_WARNING)
        invocation = invocation.with_flags(session_id=None)
    try:
        return print_output(_start(invocation, installed))
    except ShimError as error:
        return print_output(
            build_refusal(f"{error}\nhint: {error.hint}" if error.hint else str(error))
        )


def _start(invocation: Invocation, installed: Mapping[str, str]) -> CommandOutput:
    if invocation.streams.input_format == "stream-json":
        raise FrontendError(STREAM_INPUT_TEXT, hint="leave --input-format out")
    before = _resolve_origin(invocation)
    invocation = before.invocation
    checked = ConversationStartup(
        _build_host_invocation(before), installed, launcher_class=CheckingLauncher
    )
    checked.plan_first_child()
    prompt = read_background_prompt(invocation, 0, checked.settings.max_inbound_bytes)
    wanted = SessionSpec(
        arguments=tuple(build_conversation_args(invocation)),
        installed=installed,
        cwd=before.cwd,
        vendor=checked.adapter.name,
        name=invocation.session.name or "",
        prompt={"role": "user", "content": prompt} if prompt else None,
        forked=before.copied_id,
        resumes=bool(before.session_id),
        beginning=tuple(build_fork_args(invocation)),
    )
    begun = start_host(wanted, os.environ, before.session_id)
    warn(before.note.replace("{id}", begun.short_id))
    return CommandOutput(
        _format_start_message(begun.short_id, invocation.session.name or "", idle=not prompt)
    )


def _resolve_origin(invocation: Invocation) -> BackgroundOrigin:
    """Which session goes on, or is copied."""
    session = invocation.session
    if session.resume is None and session.continue_last:
        found = store.find_last_session(
            get_working_directory(), os.environ, invocation.shim_flags.shim_vendor
        )
        return (
            BackgroundOrigin(invocation)
            if found is None
            else _build_copy_origin(invocation, found[0], COPIED_NOTE)
        )
    if not session.resume:
        return BackgroundOrigin(invocation)
    canonical = parse_uuid(session.resume)
    if canonical is None:
        return _build_copy_origin(
            invocation, session.resume, "" if session.fork_session else COPIED_NOTE
        )
    known = registry.find_session(canonical, os.environ)
    if known is None and not session.fork_session:
        return BackgroundOrigin(invocation, session_id=canonical)
    if (
        known
        and known.is_running
        and store.find_session(canonical, os.environ) is None
        and known.metadata["vendor"] not in FLAT_ADAPTERS
    ):
        hint = f"`claude attach {known.short_id}` opens it"
        raise FrontendError(
            f"session {known.short_id} has not ended its first turn: there is nothing to copy yet",
            hint=hint,
        )
    if session.fork_session or known is None:
        return _build_copy_origin(invocation, canonical, "")
    if known.is_running:
        return _build_copy_origin(
            invocation, canonical, COPIED_RUNNING_NOTE.replace("{original}", known.short_id)
        )
    saved, here, cwd = (
        read_start_invocation(known),
        get_working_directory(),
        str(known.metadata["cwd"]),
    )
    woken = build_resume_invocation(known, here, resolve_invocation_paths(invocation, here, cwd))
    options = ", ".join(
        word.partition("=")[0] for word in build_conversation_args(saved) if word.startswith("--")
    )
    note = RESUMED_NOTE.replace("{options}", escape_control_chars(options)) if options else ""
    return BackgroundOrigin(woken, session_id=canonical, cwd=cwd, note=note)


def _build_copy_origin(invocation: Invocation, original: str, note: str) -> BackgroundOrigin:
    """A copy is forbidden what its original is, where that lives or lived on its own."""
    canonical = parse_uuid(original)
    known = registry.find_session(canonical, os.environ) if canonical else None
    if known is not None:
        invocation = build_resume_invocation(
            known, get_working_directory(), invocation, is_copy=True
        )
    return BackgroundOrigin(invocation, copied_id=original, note=note)


def _build_host_invocation(before: BackgroundOrigin) -> Invocation:
    """The invocation as a host will have it, to be checked: a conversation that is asked about its
    tools.
    """
    resumed = before.copied_id or before.session_id
    if before.session_id and store.find_session(before.session_id, os.environ) is None:
        # it ended before its first turn did
        resumed = "" if registry.find_session(before.session_id, os.environ) else resumed
    return before.invocation.with_flags(
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
        resume=resumed or None,
        continue_last=False,
        fork_session=bool(before.copied_id),
    )


def _format_start_message(short: str, name: str, *, idle: bool) -> str:
    """The lines that a client reads the id from (B1, B2)."""
    cyan, dim, end = ("\x1b[36m", "\x1b[2m", "\x1b[0m") if os.isatty(1) else ("", "", "")
    called = " ".join(escape_control_chars(name).split())
    first = f"backgrounded · {cyan}{short}{end}" + (f" · {called}" if called else "")
    lines = [first + (f"{dim} {IDLE_TEXT}{end}" if idle else "")]
    for word, does in NEXT_COMMANDS.items():
        command = f"claude {word}" if word == "agents" else f"claude {word} {short}"
        lines.append(f"{dim}  {command:26}{does}{end}")
    return "\n".join(lines) + "\n"
