"""Statistics of runs: bounded, exact if possible, and independent of the order of addition."""

import pytest

from shim.commands.cast.run_summary import (
    MAX_NAMES,
    MAX_SAMPLES,
    DurationSamples,
    RecordedRunStatistics,
    RecordedRunSummary,
    ToolCallCounts,
    choose_counter_key_or_overflow_key,
    format_prompt_excerpt,
    increment_counter,
    redact_secrets_in_name,
    sort_tools_by_total_time,
)
from shim.core.reading.diagnostics import OVERFLOW_KIND


def times_of(*seconds):
    times = DurationSamples()
    for number in seconds:
        times.add_duration(number)
    return times


def test_percentiles_of_few_samples_are_exact():
    times = times_of(5.0, 1.0, 3.0, 2.0, 4.0)
    assert (
        times.count,
        times.total,
        times.compute_percentile(0.5),
        times.compute_percentile(0.95),
    ) == (5, 15.0, 3.0, 5.0)
    assert DurationSamples().compute_percentile(0.5) == 0.0


def test_percentiles_of_many_durations_use_a_bounded_sample():
    times = times_of(*(number % 1000 / 10 for number in range(5 * MAX_SAMPLES + 3)))
    assert len(times._samples) <= MAX_SAMPLES
    assert times.count == 5 * MAX_SAMPLES + 3
    assert times.compute_percentile(0.5) == pytest.approx(50, abs=1) and times.compute_percentile(
        0.95
    ) == pytest.approx(95, abs=1)


def test_merge_combines_counts_and_totals():
    times, other = times_of(1.0, 2.0), times_of(3.0)
    times.merge(other)
    assert (times.count, times.total, times.compute_percentile(0.95)) == (3, 6.0, 3.0)
    many = times_of(*([2.0] * (3 * MAX_SAMPLES)))
    times.merge(many)
    assert (times.count, times.total) == (3 * MAX_SAMPLES + 3, 6.0 * MAX_SAMPLES + 6.0)
    times.merge(DurationSamples())
    assert times.count == 3 * MAX_SAMPLES + 3


def test_names_over_the_limit_are_counted_under_the_overflow_key():
    counts: dict[str, int] = {}
    for number in range(MAX_NAMES + 50):
        increment_counter(counts, f"n{number}")
    assert len(counts) == MAX_NAMES + 1 and counts[OVERFLOW_KIND] == 50
    tools = {f"t{number}": ToolCallCounts() for number in range(MAX_NAMES)}
    assert (
        choose_counter_key_or_overflow_key(tools, "t3") == "t3"
        and choose_counter_key_or_overflow_key(tools, "another") == OVERFLOW_KIND
    )


def test_redact_name_escapes_and_shortens_the_name():
    assert redact_secrets_in_name("a\nb\tc\x1b[31m") == "a\\nb c\\x1b[31m"
    assert len(redact_secrets_in_name("x" * 1000)) == 80


def test_prompt_excerpt_is_a_single_line():
    assert format_prompt_excerpt("  do\n\n this \tand that ") == "do this and that"


def test_run_statistics_sum_all_runs():
    statistic = RecordedRunStatistics()
    for number in (1, 2):
        run = RecordedRunSummary(f"{number}.cast")
        run.tools["Bash"] = ToolCallCounts(
            calls=number, failed=1, times=times_of(*([0.5] * number))
        )
        run.totals.tokens["output_tokens"] = 10 * number
        run.totals.cost_usd = 0.25
        run.totals.repairs["json"] = number
        run.causes["auth"] = 1
        run.turns.add_duration(number)
        statistic.add_run(run)
    report = statistic.build_json()
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


def test_tools_are_sorted_by_total_time():
    tools = {
        "a": ToolCallCounts(calls=9),
        "b": ToolCallCounts(calls=1, times=times_of(2.0)),
        "c": ToolCallCounts(calls=10),
    }
    assert [name for name, _ in sort_tools_by_total_time(tools)] == ["b", "c", "a"]
