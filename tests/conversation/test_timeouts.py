"""Timeouts for a silent vendor, and what happens after them."""

import subprocess

import pytest
from box import ASK, CONVERSE, END, START, build_text_event, format_ndjson

from shim.adapters import get_adapter
from shim.adapters.qwen_input import PERMISSION_TIMEOUT_MS
from shim.core.claude.argv.flags import parse_argv
from shim.core.errors import FrontendError
from shim.state.config import DEFAULT_TIMEOUTS_S, ShimSettings, VendorSettings, load_shim_settings
from tests.conversation.test_conversation import results, stdin, user
from tests.conversation.test_persistent_driver import (
    ASKING,
    CANCELLED,
    HELLO,
    INIT,
    answer,
    asks,
    calls,
    question,
    result,
    returns,
    says,
)
from tests.test_layering import imports

CALL = {"type": "call", "id": "c1", "name": "Bash", "input": {"command": "make"}}


@pytest.fixture
def box(quick_box):
    return quick_box


@pytest.mark.parametrize(
    ("output", "name", "reason_suffix"),
    [
        ("", "first_byte_timeout", ""),
        (format_ndjson(START, build_text_event("I am ")), "idle_timeout", ""),
        (format_ndjson(START, CALL), "tool_timeout", " while these calls were running: Bash"),
    ],
)
def test_silence_beyond_the_timeout_ends_the_turn_and_the_child(box, output, name, reason_suffix):
    lifeline = box.create_lifeline()
    box.write_settings(f"{name} = 0.3\n")
    deaf = [["ignore", "SIGINT"]] if reason_suffix else []
    child = box.create_fake(["say", lifeline.path, "child"], *deaf, ["out", output], ["hang"])
    done = box.run_claude(*ASK, SHIM_VENDOR="demo", SHIM_BIN=child)
    # Before its first byte the child may not even have started.
    assert lifeline.wait_until_closed_or_unused()
    assert (done.status, done.cause) == (1, "stall")
    assert done.result["errors"] == [f"demo printed nothing for 0.3 s ({name}){reason_suffix}"]
    if reason_suffix:
        (user_line,) = [line for line in done.lines if line["type"] == "user"]
        assert user_line["message"]["content"][0]["is_error"] is True


def test_silent_vendor_is_interrupted_and_its_last_output_is_read(box):
    """On SIGINT cake reports the cost of its turn and that it was interrupted. The reported cause
    is still the silence.
    """
    interrupted_event = {
        "type": "task_complete",
        "success": False,
        "is_error": True,
        "subtype": "interrupted",
        "duration_ms": 7,
    }
    box.write_settings("tool_timeout = 0.3\n")
    lifeline = box.create_lifeline()
    start = {"type": "task_start", "session_id": "s"}
    call = {
        "type": "function_call",
        "call_id": "c1",
        "name": "Bash",
        "arguments": '{"command":"make"}',
    }
    child_steps = [
        ["say", lifeline.path, "child"],
        ["out_on", "SIGINT", format_ndjson(interrupted_event), 130],
        ["out", format_ndjson(start, call)],
    ]
    done = box.run_claude(
        *ASK, SHIM_VENDOR="cake", SHIM_BIN=box.create_fake(*child_steps, ["hang"])
    )
    assert lifeline.wait_until_closed()
    assert (done.status, done.cause, done.result["duration_ms"]) == (1, "stall", 7)
    assert done.result["errors"] == [
        "cake printed nothing for 0.3 s (tool_timeout) while these calls were running: Bash"
    ]


@pytest.mark.parametrize("obeys", [True, False])
def test_silent_persistent_child_is_interrupted_on_stdin_and_then_killed(box, obeys):
    """It is interrupted by a line on its stdin. Its process group is ended whether it obeys or
    not.
    """
    box.write_settings("idle_timeout = 0.3\n")
    lifeline = box.create_lifeline()
    interrupt_steps = (
        [["hear", '"interrupt"'], ["out", format_ndjson(says("Well.")) + CANCELLED]]
        if obeys
        else [["hang"]]
    )
    child_steps = [["say", lifeline.path, "child"], ["ignore", "SIGINT"], HELLO, ["hear", "go"]]
    child = box.create_fake(
        *child_steps, ["out", format_ndjson(INIT, says("Hm"))], *interrupt_steps, ["hang"]
    )
    done = box.run_claude(*CONVERSE, stdin=stdin(user("go")), SHIM_VENDOR="qwen", SHIM_BIN=child)
    assert lifeline.wait_until_closed()
    (line,) = results(done)
    assert (b"Well." in done.stdout) is obeys
    assert (done.status, line["shim"]["cause"]) == (1, "stall")
    assert line["errors"] == ["qwen printed nothing for 0.3 s (idle_timeout)"]


