"""The fields of a profile's rules: paths and operators that are applied to an event."""

from types import SimpleNamespace

import pytest
from sweeps import loop_over_rows

from shim.core.errors import FrontendError
from shim.core.reading.diagnostics import Diagnostics
from shim.profiles.check.config_node import MAX_SEARCHED_CHARS, ConfigNode, ConfigSource
from shim.profiles.compile.fields import compile_field_expression, find_literal_prefix
from shim.profiles.compile.function_builder import FunctionBuilder
from shim.profiles.run.values import MAX_LIST_ITEMS, RULE_GLOBALS, unwrap_shell_command

EVENT = {
    "type": "x",
    "a": {"b": [{"c": 1}, {"c": 2}, {"d": 3}], "x.y": "dotted", "null": None, "empty": ""},
    "list": ["one", "two"],
    "rows": [{"cells": [1, 2]}, {"cells": [3]}],
    "number": 7,
    "zero": 0,
    "yes": True,
    "text": "<s>ERROR: no</s> such file",
    "json": '{"k": [1]}',
    "broken": '{"k": ',
    "command": "/bin/bash -lc 'echo \"a b\" && ls'",
}


ENGINE = SimpleNamespace(turn=SimpleNamespace(diagnostics=Diagnostics()))


def value(spec, event=EVENT, items=()):
    """Return the value of a field in a rule without `foreach`. With `items`, return the list of its
    values for a rule with `foreach`.
    """
    node = ConfigNode(ConfigSource("own.toml", lambda: ""), spec, ("event", 0, "text"))
    here = FunctionBuilder("engine, event, items")
    if not items:
        here.add_line(f"return {compile_field_expression(node, here)}")
        return here.compile_function("value", RULE_GLOBALS)(ENGINE, event, items)
    here.add_line("found = []")
    with here.open_loop("items"):
        here.add_line(f"found.append({compile_field_expression(node, here)})")
    here.add_line("return found")
    return here.compile_function("value", RULE_GLOBALS)(ENGINE, event, items)


@loop_over_rows(
    ("path", "expected"),
    [
        ("type", "x"),
        ("missing", None),
        ("a.b[0].c", 1),
        ("a.b[-1].d", 3),
        ("a.b[-3].c", 1),
        ("a.b[-4]", None),
        ("a.b[9].c", None),
        ("a.b[0]", {"c": 1}),
        ("a.b[*].c", [1, 2]),
        ("rows[*].cells[*]", [[1, 2], [3]]),
        ("list[*]", ["one", "two"]),
        ("number[*]", None),
        ("a.b[*].nothing", None),
        ("a.b[*].nothing || number", 7),
        ("a.'x.y'", "dotted"),
        ('a."x.y"', "dotted"),
        ("a.null", None),
        ("type.b.c", None),
        ("number.b", None),
        ("missing.deep || number", 7),
        ("a.null || missing || type", "x"),
        ("zero || number", 0),
        ("a.empty || type", ""),
    ],
)
def test_path_selects_a_value(path, expected):
    assert value(path) == expected


def test_item_path_selects_from_the_current_item():
    items = ["no object", {"id": "i1", "args": {"p": 2}}]
    paths = ("$", "$.id", "$.args.p", "$.no", "$index", "number")
    assert [value(path, items=items)[1] for path in paths] == [items[1], "i1", 2, None, 1, 7]
    assert [value(path, items=items)[0] for path in paths] == [items[0], None, None, None, 0, 7]


@pytest.mark.parametrize("path", ["$", "$.id", "$[0]"])
def test_item_path_returns_none_outside_foreach(path):
    assert value(path) is None


@loop_over_rows(
    "path",
    ["", "a..b", ".a", "a.", "a b", "a[x]", "a[*", "a[99999]", "a || ", "$x y", "$id", "a" * 400],
)
def test_invalid_path_is_rejected(path):
    with pytest.raises(FrontendError, match=r"own\.toml:1: event\[0\]\.text is "):
        value(path)


