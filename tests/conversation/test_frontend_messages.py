"""Messages that do not reach a model, or reach it together with another message. Measured with
claude 2.1.329.
"""

import json
import subprocess
from functools import partial

import pytest
from box import ANSWER, ASK, CONVERSE
from fixture_cases import FIXTURES

from shim.core.claude.messages import ALL_KINDS, parse_user_message
from tests.conversation.test_conversation import IDLE, U, kinds, responses, results, stdin, user
from tests.conversation.test_conversation import request as control
from tests.conversation.test_persistent_driver import (
    ASKING,
    HELLO,
    INIT,
    TURN,
    answer,
    asking_child,
    asking_steps,
    calls,
    format_ndjson,
    question,
    read_child_stdin,
    result,
    returns,
    says,
)

UUID_1 = "11111111-1111-4111-8111-111111111111"
UUID_2 = "22222222-2222-4222-8222-222222222222"
COUNTED = (
    "input_tokens",
    "cache_read_input_tokens",
    "cache_creation_input_tokens",
    "output_tokens",
)
RAN = {"stdout": "done", "stderr": "", "interrupted": False, "isImage": False}
REPLAY = ("--replay-user-messages",)
HOOKS = {"UserPromptSubmit": [{"matcher": None, "hookCallbackIds": ["h0"]}]}


def build_user_message(text, **fields):
    return {"type": "user", "message": {"role": "user", "content": text}, **fields}


def context(text, **fields):
    return build_user_message(text, shouldQuery=False, **fields)


@pytest.fixture
def box(quick_box):
    return quick_box


@pytest.fixture
def talk(box):
    return partial(box.start_conversation, vendor="qwen")


def two_turns(box):
    """Return a qwen that answers two messages and records its input."""
    record = ["record", str(box.recording)]
    return box.create_fake(
        HELLO, ["hear", '"user"'], TURN, record, ["hear", '"user"'], record, TURN, ["hear", "never"]
    )


def prompts(box):
    """Return the texts that a child has received."""
    return [line["message"]["content"] for line in read_child_stdin(box) if line["type"] == "user"]


def answer_hook(running, callback, **output):
    """Wait for a hook's request, and answer it."""
    request = running.read_line_containing(f'"callback_id":"{callback}"'.encode())
    running.send_lines(answer(request["request_id"], **output))


# -- an answer to a permission prompt --------------------------------------------------------------


@pytest.mark.parametrize("body", [{"updatedInput": {}}, {}])
def test_allowed_call_without_updated_input_runs_unchanged(box, talk, body):
    with talk(asking_child(box, returns("done")), *ASKING) as running:
        running.send_lines(user("go"))
        running.send_lines(answer(question(running)["request_id"], behavior="allow", **body))
        done = running.end_input()
    assert results(done)[0]["permission_denials"] == []
    assert read_child_stdin(box)[-1]["response"]["response"]["behavior"] == "allow"


@pytest.mark.parametrize("value", [None, [], "x", 3])
def test_allowed_call_with_invalid_input_is_denied(box, talk, value):
    with talk(asking_child(box, returns("no", failed=True)), *ASKING) as running:
        running.send_lines(user("go"))
        running.send_lines(
            answer(question(running)["request_id"], behavior="allow", updatedInput=value)
        )
        done = running.end_input()
    assert len(results(done)[0]["permission_denials"]) == 1
    assert (
        "it must be an object or be left out"
        in read_child_stdin(box)[-1]["response"]["response"]["message"]
    )


# -- a repeated message ----------------------------------------------------------------------------


@pytest.mark.parametrize("vendor", ["qwen", "demo"])
def test_repeated_message_is_answered_once(box, talk, vendor):
    child = two_turns(box) if vendor == "qwen" else box.create_fake(["read"], ["out", ANSWER])
    with talk(child, vendor=vendor) as running:
        running.send_lines(
            build_user_message("one", uuid=UUID_1),
            build_user_message("one", uuid=UUID_1),
            build_user_message("two", uuid=UUID_2),
        )
        done = running.end_input()
    assert len(results(done)) == 2 and kinds(done).count("init") == 2


