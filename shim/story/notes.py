"""Describes session notes in sentences for a person."""

import re
from collections.abc import Callable, Mapping
from typing import Any

from shim.core.reading.values import as_dict, get_text, shorten_end
from shim.story.events import PROMPT_OUTCOMES, SessionStep, format_content_text
from shim.story.formatting import format_single_line_value

MAX_FIELDS_CHARS = 300  # for a note that is shown as its fields

_ID_FIELDS = frozenset(
    ("type", "subtype", "uuid", "session_id", "kind", "request_id", "parent_tool_use_id")
)

EventFields = Mapping[str, Any]


def describe_note_step(note_step: SessionStep) -> str:
    """Return a sentence that describes a note step. A note without such a sentence is shown as its
    kind and its fields.
    """
    if note_step.name == "user":
        return note_step.text
    if note_step.name == "late_result":
        return f"a late or repeated result: {format_content_text(note_step.output)}"
    describe = _NOTE_DESCRIBERS.get(note_step.name)
    try:
        sentence = ""
        if describe is not None:
            sentence = describe(note_step.facts)
    except (AttributeError, KeyError, TypeError, ValueError):
        sentence = ""
    if sentence:
        return sentence
    return f"{note_step.name.replace('_', ' ')}{_format_fields(note_step.facts)}"


def _format_fields(fields: EventFields) -> str:
    visible_fields = {
        key: value
        for key, value in fields.items()
        if key not in _ID_FIELDS and value not in (None, "")
    }
    text = format_single_line_value(visible_fields)
    if text:
        return f": {shorten_end(text, MAX_FIELDS_CHARS)}"
    return ""


def _describe_retry(fields: EventFields) -> str:
    max_attempts = ""
    if fields.get("max_retries"):
        max_attempts = f" of {fields['max_retries']}"
    cause = " ".join(str(fields[key]) for key in ("error", "error_status") if fields.get(key))
    delay = ""
    if fields.get("retry_delay_ms"):
        delay = f", after {float(fields['retry_delay_ms']) / 1000:.1f} s"
    return f"retrying the request to the model ({fields.get('attempt')}{max_attempts}{delay})" + (
        f": {cause}" if cause else ""
    )


def _describe_compaction(fields: EventFields) -> str:
    metadata = as_dict(fields.get("compact_metadata"))
    token_count = ""
    if metadata.get("pre_tokens"):
        token_count = f", {metadata['pre_tokens']:,} tokens before"
    return f"the context was compacted ({get_text(metadata, 'trigger', 'auto')}{token_count})"


def _describe_background_task(fields: EventFields) -> str:
    summary = ""
    if fields.get("summary"):
        summary = f": {fields['summary']}"
    return f"in the background: {fields.get('status')}{summary}"


def _describe_hook_failure(fields: EventFields) -> str:
    output = get_text(fields, "stderr", get_text(fields, "output")).strip()
    return f"the hook {fields.get('hook_name')} failed ({fields.get('exit_code')})" + (
        f": {output}" if output else ""
    )


def _describe_recording_limit(fields: EventFields) -> str:
    size_bytes = fields.get("bytes") or fields.get("queued")
    if isinstance(size_bytes, int):
        return f"the recording stopped at its limit of {size_bytes:,} bytes"
    return ""


def _describe_redaction(fields: EventFields) -> str:
    return "redacted in the recording: " + ", ".join(
        f"{name} {count}" for name, count in fields["counts"].items()
    )


# Client name → phrase. The random suffix that distinguishes clients of the same kind is left out.
_CLIENT_PHRASES = (
    (
        re.compile(r"shim bridge answer [0-9a-f]{8}(-\d+)?"),
        "with `shim bridge answer` in a terminal",
    ),
    (re.compile(r"terminal \d+(-\d+)?"), "in a terminal"),
    (re.compile(r"web(-\d+)?"), "in a browser"),
)


def _describe_resolved_prompt(fields: EventFields) -> str:
    client_name = get_text(fields, "by")
    client_phrase = next(
        (f" {phrase}" for pattern, phrase in _CLIENT_PHRASES if pattern.fullmatch(client_name)),
        f" by {client_name}" if client_name else "",
    )
    return f"permission prompt {PROMPT_OUTCOMES[fields['how']]}{client_phrase}"


_NOTE_DESCRIBERS: dict[str, Callable[[EventFields], str]] = {
    # Notes that the recorder writes.
    "caught": lambda fields: f"the drop-in received {fields['signal']}",
    "limit": _describe_recording_limit,
    "passed_over": lambda fields: (
        f"{fields['vendor']} did not answer ({fields['cause']}): {fields['reason']}"
    ),
    "redaction": _describe_redaction,
    "refused": lambda fields: f"refused: {fields['text']}",
    "repair": lambda fields: (
        f"repaired: {str(fields['repair']).replace('_', ' ')} {fields.get('count', '')}".rstrip()
    ),
    "retry": lambda fields: "the reply was cut off; requesting it again",
    "signal": lambda fields: f"the agent's process received {fields['signal']}",
    "spill": lambda fields: (
        f"too large for one line: {fields['characters']:,} characters are in {fields['path']}"
    ),
    "timeout": lambda fields: f"no output for {fields['seconds']} s ({fields['name']})",
    "unknown_event": lambda fields: (
        f"not understood: {fields['event']} {fields.get('count', '')}".rstrip()
    ),
    # Notes from the host process of a background session.
    "driver": lambda fields: f"control: {get_text(fields, 'client', 'released')}",
    "settled": _describe_resolved_prompt,
    "unanswered": lambda fields: "a message was not answered: the session ended before its turn",
    # Notes about system events and requests of Claude's protocol.
    "api_retry": _describe_retry,
    "compact_boundary": _describe_compaction,
    "conversation_reset": lambda fields: "the conversation was cleared",
    "hook_response": _describe_hook_failure,
    "informational": lambda fields: str(fields["content"]),
    "interrupt": lambda fields: "interrupted by the user",
    "model_refusal_no_fallback": lambda fields: "the model refused to answer",
    "permission_denied": lambda fields: f"{fields['tool_name']} was refused: {fields['message']}",
    "rate_limit": lambda fields: f"rate limit: {fields['rate_limit_info'].get('status')}",
    "set_model": lambda fields: f"model changed: {get_text(fields, 'model', 'the default')}",
    "set_permission_mode": lambda fields: f"permission mode: {fields.get('mode')}",
    "task_notification": _describe_background_task,
    "task_started": lambda fields: f"in the background: {fields['description']}",
}
