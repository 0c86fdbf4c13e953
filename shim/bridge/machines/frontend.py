"""Runs the conversation of a frontend on another machine, where its session is.

The drop-in of that machine gets the flags, stdin and stdout of this one. It joins or resumes the
session as it does for a frontend on its own machine, with that machine's settings files.
"""

import os
from collections.abc import Mapping
from contextlib import suppress
from threading import Thread
from typing import IO

from shim.bridge.listings import iterate_machine_listings
from shim.bridge.registry import SessionRecord, find_session
from shim.bridge.relay_process import (
    EXIT_TIMEOUT_S,
    StderrReader,
    check_relay_status,
    start_relay_process,
    stop_relay_process,
)
from shim.bridge.remote import check_relay_refusal, get_machine
from shim.bridge.session_lookup import resolve_session_id
from shim.core.bridge.relay import FileArgument, encode_command_request
from shim.core.claude.argv.flags import Invocation
from shim.core.claude.argv.merge import FRONTEND_FIELDS, build_conversation_args
from shim.core.claude.argv.paths import is_json
from shim.core.errors import FrontendError
from shim.core.reading import MAX_LINE_BYTES
from shim.core.reading.lines import LineSplitter
from shim.core.reading.values import canonicalize_uuid, escape_control_chars, split_machine
from shim.io.prompt import load_system_prompt_files
from shim.io.stderr import warn
from shim.state import store
from shim.state.files import write_all
from shim.state.machines import Machine, load_machines, select_machines

CHUNK_BYTES = 64 * 1024
# Fields with the paths of the shim's own files, which are those of this machine.
PATH_FIELDS = frozenset(("shim_config", "shim_record", "shim_log"))
# Fields that are sent in another form: the session, and the contents of files.
LOCAL_FIELDS = frozenset((
    *("resume", "continue_last", "machine", "cwd"),
    *("settings", "mcp_config", "system_prompt", "append_system_prompt"),
))  # fmt: skip
DISCONNECTED_STATUS = 1  # the frontend has closed stdout
# The maximum length of a settings file that is sent to the other machine.
MAX_FILE_CHARS = 256 * 1024


def find_resumed_session(
    invocation: Invocation, environment: Mapping[str, str]
) -> SessionRecord | None:
    """Return the session of another machine that `--resume` names: MACHINE:ID, or a UUID that only
    another machine knows. Return None if the session is not on another machine.

    Raise FrontendError if the named machine has no such session.
    """
    reference = invocation.resume or ""
    if not reference:
        return None
    machine_name, colon, _ = reference.partition(":")
    if colon and machine_name in load_machines(environment):
        return resolve_session_id(reference)
    uuid = canonicalize_uuid(reference)
    machines = select_machines(None, environment)
    if not machines or uuid is None:
        return None
    if find_session(reference, environment) or store.find_session(reference, environment):
        return None
    for listing in iterate_machine_listings(machines, environment, includes_ended=True):
        for session in listing.sessions:
            if session.session_id == f"{listing.machine.name}:{uuid}":
                return session
    return None


def run_conversation_on_machine(
    invocation: Invocation, session: SessionRecord, environment: Mapping[str, str]
) -> int:
    """Resume the session on its machine, with the stdin and stdout of this process. Return the exit
    status.

    Raise MachineUnavailableError if the machine cannot be reached, or if the connection is lost.
    Raise FrontendError if a file that a flag names cannot be read.
    """
    machine = get_machine(session.session_id, environment)
    session_id = split_machine(session.session_id)[1]
    args = ["claude", "--resume", session_id, *_build_conversation_args(invocation)]
    if invocation.prompt:
        args += ["--", invocation.prompt]
    request = encode_command_request(args, str(session.metadata["cwd"]), environment)
    process = start_relay_process(machine, environment)
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    stderr = StderrReader(process.stderr, _print_stderr)
    lines = LineSplitter(MAX_LINE_BYTES)
    try:
        write_all(process.stdin.fileno(), request)
        Thread(target=_copy_stdin, args=(process.stdin,), daemon=True).start()
        _copy_lines(machine, process.stdout, lines)
        process.wait(EXIT_TIMEOUT_S)
    except BrokenPipeError:
        return DISCONNECTED_STATUS
    finally:
        stop_relay_process(process)
    check_relay_status(machine, process.returncode, stderr.read_to_end())
    # A lost connection may end in the middle of a line, but this command has ended normally.
    write_all(1, b"".join(lines.close()))
    return process.returncode


def build_background_args(invocation: Invocation) -> list[str]:
    """Return the flags for `claude --bg` on another machine, without its prompt. JSON replaces the
    paths of files, which are read here. A background session keeps its flags, so they must not name
    files that are removed.

    Raise FrontendError if a file cannot be read.
    """
    invocation = load_system_prompt_files(invocation)
    invocation = invocation._replace(
        settings=_load_json(invocation.settings) if invocation.settings else None,
        mcp_config=tuple(map(_load_json, invocation.mcp_config)),
    )
    args = build_conversation_args(invocation, FRONTEND_FIELDS | PATH_FIELDS)
    if invocation.name:
        args += ["--name", invocation.name]
    return args


def _build_conversation_args(invocation: Invocation) -> list[str | FileArgument]:
    """Return the flags for a conversation on another machine. Settings, MCP servers and system
    prompts are sent as files, which are read here.

    Raise FrontendError if a file cannot be read.
    """
    invocation = load_system_prompt_files(invocation)
    files = [("--mcp-config", _load_json(value)) for value in invocation.mcp_config]
    if invocation.settings:
        files.append(("--settings", _load_json(invocation.settings)))
    if invocation.system_prompt is not None:
        files.append(("--system-prompt-file", invocation.system_prompt))
    if invocation.append_system_prompt is not None:
        files.append(("--append-system-prompt-file", invocation.append_system_prompt))
    args: list[str | FileArgument] = [
        *build_conversation_args(invocation, LOCAL_FIELDS | PATH_FIELDS)
    ]
    for flag, content in files:
        args += [flag, FileArgument(content)]
    return args


def _load_json(value: str) -> str:
    """Return the JSON of a flag whose value is JSON or the path of a file."""
    if is_json(value):
        return value
    try:
        with open(value, encoding="utf-8") as file:
            text = file.read(MAX_FILE_CHARS + 1)
    except (OSError, ValueError) as error:
        raise FrontendError(f"the file {value} cannot be read: {error}") from None
    if len(text) > MAX_FILE_CHARS:
        raise FrontendError(f"the file {value} has more than {MAX_FILE_CHARS:,} characters")
    return text


def _copy_stdin(stdin: IO[bytes]) -> None:
    """Send the stdin of the frontend to the other machine."""
    with suppress(OSError):
        while chunk := os.read(0, CHUNK_BYTES):
            write_all(stdin.fileno(), chunk)
        stdin.close()


def _copy_lines(machine: Machine, stdout: IO[bytes], lines: LineSplitter) -> None:
    """Write complete lines to stdout. Raise FrontendError if the relay refuses the command."""
    is_first = True
    while chunk := os.read(stdout.fileno(), CHUNK_BYTES):
        if is_first:
            check_relay_refusal(machine, chunk)
            is_first = False
        for line in lines.feed(chunk):
            write_all(1, line + b"\n")


def _print_stderr(chunk: bytes) -> None:
    warn(escape_control_chars(chunk.decode("utf-8", "replace")))
