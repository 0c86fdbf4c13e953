"""The ids of an agent's calls do not matter: the output is the same if all calls have one id, or
none.

Servers give several calls one id (llama.cpp, ollama, kimi), and some give none. A fixture is read
again with other ids. These facts must not change: the calls and their arguments, one result per
call, and how the turn ends.
"""

import json
import re
from typing import Any

import pytest
from fixture_cases import list_fixture_cases, translate_case
from result_consistency import check_calls
from stream_invariants import check_turns
from stream_lines import parse_lines
from sweeps import choose_small_cases, loop_over_cases

# The agent's own program creates these ids, and their form has a meaning: the parts of an item, or
# the name of a tool.
GENERATED_IDS = re.compile(r"\bitem_\d+\b|__[0-9a-z_-]+$|^(effect|plan|todo|form|ask)[-_]")
NESTED = re.compile(rb'"parent_?tool_?(use|call)_?id": ?"', re.I)
# Questions that contain only the id, fragments that contain only the id, and ids that displays
# spell in another way.
BY_ID_ONLY = re.compile(r"opencode/.*-acp-|qwen-rfc/.*(ids-only|confirmations)")
PREFIX = b'"call_'


def calls_of(data: bytes) -> list[dict[str, Any]]:
    """Return the calls with the vendor's ids, names and arguments, in stream order."""
    lines = parse_lines(data)
    assert not any(line.get("parent_tool_use_id") for line in lines), (
        "nested agents have ids of their own"
    )
    blocks = [
        block
        for line in lines
        if line["type"] == "assistant"
        for block in line["message"]["content"]
    ]
    return [block for block in blocks if block["type"] == "tool_use"]


def can_be_renamed(case: Any) -> bool:
    """Return whether a fixture has several different calls whose ids come from the model server."""
    if case.passthrough or NESTED.search(case.data) or BY_ID_ONLY.search(case.name):
        return False
    try:
        calls = calls_of(translate_case(case)[0])
    except AssertionError:
        return False
    signatures = [json.dumps([call["name"], call["input"]], sort_keys=True) for call in calls]
    vendor_ids = [call["id"] for call in calls if json.dumps(call["id"]).encode() in case.data]
    if any(PREFIX + call["id"].encode() in case.data for call in calls):
        return False
    return (
        len(calls) > 1
        and len(set(signatures)) == len(signatures)
        and len(vendor_ids) == len(calls)
        and not any(map(GENERATED_IDS.search, vendor_ids))
    )


def test_renamed_fixtures_cover_at_least_7_vendors():
    vendors = {case.vendor for case in list_fixture_cases() if can_be_renamed(case)}
    assert len(vendors) >= 7, vendors


@pytest.mark.parametrize("call_id", ["same", ""])
@loop_over_cases(case for case in list_fixture_cases() if can_be_renamed(case))
def test_calls_with_identical_ids_get_unique_ids(case, call_id):
    before, _ = translate_case(case)
    data = case.data
    for call in calls_of(before):
        data = data.replace(json.dumps(call["id"]).encode(), json.dumps(call_id).encode())
        data = data.replace(
            json.dumps(json.dumps(call["id"]))[1:-1].encode(),
            json.dumps(json.dumps(call_id))[1:-1].encode(),
        )
    output, _ = translate_case(case, data=data)
    results = check_calls(parse_lines(output))
    calls = [(call["name"], call["input"]) for call in calls_of(output)]
    assert sorted(map(str, calls)) == sorted(
        str((call["name"], call["input"])) for call in calls_of(before)
    )
    assert sorted(map(strip_result, results)) == sorted(
        map(strip_result, check_calls(parse_lines(before)))
    )


def strip_result(result: Any) -> str:
    """Return a result without trailing white space. If results come in another order, the last
    output of a command differs.
    """
    return str(result).rstrip()


ID_KEYS = re.compile(
    rb'("(?:id|\w*(?:call|tool|use|item|effect)_?id)" ?: ?)(?:"[^"\\]*"|null|\d+)', re.I
)


@pytest.mark.parametrize(
    "value", [b'"same"', b'""', b"null", b"7"], ids=["same", "empty", "null", "number"]
)
@loop_over_cases(
    (case for case in list_fixture_cases() if not case.passthrough), quick=choose_small_cases
)
def test_replaced_ids_preserve_the_stream_invariants(case, value):
    """This includes ids of messages and sessions. Each call has a unique id and one result."""
    for partial in (False, True):
        output, _ = translate_case(
            case, partial, data=ID_KEYS.sub(lambda match: match[1] + value, case.data)
        )
        check_turns(output, partial)
        check_calls(parse_lines(output))
