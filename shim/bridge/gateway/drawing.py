"""Draws a session for the page while it goes on: the steps of the exported page, one by one, and
open questions.

Steps come from numbered lines alone, so that each has the same number for everybody, whenever they
came. What is streamed meanwhile is told apart, as `live` text that the next step takes the place
of. Nothing is blanked: the page shows its owner what the terminal shows. Everything is made
printable.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import orjson

from shim.bridge import answering
from shim.core.claude.permissions import ELICITATION_SUBTYPE, QUESTION_TOOL
from shim.core.reading.account import escape_control_chars
from shim.story.export.html import build_step, build_totals
from shim.story.export.sheets import SessionExport, StepView
from shim.story.steps import MAIN_ARGUMENTS, has_only_plain_questions
from shim.story.story import StepChange, Story
from shim.story.unified_diff import FULL_CONTEXT_LINES, build_diff, list_diffed_arguments

MAX_TREE_BYTES = 200_000  # of one text's Markdown; a longer one is drawn as it was written
MAX_DEPTH = 40  # levels of a question's schema or of a host's frame; nobody reads more
MAX_FIELDS = 200  # of what is asked about; more are said in one


class StepRenderer:
    """One reader's drawing of one session. `began` is the time of its first line, in ms since 1970."""

    def __init__(self) -> None:
        self.story = Story()
        self.start_ms: int | None = None
        self._session_export = SessionExport(redact=False, keeps_steps=False)
        # calls of this turn, which its result may call denied
        self._failed_calls: dict[int, tuple[StepView, str]] = {}

    @property
    def title(self) -> str:
        """The first line of the first prompt."""
        return self._session_export.title

    def add_line(self, at_ms: int, line: bytes) -> list[StepView]:
        """The steps that a numbered line changes, by their numbers. `at` is in ms since 1970.

        `step_of` draws one. Most steps of a long session are never drawn: Markdown is what costs.
        """
        event = _parse_object(line)
        if event is None:
            return []
        self.start_ms = at_ms if self.start_ms is None else self.start_ms
        seconds = max(at_ms - self.start_ms, 0) / 1000
        message = event.get("message")
        if event.get("type") == "user" and event.get("isReplay") and isinstance(message, Mapping):
            changes = self.story.add_prompt(seconds, message.get("content"))
        else:
            changes = self.story.add_event(seconds, event)
        return self._collect_changed_steps(seconds, changes)

    def _collect_changed_steps(self, at: float, changes: Iterable[StepChange]) -> list[StepView]:
        touched: dict[int, StepView] = {}
        for change in changes:
            sheet = self._session_export.add_change(at, change)
            if sheet is None:
                continue
            touched[sheet.number] = sheet
            if sheet.kind == "call" and sheet.outcome == "failed":
                self._failed_calls[sheet.number] = sheet, sheet.outcome
            elif sheet.kind == "result" and change.phase == "end":
                touched |= {
                    number: other
                    for number, (other, was) in self._failed_calls.items()
                    if other.outcome != was
                }
                self._failed_calls.clear()
        return [touched[number] for number in sorted(touched)]

    def render_partial(self, line: bytes) -> dict[str, Any] | None:
        """What a line without a number adds to the text that is open now; None if nothing."""
        found = _parse_object(line) or {}
        event = found.get("event")
        if not isinstance(event, Mapping):
            return None
        above = self._session_export.find_step_number(str(found.get("parent_tool_use_id") or ""))
        block, delta = event.get("content_block"), event.get("delta")
        if event.get("type") == "content_block_start" and isinstance(block, Mapping):
            name = escape_control_chars(str(block.get("name") or ""))
            kind = (
                "call" if name else "thinking" if "thinking" in str(block.get("type")) else "text"
            )
            return {"above": above, "kind": kind, "name": name, "begin": True, "text": ""}
        if event.get("type") == "content_block_delta" and isinstance(delta, Mapping):
            for kind in ("text", "thinking"):
                if isinstance(text := delta.get(kind), str) and text:
                    return {
                        "above": above,
                        "kind": kind,
                        "text": escape_control_chars(text.replace("\r\n", "\n")),
                    }
        return None

    def build_totals(self) -> dict[str, Any]:
        """The sums of the session, as the exported page has them."""
        return {**build_totals(self.story), "model": escape_control_chars(self.story.model)}


