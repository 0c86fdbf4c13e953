"""Turns the input of a person or a script into frames for a background session's host. Does no I/O."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from shim.commands.sessions.terminal import keys
from shim.commands.sessions.terminal.keys import KeyboardInputText, LineEditor
from shim.commands.sessions.terminal.question_prompt import (
    CHOICES_BY_LINE,
    Decision,
    QuestionPrompt,
)
from shim.commands.sessions.terminal.session_view import SessionView
from shim.core.reading.bounded_dict import BoundedDict
from shim.core.reading.values import get_text, none_if_empty
from shim.io.ids import create_uuid
from shim.story.terminal.arguments import format_text_on_one_truncated_line

# For this time after a prompt opens, keys are not treated as answers, because they were probably
# typed as part of a message.
ANSWER_GRACE_S = 0.5
ANSWER_WORD_TIMEOUT_S = 5.0  # for typing the rest of an answer word after its first key
DOUBLE_INTERRUPT_S = 2.0  # the longest time between two Ctrl-C that detach
MAX_PENDING_FRAMES = 1000  # stored frames that the host has not answered
REPLY_KINDS = ("accepted", "refused")
_LINE_ENDS = (keys.ENTER, keys.NEWLINE)

Frame = Mapping[str, Any]


class TerminalInputController:
    """Turns input into frames for the host process. `write_frame` sends a frame to the host.
    `has_left` is set when the user detaches; the session continues.
    """

    def __init__(self, view: SessionView, clock: Callable[[], float]) -> None:
        self.view = view
        self.editor = LineEditor()
        self.prompt = QuestionPrompt("")
        self.has_left = False
        self.has_failed = False  # a frame or a line had no effect
        # The user has pressed Tab to type a message while a prompt is open.
        self.is_composing = False
        # Message id → text of sent messages that the host has not replayed yet.
        self.pending_messages = BoundedDict[str, str](MAX_PENDING_FRAMES)
        # Frame id → sent frame that the host has not answered yet.
        self._pending_frames = BoundedDict[str, Frame](MAX_PENDING_FRAMES)
        self.write_frame: Callable[[Frame], None] = lambda frame: None
        self._clock = clock
        self._current_prompt = ("", 0.0)  # the id of the open prompt and its start time
        self._answered_id = ""  # the id of the prompt that this client has answered
        self._answer_key = ""  # the last answer key; "" after the next line
        self._answer_time = 0.0
        self._last_interrupt = float("-inf")  # when Ctrl-C was last pressed

    @property
    def has_no_unanswered_frames(self) -> bool:
        """Return whether the host has answered all frames."""
        return not self._pending_frames

    @property
    def accepts_answer_key(self) -> bool:
        """Return whether a single key would answer the open permission prompt now."""
        if self.editor.text or not self._can_answer:
            return False
        return not self.is_prompt_in_answer_grace_period

    @property
    def is_prompt_in_answer_grace_period(self) -> bool:
        """Return whether the permission prompt opened less than ANSWER_GRACE_S ago."""
        prompt_id, since = self._current_prompt
        if not prompt_id:
            return False
        return self._clock() - since < ANSWER_GRACE_S

    def on_host_frame(self, frame: Frame) -> None:
        """Handle a frame from the host."""
        kind = frame["kind"]
        if kind == "welcome":
            self.prompt = QuestionPrompt(get_text(frame, "cwd"))
            # After a reconnect, unanswered frames are sent again. Receiving a frame twice is harmless.
            for pending_frame in list(self._pending_frames.values()):
                self.write_frame(pending_frame)
        elif kind == "question" and isinstance(frame.get("request"), Mapping):
            self.prompt.add_request(str(frame.get("question")), frame["request"])
        elif kind == "line" and isinstance(line := frame.get("line"), Mapping):
            self.pending_messages.pop(str(line.get("uuid")), None)
        elif kind == "settled":
            self._resolve_prompt(str(frame.get("question")))
        self.view.on_host_frame(frame)
        if kind in REPLY_KINDS:
            self._on_reply(frame)
        if self.prompt.request_id != self._current_prompt[0]:
            self._current_prompt = (self.prompt.request_id, self._clock())
            self.is_composing = False

    def _resolve_prompt(self, prompt_id: str) -> None:
        """Close a permission prompt that this or another client has answered."""
        self.prompt.remove_resolved_request(prompt_id)
        for request_id, frame in list(self._pending_frames.items()):
            if frame["kind"] == "answer" and frame["question"] == prompt_id:
                del self._pending_frames[request_id]

    def _on_reply(self, reply: Frame) -> None:
        """Handle the host's reply to a frame from this client."""
        request_id = str(reply.get("id"))
        request = self._pending_frames.pop(request_id, None) or {}
        if reply["kind"] == "accepted":
            self._report_done(request)
            return
        text = self.pending_messages.pop(request_id, "")
        if text and not self.editor.text:
            self.editor.set_text(text)
        self._answered_id = ""
        hint = ""
        if reply.get("driver"):
            hint = "; Ctrl-T takes control"
        reason = get_text(reply, "text", get_text(reply, "reason"))
        self._report_problem(f"{format_text_on_one_truncated_line(reason)}{hint}")

    def _report_problem(self, text: str) -> None:
        """Print why a frame or a line has no effect."""
        self.has_failed = True
        self.view.draw_shim_notice(f"✗ {text}")

    def _report_done(self, request: Frame) -> None:
        """Print the effect of a slash command if no session line will show it."""
        if request.get("kind") == "model":
            model = format_text_on_one_truncated_line(request["model"] or "the default model")
            self.view.draw_shim_notice(f"· model from the next turn: {model}")
        elif request.get("kind") == "mode" and request["mode"] == self.view.mode:
            self.view.draw_shim_notice(
                "· the permission mode is already "
                f"{format_text_on_one_truncated_line(request['mode'])}"
            )
        elif request.get("kind") == "release":
            self.view.draw_shim_notice(
                "· control released; the next client that sends a message takes control", "dim"
            )

    # -- input -------------------------------------------------------------------------------------

    def handle_pressed_keys(self, pressed_keys: list[str]) -> None:
        """Handle the keys that arrived in one read."""
        if (
            len(pressed_keys) == 1
            and pressed_keys[0].__class__ is KeyboardInputText
            and self.accepts_answer_key
        ):
            decision = self.prompt.parse_decision_key(pressed_keys[0])
            if decision is not None:
                self._answer_key, self._answer_time = pressed_keys[0], self._clock()
                self.send_answer(decision)
                return
        if self._is_answer_line(pressed_keys):
            self._refuse_answer_line()
            return
        for key in pressed_keys:
            self._press_key(key)

    @property
    def _can_answer(self) -> bool:
        """Return whether an unanswered permission prompt is open and can be answered with a key.
        While a message is being typed after Tab, keys do not answer prompts.
        """
        if not self.prompt.list_key_hints() or self.prompt.request_id == self._answered_id:
            return False
        return not self.is_composing

    def _is_answer_line(self, pressed_keys: list[str]) -> bool:
        """Return whether the keys of one read are answer words with Enter, such as "yes", while a
        prompt is open.

        Such keys arrived together, so the user cannot have seen a prompt that opened between them.
        They are neither an answer nor a message.
        """
        if not self._can_answer or self.editor.text:
            return False
        if not all(isinstance(key, KeyboardInputText) or key in _LINE_ENDS for key in pressed_keys):
            return False
        lines = (
            "".join(key if isinstance(key, KeyboardInputText) else "\n" for key in pressed_keys)
            .lower()
            .split("\n")
        )
        texts = [line.strip() for line in lines if line.strip()]
        if len(lines) <= 1:
            return False
        if not texts:
            return False
        return all(text in CHOICES_BY_LINE for text in texts)

    def _refuse_answer_line(self) -> None:
        self.view.draw_shim_notice(
            "✗ not answered: press only the key of the answer, without Enter. Press Tab to "
            "type a message"
        )

    def _press_key(self, key: str) -> None:
        was_composing = self.is_composing
        if key == keys.CTRL_C:
            self.interrupt_turn()
        elif key in (keys.CTRL_D, keys.CTRL_Z) and not self.editor.text:
            self.has_left = True
        elif key == keys.CTRL_T:
            self.send_frame({"kind": "take"})
        elif key == keys.TAB and not self.editor.text:
            self.is_composing = not self.is_composing
        elif (text := self.editor.apply_key_and_take_message(key)) is not None:
            if self._can_answer and text.strip().lower() in CHOICES_BY_LINE:
                self._refuse_answer_line()  # the answer was typed before the prompt appeared
                return
            self.is_composing = False
            if text.strip() and (was_composing or not self._ends_answer(text)):
                self._submit_line(text)

    def _ends_answer(self, text: str) -> bool:
        """Return whether a line completes an answer whose first key was already used. For example,
        "es" completes "yes" after "y".
        """
        key = self._answer_key
        self._answer_key = ""
        is_recent = self._clock() - self._answer_time < ANSWER_WORD_TIMEOUT_S
        if not key:
            return False
        if not is_recent:
            return False
        return (key + text.strip()).lower() in CHOICES_BY_LINE

    def _submit_line(self, text: str) -> None:
        """Handle a completed line: a slash command, an answer to a form, or the next message."""
        if self._run_slash_command(text):
            return
        if self.prompt.form is not None:
            self.submit_piped_input_line(text)
        else:
            self.send_message(text)

    def submit_piped_input_line(self, text: str) -> None:
        """Handle a line of piped input. The line answers the open prompt if it is a valid answer.
        Otherwise it is sent as a message.
        """
        if not text.strip() or self._run_slash_command(text):
            return
        has_open_prompt = self.prompt.request_id and self.prompt.request_id != self._answered_id
        if has_open_prompt:
            decision, problem = self.prompt.parse_decision_line(text)
        else:
            decision = None
            problem = ""
        if problem:
            self._report_problem(problem)
        elif decision is not None:
            self.send_answer(decision)
        elif not has_open_prompt or self.prompt.form is None:
            self.send_message(text)

    def _run_slash_command(self, text: str) -> bool:
        """Run a slash command of this terminal. Return False for any other line, which is sent to
        the agent.
        """
        name, _, argument = text.strip().partition(" ")
        command = _SLASH_COMMANDS.get(name)
        if command is None:
            return False
        if command.argument == REQUIRED_ARGUMENT and not argument.strip():
            self._report_problem(f"{name} {command.argument} {command.description}")
        else:
            command.run(self, argument.strip())
        return True

    # -- frames for the host -----------------------------------------------------------------------

    def send_message(self, text: str) -> None:
        """Send a message. During a turn, the message waits for the next turn or steers the current
        turn.
        """
        if not self.view.can_control:
            self.editor.set_text(text)
            controller = format_text_on_one_truncated_line(str(self.view.controller))
            self._report_problem(
                f"{controller} has control: press Ctrl-T or type /take to take control"
            )
            return
        request_id = create_uuid()
        self.pending_messages[request_id] = text
        self.send_frame(
            {"kind": "message", "id": request_id, "message": {"role": "user", "content": text}}
        )

    def send_answer(self, decision: Decision) -> None:
        """Send the answer to the open permission prompt."""
        self._answered_id = self.prompt.request_id
        self.send_frame({"kind": "answer", "question": self._answered_id, "decision": decision})

    def interrupt_turn(self) -> None:
        """Interrupt the turn after Ctrl-C. A second Ctrl-C detaches from the session."""
        now = self._clock()
        is_second = now - self._last_interrupt < DOUBLE_INTERRUPT_S
        self._last_interrupt = now
        if is_second:
            self.has_left = True
        elif self.view.is_busy:
            self.send_frame({"kind": "interrupt"})
            self.view.draw_shim_notice(
                "Interrupting… press Ctrl-C again to detach; the session keeps running"
            )
        elif self.editor.text:
            self.editor.set_text("")
        else:
            self.view.draw_shim_notice(
                "press Ctrl-C again to detach; the session keeps running", "dim"
            )

    def show_help(self) -> None:
        """List the slash commands of this terminal."""
        usages = [f"{name} {command.argument}".strip() for name, command in _SLASH_COMMANDS.items()]
        widest = max(map(len, usages))
        for usage, command in zip(usages, _SLASH_COMMANDS.values(), strict=True):
            self.view.draw_shim_notice(f"{usage:{widest}}  {command.description}", "dim")
        self.view.draw_shim_notice("any other /command is sent to the agent", "dim")

    def decline_prompt(self) -> None:
        """Deny the open permission prompt."""
        if self.prompt.request_id:
            self.send_answer(self.prompt.build_denial_decision())
        else:
            self._report_problem("there is no open prompt for /no")

    def leave_session(self) -> None:
        """Detach from the session, which continues."""
        self.has_left = True

    def send_frame(self, fields: Frame) -> None:
        """Send a frame to the host, and store the frame until the host has answered."""
        frame = {"id": create_uuid(), **fields}
        self._pending_frames[frame["id"]] = frame
        self.write_frame(frame)


