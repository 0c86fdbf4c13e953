"""A profile is data. Its strings never become code."""

import re
import traceback

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from profile_builder import build_profile_adapter, find_result_line, translate_events
from sweeps import loop_over_rows

from shim.profiles.check.config_node import ConfigNode, ConfigSource
from shim.profiles.compile.conditions import compile_conditions_expression, parse_match_conditions
from shim.profiles.compile.fields import compile_field_expression
from shim.profiles.compile.function_builder import FunctionBuilder, format_literal
from shim.profiles.compile.tool_arguments import compile_tool_argument_converter
from shim.profiles.run.values import MAX_LIST_ITEMS, RULE_GLOBALS

HOSTILE = [
    "']) or exit()",
    '"); exit(); ("',
    "\\",
    "\\'",
    "{engine}",
    "\n    exit()",
    "#",
    "%s",
    "\u2028",
    "é",
    "k0",
    "event",
]
TEXTS = st.one_of(
    st.sampled_from(HOSTILE), st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
)
KEYS = TEXTS.filter(lambda text: text and "'" not in text and "|" not in text and "\0" not in text)


def build_node(value):
    return ConfigNode(ConfigSource("own.toml", lambda: ""), value, ("event", 0, "text"))


def value(spec, event):
    here = FunctionBuilder("engine, event")
    here.add_line(f"return {compile_field_expression(build_node(spec), here)}")
    return here.compile_function("value", RULE_GLOBALS)(None, event)


@settings(deadline=None)
@given(TEXTS)
@example("\udc80")
def test_format_literal_round_trips_any_text(text):
    assert eval(format_literal(text)) == text and format_literal(text).isascii()


@settings(deadline=None)
@given(KEYS, TEXTS)
def test_path_accepts_any_key(key, text):
    assert value(f"a.'{key}'", {"a": {key: text}}) == text
    assert value(f"a.'{key}'.'{key}'", {"a": {key: {key: text}}}) == text
    assert value(f"'{key}'[*].'{key}'", {key: [{key: text}]}) == [text]


@settings(deadline=None)
@given(TEXTS, TEXTS)
def test_operators_accept_any_text(text, other):
    event = {"x": text}
    assert value({"const": text}, event) == text
    assert value({"path": "x", "in": [text]}, event) is True
    assert value({"path": "x", "in": [text, other]}, event) is True
    assert value({"path": "x", "not_in": [other]}, event) is (text != other)
    assert value({"path": "x", "map": {text: other}}, event) == other
    assert value({"path": "y", "default": other}, event) == other
    assert value({"join": ["x", {"const": other}], "sep": text}, event) == text + text + other
    assert value({"object": {text: "x", other: "x"}}, event) == {text: text, other: text}
    beginning = re.escape(text)
    if text and "\0" not in text:
        assert value({"path": "x", "regex": "^" + beginning}, event) is True
        assert value({"path": "x", "ending": beginning}, event) is True


@settings(deadline=None)
@given(KEYS, TEXTS)
def test_condition_accepts_any_key_and_text(key, text):
    here = FunctionBuilder("engine, event")
    condition_table = {f"'{key}'": text, "b": {"in": [text, "x"]}}
    here.add_line(
        f"return {compile_conditions_expression(parse_match_conditions(build_node(condition_table)), here)}"
    )
    holds = here.compile_function("holds", RULE_GLOBALS)
    assert holds(None, {key: text, "b": text}) and not holds(None, {key: text + "x", "b": text})


@settings(deadline=None)
@given(KEYS, TEXTS.filter(lambda text: text and "\0" not in text))
def test_tool_arguments_accept_any_key(key, name):
    table = {"name": name, "args": {key: f"'{key}'"}, "add": {name: key}}
    assert compile_tool_argument_converter(build_node(table), [])({key: "v"}) == (
        name,
        {key: "v"} | {name: key},
    )


def test_deep_path_is_resolved():
    event: object = "found"
    for _ in range(140):
        event = {"a": event}
    assert value(".".join("a" * 140), event) == "found"
    assert value(".".join("a" * 139) + "[0]", event) is None
    inner: object = "x"
    for _ in range(90):
        inner = [inner]
    assert value("a" + "[0]" * 90, {"a": inner}) == "x"
    assert value("a" + "[0]" * 80 + "[-1]" * 10, {"a": inner}) == "x"
    assert value("a" + "[0]" * 80 + "[-2]", {"a": inner}) is None
    assert len(value("a[*]" + "[0]" * 20, {"a": [inner] * (MAX_LIST_ITEMS + 1)})) == MAX_LIST_ITEMS


