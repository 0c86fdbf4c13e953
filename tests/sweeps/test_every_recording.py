"""Every recording of every vendor: the stream invariants, the full text exactly once, the calls
with their arguments, and the usage.

The fixtures are always tested. SHIM_RECORDINGS names a folder of more recordings in the same layout
(`VENDOR/CASE/` with `vendor.ndjson` and `case.toml`):

    SHIM_RECORDINGS=~/recordings pytest tests/sweeps/test_every_recording.py

The test reads the vendor's output without the shim, as simply as the vendor's page allows. A vendor
in the folder without an adapter is skipped and named at the end.
"""

import os
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from fixture_cases import Case, list_fixture_cases, translate_case
from stream_invariants import check_frames, check_turns
from sweeps import loop_over_cases

from shim.adapters import VENDORS

Event = dict[str, Any]
NO_VENDORS = ("claude-clients",)  # what clients sent to a claude
# In a folder of recordings. Its only recording is a text line without a login.
NOT_YET = frozenset(("auggie",))

# Recordings whose text differs, with the reason. The names of a folder's recordings may lack the
# version of a fixture.
TEXT_OTHERWISE = {
    "claude/2.1.327-fmt-json": "its answer is in its result alone",
    "claude/2.1.327-json-schema-ok": "its answer is structured",
    "claude/2.1.327-tool-agent": "its subagent says the same",
    "pi/1.5.2-rpc-steer": "two answers of the same words in one run",
    "pi/1.5.2-two-prompts": "two answers of the same words in one run",
    "qwen/0.15.10-http401": "it says an error as its answer, we say it as an error",
    "qwen/0.24.4-schema": "its answer is structured",
    "qwen-rfc/handmade-session-finished": "it says more behind its end",
}
PIECES_OTHERWISE = {
    "torture/pi-deep-nesting-3000": "a fragment is read where its whole text is too deep to be"
}
CALLS_OTHERWISE = {
    "acai/0.1.0-badargs": "the model's arguments are no JSON",
    "codex/0.169.0-applypatch": "it does not print what it wrote (topic limits)",
    "codex/applypatch": "the same",
    "qwen-rfc/handmade-arguments-not-json": "the model's arguments are no JSON",
}
WITHOUT_USAGE = frozenset(("copilot",))  # reports token counts, but not those of the model's input


def recordings(folder: str) -> Iterator[Case]:
    """Yield the recordings of a folder whose vendor has an adapter."""
    for data in sorted(Path(folder).glob("*/*/vendor.ndjson")):
        metadata = tomllib.loads((data.parent / "case.toml").read_text(encoding="utf-8"))
        vendor = metadata.get("vendor", data.parent.parent.name)
        if vendor == "torture":
            vendor = data.parent.name.partition("-")[0]
        if vendor not in NO_VENDORS:
            yield Case(
                f"{data.parent.parent.name}/{data.parent.name}*", data.parent, vendor, metadata
            )


def collect_cases() -> tuple[list[Case], list[str]]:
    """Return all tested cases, and the names of those without an adapter."""
    cases = [case for case in list_fixture_cases() if "fuzz-" not in case.name]
    folder = os.environ.get("SHIM_RECORDINGS")
    more = list(recordings(folder)) if folder else []
    unknown = [case.name for case in more if case.vendor not in VENDORS]
    return cases + [case for case in more if case.vendor in VENDORS], unknown


CASES, UNKNOWN = collect_cases()


# -- the vendor's output, read without the shim ----------------------------------------------------


def _content(message: Event, kind: str = "text") -> str:
    content = message.get("content")
    if isinstance(content, str):
        return content
    return "".join(
        block.get(kind, "")
        for block in content or ()
        if isinstance(block, dict) and block.get("type") == kind
    )


def _result(events: list[Event]) -> str:
    """Return the `result` of the last `result` event, or "" if that is an error."""
    last = [event for event in events if event.get("type") == "result"][-1:]
    text = last[0].get("result") if last and not last[0].get("is_error") else ""
    return text if isinstance(text, str) else ""


def _pi(events: list[Event]) -> str:
    ends = [event["message"] for event in events if event.get("type") == "message_end"]
    replies = [
        message
        for message in ends
        if isinstance(message, dict) and message.get("role") == "assistant"
    ]
    return _content(replies[-1]) if replies and replies[-1].get("stopReason") == "stop" else ""


