"""Implements `shim translate`: translates a child's stdout, from a file or stdin, into Claude's
stream-json with blocking I/O.
"""

import functools
import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from shim.adapters import get_adapter
from shim.core.adapter.child_stream import ChildStream
from shim.core.claude.argv.flags import Invocation
from shim.core.claude.subagent_log import SubagentLog
from shim.core.claude.usage import MessageUsageCounter
from shim.core.claude.writer import TERMINATORS, StreamJsonWriter
from shim.core.dialects import DIALECTS
from shim.core.reading import MAX_LINE_BYTES
from shim.core.reading.limits import StoreText
from shim.core.reading.lines import LineSplitter
from shim.core.turn.context import SessionConfig, TurnConfig, VendorInfo
from shim.core.turn.outcome import ChildExit
from shim.io.ids import create_session_ids
from shim.state.config import DEFAULT_LINE_BYTES
from shim.state.files import select_spill_file_opener, write_all

if TYPE_CHECKING:
    from shim.core.claude.output_writer import OutputWriter
    from shim.state.spill import LargeTextFolder

CHUNK_BYTES = 256 * 1024
# The size limit for the file of `--stderr FILE`. Error texts quote the file's head and tail.
MAX_STDERR_BYTES = 1024 * 1024

# With `--stable-ids`, ids are numbered and claude's version is fixed. Two runs with the same input
# then print the same output.
STABLE_VERSION = "2.1.327"
STABLE_ID_PREFIX = "00000000-0000-4000-8000-"
STABLE_SESSION_ID = "00000000-0000-4000-8000-000000000000"


def create_output_writer(
    dialect: str,
    id_prefix: str,
    *,
    partial: bool = False,
    terminator: str = "none",
    max_line_bytes: int = 0,
    display_name: str = "",
    has_history: bool = False,
) -> "OutputWriter":
    """Create the output writer for a dialect.

    Yume's writer is imported only if it is needed, and always writes a terminator. `has_history`
    means that a transcript is written. A dialect other than Claude's then also produces Claude's
    lines for the transcript.
    """
    if DIALECTS[dialect].is_flat:
        from shim.core.yume.encoder import YumeEncoder

        history_writer = None
        if has_history:
            history_prefix = create_session_ids()[1]
            history_writer = StreamJsonWriter(
                history_prefix,
                max_line_bytes=max_line_bytes,
                usage_counter=MessageUsageCounter(),
                subagent_log=SubagentLog(history_prefix),
            )
        return YumeEncoder(
            id_prefix,
            max_line_bytes=max_line_bytes,
            frontend_session_id=display_name,
            transcript_writer=history_writer,
        )
    usage_counter = subagent_log = None
    if has_history:
        usage_counter = MessageUsageCounter()
        subagent_log = SubagentLog(id_prefix)
    return StreamJsonWriter(
        id_prefix,
        writes_partial_messages=partial,
        terminator=TERMINATORS[terminator],
        max_line_bytes=max_line_bytes,
        usage_counter=usage_counter,
        subagent_log=subagent_log,
    )


def choose_result_terminator_line(invocation: Invocation, terminator_setting: str) -> str:
    """Return which terminator line follows a result (contract S16b)."""
    if invocation.output_format != "stream-json":
        return "none"
    if terminator_setting != "auto":
        return terminator_setting
    is_sdk = os.environ.get("CLAUDE_CODE_ENTRYPOINT", "").startswith("sdk-")
    if invocation.print_mode and invocation.input_format == "text" and not is_sdk:
        return "message_stop"
    return "none"


def create_standalone_child_stream(
    vendor_name: str,
    *,
    dialect: str = "claude",
    display_name: str = "",
    serving_vendor: str = "",
    include_partial_messages: bool = False,
    terminator: str = "message_stop",
    session_id: str | None = None,
    stable_ids: bool = False,
    max_line_bytes: int = DEFAULT_LINE_BYTES,
    redact: bool = False,
) -> ChildStream:
    """Create a child stream outside of a conversation. Only the vendor's name is known.

    vendor_name     the vendor that printed the output
    serving_vendor  the vendor whose session contains this output, if it is another vendor
    stable_ids      ids are numbered, and no files are written for cut texts
    max_line_bytes  the size limit for output lines; longer texts are cut and stored in a file
    """
    adapter = get_adapter(vendor_name, without_passthrough=DIALECTS[dialect].is_flat)
    if stable_ids:
        new_session_id = STABLE_SESSION_ID
        id_prefix = STABLE_ID_PREFIX
    else:
        new_session_id, id_prefix = create_session_ids()
    started = time.monotonic()
    clock: Callable[[], int] = (
        (lambda: 0) if stable_ids else (lambda: int((time.monotonic() - started) * 1000))
    )
    turn_config = TurnConfig(
        vendor=VendorInfo(
            serving_vendor or adapter.name,
            is_unattended=adapter.unattended,
            can_retract=adapter.abilities.can_repeat_reply
            or DIALECTS[dialect].retries_broken_answers,
            has_claude_errors=adapter.passthrough,
            login_command=adapter.login_hint,
            clean_exit_codes=adapter.shutdown.clean_exit_codes,
        ),
        session=SessionConfig(new_session_id, session_id),
        cwd="" if stable_ids else os.getcwd(),
        tools=adapter.listed_tools,
        can_retry=DIALECTS[dialect].retries_broken_answers,
        store_text=None if stable_ids else _create_text_store(new_session_id),
        redacts_secrets=redact,
        elapsed_ms=clock,
    )
    writer = create_output_writer(
        dialect,
        id_prefix,
        partial=include_partial_messages,
        terminator=terminator,
        max_line_bytes=max_line_bytes,
        display_name=display_name,
    )
    if stable_ids and isinstance(writer, StreamJsonWriter):
        writer.claude_version = STABLE_VERSION
    return ChildStream(
        adapter.translator_class,
        turn_config,
        writer,
        create_splitter=functools.partial(
            LineSplitter, MAX_LINE_BYTES, select_spill_file_opener(MAX_LINE_BYTES)
        ),
    )


def _create_text_store(session_id: str) -> StoreText:
    """Return a function that stores texts that are too large for an output line."""

    spills: list[LargeTextFolder] = []

    def store_text(text: str) -> str | None:
        from shim.state.spill import LargeTextFolder

        if not spills:
            spills.append(LargeTextFolder(os.environ, session_id))
        return spills[0].store_text(text)

    return store_text


def translate_stream(
    child_stream: ChildStream, source_fd: int, sink_fd: int, child_exit: ChildExit, stderr: str
) -> None:
    """Translate the output of a child from file descriptor `source_fd` to `sink_fd`, chunk by
    chunk.
    """
    while chunk := os.read(source_fd, CHUNK_BYTES):
        lines, _ = child_stream.feed(chunk)
        if lines:
            write_all(sink_fd, lines)
    lines, _ = child_stream.close(child_exit, stderr)
    write_all(sink_fd, lines)
