"""Times and values formatted as text."""

from sweeps import loop_over_rows

from shim.story.formatting import format_duration, format_single_line_value, format_value_as_lines


@loop_over_rows(
    ("seconds", "expected"),
    [
        (0, "0.0 s"),
        (0.3, "0.3 s"),
        (59.94, "59.9 s"),
        (59.96, "1 min 00 s"),
        (245, "4 min 05 s"),
        (3725, "1 h 02 min"),
    ],
)
def test_duration_is_formatted_in_its_largest_units(seconds: float, expected: str) -> None:
    assert format_duration(seconds) == expected
    assert format_duration(0.012, with_ms=True) == "12 ms"


DEEP = {"where": {"age": {"over": 3}}, "sort": ["name", {"by": "age", "down": True}], "limit": None}


def test_value_is_formatted_without_json_syntax() -> None:
    assert format_value_as_lines(DEEP).split("\n") == [
        "where:",
        "  age:",
        "    over: 3",
        "sort:",
        "  - name",
        "  - by: age",
        "    down: true",
        "limit: none",
    ]
    assert (
        format_single_line_value(DEEP)
        == "where age over 3, sort name, by age, down true, limit none"
    )


def test_task_list_has_a_symbol_for_each_status() -> None:
    tasks = [{"content": "a", "status": "completed"}, {"content": "b", "status": "odd"}]
    assert format_value_as_lines(tasks) == "☑ a\n☐ b"


def test_recursive_value_is_truncated() -> None:
    endless: list[object] = []
    endless.append(endless)
    assert format_value_as_lines(endless).endswith("…") and format_single_line_value(endless) == "…"
