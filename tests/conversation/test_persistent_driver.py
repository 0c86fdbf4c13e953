"""Conversations with a vendor whose one child is persistent: permission prompts in both directions,
interrupts by message, a child that dies.

The child is a stand-in that prints what qwen 0.24.4 prints (fixtures `qwen/0.24.4-in-*`). The tests
in e2e run the real program.
"""

import json
import os
import subprocess
from functools import partial

import anyio
import pytest
from box import format_ndjson

from shim.adapters.qwen_input import CONTEXT_REQUEST, MODELS_REQUEST
from shim.conversation.drivers import hook_runner, permission_decider
from shim.core.claude.hooks.answers import HookDecision
from shim.core.claude.permissions import PROMPT_TIMEOUT_TEXT, TURN_STOPPED_TEXT
from shim.io import prompt
from tests.conversation.test_conversation import U, causes, responses, results, user
from tests.conversation.test_conversation import request as control

VENDOR_SESSION = "8c2c266e-8fbb-425d-888c-65a44f240dbd"
ASKING = ("--permission-prompt-tool", "stdio")
INIT = {
    "type": "system",
    "subtype": "init",
    "session_id": VENDOR_SESSION,
    "cwd": "/repo",
    "tools": ["run_shell_command", "read_file"],
    "model": "m1",
    "permission_mode": "default",
    "qwen_code_version": "0.24.4",
}
USAGE = {
    "input_tokens": 120,
    "output_tokens": 30,
    "cache_read_input_tokens": 20,
    "total_tokens": 150,
}


def assistant(block, stop=None):
    message = {
        "id": "x",
        "role": "assistant",
        "model": "m1",
        "content": [block],
        "stop_reason": stop,
        "usage": USAGE,
    }
    return {
        "type": "assistant",
        "session_id": VENDOR_SESSION,
        "parent_tool_use_id": None,
        "message": message,
    }


def says(text):
    return assistant({"type": "text", "text": text})


def calls(call_id="call_1", command="touch x"):
    use = {
        "type": "tool_use",
        "id": call_id,
        "name": "run_shell_command",
        "input": {"command": command},
    }
    return assistant(use, "tool_use")


def asks(call_id="call_1", command="touch x", question="q1"):
    request = {
        "subtype": "can_use_tool",
        "tool_name": "run_shell_command",
        "tool_use_id": call_id,
        "input": {"command": command},
        "permission_suggestions": [{"type": "allow", "label": "Allow Command"}],
        "blocked_path": None,
    }
    return {"type": "control_request", "request_id": question, "request": request}


def returns(content, failed=False, call_id="call_1"):
    block = {"type": "tool_result", "tool_use_id": call_id, "is_error": failed, "content": content}
    message = {"role": "user", "content": [block]}
    return {
        "type": "user",
        "session_id": VENDOR_SESSION,
        "parent_tool_use_id": None,
        "message": message,
    }


def result(text="Done.", error=None):
    line = {
        "type": "result",
        "subtype": "success",
        "session_id": VENDOR_SESSION,
        "is_error": False,
        "result": text,
    }
    if error:
        line |= {"subtype": "error_during_execution", "is_error": True, "error": {"message": error}}
    return line


def asking_child(box, returned):
    """Create a vendor that asks about its call and continues after the answer. `box.recording` has
    what it received.
    """
    return box.create_fake(*asking_steps(box, returned))


def asking_steps(box, returned):
    """Return the steps of such a vendor."""
    return (
        HELLO,
        ["hear", "go"],
        ["out", format_ndjson(INIT, calls(), asks())],
        ["hear", "control_response"],
        ["record", str(box.recording)],
        ["out", format_ndjson(returned, says("After."), result("After."))],
    )


def answer(question, **body):
    response = {"subtype": "success", "request_id": question, "response": body}
    return {"type": "control_response", "response": response}


HELLO = ["hear", '"initialize"']
CANCELLED = format_ndjson(result(error="Operation cancelled."))
TURN = ["out", format_ndjson(INIT, says("Hello."), result("Hello."))]


@pytest.fixture
def box(quick_box):
    return quick_box


@pytest.fixture
def talk(box):
    return partial(box.start_conversation, vendor="qwen")


@pytest.fixture
def real_talk(real_box):
    """The same with real processes and pipes."""
    return partial(real_box.start_conversation, vendor="qwen")


def question(running):
    """Read the next permission request."""
    return running.read_line_containing(b'"subtype":"can_use_tool"')


def user_texts(done):
    """Return the contents of the user lines: tool results and texts."""
    blocks = [line["message"]["content"][0] for line in done.lines if line["type"] == "user"]
    return [block.get("content") or block["text"] for block in blocks]


def read_child_stdin(box):
    """Return what the child received, line by line, without questions about its models and its
    context.
    """
    lines = [json.loads(line) for line in box.read_record()["stdin"].splitlines()]
    return [
        line
        for line in lines
        if line.get("request", {}).get("subtype") not in (MODELS_REQUEST, CONTEXT_REQUEST)
    ]


def test_single_child_serves_every_message(box, talk):
    turn = ["out", format_ndjson(INIT, says("Hello."), result("Hello."))]
    child = box.create_fake(
        HELLO,
        ["hear", "one"],
        turn,
        ["hear", "two"],
        ["record", str(box.recording)],
        turn,
        ["hear", "never"],
    )
    with talk(child) as running:
        running.send_lines(user("one"), user("two"))
        done = running.end_input()
    assert done.status == 0
    assert [line["result"] for line in results(done)] == ["Hello.", "Hello."]
    assert [line["type"] for line in read_child_stdin(box)] == ["control_request", "user", "user"]
    assert read_child_stdin(box)[0]["request"]["subtype"] == "initialize"
    args = box.read_record()["arguments"]
    assert args[args.index("--input-format") :][:2] == ["--input-format", "stream-json"]
    assert args[args.index("--session-id") + 1] == done.lines[0]["session_id"]


def test_permission_request_follows_its_call_and_the_allowed_call_runs(box, talk):
    """C9"""
    child = asking_child(box, returns("done"))
    with talk(child, *ASKING) as running:
        running.send_lines(user("go"))
        control_request = question(running)
        running.send_lines(
            answer(
                control_request["request_id"],
                behavior="allow",
                updatedInput=control_request["request"]["input"],
            )
        )
        done = running.end_input()
    assert done.status == 0
    request = control_request["request"]
    assert (request["tool_name"], request["input"]) == ("Bash", {"command": "touch x"})
    assert request["tool_use_id"] == "call_1"
    (suggestion,) = (
        candidate
        for candidate in request["permission_suggestions"]
        if candidate["type"] == "addRules"
    )
    assert suggestion["rules"] == [{"toolName": "Bash", "ruleContent": "touch x *"}]
    kinds = [line["type"] for line in done.lines]
    assert kinds.index("assistant") < kinds.index("control_request") < kinds.index("user")
    assert read_child_stdin(box)[-1] == answer("q1", behavior="allow")
    assert done.result["permission_denials"] == []


