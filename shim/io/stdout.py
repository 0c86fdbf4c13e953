"""Writes complete lines to stdout in the requested format, without blocking the loop."""

import os
import select
import socket
import stat
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

import anyio

from shim.core.claude.messages import UserMessage
from shim.core.turn.turn import Turn
from shim.io.stderr import DISCONNECT_ERRNOS, SAFE_BYTES, warn
from shim.io.transcript import Transcript

if TYPE_CHECKING:
    from shim.core.claude.output_writer import OutputWriter
    from shim.io.record_sinks import RunRecordSink
    from shim.io.subagent_transcripts import SubagentTranscripts
    from shim.io.transcript_mirror import TranscriptMirror

MAX_WRITE_BYTES = 1024 * 1024


class FrontendDisconnectedError(Exception):
    """Raised when the frontend has closed its end of stdout."""


class FrontendLineSink(Protocol):
    """A destination for lines to a frontend: stdout, or the hub of a background session."""

    @property
    def has_failed(self) -> bool:
        """Return whether a write failed although the reader was connected, for example because of a
        full disk.
        """

    async def wait_for_disconnect(self) -> None:
        """Wait until the reader disconnects. If only a write can detect that, wait forever."""

    async def write(self, data: bytes) -> None:
        """Write all of `data`. Raise FrontendDisconnectedError if the reader has disconnected."""


class Stdout:
    """File descriptor 1. A slow reader delays only the writes.

    A socket (Node's pipes are sockets) is written with a non-blocking flag for each call. A pipe is
    opened a second time, so that its blocking mode does not change for other processes. A regular
    file never blocks for long. For any other descriptor, the writes are small enough never to
    block. `has_failed` is true if a write failed although the reader was connected, for example
    because of a full disk.
    """

    def __init__(self, descriptor: int = 1, recorder: "RunRecordSink | None" = None) -> None:
        self.has_failed = False
        self._recorder = recorder
        self._descriptor = descriptor
        self._unwritten = b""
        self._socket: socket.socket | None = None
        self._write_some: Callable[[memoryview], int] = lambda view: os.write(
            descriptor, view[:SAFE_BYTES]
        )
        self._waits_before_write = True
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISSOCK(mode):
            self._socket = socket.socket(fileno=os.dup(descriptor))
            socket_copy = self._socket
            self._write_some = lambda view: socket_copy.send(view, socket.MSG_DONTWAIT)
            self._waits_before_write = False
        elif stat.S_ISFIFO(mode):
            self._reopen_pipe()
        elif stat.S_ISREG(mode) or (stat.S_ISCHR(mode) and not os.isatty(descriptor)):
            self._write_some = lambda view: os.write(descriptor, view[:MAX_WRITE_BYTES])
            self._waits_before_write = False

    def _reopen_pipe(self) -> None:
        try:
            pipe_descriptor = os.open(
                f"/proc/self/fd/{self._descriptor}", os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC
            )
        except OSError:
            return
        self._descriptor = pipe_descriptor
        self._write_some = lambda view: os.write(pipe_descriptor, view)
        self._waits_before_write = False

    async def wait_for_disconnect(self) -> None:
        """Wait until the reader disconnects. If only a write can detect a disconnect, wait forever.

        The write end of a pipe or a socket becomes readable when the other end is closed.
        """
        mode = os.fstat(self._descriptor).st_mode
        if not (stat.S_ISSOCK(mode) or stat.S_ISFIFO(mode)):
            await anyio.sleep_forever()
        await anyio.wait_readable(self._descriptor)
        poll = select.poll()
        poll.register(self._descriptor, select.POLLOUT)
        if not any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0)):
            await anyio.sleep_forever()

    async def write(self, data: bytes) -> None:
        """Write all of `data`. Raise FrontendDisconnectedError if the frontend has closed its end.

        If a call is cancelled, the next call first writes the remaining bytes, so that no line is
        cut.
        """
        pending = data
        if self._unwritten:
            pending = self._unwritten + data
        view = memoryview(pending)
        try:
            while view:
                if self._waits_before_write:
                    await anyio.wait_writable(self._descriptor)
                try:
                    view = view[self._write_some(view) :]
                except BlockingIOError:
                    await anyio.wait_writable(self._descriptor)
        except OSError as error:
            if error.errno not in DISCONNECT_ERRNOS and not self.has_failed:
                self.has_failed = True
                warn(f"stdout cannot be written: {error.strerror}\n")
            raise FrontendDisconnectedError(str(error)) from None
        finally:
            self._unwritten = bytes(view)
            if self._recorder is not None:
                written = pending
                if view:
                    written = pending[: len(pending) - len(view)]
                self._record_written(written, self._recorder)

    def _record_written(self, written: bytes, recorder: "RunRecordSink") -> None:
        if written:
            recorder.record_stream("O", written)
            if not written.endswith(b"\n"):
                recorder.record_stream("O", b"")


