"""Several vendors in the settings: the next vendor answers only if the one before it cannot. The
frontend sees one turn.
"""

import json
import os
import signal
import subprocess

import pytest
from box import ANSWER, ASK, CONVERSE, Done, build_stand_in_command, format_ndjson
from fallback_vendors import (
    BYE,
    LIMITED,
    UNAUTHORIZED,
    Several,
    build_failure,
    build_hello,
    build_text_event,
    format_stream,
)
from stream_invariants import check_turns
from stream_lines import summarize_lines

from shim.conversation.fallback import driver
from shim.core.api_errors import describe_cause
from tests.conversation.test_conversation import request as control
from tests.conversation.test_conversation import responses, results, stdin, user
from tests.conversation.test_persistent_driver import HELLO, INIT, says
from tests.conversation.test_persistent_driver import result as qwen_result

U = "11111111-1111-4111-8111-111111111111"


@pytest.fixture
def several(quick_box):
    return Several(quick_box)


@pytest.fixture
def real_several(real_box):
    """The same with real processes."""
    return Several(real_box)


@pytest.fixture
def impatient_several(memory_box, monkeypatch):
    """The same in memory, with vendors that time out after 5 s."""
    monkeypatch.setattr(driver, "VENDOR_TIMEOUT_S", 5.0)
    return Several(memory_box)


def list_attempts(line):
    """Return the vendors that failed before, with the cause, as a line of the shim reports them."""
    return [(attempt["vendor"], attempt["cause"]) for attempt in line["shim"].get("tried", [])]


def get_answering_vendor(done: Done) -> str:
    """Return the vendor that answered. The init, the result and the text must agree."""
    (vendor,) = {line["shim"]["vendor"] for line in (done.init, done.result)}
    assert list_attempts(done.init) == list_attempts(done.result)
    check_turns(done.stdout, False)
    return vendor


# -- one-shot mode: the next vendor ----------------------------------------------------------------

REFUSED = {
    "says that nobody is logged in": ("auth", (build_hello("a-1"), build_failure("not logged in"))),
    "says that its key is wrong": ("auth", (UNAUTHORIZED,)),
    "is rate-limited": ("rate_limit", (build_hello("a-1"), LIMITED)),
    "has no credit left": (
        "rate_limit",
        (build_hello("a-1"), build_failure("402 insufficient credits balance")),
    ),
}


@pytest.mark.parametrize("how", REFUSED)
def test_next_vendor_answers_after_an_auth_or_rate_limit_error(several, how):
    cause, events = REFUSED[how]
    several.set_output("ant", *events, code=1)
    several.set_answers("bee", "cow")
    done = several.box.run_claude(*ASK)
    assert (done.status, get_answering_vendor(done), list_attempts(done.init)) == (
        0,
        "bee",
        [("ant", cause)],
    )
    assert summarize_lines(done.lines) == ["init", "text:I am bee.", "end:success I am bee.", "."]
    assert (done.init["model"], done.init["tools"]) == ("bee-model", ["Bash"])
    assert not several.build_record_path("cow").exists()
    assert f"ant did not answer ({describe_cause(cause)}); trying bee" in done.stderr


@pytest.mark.parametrize(
    ("child_steps", "cause"),
    [
        ([["leave", 3]], "exit_code"),
        ([["leave", 0]], "truncated"),
        ([["die", "SIGSEGV"]], "signal"),
        ([["out", "usage: ant\n"], ["leave", 2]], "exit_code"),
        ([["out", "usage: ant\n"]], "protocol"),
    ],
)
def test_next_vendor_answers_if_a_child_exits_without_an_answer(several, child_steps, cause):
    several.box.create_fake(*child_steps, name="ant")
    several.set_answers("bee")
    done = several.box.run_claude(*ASK)
    assert (done.status, get_answering_vendor(done), list_attempts(done.init)) == (
        0,
        "bee",
        [("ant", cause)],
    )


def test_next_vendor_answers_if_a_program_is_missing_from_path(several):
    several.set_answers("cow")
    done = several.box.run_claude(*ASK)
    assert (done.status, get_answering_vendor(done)) == (0, "cow")
    assert list_attempts(done.init) == [("ant", "not_found"), ("bee", "not_found")]
    assert "no program called ant was found on PATH" in done.init["shim"]["tried"][0]["reason"]


def test_next_vendor_answers_if_the_interpreter_of_a_program_is_missing(real_several):
    broken = real_several.box.write_program("ant", "")
    real_several.box.path.joinpath("bin/ant").write_text(
        "#!/nowhere/interpreter\n", encoding="utf-8"
    )
    assert os.access(broken, os.X_OK)
    real_several.set_answers("bee")
    done = real_several.box.run_claude(*ASK)
    assert (done.status, get_answering_vendor(done), list_attempts(done.init)) == (
        0,
        "bee",
        [("ant", "not_found")],
    )
    assert (
        "the script's interpreter /nowhere/interpreter does not exist"
        in done.init["shim"]["tried"][0]["reason"]
    )


