"""Session data that a hub sends to its clients: the session's name, settings and status.

The status has the same keys and values as the output of `claude agents --json`.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from shim.core.claude.grammar import (
    find_first_text,
    get_parent_call_id,
    get_result_text,
    is_init_line,
    list_content_blocks,
)
from shim.core.claude.permissions import DESCRIPTION_KEYS, ELICITATION_SUBTYPE, QUESTION_TOOL
from shim.core.reading import MAX_LINE_BYTES
from shim.core.reading.values import (
    as_dict,
    as_list,
    as_str,
    escape_control_chars,
    get_text,
    shorten_end,
    shorten_session_id,
)

MAX_DETAIL_CHARS = 200
MAX_NAME_CHARS = 80  # the maximum length of a derived session name
STARTING_TEXT = "starting…"
WORKING_TEXT = "working…"
# Markdown: marks at the start of a line, strong text and code.
_LINE_MARKS = re.compile(r"(?:#{1,6}|>|[-*+])\s+")
_TEXT_MARKS = re.compile(r"\*\*(\w[^*]*)\*\*|`([^`]+)`")
START_HINT = "send a prompt to start"
CONTINUE_HINT = "send a prompt to continue"
INTERRUPTED_DETAIL = "interrupted"
TIMEOUT_HINT = "no answer in time ({question}); {next}"
STOPPED_STATE = "stopped"


class BackgroundSessionInfo(NamedTuple):
    """A background session's properties, which its clients receive, and its limits."""

    session_id: str  # a UUID
    vendor: str = ""
    name: str = ""
    cwd: str = ""
    model: str | None = None  # changes, like `mode`, when the conversation reports a new value
    mode: str = "default"
    pid: int = 0
    version: str = ""
    # The vendor reads Claude's settings files itself, so the host reloads them for a client.
    # Otherwise, the conversation reloads them.
    has_vendor_settings: bool = False
    can_bypass: bool = False  # the mode bypassPermissions can be selected
    answer_policy: str = "any"  # "owner" if only the current or last controller answers prompts
    # The hub denies prompts after this time. The conversation waits longer, so that only the hub
    # denies prompts.
    prompt_timeout_s: float = float("inf")
    max_frame_bytes: int = MAX_LINE_BYTES  # the maximum size of a client's frame

    def build_welcome_frame_fields(self) -> dict[str, Any]:
        """Return the session's fields for a `welcome` frame."""
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
    """Return a name for a session that has no name: the start of its first message."""
    return " ".join(find_first_text(message.get("content")).split())[:MAX_NAME_CHARS]


def shorten_first_line(text: str) -> str:
    """Return a text's first line that is not blank. Long lines are shortened, and control
    characters are escaped.
    """
    line = next((line for line in text.splitlines() if line.strip()), "")
    line = escape_control_chars(line[: 4 * MAX_DETAIL_CHARS]).strip()
    return shorten_end(line, MAX_DETAIL_CHARS)


def format_message_detail(text: str) -> str:
    """Return the first line of a message without Markdown marks, because a detail is plain text."""
    line = shorten_first_line(text)
    if match := _LINE_MARKS.match(line):
        line = line[match.end() :]
    return _TEXT_MARKS.sub(lambda match: match[1] or match[2], line)


def describe_tool_call(tool: object, tool_input: object) -> str:
    """Describe a tool call in one line, with the tool and the most important value of its input."""
    for key in ("command", *DESCRIPTION_KEYS):
        if text := get_text(as_dict(tool_input), key):
            return shorten_first_line(f"{tool}: {text}")
    return shorten_first_line(as_str(tool))


def describe_prompt(request: Mapping[str, Any]) -> str:
    """Describe in one line what a person must do to answer a prompt."""
    if request.get("subtype") == ELICITATION_SUBTYPE:
        return shorten_first_line(f"answer: {request.get('message')}")
    tool = request.get("tool_name")
    tool_input = request.get("input")
    if tool == QUESTION_TOOL:
        return shorten_first_line(f"answer: {_describe_first_question(tool_input)}")
    return shorten_first_line(f"approve {describe_tool_call(tool, tool_input)}")


def _describe_first_question(tool_input: object) -> str:
    """Return the first question in an AskUserQuestion call, with the labels of its options."""
    questions = as_list(as_dict(tool_input).get("questions"))
    question = as_dict(next(iter(questions), None))
    options = as_list(question.get("options"))
    labels = [str(option.get("label")) for option in options if isinstance(option, dict)]
    suffix = ""
    if labels:
        suffix = f" ({' · '.join(labels)})"
    return f"{question.get('question')}{suffix}"