def test_repeated_message_is_echoed_if_echoes_are_enabled(box, talk):
    with talk(two_turns(box), *REPLAY) as running:
        running.send_lines(build_user_message("one", uuid=UUID_1))
        running.read_line_containing(b'"type":"result"')
        running.send_lines(build_user_message("another text", uuid=UUID_1))
        done = running.end_input()
    echoes = [line for line in done.lines if line["type"] == "user"]
    assert [(line["uuid"], line["message"]["content"]) for line in echoes] == [
        (UUID_1, "one"),
        (UUID_1, "another text"),
    ]
    assert all(line["isReplay"] for line in echoes) and len(results(done)) == 1


def test_message_ids_are_case_sensitive(box, talk):
    with talk(two_turns(box)) as running:
        running.send_lines(
            build_user_message("one", uuid="my-id"),
            build_user_message("one", uuid="MY-ID"),
            build_user_message("one", uuid="my-id"),
        )
        done = running.end_input()
    assert len(results(done)) == 2


def test_repeated_message_is_answered_by_a_fork_but_not_on_resume(box):
    environment = {
        "SHIM_VENDOR": "qwen",
        "SHIM_BIN": box.create_fake(HELLO, ["hear", '"user"'], TURN, ["hear", "never"]),
    }

    def run(*flags):
        with box.start_claude(
            *CONVERSE, *flags, stdin=subprocess.PIPE, environment=environment
        ) as running:
            running.send_lines(build_user_message("one", uuid=UUID_1))
            return running.end_input()

    assert len(results(run("--session-id", U))) == 1
    resumed_run = run("--resume", U, *REPLAY)
    assert (resumed_run.status, kinds(resumed_run)) == (0, ["user"]) and resumed_run.lines[0][
        "isReplay"
    ]
    assert len(results(run("--resume", U, "--fork-session"))) == 1


# -- a message that is only context ----------------------------------------------------------------


def test_context_messages_are_sent_with_the_next_message(box, talk):
    with talk(two_turns(box), *REPLAY) as running:
        running.send_lines(
            context("c1"),
            context("c2"),
            build_user_message("go"),
            context("c3"),
            build_user_message("last"),
        )
        done = running.end_input()
    assert prompts(box) == ["c1\nc2\ngo", "c3\nlast"]
    assert [line["num_turns"] for line in results(done)] == [0, 0, 1, 0, 1]
    first = results(done)[0]
    assert (first["subtype"], first["is_error"], first["result"], first["stop_reason"]) == (
        "success",
        False,
        "",
        None,
    )
    assert kinds(done)[:6] == ["init", "user", "result", "init", "user", "result"]
    echoes = [line["message"]["content"] for line in done.lines if line["type"] == "user"]
    assert echoes == ["c1", "c2", "go", "c3", "last"]


def test_context_message_is_sent_to_a_per_turn_child(box, talk):
    child = box.create_fake(["read"], ["record", str(box.recording)], ["out", ANSWER])
    with talk(child, vendor="demo") as running:
        running.send_lines(context("c1"), build_user_message("go"))
        done = running.end_input()
    assert [line["num_turns"] for line in results(done)] == [0, 1]
    assert box.read_record()["stdin"] == "c1\ngo"


def test_context_with_an_image_preserves_its_blocks():
    image = {
        "type": "image",
        "source": {"type": "base64", "media_type": "image/png", "data": "aGk="},
    }
    first = parse_user_message(
        {"message": {"role": "user", "content": [image, {"type": "text", "text": "c"}]}}, ""
    )
    second = parse_user_message({"message": {"role": "user", "content": "go"}, "uuid": UUID_1}, "")
    joined = second.prepend_context([first])
    assert [part.kind for part in joined.select_blocks(ALL_KINDS)] == ["image", "text", "text"]
    assert (joined.text, joined.uuid, joined.raw_message["content"]) == ("c\ngo", UUID_1, "go")


def test_context_at_the_end_of_stdin_starts_no_child(box, talk):
    with talk(box.write_program("trap", f"touch {box.path}/started\n")) as running:
        running.send_lines(context("c1"))
        done = running.end_input()
    assert (done.status, kinds(done)) == (0, ["init", "result"])
    assert not (box.path / "started").exists()