def test_vendor_without_the_permission_mode_is_skipped(several):
    several.box.create_fake(["read"], ["out", ANSWER], name="demo")
    several.set_answers("ant", "bee")
    several.write_settings("ant", "demo", "bee")
    done = several.box.run_claude(*ASK, "--permission-mode", "plan")
    assert (get_answering_vendor(done), list_attempts(done.init)) == ("demo", [("ant", "refused")])
    assert done.init["permissionMode"] == "plan"
    assert (
        not several.build_record_path("ant").exists()
        and not several.build_record_path("bee").exists()
    )


def test_vendor_without_the_default_mode_of_the_settings_is_skipped(several):
    several.write_settings("ant", "demo", "bee")
    several.box.create_fake(["read"], ["out", ANSWER], name="demo")
    several.set_answers("ant", "bee")
    settings_json = json.dumps({"permissions": {"defaultMode": "plan"}})
    done = several.box.run_claude(*ASK, "--settings", settings_json)
    assert (get_answering_vendor(done), list_attempts(done.init)) == ("demo", [("ant", "refused")])
    assert done.init["permissionMode"] == "plan"


def test_permission_mode_is_refused_if_no_listed_vendor_supports_the_mode(several):
    several.set_answers("ant", "bee", "cow")
    done = several.box.run_claude(*ASK, "--permission-mode", "plan")
    assert (done.status, done.cause, list_attempts(done.result)) == (
        1,
        "refused",
        [("ant", "refused"), ("bee", "refused")],
    )
    assert not any(several.build_record_path(name).exists() for name in several.names)


OTHERWISE = {
    "after a text": ((build_hello("a-1"), build_text_event("I begin."), LIMITED), 1),
    "after thinking": ((build_hello("a-1"), {"type": "think", "text": "Hm."}, LIMITED), 1),
    "after a call": (
        (
            build_hello("a-1"),
            {"type": "run", "id": "1", "name": "shell", "with": {"cmd": "ls"}},
            LIMITED,
        ),
        1,
    ),
    "after a result whose call nobody saw": (
        (build_hello("a-1"), {"type": "ran", "id": "1", "out": "gone"}, LIMITED),
        1,
    ),
    "after an event that nobody knows": (
        (build_hello("a-1"), {"type": "ran_anew", "cmd": "rm"}, LIMITED),
        1,
    ),
    "in a dialect that nobody knows": (
        ({"type": "hello_anew"}, {"type": "ran_anew", "cmd": "rm"}),
        1,
    ),
    "of the server": ((build_hello("a-1"), build_failure("500 Internal Server Error")), 1),
    "of the connection": ((build_hello("a-1"), build_failure("connection refused")), 1),
    "of the model's name": ((build_hello("a-1"), build_failure("404 model not found")), 1),
    "without a reason": ((build_hello("a-1"), build_failure("something else")), 1),
    "in the middle": ((build_hello("a-1"),), 1),
}


@pytest.mark.parametrize("when", OTHERWISE)
def test_failure_after_vendor_output_does_not_start_the_next_vendor(several, when):
    events, code = OTHERWISE[when]
    several.set_output("ant", *events, code=code)
    several.set_answers("bee")
    done = several.box.run_claude(*ASK)
    assert (done.status, get_answering_vendor(done), list_attempts(done.result)) == (1, "ant", [])
    assert not several.build_record_path("bee").exists()


def test_empty_answer_does_not_start_the_next_vendor(several):
    several.set_output("ant", build_hello("a-1"), BYE)
    several.set_answers("bee")
    done = several.box.run_claude(*ASK)
    assert (done.status, get_answering_vendor(done)) == (
        0,
        "ant",
    ) and not several.build_record_path("bee").exists()


def test_trust_prompt_refusal_does_not_start_the_next_vendor(several):
    several.write_settings("cursor", "ant")
    several.box.create_fake(
        ["complain", "Workspace Trust Required\n"], ["leave", 1], name="cursor-agent"
    )
    several.set_answers("ant")
    done = several.box.run_claude(*ASK)
    assert (done.status, get_answering_vendor(done), done.cause) == (1, "cursor", "refused")


# -- all vendors -----------------------------------------------------------------------------------


def test_result_lists_each_vendor_and_its_cause_if_all_vendors_fail(several):
    several.set_output("ant", UNAUTHORIZED, code=1)
    several.set_output("cow", LIMITED, code=1)
    done = several.box.run_claude(*ASK)
    assert done.status == 1 and get_answering_vendor(done) == "cow"
    assert list_attempts(done.result) == [("ant", "auth"), ("bee", "not_found")]
    assert (done.cause, done.result["is_error"]) == ("rate_limit", True)
    for phrase in (
        "429",
        "ant did not answer either (not logged in or invalid API key): 401 Unauthorized",
        "bee did not answer either (not installed)",
    ):
        assert phrase in done.result["result"]


def test_text_output_exits_with_status_127_if_no_vendor_is_installed(several):
    done = several.box.run_claude("-p", "hi")
    assert (done.status, done.stdout) == (127, b"")
    assert [line.split(" cannot")[0] for line in done.stderr.splitlines()][:2] == ["ant", "bee"]
    assert "no program called cow" in done.stderr
    done = several.box.run_claude(*ASK)
    assert (done.status, done.cause, list_attempts(done.result)) == (
        1,
        "not_found",
        [("ant", "not_found"), ("bee", "not_found")],
    )
    assert "bee did not answer either (not installed)" in done.result["errors"][0]


