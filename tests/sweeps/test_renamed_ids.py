"""What an agent calls its calls does not matter: with one id for all of them, or none, the same is
written.

Servers give several calls one id (llama.cpp, ollama, kimi), and some give none. A fixture is read
again with other ids in it. What must not change: the calls and their arguments, one result for each
call, how the turn ends.
"""

import json
import re
from typing import Any

import pytest
from result_consistency import check_calls
from support import check_turns, list_fixture_cases, parse_lines, translate_case
from sweeps import choose_small_cases, loop_over_cases

# The agent's own program gives these ids, and their form says something: the parts of an item, the
# name of a tool.
OWN_IDS = re.compile(r"\bitem_\d+\b|__[0-9a-z_-]+$|^(effect|plan|todo|form|ask)[-_]")
NESTED = re.compile(rb'"parent_?tool_?(use|call)_?id": ?"', re.I)
# Questions that name nothing but the id; fragments that name nothing else; ids that displays spell
# in another way.
BY_ID_ONLY = re.compile(r"opencode/.*-acp-|qwen-rfc/.*(ids-only|confirmations)")
PREFIX = b'"call_'


def calls_of(data: bytes) -> list[dict[str, Any]]:
    """The ids of calls as the vendor has them, with name and arguments, in the order of the stream."""
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
    """Whether a fixture has several calls, all different, whose ids are the model server's."""
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
        and not any(map(OWN_IDS.search, vendor_ids))
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
    """Return a result without white space at its end: of results in another order, another one is a
    command's.
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
    """Ids of messages and sessions, too: whatever an agent does, each call has an id of its own and
    one result.
    """
    for partial in (False, True):
        output, _ = translate_case(
            case, partial, data=ID_KEYS.sub(lambda match: match[1] + value, case.data)
        )
        check_turns(output, partial)
        check_calls(parse_lines(output))
