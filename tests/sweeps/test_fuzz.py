"""The fuzzers themselves: the same entry point with fixed seeds, and a broken Turn is detected."""

import tomllib
from collections.abc import Sequence
from pathlib import Path
from random import Random

import pytest
import sweeps
from fuzzing.dialects import DIALECTS, PRESENT
from fuzzing.edits import EDITS, apply_edit
from fuzzing.findings import (
    Findings,
    find_failure,
    list_knobs_without_fixture,
    shrink_run,
    write_fixture,
)
from fuzzing.hypothesis_fuzzer import RUNS, build_runs, create_profile
from fuzzing.inputs import (
    FLOOD,
    FLOOD_LINES,
    KNOBS,
    FuzzRun,
    build_knobs,
    encode_input,
    parse_input,
)
from fuzzing.seeds import TORTURE, build_pool, group_seeds_by_target, list_seeds
from fuzzing.targets import CHILDREN, TARGETS
from hypothesis import given, settings
from sweeps import loop_over_rows

from shim.adapters import VENDORS
from shim.core.claude.control import ControlSession
from shim.core.claude.writer import StreamJsonWriter
from shim.core.turn.context import ConversationState

NAMES = tuple(TARGETS)
ROUNDS = 150 if sweeps.full else 100


def inputs(chance: Random, count: int, among: Sequence[FuzzRun]) -> list[list[FuzzRun]]:
    """Return `count` inputs as the fuzzers create them."""
    made = []
    for _ in range(count):
        seed = chance.choice(among)
        knobs = tuple(chance.randrange(1 << 16) for _ in KNOBS)
        run = seed._replace(lines=list(seed.lines), knobs=knobs)
        for _ in range(chance.choice((1, 2, 4, 8))):
            run = apply_edit(
                run, chance.randrange(len(EDITS)), chance.getrandbits(32), build_pool()
            )
        made.append([run])
    return made


def run_small_fuzz(
    folder: Path, count: int = ROUNDS, *, every: str = "", until: str = ""
) -> Findings:
    """Return the findings of a small, repeatable run.

    `every` limits it to one target. `until` stops it when a failure contains that text.
    """
    book = Findings(folder, "small")
    for runs in inputs(Random(9), count, group_seeds_by_target()[every] if every else list_seeds()):
        book.check_runs(parse_input(encode_input(runs), NAMES))
        if until and has_failure(until, book):
            break
    return book


def has_failure(text: str, book: Findings) -> bool:
    """Return whether a failure contains `text`."""
    return any(text in failure for failure in book.failures.values())


def test_small_fuzz_run_reports_no_failures(tmp_path):
    book = run_small_fuzz(tmp_path)
    assert not book.failures
    assert book.count_child_lines() > 15 * ROUNDS


@pytest.mark.full
@settings(create_profile(20), derandomize=True)
@given(plan=RUNS)
def test_hypothesis_runs_report_no_failures(plan):
    assert [run for run in build_runs(plan) if find_failure(run)] == []


@pytest.mark.full
def test_unmodified_seeds_report_no_failures():
    assert [run for run in list_seeds() if find_failure(run)] == []


def test_every_vendor_and_target_has_seeds():
    assert set(CHILDREN) == set(VENDORS)
    assert "claude" in PRESENT and set(PRESENT) <= set(DIALECTS)
    assert {run.target for run in list_seeds()} == set(TARGETS)


# -- the checker finds errors ----------------------------------------------------------------------


# Tries until a seeded fault is found. Most are found at once; a reused id needs a stream with such
# an id.
MOST_TRIES = 400
FLOODED = {
    "kinds": ("pi", b'{"type":"kind %d"}'),
    "calls": ("demo", b'{"type":"call","id":"call %d","name":"Bash","input":{}}'),
}


def _without_results(monkeypatch):
    monkeypatch.setattr(StreamJsonWriter, "write_tool_result", lambda *_: None)


def _twice(monkeypatch):
    says = StreamJsonWriter.write_result
    monkeypatch.setattr(
        StreamJsonWriter,
        "write_result",
        lambda writer, fields: (says(writer, fields), says(writer, fields)),
    )


def _without_escapes(monkeypatch):
    monkeypatch.setattr("shim.core.claude.writer.escape_line_separators", lambda dumped: dumped)
    monkeypatch.setattr("shim.core.turn.text_blocks.escape_line_separators", lambda dumped: dumped)
    monkeypatch.setattr("shim.core.reading.json_text.escape_line_separators", lambda dumped: dumped)


def _with_reused_ids(monkeypatch):
    monkeypatch.setattr(
        ConversationState, "reserve_call_id", lambda conversation, call_id, diagnostics: call_id
    )


def _without_ends_of_blocks(monkeypatch):
    monkeypatch.setattr(StreamJsonWriter, "end_block", lambda writer: None)


def _with_unbounded_diagnostics(monkeypatch):
    monkeypatch.setattr("shim.core.reading.diagnostics.MAX_KINDS", 1 << 30)


def _with_an_unbounded_memory(monkeypatch):
    monkeypatch.setattr(ConversationState, "clear_old_call_ids", lambda conversation: None)