def test_denied_call_returns_the_deny_message_and_is_counted(box, talk):
    """C9"""
    child = asking_child(box, returns("[Operation Cancelled] Reason: no way", True))
    with talk(child, *ASKING) as running:
        running.send_lines(user("go"))
        running.send_lines(
            answer(question(running)["request_id"], behavior="deny", message="no way")
        )
        done = running.end_input()
    assert read_child_stdin(box)[-1] == answer("q1", behavior="deny", message="no way")
    (user_line,) = [line for line in done.lines if line["type"] == "user"]
    assert (
        user_line["message"]["content"][0]["content"] == "no way"
        and user_line["message"]["content"][0]["is_error"] is True
    )
    denial = {"tool_name": "Bash", "tool_use_id": "call_1", "tool_input": {"command": "touch x"}}
    assert done.result["permission_denials"] == [denial]
    assert done.result["is_error"] is False


def test_denial_with_interrupt_ends_the_turn(box, talk):
    """C9"""
    child = box.create_fake(
        HELLO,
        ["hear", "go"],
        ["out", format_ndjson(INIT, calls(), asks())],
        ["hear", '"interrupt"'],
        ["out", format_ndjson(returns("[Operation Cancelled]", True)) + CANCELLED],
        ["hear", "again"],
        ["out", format_ndjson(INIT, says("Hello."), result("Hello."))],
    )
    with talk(child, *ASKING) as running:
        running.send_lines(user("go"))
        running.send_lines(
            answer(
                question(running)["request_id"], behavior="deny", message="stop it", interrupt=True
            )
        )
        running.read_until(b'"type":"result"')
        running.send_lines(user("again"))
        done = running.end_input()
    first, second = results(done)
    assert (first["subtype"], first["is_error"]) == ("error_during_execution", True)
    assert first["terminal_reason"] == "aborted_tools"
    assert [denial["tool_use_id"] for denial in first["permission_denials"]] == ["call_1"]
    assert user_texts(done) == [TURN_STOPPED_TEXT, "[Request interrupted by user for tool use]"]
    assert second["is_error"] is False


def test_conversation_that_ends_with_an_interrupting_denial_exits_with_1(box, talk):
    """C9, P13"""
    child = box.create_fake(
        HELLO,
        ["hear", "go"],
        ["out", format_ndjson(INIT, calls(), asks())],
        ["hear", '"interrupt"'],
        ["out", format_ndjson(returns("[Operation Cancelled]", True)) + CANCELLED],
    )
    with talk(child, *ASKING) as running:
        running.send_lines(user("go"))
        running.send_lines(
            answer(
                question(running)["request_id"], behavior="deny", message="stop it", interrupt=True
            )
        )
        done = running.end_input()
    assert (done.status, done.result["terminal_reason"]) == (1, "aborted_tools")


def test_error_response_to_a_permission_request_denies_the_call(box, talk):
    """C9"""
    child = asking_child(box, returns("refused", True))
    with talk(child, *ASKING) as running:
        running.send_lines(user("go"))
        error = {"subtype": "error", "request_id": question(running)["request_id"], "error": "boom"}
        running.send_lines({"type": "control_response", "response": error})
        done = running.end_input()
    expected = "Tool permission request failed: Error: boom"
    assert read_child_stdin(box)[-1] == answer("q1", behavior="deny", message=expected)
    assert user_texts(done) == [expected]
    assert (done.status, len(done.result["permission_denials"])) == (0, 1)


def test_closed_stdin_denies_the_pending_prompt_and_the_turn_continues(box, talk):
    """C9, P15"""
    child = asking_child(box, returns("refused", True))
    with talk(child, *ASKING) as running:
        running.send_lines(user("go"))
        question(running)
        done = running.end_input()
    expected = "Tool permission request failed: AbortError: Tool permission stream closed before response received"
    assert read_child_stdin(box)[-1] == answer("q1", behavior="deny", message=expected)
    assert user_texts(done) == [expected]
    assert (done.status, done.result["result"]) == (0, "After.")
    assert len(done.result["permission_denials"]) == 1


def test_permission_timeout_denies_the_call_and_the_turn_continues(box, talk):
    box.write_settings("permission_timeout = 0.3\n")
    child = asking_child(box, returns("refused", True))
    with talk(child, *ASKING) as running:
        running.send_lines(user("go"))
        control_request = question(running)
        running.read_line_containing(b'"type":"result"')
        done = running.end_input()
    assert read_child_stdin(box)[-1] == answer("q1", behavior="deny", message=PROMPT_TIMEOUT_TEXT)
    assert user_texts(done) == [PROMPT_TIMEOUT_TEXT]
    assert {
        "type": "control_cancel_request",
        "request_id": control_request["request_id"],
    } in done.lines
    assert (done.status, done.result["result"]) == (0, "After.")
    assert [denial["tool_name"] for denial in done.result["permission_denials"]] == ["Bash"]


def check_expired_prompt(box, running):
    """Read a permission prompt, and check that its timeout denies the call."""
    control_request = question(running)
    running.read_line_containing(b'"type":"result"')
    done = running.end_input()
    assert {
        "type": "control_cancel_request",
        "request_id": control_request["request_id"],
    } in done.lines
    assert read_child_stdin(box)[-1] == answer("q1", behavior="deny", message=PROMPT_TIMEOUT_TEXT)


FAILED_HOOK = {"subtype": "error", "error": "aborted"}
UNDECIDED_HOOK = {"subtype": "success", "response": {}}


def answer_callback(running, callback, response):
    response = {"request_id": callback["request_id"], **response}
    running.send_lines({"type": "control_response", "response": response})


