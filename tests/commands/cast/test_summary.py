"""Runs in numbers: bounded, exact where it can be, and the same added up in any order."""

import pytest

from shim.commands.cast.summary import (
    NAMES,
    SAMPLES,
    CallCounts,
    RecordedRun,
    Statistic,
    Times,
    by_time,
    count,
    excerpt,
    named,
    short,
)
from shim.core.reading.account import OVERFLOW


def times_of(*seconds):
    times = Times()
    for number in seconds:
        times.add(number)
    return times


def test_median_and_percentile_of_a_few_are_exact():
    times = times_of(5.0, 1.0, 3.0, 2.0, 4.0)
    assert (times.count, times.total, times.at(0.5), times.at(0.95)) == (5, 15.0, 3.0, 5.0)
    assert Times().at(0.5) == 0.0


def test_of_many_times_a_bounded_sample_is_kept():
    times = times_of(*(number % 1000 / 10 for number in range(5 * SAMPLES + 3)))
    assert len(times._kept) <= SAMPLES
    assert times.count == 5 * SAMPLES + 3
    assert times.at(0.5) == pytest.approx(50, abs=1) and times.at(0.95) == pytest.approx(95, abs=1)


def test_merged_times_are_those_of_both():
    one, other = times_of(1.0, 2.0), times_of(3.0)
    one.merge(other)
    assert (one.count, one.total, one.at(0.95)) == (3, 6.0, 3.0)
    many = times_of(*([2.0] * (3 * SAMPLES)))
    one.merge(many)
    assert (one.count, one.total) == (3 * SAMPLES + 3, 6.0 * SAMPLES + 6.0)
    one.merge(Times())
    assert one.count == 3 * SAMPLES + 3


def test_names_that_are_too_many_are_counted_together():
    counts: dict[str, int] = {}
    for number in range(NAMES + 50):
        count(counts, f"n{number}")
    assert len(counts) == NAMES + 1 and counts[OVERFLOW] == 50
    tools = {f"t{number}": CallCounts() for number in range(NAMES)}
    assert named(tools, "t3") == "t3" and named(tools, "another") == OVERFLOW


def test_a_name_is_one_short_line_that_nothing_obeys():
    assert short("a\nb\tc\x1b[31m") == "a\\nb c\\x1b[31m"
    assert len(short("x" * 1000)) == 80


def test_an_excerpt_is_one_line():
    assert excerpt("  do\n\n this \tand that ") == "do this and that"


def test_runs_added_up_are_their_sums():
    statistic = Statistic()
    for number in (1, 2):
        run = RecordedRun(f"{number}.cast")
        run.tools["Bash"] = CallCounts(calls=number, failed=1, times=times_of(*([0.5] * number)))
        run.totals.tokens["output_tokens"] = 10 * number
        run.totals.cost = 0.25
        run.totals.repairs["json"] = number
        run.causes["auth"] = 1
        run.turns.add(number)
        statistic.add(run)
    report = statistic.report()
    assert (report["runs"], report["turns"]["count"], report["turns"]["total_s"]) == (2, 2, 3.0)
    assert (report["calls"]["calls"], report["calls"]["failed"], report["calls"]["total_s"]) == (
        3,
        2,
        1.5,
    )
    assert (report["tokens"], report["cost_usd"]) == ({"output_tokens": 30}, 0.5)
    assert (report["errors"], report["repairs"], report["states"]) == (
        {"auth": 2},
        {"json": 3},
        {"whole": 2},
    )


def test_tools_are_ordered_by_the_time_they_took():
    tools = {
        "a": CallCounts(calls=9),
        "b": CallCounts(calls=1, times=times_of(2.0)),
        "c": CallCounts(calls=10),
    }
    assert [name for name, _ in by_time(tools)] == ["b", "c", "a"]