DEEP = [
    (lambda inner: {"any": [inner, {"not": "a[0][0][0][0][0][0] || c[0].d[0].e"}]}, True),
    (lambda inner: {"join": [inner, "a", {"const": "x"}], "sep": "-"}, "7" + "-x" * 16),
    (lambda inner: {"plus": [inner, "b", {"minus": ["b", "a"]}]}, 7 * 33),
    (
        lambda inner: {
            **{
                "path": inner,
                "default": 1,
                "map": {"1": "x"},
                "times": 2,
                "capture": "x(.)",
                "strip": "a",
            },
            **{"unquote_shell": True, "parse": "json", "in": ["a"], "regex": "c", "ending": "d"},
        },
        False,
    ),
    (lambda inner: {"object": {"a": inner}}, None),
]


@loop_over_rows(("wrapped", "expected"), DEEP)
def test_nested_operators_are_supported_up_to_the_limit(wrapped, expected):
    spec: object = "b[0][0][0][0][0][0][0] || b"
    for _ in range(16):
        spec = wrapped(spec)
    result = value(spec, {"b": 7})
    for _ in range(16 if expected is None else 0):
        result = result["a"]
    assert result == (7 if expected is None else expected)


def test_path_supports_100_alternatives():
    assert value("||".join(["a"] * 99 + ["b"]), {"b": 1}) == 1


def test_loop_item_is_available_at_every_depth():
    spec: object = "$.x"
    for _ in range(10):
        spec = {"join": [spec, "$.x"], "sep": ""}
    here = FunctionBuilder("engine, event")
    here.add_line("found = []")
    with here.open_loop("event"):
        here.add_line(f"found.append({compile_field_expression(build_node(spec), here)})")
    here.add_line("return found")
    assert here.compile_function("value", RULE_GLOBALS)(None, [{"x": "a"}, {"x": "b"}]) == [
        "a" * 11,
        "b" * 11,
    ]


RULES = "".join(
    f'[[event]]\nmatch = {{ type = "t", "of.kind" = "{kind}" }}\nemit = "text"\ntext = "of.{kind}"\n'
    for kind in "abcdefg"
)


@loop_over_rows("kind", [*"abcdefg"])
def test_rules_of_the_same_type_are_dispatched_by_a_second_key(kind):
    end = '[[event]]\nmatch = { type = "end" }\nemit = "result"\n'
    events = [{"type": "t", "of": {"kind": kind, kind: f"said {kind}"}}, {"type": "end"}]
    assert (
        find_result_line(translate_events(build_profile_adapter(RULES + end), *events))["result"]
        == f"said {kind}"
    )


@loop_over_rows(
    "nested", [{"kind": "z"}, {"kind": 3}, {"kind": ["a"]}, {"kind": None}, {}, None, "a"]
)
def test_event_matching_no_dispatched_rule_is_unknown(nested):
    end = '[[event]]\nmatch = { type = "end" }\nemit = "result"\n'
    lines = translate_events(
        build_profile_adapter(RULES + end), {"type": "t", "of": nested}, {"type": "end"}
    )
    assert find_result_line(lines)["shim"]["unknown_events"] == {"t": 1}


def test_general_rule_preserves_its_order_among_dispatched_rules():
    loud = '[[event]]\nmatch = { type = "t", loud = true }\nemit = "text"\ntext = "upper"\n'
    end = '[[event]]\nmatch = { type = "end" }\nemit = "result"\n'
    first = build_profile_adapter(loud + RULES + end)
    last = build_profile_adapter(RULES + loud + end)
    event = {"type": "t", "loud": True, "upper": "LOUD", "of": {"kind": "a", "a": "soft"}}
    assert [
        find_result_line(translate_events(adapter, event, {"type": "end"}))["result"]
        for adapter in (first, last)
    ] == ["LOUD", "soft"]
    event["of"] = {"kind": "z"}
    assert find_result_line(translate_events(last, event, {"type": "end"}))["result"] == "LOUD"


def test_traceback_shows_the_line_of_a_compiled_function():
    functions = []
    for number in (1, 2):
        builder = FunctionBuilder("event")
        builder.add_line(f"return event / 0 + {number}")
        functions.append(builder.compile_function("divide", {}))
    for number, function in enumerate(functions, 1):
        with pytest.raises(ZeroDivisionError) as caught:
            function(1)
        text = "".join(traceback.format_exception(caught.value))
        assert f"    return event / 0 + {number}\n" in text
