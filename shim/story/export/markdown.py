"""Implements `shim export --to markdown`, which writes a session as Markdown for a pull request.

Tool calls are collapsed, with their output in code fences. Subagents are block quotes.

The text is pasted into another project's page, so it must not affect that page. `sanitize_markdown`
keeps a model's Markdown, but turns HTML, images, mentions and references into text and only keeps
links to the web. `escape_markdown` escapes all other text. The fence around a tool's output is
longer than any fence in the output.
"""

import re
from collections.abc import Callable, Iterator

from shim.core.reading.values import shorten_end
from shim.story.export.load import LoadedRecording, load_recording
from shim.story.export.view_model import SessionStepView, truncate_text
from shim.story.formatting import (
    count_cached_tokens,
    count_input_tokens,
    count_output_tokens,
    format_call_counts,
    format_cost,
    format_duration,
)
from shim.story.model import SessionTotals

MAX_BODY_CHARS = 60_000  # GitHub allows 65,536
MAX_OUTPUT_CHARS = 4_000  # per output or diff; the HTML export shows more
MAX_CODE_CHARS = 60
OUTCOME_SIGNS = {"ok": "✓", "failed": "✗", "denied": "⊘", "unanswered": "…", "": "…"}
OMITTED_NOTE = (
    "_… the rest of the session does not fit into a description; `shim export --to html` "
    "writes the complete session._\n"
)

# A zero-width space is added after `@` and `#`.
# HTML entities would not be enough, because GitHub searches the rendered text for mentions.
ZERO_WIDTH_SPACE = "&#8203;"
_SPECIAL_SIGNS = re.compile(r"[\\`*_{}\[\]()<>&|~$!]|://|@|#|(?<=GH)-(?=[0-9])", re.IGNORECASE)
# Parts of a model's Markdown that are escaped: HTML, images, mentions, references, definitions, and
# links that do not lead to the web.
_UNWANTED_MARKDOWN = re.compile(
    r"[<&\\`]|!(?=\[)|\]\((?!\s*https?://)|\]:|@(?=\w)|#(?=[0-9])|(?<=GH)-(?=[0-9])|://(?=(?:www\.)?github\.com\b)|www\.(?=github)",
    re.IGNORECASE,
)
_FENCE = re.compile(r"\s*(`{3,}|~{3,})([^`]*)$")
_LANGUAGE = re.compile(r"[\w+#.-]{1,20}")


def write_recording_export(path: str, write: Callable[[bytes], None], *, redact: bool) -> None:
    """Write a recording as Markdown of at most MAX_BODY_CHARS characters. Raise RecordingError if
    the recording cannot be read.
    """
    recording = load_recording(path, redact=redact)
    head = "".join(_format_head(recording))
    foot = "".join(_format_foot(recording))
    remaining_chars = MAX_BODY_CHARS - len(head) - len(foot) - len(OMITTED_NOTE)
    parts: list[str] = []
    for step in recording.export.steps:
        part = _format_step(step)
        if len(part) > remaining_chars:
            parts.append(OMITTED_NOTE)
            break
        parts.append(part)
        remaining_chars -= len(part)
    write("".join([head, *parts, foot]).encode())


def _format_head(recording: LoadedRecording) -> Iterator[str]:
    yield f"# {escape_markdown(recording.export.title or 'A session')}\n\n"
    source = recording.source
    origin = [
        f"{source['vendor']} {source['version']}".strip(),
        source["model"],
        source["started"][:16].replace("T", " "),
    ]
    yield " · ".join(escape_markdown(part) for part in origin if part) + "\n\n"
    for note in recording.notes:
        yield f"> **Note:** {escape_markdown(note)}\n\n"


def _format_foot(recording: LoadedRecording) -> Iterator[str]:
    rows = list(_list_totals(recording.story.totals))
    yield "\n---\n\n| " + " | ".join(name for name, _ in rows) + " |\n"
    yield "|" + " ---: |" * len(rows) + "\n"
    yield "| " + " | ".join(value for _, value in rows) + " |\n"


def _list_totals(totals: SessionTotals) -> Iterator[tuple[str, str]]:
    yield "turns", f"{totals.turns}" + (f" ({totals.errors} failed)" if totals.errors else "")
    yield "tool calls", format_call_counts(totals.calls, totals.failed_calls, totals.denied_calls)
    cached_tokens = count_cached_tokens(totals.tokens)
    yield (
        "tokens in",
        f"{count_input_tokens(totals.tokens):,}"
        + (f" ({cached_tokens:,} cached)" if cached_tokens else ""),
    )
    yield "tokens out", f"{count_output_tokens(totals.tokens):,}"
    yield "cost", format_cost(totals.cost_usd) or "–"
    yield "time", format_duration(totals.duration_s)
    for activity, name in (
        ("model", "model"),
        ("tool", "tools"),
        ("person", "waiting for a person"),
        ("idle", "idle"),
    ):
        if seconds := totals.seconds.get(activity):
            yield name, format_duration(seconds)
    if totals.repairs:
        yield "repairs", str(sum(totals.repairs.values()))


