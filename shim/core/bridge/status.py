"""The facts of a session that its hub knows, and where it stands (background page, section 3)."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from shim.core.claude.permissions import DESCRIPTION_KEYS, ELICITATION_SUBTYPE, QUESTION_TOOL
from shim.core.reading.diagnostics import escape_control_chars
from shim.core.reading.ids import shorten_session_id
from shim.core.reading.lines import MAX_LINE_BYTES

MAX_DETAIL_CHARS = 200
MAX_NAME_CHARS = 80  # of a session that was given no name: the beginning of its first message
STARTING_TEXT = "starting…"
START_HINT = "send a prompt to start"
CONTINUE_HINT = "send a prompt to go on"
INTERRUPTED_DETAIL = "interrupted"
TIMEOUT_HINT = "nobody answered in time ({question}); {next}"
STOPPED_STATE = "stopped"


class BackgroundSessionInfo(NamedTuple):
    """What a client is told of a session, and what holds for it.

    session_id        its UUID; its short id is how that begins
    model, mode       what the session began with; both change as the conversation says so
    can_bypass        it began with bypassPermissions, so that this mode may be chosen
    answer_policy     who may answer questions: "any" who may drive, or the "owner", who drives or
                      drove last
    prompt_timeout_s  a question that waits for longer is denied. The conversation has to wait a
                      little longer than that: of two clocks only one may settle a question
    max_frame_bytes   no frame of a client is longer
    """

    session_id: str
    vendor: str = ""
    name: str = ""
    cwd: str = ""
    model: str | None = None
    mode: str = "default"
    pid: int = 0
    version: str = ""
    can_bypass: bool = False
    answer_policy: str = "any"
    prompt_timeout_s: float = float("inf")
    max_frame_bytes: int = MAX_LINE_BYTES

    def build_welcome_fields(self) -> dict[str, Any]:
        """The keys of a `welcome` frame."""
        return {
            "session": self.session_id,
            "id": shorten_session_id(self.session_id),
            "name": self.name,
            "vendor": self.vendor,
            "cwd": self.cwd,
            "model": self.model,
            "mode": self.mode,
            "bypass": self.can_bypass,
            "pid": self.pid,
            "version": self.version,
        }


def derive_session_name(message: Mapping[str, Any]) -> str:
    """The name of a session that was given none, by its first message."""
    content = message.get("content")
    if isinstance(content, list):
        content = next(
            (
                block.get("text")
                for block in content
                if isinstance(block, dict) and block.get("text")
            ),
            None,
        )
    return " ".join(content.split())[:MAX_NAME_CHARS] if isinstance(content, str) else ""


def shorten_first_line(text: object) -> str:
    """The first line of a text, short and printable."""
    line = next((line for line in str(text or "").splitlines() if line.strip()), "") if text else ""
    line = escape_control_chars(line[: 4 * MAX_DETAIL_CHARS]).strip()
    return line if len(line) <= MAX_DETAIL_CHARS else line[: MAX_DETAIL_CHARS - 1] + "…"


def describe_tool_call(tool: object, tool_input: object) -> str:
    """A call in a line: its tool, and what it is about."""
    fields = tool_input if isinstance(tool_input, dict) else {}
    values = (
        fields[key]
        for key in ("command", *DESCRIPTION_KEYS)
        if isinstance(fields.get(key), str) and fields[key]
    )
    subject = next(values, "")
    return shorten_first_line(f"{tool}: {subject}" if subject else tool)


def describe_prompt(request: Mapping[str, Any]) -> str:
    """What a question wants of a person."""
    if request.get("tool_name") != QUESTION_TOOL:
        if request.get("subtype") == ELICITATION_SUBTYPE:
            return shorten_first_line(f"answer: {request.get('message')}")
        return shorten_first_line(
            f"approve {describe_tool_call(request.get('tool_name'), request.get('input'))}"
        )
    tool_input = request.get("input")
    questions = tool_input.get("questions") if isinstance(tool_input, dict) else None
    first_question = (
        questions[0]
        if isinstance(questions, list) and questions and isinstance(questions[0], dict)
        else {}
    )
    options = first_question.get("options")
    labels = (
        [str(option.get("label")) for option in options if isinstance(option, dict)]
        if isinstance(options, list)
        else []
    )
    return shorten_first_line(
        f"answer: {first_question.get('question')}" + (f" ({' · '.join(labels)})" if labels else "")
    )


def _is_stopped_result(result: Mapping[str, Any]) -> bool:
    """Whether the session was told to end in the middle of this turn. A child that another signal
    ended has its name there: that is a failure, which nobody of ours wanted."""
    shim_fields = result.get("shim")
    return (
        isinstance(shim_fields, dict)
        and shim_fields.get("cause") == "signal"
        and not shim_fields.get("signal")
    )


class SessionStatus:
    """`is_turn_active`: a turn runs."""

    def __init__(self) -> None:
        self.is_turn_active = False
        self._end_state = ""
        self._state = "blocked"
        self._needs = START_HINT
        self._detail = ""
        self._timed_out_prompt = ""  # the first question of this turn that nobody answered in time

    def build_status_fields(
        self, prompt_requests: Sequence[Mapping[str, Any]] = (), has_messages: bool = False
    ) -> dict[str, Any]:
        """The keys of `host.json` and of a `state` frame.

        `prompt_requests` are the requests of the questions that are open, in their order;
        `has_messages` wait for their turn.
        """
        if self._end_state:
            return self._build_status(None, None, self._end_state, "")
        if prompt_requests:
            first_request = prompt_requests[0]
            is_question = (
                first_request.get("tool_name") == QUESTION_TOOL
                or first_request.get("subtype") == ELICITATION_SUBTYPE
            )
            return self._build_status(
                "waiting",
                "input needed" if is_question else "permission prompt",
                "blocked",
                describe_prompt(first_request),
            )
        if self.is_turn_active or has_messages:
            return self._build_status("busy", None, "working", "")
        return self._build_status("idle", None, self._state, self._needs)

    def _build_status(
        self, status: str | None, waiting_for: str | None, state: str, needs: str
    ) -> dict[str, Any]:
        return {
            "state": state,
            "status": status,
            "waitingFor": waiting_for,
            "needs": needs or None,
            "detail": self._detail or None,
        }

    def record_waiting_message(self) -> None:
        """A message waits for its turn."""
        if not self.is_turn_active:
            self._detail = STARTING_TEXT

    def record_prompt_timeout(self, request: Mapping[str, Any]) -> None:
        """Record that a question of this turn was denied because it was not answered in time."""
        self._timed_out_prompt = self._timed_out_prompt or describe_prompt(request)

    def record_stream_json_line(self, line: Mapping[str, Any]) -> None:
        """A whole line of the conversation."""
        kind = line.get("type")
        if kind == "result":
            self._record_result(line)
            self.is_turn_active = False
        elif kind in ("user", "assistant") or (kind == "system" and line.get("subtype") == "init"):
            self.is_turn_active = True
        if kind == "assistant" and line.get("parent_tool_use_id") is None:
            self._record_assistant_line(line)

    def _record_assistant_line(self, line: Mapping[str, Any]) -> None:
        message = line.get("message")
        blocks = message.get("content") if isinstance(message, dict) else None
        for block in blocks if isinstance(blocks, list) else ():
            if isinstance(block, dict) and block.get("type") == "tool_use":
                self._detail = describe_tool_call(block.get("name"), block.get("input"))
            elif isinstance(block, dict) and block.get("type") == "text":
                self._detail = shorten_first_line(block.get("text")) or self._detail

    def _record_result(self, line: Mapping[str, Any]) -> None:
        errors = line.get("errors")
        result_text = line.get("result") or (
            errors[0] if isinstance(errors, list) and errors else ""
        )
        self._needs = ""
        if _is_stopped_result(line):
            self._state = self._detail = STOPPED_STATE
        elif str(line.get("terminal_reason")).startswith("aborted"):
            self._state, self._needs, self._detail = "blocked", CONTINUE_HINT, INTERRUPTED_DETAIL
        elif line.get("is_error") is True or line.get("subtype") != "success":
            self._state, self._detail = (
                "failed",
                shorten_first_line(result_text) or str(line.get("subtype")),
            )
        else:
            self._state, self._detail = "done", shorten_first_line(result_text) or self._detail
            if self._timed_out_prompt:
                self._state = "blocked"
                self._needs = TIMEOUT_HINT.format(
                    question=self._timed_out_prompt, next=CONTINUE_HINT
                )
        self._timed_out_prompt = ""

    def record_session_end(self, failure: str = "", *, has_messages: bool = False) -> None:
        """The session is over; `failure` says why, where nobody stopped it. `has_messages` waited
        for their turn.
        """
        if failure:
            self._end_state, self._detail = "failed", shorten_first_line(failure)
        elif self.is_turn_active or has_messages or self._state == "blocked":
            self._end_state = STOPPED_STATE
        else:
            self._end_state = self._state
        self._needs, self.is_turn_active = "", False