@pytest.mark.parametrize("value", [True, None, 0, "false", [], {}])
def test_only_should_query_false_makes_a_message_context(box, talk, value):
    with talk(two_turns(box)) as running:
        running.send_lines(build_user_message("go", shouldQuery=value))
        done = running.end_input()
    assert [line["num_turns"] for line in results(done)] == [1]


# -- a hook that denies a message ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "text", "kind"),
    [
        (
            {"decision": "block", "reason": "not today"},
            "UserPromptSubmit operation blocked by hook:\nnot today\n\nOriginal prompt: go",
            "blocked_by_hook",
        ),
        (
            {"decision": "block"},
            "UserPromptSubmit operation blocked by hook:\nBlocked by hook\n\nOriginal prompt: go",
            "blocked_by_hook",
        ),
        (
            {"continue": False, "stopReason": "halt"},
            "Operation stopped by hook: halt",
            "stopped_by_hook",
        ),
        ({"continue": False}, "Operation stopped by hook", "stopped_by_hook"),
    ],
)
@pytest.mark.parametrize("vendor", ["qwen", "demo"])
def test_message_blocked_by_a_hook_starts_no_child(box, talk, vendor, body, text, kind):
    with talk(box.write_program("trap", f"touch {box.path}/started\n"), vendor=vendor) as running:
        running.send_lines(control("i", "initialize", hooks=HOOKS), build_user_message("go"))
        hook_request = running.read_line_containing(b'"hook_callback"')
        assert (
            hook_request["request"]["input"]["prompt"],
            bool(hook_request["request"]["tool_use_id"]),
        ) == (
            "go",
            True,
        )
        running.send_lines(answer(hook_request["request_id"], **body))
        done = running.end_input()
    assert not (box.path / "started").exists() and done.status == 0
    (line,) = [line for line in done.lines if line.get("subtype") == "informational"]
    assert (line["content"], line["prompt_submit_outcome"]["kind"]) == (text, kind)
    (end,) = results(done)
    assert (end["result"], end["num_turns"], end["is_error"], end["subtype"]) == (
        text,
        0,
        False,
        "success",
    )


@pytest.mark.parametrize(
    "body", [{}, {"decision": "approve"}, {"continue": True}, {"continue_": False}]
)
def test_message_is_sent_after_its_hook_accepts(box, talk, body):
    with talk(two_turns(box)) as running:
        running.send_lines(control("i", "initialize", hooks=HOOKS), build_user_message("go"))
        hook_request = running.read_line_containing(b'"hook_callback"')
        running.send_lines(answer(hook_request["request_id"], **body))
        done = running.end_input()
    assert prompts(box) == ["go"] and [line["num_turns"] for line in results(done)] == [1]


def test_message_after_a_blocked_message_is_sent(box, talk):
    with talk(two_turns(box)) as running:
        running.send_lines(control("i", "initialize", hooks=HOOKS), build_user_message("go"))
        running.send_lines(
            answer(running.read_line_containing(b'"hook_callback"')["request_id"], decision="block")
        )
        running.read_line_containing(b'"type":"result"')
        running.send_lines(build_user_message("more"))
        running.send_lines(answer(running.read_line_containing(b'"hook_callback"')["request_id"]))
        done = running.end_input()
    assert prompts(box) == ["more"] and [line["num_turns"] for line in results(done)] == [0, 1]


def test_interrupt_ends_a_turn_waiting_for_a_hook(box, talk):
    with talk(box.write_program("trap", f"touch {box.path}/started\n")) as running:
        running.send_lines(control("i", "initialize", hooks=HOOKS), build_user_message("go"))
        running.read_line_containing(b'"hook_callback"')
        running.send_lines(control("stop", "interrupt"))
        done = running.end_input()
    (end,) = results(done)
    assert (end["subtype"], end["shim"]["cause"]) == ("error_during_execution", "interrupted")
    assert not (box.path / "started").exists()


def test_end_of_stdin_does_not_block_a_message_waiting_for_a_hook(box, talk):
    with talk(two_turns(box)) as running:
        running.send_lines(control("i", "initialize", hooks=HOOKS), build_user_message("go"))
        done = running.end_input()
    assert [line["num_turns"] for line in results(done)] == [1]