# The text of an error with one of these causes comes from a vendor or an API, and does not name its
# source.
VENDOR_CAUSES = ("auth", "rate_limit", "vendor_error", "refused", "truncated")
VENDOR_ERROR_HINT = (
    "the error comes from {name} or its API; `shim doctor {name}` checks the installation "
    "and login\n"
)


class FrontendOutput:
    """Writes the output in the requested format: a stream of lines, the result as one JSON object,
    an array of all lines, or only the answer text (contract F1).
    """

    def __init__(
        self,
        output_format: str,
        *,
        verbose: bool,
        stdout: FrontendLineSink,
        transcript: Transcript | None = None,
        history_writer: "OutputWriter | None" = None,
        mirror: "TranscriptMirror | None" = None,
        subagent_transcripts: "SubagentTranscripts | None" = None,
    ) -> None:
        """Create the output. If the frontend reads another dialect, `history_writer` produces
        Claude's lines for the transcript. `mirror` copies the transcript to the frontend.
        """
        self._subagent_transcripts = subagent_transcripts
        self._transcript = transcript
        self._mirror = mirror
        self._history_writer = history_writer
        self.stdout = stdout
        self._is_stream = output_format == "stream-json"
        self._is_array = output_format == "json" and verbose
        self._is_text = output_format == "text"
        self._has_started = False
        self._has_ended = False
        self._write_lock = anyio.Lock()

    async def wait_for_disconnect(self) -> None:
        """Wait until the frontend disconnects."""
        await self.stdout.wait_for_disconnect()

    def write_prompt_to_transcript(self, message: UserMessage) -> None:
        """Write the next turn's message to the transcript."""
        if self._transcript is not None:
            self._transcript.write_prompt(
                message.raw_message.get("content", message.text), message.uuid
            )

    def write_command_text_to_transcript(self, text: str) -> None:
        """Write the text of the command that the turn's message invoked to the transcript."""
        if self._transcript is not None:
            self._transcript.write_command_text(text)

    def write_title_to_transcript(self, title: str) -> None:
        """Write the title that the frontend has given to the session to the transcript."""
        if self._transcript is not None:
            self._transcript.write_title(title)

    def start_new_session(self) -> None:
        """Write the following messages to the transcript of a new session."""
        if self._transcript is not None:
            self._transcript.start_new_session()

    async def write_lines(self, data: bytes, *, in_transcript: bool = True) -> None:
        """Write lines to the frontend, and to the transcript unless `in_transcript` is false. Lines
        from a cancelled call are written first.
        """
        async with self._write_lock:
            if self._mirror is not None:
                self._write_transcript_lines(data, in_transcript=in_transcript)
                await self._write_stream_lines(self._mirror.add_new_entries(data))
                return
            try:
                await self._write_stream_lines(data)
            finally:
                self._write_transcript_lines(data, in_transcript=in_transcript)

    def _write_transcript_lines(self, data: bytes, *, in_transcript: bool) -> None:
        if self._history_writer is not None:
            data = self._history_writer.take_bytes()
        if self._transcript is not None and data and in_transcript:
            self._transcript.write_lines(data)
        if self._subagent_transcripts is not None:
            self._subagent_transcripts.write_new_messages()

    async def _write_stream_lines(self, data: bytes) -> None:
        if self._is_stream or not data:
            await self.stdout.write(data)
        elif self._is_array and not self._has_ended:  # nothing may follow the array's end
            items = data.rstrip(b"\n").replace(b"\n", b",")
            # The next write continues a cancelled one.
            separator = b"["
            if self._has_started:
                separator = b","
            self._has_started = True
            await self.stdout.write(separator + items)

    async def finish_turn(self, turn: Turn) -> None:
        """Write the output that follows the end of a turn. Call this once for each turn."""
        if self._mirror is not None:
            # Write the entries that were added after the turn's result.
            await self.stdout.write(self._mirror.take_lines())
        was_ended = self._has_ended
        await self.write_final_answer(turn.final_text, turn.writer.last_result_line)
        if (
            self._is_text
            and not was_ended
            and turn.end_cause in VENDOR_CAUSES
            and turn.config.vendor.name not in turn.final_text
        ):
            warn(VENDOR_ERROR_HINT.format(name=turn.config.vendor.name))

    async def write_final_answer(self, text: str, result_line: bytes) -> None:
        """Write the end of the array, the answer text or the result line, depending on the output
        format. Only the first call has an effect.
        """
        if self._has_ended:
            return
        self._has_ended = True
        if self._is_array:
            await self.stdout.write(b"]")
        elif self._is_text:
            await self.stdout.write(text.encode("utf-8", "replace") + b"\n")
        elif not self._is_stream:
            await self.stdout.write(result_line)