# -- steps -----------------------------------------------------------------------------------------


def _format_step(step: SessionStepView) -> str:
    """Format a session step, followed by a blank line. A subagent's step is a block quote, because
    fences cannot be indented.
    """
    lines = STEP_FORMATTERS[step.kind](step)
    text = "\n".join(lines)
    for _ in range(step.depth):
        text = "\n".join(_quote_lines(text))
    if lines:
        return f"{text}\n\n"
    return ""


def _format_prompt(step: SessionStepView) -> list[str]:
    return ["**Prompt**", "", *_quote_lines(sanitize_markdown(step.text.format_text()))]


def _format_text(step: SessionStepView) -> list[str]:
    return [sanitize_markdown(step.text.format_text())]


def _format_thinking(step: SessionStepView) -> list[str]:
    title = "Thought"
    if step.until and step.until != step.at:
        title = f"Thought for {format_duration((step.until - step.at) / 1000)}"
    return _format_details(
        title,
        _quote_lines(sanitize_markdown(step.text.format_text())),
    )


def _format_call(step: SessionStepView) -> list[str]:
    duration_text = ""
    if step.until:
        duration_text = f" · {format_duration((step.until - step.at - step.waited) / 1000)}"
    outcome = ""
    if step.outcome != "ok":
        outcome = f" · {step.outcome or 'running'}"
    title = (
        f"{OUTCOME_SIGNS.get(step.outcome, '…')} <b>{escape_markdown(step.name)}</b>"
        f"{_format_code(step.main)}{outcome}{duration_text}"
    )
    body = [*_format_fields(step)]
    if step.output:
        body += ["", format_code_fence(truncate_text(step.output, MAX_OUTPUT_CHARS).format_text())]
    return _format_details(title, body[1:], is_open=bool(step.diff))


def _format_fields(step: SessionStepView) -> Iterator[str]:
    """Format the tool call arguments that the title does not show, each after a blank line."""
    for name, value in step.fields:
        text = truncate_text(value, MAX_OUTPUT_CHARS).format_text()
        if text and not (text == step.main and len(text) <= MAX_CODE_CHARS):
            yield from ("", f"{escape_markdown(name)}:", "", format_code_fence(text))
    if step.diff:
        yield from (
            "",
            format_code_fence(truncate_text(step.diff, MAX_OUTPUT_CHARS).format_text(), "diff"),
        )


def _format_question(step: SessionStepView) -> list[str]:
    title = f"? May <b>{escape_markdown(step.name)}</b> run?{_format_code(step.main)}"
    body = [*_format_fields(step)]
    if body:
        return _format_details(title, body[1:])
    return [title]


def _format_answer(step: SessionStepView) -> list[str]:
    decision = {"allow": "Allowed", "deny": "Denied"}.get(step.text.head, step.text.head)
    reason = "".join(
        f": {escape_markdown(value)}" for name, value in step.facts if name in ("message", "error")
    )
    return [f"**{escape_markdown(decision)}: {escape_markdown(step.name)}**{reason}"]


def _format_note(step: SessionStepView) -> list[str]:
    fields = ", ".join(f"{name} {value}" for name, value in step.facts)
    title = escape_markdown((step.name if step.facts else step.text.head[:200]).replace("_", " "))
    return [f"<sub>{title}{': ' if fields else ''}{escape_markdown(fields)}</sub>"]


def _format_error(step: SessionStepView) -> list[str]:
    return [*_quote_lines("**Error**\n"), *_quote_lines(sanitize_markdown(step.text.format_text()))]


def _format_result(step: SessionStepView) -> list[str]:
    fields = dict(step.facts)
    counts = [
        f"{name} {escape_markdown(fields[name])}" for name in ("errors", "denied") if name in fields
    ]
    title = f"_Turn {step.turn or 1} {'failed' if 'failed' in fields else 'done'}{':' if counts else '.'}_"
    return [
        " ".join([title, ", ".join(counts)]).rstrip(),
        *(["", sanitize_markdown(step.text.format_text())] if step.text else []),
    ]


STEP_FORMATTERS: dict[str, Callable[[SessionStepView], list[str]]] = {
    "start": lambda sheet: [],
    "prompt": _format_prompt,
    "text": _format_text,
    "thinking": _format_thinking,
    "call": _format_call,
    "question": _format_question,
    "answer": _format_answer,
    "note": _format_note,
    "error": _format_error,
    "result": _format_result,
}


