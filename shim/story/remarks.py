"""Notes of a session as sentences for a person."""

import re
from collections.abc import Callable, Mapping
from typing import Any

from shim.story.figures import format_inline
from shim.story.steps import Step, text_of

FACTS_CHARACTERS = 300  # of a note without a sentence

_IDENTITIES = frozenset(
    ("type", "subtype", "uuid", "session_id", "kind", "request_id", "parent_tool_use_id")
)

Facts = Mapping[str, Any]


def remark(step: Step) -> str:
    """A note as a sentence; without one here, as its kind and its fields."""
    if step.name == "user":
        return step.text
    if step.name == "late_result":
        return f"a result that came late, or twice: {text_of(step.output)}"
    make = _SENTENCES.get(step.name)
    try:
        said = make(step.facts) if make is not None else ""
    except (AttributeError, KeyError, TypeError, ValueError):
        said = ""
    return said or f"{step.name.replace('_', ' ')}{_fields(step.facts)}"


def _fields(facts: Facts) -> str:
    told = {
        key: value
        for key, value in facts.items()
        if key not in _IDENTITIES and value not in (None, "")
    }
    text = format_inline(told)
    return (
        f": {text[:FACTS_CHARACTERS]}{'…' if len(text) > FACTS_CHARACTERS else ''}" if text else ""
    )


def _retry(facts: Facts) -> str:
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


def _compacted(facts: Facts) -> str:
    data = facts.get("compact_metadata") or {}
    before = f", {data['pre_tokens']:,} tokens before" if data.get("pre_tokens") else ""
    return f"the context was shortened ({data.get('trigger') or 'auto'}{before})"


def _finished(facts: Facts) -> str:
    summary = f": {facts['summary']}" if facts.get("summary") else ""
    return f"in the background: {facts.get('status')}{summary}"


def _hook(facts: Facts) -> str:
    why = str(facts.get("stderr") or facts.get("output") or "").strip()
    return f"the hook {facts.get('hook_name')} failed ({facts.get('exit_code')})" + (
        f": {why}" if why else ""
    )


def _limit(facts: Facts) -> str:
    size = facts.get("bytes") or facts.get("queued")
    return f"the recording stopped at its limit of {size:,} bytes" if isinstance(size, int) else ""


def _blanked(facts: Facts) -> str:
    return "blanked in the recording: " + ", ".join(
        f"{name} {count}" for name, count in facts["counts"].items()
    )


_SETTLED = {
    "allow": "allowed",
    "deny": "denied",
    "timeout": "denied, because nobody answered in time",
    "interrupt": "taken back with the turn",
    "cancelled": "taken back",
    "ended": "denied, because the session ended",
}


# What tells two clients of a kind apart is a random word or a process: it says nothing to a person.
_CLIENTS = (
    (
        re.compile(r"shim bridge answer [0-9a-f]{8}(-\d+)?"),
        "from a terminal by `shim bridge answer`",
    ),
    (re.compile(r"terminal \d+(-\d+)?"), "from a terminal"),
    (re.compile(r"web(-\d+)?"), "on a page"),
)


def _settled(facts: Facts) -> str:
    name = str(facts.get("by") or "")
    by = next(
        (f" {words}" for client, words in _CLIENTS if client.fullmatch(name)),
        f" by {name}" if name else "",
    )
    return f"the question was {_SETTLED[facts['how']]}{by}"


_SENTENCES: dict[str, Callable[[Facts], str]] = {
    # the recorder's
    "caught": lambda facts: f"the drop-in got {facts['signal']}",
    "limit": _limit,
    "passed_over": lambda facts: (
        f"{facts['vendor']} did not answer ({facts['cause']}): {facts['reason']}"
    ),
    "redaction": _blanked,
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
    "settled": _settled,
    "unanswered": lambda facts: "a message was not answered: the session ended before its turn",
    # claude's
    "api_retry": _retry,
    "compact_boundary": _compacted,
    "hook_response": _hook,
    "informational": lambda facts: str(facts["content"]),
    "interrupt": lambda facts: "the person interrupted",
    "model_refusal_no_fallback": lambda facts: "the model refused to answer",
    "permission_denied": lambda facts: f"{facts['tool_name']} was refused: {facts['message']}",
    "rate_limit": lambda facts: f"rate limit: {facts['rate_limit_info'].get('status')}",
    "set_model": lambda facts: f"another model: {facts.get('model') or 'the default'}",
    "set_permission_mode": lambda facts: f"permission mode: {facts.get('mode')}",
    "task_notification": _finished,
    "task_started": lambda facts: f"in the background: {facts['description']}",
}
