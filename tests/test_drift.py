"""Tests of drift: new names in a vendor's events are reported, and names in tested recordings are
not.
"""

import json
from collections import Counter

from drift import (
    MAX_FIELD_DEPTH,
    MAX_FIELDS,
    RECORDED_FILE,
    collect_handled_names,
    format_kind,
    list_fields,
    list_new_names,
    list_rules,
    load_recorded_fields,
)
from fixture_cases import list_fixture_cases
from profile_builder import build_profile_adapter
from recorded_fields import collect_fields, encode_recorded_fields, list_real_cases
from sweeps import loop_over_rows

from shim.adapters import VENDORS, get_adapter

NAMES = sorted(set(VENDORS) - {"claude", "demo"})


def count_new_names(vendor, *events, recorded_fields=None):
    """Return the new names in events, with their counts."""
    counts = Counter()
    recorded_fields = load_recorded_fields()[vendor] if recorded_fields is None else recorded_fields
    handled_names = collect_handled_names(vendor, get_adapter(vendor).translator_class)
    for event in events:
        counts.update(list_new_names(event, recorded_fields, handled_names))
    return dict(counts)


def paths(event):
    return [field.path for field in list_fields(event)]


# -- the table -------------------------------------------------------------------------------------


def test_recorded_table_matches_the_fixtures():
    """If a fixture has more fields, run `make accept` and review the new names."""
    assert RECORDED_FILE.read_bytes() == encode_recorded_fields()


@loop_over_rows("vendor", NAMES)
def test_fixtures_contain_no_new_names(vendor):
    events = [
        event
        for case in list_real_cases(vendor)
        for event in case.parse_events()
        if isinstance(event, dict)
    ]
    assert count_new_names(vendor, *events) == {}


def test_table_contains_every_translating_vendor():
    assert set(load_recorded_fields()) == set(NAMES)


# -- new names -------------------------------------------------------------------------------------


@loop_over_rows(
    ("vendor", "event", "news"),
    [
        ("codex", {"type": "item.completed", "item": {"id": "1", "type": "agent_message", "text": "x", "mood": 1}},
         ["item.completed: item<agent_message>.mood"]),
        ("codex", {"type": "item.completed", "item": {"id": "1", "type": "dream", "deep": {"er": 1}}},
         ["item.completed: item<dream>"]),
        ("codex", {"type": "thread.archived", "thread_id": "1", "why": "old"}, ["thread.archived"]),
        ("pi", {"type": "turn_start", "weather": {"sun": [1]}}, ["turn_start: weather"]),
        ("qwen", {"type": "system", "subtype": "goal_lost", "data": {}}, ["system/goal_lost"]),
        ("cursor", {"type": "thinking", "subtype": "delta", "text": "x", "tone": "calm"}, ["thinking/delta: tone"]),
        ("kimi", {"role": "assistant", "content": "x", "tool_calls": [{"type": "function", "cost": 1}]},
         ["assistant: tool_calls[]<function>.cost"]),
    ],
)  # fmt: skip
def test_new_kind_or_field_is_reported_with_its_path(vendor, event, news):
    assert list(count_new_names(vendor, event)) == news


def test_fields_inside_a_new_field_are_not_reported():
    event = {"type": "turn.started", "plan": {"steps": [{"type": "think", "why": {"a": 1}}]}}
    assert count_new_names("codex", event) == {"turn.started: plan": 1}


def test_tool_arguments_are_not_reported():
    call = {"type": "item.completed", "item": {"id": "1", "type": "mcp_tool_call", "arguments": {"anything": 1},
                                               "result": {"at": {"all": 2}}}}  # fmt: skip
    assert count_new_names("codex", call) == {}


def test_id_keys_are_not_reported():
    event = {"type": "item.completed", "item": {"id": "1", "type": "collab_tool_call",
                                                "agents_states": {"01a1-5f": {"status": "done"}}}}  # fmt: skip
    assert not any("01a1" in name for name in count_new_names("codex", event))