def test_failure_reason_of_a_vendor_is_truncated_and_has_no_escapes(several):
    several.set_output(
        "ant", build_failure("401 Unauthorized \x1b[31m" + "\n" + "x" * 5000), code=1
    )
    several.set_answers("bee")
    done = several.box.run_claude(*ASK)
    (attempt,) = done.init["shim"]["tried"]
    assert (
        len(attempt["reason"]) == 300
        and attempt["reason"].startswith("401 Unauthorized")
        and "\x1b" not in attempt["reason"]
    )


def test_secret_in_a_failure_reason_is_redacted_if_redaction_covers_all(several):
    key = "sk-ant-api03-" + "abcDEF123" * 6
    several.set_output("ant", build_failure(f"401 Unauthorized: {key}"), code=1)
    several.set_answers("bee")
    assert key in several.box.run_claude(*ASK).stdout.decode()
    done = several.box.run_claude(*ASK, SHIM_REDACT="all")
    assert get_answering_vendor(done) == "bee" and key not in done.stdout.decode() + done.stderr


# -- the input of each vendor ----------------------------------------------------------------------


def test_model_flag_is_passed_to_the_first_vendor_only(several):
    several.set_output("ant", UNAUTHORIZED, code=1)
    several.set_answers("bee")
    done = several.box.run_claude(*ASK, "--model", "m1")
    started = (
        json.loads(several.build_record_path("ant").read_text()),
        json.loads(several.build_record_path("bee").read_text()),
    )
    assert [record["arguments"][:2] for record in started] == [["--model", "m1"], []]
    assert done.init["model"] == "bee-model"


def test_vendor_prefix_of_the_model_disables_fallback(several):
    several.set_output("bee", UNAUTHORIZED, code=1)
    several.set_answers("ant", "cow")
    done = several.box.run_claude(*ASK, "--model", "bee:m1")
    assert (done.status, get_answering_vendor(done), done.cause, list_attempts(done.result)) == (
        1,
        "bee",
        "auth",
        [],
    )


def test_installed_vendor_list_enables_fallback(real_several):
    real_several.set_output("ant", UNAUTHORIZED, code=1)
    real_several.set_answers("bee")
    real_several.box.write_settings("")
    done = real_several.box.run_shim("--installed", "vendor=ant,bee", "claude", *ASK)
    assert (get_answering_vendor(done), list_attempts(done.result)) == ("bee", [("ant", "auth")])


def test_shim_bin_and_shim_args_apply_to_the_first_vendor_only(several):
    several.set_answers("bee")
    other = several.box.create_fake(["out", format_ndjson(UNAUTHORIZED)])
    done = several.box.run_claude(*ASK, SHIM_BIN=other, SHIM_ARGS="--only-of-ant")
    assert get_answering_vendor(done) == "bee"
    assert (
        "--only-of-ant" not in json.loads(several.build_record_path("bee").read_text())["arguments"]
    )


def test_missing_bin_of_the_last_vendor_is_reported_in_the_result(
    several,
):
    several.set_output("ant", UNAUTHORIZED, code=1)
    several.set_answers("bee")
    several.write_settings(more='[vendors.bee]\nbin = "/none/bee"\n')
    done = several.box.run_claude(*ASK, SHIM_VENDOR="ant,bee")
    assert (done.status, get_answering_vendor(done), list_attempts(done.result)) == (
        1,
        "bee",
        [("ant", "auth")],
    )
    assert "bee: the program /none/bee was not found" in done.result["errors"][0]


# -- formats, dialects, sessions -------------------------------------------------------------------


def test_text_and_json_output_contain_only_the_final_answer(several):
    several.set_output("ant", UNAUTHORIZED, code=1)
    several.set_answers("bee")
    done = several.box.run_claude("-p", "hi")
    assert (done.status, done.stdout) == (0, b"I am bee.\n")
    done = several.box.run_claude("-p", "hi", "--output-format", "json")
    result = json.loads(done.stdout)
    assert (result["result"], list_attempts(result)) == ("I am bee.", [("ant", "auth")])
    done = several.box.run_claude("-p", "hi", "--output-format", "json", "--verbose")
    assert [line["type"] for line in json.loads(done.stdout)] == ["system", "assistant", "result"]


def test_partial_messages_after_fallback_form_a_valid_turn(several):
    several.set_output("ant", build_hello("a-1"), LIMITED, code=1)
    several.set_answers("bee")
    done = several.box.run_claude(*ASK, "--include-partial-messages")
    check_turns(done.stdout, True)
    assert len({line["uuid"] for line in done.lines if "uuid" in line}) == len(done.lines) - 1


