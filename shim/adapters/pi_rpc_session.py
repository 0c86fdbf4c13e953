"""One pi that is driven by its RPC: what it was asked, and what it asks (pi page, section 5).

Sans-IO: each method gives the bytes of whole lines. A session is known once two questions are
answered, and a message that comes earlier waits. Nothing is said to a pi in which our extension is
not at work: it would ask about no call.
"""

from collections.abc import Mapping

from shim.adapters.pi_dialogs import build_dialog_answer, build_dialog_form
from shim.core.claude.messages import TEXT_ONLY_KINDS, BlockKinds, UserMessage
from shim.core.reading.json_text import dump_json
from shim.core.reading.typed import Any, NamedTuple
from shim.core.reading.values import as_dict
from shim.profiles.rpc.form import OpenElicitationForms, build_ask_user_question_input

MAX_REQUESTS = 1000  # of ours that are open, and of pi's that wait for their answer
IMAGE_KINDS: BlockKinds = frozenset(("image",))
# What an answer is about. What is on the first line keeps a message from being said.
STATE, COMMANDS, SETTING = "state", "commands", "setting"
PROMPT, STEER, ABORT, IDLE_CHECK, CLEAR = "prompt", "steer", "abort", "rest", "clear"
# The same for a recording, in which our half is not known.
STEPS_BY_COMMAND = {
    **{
        "get_state": STATE,
        "get_commands": COMMANDS,
        "set_model": SETTING,
        "set_thinking_level": SETTING,
    },
    **{"prompt": PROMPT, "abort": ABORT, "clear_queue": CLEAR},
}
# of thinking, behind a model's name
THINKING_LEVELS = frozenset(("off", "minimal", "low", "medium", "high", "xhigh", "max"))
# commands that are texts for the model; others are programs of an extension
TEXT_COMMAND_SOURCES = ("prompt", "skill")


class PiRunParams(NamedTuple):
    """How it was started: its working directory, and what is known of the frontend.

    must_ask        nothing is said to it unless our extension is there
    chooses_model   it was not told a model
    can_ask_person  the frontend can be asked a question to the person
    """

    cwd: str = ""
    must_ask: bool = False
    chooses_model: bool = False
    can_ask_person: bool = False


class PiResponse(NamedTuple):
    """An answer: what it is about, and its data, or why pi did not do it."""

    step: str
    data: Mapping[str, Any]
    error: str = ""


