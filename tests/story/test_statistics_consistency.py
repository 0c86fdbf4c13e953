"""The statistics of a recording are equal in all outputs: the terminal, the list, the sums and the
exports.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cast_builder import Moment, build_case_recording, build_recording
from export_helpers import export_recording
from fixture_cases import find_case
from recording_renderer import build_conversation_recording, encode_line, render_recording
from session_builder import build_full_session
from story_builder import (
    INIT,
    build_assistant_line,
    build_result_line,
    build_text_block,
    build_tool_result_line,
    build_tool_use,
    build_user_line,
)

from shim.commands.cast.run_summary import RecordedRunStatistics
from shim.commands.cast.summary_loader import load_run_summary
from shim.core.api_errors import describe_cause
from shim.story.export import atif as export_atif
from shim.story.export import html as export_html
from shim.story.export import markdown as export_markdown
from shim.story.export import ndjson as export_ndjson
from shim.story.formatting import (
    count_input_tokens,
    count_output_tokens,
    format_call_counts,
    format_cost,
    format_duration,
)
from tests.story.export.test_export_otel import spans_of

CASES = (
    "acai/2026-04-shellfail",
    "cake/2026-07-parallel",
    "claude/2.1.327-api-err529",
    "claude/2.1.327-denied-bash",
    "claude/2.1.327-in-two-msgs-sequential",
    "claude/2.1.327-in-user-midturn",
    "claude/2.1.327-tool-agent",
    "cursor/handmade-tool-zoo",
    "pi/1.5.2-bash-fail",
    "pi/1.5.2-two-prompts",
    "qwen/0.24.4-default-write",
    "qwen/0.24.4-in-two-turns",
    "qwen/handmade-subagent-foreground",
    "torture/claude-numbers",
)
ENDED = ("✓ done", "✗ failed", "⊘ ended", "■ interrupted")
ARGV = ["-p", "--input-format", "stream-json", "--output-format", "stream-json", "--verbose"]
USAGE = {
    "input_tokens": 1200,
    "output_tokens": 34,
    "cache_read_input_tokens": 5000,
    "cache_creation_input_tokens": 600,
}
DENIED = [{"tool_name": "Bash", "tool_use_id": "c", "tool_input": {}}]


def talk(*moments: tuple[float, str, dict[str, Any]]) -> bytes:
    lines: list[Moment] = [(at, letter, encode_line(event)) for at, letter, event in moments]
    return build_recording(lines, argv=ARGV)


def build_queued_recording() -> bytes:
    """Build a recording with two messages at once and a third one during a turn. One call fails,
    one is denied, and one has no result.
    """
    return talk(
        (0.0, "i", build_user_line("one")),
        (0.1, "i", build_user_line("two")),
        (0.5, "O", INIT),
        (
            2.0,
            "O",
            build_assistant_line(
                build_tool_use("a"), build_tool_use("b", "Read"), build_tool_use("c")
            ),
        ),
        (3.0, "O", build_tool_result_line("a", failed=True)),
        (3.5, "O", build_tool_result_line("b")),
        (4.0, "O", build_tool_result_line("c", failed=True)),
        (10.0, "O", build_result_line(0.25, num_turns=2, usage=USAGE, permission_denials=DENIED)),
        (12.0, "O", INIT),
        (14.0, "i", build_user_line("three")),
        (15.0, "O", build_assistant_line(build_tool_use("a"))),
        (
            20.0,
            "O",
            build_result_line(
                0.5, usage=USAGE, is_error=True, subtype="error_during_execution", errors=["no"]
            ),
        ),
        (21.0, "O", INIT),
        (25.0, "O", build_assistant_line(build_text_block("three"))),
        (26.0, "O", build_result_line(0.75, usage=USAGE)),
    )


CASTS = {
    "conversation": build_conversation_recording,
    "queued": build_queued_recording,
    "everything": lambda: build_full_session().build_recording(),
}


def _cast(name: str) -> bytes:
    return CASTS[name]() if name in CASTS else build_case_recording(find_case(name))


def _data(page: bytes) -> dict[str, Any]:
    match = re.search(rb'<script type="application/json"[^>]*>(.*?)</script>', page, re.DOTALL)
    assert match is not None
    return json.loads(match[1])


@pytest.fixture(params=[*CASTS, *CASES])
def cast(request: pytest.FixtureRequest) -> bytes:
    return _cast(request.param)


@pytest.fixture
def row(cast: bytes, tmp_path: Path) -> dict[str, Any]:
    """Return the entry of a recording in `shim cast list --json`."""
    (tmp_path / "row.cast").write_bytes(cast)
    return load_run_summary(str(tmp_path / "row.cast")).build_json()


def test_statistics_match_the_run_summary(cast: bytes, row: dict[str, Any], tmp_path: Path) -> None:
    statistic = RecordedRunStatistics()
    statistic.add_run(load_run_summary(str(tmp_path / "row.cast")))
    report = statistic.build_json()
    assert report["turns"]["count"] == row["turns"]
    assert [report["calls"][name] for name in ("calls", "failed", "denied")] == _calls(row)
    assert (report["tokens"], report["cost_usd"]) == (row["tokens"], pytest.approx(row["cost_usd"]))
    assert sum(report["errors"].values()) == row["errors"]


def test_html_totals_match_the_run_summary(
    cast: bytes, row: dict[str, Any], tmp_path: Path
) -> None:
    totals = _data(export_recording(export_html.write_recording_export, tmp_path, cast))["totals"]
    assert [totals[name] for name in ("turns", "errors", "tokens")] == [
        row[name] for name in ("turns", "errors", "tokens")
    ]
    assert [totals[name] for name in ("calls", "failed", "denied")] == _calls(row)
    assert totals["cost"] == row["cost_usd"]
    assert totals["duration"] == pytest.approx(1000 * row["duration_s"], abs=1)


def test_html_totals_match_the_html_steps(cast: bytes, tmp_path: Path) -> None:
    data = _data(export_recording(export_html.write_recording_export, tmp_path, cast))
    outcomes = [step["outcome"] for step in data["steps"] if step["kind"] == "call"]
    assert len(outcomes) == data["totals"]["calls"]
    assert [outcomes.count(outcome) for outcome in ("failed", "denied")] == [
        data["totals"][outcome] for outcome in ("failed", "denied")
    ]


def test_markdown_footer_matches_the_run_summary(
    cast: bytes, row: dict[str, Any], tmp_path: Path
) -> None:
    names, _, values = (
        export_recording(export_markdown.write_recording_export, tmp_path, cast)
        .decode()
        .strip()
        .splitlines()[-3:]
    )
    foot = dict(
        zip(
            *(map(str.strip, cells.strip("|").split("|")) for cells in (names, values)), strict=True
        )
    )
    assert foot["turns"].split()[0] == str(row["turns"]) and foot[
        "tool calls"
    ] == format_call_counts(*_calls(row))
    assert foot["tokens in"].split()[0] == f"{count_input_tokens(row['tokens']):,}"
    assert foot["tokens out"] == f"{count_output_tokens(row['tokens']):,}"
    assert foot["cost"] == (format_cost(row["cost_usd"]) or "–") and foot[
        "time"
    ] == format_duration(row["duration_s"])


def test_atif_metrics_match_the_run_summary(
    cast: bytes, row: dict[str, Any], tmp_path: Path
) -> None:
    metrics = json.loads(export_recording(export_atif.write_recording_export, tmp_path, cast))[
        "final_metrics"
    ]
    extra = metrics["extra"]
    assert (extra["turns"], extra["errors"]) == (row["turns"], row["errors"])
    assert [
        extra[name] for name in ("tool_calls", "failed_tool_calls", "denied_tool_calls")
    ] == _calls(row)
    assert metrics.get("total_prompt_tokens", 0) == count_input_tokens(row["tokens"])
    assert metrics.get("total_completion_tokens", 0) == count_output_tokens(row["tokens"])
    assert metrics.get("total_cost_usd", 0) == row["cost_usd"]
    assert extra["duration_s"] == pytest.approx(row["duration_s"], abs=0.001)


def test_otel_spans_match_the_run_summary(cast: bytes, row: dict[str, Any], tmp_path: Path) -> None:
    spans = [(span, _attributes(span)) for span in spans_of(tmp_path, cast)]
    turns = [
        attributes
        for span, attributes in spans
        if "parentSpanId" not in span and attributes.get("error.type") != "cut_off"
    ]
    tools = [
        attributes
        for _, attributes in spans
        if attributes["gen_ai.operation.name"] == "execute_tool"
    ]
    assert len(turns) == row["turns"] and len(tools) == row["calls"]
    assert sum("error.type" in attributes for attributes in turns) == row["errors"]
    assert sum(
        int(attributes.get("gen_ai.usage.input_tokens", 0)) for attributes in turns
    ) == count_input_tokens(row["tokens"])
    assert sum(
        int(attributes.get("gen_ai.usage.output_tokens", 0)) for attributes in turns
    ) == count_output_tokens(row["tokens"])


def test_ndjson_results_match_the_run_summary(
    cast: bytes, row: dict[str, Any], tmp_path: Path
) -> None:
    stream = export_recording(export_ndjson.write_recording_export, tmp_path, cast).splitlines()
    results = [
        json.loads(raw)
        for raw in stream
        if raw.startswith(b'{"type": "result"') or b'"type":"result"' in raw
    ]
    results = [event for event in results if event["type"] == "result"]
    assert (len(results), sum(event["is_error"] for event in results)) == (
        row["turns"],
        row["errors"],
    )


def test_terminal_output_matches_the_run_summary(cast: bytes, row: dict[str, Any]) -> None:
    drawn_lines = render_recording(cast).splitlines()
    ends = [each for each in drawn_lines if each.startswith(ENDED)]
    assert (
        len(ends) == row["turns"]
        and sum(each.startswith(("✗", "■")) for each in ends) == row["errors"]
    )
    if row["turns"] > 1 and row["duration_s"] >= 0.05:
        (session_line,) = (each for each in drawn_lines if each.startswith("session: "))
        assert f"{row['turns']} turns" in session_line and session_line.endswith(
            format_duration(row["duration_s"])
        )
        assert (
            not row["calls"] or f" · {format_call_counts(*_calls(row), 'calls')} · " in session_line
        )
        assert (
            f" {count_output_tokens(row['tokens']):,} out" in session_line
            and f" {count_input_tokens(row['tokens']):,} tokens in" in session_line
        )


def _calls(row: dict[str, Any]) -> list[int]:
    return [row["calls"], row["failed_calls"], row["denied_calls"]]


def _attributes(span: dict[str, Any]) -> dict[str, Any]:
    return {fact["key"]: next(iter(fact["value"].values())) for fact in span["attributes"]}


# -- one turn --------------------------------------------------------------------------------------


def test_turn_duration_starts_at_its_message_or_the_previous_result(tmp_path: Path) -> None:
    """A message during a turn does not shorten that turn. The turn of the message starts at the
    previous result.
    """
    took = [10.0, 10.0, 6.0]
    (tmp_path / "one.cast").write_bytes(build_queued_recording())
    assert load_run_summary(str(tmp_path / "one.cast")).turns.total == pytest.approx(sum(took))
    ends = [
        each
        for each in render_recording(build_queued_recording()).splitlines()
        if each.startswith(ENDED)
    ]
    assert [format_duration(seconds) in each for seconds, each in zip(took, ends, strict=True)] == [
        True
    ] * 3
    roots = [
        span for span in spans_of(tmp_path, build_queued_recording()) if "parentSpanId" not in span
    ]
    assert [
        (int(span["endTimeUnixNano"]) - int(span["startTimeUnixNano"])) / 1e9 for span in roots
    ] == took


def test_turn_without_a_message_starts_with_its_first_output(tmp_path: Path) -> None:
    cast = talk(
        (1.0, "i", build_user_line("one")),
        (3.0, "O", build_result_line()),
        (60.0, "O", build_assistant_line(build_text_block("by itself"))),
        (61.0, "O", build_result_line()),
    )
    (tmp_path / "one.cast").write_bytes(cast)
    assert load_run_summary(str(tmp_path / "one.cast")).turns.total == 3.0


def test_token_text_of_a_turn_is_the_same_in_html_and_terminal(tmp_path: Path) -> None:
    """The input tokens include the tokens from a cache."""
    cast = build_queued_recording()
    data = _data(export_recording(export_html.write_recording_export, tmp_path, cast))
    token_texts = [
        dict(step["facts"])["tokens"] for step in data["steps"] if step["kind"] == "result"
    ]
    assert token_texts == ["6,800 in (5,000 cached), 34 out"] * 3
    assert render_recording(cast).count("6,800 tokens in (5,000 cached), 34 out") == 3


def _causes(cast: bytes, folder: Path) -> Iterator[str]:
    (folder / "one.cast").write_bytes(cast)
    yield describe_cause(load_run_summary(str(folder / "one.cast")).outcome)
    steps = _data(export_recording(export_html.write_recording_export, folder, cast))["steps"]
    yield describe_cause(
        next(dict(step["facts"])["failed"] for step in steps if step["kind"] == "result")
    )
    line = next(each for each in render_recording(cast).splitlines() if each.startswith("✗"))
    yield line.removeprefix("✗ failed: ").partition(" · ")[0]
    attributes = [
        _attributes(span) for span in spans_of(folder, cast) if "parentSpanId" not in span
    ]
    yield describe_cause(attributes[0]["error.type"])


@pytest.mark.parametrize(
    "name", ["claude/2.1.327-api-err529", "claude/2.1.327-max-turns-2", "pi/1.5.2-e401"]
)
@pytest.mark.parametrize("ours", [True, False], ids=["ours", "a real claude's"])
def test_failure_cause_of_a_turn_is_the_same_in_all_outputs(
    name: str, ours: bool, tmp_path: Path
) -> None:
    cast = build_case_recording(find_case(name))
    if not ours:  # without the fields that only the shim writes
        cast = re.sub(rb'\\"shim\\":', rb'\\"shin\\":', cast)
    causes = set(_causes(cast, tmp_path))
    assert len(causes) == 1 and not causes & {"success", "unknown", "completed", ""}


def test_oversized_line_is_reported_in_all_outputs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shim.story.reader.MAX_LINE_BYTES", 1_000_000)
    cast = talk(
        (0.0, "O", build_assistant_line(build_text_block("x" * 3_000_000))),
        (1.0, "O", build_result_line()),
    )
    message = "1 line of the session could not be read because of excessive length"
    assert message in render_recording(cast)
    assert (
        message in export_recording(export_markdown.write_recording_export, tmp_path, cast).decode()
    )
    assert any(
        message in note
        for note in _data(export_recording(export_html.write_recording_export, tmp_path, cast))[
            "notes"
        ]
    )