def test_yume_dialect_emits_a_single_turn_after_fallback(several):
    several.set_output("ant", build_hello("a-1"), LIMITED, code=1)
    several.set_answers("bee")
    done = several.box.run_claude(*ASK, SHIM_DIALECT="yume")
    assert [line["type"] for line in done.lines] == [
        "system",
        "text",
        "usage",
        "result",
        "message_stop",
    ]
    assert list_attempts(done.lines[0]) == list_attempts(done.lines[-2]) == [("ant", "rate_limit")]


def test_yume_cli_uses_the_vendor_list_unless_a_provider_is_named(real_several):
    real_several.set_output("ant", LIMITED, code=1)
    real_several.set_answers("bee")
    environment = real_several.box.build_environment()
    done = real_several.box.run_shim("yume-cli", "start", "--prompt", "hi", environment=environment)
    assert (done.status, list_attempts(done.result)) == (0, [("ant", "rate_limit")])
    args = "--prompt", "hi", "--provider", "ant"
    done = real_several.box.run_shim("yume-cli", "start", *args, environment=environment)
    assert (done.status, done.result["shim"]["vendor"], list_attempts(done.result)) == (
        1,
        "ant",
        [],
    )


def test_yume_interactive_mode_skips_an_unattended_vendor(real_several):
    real_several.write_settings("pi", "bee")
    real_several.box.write_program("pi", "exit 0\n")
    real_several.set_answers("bee")
    args = "start", "--prompt", "hi", "--permission-mode", "interactive"
    done = real_several.box.run_shim(
        "yume-cli", *args, environment=real_several.box.build_environment()
    )
    assert (done.status, list_attempts(done.result)) == (0, [("pi", "refused")])


FRAMES = [
    {"type": "set_permission_mode", "mode": "interactive"},
    {"type": "user", "content": "one"},
]


def test_unattended_vendor_does_not_replace_a_vendor_that_prompts(several):
    several.write_settings("qwen", "bee", "cow")
    several.set_unattended("bee")
    auth_error_steps = [
        ["hear", '"user"'],
        ["out", format_ndjson(INIT, qwen_result(error="[API Error: 401 Unauthorized]"))],
    ]
    several.box.create_fake(HELLO, *auth_error_steps, ["hear", "nothing more"], name="qwen")
    several.set_answers("bee", "cow")
    done = converse(several, *FRAMES, SHIM_DIALECT="yume")
    assert list_attempts(done.lines[0]) == [("qwen", "auth"), ("bee", "refused")]
    assert not several.build_record_path("bee").exists()


def test_interactive_conversation_uses_the_first_vendor_that_can_prompt(several):
    several.write_settings("ant", "qwen")
    several.set_unattended("ant")
    several.set_answers("ant")
    several.box.create_fake(
        HELLO, ["hear", '"user"'], ["out", QWEN], ["hear", "nothing more"], name="qwen"
    )
    done = converse(several, *FRAMES, SHIM_DIALECT="yume")
    assert list_attempts(done.lines[0]) == [("ant", "refused")] and done.status == 0
    done = converse(several, *FRAMES, SHIM_DIALECT="yume", SHIM_VENDOR="ant")
    assert (done.status, done.lines[-2]["shim"]["cause"]) == (1, "refused")
    assert b"does not support the permission mode `interactive`" in done.stdout
    assert not several.build_record_path("ant").exists()


def test_resume_and_continue_use_the_vendor_that_answered(several):
    several.set_output("ant", UNAUTHORIZED, code=1)
    several.set_answers("bee")
    done = several.box.run_claude(*ASK, "--session-id", U)
    assert get_answering_vendor(done) == "bee" and done.init["session_id"] == U
    several.set_answers("ant")
    done = several.box.run_claude("-p", "and now?", *ASK[2:], "--resume", U)
    assert (get_answering_vendor(done), list_attempts(done.init)) == ("bee", [])
    assert json.loads(several.build_record_path("bee").read_text())["arguments"] == [
        "--resume",
        "bee-1",
        "and now?",
    ]
    assert (
        get_answering_vendor(several.box.run_claude("-p", "and again?", *ASK[2:], "--continue"))
        == "bee"
    )


def test_resumed_session_does_not_fall_back_to_another_vendor(several):
    several.set_answers("ant", "bee")
    several.box.run_claude(*ASK, "--session-id", U)
    several.set_output("ant", LIMITED, code=1)
    done = several.box.run_claude("-p", "and now?", *ASK[2:], "--resume", U)
    assert (done.status, get_answering_vendor(done), done.cause) == (1, "ant", "rate_limit")


def test_transcript_contains_only_the_turn_of_the_answering_vendor(several):
    several.set_output("ant", build_hello("a-1"), LIMITED, code=1)
    several.set_answers("bee")
    several.box.run_claude(*ASK, "--session-id", U)
    (path,) = several.box.home.glob(f".claude/projects/*/{U}.jsonl")
    messages = [
        line
        for line in map(json.loads, path.read_text().splitlines())
        if line["type"] in ("user", "assistant")
    ]
    assert [line["type"] for line in messages] == ["user", "assistant"]


# -- conversations ---------------------------------------------------------------------------------


def converse(several, *lines, flags=(), **environment):
    return several.box.run_claude(*CONVERSE, *flags, stdin=stdin(*lines), **environment)