@loop_over_rows(
    ("spec", "expected"),
    [
        ({"const": "word"}, "word"),
        ({"path": "type", "map": {"x": "ex"}}, "ex"),
        ({"path": "number", "map": {"7": "seven"}}, "seven"),
        ({"path": "yes", "map": {"true": "on"}}, "on"),
        ({"path": "type", "map": {"y": "why"}}, None),
        ({"path": "type", "map": {"y": "why"}, "default": "else"}, "else"),
        ({"path": "missing", "default": 3}, 3),
        ({"path": "type", "in": ["x", 1]}, True),
        ({"path": "missing", "in": ["x"]}, False),
        ({"path": "number", "not_in": [0]}, True),
        ({"path": "zero", "not_in": [0]}, False),
        ({"path": "missing", "not_in": [0]}, False),
        ({"path": "yes", "in": [1]}, False),
        ({"path": "text", "regex": "^<s>ERROR"}, True),
        ({"path": "number", "regex": "7"}, False),
        ({"path": "missing", "exists": False}, True),
        ({"path": "json", "parse": "json"}, {"k": [1]}),
        ({"path": "broken", "parse": "json"}, '{"k": '),
        ({"path": "a", "parse": "json"}, EVENT["a"]),
        ({"path": "text", "capture": "ERROR: (.*?)<"}, "no"),
        ({"path": "text", "capture": "ERR"}, "ERR"),
        ({"path": "text", "capture": "nothing"}, None),
        ({"path": "text", "strip": "^<s>.*?</s> "}, "such file"),
        ({"path": "command", "unquote_shell": True}, 'echo "a b" && ls'),
        ({"path": "number", "times": 1000}, 7000),
        ({"path": "number", "times": 0.5}, 3.5),
        ({"path": "type", "times": 2}, "x"),
        ({"join": ["type", {"const": ":"}, "number", "missing"]}, "x:7"),
        ({"join": "list", "sep": " && "}, "one && two"),
        ({"join": "a.b[*].c", "sep": "\n"}, "1\n2"),
        ({"join": "missing", "sep": " "}, None),
        ({"join": ["yes", "type"]}, "truex"),
        ({"path": "text", "ending": "file$"}, True),
        ({"path": "text", "ending": "^<s>ERROR"}, True),
        ({"path": "number", "ending": "7"}, False),
        ({"path": "text", "regex": "^<s>E"}, True),
        ({"path": "text", "regex": "^s>E"}, False),
        ({"plus": ["number", "a.b[1].c", "missing", "yes", "type"]}, 9),
        ({"minus": ["number", "a.b[1].c"]}, 5),
        ({"minus": ["zero", "number"]}, 0),
        ({"any": ["zero", "missing", "yes"]}, True),
        ({"all": ["yes", "zero"]}, False),
        ({"not": "zero"}, True),
        (
            {"foreach": "a.b", "item": {"n": "$.c", "of": "type"}},
            [{"n": 1, "of": "x"}, {"n": 2, "of": "x"}, {"of": "x"}],
        ),
        ({"foreach": "a.b", "item": "$.c"}, [1, 2, None]),
        ({"object": {"n": "number", "no": "missing"}}, {"n": 7}),
    ],
)
def test_operator_returns_its_value(spec, expected):
    result = value(spec)
    assert result == expected and (result is True) is (expected is True)


@loop_over_rows(
    "spec",
    [
        7,
        [],
        {},
        {"path": "a", "mapp": {}},
        {"map": {}},
        {"const": 1, "any": []},
        {"any": []},
        {"any": "a"},
        {"join": ["a"], "sep": 3},
        {"path": "a", "in": "x"},
        {"path": "a", "in": [["x"]]},
        {"path": "a", "parse": "yaml"},
        {"path": "a", "regex": "("},
        {"path": "a", "regex": "(a+)+$"},
        {"path": "a", "regex": "(a|ab)*$"},
        {"path": "a", "capture": "(x|xx){2,}"},
        {"path": "a", "strip": r"\s*(.*?)\s*$"},
        {"path": "a", "ending": ".{0,99}x.{0,99}"},
        {"path": "a", "regex": "(?:a|b*){2,}"},
        {"path": "a", "regex": "x" * 600},
        {"path": "a", "unquote_shell": False},
        {"path": "a", "times": "2"},
        {"plus": ["a"] * 101},
    ],
)
def test_invalid_field_is_rejected(spec):
    with pytest.raises(
        FrontendError,
        match=r"own\.toml:1: event\[0\]\.text.* is .*; it must be |unknown key `event",
    ):
        value(spec)


def test_deeply_nested_operators_are_rejected():
    spec = "type"
    for _ in range(50):
        spec = {"not": spec}
    with pytest.raises(FrontendError, match="it must be a path"):
        value(spec)