# -- other fields and bytes ------------------------------------------------------------------------


def test_result_contains_the_origin_of_its_message(box, talk):
    with talk(two_turns(box)) as running:
        running.send_lines(
            build_user_message("one", origin={"kind": "human"}), build_user_message("two")
        )
        done = running.end_input()
    assert [line.get("origin") for line in results(done)] == [{"kind": "human"}, None]


def test_byte_order_mark_is_skipped(box):
    stdin = b"".join(
        b"\xef\xbb\xbf" + json.dumps(build_user_message(text)).encode() + b"\n"
        for text in ("one", "two")
    )
    child = box.create_fake(["read"], ["out", IDLE])
    done = box.run_claude(*CONVERSE, SHIM_VENDOR="demo", SHIM_BIN=child, stdin=stdin)
    assert [line["result"] for line in results(done)] == ["Hello.", "Hello."], results(done)
    assert (done.status, done.stderr) == (0, "")


# -- other requests of a frontend ------------------------------------------------------------------


def test_context_usage_has_the_documented_fields(box, talk):
    with talk(two_turns(box)) as running:
        running.send_lines(control("before", "get_context_usage"), build_user_message("one"))
        running.read_line_containing(b'"type":"result"')
        running.send_lines(
            control("after", "get_context_usage"), control("skills", "reload_skills")
        )
        done = running.end_input()
    answers = {name: response["response"] for name, response in responses(done).items()}
    assert (answers["before"]["totalTokens"], answers["before"]["percentage"]) == (0, 0)
    after = answers["after"]
    assert after["totalTokens"] == sum(results(done)[0]["usage"][name] for name in COUNTED)
    assert after["maxTokens"] == after["rawMaxTokens"] == 200_000 and after["model"] == "m1"
    assert sum(category["tokens"] for category in after["categories"]) == after["maxTokens"]
    assert all(category["name"] and category["color"] for category in after["categories"])
    assert answers["skills"] == {"skills": []}


@pytest.mark.parametrize("failed", [False, True])
def test_hooks_receive_the_same_tool_result_as_the_stream(box, talk, failed):
    events = ("PostToolUse", "PostToolUseFailure", "Stop")
    with talk(asking_child(box, returns("done", failed=failed)), *ASKING) as running:
        hooks = {event: [{"hookCallbackIds": [event]}] for event in events}
        running.send_lines(control("i", "initialize", hooks=hooks), user("go"))
        running.send_lines(answer(question(running)["request_id"], behavior="allow"))
        for event in (events[failed], "Stop"):
            answer_hook(running, event)
        running.read_line_containing(b'"type":"result"')
        done = running.end_input()
    hook_requests = [
        line["request"]
        for line in done.lines
        if line.get("request", {}).get("subtype") == "hook_callback"
    ]
    assert [request["callback_id"] for request in hook_requests] == [events[failed], "Stop"]
    (line,) = [line for line in done.lines if "tool_use_result" in line]
    if failed:
        assert (hook_requests[0]["input"]["error"], hook_requests[0]["input"]["is_interrupt"]) == (
            "done",
            False,
        )
    else:
        assert hook_requests[0]["input"]["tool_response"] == line["tool_use_result"] == RAN
    assert len(hook_requests[1]["tool_use_id"]) == len(UUID_1)


@pytest.mark.parametrize("source", ["user", "flag"])
def test_output_style_setting_is_in_init_and_initialize(box, source):
    flags = ("--settings", '{"outputStyle": "Explanatory"}') if source == "flag" else ()
    if source == "user":
        (box.home / ".claude").mkdir(exist_ok=True)
        (box.home / ".claude" / "settings.json").write_text('{"outputStyle": "Explanatory"}')
    environment = {"SHIM_VENDOR": "demo", "SHIM_BIN": box.create_fake(["read"], ["out", IDLE])}
    done = box.run_claude(
        *CONVERSE, *flags, stdin=stdin(control("i", "initialize"), user("hi")), **environment
    )
    assert done.init["output_style"] == "Explanatory"
    body = responses(done)["i"]["response"]
    assert (body["output_style"], body["available_output_styles"]) == (
        "Explanatory",
        ["default", "Explanatory"],
    )