def _codex(events: list[Event]) -> str:
    items = [event.get("item") or {} for event in events if event.get("type") == "item.completed"]
    return "".join(
        str(item.get("text"))
        for item in [item for item in items if item.get("type") == "agent_message"][-1:]
    )


def _gemini(events: list[Event]) -> str:
    text = ""
    for event in events:
        if event.get("type") == "message" and event.get("role") == "assistant":
            text += str(event.get("content"))
        elif event.get("type") in ("tool_use", "message"):
            text = ""
    return text


def _opencode(events: list[Event]) -> str:
    parts = [event.get("part") or {} for event in events if event.get("type") == "text"]
    return "".join(str(part.get("text")) for part in parts[-1:])


def _copilot(events: list[Event]) -> str:
    messages = [
        event.get("data") or {} for event in events if event.get("type") == "assistant.message"
    ]
    return "".join(str(message.get("content") or "") for message in messages[-1:])


def _droid(events: list[Event]) -> str:
    ends = [event for event in events if event.get("type") == "completion"]
    return str(ends[-1].get("finalText") or "") if ends else ""


def _cline(events: list[Event]) -> str:
    ends = [event for event in events if event.get("type") == "run_result"]
    return str(ends[-1].get("text") or "") if ends else ""


def _kimi(events: list[Event]) -> str:
    replies = [event for event in events if event.get("role") == "assistant"]
    return _content(replies[-1]) if replies else ""


def _vibe(events: list[Event]) -> str:
    replies = [
        event
        for event in events
        if event.get("type") == "message" and event.get("role") == "assistant"
    ]
    return _content(replies[-1]) if replies and not replies[-1].get("outcome") else ""


def _rfc(events: list[Event]) -> str:
    choices = [
        event["choices"][0] for event in events if event.get("choices") and event.get("object")
    ]
    messages = [entry["message"] for entry in choices if isinstance(entry.get("message"), dict)]
    replies = [entry for entry in messages if entry.get("role") == "assistant"]
    return _content(replies[-1]) if replies else ""


LAST_TEXT_READERS: dict[str, Callable[[list[Event]], str]] = {
    **dict.fromkeys(("acai", "cake", "amp", "claude", "cursor", "qwen"), _result),
    **{"pi": _pi, "codex": _codex, "gemini": _gemini, "opencode": _opencode, "kilo": _opencode},
    **{"qwen-rfc": _rfc, "copilot": _copilot, "droid": _droid, "cline": _cline, "vibe": _vibe},
    **{"kimi": _kimi, "kimi-code": _kimi},
}

# The arguments that a call of Claude's needs.
NEEDED = {
    "Bash": ("command",),
    "Read": ("file_path",),
    "Write": ("file_path", "content"),
    "Edit": ("file_path",),
    "Glob": ("pattern",),
    "Grep": ("pattern",),
    "WebFetch": ("url",),
    "TodoWrite": ("todos",),
}
ONCE_CHARACTERS = 12  # a shorter text may be contained in another text
COUNTED = (
    "input_tokens",
    "output_tokens",
    "cache_read_input_tokens",
    "cache_creation_input_tokens",
)


def name_of(case: Case) -> str:
    """Return the name of a fixture or of a recording in a folder."""
    return case.name.removesuffix("*")


def events_of(case: Case) -> list[Event]:
    """Return the vendor's lines that are objects, including those inside a list."""
    flat: list[Any] = []
    for event in case.parse_events():
        flat += event if isinstance(event, list) else [event]
    return [event for event in flat if isinstance(event, dict)]


def blocks_of(turn: list[Event], kind: str) -> list[Event]:
    """Return the main agent's blocks of a kind in a turn."""
    lines = [
        line for line in turn if line["type"] == "assistant" and not line.get("parent_tool_use_id")
    ]
    return [
        block for line in lines for block in line["message"]["content"] if block["type"] == kind
    ]