@loop_over_rows(
    "pattern",
    ["(a|b)+", "(ab)*c+", r"\(a+\)+", "[(a+)]+", "(a+)?", "a{2,3}(b)", r"(?P<x>[0-9a-f-]{36})"],
)
def test_safe_pattern_is_accepted(pattern):
    assert value({"path": "type", "regex": pattern}) in (True, False)


def test_pattern_searches_only_the_start_of_a_long_text():
    """Threat: vendor output of unlimited length."""
    event = {"text": "." * MAX_SEARCHED_CHARS + "needle"}
    assert value({"path": "text", "regex": "needle"}, event) is False
    assert value({"path": "text", "capture": "needle"}, event) is None
    long = {"text": event["text"] + "." * MAX_SEARCHED_CHARS}
    assert value({"path": "text", "strip": "needle"}, long) == long["text"]


def test_strip_removes_matches_at_both_ends_of_a_long_text():
    long = "." * 3 * MAX_SEARCHED_CHARS
    framed = {"text": f"<s>{long}</s>"}
    assert value({"path": "text", "strip": "^<s>|</s>$"}, framed) == long
    assert value({"path": "text", "strip": "^<s>"}, {"text": "<s>a<s>"}) == "a<s>"
    assert value({"path": "text", "strip": "^<s>"}, {"text": "a\n<s>"}) == "a\n<s>", (
        "a line's start is not the text's"
    )
    assert value({"path": "text", "strip": r"\n?<id: \d+>$"}, {"text": f"{long}\n<id: 7>"}) == long
    for before in range(MAX_SEARCHED_CHARS - 4, MAX_SEARCHED_CHARS + 5):
        middle = {"text": "." * before + "</s>" + long}
        assert value({"path": "text", "strip": "^<s>|</s>$"}, middle) == middle["text"], (
            "that is not its end"
        )
    just = {"text": "." * (MAX_SEARCHED_CHARS - 2) + "</s>"}
    assert value({"path": "text", "strip": "</s>$"}, just) == just["text"][:-4], (
        "longer than what is looked at at once"
    )


def test_ending_matches_the_end_of_a_long_text():
    long = "." * 100_000
    assert value({"path": "text", "ending": r"\[exit:3\]$"}, {"text": long + "[exit:3]"}) is True
    assert value({"path": "text", "ending": r"\[exit:3\]"}, {"text": "[exit:3]" + long}) is False


def test_long_list_is_read_up_to_a_limit():
    event = {"rows": [{"n": 1}] * (MAX_LIST_ITEMS + 5)}
    assert len(value("rows[*].n", event)) == MAX_LIST_ITEMS
    assert len(value({"foreach": "rows", "item": {"n": "$.n"}}, event)) == MAX_LIST_ITEMS


@loop_over_rows(
    ("command", "inner"),
    [
        ("/bin/bash -lc 'ls -l'", "ls -l"),
        ('sh -c "echo $HOME"', "echo $HOME"),
        ("zsh -lc ls", "ls"),
        ("bash script.sh -c x", "bash script.sh -c x"),
        ("/bin/bash -lc 'unclosed", "/bin/bash -lc 'unclosed"),
        ("bash -lc 'a' 'b'", "bash -lc 'a' 'b'"),
        ("echo -n bash -lc 'x'", "echo -n bash -lc 'x'"),
        ("ls", "ls"),
        ("", ""),
    ],
)
def test_unwrap_shell_returns_the_inner_command(command, inner):
    assert unwrap_shell_command(command) == inner


@loop_over_rows(
    ("pattern", "expected"),
    [
        (r"\[exit:-?[1-9]\d* \| ", "[exit:"),
        ("abc", "abc"),
        ("ab*", "a"),
        ("a|b", ""),
        ("ax|ay", ""),
        ("^ab", ""),
        ("(?i)ab", ""),
        ("(?i:a)b", ""),
        ("(ab)c", ""),
        (".", ""),
        ("", ""),
        (r"a\d", "a"),
        (r"a\.b+c", "a.b"),
        ("ab{0,2}", "a"),
        ("ab?", "a"),
        (r"a\\|b", ""),
        ("ab$", "ab"),
        ("a\\", "a"),
    ],
)
def test_literal_prefix_of_a_pattern_is_extracted(pattern, expected):
    assert find_literal_prefix(pattern) == expected