@pytest.mark.parametrize("response", [UNDECIDED_HOOK, FAILED_HOOK, None])
def test_prompt_after_a_hook_callback_has_the_permission_timeout(memory_box, monkeypatch, response):
    """A callback without a response is skipped. Its late response has no effect."""
    monkeypatch.setattr(permission_decider, "HOOK_TIMEOUT_S", 5.0)
    memory_box.write_settings("permission_timeout = 9\n")
    child = asking_child(memory_box, returns("refused", True))
    hooks = {"PreToolUse": [{"hookCallbackIds": ["h0"]}]}
    with memory_box.start_conversation(child, *ASKING, vendor="qwen") as running:
        running.send_lines(control("i", "initialize", hooks=hooks), user("go"))
        callback = running.read_line_containing(b'"hook_callback"')
        if response is None:
            running.read_until(b'"subtype":"can_use_tool"')
        answer_callback(running, callback, response or UNDECIDED_HOOK)
        check_expired_prompt(memory_box, running)


@pytest.mark.parametrize("command_s", [0.0, 1.0])
def test_prompt_after_a_hook_command_and_a_callback_has_the_permission_timeout(
    memory_box, monkeypatch, command_s
):
    """Either the command or the callback is the last to decide."""
    exits = []

    async def run_hooks(*_):
        await anyio.sleep(command_s)
        exits.append(command_s)
        return HookDecision()

    monkeypatch.setattr(hook_runner, "run_hooks", run_hooks)
    memory_box.write_settings("permission_timeout = 9\n")
    command = {"type": "command", "command": "true"}
    settings = json.dumps({"hooks": {"PreToolUse": [{"hooks": [command]}]}})
    flags = (*ASKING, "--settings", settings)
    child = asking_child(memory_box, returns("refused", True))
    hooks = {"PreToolUse": [{"hookCallbackIds": ["h0"]}]}
    with memory_box.start_conversation(child, *flags, vendor="qwen") as running:
        running.send_lines(control("i", "initialize", hooks=hooks), user("go"))
        callback = running.read_line_containing(b'"hook_callback"')
        assert bool(exits) is (command_s == 0)
        answer_callback(running, callback, UNDECIDED_HOOK)
        check_expired_prompt(memory_box, running)


def test_pending_prompt_is_cancelled_before_the_result_if_the_child_dies(box, talk):
    """C10, S16b"""
    child = box.create_fake(
        HELLO, ["hear", "go"], ["out", format_ndjson(INIT, calls(), asks())], ["die", "SIGKILL"]
    )
    with talk(child, *ASKING) as running:
        running.send_lines(user("go"))
        control_request = question(running)
        running.read_line_containing(b'"type":"result"')
        done = running.end_input()
    assert [line["type"] for line in done.lines[-3:]] == [
        "control_cancel_request",
        "user",
        "result",
    ]
    assert done.lines[-3]["request_id"] == control_request["request_id"]
    assert done.result["shim"]["cause"] == "signal"


def test_changed_input_is_denied_until_the_vendor_repeats_the_call(box, talk):
    """qwen 0.24.4 ignores `updatedInput` and runs a call as it was made. The call is denied until
    the model makes it with the changed input.
    """
    child = box.create_fake(
        HELLO,
        ["hear", "go"],
        ["out", format_ndjson(INIT, calls(), asks())],
        ["hear", "control_response"],
        ["out", format_ndjson(returns("[Operation Cancelled]", True), calls("call_2", "touch y"))],
        ["out", format_ndjson(asks("call_2", "touch y", "q2"))],
        ["hear", '"q2"'],
        ["record", str(box.recording)],
        ["out", format_ndjson(returns("done", call_id="call_2"), says("After."), result("After."))],
    )
    with talk(child, *ASKING) as running:
        running.send_lines(user("go"))
        running.send_lines(
            answer(
                question(running)["request_id"],
                behavior="allow",
                updatedInput={"command": "touch y"},
            )
        )
        done = running.end_input()
    refused, allowed = read_child_stdin(box)[-2:]
    assert refused["response"]["response"]["behavior"] == "deny"
    assert '{"command":"touch y"}' in refused["response"]["response"]["message"]
    assert allowed == answer("q2", behavior="allow")
    assert len([line for line in done.lines if line["type"] == "control_request"]) == 1
    assert done.result["permission_denials"] == []


def test_changed_call_is_allowed_only_once(box, talk):
    child = box.create_fake(
        HELLO,
        ["hear", "go"],
        ["out", format_ndjson(INIT, calls(), asks())],
        ["hear", '"q1"'],
        ["out", format_ndjson(returns("[Operation Cancelled]", True), calls("call_2", "touch y"))],
        ["out", format_ndjson(asks("call_2", "touch y", "q2"))],
        ["hear", '"q2"'],
        ["out", format_ndjson(returns("done", call_id="call_2"), calls("call_3", "touch y"))],
        ["out", format_ndjson(asks("call_3", "touch y", "q3"))],
        ["hear", '"q3"'],
        ["out", format_ndjson(returns("no", True, "call_3"), says("After."), result("After."))],
    )
    with talk(child, *ASKING) as running:
        running.send_lines(user("go"))
        running.send_lines(
            answer(
                question(running)["request_id"],
                behavior="allow",
                updatedInput={"command": "touch y"},
            )
        )
        second_request = running.read_line_containing(b'"tool_use_id":"call_3"}')
        running.send_lines(
            answer(second_request["request_id"], behavior="deny", message="not twice")
        )
        done = running.end_input()
    assert [denial["tool_use_id"] for denial in done.result["permission_denials"]] == ["call_3"]


def test_question_answers_are_keyed_by_index_for_the_vendor(box, talk):
    questions = [
        {"question": "Which colour?", "header": "Colour", "multiSelect": False, "options": []}
    ]
    request = {
        "subtype": "can_use_tool",
        "tool_name": "ask_user_question",
        "tool_use_id": "call_1",
        "input": {"questions": questions},
    }
    use = {
        "type": "tool_use",
        "id": "call_1",
        "name": "ask_user_question",
        "input": {"questions": questions},
    }
    child = box.create_fake(
        HELLO,
        ["hear", "go"],
        ["out", format_ndjson(INIT, assistant(use, "tool_use"))],
        ["out", format_ndjson({"type": "control_request", "request_id": "q1", "request": request})],
        ["hear", "control_response"],
        ["record", str(box.recording)],
        ["out", format_ndjson(returns("blue"), says("Blue."), result("Blue."))],
    )
    with talk(child, *ASKING) as running:
        running.send_lines(user("go"))
        control_request = question(running)
        assert control_request["request"]["tool_name"] == "AskUserQuestion"
        changed = {"questions": questions, "answers": {"Which colour?": "blue"}}
        running.send_lines(
            answer(control_request["request_id"], behavior="allow", updatedInput=changed)
        )
        running.end_input()
    assert read_child_stdin(box)[-1]["response"]["response"]["updatedInput"]["answers"] == {
        "0": "blue"
    }


