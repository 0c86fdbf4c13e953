"""Runs one turn through the drop-in, as a frontend does, and draws the turn for a person, who can
interrupt it.

The drop-in runs in its own process session, so the terminal's Ctrl-C only reaches this process.
This process forwards signals to the drop-in: the first Ctrl-C interrupts the turn, and the second
Ctrl-C kills it.
"""

import errno
import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import Any

from rich.console import Console

from shim.bridge.decisions import PermissionPrompt
from shim.commands.turn.allow_advice import suggest_allow_rules
from shim.commands.turn.terminal_answers import TerminalAnswerReader
from shim.commands.turn.wakeup import find_console_pipe_descriptor, open_signal_pipe
from shim.core.claude.grammar import is_init_line, is_permission_request
from shim.core.reading.bounded_dict import BoundedDict
from shim.core.reading.lines import LineSplitter
from shim.core.reading.values import escape_control_chars
from shim.process.environment import get_working_directory
from shim.story.model import SessionStepChange, SessionStepTracker, format_content_text
from shim.story.reader import MAX_LINE_BYTES, parse_json_objects
from shim.story.terminal.renderer import TerminalSessionRenderer
from shim.story.terminal.screen import REFRESH_SECONDS

CHUNK_BYTES = 256 * 1024
# The time between the second Ctrl-C and the kill of the drop-in.
# After the kill, the drop-in's watchdog ends the vendor.
KILL_TIMEOUT_S = 1.0
EXIT_TIMEOUT_S = 10.0  # for the drop-in's exit after it closes stdout; it needs at most 2 s
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
MAX_FAILED_CALLS = 1000  # failed tool calls whose results are stored