def find_mode(line: bytes) -> str:
    """The permission mode that a line says the session has now; "" for most lines."""
    found = (_parse_object(line) if b'"permissionMode"' in line else None) or {}
    mode = found.get("permissionMode")
    return (
        escape_control_chars(mode)
        if found.get("type") == "system" and isinstance(mode, str)
        else ""
    )


def render_step(sheet: StepView) -> dict[str, Any]:
    """A step as it is now, for the page."""
    return build_step(sheet, MAX_TREE_BYTES)[0]


def render_prompt(name: str, request: Mapping[str, Any], cwd: str) -> dict[str, Any]:
    """A question for a person, with all that decides it: nothing is cut, nothing is blanked, all of
    it is printable.

    `always` are the rules that the answer "always" allows in this session, `cwd` its folder.
    """
    tool = str(request.get("tool_name") or request.get("mcp_server_name") or "")
    given = request.get("input")
    arguments: Mapping[str, Any] = given if isinstance(given, Mapping) else {}
    difference = escape_control_chars(
        build_diff(tool, arguments, None, context_lines=FULL_CONTEXT_LINES)
    )
    asked = arguments.get("questions") if tool == QUESTION_TOOL else None
    said = list_diffed_arguments(tool, arguments) if difference else frozenset()
    given = (
        {"url": request["url"]}
        if request.get("url")
        else ()
        if asked and has_only_plain_questions(arguments)
        else arguments
    )
    left = [(key, value) for key, value in dict(given).items() if key not in said]
    fields = [(escape_control_chars(key), _format_value(value)) for key, value in left[:MAX_FIELDS]]
    if len(left) > MAX_FIELDS:
        fields.append(("…", _format_value(dict(left[MAX_FIELDS:]))))
    told = {
        "question": name,
        "kind": "ask"
        if asked
        else ELICITATION_SUBTYPE
        if request.get("subtype") == ELICITATION_SUBTYPE
        else "permission",
        "tool": escape_control_chars(tool),
        "main": _format_value(
            next(
                (arguments[key] for key in MAIN_ARGUMENTS if isinstance(arguments.get(key), str)),
                "",
            )
        ),
        "fields": fields,
        "diff": difference,
        "message": _format_value(request.get("message") or request.get("description") or ""),
        "reason": _format_value(request.get("decision_reason") or ""),
        "path": _format_value(request.get("blocked_path") or ""),
        "asked": make_printable(asked) if isinstance(asked, list) else None,
        "schema": make_printable(request.get("requested_schema")),
        "always": [
            escape_control_chars(rule)
            for rule in answering.build_permission_prompt(name, request, cwd).rules
        ],
    }
    return {
        key: value for key, value in told.items() if value or key in ("question", "kind", "tool")
    }


def _format_value(value: Any) -> str:
    told = (
        value
        if isinstance(value, str)
        else orjson.dumps(value, option=orjson.OPT_INDENT_2).decode()
    )
    return escape_control_chars(told.replace("\r\n", "\n"))


def make_printable(value: Any, depth: int = MAX_DEPTH) -> Any:
    """JSON with printable texts, at most `depth` levels of it."""
    if isinstance(value, str):
        return escape_control_chars(value)
    if isinstance(value, list | Mapping) and not depth:
        return "…"
    if isinstance(value, list):
        return [make_printable(one, depth - 1) for one in value]
    if isinstance(value, Mapping):
        return {
            escape_control_chars(key): make_printable(one, depth - 1) for key, one in value.items()
        }
    return value


def _parse_object(line: bytes) -> dict[str, Any] | None:
    try:
        found = orjson.loads(line)
    except orjson.JSONDecodeError:
        return None
    return found if isinstance(found, dict) else None