REQUIRED_ARGUMENT = "MODE"  # the name of the only argument that a user must type


class SlashCommand(NamedTuple):
    """A slash command of the terminal: its function, its argument name, and its description."""

    run: Callable[[TerminalInputController, str], None]
    argument: str
    description: str


_SLASH_COMMANDS: Mapping[str, SlashCommand] = {
    "/help": SlashCommand(
        lambda input_controller, _: input_controller.show_help(), "", "lists these"
    ),
    "/take": SlashCommand(
        lambda input_controller, _: input_controller.send_frame({"kind": "take"}),
        "",
        "takes control from another client; also Ctrl-T",
    ),
    "/release": SlashCommand(
        lambda input_controller, _: input_controller.send_frame({"kind": "release"}),
        "",
        "releases control",
    ),
    "/mode": SlashCommand(
        lambda input_controller, argument: input_controller.send_frame(
            {"kind": "mode", "mode": argument}
        ),
        REQUIRED_ARGUMENT,
        "sets the permission mode",
    ),
    "/model": SlashCommand(
        lambda input_controller, argument: input_controller.send_frame(
            {"kind": "model", "model": none_if_empty(argument)}
        ),
        "[NAME]",
        "sets the model; without a name, the default model",
    ),
    "/no": SlashCommand(
        lambda input_controller, _: input_controller.decline_prompt(),
        "",
        "declines the agent's question",
    ),
    "/leave": SlashCommand(
        lambda input_controller, _: input_controller.leave_session(),
        "",
        "detaches; the session keeps running",
    ),
}