class TerminalTurnRunner:
    """Runs one turn. `person` reads the answers to permission prompts; if it is None, prompts
    cannot be answered.
    """

    def __init__(self, console: Console, person: TerminalAnswerReader | None = None) -> None:
        self._console = console
        self._person = person
        self._story = SessionStepTracker()
        self._renderer = TerminalSessionRenderer(
            console, self._story, live=True, is_interactive=person is not None
        )
        self._process: subprocess.Popen[bytes]
        self._lines = LineSplitter(MAX_LINE_BYTES)
        self._start_time = time.monotonic()
        self._received_signals: list[int] = []  # signal numbers
        self._has_output = False  # the drop-in has written a line
        self._stopped_early = False  # terminated before its first line
        self._result_line: Mapping[str, Any] | None = None
        self._init_line: Mapping[str, Any] = {}
        self._failed_outputs = BoundedDict[str, str](MAX_FAILED_CALLS)  # call id → output

    def run(self, command: Sequence[str], prompt: str) -> int:
        """Start the drop-in, send `prompt`, and draw the output. Return the drop-in's exit status,
        or 128 plus the number of the signal that ended the turn.
        """
        hidden_typing = (
            nullcontext() if self._person is None else self._person.disable_terminal_echo()
        )
        with (
            hidden_typing,
            selectors.DefaultSelector() as selector,
            open_signal_pipe(SIGNALS, self._received_signals) as signals,
        ):
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
            try:
                self._draw_changes(self._story.add_user_prompt(0.0, prompt))
                self._renderer.show_wait_message("waiting for the agent")
                self._send_line({"type": "user", "message": {"role": "user", "content": prompt}})
                self._read_until_closed(selector, signals)
                return self._finish()
            except BaseException:  # for example, the reader of stdout is gone
                self._stop_process(at_once=True)
                raise
            finally:
                self._renderer.hide_wait_message()

    # -- the output of the drop-in -----------------------------------------------------------------

    def _read_until_closed(self, selector: selectors.BaseSelector, signals: int) -> None:
        """Read the output until the drop-in closes its stdout or a signal ends the turn."""
        output = self._process.stdout
        errors = self._process.stderr
        assert output is not None and errors is not None
        os.set_blocking(errors.fileno(), False)
        selector.register(output, selectors.EVENT_READ)
        selector.register(errors, selectors.EVENT_READ)
        selector.register(signals, selectors.EVENT_READ)
        output_pipe = find_console_pipe_descriptor(self._console)
        if output_pipe is not None:
            selector.register(output_pipe, selectors.EVENT_READ)
        is_listening = False
        while True:
            has_question = self._current_question is not None
            if self._person is not None and is_listening != has_question:
                switch = (
                    selector.register if has_question else lambda file, _: selector.unregister(file)
                )
                switch(self._person.descriptor, selectors.EVENT_READ)
                is_listening = has_question
            ready = {
                key.fileobj
                for key, _ in selector.select(
                    REFRESH_SECONDS if self._console.is_terminal else None
                )
            }
            if output_pipe in ready:  # the reader of stdout has closed the pipe
                raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))
            if signals in ready:
                os.read(signals, CHUNK_BYTES)
                if self._on_signal():
                    return
            if not self._forward_stderr() and errors in ready:
                selector.unregister(errors)
            if output in ready:
                chunk = os.read(output.fileno(), CHUNK_BYTES)
                for line in self._lines.feed(chunk) if chunk else self._lines.close():
                    for event in parse_json_objects(line):
                        self._on_event(event)
                self._renderer.flush()
                if not chunk:
                    self._forward_stderr()
                    return
            if self._person is not None and self._person.descriptor in ready:
                self._read_answer(self._person)
            if not ready:
                self._renderer.flush()

    def _forward_stderr(self) -> bool:
        """Copy the drop-in's pending stderr output. Return False once stderr is closed."""
        assert self._process.stderr is not None
        data = b""
        try:
            while chunk := os.read(self._process.stderr.fileno(), CHUNK_BYTES):
                data += chunk
            is_open = False
        except BlockingIOError:
            is_open = True
        if data and not self._received_signals:
            text = escape_control_chars(data.decode("utf-8", "replace"))
            message = text.partition("\nhint: ")[0].strip("\n")
            self._renderer.hide_wait_message(message.removeprefix("error: "))
            sys.stderr.write(text)
            sys.stderr.flush()
        return is_open

    def _on_event(self, event: Mapping[str, Any]) -> None:
        kind = event.get("type")
        request = event.get("request")
        self._has_output = True
        if self._stopped_early or kind == "control_response":
            return
        if kind == "control_request":
            if isinstance(request, Mapping) and is_permission_request(request):
                self._add_question(str(event.get("request_id")), request)
            return
        if kind == "control_cancel_request" and self._person is not None:
            self._withdraw_question(self._person, event)
            return
        if is_init_line(event):
            self._init_line = event
        if kind == "result":
            if self._received_signals and event.get(
                "is_error"
            ):  # the vendor may report a different cause
                event = {**event, "shim": {"cause": "interrupted"}}
            self._result_line = event
            if self._person is not None:
                self._person.questions.clear()
            self._renderer.end_input_prompt()
        self._draw_changes(self._story.add_claude_event(self._elapsed_s(), event))
        if kind == "result":
            self._renderer.hide_wait_message()
            self._close_stdin()
        elif self._current_question is not None:
            self._renderer.show_input_prompt(self._current_question.format_input_prompt())

    # -- permission prompts ------------------------------------------------------------------------

    @property
    def _current_question(self) -> PermissionPrompt | None:
        """Return the open permission prompt, or None."""
        if self._person is None:
            return None
        return self._person.questions.current

    def _add_question(self, request_id: str, request: Mapping[str, Any]) -> None:
        """Queue a permission prompt. It is shown after all earlier prompts have been answered."""
        if self._person is not None and self._person.questions.add_request(request_id, request):
            self._show_question(self._person)

    def _show_question(self, person: TerminalAnswerReader) -> None:
        """Show the next permission prompt, or hide typed input if there is none."""
        question = person.questions.current
        if question is None:
            person.set_echo(on=False)
            return
        person.discard_typeahead_and_enable_echo()
        line = {
            "type": "control_request",
            "request_id": question.request_id,
            "request": question.request,
        }
        self._draw_changes(self._story.add_claude_event(self._elapsed_s(), line))
        self._renderer.show_input_prompt(question.format_input_prompt())

    def _read_answer(self, person: TerminalAnswerReader) -> None:
        """Read a line from the terminal as the answer to the open permission prompt."""
        choice = person.read_answer()
        question = person.questions.current
        if question is None:
            return
        if choice is None:
            self._renderer.show_input_prompt(question.format_input_prompt())
            return
        answer = question.build_control_response(choice)
        person.questions.remove_resolved_request(question.request_id)
        self._renderer.end_input_prompt()
        self._draw_changes(self._story.add_frontend_message(self._elapsed_s(), answer))
        self._send_line(answer)
        self._show_question(person)

    def _withdraw_question(self, person: TerminalAnswerReader, event: Mapping[str, Any]) -> None:
        """Remove a permission prompt that the drop-in has cancelled."""
        if person.questions.remove_resolved_request(str(event.get("request_id"))):
            self._renderer.end_input_prompt(has_answered=False)
            self._draw_changes(self._story.add_claude_event(self._elapsed_s(), event))
            self._show_question(person)

    # -- signals and exit --------------------------------------------------------------------------

    def _on_signal(self) -> bool:
        """Interrupt the drop-in after the first Ctrl-C. Return True if the turn must end at once,
        which is the case for any other signal.
        """
        if len(self._received_signals) > 1 or self._received_signals[0] != signal.SIGINT:
            return True
        if self._person is not None and self._current_question is not None:
            self._renderer.end_input_prompt(has_answered=False)
            self._person.questions.clear()
            self._person.set_echo(on=False)
        self._renderer.print_notice("Interrupting… press Ctrl-C again to kill the agent.", "yellow")
        self._renderer.show_wait_message("waiting for the agent to stop")
        # Before its first output line, the drop-in may not handle SIGINT yet, and there is no turn
        # to interrupt.
        self._stopped_early = not self._has_output
        self._process.send_signal(signal.SIGTERM if self._stopped_early else signal.SIGINT)
        return False

    def _finish(self) -> int:
        """Draw the end of the turn, stop the drop-in, and return the exit status."""
        at_once = len(self._received_signals) > 1 or self._received_signals[:1] not in (
            [],
            [signal.SIGINT],
        )
        self._draw_changes(self._story.end_open_steps(self._elapsed_s()))
        if self._received_signals and (at_once or self._result_line is None):
            self._renderer.print_notice("■ interrupted" if not at_once else "■ killed", "yellow")
        elif self._result_line is not None and not self._received_signals:
            attended = self._person is not None
            self._print_advice(
                suggest_allow_rules(
                    self._result_line,
                    self._init_line,
                    self._failed_outputs,
                    get_working_directory(),
                    is_attended=attended,
                )
            )
        self._renderer.close()
        self._stop_process(at_once=bool(self._received_signals))
        if self._received_signals:
            return 128 + self._received_signals[0]
        return self._process.wait()

    def _print_advice(self, text: str) -> None:
        if text:
            self._renderer.print_notice(text, "yellow")

    def _stop_process(self, *, at_once: bool) -> None:
        """Wait until the drop-in has exited, and kill it after a timeout. If `at_once` is set,
        terminate it first.
        """
        self._close_stdin()
        process = self._process
        if at_once and process.poll() is None:
            process.send_signal(signal.SIGTERM)
        try:
            process.wait(KILL_TIMEOUT_S if at_once else EXIT_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        for pipe in (process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()

    # -- helpers -----------------------------------------------------------------------------------

    def _elapsed_s(self) -> float:
        return time.monotonic() - self._start_time

    def _draw_changes(self, changes: Sequence[SessionStepChange]) -> None:
        for change in changes:
            self._renderer.draw_step_change(change)
            if change.phase == "end" and change.step.outcome in ("failed", "denied"):
                self._failed_outputs[change.step.call] = format_content_text(change.step.output)

    def _send_line(self, value: Mapping[str, Any]) -> None:
        """Send a line to the drop-in, which may have exited already."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(value).encode() + b"\n")
            self._process.stdin.flush()
        except (BrokenPipeError, ValueError):
            return  # the output shows how the drop-in ended

    def _close_stdin(self) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.close()
        except BrokenPipeError:
            return
