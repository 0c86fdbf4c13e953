"""The end of an object, and the parts of it that are nested too deeply."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as some
from sweeps import loop_over_rows

from shim.core.reading.json_scan import (
    MAX_READ_DEPTH,
    MAX_VALUE_DEPTH,
    JsonObjectScanner,
    flatten_deeply_nested_json,
)

VALUES = some.recursive(
    some.none()
    | some.booleans()
    | some.integers()
    | some.text(max_size=6)
    | some.sampled_from(['"', "\\", '\\"{[', "]}"]),
    lambda inner: (
        some.lists(inner, max_size=3) | some.dictionaries(some.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=10,
)


@given(
    some.dictionaries(some.text(max_size=4), VALUES, max_size=4),
    some.binary(max_size=8),
    some.data(),
)
def test_object_end_is_detected_across_arbitrary_chunk_boundaries(value, suffix, data):
    text = json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass")
    full_text = text + suffix
    cuts = sorted(data.draw(some.lists(some.integers(0, len(full_text)), max_size=4)))
    # No line ends between a backslash and its letter.
    cuts = [cut for cut in cuts if not full_text[:cut].endswith(b"\\")]
    shape, position = JsonObjectScanner(), 0
    for cut in [*cuts, len(full_text)]:
        end = shape.feed(full_text[position:cut])
        if end is not None:
            assert position + end == len(text)
            return
        position = cut
    raise AssertionError("it has an end")


@loop_over_rows(
    "text", [b"", b"{", b'{"a', b'{"a":"\\"', b'{"a":[1,{"b":2}]', b'{"a":"}"', b'{"}\\']
)
def test_unfinished_object_has_no_end(text):
    assert JsonObjectScanner().feed(text) is None


@given(some.dictionaries(some.text(max_size=4), VALUES, max_size=4))
def test_shallow_json_is_not_changed(value):
    text = json.dumps(value).encode()
    assert flatten_deeply_nested_json(text) is text
    assert json.loads(flatten_deeply_nested_json(text, force=True)) == value


@pytest.mark.parametrize("depth", [MAX_READ_DEPTH + 1, 5000])
def test_deeply_nested_values_are_replaced_by_their_text(depth):
    text = (
        b'{"a":"[[","b":'
        + b"[" * depth
        + b'"]"'
        + b"]" * depth
        + b',"c":['
        + b"[" * depth
        + b"]" * depth
        + b"]}"
    )
    value = json.loads(flatten_deeply_nested_json(text))
    assert (value["a"], list(value)) == ("[[", ["a", "b", "c"])
    inner = value["b"]
    for _ in range(MAX_VALUE_DEPTH - 1):
        (inner,) = inner
    assert inner == "[" * (depth - MAX_VALUE_DEPTH + 1) + '"]"' + "]" * (
        depth - MAX_VALUE_DEPTH + 1
    )
