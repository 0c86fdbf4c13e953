"""`--json-schema` for vendors without schema support (contract F11, 5.11, 11)."""

import json
import sys

import pytest
from box import ANSWER, ASK, END, START, build_text_event, format_ndjson
from policy_builder import build_evaluator
from stream_invariants import check_turns
from turn_stage import Stage

from shim.conversation.drivers.answer_schema import (
    add_schema_instruction,
    build_answer_parser,
    extract_json_object_or_error,
    parse_json_schema,
)
from shim.core.errors import CliArgumentError
from shim.core.turn.context import JsonSchemaAnswer
from shim.core.turn.outcome import ChildExit

SCHEMA = '{"type":"object","properties":{"answer":{"type":"string"},"n":{"type":"number"}},"required":["answer","n"]}'
GOOD = '{"answer": "42",\n "n": 7}'
VALUE = {"answer": "42", "n": 7}


@pytest.fixture
def box(quick_box):
    return quick_box


# -- parsing of answers ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "answer_text",
    [
        GOOD,
        f"  {GOOD}\n",
        f"```json\n{GOOD}\n```",
        f"```\n{GOOD}\n```\n",
        f"Here you are:\n\n```json\n{GOOD}\n```\nAnything else?",
    ],
)
def test_contract_f11_answer_is_plain_json_or_a_single_code_fence(answer_text):
    assert extract_json_object_or_error(answer_text) == VALUE


@pytest.mark.parametrize(
    ("answer_text", "error"),
    [
        ("", "the answer is empty"),
        (" \n", "the answer is empty"),
        ("It is 42.", "the answer is not JSON"),
        ("```json\n```", "the answer is not JSON"),
        (f"```\n{GOOD}\n```\n```\n{GOOD}\n```", "the answer is not JSON"),
        ('{"n": NaN}', "the answer is not JSON"),
        ("[" * 5000, "the answer is not JSON"),
        ("[1]", "the answer is JSON, but not an object"),
        ("null", "the answer is JSON, but not an object"),
    ],
)
def test_answer_that_is_not_an_object_is_rejected_with_a_reason(answer_text, error):
    assert str(extract_json_object_or_error(answer_text)).startswith(error)


def test_valid_answer_is_parsed():
    assert build_answer_parser(SCHEMA)(GOOD) == (VALUE, "")


def test_validation_error_names_the_path_and_the_reason():
    value, error = build_answer_parser(SCHEMA)('{"answer": 42}')
    assert value is None
    assert "$.answer: 42 is not of type 'string'" in error and "'n' is a required property" in error


def test_validation_error_is_truncated():
    _, error = build_answer_parser(SCHEMA)(
        json.dumps({"answer": ["x" * 100_000], "n": "y" * 100_000})
    )
    assert len(error) < 1000


@pytest.mark.parametrize(
    "schema", ['{"$ref":"http://127.0.0.1:9/x"}', '{"$ref":"file:///etc/passwd"}', '{"$ref":"#/x"}']
)
def test_external_schema_reference_is_never_fetched(schema, monkeypatch):
    import urllib.request

    fetched = []
    monkeypatch.setattr(urllib.request, "urlopen", lambda *args, **_: fetched.append(args))
    assert build_answer_parser(schema)("{}").problem.startswith("the answer cannot be checked: ")
    assert not fetched


def test_recursive_schema_is_reported_as_uncheckable():
    assert build_answer_parser('{"$ref":"#"}')("{}").problem.startswith(
        "the answer cannot be checked: "
    )


# -- refusals at the start -------------------------------------------------------------------------


def test_contract_11_invalid_json_schema_error_matches_the_error_of_claude():
    with pytest.raises(CliArgumentError) as refused:
        parse_json_schema("{bad")
    assert (
        str(refused.value)
        == "Error: --json-schema is not valid JSON: JSON Parse error: Expected '}'"
    )


@pytest.mark.parametrize("schema", ["", "[" * 5000, "@schema.json", '{"type": "object"'])
def test_schema_that_is_not_json_is_rejected(schema):
    with pytest.raises(
        CliArgumentError, match="Error: --json-schema is not valid JSON: JSON Parse error: "
    ):
        parse_json_schema(schema)


@pytest.mark.parametrize("schema", ["[]", "true", "7"])
def test_schema_that_is_not_an_object_is_rejected(schema):
    with pytest.raises(CliArgumentError, match="must be an object"):
        parse_json_schema(schema)


def test_invalid_schema_is_rejected_with_its_path():
    with pytest.raises(CliArgumentError, match=r"is not a JSON Schema: \$\.type: "):
        build_answer_parser('{"type": "thing"}')


def test_schema_instruction_is_appended_to_the_prompt():
    prompt = add_schema_instruction("What is it?", '{"type":\n "object"}')
    assert prompt.startswith("What is it?\n\n")
    assert prompt.endswith('\n{"type":"object"}')