def test_fields_added_by_a_newer_release_are_reported():
    """Only the fields of an older pi are known; recordings of a newer pi are checked."""
    cases = list_real_cases("pi")
    older = collect_fields(case for case in cases if case.metadata["cli"] == "pi 0.73.1")
    newer = [
        event
        for case in cases
        if case.metadata["cli"] == "pi 1.5.2"
        for event in case.parse_events()
    ]
    counts = count_new_names(
        "pi", *(event for event in newer if isinstance(event, dict)), recorded_fields=older
    )
    assert counts["tool_execution_end: durationMs"] > 1
    assert "agent_end: willRetry" in counts and "message_end: message.usage.reasoning" in counts
    assert not any(
        "message_end: message.content" in name and "<image>" not in name for name in counts
    )


@loop_over_rows("case", [case for case in list_fixture_cases() if case.name.startswith("torture")])
def test_hostile_events_are_scanned_without_an_error(case):
    vendor = case.vendor if case.vendor in NAMES else "qwen"
    count_new_names(vendor, *(event for event in case.parse_events() if isinstance(event, dict)))


# -- bounds ----------------------------------------------------------------------------------------


def test_large_and_deep_events_are_scanned_up_to_a_limit():
    wide = {"type": "x"} | {f"field{number}": number for number in range(10 * MAX_FIELDS)}
    assert len(list_fields(wide)) == MAX_FIELDS
    deep = event = {"type": "x"}
    for _ in range(500):
        event["in"] = event = {}
    assert max(path.count(".") for path in paths(deep)) == MAX_FIELD_DEPTH - 1
    assert len(list_fields({"many": [{f"a{number}": 1} for number in range(10_000)]})) <= 60


def test_keys_that_are_not_names_become_a_wildcard():
    assert paths({"a b": 1, "0x": 2, "x" * 100: 3, "é": 4, "models": {"gpt-5": {"cost": 1}}}) == [
        "*", "models", "models.*", "models.*.cost",
    ]  # fmt: skip


@loop_over_rows(
    ("event", "kind"),
    [
        ({"type": "system", "subtype": "init"}, "system/init"),
        ({"role": "tool"}, "tool"),
        ({"type": 7, "role": "tool"}, "tool"),
        ({}, "untyped"),
        ({"type": "x" * 1000}, "untyped"),
        ({"type": "a\x1b[31mb"}, "untyped"),
        ({"type": ""}, "untyped"),
    ],
)
def test_event_kind_is_a_short_name_or_untyped(event, kind):
    assert format_kind(event) == kind


# -- names -----------------------------------------------------------------------------------------


def test_profile_rules_define_the_handled_names():
    rules = '[[event]]\nmatch = { type = "said.so", "part.kind" = ["a"] }\nemit = "text"\ntext = "part.z || words[0]"\n'
    handled_names = collect_handled_names("heron", build_profile_adapter(rules).translator_class)
    assert {"said.so", "part", "kind", "a", "words"} <= handled_names
    assert "rules" not in handled_names and "mood" not in handled_names


def test_module_handlers_define_the_handled_names():
    handled_names = collect_handled_names("pi", get_adapter("pi").translator_class)
    assert {"message_update", "stopReason", "cacheRead", "agent_end"} <= handled_names
    assert "weather" not in handled_names


def test_every_vendor_has_handled_names_or_rules():
    for name in NAMES:
        translator = get_adapter(name).translator_class
        assert len(collect_handled_names(name, translator)) > 20 or list_rules(translator), name


def test_handled_kind_without_a_fixture_is_not_reported(tmp_path):
    assert "web_search" in collect_handled_names("codex", get_adapter("codex").translator_class)
    assert (
        count_new_names(
            "codex",
            {"type": "item.completed", "item": {"id": "1", "type": "web_search", "query": "x"}},
        )
        == {}
    )


def test_table_is_readable_json():
    table = json.loads(RECORDED_FILE.read_text(encoding="utf-8"))
    assert "thread_id" in table["codex"]["thread.started"].split()