def test_call_is_denied_and_reported_if_the_frontend_cannot_prompt(box, talk):
    """C9, contract 5.13"""
    child = asking_child(box, returns("refused", True))
    with talk(child) as running:
        running.send_lines(user("go"))
        done = running.end_input()
    assert not [line for line in done.lines if line["type"] == "control_request"]
    (denial,) = [line for line in done.lines if line.get("subtype") == "permission_denied"]
    assert (denial["tool_name"], denial["tool_use_id"]) == ("Bash", "call_1")
    assert len(done.result["permission_denials"]) == 1


@pytest.mark.parametrize(
    ("rule", "allowed"),
    [
        ("Bash", True),
        ("Bash(touch:*)", True),
        ("Bash(rm:*)", False),
        ("Read", False),
        ("Bash(touch x)", True),
    ],
)
def test_call_that_matches_an_allow_rule_is_allowed_without_a_prompt(box, talk, rule, allowed):
    child = asking_child(box, returns("it", not allowed))
    with talk(child, f"--allowedTools={rule}") as running:
        running.send_lines(user("go"))
        running.end_input()
    assert read_child_stdin(box)[-1]["response"]["response"]["behavior"] == (
        "allow" if allowed else "deny"
    )


def test_interrupt_is_sent_on_stdin_and_the_child_continues(box, talk):
    """C6"""
    child = box.create_fake(
        HELLO,
        ["hear", "one"],
        ["out", format_ndjson(INIT, says("I am "))],
        ["hear", '"interrupt"'],
        ["out", CANCELLED],
        ["hear", "two"],
        ["record", str(box.recording)],
        ["out", format_ndjson(INIT, says("Hello."), result("Hello."))],
    )
    with talk(child) as running:
        running.send_lines(user("one"))
        running.read_until(b"I am ")
        running.send_lines(control("stop", "interrupt"))
        running.read_until(b'"type":"result"')
        running.send_lines(user("two"))
        done = running.end_input()
    first, second = results(done)
    assert first["subtype"] == "error_during_execution" and second["result"] == "Hello."
    assert [line["type"] for line in read_child_stdin(box)] == [
        "control_request",
        "user",
        "control_request",
        "user",
    ]


def test_interrupt_cancels_the_pending_prompt_first(box, talk):
    """C10"""
    child = box.create_fake(
        HELLO,
        ["hear", "go"],
        ["out", format_ndjson(INIT, calls(), asks())],
        ["hear", '"interrupt"'],
        ["out", format_ndjson(returns("[Operation Cancelled]", True)) + CANCELLED],
    )
    with talk(child, *ASKING) as running:
        running.send_lines(user("go"))
        control_request = question(running)
        running.send_lines(control("stop", "interrupt"))
        done = running.end_input()
    kinds = [line["type"] for line in done.lines]
    request_index = kinds.index("control_request")
    assert kinds[request_index + 1 :] == [
        "control_cancel_request",
        "control_response",
        "user",
        "user",
        "result",
    ]
    assert user_texts(done) == [TURN_STOPPED_TEXT, "[Request interrupted by user for tool use]"]
    (cancelled,) = [line for line in done.lines if line["type"] == "control_cancel_request"]
    assert cancelled["request_id"] == control_request["request_id"]
    assert responses(done)["stop"]["subtype"] == "success"
    assert done.result["terminal_reason"] == "aborted_tools"
    assert done.status == 1


def test_child_that_ignores_an_interrupt_is_killed_and_replaced(box, talk):
    lifeline = box.create_lifeline()
    deaf = [
        HELLO,
        ["say", lifeline.path, "child"],
        ["hear", "one"],
        ["out", format_ndjson(INIT, says("I am "))],
        ["hang"],
    ]
    fresh = [
        HELLO,
        ["hear", "two"],
        ["record", str(box.recording)],
        ["out", format_ndjson(INIT, says("Hello."), result("Hello."))],
    ]
    with talk(box.create_fake_sequence(deaf, fresh)) as running:
        running.send_lines(user("one"))
        running.read_until(b"I am ")
        running.send_lines(control("stop", "interrupt"))
        running.read_until(b'"type":"result"')
        assert lifeline.wait_until_closed()
        running.send_lines(user("two"))
        done = running.end_input()
    assert [line["is_error"] for line in results(done)] == [True, False]
    args = box.read_record()["arguments"]
    assert args[args.index("--resume") + 1] == VENDOR_SESSION


def test_child_death_is_an_error_and_the_next_message_resumes(box, talk):
    dying = [
        HELLO,
        ["hear", "one"],
        ["out", format_ndjson(INIT, says("I am "))],
        ["die", "SIGKILL"],
    ]
    fresh = [
        HELLO,
        ["hear", "two"],
        ["record", str(box.recording)],
        ["out", format_ndjson(INIT, says("Hello."), result("Hello."))],
    ]
    with talk(box.create_fake_sequence(dying, fresh)) as running:
        running.send_lines(user("one"), user("two"))
        done = running.end_input()
    first, second = results(done)
    assert (first["is_error"], first["shim"]["cause"]) == (True, "signal")
    assert second["is_error"] is False
    assert VENDOR_SESSION in box.read_record()["arguments"]
    assert len({line["session_id"] for line in done.lines}) == 1


def test_model_and_mode_changes_are_translated_for_the_vendor(box, talk):
    """C7"""
    turn = ["out", format_ndjson(INIT, says("Hello."), result("Hello."))]
    child = box.create_fake(
        HELLO, ["hear", "one"], turn, ["hear", "two"], ["record", str(box.recording)], turn
    )
    with talk(child) as running:
        running.send_lines(user("one"))
        running.read_until(b'"type":"result"')
        running.send_lines(control("m", "set_model", model="other"))
        running.send_lines(control("p", "set_permission_mode", mode="acceptEdits"), user("two"))
        running.end_input()
    requests = [
        line["request"] for line in read_child_stdin(box) if line["type"] == "control_request"
    ]
    assert requests[1:] == [
        {"subtype": "set_model", "model": "other"},
        {"subtype": "set_permission_mode", "mode": "default"},
    ]


def test_unsupported_control_request_of_the_vendor_gets_an_error_response(box, talk):
    odd = {"type": "control_request", "request_id": "h1", "request": {"subtype": "hook_callback"}}
    child = box.create_fake(
        HELLO,
        ["hear", "go"],
        ["out", format_ndjson(INIT, odd)],
        ["hear", '"h1"'],
        ["record", str(box.recording)],
        ["out", format_ndjson(says("Hello."), result("Hello."))],
    )
    with talk(child) as running:
        running.send_lines(user("go"))
        running.end_input()
    assert read_child_stdin(box)[-1]["response"]["subtype"] == "error"


