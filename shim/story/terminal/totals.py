"""Renders the totals of a turn or a session in a few lines, with a timeline bar."""

from collections.abc import Container, Iterator, Mapping
from typing import Any

from rich.text import Text

from shim.core.api_errors import describe_cause
from shim.core.reading.diagnostics import pluralize
from shim.core.reading.values import as_dict, as_list, escape_control_chars
from shim.story.events import TOKEN_FIELDS, SessionStep, SessionTotals, find_failure_cause
from shim.story.formatting import (
    format_call_counts,
    format_cost,
    format_duration,
    format_token_counts,
)
from shim.story.model import SessionStepTracker
from shim.story.timeline import ACTIVITIES, Activity, ActivityTimeline

_ACTIVITY_STYLES: dict[
    Activity, tuple[str, str, str]
] = {  # each activity has a different sign, for terminals without colors
    "idle": ("·", "dim", "idle"),
    "model": ("░", "cyan", "model"),
    "tool": ("▓", "green", "tools"),
    "person": ("█", "yellow", "a person"),
}
MIN_BAR_SECONDS = 0.05  # shorter sessions have no timeline
MIN_BAR_COLUMNS = 20
MAX_BAR_COLUMNS = 100
MAX_ERROR_CHARS = 2000
UNKNOWN_SESSION_PREFIXES = ("No conversation found", "No message found", "Error: --resume")
# Failure causes that the shim or the real claude reports.
INTERRUPT_CAUSES = ("interrupted", "aborted_tools", "aborted_streaming")


def render_turn_end(step: SessionStep, drawn_notes: Container[str] = ()) -> Iterator[Text]:
    """Render the outcome and the usage of a finished turn.

    Notes whose kinds are in `drawn_notes` were already drawn and are not repeated.
    """
    fields = step.facts
    shim_fields = as_dict(fields.get("shim"))
    end_text, style = _describe_turn_end(fields)
    usage = as_dict(fields.get("usage"))
    parts = [
        end_text,
        _format_reply_count(step.replies),
        format_duration(step.duration_s),
        format_token_counts(usage, "tokens")
        if any(usage.get(name) for name in TOKEN_FIELDS)
        else "",
        format_cost(step.cost),
    ]
    yield Text(" · ".join(filter(None, parts)), style=style)
    for key, note, label in (
        ("repairs", "repair", "repaired"),
        ("unknown_events", "unknown_event", "not understood"),
        ("redacted", "redaction", "redacted"),
    ):
        counts = as_dict(shim_fields.get(key))
        if counts and note not in drawn_notes:
            counts_text = ", ".join(
                f"{str(name).replace('_', ' ')} {count}" for name, count in counts.items()
            )
            yield Text(escape_control_chars(f"{label}: {counts_text}"), style="yellow")


def _format_reply_count(replies: int) -> str:
    if not replies:
        return ""
    if replies == 1:
        return "1 reply"
    return f"{replies} replies"


def _describe_turn_end(fields: Mapping[str, Any]) -> tuple[str, str]:
    """Return the outcome of a turn as text, and its color. A turn with denied tool calls is not
    shown as a full success.
    """
    if is_interrupted_turn(fields):
        return "■ interrupted", "yellow"
    if fields.get("is_error"):
        return "✗ failed: " + escape_control_chars(_describe_failure(fields)), "red"
    if denials := as_list(fields.get("permission_denials")):
        return f"⊘ ended with {pluralize(len(denials), 'denied call')}", "yellow"
    return "✓ done", "green"


def _describe_failure(fields: Mapping[str, Any]) -> str:
    """Return a description of why a turn failed."""
    cause = find_failure_cause(fields)
    if cause == "refused" and fields.get("num_turns"):
        return "refused"
    if cause == "not_found" and any(
        str(error).startswith(UNKNOWN_SESSION_PREFIXES) for error in as_list(fields.get("errors"))
    ):
        return "session not found"
    return describe_cause(cause)


def is_interrupted_turn(result_fields: Mapping[str, Any]) -> bool:
    """Return whether a person interrupted the turn."""
    return find_failure_cause(result_fields) in INTERRUPT_CAUSES


def list_failure_reasons(result_fields: Mapping[str, Any]) -> Iterator[str]:
    """Return the failure reasons from a turn's result. The list is empty if a person interrupted
    the turn.
    """
    if result_fields.get("is_error") and not is_interrupted_turn(result_fields):
        causes = as_list(result_fields.get("errors")) or [result_fields.get("result")]
        yield from (str(error)[:MAX_ERROR_CHARS] for error in causes if error)


def render_session_totals(
    story: SessionStepTracker, width: int, *, has_output: bool = True
) -> list[Text]:
    """Render the totals of a session with several turns, and the session's timeline. The timeline
    is omitted if `has_output` is False because no model replied.
    """
    totals = story.totals
    if totals.duration_s < MIN_BAR_SECONDS:
        return []
    lines = []
    if totals.turns > 1:
        lines = [Text(_format_totals(totals))]
    if not has_output:
        return lines
    bar_columns = min(max(width - 2, MIN_BAR_COLUMNS), MAX_BAR_COLUMNS)
    return [*lines, render_timeline(story.timeline, bar_columns), _render_legend(totals)]


def _format_totals(totals: SessionTotals) -> str:
    parts = [
        f"{totals.turns} turns",
        f"{totals.errors} failed" if totals.errors else "",
        format_call_counts(
            totals.calls,
            totals.failed_calls,
            totals.denied_calls,
            "call" if totals.calls == 1 else "calls",
        )
        if totals.calls
        else "",
        format_token_counts(totals.tokens, "tokens") if totals.tokens else "",
        format_cost(totals.cost_usd),
        format_duration(totals.duration_s),
    ]
    return "session: " + " · ".join(filter(None, parts))


def _render_legend(totals: SessionTotals) -> Text:
    legend = Text()
    for activity, seconds in sorted(totals.seconds.items(), key=lambda item: -item[1]):
        if seconds >= 0.05 or seconds >= totals.duration_s / 100:
            sign, style, label = _ACTIVITY_STYLES[activity]  # type: ignore[index]
            legend.append("   " if legend else "")
            legend.append(sign, style=style).append(
                f" {label} {format_duration(seconds)} {seconds / totals.duration_s:.0%}"
            )
    return legend


def render_timeline(timeline: ActivityTimeline, width: int) -> Text:
    """Render the timeline as `width` cells, each for an equal part of the session.

    A cell shows one activity. The time of the other activities in the same part counts for later
    cells. In total, each activity gets as many cells as its share of the time, even if it ran in
    short intervals.
    """
    bar = Text()
    deficits = [0.0] * len(ACTIVITIES)
    for column in timeline.compute_activity_shares_by_column(width):
        deficits = [deficit + share for deficit, share in zip(deficits, column, strict=True)]
        largest = max(
            (index for index, share in enumerate(column) if share),
            key=lambda index: deficits[index],
            default=0,
        )
        deficits[largest] -= 1
        sign, style, _ = _ACTIVITY_STYLES[ACTIVITIES[largest]]
        bar.append(sign, style=style)
    return bar
