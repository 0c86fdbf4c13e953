"""Hostile output of the child: the text that reaches the shim also reaches the frontend, and every
repair is counted.
"""

from functools import cache

import sweeps
from fixture_cases import find_case, list_fixture_cases, translate_case
from hostile_input import (
    LOSSY,
    REPAIRABLE,
    clean_lines,
    damage_stream,
    join_lines,
    summarize_stream,
)
from stream_invariants import check_frames, check_turns
from sweeps import (
    choose_small_cases,
    iterate_rounds,
    loop_over_cases,
    loop_over_rows,
    split_into_chunks,
)

CASES = [
    case for case in list_fixture_cases() if case.data.startswith(b"{") and len(case.data) < 60_000
]
# One fixture of each vendor and of each of its protocols.
CHOSEN = [
    "acai/0.1.0-parallel",
    "acai/2026-04-files",
    "cake/2026-07-files",
    "claude/2.1.327-tool-bash-partial",
    "cursor/shape-2026.08-partial-with-tool",
    "cursor/handmade-tool-zoo",
    "pi/0.73.1-parallel",
    "pi/1.5.2-think-tool",
    "pi/1.5.2-unicode",
    "qwen/0.24.4-partial-tool",
    "qwen/0.24.4-unicode",
]
# Damage on unread lines needs no repair.
QUIET = (
    "carriage returns",
    "key twice",
    "separators",
    "nul padding",
    "blank lines",
    "long integer",
)
# Most of pi's lines are never read. Another event on such a line is only found directly after it.
UNSEEN = "ten with something between"


def check_output(case, output, partial):
    return check_frames(output) if case.passthrough else check_turns(output, partial)


def positions(lines, count=4):
    """Return the positions of the first line, the last line and some lines between."""
    return sorted({0, len(lines) - 1, *range(0, len(lines), max(1, len(lines) // count))})


# After an unread line of pi's, only an event directly after it is found: a search would slow down
# every line.
REPAIRED = [
    (name, damage)
    for name in CHOSEN
    for damage in REPAIRABLE
    if (find_case(name).vendor, damage) != ("pi", UNSEEN)
]


@cache
def translate_undamaged(name):
    """Return the output for a full fixture, without and with partial messages."""
    return [
        summarize_stream(translate_case(find_case(name), partial)[0]) for partial in (False, True)
    ]


@loop_over_rows(("name", "damage"), REPAIRED)
def test_repairable_damage_does_not_change_the_output(name, damage):
    chosen = find_case(name)
    lines = clean_lines(chosen.data)
    expected = translate_undamaged(name)
    for number, at in enumerate(positions(lines, 4 if sweeps.full else 1)):
        partial = bool(number % 2)
        bad = join_lines(REPAIRABLE[damage](lines, at))
        output, translation = translate_case(chosen, partial, data=bad)
        check_output(chosen, output, partial)
        assert summarize_stream(output) == expected[partial], f"{damage} at line {at}"
        report = translation.diagnostics.build_report()
        for entry in (report["repairs"] | report["unknown_events"]).values():
            assert entry.get("first"), f"{report} has the first of each"
        if bad != chosen.data and damage not in QUIET and b"hostile" in bad:
            assert report["repairs"] or chosen.vendor == "pi", (
                "pi's lines that nobody reads need no repair"
            )


QUESTIONS = (b'"control_re', b'"session/request_permission"')


@loop_over_cases(CASES, quick=choose_small_cases)
def test_repeated_damage_in_split_chunks_does_not_change_the_output(case):
    glued = ("two on a line", "ten on a line", UNSEEN) if case.vendor == "pi" else ()
    kinds = {name: damage for name, damage in REPAIRABLE.items() if name not in glued}
    for chance in iterate_rounds(2 if sweeps.full else 1, case):
        partial = chance.random() < 0.5
        output, _ = translate_case(
            case,
            partial,
            chunks=split_into_chunks(chance, damage_stream(chance, case.data, kinds), 20),
        )
        check_output(case, output, partial)
        # A question is never taken from a repaired line.
        if not any(marker in case.data for marker in QUESTIONS):
            assert summarize_stream(output) == summarize_stream(translate_case(case, partial)[0])


@loop_over_cases(CASES, quick=choose_small_cases)
def test_unrepairable_damage_does_not_break_the_output_contract(case):
    for chance in iterate_rounds(2 if sweeps.full else 1, case):
        partial = chance.random() < 0.5
        bad = damage_stream(chance, case.data, REPAIRABLE | LOSSY)
        check_output(case, translate_case(case, partial, data=bad)[0], partial)