def test_deny_rule_answers_the_vendor_request_and_the_turn_continues(box, talk):
    child = box.create_fake(
        HELLO,
        ["hear", "go"],
        ["out", format_ndjson(INIT, calls(), asks())],
        ["hear", '"deny"'],
        [
            "out",
            format_ndjson(
                returns("cancelled", failed=True), says("Then not."), result("Then not.")
            ),
        ],
    )
    with talk(child, *ASKING, "--disallowedTools=Bash") as running:
        running.send_lines(user("go"))
        done = running.end_input()
    assert done.result["result"] == "Then not." and done.result["is_error"] is False
    assert len(done.result["permission_denials"]) == 1
    assert not [line for line in done.lines if line["type"] == "control_request"]


def test_denied_call_that_ran_without_a_request_ends_the_turn(box, talk):
    lifeline = box.create_lifeline()
    child = box.create_fake(
        ["say", lifeline.path, "child"],
        HELLO,
        ["hear", "go"],
        ["out", format_ndjson(INIT, calls(), returns("done"))],
        ["hang"],
    )
    with talk(child, *ASKING, "--disallowedTools=Bash") as running:
        running.send_lines(user("go"))
        done = running.end_input()
        assert lifeline.wait_until_closed()
    assert done.cause == "denied"
    assert len(done.result["permission_denials"]) == 1


def test_max_turns_is_counted_per_message_and_not_passed_to_the_vendor(box, talk):
    """F10"""
    child = box.create_fake(
        HELLO,
        ["hear", "go"],
        ["record", str(box.recording)],
        [
            "out",
            format_ndjson(
                INIT, calls(), returns("done"), calls("call_2"), returns("done", call_id="call_2")
            ),
        ],
        ["hang"],
    )
    with talk(child, "--max-turns", "1") as running:
        running.send_lines(user("go"))
        done = running.end_input()
    assert done.result["subtype"] == "error_max_turns"
    assert "--max-session-turns" not in box.read_record()["arguments"]


def test_prompt_on_the_command_line_can_trigger_a_permission_prompt(box):
    child = box.create_fake(
        HELLO,
        ["hear", "hi there"],
        ["out", format_ndjson(INIT, calls(), asks())],
        ["hear", "control_response"],
        ["out", format_ndjson(returns("done"), says("After."), result("After."))],
    )
    flags = ("-p", "hi there", "--output-format", "stream-json", *ASKING)
    environment = {"SHIM_VENDOR": "qwen", "SHIM_BIN": child}
    with box.start_claude(*flags, stdin=subprocess.PIPE, environment=environment) as running:
        running.send_lines({"type": "keep_alive"})
        control_request = question(running)
        running.send_lines(answer(control_request["request_id"], behavior="allow"))
        running.read_until(b'"type":"result"')
        assert running.wait_for_status() == 0


def test_hooks_receive_calls_and_a_hook_denial_is_sent_to_the_vendor(box, talk):
    """C11"""
    child = asking_child(box, returns("refused", True))
    hooks = {
        "PreToolUse": [{"matcher": "Bash", "hookCallbackIds": ["h0"]}],
        "Stop": [{"hookCallbackIds": ["h1"]}],
    }
    with talk(child, *ASKING) as running:
        running.send_lines(control("i", "initialize", hooks=hooks), user("go"))
        line = running.read_line_containing(b'"hook_callback"')
        reason = {"permissionDecision": "deny", "permissionDecisionReason": "not today"}
        running.send_lines(answer(line["request_id"], hookSpecificOutput=reason))
        stop_hook = running.read_line_containing(b'"callback_id":"h1"')
        running.send_lines(answer(stop_hook["request_id"]))
        running.read_until(b'"type":"result"')
        done = running.end_input()
    assert read_child_stdin(box)[-1] == answer("q1", behavior="deny", message="not today")
    requests = [line["request"] for line in done.lines if line["type"] == "control_request"]
    assert [request["callback_id"] for request in requests] == ["h0", "h1"]
    assert requests[1]["input"]["last_assistant_message"] == "After."
    assert len(done.result["permission_denials"]) == 1
    assert done.lines[-1]["type"] == "result"


def test_hook_command_before_a_call_receives_the_prompt_id_and_the_effort(real_box, tmp_path):
    """The real claude names both in the input of PreToolUse (contract 6.5)."""
    commands = {
        event: [{"hooks": [{"type": "command", "command": f"cat > {tmp_path / event}; {more}"}]}]
        for event, more in (("UserPromptSubmit", "true"), ("PreToolUse", "exit 2"))
    }
    flags = (*ASKING, "--effort", "high", "--settings", json.dumps({"hooks": commands}))
    child = asking_child(real_box, returns("refused", True))
    with real_box.start_conversation(child, *flags, vendor="qwen") as running:
        running.send_lines(user("go"))
        running.read_until(b'"type":"result"')
        running.end_input()
    message_input, call_input = (
        json.loads((tmp_path / event).read_text()) for event in ("UserPromptSubmit", "PreToolUse")
    )
    assert call_input["effort"] == {"level": "high"}
    assert call_input["prompt_id"] and call_input["prompt_id"] == message_input["prompt_id"]


def test_driver_setting_can_start_a_new_child_per_message(box, talk):
    box.write_settings('[vendors.qwen]\ndriver = "one-way"\n')
    child = box.create_fake(
        ["read"],
        ["record", str(box.recording)],
        ["out", format_ndjson(INIT, says("Hello."), result("Hello."))],
    )
    with talk(child) as running:
        running.send_lines(user("one"), user("two"))
        done = running.end_input()
    assert [line["result"] for line in results(done)] == ["Hello.", "Hello."]
    assert box.read_record()["stdin"] == "two"
    assert "--input-format" not in box.read_record()["arguments"]
    box.write_settings('[vendors.qwen]\ndriver = "sideways"\n')
    with talk(child) as running:
        assert "it must be one of two-way, one-way" in running.end_input().stderr