@pytest.mark.parametrize(
    ("lines", "status"),
    [
        (b"not json\n", 1),
        (b"\xef\xbb\xbfnot json\n\nnor this\n", 1),
        (b'{"type":"user"}\n', 1),
        (b"", 0),
        (b"\n \n", 0),
        (b"\xef\xbb\xbf\n", 0),
        (b'not json\n{"type":"keep_alive"}\n', 0),
    ],
)
def test_invalid_stdin_lines_exit_with_status_1(box, lines, status):
    done = box.run_claude(
        *CONVERSE, SHIM_VENDOR="demo", SHIM_BIN=box.create_fake(["read"]), stdin=lines
    )
    assert (done.status, done.stdout) == (status, b"")


def test_message_over_the_session_budget_is_not_sent(box, talk):
    """pi's fixture reports a cost."""
    box.write_settings('[vendors.pi]\ndriver = "one-way"\n')
    printed = str(FIXTURES / "pi" / "1.5.2-plain" / "vendor.ndjson")
    child = box.create_fake(["read"], ["record", str(box.recording)], ["cat", printed])
    with talk(child, "--max-budget-usd", "0.0000001", vendor="pi") as running:
        running.send_lines(build_user_message("one"))
        running.read_line_containing(b'"type":"result"')
        box.recording.unlink()
        running.send_lines(build_user_message("two"))
        done = running.end_input()
    assert done.status == 1 and not box.recording.exists()
    assert [line["subtype"] for line in results(done)] == ["error_max_budget_usd"] * 2
    assert [line["total_cost_usd"] for line in results(done)] == [
        results(done)[0]["total_cost_usd"]
    ] * 2


# -- feedback of hooks -----------------------------------------------------------------------------


def build_context(event, text):
    return {"hookSpecificOutput": {"hookEventName": event, "additionalContext": text}}


def register(*events):
    hooks = {event: [{"hookCallbackIds": [event]}] for event in events}
    return control("i", "initialize", hooks=hooks)


def test_context_of_a_prompt_hook_precedes_the_message(box, talk):
    with talk(two_turns(box)) as running:
        running.send_lines(register("UserPromptSubmit"), user("one"))
        answer_hook(running, "UserPromptSubmit", **build_context("UserPromptSubmit", "it rains"))
        running.read_line_containing(b'"type":"result"')
        done = running.end_input()
    assert done.status == 0
    assert prompts(box) == [
        "<system-reminder>\nUserPromptSubmit hook additional context: it rains\n"
        "</system-reminder>\none"
    ]


def test_stop_hook_continues_the_turn_with_its_reason(box, talk):
    with talk(two_turns(box)) as running:
        running.send_lines(register("Stop"), user("one"))
        answer_hook(running, "Stop", decision="block", reason="run the tests")
        running.read_until(b'"stop_hook_active":true')
        (request,) = [
            line
            for line in map(json.loads, running.read_until(b'"stop_hook_active":true').splitlines())
            if line.get("request", {}).get("input", {}).get("stop_hook_active")
        ]
        running.send_lines(answer(request["request_id"]))
        running.read_line_containing(b'"type":"result"')
        done = running.end_input()
    (feedback,) = [line for line in done.lines if line.get("isSynthetic")]
    text = "Stop hook feedback:\nrun the tests"
    assert feedback["message"] == {"role": "user", "content": [{"type": "text", "text": text}]}
    assert prompts(box)[-1] == f"<system-reminder>\n{text}\n</system-reminder>"
    assert (done.result["num_turns"], done.result["terminal_reason"]) == (2, "completed")


def test_stop_hook_that_stops_the_turn_sets_the_terminal_reason(box, talk):
    with talk(two_turns(box)) as running:
        running.send_lines(register("Stop"), user("one"))
        answer_hook(running, "Stop", **{"continue": False})
        running.read_line_containing(b'"type":"result"')
        done = running.end_input()
    assert done.result["terminal_reason"] == "stop_hook_prevented"
    assert len(prompts(box)) == 1