def test_finished_vendor_gets_the_end_grace_instead_of_the_idle_timeout(box):
    box.write_settings("first_byte_timeout = 30\nidle_timeout = 0.05\nend_grace = 0.5\n")
    child = box.create_fake(
        ["out", format_ndjson(START, build_text_event("Hello."), END)], ["hang"]
    )
    done = box.run_claude(*ASK, SHIM_VENDOR="demo", SHIM_BIN=child)
    assert (done.status, done.cause, done.result["result"]) == (0, "clean", "Hello.")


def test_slow_frontend_does_not_trigger_the_idle_timeout(memory_box):
    """Backpressure: the child waits for the shim because the shim waits for the frontend."""
    memory_box.write_settings("idle_timeout = 2\ntool_timeout = 2\n")
    long_text = "x" * 1000
    child = memory_box.create_fake(
        ["out", format_ndjson(START, *[build_text_event(long_text)] * 2000, END)]
    )
    environment = {"SHIM_VENDOR": "demo", "SHIM_BIN": child}
    flags = *ASK, "--include-partial-messages"
    with memory_box.start_claude(
        *flags, stdout=subprocess.PIPE, environment=environment
    ) as running:
        running.read_until(b'"init"')
        running.pass_time(1000)
        done = running.wait_for_end()
    assert (done.status, done.cause, len(done.result["result"]) > 10_000) == (0, "clean", True)


def test_no_output_is_written_while_the_vendor_is_silent(memory_box):
    """The shim sends no sign of life that did not come from the vendor; contract S12."""
    gate = memory_box.create_gate()
    child_steps = [
        ["out", format_ndjson(START, build_text_event("I am "))],
        ["wait", gate.path],
        ["out", format_ndjson(build_text_event("here."), END)],
    ]
    environment = {"SHIM_VENDOR": "demo", "SHIM_BIN": memory_box.create_fake(*child_steps)}
    with memory_box.start_claude(
        *ASK, "--include-partial-messages", environment=environment
    ) as running:
        before = running.read_until(b'"text":"I am "')
        running.pass_time(100)
        assert running.read_until(b"") == before
        gate.open()
        done = running.wait_for_end()
    deltas = [
        line["event"]["delta"]
        for line in done.lines
        if line.get("event", {}).get("type") == "content_block_delta"
    ]
    assert [delta["text"] for delta in deltas] == ["I am ", "here."]


def test_silent_claude_after_its_result_exits_with_success(box):
    """Contract 5.12: it may have background work, after which it writes another result."""
    box.write_settings("idle_timeout = 0.2\n")
    init = {
        "type": "system",
        "subtype": "init",
        "session_id": "s",
        "claude_code_version": "2",
        "tools": [],
    }
    good = {
        "type": "result",
        "subtype": "success",
        "is_error": False,
        "result": "Hello.",
        "session_id": "s",
    }
    child = box.create_fake(["out", format_ndjson(init, good)], ["hang"])
    done = box.run_claude(*ASK, SHIM_VENDOR="claude", SHIM_BIN=child)
    assert (done.status, done.result["result"]) == (0, "Hello.")


def test_tool_timeout_of_the_vendor_applies_while_a_call_is_open(box):
    gate = box.create_gate()
    box.write_settings("idle_timeout = 0.1\n[vendors.demo.timeouts]\nfirst_byte = 30\ntool = 30\n")
    child_steps = [["out", format_ndjson(START, CALL)], ["wait", gate.path]]
    child_steps += [
        [
            "out",
            format_ndjson(
                {"type": "result", "id": "c1", "output": "ok"}, build_text_event("Done."), END
            ),
        ]
    ]
    environment = {"SHIM_VENDOR": "demo", "SHIM_BIN": box.create_fake(*child_steps)}
    with box.start_claude(*ASK, environment=environment) as running:
        running.read_until(b"tool_use")
        gate.open()
        assert running.wait_for_end().result["result"] == "Done."


def test_timeout_environment_variable_overrides_the_settings(box):
    box.write_settings("idle_timeout = 500\n")
    child = box.create_fake(["out", format_ndjson(START, build_text_event("I am "))], ["hang"])
    done = box.run_claude(*ASK, SHIM_VENDOR="demo", SHIM_BIN=child, SHIM_IDLE_TIMEOUT="0.2")
    assert "0.2 s (idle_timeout)" in done.result["errors"][0]
    assert (
        "SHIM_IDLE_TIMEOUT is 'soon'"
        in box.run_claude(*ASK, SHIM_VENDOR="demo", SHIM_IDLE_TIMEOUT="soon").stderr
    )


