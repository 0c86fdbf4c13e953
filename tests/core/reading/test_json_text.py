"""Written JSON is valid for any reader, loses no digit, and is not nested too deeply."""

import json

import orjson
import pytest
from fixture_cases import find_case, translate_case
from hypothesis import given
from hypothesis import strategies as some
from stream_invariants import check_turns
from stream_lines import parse_lines
from sweeps import loop_over_rows
from turn_stage import Stage

from shim.core.reading.json_scan import MAX_VALUE_DEPTH, MAX_WRITTEN_DEPTH
from shim.core.reading.json_text import (
    dump_json,
    find_long_integer_digits_by_float,
    flatten_deeply_nested_values,
    measure_depth_and_precision_loss,
    restore_long_integers,
)

LONG = 123456789012345678901234567890
TEXTS = some.text(some.characters(), max_size=6)
VALUES = some.recursive(
    some.none() | some.booleans() | some.integers() | some.floats() | TEXTS,
    lambda inner: some.lists(inner, max_size=3) | some.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=8,
)


def nested(depth, inner="x", key=None):
    for _ in range(depth):
        inner = [inner] if key is None else {key: inner}
    return inner


def depth_of(data):
    """Return the depth of a JSON text, without its strings."""
    deepest = depth = 0
    inside = escaped = False
    for character in data.decode():
        if inside:
            inside, escaped = escaped or character != '"', not escaped and character == "\\"
        elif character == '"':
            inside, escaped = True, False
        elif character in "[{":
            depth += 1
            deepest = max(deepest, depth)
        elif character in "]}":
            depth -= 1
    return deepest


@given(VALUES)
def test_dumped_value_is_strict_json_without_unicode_line_separators(value):
    dumped = dump_json(value)
    orjson.loads(dumped)
    dumped.decode("utf-8")
    assert not {"\u2028", "\u2029", "\x85"} & set(dumped.decode())


@loop_over_rows("key", [None, "k"])
@loop_over_rows("depth", [300, 1000, 5000])
def test_value_below_the_maximum_depth_is_replaced_by_its_json_text(depth, key):
    value = nested(depth, 'a "quoted" \ud83d text', key)
    assert depth_of(dump_json(value)) <= MAX_WRITTEN_DEPTH
    flattened = json.loads(dump_json(flatten_deeply_nested_values(value)))
    for _ in range(MAX_VALUE_DEPTH):
        flattened = flattened[0] if key is None else flattened[key]
    assert isinstance(flattened, str)
    opening, closing = ("[", "]") if key is None else ('{"k":', "}")
    levels = depth - MAX_VALUE_DEPTH
    assert flattened == opening * levels + '"a \\"quoted\\" \ufffd text"' + closing * levels


def test_text_of_a_flattened_value_parses_to_the_original_value():
    inner = {"a": [1, 2.5, None, True, "x"], "b": {}, "c": [], "d": {"e": [[], {"f": "\u2028"}]}}
    flattened = json.loads(dump_json(flatten_deeply_nested_values(nested(MAX_VALUE_DEPTH, inner))))
    for _ in range(MAX_VALUE_DEPTH):
        (flattened,) = flattened
    assert json.loads(flattened) == inner


@given(VALUES)
def test_measured_depth_matches_the_depth_of_the_dumped_json(value):
    depth, lossy = measure_depth_and_precision_loss(value)
    assert depth == depth_of(json.dumps(value).encode())
    assert flatten_deeply_nested_values(value) is not None or value is None
    assert isinstance(lossy, bool)


@loop_over_rows("number", [LONG, -LONG, 2**64, -(2**63) - 1, 10**25])
@loop_over_rows("around", ['{{"n":{}}}', '{{"a":[{{"n":[{}]}}]}}', "[{},1]", '{{ "n" : {} }}'])
def test_long_integer_read_as_a_float_is_restored_as_text(number, around):
    line = around.format(number).encode()
    value = orjson.loads(line)
    assert measure_depth_and_precision_loss(value)[1]
    assert json.loads(
        dump_json(restore_long_integers(value, find_long_integer_digits_by_float(line)))
    ) == json.loads(around.format(f'"{number}"'))


