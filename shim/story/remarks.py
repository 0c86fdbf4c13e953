"""Notes of a session as sentences for a person."""

import re
from collections.abc import Callable, Mapping
from typing import Any

from shim.story.figures import format_inline
from shim.story.steps import Step, format_content

MAX_FIELDS_CHARS = 300  # of a note without a sentence

_ID_FIELDS = frozenset(
    ("type", "subtype", "uuid", "session_id", "kind", "request_id", "parent_tool_use_id")
)

EventFields = Mapping[str, Any]


def describe_note(step: Step) -> str:
    """A note as a sentence; without one here, as its kind and its fields."""
    if step.name == "user":
        return step.text
    if step.name == "late_result":
        return f"a result that came late, or twice: {format_content(step.output)}"
    make = _NOTE_DESCRIBERS.get(step.name)
    try:
        said = make(step.facts) if make is not None else ""
    except (AttributeError, KeyError, TypeError, ValueError):
        said = ""
    return said or f"{step.name.replace('_', ' ')}{_format_fields(step.facts)}"


def _format_fields(facts: EventFields) -> str:
    told = {
        key: value
        for key, value in facts.items()
        if key not in _ID_FIELDS and value not in (None, "")
    }
    text = format_inline(told)
    return (
        f": {text[:MAX_FIELDS_CHARS]}{'…' if len(text) > MAX_FIELDS_CHARS else ''}" if text else ""
    )


def _describe_retry(facts: EventFields) -> str:
    of = f" of {facts['max_retries']}" if facts.get("max_retries") else ""
    why = " ".join(str(facts[key]) for key in ("error", "error_status") if facts.get(key))
    delay = (
        f", after {float(facts['retry_delay_ms']) / 1000:.1f} s"
        if facts.get("retry_delay_ms")
        else ""
    )
    return f"the model is asked again ({facts.get('attempt')}{of}{delay})" + (
        f": {why}" if why else ""
    )


def _describe_compaction(facts: EventFields) -> str:
    data = facts.get("compact_metadata") or {}
    before = f", {data['pre_tokens']:,} tokens before" if data.get("pre_tokens") else ""
    return f"the context was shortened ({data.get('trigger') or 'auto'}{before})"


def _describe_background_task(facts: EventFields) -> str:
    summary = f": {facts['summary']}" if facts.get("summary") else ""
    return f"in the background: {facts.get('status')}{summary}"


def _describe_hook_failure(facts: EventFields) -> str:
    why = str(facts.get("stderr") or facts.get("output") or "").strip()
    return f"the hook {facts.get('hook_name')} failed ({facts.get('exit_code')})" + (
        f": {why}" if why else ""
    )


def _describe_recording_limit(facts: EventFields) -> str:
    size = facts.get("bytes") or facts.get("queued")
    return f"the recording stopped at its limit of {size:,} bytes" if isinstance(size, int) else ""


def _describe_redaction(facts: EventFields) -> str:
    return "blanked in the recording: " + ", ".join(
        f"{name} {count}" for name, count in facts["counts"].items()
    )


_PROMPT_OUTCOMES = {
    "allow": "allowed",
    "deny": "denied",
    "timeout": "denied, because nobody answered in time",
    "interrupt": "taken back with the turn",
    "cancelled": "taken back",
    "ended": "denied, because the session ended",
}


# What tells two clients of a kind apart is a random word or a process: it says nothing to a person.
_CLIENT_PHRASES = (
    (
        re.compile(r"shim bridge answer [0-9a-f]{8}(-\d+)?"),
        "from a terminal by `shim bridge answer`",
    ),
    (re.compile(r"terminal \d+(-\d+)?"), "from a terminal"),
    (re.compile(r"web(-\d+)?"), "on a page"),
)


def _describe_resolved_prompt(facts: EventFields) -> str:
    name = str(facts.get("by") or "")
    by = next(
        (f" {words}" for client, words in _CLIENT_PHRASES if client.fullmatch(name)),
        f" by {name}" if name else "",
    )
    return f"the question was {_PROMPT_OUTCOMES[facts['how']]}{by}"


_NOTE_DESCRIBERS: dict[str, Callable[[EventFields], str]] = {
    # the recorder's
    "caught": lambda facts: f"the drop-in got {facts['signal']}",
    "limit": _describe_recording_limit,
    "passed_over": lambda facts: (
        f"{facts['vendor']} did not answer ({facts['cause']}): {facts['reason']}"
    ),
    "redaction": _describe_redaction,
    "refused": lambda facts: f"refused: {facts['text']}",
    "repair": lambda facts: (
        f"repaired: {str(facts['repair']).replace('_', ' ')} {facts.get('count') or ''}".rstrip()
    ),
    "retry": lambda facts: "the reply broke off, so it is asked for again",
    "signal": lambda facts: f"the agent's process got {facts['signal']}",
    "spill": lambda facts: (
        f"too large for a line: {facts['characters']:,} characters are in {facts['path']}"
    ),
    "timeout": lambda facts: f"nothing came for {facts['seconds']} s ({facts['name']})",
    "unknown_event": lambda facts: (
        f"not understood: {facts['event']} {facts.get('count') or ''}".rstrip()
    ),
    # of a host
    "driver": lambda facts: f"{facts['client'] or 'nobody'} drives",
    "settled": _describe_resolved_prompt,
    "unanswered": lambda facts: "a message was not answered: the session ended before its turn",
    # claude's
    "api_retry": _describe_retry,
    "compact_boundary": _describe_compaction,
    "hook_response": _describe_hook_failure,
    "informational": lambda facts: str(facts["content"]),
    "interrupt": lambda facts: "the person interrupted",
    "model_refusal_no_fallback": lambda facts: "the model refused to answer",
    "permission_denied": lambda facts: f"{facts['tool_name']} was refused: {facts['message']}",
    "rate_limit": lambda facts: f"rate limit: {facts['rate_limit_info'].get('status')}",
    "set_model": lambda facts: f"another model: {facts.get('model') or 'the default'}",
    "set_permission_mode": lambda facts: f"permission mode: {facts.get('mode')}",
    "task_notification": _describe_background_task,
    "task_started": lambda facts: f"in the background: {facts['description']}",
}