def test_contract_f11_persistent_child_receives_the_schema_with_every_message(box, talk):
    """qwen's own --json-schema applies to one turn, so in a conversation the shim parses the
    answer.
    """
    schema = '{"type":"object","properties":{"n":{"type":"integer"}},"required":["n"]}'
    good, bad = (
        ["out", format_ndjson(INIT, says(text), result(text))]
        for text in ('```json\n{"n": 7}\n```', "Seven.")
    )
    child = box.create_fake(
        HELLO,
        ["hear", "one"],
        good,
        ["hear", "two"],
        ["record", str(box.recording)],
        bad,
        ["hear", "never"],
    )
    with talk(child, "--json-schema", schema) as running:
        running.send_lines(user("one"), user("two"))
        done = running.end_input()
    first, second = results(done)
    assert (first["structured_output"], first["result"]) == ({"n": 7}, '{"n":7}')
    assert second["errors"][0].startswith(
        "the answer does not match --json-schema: the answer is not JSON"
    )
    assert "--json-schema" not in box.read_record()["arguments"]
    assert [schema in str(line) for line in read_child_stdin(box)] == [False, True, True]
    assert done.status == 1


def test_invalid_json_schema_ends_the_conversation_before_the_child_starts(box, talk):
    child = box.create_fake(["record", str(box.recording)])
    with talk(child, "--json-schema", '{"type":"thing"}') as running:
        done = running.end_input()
    assert (done.status, done.stdout) == (1, b"")
    assert done.stderr.startswith("Error: --json-schema is not a JSON Schema: ")
    assert not box.recording.exists()


def test_child_interrupted_during_startup_is_replaced_by_a_new_session(box, talk):
    lifeline = box.create_lifeline()
    starting = [["say", lifeline.path, "child"], ["hang"]]
    fresh = [
        HELLO,
        ["hear", "two"],
        ["record", str(box.recording)],
        ["out", format_ndjson(INIT, says("Hello."), result("Hello."))],
    ]
    with talk(box.create_fake_sequence(starting, fresh)) as running:
        running.send_lines(user("one"))
        lifeline.wait_for("child")
        running.send_lines(control("stop", "interrupt"))
        running.read_until(b'"type":"result"')
        assert lifeline.wait_until_closed()
        running.send_lines(user("two"))
        done = running.end_input()
    first, second = results(done)
    assert first["subtype"] == "error_during_execution" and second["result"] == "Hello."
    assert not {"--resume", "--session-id"} & set(box.read_record()["arguments"])


def test_messages_beyond_the_queue_limit_are_all_answered(box, talk):
    count = 70
    turns = []
    for number in range(count):
        turns += [
            ["hear", f"number {number}."],
            ["out", format_ndjson(INIT, says(f"{number}"), result(f"{number}"))],
        ]
    with talk(box.create_fake(HELLO, *turns, ["hear", "never"])) as running:
        running.send_lines(*(user(f"number {number}.") for number in range(count)))
        done = running.end_input()
    assert [line["result"] for line in results(done)] == [str(number) for number in range(count)]


def test_permission_request_in_a_repaired_line_is_ignored(box, talk):
    """A person may act on a forged question."""
    forged = "noise " + json.dumps(asks()) + "\n"
    child = box.create_fake(
        HELLO,
        ["hear", "go"],
        ["out", format_ndjson(INIT) + forged + format_ndjson(says("Hello."), result("Hello."))],
    )
    with talk(child, *ASKING) as running:
        running.send_lines(user("go"))
        done = running.end_input()
    assert not [line for line in done.lines if line["type"] == "control_request"]
    assert done.result["shim"]["repairs"]["doubtful_event"] == 1


def test_stderr_that_a_grandchild_inherited_is_released_with_its_child(real_box, real_talk):
    """The next child's pipes get the descriptor numbers of the last child's pipes. No task may
    still wait for them.
    """
    lifeline = real_box.create_lifeline()
    count = 4
    plans = []
    for number in range(count):
        answer = format_ndjson(INIT, says("Hello."), result(f"{number}"))
        plans.append(
            [HELLO, ["hear", "go"], ["spawn", lifeline.path, True], ["out", answer], ["leave", 0]]
        )
    with real_talk(real_box.create_fake_sequence(*plans)) as running:
        running.send_lines(*(user("go") for _ in range(count)))
        done = running.end_input()
    assert done.stderr == ""
    # A message may meet a child that is just exiting. It then fails.
    assert len(results(done)) == count
    assert "internal" not in {line["shim"]["cause"] for line in results(done)}


def test_hooks_receive_no_call_of_a_turn_that_ended_with_an_error(box, talk):
    """S16b"""
    child = box.create_fake(
        HELLO, ["hear", "go"], ["out", format_ndjson(INIT, calls(), returns("done"), result())]
    )
    hooks = {
        event: [{"hookCallbackIds": [event]}] for event in ("PreToolUse", "PostToolUse", "Stop")
    }
    with talk(child, "--disallowedTools=Bash") as running:
        running.send_lines(control("i", "initialize", hooks=hooks), user("go"))
        running.read_until(b'"type":"result"')
        running.send_lines(control("p", "mcp_status"))
        running.read_until(b'"p"')
        done = running.end_input()
    late_lines = done.lines[done.lines.index(done.result) + 1 :]
    assert done.result["is_error"] is True
    assert [line["type"] for line in late_lines] == ["control_response"]


def test_turn_ends_if_a_call_ran_that_a_hook_denied(box, talk):
    """C11"""
    gate = box.create_gate()
    child = box.create_fake(
        HELLO,
        ["hear", "go"],
        ["out", format_ndjson(INIT, calls())],
        ["wait", gate.path],
        ["out", format_ndjson(returns("it ran"), says("After."), result("After."))],
        ["hear", "never"],
    )
    with talk(child, *ASKING) as running:
        running.send_lines(
            control("i", "initialize", hooks={"PreToolUse": [{"hookCallbackIds": ["h0"]}]}),
            user("go"),
        )
        line = running.read_line_containing(b'"hook_callback"')
        denied = {"permissionDecision": "deny", "permissionDecisionReason": "not this"}
        running.send_lines(
            answer(line["request_id"], hookSpecificOutput=denied), control("p", "mcp_status")
        )
        running.read_until(b'"p"')
        gate.open()
        done = running.end_input()
    assert done.cause == "denied" and done.status == 1
    assert done.result["errors"][0].startswith("not this")


@pytest.mark.parametrize("form", ["text", "json"])
def test_permission_request_is_denied_without_stream_json_output(box, form, monkeypatch):
    monkeypatch.setattr(prompt, "OPTIONAL_STDIN_TIMEOUT_S", 0.05)  # this stdin stays silent
    child = box.create_fake(
        HELLO,
        ["hear", "go on"],
        ["out", format_ndjson(INIT, calls(), asks())],
        ["hear", "control_response"],
        ["out", format_ndjson(returns("refused", True), says("After."), result("After."))],
        ["hear", "never"],
    )
    environment = {"SHIM_VENDOR": "qwen", "SHIM_BIN": child}
    flags = ("-p", "go on", "--output-format", form, *ASKING)
    with box.start_claude(*flags, stdin=subprocess.PIPE, environment=environment) as running:
        assert b"After." in running.read_until(b"After.")
        assert running.wait_for_end().status == 0