def _is_stopped_result(result: Mapping[str, Any]) -> bool:
    """Return whether a result reports that the turn was stopped together with its session.

    If the child was killed by a signal, the result contains the signal's name. Such a result is a
    failure.
    """
    shim_fields = as_dict(result.get("shim"))
    if shim_fields.get("cause") != "signal":
        return False
    return not shim_fields.get("signal")


class SessionStatus:
    """A session's status, which is derived from the conversation's lines."""

    def __init__(self) -> None:
        self.is_turn_active = False
        self._end_state = ""
        self._state = "blocked"
        self._needs = START_HINT
        self._detail = ""
        self._timed_out_prompt = ""  # the turn's first prompt that was not answered in time

    def build_status_fields(
        self, prompt_requests: Sequence[Mapping[str, Any]] = (), has_messages: bool = False
    ) -> dict[str, Any]:
        """Return the status fields for `host.json` and for a `state` frame.

        `prompt_requests` are the requests of the open prompts, in order. `has_messages` is set if
        messages are waiting for their turns.
        """
        if self._end_state:
            return self._build_status(None, None, self._end_state, "")
        if prompt_requests:
            first_request = prompt_requests[0]
            waiting_for = "permission prompt"
            if (
                first_request.get("tool_name") == QUESTION_TOOL
                or first_request.get("subtype") == ELICITATION_SUBTYPE
            ):
                waiting_for = "input needed"
            needs = describe_prompt(first_request)
            return self._build_status("waiting", waiting_for, "blocked", needs)
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

    def record_queued_user_message(self) -> None:
        """Record that a user message is waiting for its turn."""
        if not self.is_turn_active:
            self._detail = STARTING_TEXT

    def record_prompt_timeout(self, request: Mapping[str, Any]) -> None:
        """Record that one of the turn's prompts was denied because of its timeout."""
        if not self._timed_out_prompt:
            self._timed_out_prompt = describe_prompt(request)

    def record_stream_json_line(self, line: Mapping[str, Any]) -> None:
        """Update the status from a complete line that the conversation wrote."""
        kind = line.get("type")
        if kind == "result":
            self._record_result(line)
            self.is_turn_active = False
        elif kind in ("user", "assistant") or is_init_line(line):
            self.is_turn_active = True
            if self._detail == STARTING_TEXT:
                self._detail = WORKING_TEXT
        if kind == "assistant" and not get_parent_call_id(line):
            self._record_assistant_line(line)

    def _record_assistant_line(self, line: Mapping[str, Any]) -> None:
        for block in list_content_blocks(line):
            if block.get("type") == "tool_use":
                self._detail = describe_tool_call(block.get("name"), block.get("input"))
            elif block.get("type") == "text":
                self._detail = format_message_detail(get_text(block, "text")) or self._detail

    def _record_result(self, line: Mapping[str, Any]) -> None:
        detail = format_message_detail(get_result_text(line))
        self._needs = ""
        if _is_stopped_result(line):
            self._state = self._detail = STOPPED_STATE
        elif str(line.get("terminal_reason")).startswith("aborted"):
            self._state = "blocked"
            self._needs = CONTINUE_HINT
            self._detail = INTERRUPTED_DETAIL
        elif line.get("is_error") is True or line.get("subtype") != "success":
            self._state = "failed"
            self._detail = detail or str(line.get("subtype"))
        else:
            self._state = "done"
            self._detail = detail or self._detail
            if self._timed_out_prompt:
                self._state = "blocked"
                self._needs = TIMEOUT_HINT.format(
                    question=self._timed_out_prompt, next=CONTINUE_HINT
                )
        self._timed_out_prompt = ""

    def record_session_end(self, failure: str = "", *, has_messages: bool = False) -> None:
        """Record that the session has ended.

        If the session has ended by itself, `failure` is the reason. Otherwise `failure` is "".
        `has_messages` is set if messages were waiting.
        """
        self._needs = ""
        self._end_state = self._state
        if failure:
            self._end_state = "failed"
            self._detail = shorten_first_line(failure)
        elif self.is_turn_active or has_messages or self._state == "blocked":
            self._end_state = STOPPED_STATE
        self.is_turn_active = False