@pytest.mark.parametrize(
    "line", [b'{"n":1e300}', b'{"n":1.5e30}', b'{"n":123456789012345678901234567890.5}']
)
def test_float_is_not_changed_by_integer_restoration(line):
    value = orjson.loads(line)
    assert restore_long_integers(value, find_long_integer_digits_by_float(line)) == value


# -- through every vendor --------------------------------------------------------------------------

CALLS = [
    "acai/0.1.0-shellok",
    "acai/2026-04-shellok",
    "cake/2026-07-files",
    "cursor/seed-function-call",
    "pi/1.5.2-bash",
    "qwen/0.24.4-shell",
    "qwen/handmade-subagent-foreground",
]


def add_member(name, member):
    """Return a fixture with one more member in the arguments of each call."""
    data, escaped = find_case(name).data, member.replace('"', '\\"')
    for key in ("command", "file_path", "path", "remote"):
        data = data.replace(f'{{"{key}":'.encode(), f'{{{member},"{key}":'.encode())
        data = data.replace(f'{{\\"{key}\\":'.encode(), f'{{{escaped},\\"{key}\\":'.encode())
    return data


def inputs(output):
    blocks = [
        block
        for line in parse_lines(output)
        if line["type"] == "assistant"
        for block in line["message"]["content"]
    ]
    return [block["input"] for block in blocks if block["type"] == "tool_use"]


@loop_over_rows("partial", [False, True])
@loop_over_rows("name", CALLS)
@loop_over_rows("shape", ['"hostile":{}', '"hostile":[{{"n":{}}}]'])
def test_long_integer_in_a_call_preserves_its_digits(name, shape, partial):
    output, translation = translate_case(
        find_case(name), partial, data=add_member(name, shape.format(LONG))
    )
    check_turns(output, partial)
    assert f'"{LONG}"' in json.dumps(inputs(output))
    assert translation.diagnostics.repairs["long_integer"] >= 1


@pytest.mark.parametrize("depth", [MAX_VALUE_DEPTH - 1, MAX_VALUE_DEPTH, 3000])
def test_streamed_and_complete_arguments_are_truncated_at_the_same_depth(depth):
    """The fragments of a streamed call are its input (S14)."""
    call = {"hostile": nested(depth), "half": "\ud83d"}
    stage = Stage(partial=True)
    stage.turn.add_tool_call("t", "Bash", call)
    stage.finish_turn()
    check_turns(stage.bytes, True)


@loop_over_rows("depth", [250, 900, 3000])
@loop_over_rows("name", CALLS)
def test_deep_value_in_a_call_is_flattened_and_the_call_is_emitted(name, depth):
    member = '"hostile":' + "[" * depth + '"x"' + "]" * depth
    output, translation = translate_case(find_case(name), True, data=add_member(name, member))
    original_inputs = inputs(translate_case(find_case(name), True)[0])
    check_turns(output, True)
    assert max(depth_of(line) for line in output.splitlines()) <= MAX_WRITTEN_DEPTH
    changed_inputs = inputs(output)
    assert len(changed_inputs) == len(original_inputs)
    assert [call for call in changed_inputs if "hostile" in call]
    for call, expected in zip(changed_inputs, original_inputs, strict=True):
        inner = call.pop("hostile", "")
        assert call == expected
        while isinstance(inner, list):
            (inner,) = inner
        if inner:
            assert inner.startswith("[[") and inner.count("[") > depth - MAX_WRITTEN_DEPTH
    assert translation.diagnostics.repairs["too_deep"] >= 1


@pytest.mark.parametrize("name", ["qwen/0.24.4-shell", "pi/1.5.2-bash"])
def test_deep_tool_result_is_flattened_to_the_maximum_depth(name):
    deep = "[" * 700 + "]" * 700
    data = find_case(name).data.replace(b'"content":"', f'"content":{deep},"was":"'.encode())
    output, _ = translate_case(find_case(name), False, data=data)
    check_turns(output, False)
    assert max(depth_of(line) for line in output.splitlines()) <= MAX_WRITTEN_DEPTH