# -- the frontend's view ---------------------------------------------------------------------------


def turn(texts, *, partial=False, **options):
    """Return the lines of a turn whose last text is `texts`."""
    stage = Stage(partial=partial, read_answer=build_answer_parser(SCHEMA), **options)
    stage.turn.record_vendor_session_info(session_id="s")
    for part in texts:
        stage.turn.add_text(part)
        stage.turn.end_message()
    stage.turn.record_turn_end()
    stage.turn.close(ChildExit(code=0), "")
    lines = stage.take_lines()
    check_turns(stage.bytes, partial)
    return stage, lines


@pytest.mark.parametrize("partial", [False, True], ids=["whole", "partial"])
def test_contract_f11_valid_answer_becomes_a_structured_output_call_and_result(partial):
    stage, lines = turn(["Let me think.", f"```json\n{GOOD}\n```"], partial=partial)
    messages = [line for line in lines if line["type"] in ("assistant", "user")]
    (call,), (returned,) = (line["message"]["content"] for line in messages[-2:])
    assert (call["type"], call["name"], call["input"]) == ("tool_use", "StructuredOutput", VALUE)
    assert returned["tool_use_id"] == call["id"]
    assert (
        returned["content"]
        == messages[-1]["tool_use_result"]
        == "Structured output provided successfully"
    )
    result = lines[-2]
    assert result["structured_output"] == VALUE
    assert result["result"] == stage.turn.final_text == '{"answer":"42","n":7}'
    assert (result["subtype"], result["is_error"], result["shim"]["cause"]) == (
        "success",
        False,
        "clean",
    )
    assert (result["stop_reason"], result["num_turns"], result["terminal_reason"]) == (
        "tool_use",
        2,
        "completed",
    )


@pytest.mark.parametrize(
    "texts", [[], ["It is 42."], ['{"answer": 42, "n": 7}'], [GOOD, "I hope that helps."]]
)
def test_contract_f11_invalid_answer_becomes_an_error_result_with_the_reason(texts):
    _, lines = turn(texts)
    result = lines[-2]
    assert (result["subtype"], result["is_error"], result["shim"]["cause"]) == (
        "error_during_execution",
        True,
        "vendor_error",
    )
    assert result["errors"][0].startswith("the answer does not match --json-schema: ")
    assert "structured_output" not in result and "result" not in result


def test_structured_output_of_the_vendor_replaces_the_result_text():
    """qwen's result has `structured_result`. Text beside the call is not the answer."""
    stage = Stage()
    stage.turn.add_text("Here it is.")
    stage.turn.record_turn_end(structured_output=VALUE, result="Here it is.")
    stage.turn.close(ChildExit(code=0), "")
    result = stage.take_lines()[-2]
    assert (result["structured_output"], result["result"]) == (VALUE, '{"answer":"42","n":7}')


@pytest.mark.parametrize("end", ["failed", "interrupted", "died"])
def test_failed_turn_has_no_structured_output(end):
    stage = Stage(read_answer=lambda text: pytest.fail("the answer was read"))
    stage.turn.add_text(GOOD)
    if end == "failed":
        stage.turn.record_failure("it broke")
    elif end == "interrupted":
        stage.turn.record_interrupt()
    stage.turn.close(ChildExit(code=1), "")
    result = stage.take_lines()[-2]
    assert result["is_error"] and "structured_output" not in result


def test_structured_output_of_the_vendor_is_dropped_if_the_child_fails():
    stage = Stage()
    stage.turn.record_turn_end(structured_output=VALUE)
    stage.turn.close(ChildExit(code=1), "")
    assert "structured_output" not in stage.take_lines()[-2]


def test_every_turn_of_a_conversation_has_a_separate_structured_output():
    stage = Stage(read_answer=build_answer_parser(SCHEMA))
    stage.turn.add_text(GOOD)
    stage.turn.record_turn_end()
    stage.turn.finish()
    following = stage.turn.create_next()
    following.add_text('{"answer": "43", "n": 8}')
    following.record_turn_end()
    following.finish()
    results = [line for line in stage.take_lines() if line["type"] == "result"]
    assert [result["structured_output"]["n"] for result in results] == [7, 8]