def test_interrupt_ends_the_wait_for_a_stop_hook(box, talk):
    with talk(two_turns(box)) as running:
        running.send_lines(register("Stop"), user("one"))
        running.read_line_containing(b'"callback_id":"Stop"')
        running.send_lines(control("stop", "interrupt"))
        running.read_line_containing(b'"type":"result"')
        done = running.end_input()
    assert done.status == 0 and len(results(done)) == 1


def test_block_after_a_tool_result_is_answered_before_the_turn_ends(box, talk):
    child = box.create_fake(
        *asking_steps(box, returns("done")),
        ["hear", "blocking error"],
        ["record", str(box.recording)],
        TURN,
        ["hear", "never"],
    )
    with talk(child, *ASKING) as running:
        running.send_lines(register("PostToolUse"), user("go"))
        running.send_lines(answer(question(running)["request_id"], behavior="allow"))
        answer_hook(running, "PostToolUse", decision="block", reason="lint failed")
        running.read_line_containing(b'"type":"result"')
        done = running.end_input()
    assert prompts(box)[-1] == (
        '<system-reminder>\nPostToolUse:Bash hook blocking error from command: "callback": '
        "lint failed\n</system-reminder>"
    )
    assert done.stderr == ""


def test_context_after_a_tool_result_waits_for_the_next_message_and_is_reported(box, talk):
    with talk(asking_child(box, returns("done")), *ASKING) as running:
        running.send_lines(register("PostToolUse"), user("go"))
        running.send_lines(answer(question(running)["request_id"], behavior="allow"))
        answer_hook(running, "PostToolUse", **build_context("PostToolUse", "it rains"))
        running.read_line_containing(b'"type":"result"')
        done = running.end_input()
    assert done.stderr.count("the context of a hook was not sent during the turn") == 1
    (init,) = [line for line in done.lines if line.get("subtype") == "init"]
    entry, _ = init["shim"]["not_honoured"]
    assert entry["what"] == "hooks.PostToolUse" and "with the next message" in entry["reason"]


def test_context_after_a_tool_result_has_no_effect_in_one_shot_mode_and_is_reported(real_box):
    command = f"echo '{json.dumps(build_context('PostToolUse', 'it rains'))}'"
    settings = {"hooks": {"PostToolUse": [{"hooks": [{"type": "command", "command": command}]}]}}
    child = real_box.create_fake(
        HELLO,
        ["hear", "hi"],
        ["out", format_ndjson(INIT, calls(), returns("done"), result())],
        ["hear", "never"],
    )
    flags = "--permission-mode", "bypassPermissions", "--settings", json.dumps(settings)
    done = real_box.run_claude(*ASK, *flags, SHIM_VENDOR="qwen", SHIM_BIN=child)
    assert done.status == 0
    assert "the context of a hook was not sent during the turn: it has no effect" in done.stderr


def test_hook_of_an_event_that_is_not_called_is_reported(box, talk):
    with talk(two_turns(box)) as running:
        running.send_lines(register("PostToolBatch"), user("one"))
        running.read_line_containing(b'"type":"result"')
        done = running.end_input()
    assert "hooks.PostToolBatch of the frontend has no effect" in done.stderr


def test_hook_ends_the_turn_after_a_tool_result(box, talk):
    gate = box.create_gate()
    child = box.create_fake(
        HELLO,
        ["hear", "go"],
        ["out", format_ndjson(INIT, calls(), returns("done"))],
        ["wait", gate.path],
        ["out", format_ndjson(says("After."), result("After."))],
    )
    with talk(child, *ASKING) as running:
        running.send_lines(register("PostToolUse", "Stop"), user("go"))
        answer_hook(running, "PostToolUse", **{"continue": False, "stopReason": "enough"})
        running.read_line_containing(b'"type":"result"')
        gate.open()
        done = running.end_input()
    assert (done.result["subtype"], done.result["result"]) == ("success", "")
    assert (done.result["terminal_reason"], done.result["stop_reason"]) == (
        "hook_stopped",
        "tool_use",
    )
    callbacks = [line["request"] for line in done.lines if line["type"] == "control_request"]
    assert [request["callback_id"] for request in callbacks] == ["PostToolUse"]
