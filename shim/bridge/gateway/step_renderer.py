"""Renders a running session for the web page: the session's steps, as on the exported page, and its
open permission prompts.

Steps are built from numbered log lines only, so a step has the same number for every reader, no
matter when the reader connected. Partial messages are sent separately as `live` text, which the
next step replaces. Nothing is redacted: the page shows its owner what the terminal shows. Control
characters are escaped in all text.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import orjson

from shim.bridge import decisions
from shim.core.claude.grammar import get_delta, get_fragment, get_parent_call_id, get_stream_event
from shim.core.claude.permissions import ELICITATION_SUBTYPE, QUESTION_TOOL
from shim.core.reading.json_text import parse_json_object
from shim.core.reading.values import as_dict, as_str, escape_control_chars, get_text
from shim.story.diff import (
    FULL_CONTEXT_LINES,
    build_tool_call_diff,
    list_arguments_beside_diff,
)
from shim.story.events import find_main_argument, has_only_question_texts_and_options
from shim.story.export.html import build_session_totals_json, build_step_json
from shim.story.export.view_model import SessionExport, SessionStepView
from shim.story.model import SessionStepChange, SessionStepTracker

MAX_TREE_BYTES = 200_000  # Markdown tree of one text; a longer text is shown unformatted
MAX_DEPTH = 40  # nesting levels of a form's schema or of a host's frame; normal ones have fewer
MAX_FIELDS = 200  # input fields of a prompt; all further fields are shown as one


class SessionStepRenderer:
    """Builds the steps of one session for all its readers.

    `start_ms` is the time of the session's first line, in ms since 1970.
    """

    def __init__(self) -> None:
        self.story = SessionStepTracker()
        self.start_ms: int | None = None
        self.session_export = SessionExport(redact=False, keeps_steps=False)

    def update_steps_from_line(self, at_ms: int, line: bytes) -> list[SessionStepView]:
        """Return the steps that a numbered line changes, ordered by number. `at_ms` is the line's
        time in ms since 1970.

        `render_step` renders a step to JSON. It is a separate function because rendering Markdown
        is expensive, and most steps of a long session are never rendered.
        """
        event = parse_json_object(line)
        if not event:
            return []
        if self.start_ms is None:
            self.start_ms = at_ms
        elapsed_s = max(at_ms - self.start_ms, 0) / 1000
        changes = self.story.add_session_line(elapsed_s, event)
        return self._collect_changed_steps(elapsed_s, changes)

    def _collect_changed_steps(
        self, elapsed_s: float, changes: Iterable[SessionStepChange]
    ) -> list[SessionStepView]:
        changed: dict[int, SessionStepView] = {}
        for change in changes:
            step = self.session_export.add_step_change(elapsed_s, change)
            if step is not None:
                changed[step.number] = step
        return [changed[number] for number in sorted(changed)]

    def render_partial_message(self, line: bytes) -> dict[str, Any] | None:
        """Return the `live` event for a partial message, or None if the message adds no text."""
        message = parse_json_object(line)
        event = get_stream_event(message)
        parent_step = self.session_export.find_call_step_number(get_parent_call_id(message))
        if event.get("type") == "content_block_start":
            block = as_dict(event.get("content_block"))
            name = escape_control_chars(get_text(block, "name"))
            if name:
                kind = "call"
            elif "thinking" in str(block.get("type")):
                kind = "thinking"
            else:
                kind = "text"
            return {"above": parent_step, "kind": kind, "name": name, "begin": True, "text": ""}
        key, text = get_fragment(get_delta(message))
        if not text or key == "partial_json":
            return None
        visible_text = escape_control_chars(text.replace("\r\n", "\n"))
        return {"above": parent_step, "kind": key, "text": visible_text}

    def build_session_totals(self) -> dict[str, Any]:
        """Return the totals of the session, as on the exported page."""
        return {
            **build_session_totals_json(self.story),
            "model": escape_control_chars(self.story.model),
        }


def find_reported_permission_mode(line: bytes) -> str:
    """Return the permission mode that a line reports, or "" if the line reports no mode, like most
    lines.
    """
    if b'"permissionMode"' not in line:
        return ""
    message = parse_json_object(line)
    if message.get("type") == "system":
        return escape_control_chars(as_str(message.get("permissionMode")))
    return ""


def render_step(step: SessionStepView) -> dict[str, Any]:
    """Return the current state of a step as JSON for the page."""
    return build_step_json(step, MAX_TREE_BYTES)[0]


def build_permission_prompt_json(
    prompt_id: str, request: Mapping[str, Any], cwd: str
) -> dict[str, Any]:
    """Return a permission prompt as JSON for the page, with everything that a person needs to
    decide.

    Nothing is truncated or redacted, and control characters are escaped. The key `always` lists the
    rules that the answer "always" adds for this session. `cwd` is the session's folder.
    """
    tool = get_text(request, "tool_name", get_text(request, "mcp_server_name"))
    tool_input = as_dict(request.get("input"))
    difference = escape_control_chars(
        build_tool_call_diff(tool, tool_input, None, context_lines=FULL_CONTEXT_LINES)
    )
    questions = None
    if tool == QUESTION_TOOL:
        questions = tool_input.get("questions")
    visible_input = tool_input
    if request.get("url"):
        visible_input = {"url": request["url"]}
    elif questions and has_only_question_texts_and_options(tool_input):
        visible_input = {}
    fields = [
        (escape_control_chars(key), _format_value(value))
        for key, value in list_arguments_beside_diff(tool, visible_input, difference, MAX_FIELDS)
    ]
    if questions:
        kind = "ask"
    elif request.get("subtype") == ELICITATION_SUBTYPE:
        kind = ELICITATION_SUBTYPE
    else:
        kind = "permission"
    payload = {
        "question": prompt_id,
        "kind": kind,
        "tool": escape_control_chars(tool),
        "main": _format_value(tool_input.get(find_main_argument(tool_input), "")),
        "fields": fields,
        "diff": difference,
        "message": _format_field(request, "message", "description"),
        "reason": _format_field(request, "decision_reason"),
        "path": _format_field(request, "blocked_path"),
        "asked": escape_control_chars_in_json(questions) if isinstance(questions, list) else None,
        "schema": escape_control_chars_in_json(request.get("requested_schema")),
        "always": [
            escape_control_chars(rule)
            for rule in decisions.build_permission_prompt(prompt_id, request, cwd).rules
        ],
    }
    return {
        key: value for key, value in payload.items() if value or key in ("question", "kind", "tool")
    }


def _format_field(request: Mapping[str, Any], *keys: str) -> str:
    """Format the first of these fields that has a value. Return "" if none has a value."""
    for key in keys:
        if request.get(key):
            return _format_value(request[key])
    return ""


def _format_value(value: Any) -> str:
    text = value
    if not isinstance(value, str):
        text = orjson.dumps(value, option=orjson.OPT_INDENT_2).decode()
    return escape_control_chars(text.replace("\r\n", "\n"))


def escape_control_chars_in_json(value: Any, depth: int = MAX_DEPTH) -> Any:
    """Return a copy of a JSON value whose strings have their control characters escaped. Levels
    below `depth` are replaced with "…".
    """
    if isinstance(value, str):
        return escape_control_chars(value)
    if isinstance(value, list | Mapping) and not depth:
        return "…"
    if isinstance(value, list):
        return [escape_control_chars_in_json(item, depth - 1) for item in value]
    if isinstance(value, Mapping):
        return {
            escape_control_chars(key): escape_control_chars_in_json(item, depth - 1)
            for key, item in value.items()
        }
    return value