def test_permission_answer_after_a_long_queue_is_read(box, talk):
    """The turn that waits for the answer would keep the queue at its length."""
    count = 100
    turns = [["hear", "more"], ["out", format_ndjson(INIT, says("More."), result("More."))]] * count
    child = box.create_fake(
        HELLO,
        ["hear", "go"],
        ["out", format_ndjson(INIT, calls(), asks())],
        ["hear", "control_response"],
        ["out", format_ndjson(returns("done"), says("After."), result("After."))],
        *turns,
        ["hear", "never"],
    )
    with talk(child, *ASKING) as running:
        running.send_lines(user("go"))
        control_request = question(running)
        running.send_lines(
            *[user("more")] * count, answer(control_request["request_id"], behavior="allow")
        )
        done = running.end_input()
    assert done.status == 0 and len(results(done)) == count + 1


def test_permission_request_without_a_call_id_gets_an_error_response(box, talk):
    """Without a response the vendor would wait."""
    nameless = asks()
    del nameless["request"]["tool_use_id"]
    child = box.create_fake(
        HELLO,
        ["hear", "go"],
        ["out", format_ndjson(INIT, nameless)],
        ["hear", "control_response"],
        ["record", str(box.recording)],
        ["out", format_ndjson(says("After."), result("After."))],
        ["hear", "never"],
    )
    with talk(child, *ASKING) as running:
        running.send_lines(user("go"))
        done = running.end_input()
    assert done.result["result"] == "After."
    assert read_child_stdin(box)[-1]["response"]["subtype"] == "error"


def test_message_sent_to_an_exiting_child_is_answered_by_the_next_child(box, talk):
    gate = box.create_gate()
    leaving = [
        HELLO,
        ["hear", "one"],
        ["out", format_ndjson(INIT, says("Hello."), result("Hello."))],
        ["wait", gate.path],
    ]
    fresh = [HELLO, ["hear", "two"], ["out", format_ndjson(INIT, says("Again."), result("Again."))]]
    with talk(box.create_fake_sequence(leaving, fresh)) as running:
        running.send_lines(user("one"))
        running.read_until(b'"type":"result"')
        running.send_lines(user("two"))
        running.send_lines(control("r", "mcp_status"))
        running.read_until(b'"request_id":"r"')
        gate.open()
        done = running.end_input()
    assert [line["result"] for line in results(done)] == ["Hello.", "Again."]


def test_output_between_turns_is_discarded(box, talk):
    gate, lifeline = box.create_gate(), box.create_lifeline()
    child = box.create_fake(
        HELLO,
        ["hear", "one"],
        ["out", format_ndjson(INIT, says("Hello."), result("Hello."))],
        ["wait", gate.path],
        ["out", format_ndjson(INIT, says("Woken."), result("Woken."))],
        ["say", lifeline.path, "woken"],
        ["hear", "two"],
        ["out", format_ndjson(INIT, says("Two."), result("Two."))],
    )
    with talk(child) as running:
        running.send_lines(user("one"))
        running.read_until(b'"type":"result"')
        gate.open()
        lifeline.wait_for("woken")
        running.send_lines(user("two"))
        done = running.end_input()
    assert [line["result"] for line in results(done)] == ["Hello.", "Two."]
    assert results(done)[1]["shim"]["repairs"] == {"late_event": 3}


def test_missing_executable_is_reported_if_the_child_must_be_restarted(box, talk):
    turn = ["out", format_ndjson(INIT, says("Hello."), result("Hello."))]
    child = box.create_fake(HELLO, ["hear", "one"], turn, ["hear", "two"], ["leave", 0])
    with talk(child) as running:
        running.send_lines(user("one"))
        running.read_until(b'"type":"result"')
        os.unlink(child)
        running.send_lines(user("two"))
        done = running.end_input()
    assert causes(done) == ["clean", "not_found"]


def test_child_that_does_not_read_its_message_can_be_interrupted(box, talk):
    turn = ["out", format_ndjson(INIT, says("Hello."), result("Hello."))]
    with talk(box.create_fake(HELLO, ["hear", "one"], turn, ["hang"])) as running:
        running.send_lines(user("one"))
        running.read_until(b'"type":"result"')
        running.send_lines(user("x" * 1_000_000), control("i", "interrupt"))
        done = running.end_input()
    assert causes(done) == ["clean", "interrupted"]


def test_interrupt_does_not_wait_for_a_child_that_does_not_read_an_answer(box, talk):
    child = box.create_fake(
        HELLO, ["hear", "go"], ["out", format_ndjson(INIT, calls(), asks())], ["hang"]
    )
    with talk(child, *ASKING) as running:
        running.send_lines(user("go"))
        request_id = question(running)["request_id"]
        changed_input = {"command": "x" * 1_000_000}
        running.send_lines(answer(request_id, behavior="allow", updatedInput=changed_input))
        running.send_lines(control("stop", "interrupt"))
        done = running.end_input()
    assert causes(done) == ["interrupted"]


def test_turn_interrupted_before_its_first_output_has_a_single_result(box, talk):
    lifeline = box.create_lifeline()
    child = box.create_fake(
        HELLO,
        ["hear", "one"],
        TURN,
        ["hear", "two"],
        ["say", lifeline.path, "heard"],
        ["hear", '"interrupt"'],
        ["out", format_ndjson(INIT) + CANCELLED],
        ["hear", "three"],
        TURN,
        ["hear", "never"],
    )
    with talk(child) as running:
        running.send_lines(user("one"))
        running.read_until(b'"type":"result"')
        running.send_lines(user("two"))
        lifeline.wait_for("heard")
        running.send_lines(control("stop", "interrupt"))
        running.read_until(b'"request_id":"stop"')
        running.send_lines(user("three"))
        done = running.end_input()
    assert causes(done) == ["clean", "interrupted", "clean"]