def test_permission_prompt_pauses_the_idle_and_tool_timeouts(memory_box):
    memory_box.write_settings("idle_timeout = 2\ntool_timeout = 2\n")
    child = memory_box.create_fake(
        HELLO,
        ["hear", "go"],
        ["out", format_ndjson(INIT, calls(), asks())],
        ["hear", "control_response"],
        ["out", format_ndjson(returns("done"), says("After."), result("After."))],
    )
    environment = {"SHIM_VENDOR": "qwen", "SHIM_BIN": child}
    with memory_box.start_claude(
        *CONVERSE, *ASKING, stdin=subprocess.PIPE, environment=environment
    ) as running:
        running.send_lines(user("go"))
        permission_request = question(running)
        running.pass_time(1000)
        running.send_lines(answer(permission_request["request_id"], behavior="allow"))
        done = running.end_input()
    assert [line["result"] for line in results(done)] == ["After."]


# -- which limit applies ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", DEFAULT_TIMEOUTS_S)
def test_user_timeout_overrides_vendor_timeout_and_default(name):
    vendor_timeouts = {name: 7.0}
    assert ShimSettings().resolve_timeout_s(name, "x") == DEFAULT_TIMEOUTS_S[name]
    assert ShimSettings().resolve_timeout_s(name, "x", vendor_timeouts) == 7.0
    assert ShimSettings(timeouts={name: 3.0}).resolve_timeout_s(name, "x", vendor_timeouts) == 3.0
    for spelled in (name, name.removesuffix("_timeout")):
        settings = ShimSettings(
            timeouts={name: 3.0}, vendors={"x": VendorSettings(timeouts={spelled: 2.0})}
        )
        assert (
            settings.resolve_timeout_s(name, "x", vendor_timeouts),
            settings.resolve_timeout_s(name, "y", vendor_timeouts),
        ) == (2.0, 3.0)


def test_permission_timeout_never_exceeds_the_vendor_limit():
    vendor_timeouts, name = {"permission_timeout": 7.0}, "permission_timeout"
    assert (
        ShimSettings(timeouts={name: 3600.0}).resolve_timeout_s(name, "x", vendor_timeouts) == 7.0
    )
    assert (
        ShimSettings(
            vendors={"x": VendorSettings(timeouts={"permission": 3600.0})}
        ).resolve_timeout_s(name, "x", vendor_timeouts)
        == 7.0
    )
    assert (
        ShimSettings(timeouts={"idle_timeout": 3600.0}).resolve_timeout_s(
            "idle_timeout", "x", {"idle_timeout": 7.0}
        )
        == 3600.0
    )


def test_permission_timeout_ends_before_the_qwen_limit():
    """qwen 0.24.4 denies a call after 60 s by itself if the limit is above 600,000 ms or
    missing.
    """
    assert PERMISSION_TIMEOUT_MS == 600_000
    ours = ShimSettings().resolve_timeout_s(
        "permission_timeout", "qwen", get_adapter("qwen").timeouts_s
    )
    assert PERMISSION_TIMEOUT_MS / 1000 - 60 <= ours <= PERMISSION_TIMEOUT_MS / 1000 - 5


@pytest.mark.parametrize(("vendor", "seconds"), [("qwen", 84), ("cursor", 757)])
def test_idle_timeout_is_at_least_twice_the_longest_vendor_silence(vendor, seconds):
    """Vendor pages: 84 s of retries without output; 757 s for one long reply."""
    assert (
        ShimSettings().resolve_timeout_s("idle_timeout", vendor, get_adapter(vendor).timeouts_s)
        >= 2 * seconds
    )


@pytest.mark.parametrize("value", ["0", "-1", '"soon"', "true", "nan", "inf"])
@pytest.mark.parametrize("key", ["idle_timeout = {}", "[vendors.qwen.timeouts]\nidle = {}"])
def test_invalid_timeout_is_rejected(box, key, value):
    box.write_settings(key.format(value) + "\n")
    with pytest.raises(
        FrontendError, match=r"idle\w* is .*; it must be a number of seconds above 0"
    ):
        load_shim_settings(parse_argv(["-p", "hi"]), box.build_environment())


WAITS = [
    "conversation.drivers.driver",
    "conversation.drivers.per_turn_driver",
    "conversation.drivers.permission_decider",
    "conversation.drivers.persistent_driver",
    "conversation.message_loop",
    "conversation.passthrough",
    "conversation.loop",
    "process.child",
]


@pytest.mark.parametrize("module", WAITS)
def test_waiting_modules_do_not_use_the_wall_clock(module):
    """Waiting code uses the clock of the loop, which neither a person nor a server can set (hostile
    input, 16).
    """
    assert "time" not in imports(module)