def _divide_by_zero(monkeypatch):
    monkeypatch.setattr("shim.core.turn.result._count_turns", lambda *_: 1 // 0)


def _by_chunks(monkeypatch):
    from shim.core.adapter.child_stream import ChildStream
    from shim.core.adapter.commands import StreamOutput

    feed = ChildStream.feed

    def fed(translation: ChildStream, chunk: bytes) -> StreamOutput:
        translation.diagnostics.record("chunk")
        return feed(translation, chunk)

    monkeypatch.setattr(ChildStream, "feed", fed)


def _deaf(monkeypatch):
    monkeypatch.setattr(ControlSession, "_write_response", lambda *_: None)


@pytest.mark.parametrize(
    ("breaking", "target", "expected"),
    [
        (_without_results, "qwen", "calls without a result"),
        (_twice, "pi", "init comes first (S1), not result"),
        (_without_escapes, "pi", "separators are escaped"),
        (_with_reused_ids, "qwen", "used twice"),
        (_without_ends_of_blocks, "pi", "blocks do not overlap"),
        (_with_unbounded_diagnostics, "kinds", "so many kinds"),
        (_with_an_unbounded_memory, "calls", "entries"),
        (_divide_by_zero, "acai", "a mistake of ours"),
        (_by_chunks, "acai", "in pieces it is said otherwise"),
        (_deaf, "control", "answers (C5)"),
    ],
    ids=lambda value: value.__name__.strip("_") if callable(value) else "",
)
def test_fuzzer_detects_seeded_defects(tmp_path, monkeypatch, breaking, target, expected):
    breaking(monkeypatch)
    if target in FLOODED:
        book = Findings(tmp_path, "small")
        book.check_runs(
            [
                FuzzRun(
                    FLOODED[target][0],
                    build_knobs(cut=9),
                    [FLOOD + b"%d " % FLOOD_LINES + FLOODED[target][1]],
                )
            ]
        )
    else:
        book = run_small_fuzz(tmp_path, MOST_TRIES, every=target, until=expected)
    assert has_failure(expected, book), book.failures


# -- handling of a finding -------------------------------------------------------------------------


def test_fuzz_input_survives_encoding_and_parsing():
    runs = [
        FuzzRun("pi", build_knobs(partial=1, cut=77), [b'{"a":1}', b"", b"\xff"]),
        FuzzRun("control", build_knobs(), [b"x"]),
    ]
    assert parse_input(encode_input(runs), NAMES) == runs


@loop_over_rows(
    "data", [b"", b"\n", b"\x1c", b"\x1cnobody 1 x -1 99999999999 \xff\nline", b"no head\nat all"]
)
def test_any_bytes_parse_to_runs_with_a_valid_target(data):
    assert all(run.target in TARGETS for run in parse_input(data, NAMES))


@loop_over_rows("edit", range(len(EDITS)))
def test_every_edit_accepts_any_run(edit):
    for lines in ([], [b""], list(TORTURE), [b'{"a":[1,{"b":"c"}]}'] * 3):
        for seed in range(20):
            assert (
                apply_edit(
                    FuzzRun("pi", build_knobs(), list(lines)), edit, seed, build_pool()
                ).target
                == "pi"
            )


def test_flood_expands_to_a_bounded_number_of_lines():
    flooded = FuzzRun("pi", build_knobs(), [FLOOD + b"99999999 a%d", FLOOD + b"5 b"])
    lines = list(flooded.expand_lines())
    assert (lines[0], lines[1], lines[-1], len(lines)) == (b"a0", b"a1", b"b", FLOOD_LINES + 1)
    assert flooded.count_flood_lines() == FLOOD_LINES


def test_failing_run_is_shrunk_to_a_single_line(monkeypatch):
    _without_results(monkeypatch)
    lines = [line for line in build_pool().lines["acai"] if b"function_call" in line][:3]
    run = FuzzRun(
        "acai", build_knobs(partial=1, cut=9, exit=3), [*TORTURE[:9], *lines, *TORTURE[9:20]]
    )
    name, _ = find_failure(run)
    small = shrink_run(run, lambda other: (find_failure(other) or ("",))[0] == name)
    assert len(small.lines) == 1 and len(small.lines[0]) < len(lines[0])
    assert list_knobs_without_fixture(small) == []


def test_failing_run_is_written_as_a_fixture(tmp_path, monkeypatch):
    monkeypatch.setattr("fuzzing.findings.FIXTURES", tmp_path)
    (tmp_path / "pi").mkdir()
    folder = write_fixture(
        FuzzRun("pi", build_knobs(partial=1, exit=5), [b"{}", b"\xff"]),
        "odd-byte",
        "an odd byte is counted",
    )
    assert (folder / "vendor.ndjson").read_bytes() == b"{}\n\xff"
    metadata = tomllib.loads((folder / "case.toml").read_text())
    assert (metadata["partial"], metadata["exit"], metadata["pins"]) == (
        True,
        "SIGTERM",
        "an odd byte is counted",
    )


def test_knobs_that_a_fixture_cannot_store_are_listed():
    assert list_knobs_without_fixture(FuzzRun("pi", build_knobs(terms=2, limit=1), [])) == [
        "terms",
        "limit",
    ]