def test_per_turn_child_interrupted_before_its_output_has_a_single_result(box, talk):
    lifeline = box.create_lifeline()
    box.write_settings('[vendors.qwen]\ndriver = "one-way"\n')
    child = box.create_fake(
        ["out_on", "SIGINT", format_ndjson(INIT) + CANCELLED, 130],
        ["say", lifeline.path, "there"],
        ["hang"],
    )
    with talk(child) as running:
        running.send_lines(user("one"))
        lifeline.wait_for("there")
        running.send_lines(control("stop", "interrupt"))
        running.read_until(b'"type":"result"')
        done = running.end_input()
    assert causes(done) == ["interrupted"]


def test_stalled_vendor_that_answers_the_interrupt_has_a_single_result(box, talk):
    box.write_settings("first_byte_timeout = 0.5\n")
    child = box.create_fake(
        HELLO,
        ["hear", "one"],
        ["hear", '"interrupt"'],
        ["out", format_ndjson(INIT) + CANCELLED],
        ["hear", "never"],
    )
    with talk(child) as running:
        running.send_lines(user("one"))
        running.read_until(b'"type":"result"')
        done = running.end_input()
    assert causes(done) == ["stall"]


def test_interrupt_while_an_exiting_child_is_awaited_starts_no_new_child(box, talk):
    lifeline = box.create_lifeline()
    leaving = [
        HELLO,
        ["hear", "one"],
        TURN,
        ["hear", "two"],
        ["close", 1],
        ["say", lifeline.path, "left"],
        ["hang"],
    ]
    other = [HELLO, ["hear", "two"], ["out", format_ndjson(INIT, says("Worked."))], ["hang"]]
    with talk(box.create_fake_sequence(leaving, other)) as running:
        running.send_lines(user("one"))
        running.read_until(b'"type":"result"')
        running.send_lines(user("two"))
        lifeline.wait_for("left")
        running.send_lines(control("stop", "interrupt"))
        done = running.end_input()
    assert causes(done) == ["clean", "interrupted"]
    assert b"Worked." not in done.stdout


def test_interrupt_after_the_end_of_a_turn_does_not_affect_the_next_turn(real_box, real_talk):
    """C6: the first result is still on its way when the interrupt is received."""
    long, lifeline = "x" * 90_000, real_box.create_lifeline()
    child = real_box.create_fake(
        HELLO,
        ["hear", "one"],
        ["out", format_ndjson(INIT, says(long), result(long))],
        ["say", lifeline.path, "said"],
        ["hear", "two"],
        TURN,
        ["hear", "never"],
    )
    with real_talk(child) as running:
        running.send_lines(user("one"), user("two", uuid=U))
        lifeline.wait_for("said")
        running.read_until(b'"type":"result"', at_once=4096)
        running.send_lines(control("stop", "interrupt"))
        running.wait_until_read()
        done = running.end_input()
    assert causes(done) == ["clean", "clean"]
    assert responses(done)["stop"]["response"] == {"still_queued": [U]}


def test_switch_to_the_default_model_starts_a_new_child(box, talk):
    """C7: the default model has no name that could be passed."""
    old = [HELLO, ["hear", "one"], TURN, ["hear", "two"], TURN, ["hear", "never"]]
    new = [HELLO, ["hear", "two"], ["record", str(box.recording)], TURN, ["hear", "never"]]
    with talk(box.create_fake_sequence(old, new)) as running:
        running.send_lines(control("m", "set_model", model="other"), user("one"))
        running.read_until(b'"type":"result"')
        running.send_lines(control("n", "set_model", model="default"), user("two"))
        done = running.end_input()
    assert causes(done) == ["clean", "clean"]
    assert "other" not in box.read_record()["arguments"]


def test_permission_request_between_turns_is_denied(box, talk):
    gate, lifeline = box.create_gate(), box.create_lifeline()
    child = box.create_fake(
        HELLO,
        ["hear", "one"],
        TURN,
        ["wait", gate.path],
        ["out", format_ndjson(calls(), asks())],
        ["say", lifeline.path, "asked"],
        ["hear", '"control_response"'],
        ["record", str(box.recording)],
        ["hear", "two"],
        TURN,
        ["hear", "never"],
    )
    with talk(child, *ASKING) as running:
        running.send_lines(user("one"))
        running.read_until(b'"type":"result"')
        gate.open()
        lifeline.wait_for("asked")
        running.send_lines(user("two"))
        done = running.end_input()
    assert causes(done) == ["clean", "clean"]
    assert read_child_stdin(box)[-1]["response"]["response"]["behavior"] == "deny"
    assert b"can_use_tool" not in done.stdout


def test_no_line_follows_the_result_if_a_denied_call_ends_the_turn(box, talk):
    """S16b: nothing follows the result."""
    use = {"type": "tool_use", "id": "call_2", "name": "todo_write", "input": {"todos": []}}
    forbidden = assistant(use, "tool_use")
    child = box.create_fake(
        HELLO,
        ["hear", "go"],
        ["out", format_ndjson(INIT, calls(), asks(), forbidden)],
        ["hear", "control_response"],
        ["hang"],
    )
    with talk(child, *ASKING, "--disallowedTools", "TodoWrite") as running:
        running.send_lines(user("go"))
        running.read_until(b'"type":"result"')
        done = running.end_input()
    assert done.lines[-1]["type"] == "result"


def test_partial_line_of_an_exited_child_is_discarded(box, talk):
    gate = box.create_gate()
    leaving = [HELLO, ["hear", "one"], ["out", TURN[1] + '{"type":"sys'], ["wait", gate.path]]
    with talk(box.create_fake_sequence(leaving, [HELLO, ["hear", "two"], TURN])) as running:
        running.send_lines(user("one"))
        running.read_until(b'"type":"result"')
        running.send_lines(user("two"), control("r", "mcp_status"))
        running.read_until(b'"request_id":"r"')
        gate.open()
        done = running.end_input()
    assert results(done)[1]["shim"]["repairs"] == {}


def test_debug_log_records_each_permission_decision(box, talk):
    child = box.create_fake(
        HELLO, ["hear", '"user"'], ["out", format_ndjson(INIT, calls(), asks())], ["hear", '"control_response"'],
        ["out", format_ndjson(returns("no", failed=True), result())], ["hear", "never"],
    )  # fmt: skip
    with talk(child, "--shim-log", "debug") as running:
        running.send_lines(user("go"))
        done = running.end_input()
    events = {line["event"]: line for line in map(json.loads, done.stderr.splitlines())}
    assert events["asked"]["tool"] == "Bash" and events["asked"]["frontend"] is False
    assert events["decided"]["allowed"] is False and events["decided"]["input"] == {
        "command": "touch x"
    }
    assert "cannot be requested here" in events["decided"]["why"]
    assert events["child ended"]["seconds"] >= 0