def vendors(done):
    return [
        line["shim"]["vendor"]
        for line in done.lines
        if line.get("subtype") == "init" or line["type"] == "result"
    ]


def test_mode_change_before_the_first_message_decides_which_vendor_answers(
    several,
):
    several.write_settings("ant", "demo", "bee")
    several.set_answers("ant", "bee")
    lines = (
        control("1", "initialize"),
        control("2", "set_permission_mode", mode="default"),
        user("one"),
    )
    done = converse(several, *lines, flags=["--permission-mode=auto"])
    assert vendors(done) == ["ant", "ant"]


def test_conversation_skips_a_vendor_without_the_permission_mode(several):
    several.write_settings("ant", "demo", "bee")
    several.box.create_fake(["read"], ["out", ANSWER], name="demo")
    several.set_answers("ant", "bee")
    done = converse(
        several, control("1", "initialize"), user("one"), flags=["--permission-mode=auto"]
    )
    assert (vendors(done), list_attempts(done.result)) == (["demo", "demo"], [("ant", "refused")])
    assert not several.build_record_path("ant").exists()


def test_later_messages_go_to_the_vendor_that_answered_after_fallback(several):
    several.set_output("ant", UNAUTHORIZED, code=1)
    several.set_answers("bee")
    done = converse(several, control("1", "initialize"), user("one"), user("two"))
    assert done.status == 0 and vendors(done) == ["bee"] * 4
    assert [list_attempts(line) for line in results(done)] == [[("ant", "auth")], []]
    assert json.loads(several.build_record_path("bee").read_text())["arguments"] == [
        "--resume",
        "bee-1",
    ]
    assert len({line["session_id"] for line in done.lines if "session_id" in line}) == 1
    assert responses(done)["1"]["subtype"] == "success"


def test_later_error_of_the_answering_vendor_does_not_trigger_fallback(several):
    several.box.create_fake_sequence(
        [["out", format_stream("ant")]], [["out", format_ndjson(LIMITED)]], name="ant"
    )
    several.set_answers("bee")
    done = converse(several, user("one"), user("two"))
    assert vendors(done) == ["ant"] * 4 and results(done)[1]["shim"]["cause"] == "rate_limit"


def test_each_message_tries_all_vendors_until_a_vendor_answers(several):
    several.write_settings("ant", "bee")
    several.box.create_fake_sequence(
        [["out", format_ndjson(UNAUTHORIZED)]], [["out", format_stream("ant")]], name="ant"
    )
    several.set_output("bee", LIMITED, code=1)
    done = converse(several, user("one"), user("two"), user("three"))
    assert vendors(done) == ["bee", "bee", "ant", "ant", "ant", "ant"]
    assert [list_attempts(line) for line in results(done)] == [[("ant", "auth")], [], []]
    assert [line["is_error"] for line in results(done)] == [True, False, False]
    assert len({line["session_id"] for line in done.lines if "session_id" in line}) == 1
    models = [line["model"] for line in done.lines if line.get("subtype") == "init"]
    assert models == ["unknown", "ant-model", "ant-model"]


def test_set_model_applies_to_the_first_vendor_only(several):
    several.write_settings("ant", "bee")
    several.set_output("ant", UNAUTHORIZED, code=1)
    several.set_output("bee", LIMITED, code=1)
    lines = control("1", "set_model", model="m2"), user("one"), user("two")
    converse(several, *lines, flags=("--model", "m1"))
    started = (
        json.loads(several.build_record_path("ant").read_text()),
        json.loads(several.build_record_path("bee").read_text()),
    )
    assert [record["arguments"] for record in started] == [["--model", "m2"], []]


QWEN = format_ndjson(INIT, says("I am qwen."), qwen_result("I am qwen."))


def test_persistent_child_that_fails_is_replaced_by_the_next_vendor(several):
    several.write_settings("qwen", "bee")
    auth_error_steps = [
        ["hear", '"user"'],
        ["out", format_ndjson(INIT, qwen_result(error="[API Error: 401 Unauthorized]"))],
    ]
    several.box.create_fake(HELLO, *auth_error_steps, ["hear", "nothing more"], name="qwen")
    several.set_answers("bee")
    done = converse(several, user("one"), user("two"))
    assert vendors(done) == ["bee"] * 4 and list_attempts(results(done)[0]) == [("qwen", "auth")]


def test_persistent_vendor_answers_after_a_per_turn_vendor_fails(several):
    several.write_settings("ant", "qwen")
    several.set_output("ant", LIMITED, code=1)
    turn = [["hear", '"user"'], ["out", QWEN]]
    several.box.create_fake(HELLO, *turn, *turn, ["hear", "nothing more"], name="qwen")
    done = converse(several, user("one"), user("two"), flags=("--permission-prompt-tool", "stdio"))
    assert vendors(done) == ["qwen"] * 4 and list_attempts(results(done)[0]) == [
        ("ant", "rate_limit")
    ]


