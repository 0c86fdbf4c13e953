"""Runs the conversation of a frontend on another machine, where its session is.

The drop-in of that machine gets the flags, stdin and stdout of this one. It joins or resumes the
session as it does for a frontend on its own machine, with that machine's settings files.
"""

import os
import subprocess
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from threading import Thread
from typing import IO

from shim.bridge.registry import SessionRecord, find_session
from shim.bridge.remote import get_machine, iterate_machine_listings
from shim.bridge.session_lookup import resolve_session_id
from shim.bridge.ssh import EXIT_TIMEOUT_S, check_ssh_status, start_ssh, stop_ssh
from shim.core.bridge.relay import encode_command_request
from shim.core.claude.argv.invocation import Invocation
from shim.core.claude.argv.merge import build_conversation_args
from shim.core.claude.argv.paths import is_json
from shim.core.errors import FrontendError
from shim.core.reading import MAX_LINE_BYTES
from shim.core.reading.lines import LineSplitter
from shim.core.reading.values import canonicalize_uuid, split_machine
from shim.io.prompt import load_system_prompt_files
from shim.io.stderr import warn
from shim.state import store
from shim.state.files import write_all
from shim.state.machines import load_machines

CHUNK_BYTES = 64 * 1024
# The fields that are not sent to the other machine. The session is passed separately, and the paths
# of the shim's own files are only valid on this machine.
LOCAL_FIELDS = frozenset(
    ("resume", "continue_last", "machine", "cwd", "shim_config", "shim_record", "shim_log")
)
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
    machines = load_machines(environment)
    if reference.partition(":")[0] in machines:
        return resolve_session_id(reference)
    if not machines or canonicalize_uuid(reference) is None:
        return None
    if find_session(reference, environment) or store.find_session(reference, environment):
        return None
    for listing in iterate_machine_listings(
        list(machines.values()), environment, includes_ended=True
    ):
        for session in listing.sessions:
            if session.session_id == f"{listing.machine.name}:{reference}":
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
    args = _build_args(invocation, split_machine(session.session_id)[1])
    request = encode_command_request(args, str(session.metadata["cwd"]), environment)
    with tempfile.TemporaryFile() as stderr:
        process = start_ssh(machine, environment, subprocess.PIPE, subprocess.PIPE, stderr)
        try:
            assert process.stdin is not None
            assert process.stdout is not None
            write_all(process.stdin.fileno(), request)
            Thread(target=_copy_stdin, args=(process.stdin,), daemon=True).start()
            _copy_lines(process.stdout)
            process.wait(EXIT_TIMEOUT_S)
        except (BrokenPipeError, subprocess.TimeoutExpired):
            pass  # the frontend or `ssh` has exited; the exit status shows why
        finally:
            stop_ssh(process)
        check_ssh_status(machine, process.returncode, stderr)
        stderr.seek(0)
        warn(stderr.read().decode("utf-8", "replace"))
    return process.returncode


def _build_args(invocation: Invocation, session_id: str) -> list[str]:
    """Return the arguments of `claude` on the other machine, with the contents of files instead of
    their paths.
    """
    invocation = load_system_prompt_files(invocation)
    invocation = invocation._replace(
        settings=_inline_file(invocation.settings),
        mcp_config=tuple(_inline_file(value) or "" for value in invocation.mcp_config),
    )
    args = ["claude", "--resume", session_id, *build_conversation_args(invocation, LOCAL_FIELDS)]
    if invocation.prompt:
        args += ["--", invocation.prompt]
    return args


def _inline_file(value: str | None) -> str | None:
    """Return the JSON of a flag whose value is JSON or the path of a file."""
    if not value or is_json(value):
        return value
    try:
        with open(value, encoding="utf-8") as file:
            return file.read(MAX_FILE_CHARS)
    except (OSError, ValueError) as error:
        raise FrontendError(f"the file {value} cannot be read: {error}") from None


def _copy_stdin(stdin: IO[bytes]) -> None:
    """Send the stdin of the frontend to the other machine."""
    with suppress(OSError):
        while chunk := os.read(0, CHUNK_BYTES):
            write_all(stdin.fileno(), chunk)
        stdin.close()


def _copy_lines(stdout: IO[bytes]) -> None:
    """Write complete lines to stdout. A lost connection may end in the middle of a line."""
    splitter = LineSplitter(MAX_LINE_BYTES)
    while chunk := os.read(stdout.fileno(), CHUNK_BYTES):
        for line in splitter.feed(chunk):
            write_all(1, line + b"\n")