class PiRpcSession:
    """One pi. It is greeted again when another child takes its place."""

    def __init__(self) -> None:
        self._reset()

    def _reset(self) -> None:
        self.outbox: list[bytes] = []
        self.params = PiRunParams()
        self.session_id = ""
        self.model = ""
        self._default_model = ""  # the model that it chose by itself, as it is told one
        self.accepted_block_kinds: BlockKinds = IMAGE_KINDS
        self.text_commands: tuple[str, ...] = ()  # commands that a message may begin with
        self.is_greeted = False  # False where a recording is read
        self.is_extension_loaded = False  # our extension has said that it is there
        self.has_early_dialog = False  # another extension has opened a dialog while it started
        self.is_running = False
        self.is_stopping = False
        self.can_accept_prompts = True
        self.undelivered_count = 0  # messages into the run that pi did not take, or gave back
        self._has_steered = False
        self._open_steps: dict[str, str] = {}
        self._request_number = 0
        self._waiting_message: UserMessage | None = None
        self._open_questions: set[str] = set()
        self.forms = (
            OpenElicitationForms()
        )  # dialogs of other extensions that the person is asked with

    def encode_handshake(self, params: PiRunParams) -> bytes:
        self._reset()  # another child knows nothing of what was before
        self.is_greeted, self.params = True, params
        return self._encode_request(STATE, "get_state") + self._encode_request(
            COMMANDS, "get_commands"
        )

    # -- what it is told ---------------------------------------------------------------------------

    def encode_prompt(self, message: UserMessage) -> bytes:
        """The message of a turn; nothing yet while it has to wait."""
        self.is_stopping = self._has_steered = False
        self.undelivered_count = 0
        if not self._is_ready:
            self._waiting_message = message
            return b""
        self._waiting_message = None
        # behind what an extension may have begun by itself
        return self._encode_message(PROMPT, message, "followUp")

    def encode_steering_message(self, message: UserMessage) -> bytes | None:
        """A message into the run, which begins another one if the run has just ended; None while
        there is none.
        """
        if not (self.is_running and self._is_ready) or self.is_stopping:
            return None
        self._has_steered = True
        return self._encode_message(STEER, message, "steer")

    def encode_abort(self) -> bytes:
        """Stop the run; pi answers when it has stopped. A message that waits is never said.

        What was said into the run and is not read yet is asked back: 0.73 keeps it for the next
        message.
        """
        self._waiting_message, self.is_stopping = None, True
        return (
            self._encode_request(CLEAR, "clear_queue") if self._has_steered else b""
        ) + self._encode_request(ABORT, "abort")

    def encode_model_change(self, name: str | None) -> bytes | None:
        """`provider/model`, and a level of thinking behind a colon; None is its own.

        Gives back None for a name that pi would have to look for.
        """
        provider, separator, model = (self._default_model if name is None else name).partition("/")
        if not separator:
            return None
        level = model.rpartition(":")[2]
        if level not in THINKING_LEVELS:
            return self._encode_request(SETTING, "set_model", provider=provider, modelId=model)
        model = model.rpartition(":")[0]
        return self._encode_request(
            SETTING, "set_model", provider=provider, modelId=model
        ) + self.encode_thinking_level(level)

    def encode_thinking_level(self, level: str) -> bytes:
        """How much its model is to think."""
        return self._encode_request(SETTING, "set_thinking_level", level=level)

    def encode_idle_state_request(self) -> bytes:
        """Ask whether a run goes on: a message that an extension has answered begins none."""
        return self._encode_request(IDLE_CHECK, "get_state")

    @property
    def is_starting(self) -> bool:
        """Whether it has not yet answered who it is: before that it runs what its extensions do at
        the start.
        """
        return STATE in self._open_steps.values()

    @property
    def _is_ready(self) -> bool:
        """Whether pi can be given a message."""
        return bool(self.session_id) and not {STATE, COMMANDS, SETTING}.intersection(
            self._open_steps.values()
        )

    @property
    def has_pending_prompt(self) -> bool:
        """Whether it is not known yet if a message of ours begins a run."""
        return not {PROMPT, IDLE_CHECK}.isdisjoint(self._open_steps.values())

    @property
    def has_pending_abort_or_steering(self) -> bool:
        """Whether an answer is to come that belongs to the run: to an abort, or to a message into
        it.
        """
        return not {STEER, ABORT}.isdisjoint(self._open_steps.values())

    # -- what it says ------------------------------------------------------------------------------

    def read_response(self, response: Mapping[str, Any]) -> PiResponse | None:
        """An answer of pi's; None for one to nothing that was asked."""
        step = self._open_steps.pop(str(response.get("id")), None)
        if step is None and not self.is_greeted:
            step = STEPS_BY_COMMAND.get(str(response.get("command")))
        if step is None:
            return None
        data = response.get("data")
        result = PiResponse(step, as_dict(data))
        if response.get("success") is not True:
            result = result._replace(
                error=str(response.get("error") or f"pi refused {response.get('command')}")
            )
        result = self._apply_response(result)
        if result.error and step in (STATE, SETTING):
            self._waiting_message, self.can_accept_prompts = None, False
        if self._is_ready and self._waiting_message is not None:
            self.outbox.append(self.encode_prompt(self._waiting_message))
        return result

    def _apply_response(self, response: PiResponse) -> PiResponse:
        """The same, once what it says of the session is known here."""
        data = response.data
        if response.step == STATE and not response.error:
            if self.params.must_ask and not self.is_extension_loaded:
                return response._replace(error="ungated")
            model = data.get("model")
            self.session_id = str(data.get("sessionId") or "")
            if isinstance(model, dict):
                self.model = str(model.get("id") or "")
                self._default_model = (
                    f"{model.get('provider')}/{self.model}" if self.params.chooses_model else ""
                )
                self.accepted_block_kinds = (
                    IMAGE_KINDS if "image" in (model.get("input") or ()) else TEXT_ONLY_KINDS
                )
        elif response.step == STEER:
            self.undelivered_count += bool(response.error)
        elif response.step == CLEAR:
            returned = data.get("steering")
            self.undelivered_count += len(returned) if isinstance(returned, list) else 0
        elif response.step == COMMANDS:
            raw_commands = data.get("commands")
            commands = (
                [command for command in raw_commands if isinstance(command, dict)]
                if isinstance(raw_commands, list)
                else []
            )
            programs = {
                command.get("name")
                for command in commands
                if command.get("source") not in TEXT_COMMAND_SOURCES
            }
            self.text_commands = tuple(
                str(command["name"])
                for command in commands
                if command.get("name") not in {None, *programs}
            )
        return response

    # -- what it asks ------------------------------------------------------------------------------

    def add_permission_request(self, request_id: str) -> bool:
        """Keep a question until `encode_permission_response`; False where too many are open."""
        if len(self._open_questions) >= MAX_REQUESTS:
            return False
        self._open_questions.add(request_id)
        return True

    def register_extension_dialog(
        self, request_id: str, call_id: str, dialog: Mapping[str, Any]
    ) -> Mapping[str, Any] | None:
        """Keep a dialog of another extension until `encode_form_answer`; the arguments of Claude's
        question.

        None where the person cannot be asked.
        """
        dialog_form = build_dialog_form(dialog)
        tool_input = (
            build_ask_user_question_input(dialog_form)
            if self.params.can_ask_person and len(self.forms.requests) < MAX_REQUESTS
            else None
        )
        if tool_input is not None:
            self.forms.requests[request_id] = request_id, call_id, dialog_form
        return tool_input

    def encode_form_answer(
        self,
        request_id: str,
        answered_input: Mapping[str, Any] | None,
        *,
        allow: bool,
        interrupt: bool,
    ) -> bytes | None:
        """The answer to a dialog, by the arguments of Claude's question that came back; None for
        what is none.
        """
        if request_id not in self.forms.requests:
            return None
        form_answer = self.forms.close_form_with_response(
            request_id, answered_input, allow=allow, ends_turn=interrupt
        )
        return _encode_line(
            type="extension_ui_response", id=request_id, **build_dialog_answer(form_answer)
        )

    def encode_permission_response(self, request_id: str, answer: Mapping[str, Any]) -> bytes:
        if request_id not in self._open_questions:
            return b""
        self._open_questions.discard(request_id)
        return _encode_line(
            type="extension_ui_response", id=request_id, value=dump_json(answer).decode()
        )

    @staticmethod
    def encode_cancelled_dialog_response(request_id: object) -> bytes:
        """The answer to a dialog that nobody sees: it was closed."""
        return _encode_line(type="extension_ui_response", id=request_id, cancelled=True)

    # -- lines -------------------------------------------------------------------------------------

    def _encode_message(self, step: str, message: UserMessage, behaviour: str) -> bytes:
        images = [
            {"type": "image", "data": part.data, "mimeType": part.media_type}
            for part in message.select_blocks(self.accepted_block_kinds)
            if part.kind == "image"
        ]
        options = {"images": images} if images else {}
        return self._encode_request(
            step,
            "prompt",
            message=self._escape_command(message.text),
            streamingBehavior=behaviour,
            **options,
        )

    def _escape_command(self, text: str) -> str:
        """A command that is a program of an extension would run, and ask nobody: it is a text like
        any other.
        """
        name = text[1:].split(maxsplit=1)[:1]
        return (
            f"\\{text}"
            if text.startswith("/") and not set(name) & set(self.text_commands)
            else text
        )

    def _encode_request(self, step: str, kind: str, **fields: object) -> bytes:
        self._request_number += 1
        request_id = f"shim-{self._request_number}"
        if len(self._open_steps) < MAX_REQUESTS:
            self._open_steps[request_id] = step
        return _encode_line(id=request_id, type=kind, **fields)


def _encode_line(**message: object) -> bytes:
    return dump_json(message) + b"\n"