def test_failed_persistent_child_is_released_before_the_next_message(real_several):
    """A process that the child left behind holds its stderr. That pipe is no longer read when the
    next child has the same descriptor number.
    """
    real_several.write_settings("ant", "qwen")
    real_several.set_output("ant", LIMITED, code=1)
    fails = [
        "out",
        format_ndjson(INIT, qwen_result(error="[API Error: 500 Internal Server Error]")),
    ]
    real_several.box.create_fake(
        ["hold", 30], HELLO, ["hear", '"user"'], fails, ["hear", "nothing more"], name="qwen"
    )
    done = converse(real_several, user("one"), user("two"), user("three"))
    assert vendors(done) == ["qwen"] * 6
    assert [list_attempts(line) for line in results(done)] == [[("ant", "rate_limit")]] * 3
    assert [line["shim"]["cause"] for line in results(done)] == ["vendor_error"] * 3


def test_set_model_rejects_a_model_of_another_vendor(several):
    """The prefix of a model belongs to one vendor."""
    several.set_answers("ant")
    lines = [
        control("1", "set_model", model="ant:m1"),
        control("2", "set_model", model="bee:m1"),
        control("3", "set_model", model=":bee:m1"),
        control("4", "set_model", model="ant:"),
        control("5", "set_model", model="ant:--all"),
    ]
    done = converse(
        several, *lines, control("6", "set_model", model="ant:m2"), user("one"), SHIM_VENDOR="ant"
    )
    responses_by_id = responses(done)
    assert [responses_by_id[request_id]["subtype"] for request_id in "123456"] == [
        "success",
        "error",
        "success",
        "success",
        "error",
        "success",
    ]
    assert [responses_by_id[request_id]["response"]["model"] for request_id in "1346"] == [
        "m1",
        "bee:m1",
        "default",
        "m2",
    ]
    assert (
        "this conversation belongs to ant, which does not have bee's models"
        in responses_by_id["2"]["error"]
    )
    assert json.loads(several.build_record_path("ant").read_text())["arguments"] == [
        "--model",
        "m2",
    ]


@pytest.mark.parametrize("is_conversation", [False, True])
def test_rate_limited_real_claude_falls_back_to_the_next_vendor(several, is_conversation):
    """Its lines do not pass through unchanged, because another vendor may have to write them."""
    several.write_settings("claude", "bee")
    several.box.create_fixture_printer("claude", "claude/2.1.327-api-err429")
    several.set_answers("bee")
    done = converse(several, user("one")) if is_conversation else several.box.run_claude(*ASK)
    assert (done.status, vendors(done), list_attempts(done.init)) == (
        0,
        ["bee", "bee"],
        [("claude", "rate_limit")],
    )


def test_session_answered_by_real_claude_can_be_resumed(real_several):
    real_several.write_settings("claude", "bee")
    real_several.box.write_program(
        "claude", f'exec {" ".join(build_stand_in_command("fake_claude"))} "$@"\n'
    )
    done = converse(real_several, user("one"), user("two"))
    assert done.status == 0 and vendors(done) == ["claude"] * 4
    (session,) = {line["session_id"] for line in done.lines if "session_id" in line}
    done = real_several.box.run_claude("-p", "and now?", *ASK[2:], "--resume", session)
    assert done.status == 0 and done.init["session_id"] == session


# -- before a vendor has answered ------------------------------------------------------------------


def test_output_is_buffered_until_a_vendor_answers_and_then_streams(several):
    gate = several.box.create_gate()
    several.box.create_fake(
        ["out", format_ndjson(build_hello("ants session"))],
        ["wait", gate.path],
        ["out", format_ndjson(LIMITED)],
        name="ant",
    )
    later = several.box.create_gate()
    several.box.create_fake(
        ["out", format_ndjson(build_hello("b-1"), build_text_event("I am bee."))],
        ["wait", later.path],
        ["out", format_ndjson(BYE)],
        name="bee",
    )
    with several.box.start_claude(*ASK) as running:
        gate.open()
        output = running.read_until(b"I am bee.")
        assert (
            b"ants session" not in output
            and b'"vendor":"bee"' in output
            and b'"type":"result"' not in output
        )
        later.open()
        assert running.wait_for_end().status == 0


def test_first_line_is_not_buffered_for_a_single_vendor(several):
    gate = several.box.create_gate()
    several.box.create_fake(
        ["out", format_ndjson(build_hello("a-1"))],
        ["wait", gate.path],
        ["out", format_ndjson(BYE)],
        name="ant",
    )
    with several.box.start_claude(*ASK, environment={"SHIM_VENDOR": "ant"}) as running:
        assert b'"vendor":"ant"' in running.read_until(b"\n")
        gate.open()
        assert running.wait_for_end().status == 0


def test_first_line_of_the_last_vendor_is_not_buffered(several):
    gate = several.box.create_gate()
    several.set_output("ant", UNAUTHORIZED, code=1)
    several.write_settings("ant", "bee")
    several.box.create_fake(
        ["out", format_ndjson(build_hello("b-1"))],
        ["wait", gate.path],
        ["out", format_ndjson(BYE)],
        name="bee",
    )
    with several.box.start_claude(*ASK) as running:
        assert b'"vendor":"bee"' in running.read_until(b"\n")
        gate.open()
        assert running.wait_for_end().status == 0


