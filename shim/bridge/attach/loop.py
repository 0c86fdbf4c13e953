"""Runs the loop for a frontend whose conversation runs in a host process. The loop connects the
frontend's stdin and stdout to the host.

The loop guarantees that every message from the frontend gets exactly one result, even if the host
fails.
"""

from collections.abc import Mapping
from typing import Any

import anyio
from anyio.abc import TaskGroup

from shim.bridge.attach.frontend_bridge import FrontendSessionBridge
from shim.bridge.attach.turn_filter import TurnOwner
from shim.bridge.client import (
    ANSWER_TIMEOUT_S,
    HostConnection,
    HostNotAnsweringError,
    HostUnavailableError,
)
from shim.conversation.loop import (
    EXIT_STATUS_BY_SIGNAL,
    FINAL_WRITE_TIMEOUT_S,
    ConversationLoop,
    explain_turn_failure,
)
from shim.core.api_errors import TurnEndCause
from shim.core.reading.values import as_list
from shim.core.turn.result import INTERRUPTED, build_minimal_error_result
from shim.io.ids import create_uuid
from shim.io.stderr import warn
from shim.io.stdin import Stdin
from shim.io.stdout import FrontendDisconnectedError, FrontendOutput

# A SIGTERM that arrives more than this many seconds after the end of stdin does not end the
# session. It only makes this process exit sooner. Both SDKs wait longer than this before they send
# SIGTERM. A frontend that kills this process closes its pipes at the same time.
LEAVE_GRACE_S = 1.0
# The time for a host to end its child and to exit, after the frontend has received its result.
HOST_END_TIMEOUT_S = 5.0
HOST_DIED_TEXT = (
    "the host process of the session crashed during the turn; `claude --resume {session}` "
    "resumes it"
)
SESSION_ENDED_TEXT = (
    "the session was stopped during the turn ({why}); `claude --resume {session}` resumes it"
)
MESSAGE_REFUSED_TEXT = "the session does not accept the message: {why}"
FRONTEND_STOPPED_TEXT = (
    "the frontend was stopped by {signal}; the session keeps running, and `claude --resume "
    "{session}` joins it"
)
SESSION_ENDED_WARNING = "the session has ended ({why}); `claude --resume {session}` resumes it\n"