def _quote_lines(text: str) -> list[str]:
    return [f"> {line}".rstrip() for line in text.split("\n")]


def _format_details(title: str, body: list[str], *, is_open: bool = False) -> list[str]:
    opening = [f"<details{' open' if is_open else ''}><summary>{title}</summary>"]
    return [*opening, *(["", *body] if body else []), "", "</details>"]


def _format_code(text: str) -> str:
    if text:
        return f" <code>{escape_markdown(shorten_end(text, MAX_CODE_CHARS))}</code>"
    return ""


# -- untrusted text --------------------------------------------------------------------------------


def _encode_entities(sign: str) -> str:
    return "".join(f"&#{ord(character)};" for character in sign)


def escape_markdown(text: str) -> str:
    """Return a text as one line without any special meaning in Markdown, HTML or on GitHub."""
    return _SPECIAL_SIGNS.sub(
        lambda match: _separate_sign(match[0]) or _encode_entities(match[0]), " ".join(text.split())
    )


def _separate_sign(sign: str) -> str:
    """Return an `@`, `#`, `-` or `://` with a zero-width space that removes its special meaning.
    Return "" for any other sign, which must be encoded instead.
    """
    return {
        "@": f"@{ZERO_WIDTH_SPACE}",
        "#": f"#{ZERO_WIDTH_SPACE}",
        "-": f"{ZERO_WIDTH_SPACE}-",
        "://": f":{ZERO_WIDTH_SPACE}//",
    }.get(sign, "")


def sanitize_markdown(text: str) -> str:
    """Return a model's Markdown without anything that could affect another project's page.

    Fences and code spans are rewritten, so that none of them remains open. All other backticks are
    removed.
    """
    output_lines: list[str] = []
    lines = iter(text.split("\n"))
    for line in lines:
        fence_match = _FENCE.match(line)
        if fence_match is None:
            output_lines.append(_sanitize_line(line))
            continue
        sign = fence_match[1]
        code_lines = list[str]()
        for code_line in lines:
            stripped = code_line.strip()
            if stripped.startswith(sign) and not stripped.strip(sign[0]):
                break
            code_lines.append(code_line)
        language = _LANGUAGE.match(fence_match[2].strip())
        output_lines += [
            "",
            format_code_fence("\n".join(code_lines), language[0] if language else ""),
            "",
        ]
    spaced = [
        line
        for line, previous in zip(output_lines, ["", *output_lines], strict=False)
        if line or previous
    ]
    return "\n".join(spaced).strip("\n")


def _sanitize_line(line: str) -> str:
    """Sanitize a line that is not in a fence. Code spans are not changed."""
    parts = list[str]()
    position = 0
    while (match := _UNWANTED_MARKDOWN.search(line, position)) is not None:
        parts.append(line[position : match.start()])
        sign = match[0]
        position = match.end()
        if sign == "`":
            span, position = _extract_code_span(line, match.start())
            parts.append(span)
        elif sign == "\\":
            escaped = line[position : position + 1]
            is_sign = escaped.isascii() and not escaped.isalnum() and not escaped.isspace()
            parts.append(_encode_entities(escaped or sign) if is_sign else _encode_entities(sign))
            parts.append(ZERO_WIDTH_SPACE if escaped in ("@", "#") else "")
            if is_sign:
                position += len(escaped)
        elif sign == "://":
            # Links through GitHub's redirect do not create a reference on the linked page.
            parts.append("://redirect.")
        elif len(sign) == 4:
            parts.append(f"{sign}{ZERO_WIDTH_SPACE}")
        else:
            parts.append(
                _separate_sign(sign)
                or (f"]{_encode_entities(sign[1])}" if sign[0] == "]" else _encode_entities(sign))
            )
    return "".join([*parts, line[position:]])


def _extract_code_span(line: str, start: int) -> tuple[str, int]:
    """Return the code span that starts at a position, and its end position. Backticks without a
    closing counterpart are text.
    """
    ticks = line[start : len(line) - len(line[start:].lstrip("`"))]
    for end in re.finditer("`+", line[start + len(ticks) :]):
        if len(end[0]) == len(ticks):
            code = line[start + len(ticks) : start + len(ticks) + end.start()]
            return f"{ticks}{code}{ticks}", start + len(ticks) + end.end()
    return _encode_entities(ticks), start + len(ticks)


def format_code_fence(text: str, language: str = "") -> str:
    """Return a text in a code fence that is longer than any fence in the text."""
    longest = max((len(backticks) for backticks in re.findall("`+", text)), default=0)
    ticks = "`" * max(3, longest + 1)
    return f"{ticks}{language}\n{text}\n{ticks}"