@pytest.mark.parametrize("partial", [False, True], ids=["whole", "partial"])
@pytest.mark.parametrize("before", ["call", "echo", "thinking", "nothing"])
@pytest.mark.parametrize("settles", [False, True], ids=["", "settled"])
def test_stream_is_valid_if_structured_output_follows_any_turn_state(before, partial, settles):
    stage = Stage(partial=partial, read_answer=lambda text: JsonSchemaAnswer(VALUE))
    if before == "call":
        stage.turn.add_tool_call("c1", "Bash", {"command": "ls"})
        stage.turn.add_tool_result("c1", "a")
    elif before == "echo":
        stage.turn.add_text(GOOD)
        stage.turn.retract_message()
        stage.turn.add_text(GOOD[:5])
    elif before == "thinking":
        stage.turn.add_thinking("hm")
    stage.turn.record_turn_end(result=GOOD)
    if settles:
        stage.turn.record_vendor_completion()
    stage.turn.close(ChildExit(code=0), "")
    assert stage.take_lines()[-2]["structured_output"] == VALUE
    check_turns(stage.bytes, partial)


def test_structured_output_tool_is_allowed_despite_a_tools_restriction():
    """With `--tools Read --json-schema`, the real claude still lists and allows
    StructuredOutput.
    """
    only = build_evaluator(only=("Read",))
    assert only.find_restricting_decision("StructuredOutput", {}) is None
    _, lines = turn([GOOD], evaluator=only, tools=("Read", "Bash"))
    assert lines[0]["tools"] == ["Read", "StructuredOutput"]


# -- through the drop-in ---------------------------------------------------------------------------


def build_valid_vendor(box):
    """Create a stand-in that answers with an object in a code fence."""
    output = format_ndjson(START, build_text_event(f"```json\n{GOOD}\n```"), END)
    return {
        "SHIM_VENDOR": "demo",
        "SHIM_BIN": box.create_fake(["read"], ["record", str(box.recording)], ["out", output]),
    }


def test_contract_f11_prompt_contains_the_schema_and_the_result_the_object(box):
    done = box.run_claude(*ASK, "--json-schema", SCHEMA, **build_valid_vendor(box))
    assert (done.status, done.result["structured_output"]) == (0, VALUE)
    assert "StructuredOutput" in done.init["tools"]
    prompt = box.read_record()["stdin"]
    assert prompt.startswith("hi\n\n") and '"required":["answer","n"]' in prompt


def test_contract_f11_text_output_contains_only_the_json_object(box):
    done = box.run_claude("-p", "hi", "--json-schema", SCHEMA, **build_valid_vendor(box))
    assert (done.status, done.stdout) == (0, b'{"answer":"42","n":7}\n')


def test_invalid_answer_exits_with_status_1(box):
    standin = box.create_fake(["read"], ["out", ANSWER])
    done = box.run_claude(*ASK, "--json-schema", SCHEMA, SHIM_VENDOR="demo", SHIM_BIN=standin)
    assert (done.status, done.result["is_error"]) == (1, True)


@pytest.mark.parametrize("vendor", ["demo", "qwen"])
def test_contract_11_invalid_schema_is_rejected_before_the_child_starts(box, vendor):
    standin = box.create_fake(["record", str(box.recording)])
    done = box.run_claude(*ASK, "--json-schema", "{bad", SHIM_VENDOR=vendor, SHIM_BIN=standin)
    assert (done.status, done.stdout) == (1, b"")
    assert done.stderr.startswith(
        "Error: --json-schema is not valid JSON: JSON Parse error: Expected '}'\n"
    )
    assert not box.recording.exists()


def test_contract_f11_every_message_gets_the_schema_and_structured_output(box):
    output = format_ndjson(START | {"session": "5" * 8}, build_text_event(GOOD), END)
    standin = box.create_fake(["read"], ["record", str(box.recording)], ["out", output])
    message = (
        json.dumps({"type": "user", "message": {"role": "user", "content": "and now?"}}).encode()
        + b"\n"
    )
    args = (
        "--output-format",
        "stream-json",
        "--verbose",
        "--input-format",
        "stream-json",
        "--json-schema",
        SCHEMA,
    )
    done = box.run_claude(*args, stdin=message * 2, SHIM_VENDOR="demo", SHIM_BIN=standin)
    results = [line for line in done.lines if line["type"] == "result"]
    assert [result["structured_output"] for result in results] == [VALUE, VALUE]
    assert box.read_record()["stdin"].startswith("and now?\n\n")


def test_vendor_with_schema_support_receives_the_json_schema_flag(box):
    standin = box.create_fake(["read"], ["record", str(box.recording)])
    box.run_claude(*ASK, "--json-schema", SCHEMA, SHIM_VENDOR="qwen", SHIM_BIN=standin)
    record = box.read_record()
    assert record["stdin"] == "hi"
    assert record["arguments"][record["arguments"].index("--json-schema") + 1] == SCHEMA


def test_schema_modules_are_not_imported_at_startup():
    import subprocess

    modules = (
        "shim.conversation.startup, shim.commands.claude.dropin, shim.conversation.message_loop"
    )
    code = f"import {modules}, sys; print([m for m in sys.modules if 'schema' in m])"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=True
    )
    assert done.stdout.strip() == "[]"