def turns_of(case: Case, partial: bool) -> list[list[Event]]:
    """Return the turns of the shim's output, with all invariants checked."""
    output, translation = translate_case(case, partial)
    bad = {kind for kind in translation.diagnostics.repairs if kind.startswith("malformed")}
    assert not bad or case.name.startswith("torture/"), (
        f"our own mistake: {translation.diagnostics.build_report()}"
    )
    return check_frames(output) if case.passthrough else check_turns(output, partial)


# -- checks for every recording --------------------------------------------------------------------


@loop_over_cases(CASES)
def test_translation_is_valid_and_equal_with_and_without_partials(case):
    full_turns, pieces = turns_of(case, False), turns_of(case, True)
    assert len(full_turns) == len(pieces) >= 1
    if case.passthrough or name_of(case) in PIECES_OTHERWISE:
        return
    texts = [
        ["".join(block["text"] for block in blocks_of(turn, "text")) for turn in turns]
        for turns in (full_turns, pieces)
    ]
    assert texts[0] == texts[1]
    ends = [[turn_result(turn) for turn in turns] for turns in (full_turns, pieces)]
    assert ends[0] == ends[1]


def turn_result(turn: list[Event]) -> Any:
    """Return what a turn's result states about its end."""
    (line,) = (line for line in turn if line["type"] == "result")
    return [
        line.get(key) for key in ("subtype", "is_error", "result", "errors", "num_turns", "usage")
    ]


@loop_over_cases(case for case in CASES if case.vendor in LAST_TEXT_READERS)
def test_last_text_of_a_recording_is_written_exactly_once(case):
    expected = LAST_TEXT_READERS[case.vendor](events_of(case)).strip()
    if len(expected) < ONCE_CHARACTERS or name_of(case) in TEXT_OTHERWISE:
        return
    # A lone surrogate cannot be written.
    expected = expected.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    texts = [
        "".join(block["text"] for block in blocks_of(turn, "text"))
        for turn in turns_of(case, False)
    ]
    assert [text.count(expected) for text in texts if text][-1:] == [1]


@loop_over_cases(case for case in CASES if not case.passthrough)
def test_tool_calls_have_the_arguments_that_frontends_need(case):
    for turn in turns_of(case, False):
        failed = {
            block["tool_use_id"]
            for line in turn
            if line["type"] == "user"
            for block in line["message"]["content"]
            if block["type"] == "tool_result" and block.get("is_error")
        }
        for block in blocks_of(turn, "tool_use"):
            missing = [key for key in NEEDED.get(block["name"], ()) if key not in block["input"]]
            is_expected = block["id"] in failed or name_of(case) in CALLS_OTHERWISE
            assert not missing or is_expected, (
                f"{block['name']} without {missing}: {block['input']}"
            )


@loop_over_cases(case for case in CASES if not case.passthrough)
def test_usage_is_counted_if_the_vendor_reports_tokens(case):
    """Applies to a full turn whose vendor reports token counts in any form."""
    numbers = [number for event in events_of(case) for number in tokens(event)]
    for turn in turns_of(case, False)[-1:]:
        (line,) = (line for line in turn if line["type"] == "result")
        total = sum(line["usage"][name] for name in COUNTED)
        silent = line["is_error"] or case.vendor in WITHOUT_USAGE or not any(numbers)
        assert total or silent, f"it says {sorted(set(numbers))[-5:]}"
        # This test does not read broken lines.
        assert not total or any(numbers) or case.name.startswith("torture/")


def tokens(value: Any, inside: bool = False) -> Iterator[int]:
    """Yield all numbers under a key about tokens or usage."""
    if isinstance(value, dict):
        for key, inner in value.items():
            about = any(part in str(key).lower() for part in ("token", "usage"))
            yield from tokens(inner, inside or about)
    elif isinstance(value, list):
        for inner in value:
            yield from tokens(inner, inside)
    elif inside and isinstance(value, int) and not isinstance(value, bool):
        yield value


def test_untranslated_recordings_belong_to_unsupported_vendors():
    assert {name.partition("/")[0] for name in UNKNOWN} <= NOT_YET


def test_every_recorded_vendor_has_a_text_reader():
    looked_at = {case.vendor for case in CASES}
    assert looked_at <= set(LAST_TEXT_READERS) | {"demo"}, "its last text is read nowhere"
    assert {"acai", "claude", "codex", "cursor", "gemini", "opencode", "pi", "qwen"} <= looked_at
