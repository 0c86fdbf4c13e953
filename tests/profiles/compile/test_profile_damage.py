"""Profiles with arbitrary values: each one is a vendor, or it is rejected with the place of the
error.
"""

import copy
import json
import tomllib
from typing import Any

import orjson
import pytest
from fixture_cases import FIXTURES, ROOT
from hypothesis import given
from hypothesis import strategies as st
from stream_invariants import check_turns
from sweeps import limit_examples
from turn_stage import build_turn_config

from shim.adapters import BUNDLED_PROFILES
from shim.conversation.drivers.open_translation import STABLE_ID_PREFIX
from shim.core.adapter.child_stream import ChildStream
from shim.core.claude.writer import StreamJsonWriter
from shim.core.errors import FrontendError
from shim.core.turn.outcome import ChildExit
from shim.profiles.check.config_node import ConfigSource
from shim.profiles.load.adapter import build_adapter

# These two profiles have only the differences to another profile.
NAMES = [name for name in BUNDLED_PROFILES if name not in ("acai", "kilo")]
TEXTS = {
    name: (ROOT / "shim" / "adapters" / f"{name}.toml").read_text(encoding="utf-8")
    for name in NAMES
}
ADDED = ("match", "emit", "x", "args", "path", "when", "usage")
JUNK: list[Any] = [
    *(
        None,
        True,
        False,
        0,
        -1,
        1.5,
        2**70,
        "",
        "x",
        "$",
        "$.a",
        "a..b",
        "(",
        "(a+)+",
        "{prompt}",
        "--",
        "\0",
        "ü" * 50,
    ),
    *(
        [],
        {},
        [[]],
        [{}],
        {"path": "a"},
        {"const": {}},
        {"any": []},
        {"kind": "x"},
        ["x"] * 300,
        {"x": {"y": {"z": 1}}},
    ),
]


def places(table: Any, keys: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return every place in a table."""
    paths = [keys] if keys else []
    if isinstance(table, dict | list):
        for key, value in table.items() if isinstance(table, dict) else enumerate(table):
            paths += places(value, (*keys, key))
    return paths


@st.composite
def profiles(draw: st.DrawFn) -> tuple[str, dict[str, Any]]:
    """Generate a bundled profile with some of its values replaced, removed or added."""
    name = draw(st.sampled_from(NAMES))
    table = copy.deepcopy(tomllib.loads(TEXTS[name]))
    for _ in range(draw(st.integers(1, 3))):
        where = draw(st.sampled_from(places(table)))
        inner: Any = table
        for key in where[:-1]:
            inner = inner[key]
        how = draw(st.sampled_from(("replace", "remove", "add")))
        if how == "remove":
            del inner[where[-1]]
        elif how == "add" and isinstance(inner, dict):
            inner[draw(st.sampled_from(ADDED))] = copy.deepcopy(draw(st.sampled_from(JUNK)))
        else:
            inner[where[-1]] = copy.deepcopy(draw(st.sampled_from(JUNK)))
        if not places(table):
            break
    return name, table


@limit_examples(80, full_count=300, shrink=True)
@given(profiles())
def test_damaged_profile_builds_an_adapter_or_is_rejected_with_its_location(damaged):
    name, table = damaged
    try:
        vendor = build_adapter(name, table, ConfigSource("own.toml", lambda: TEXTS[name]))
    except FrontendError as error:
        assert "own.toml" in str(error) and (
            "it must be" in str(error) or "unknown key" in str(error)
        )
        return
    events: list[Any] = []
    for path in sorted(FIXTURES.glob(f"{name}/*/vendor.ndjson"))[:6]:
        for line in path.read_bytes().splitlines()[:12]:
            try:
                events.append(orjson.loads(line))
            except ValueError:
                continue
    writer = StreamJsonWriter(STABLE_ID_PREFIX, terminator=b'{"type":"message_stop"}\n')
    translation = ChildStream(vendor.translator_class, build_turn_config(name), writer)
    data = b"".join(json.dumps(event).encode() + b"\n" for event in events)
    check_turns(
        translation.feed(data)[0] + translation.close(ChildExit(code=0), "stderr\n")[0], False
    )


@pytest.mark.parametrize(
    "table", [{}, {"schema": 1}, {"event": 1}, {"schema": 1, "id": "own", "event": [1]}]
)
def test_profile_table_without_required_keys_is_rejected(table):
    with pytest.raises(FrontendError, match=r"^own\.toml:1: "):
        build_adapter("own", table, ConfigSource("own.toml", lambda: ""))