@pytest.mark.parametrize(
    ("number", "cause", "status"),
    [(signal.SIGINT, "interrupted", 0), (signal.SIGTERM, "signal", 143)],
)
def test_signal_before_the_first_output_ends_the_turn_without_fallback(
    several, number, cause, status
):
    lifeline = several.box.create_lifeline()
    several.box.create_fake(
        ["out", format_ndjson(build_hello("a-1"))],
        ["say", lifeline.path, "there"],
        ["hang"],
        name="ant",
    )
    several.set_answers("bee")
    with several.box.start_claude(*ASK) as running:
        lifeline.wait_for("there")
        running.send_signal(number)
        done = running.wait_for_end()
    assert (done.status, done.cause, get_answering_vendor(done)) == (status, cause, "ant")
    assert lifeline.wait_until_closed() and not several.build_record_path("bee").exists()


def test_message_after_an_interrupt_goes_to_the_first_vendor(
    several,
):
    lifeline = several.box.create_lifeline()
    hangs = [["out", format_ndjson(build_hello("a-1"))], ["say", lifeline.path, "there"], ["hang"]]
    several.box.create_fake_sequence(hangs, [["out", format_stream("ant")]], name="ant")
    several.set_answers("bee")
    with several.box.start_claude(*CONVERSE, stdin=subprocess.PIPE) as running:
        running.send_lines(user("one"))
        lifeline.wait_for("there")
        running.send_lines(control("1", "interrupt"))
        running.read_until(b'"interrupted"')
        running.send_lines(user("two"))
        done = running.end_input()
    assert [line["shim"]["cause"] for line in results(done)] == ["interrupted", "clean"]
    assert vendors(done) == ["ant"] * 4 and not several.build_record_path("bee").exists()


def test_silent_vendor_is_selected_after_the_vendor_timeout(impatient_several):
    gate = impatient_several.box.create_gate()
    impatient_several.box.create_fake(
        ["out", format_ndjson(build_hello("a-1"))],
        ["wait", gate.path],
        ["out", format_ndjson(LIMITED)],
        name="ant",
    )
    impatient_several.set_answers("bee")
    with impatient_several.box.start_claude(*ASK) as running:
        assert b'"vendor":"ant"' in running.read_until(b"\n")
        gate.open()
        done = running.wait_for_end()
    assert (get_answering_vendor(done), done.cause) == (
        "ant",
        "rate_limit",
    ) and not impatient_several.build_record_path("bee").exists()


def test_vendor_that_only_reports_rate_limit_retries_is_skipped_at_timeout(impatient_several):
    lifeline = impatient_several.box.create_lifeline()
    waits = {"type": "wait", "attempt": 1, "of": 10, "for": "429 rate limit exceeded"}
    impatient_several.box.create_fake(
        ["out", format_ndjson(build_hello("a-1"), waits)],
        ["say", lifeline.path, "there"],
        ["hang"],
        name="ant",
    )
    impatient_several.set_answers("bee")
    done = impatient_several.box.run_claude(*ASK)
    assert (done.status, get_answering_vendor(done), list_attempts(done.result)) == (
        0,
        "bee",
        [("ant", "rate_limit")],
    )
    assert (
        "printed nothing for 5 s except waiting notices"
        in done.result["shim"]["tried"][0]["reason"]
    )
    assert lifeline.wait_until_closed_or_unused()


def test_rate_limit_retry_on_stderr_counts_as_waiting(impatient_several):
    lifeline = impatient_several.box.create_lifeline()
    message = "Attempt 1 failed with status 429. Retrying with backoff...\n"
    impatient_several.box.create_fake(
        ["complain", message], ["say", lifeline.path, "there"], ["hang"], name="ant"
    )
    impatient_several.set_answers("bee")
    done = impatient_several.box.run_claude(*ASK)
    assert (get_answering_vendor(done), list_attempts(done.result)) == (
        "bee",
        [("ant", "rate_limit")],
    ) and lifeline.wait_until_closed_or_unused()


def test_vendor_is_selected_if_its_buffered_output_exceeds_the_limit(several):
    gate = several.box.create_gate()
    waits = format_ndjson(
        {"type": "wait", "attempt": 1, "of": 10, "for": "429 rate limit exceeded " + "x" * 500}
    )
    plan = [
        ["out", format_ndjson(build_hello("a-1"))],
        ["repeat", waits, 3000],
        ["wait", gate.path],
        ["out", format_ndjson(LIMITED)],
    ]
    several.box.create_fake(*plan, name="ant")
    several.set_answers("bee")
    with several.box.start_claude(*ASK) as running:
        running.read_until(b'"vendor":"ant"')
        gate.open()
        assert results(running.wait_for_end())[0]["shim"]["vendor"] == "ant"