class AttachedConversationLoop(ConversationLoop):
    """The loop for one frontend that is connected to one host.

    A SIGTERM ends the frontend's session. If it arrives more than `LEAVE_GRACE_S` after the end of
    stdin, the frontend is already leaving; the signal then only makes this process exit sooner.

        prompt        the only message, from the command line; None if messages come from `source`
        source        the frontend's stdin; with a `prompt`, it contains only answers
        ends_session  whether the session belongs to the frontend, and ends when the frontend is
                      ended on purpose
    """

    def __init__(
        self,
        frontend: FrontendSessionBridge,
        connection: HostConnection,
        output: FrontendOutput,
        *,
        prompt: str | None,
        source: Stdin | None,
        ends_session: bool,
    ) -> None:
        super().__init__(output)
        self._frontend = frontend
        self._connection = connection
        self._prompt = prompt
        self._source = source
        self._ends_session = ends_session
        self._is_reading_stdin = source is not None
        self._stdin_end_time = float("inf")  # when stdin ended, by anyio's clock
        self._has_lost_host = False  # whether the connection to the host has ended
        self._write_lock = anyio.Lock()
        self._send_lock = anyio.Lock()

    async def _run_session(self, tasks: TaskGroup) -> int:
        try:
            with self._work_scope:
                if self._prompt is not None:
                    self._frontend.send_prompt(self._prompt)
                await self._flush_output()
                tasks.start_soon(self._run_in_background, self._read_frames)
                if self._source is not None:
                    tasks.start_soon(self._run_in_background, self._read_stdin)
                await self._wait_for_results()
            if self._error is not None:
                raise self._error
        except FrontendDisconnectedError:
            self._frontend_disconnected = True
        except Exception as error:
            await self._write_last_result(explain_turn_failure(error), "internal")
            warn(f"{explain_turn_failure(error)}\n")
            return 1
        await self._leave_session()
        if self._stop_signal is not None:
            return EXIT_STATUS_BY_SIGNAL[self._stop_signal]
        has_failed = self._frontend.turn_filter.result.get("is_error")
        if not has_failed:
            has_failed = self._has_lost_host and not self._frontend.end_reason
        if has_failed and not self._is_ending and not self._frontend_disconnected:
            return 1
        return 0

    async def _wait_for_results(self) -> None:
        """Wait until every message has its result and no further message can arrive."""
        frontend = self._frontend
        turn_filter = self._frontend.turn_filter
        while True:
            if frontend.refusal:
                await self._write_error_result(
                    MESSAGE_REFUSED_TEXT.format(why=frontend.refusal), "refused"
                )
                frontend.refusal = ""
            if self._has_lost_host:
                await self._finish_without_host()
                return
            is_input_complete = (
                self._prompt is not None or not self._is_reading_stdin or self._is_ending
            )
            if is_input_complete and turn_filter.is_idle and not frontend.has_open_requests:
                await self._flush_output()  # another task may still be writing the last lines
                return
            await self._wakeup.wait()

    async def _finish_without_host(self) -> None:
        """Write an error result for the running turn, because the host has exited without
        a result.
        """
        frontend = self._frontend
        session_id = str(self._frontend.welcome.get("session"))
        if not frontend.turn_filter.is_idle:
            if frontend.end_reason:
                text = SESSION_ENDED_TEXT.format(why=frontend.end_reason, session=session_id)
            else:
                text = HOST_DIED_TEXT.format(session=session_id)
            await self._write_error_result(text, "signal" if frontend.end_reason else "internal")
        elif self._is_reading_stdin:
            warn(
                SESSION_ENDED_WARNING.format(
                    why=frontend.end_reason or "the host process crashed", session=session_id
                )
            )

    # -- lines and frames --------------------------------------------------------------------------

    async def _read_frames(self) -> None:
        """Read frames from the host until the connection ends."""
        async for frame in self._connection:
            self._frontend.on_host_frame(frame)
            await self._flush_output()
            self._wake_waiters()
        self._has_lost_host = True
        self._wake_waiters()

    async def _read_stdin(self) -> None:
        """Read the frontend's stdin until EOF."""
        source = self._source
        frontend = self._frontend
        assert source is not None
        for line in source.received_lines:
            frontend.on_stdin_line(line)
            await self._flush_output()
        while chunk := await source.read():
            for line in source.line_splitter.feed(chunk):
                frontend.on_stdin_line(line)
                await self._flush_output()
            self._wake_waiters()
        for line in source.line_splitter.close():
            frontend.on_stdin_line(line)
        if source.line_splitter.skipped_lines:
            warn(
                f"skipped {source.line_splitter.skipped_lines} lines of stdin that were too long (max_inbound_bytes)\n"
            )
        frontend.on_stdin_end()
        await self._flush_output()
        self._is_reading_stdin, self._stdin_end_time = False, anyio.current_time()
        self._wake_waiters()

    async def _flush_output(self) -> None:
        """Write the collected lines to the frontend, and the collected frames to the host.

        The host may take a long time to read the frames.
        """
        await self._write_lines()
        await self._send_frames()

    async def _send_frames(self) -> None:
        async with self._send_lock:
            frames = self._frontend.frames
            self._frontend.frames = []
            try:
                for frame in frames:
                    await self._connection.send_frame(frame)
            except HostUnavailableError:
                pass  # `_read_frames` also detects the lost connection

    async def _write_lines(self) -> None:
        async with self._write_lock:
            frontend = self._frontend
            for warning in frontend.warnings:
                warn(warning)
            frontend.warnings.clear()
            lines = frontend.lines
            frontend.lines = []
            if lines:
                await self._output.write_lines(b"".join(line + b"\n" for line in lines))
            if result := frontend.turn_filter.result:
                text = result.get("result")
                if isinstance(text, str):
                    result_text = text
                else:
                    result_text = "\n".join(map(str, as_list(result.get("errors"))))
                await self._output.write_final_answer(result_text, frontend.turn_filter.result_line)

    # -- end of the conversation -------------------------------------------------------------------

    async def _write_error_result(self, reason: str, cause: TurnEndCause) -> None:
        """Write an error result for the messages that have no result."""
        self._add_error_result(reason, cause)
        await self._write_lines()

    def _add_error_result(self, reason: str, cause: TurnEndCause) -> None:
        welcome = self._frontend.welcome
        id_fields = {"session_id": welcome.get("session"), "uuid": create_uuid()}
        line = {
            "type": "result",
            **build_minimal_error_result(str(welcome.get("vendor")), reason, cause),
            **id_fields,
        }
        self._frontend.lines += self._frontend.turn_filter.end_turn_with_result(line)

    async def _write_last_result(self, reason: str, cause: TurnEndCause) -> None:
        if self._frontend.turn_filter.is_idle:
            return
        with anyio.move_on_after(FINAL_WRITE_TIMEOUT_S):
            try:
                await self._write_error_result(reason, cause)
            except FrontendDisconnectedError:
                pass

    async def _leave_session(self) -> None:
        """Leave the session. The session continues, unless it belongs to the frontend and the
        frontend is ended on purpose.
        """
        is_leaving = anyio.current_time() - self._stdin_end_time >= LEAVE_GRACE_S
        frontend = self._frontend
        is_terminated = self._stop_signal == "SIGTERM" and not is_leaving
        has_turn = frontend.turn_filter.owner is TurnOwner.THIS_FRONTEND or bool(
            frontend.turn_filter.waiting_ids
        )
        has_answer = (
            self._prompt is not None
            and not self._frontend_disconnected
            and self._stop_signal is None
        )
        last_frames: list[Mapping[str, Any]] = []
        if (
            self._ends_session
            and (is_terminated or has_answer)
            and not frontend.has_other_controller
        ):
            last_frames.append({"kind": "end", "id": create_uuid()})
        elif is_terminated and has_turn and not frontend.has_other_controller:
            # Stop only the turn that the frontend started. The session continues.
            last_frames.append({"kind": "interrupt", "id": create_uuid()})
        frames = [*frontend.frames, *last_frames]
        frontend.frames = []
        pending_ids = frontend.pending_stop_ids = {str(frame["id"]) for frame in last_frames}
        try:
            with anyio.move_on_after(
                FINAL_WRITE_TIMEOUT_S if self._stop_signal else HOST_END_TIMEOUT_S
            ):
                for frame in frames:
                    await self._connection.send_frame(frame)
                # Closing the connection earlier might lose the frames.
                while pending_ids and not self._has_lost_host:
                    await self._wakeup.wait()
        except HostUnavailableError:
            pass
        if self._stop_signal is not None:  # has no effect if the turn has already ended
            session_id = self._frontend.welcome.get("session")
            session_notice = FRONTEND_STOPPED_TEXT.format(
                signal=self._stop_signal, session=session_id
            )
            reason = session_notice
            if last_frames:
                reason = f"the turn was stopped by {self._stop_signal}"
            await self._write_last_result(
                reason,
                "signal",
            )

    def _interrupt_turn(self, tasks: TaskGroup) -> None:
        """Handle a SIGINT by interrupting the frontend's turn. The turn's result ends the
        conversation.
        """
        turn_filter = self._frontend.turn_filter
        had_messages = not self._frontend.turn_filter.is_idle
        self._frontend.cancel_waiting_messages()
        if turn_filter.owner is TurnOwner.THIS_FRONTEND:
            self._frontend.send_interrupt()
        elif had_messages:
            self._add_error_result(INTERRUPTED, "interrupted")
        tasks.start_soon(self._run_in_background, self._confirm_interrupt)
        self._wake_waiters()

    async def _confirm_interrupt(self) -> None:
        """Wait until the host confirms the interrupt. Raise HostNotAnsweringError if it does not.

        Without this confirmation the conversation might never end.
        """
        await self._write_lines()
        host_confirms = "accepted" in self._frontend.welcome.get("knows", ())
        with anyio.move_on_after(ANSWER_TIMEOUT_S):
            await self._send_frames()
            while host_confirms and self._frontend.pending_stop_ids and not self._has_lost_host:
                await self._wakeup.wait()
            return
        raise HostNotAnsweringError(self._connection.session_id, self._connection.pid)