# -- recordings ------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_conversation", [False, True])
def test_recording_lists_all_children_and_replays_the_answering_child(
    real_several, is_conversation
):
    real_several.set_output("ant", build_hello("a-1"), UNAUTHORIZED, code=1)
    real_several.set_answers("cow")
    cast = real_several.box.path / "run.cast"
    if is_conversation:
        lines = control("1", "initialize"), user("one"), user("two")
        done = converse(real_several, *lines, SHIM_RECORD=str(cast))
    else:
        done = real_several.box.run_claude(*ASK, SHIM_RECORD=str(cast))
    records = [json.loads(line) for line in cast.read_text().splitlines()[1:]]
    children = [data.get("vendor", "ant") for _, code, data in records if code == "s"]
    notes = [
        (data["vendor"], data["started"])
        for _, code, data in records
        if code == "n" and "started" in data
    ]
    assert children == ["ant", *["cow"] * (1 + is_conversation)] and notes == [
        ("ant", True),
        ("bee", False),
    ]
    assert real_several.box.run_shim("replay", "--check", str(cast)).status == 0
    replayed_run = real_several.box.run_claude(*ASK, SHIM_VENDOR=f"replay:{cast}")
    assert (get_answering_vendor(replayed_run), list_attempts(replayed_run.init)) == (
        "cow",
        [("ant", "auth"), ("bee", "not_found")],
    )
    assert replayed_run.result["result"] == results(done)[0]["result"] == "I am cow."


def test_recording_in_which_all_vendors_failed_passes_the_replay_check(real_several):
    real_several.write_settings("ant", "bee")
    real_several.set_output("ant", UNAUTHORIZED, code=1)
    real_several.set_output("bee", LIMITED, code=1)
    casts = []
    for args in (("-p", "hi"), ("-p", "hi", "--output-format", "json"), ASK):
        casts.append(str(real_several.box.path / f"run{len(casts)}.cast"))
        done = real_several.box.run_claude(*args, SHIM_RECORD=casts[-1])
        assert done.status == 1 and b"ant did not answer either" in done.stdout, args
        assert real_several.box.run_shim("replay", "--check", casts[-1]).status == 0, args
    assert real_several.box.run_shim("show", casts[-1]).status == 0
    assert real_several.box.run_shim("cast", "verify", *casts).status == 0


def test_replay_check_reports_a_recording_without_an_answering_child(real_several):
    real_several.write_settings("ant", "bee")
    real_several.set_output("ant", UNAUTHORIZED, code=1)
    cast = real_several.box.path / "run.cast"
    done = real_several.box.run_claude(*ASK, SHIM_RECORD=str(cast))
    assert (done.cause, list_attempts(done.result)) == ("not_found", [("ant", "auth")])
    check_run = real_several.box.run_shim("replay", "--check", str(cast))
    assert (
        check_run.status == 0 and b"no child process answered in this recording" in check_run.stdout
    )


@pytest.mark.parametrize("args", [("-p", "hi"), ASK])
def test_show_and_export_read_a_recording_as_the_answering_vendor(real_several, args):
    real_several.write_settings("qwen", "bee")
    error = qwen_result(error="[API Error: 401 Unauthorized]")
    real_several.box.create_fake(
        ["read"], ["out", format_ndjson(INIT, error)], ["leave", 1], name="qwen"
    )
    real_several.set_answers("bee")
    cast = str(real_several.box.path / "run.cast")
    assert (
        real_several.box.run_claude(
            *args, "--dangerously-skip-permissions", SHIM_RECORD=cast
        ).status
        == 0
    )
    drawn = real_several.box.run_shim("show", cast).stdout.decode()
    assert (
        "qwen did not answer (auth): API Error: 401 Unauthorized" in drawn and "I am bee." in drawn
    )
    assert "repaired" not in drawn and "not understood" not in drawn
    (listed,) = json.loads(real_several.box.run_shim("cast", "list", cast, "--json").stdout)
    assert (listed["vendor"], listed["outcome"]) == ("bee", "ok")
    assert list(
        json.loads(real_several.box.run_shim("cast", "stats", cast, "--json").stdout)["vendors"]
    ) == ["bee"]
    last = results(real_several.box.run_shim("export", cast, "--to", "ndjson"))[-1]
    assert (last["shim"]["vendor"], last["result"]) == ("bee", "I am bee.")
    assert real_several.box.run_shim("export", cast, "--to", "markdown").stdout.startswith(
        b"# hi\n\nbee "
    )
    atif = json.loads(real_several.box.run_shim("export", cast, "--to", "atif").stdout)
    if args is ASK:
        assert atif["agent"]["name"] == "bee"
    assert "I am bee." in [step["message"] for step in atif["steps"]]


def test_recording_of_failed_persistent_children_passes_the_replay_check(real_several):
    real_several.write_settings("ant", "qwen")
    real_several.set_output("ant", LIMITED, code=1)
    fails = [
        "out",
        format_ndjson(INIT, qwen_result(error="[API Error: 500 Internal Server Error]")),
    ]
    real_several.box.create_fake(
        HELLO, ["hear", '"user"'], fails, ["hear", "nothing more"], name="qwen"
    )
    cast = str(real_several.box.path / "run.cast")
    done = converse(real_several, user("one"), user("two"), SHIM_RECORD=cast)
    assert [list_attempts(line) for line in results(done)] == [[("ant", "rate_limit")]] * 2
    check_run = real_several.box.run_shim("replay", "--check", cast)
    assert check_run.status == 0, check_run.stdout.decode()
