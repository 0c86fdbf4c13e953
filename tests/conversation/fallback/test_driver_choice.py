"""A vendor with two drivers: which driver is selected, and the fallback if that driver does not
start.
"""

import json
import subprocess

import pytest
from box import CONVERSE, format_ndjson

from shim.adapters import get_adapter
from shim.conversation.plan import select_driver
from shim.core.claude.argv.flags import parse_argv
from shim.state.config import ShimSettings, VendorSettings
from tests.conversation.test_conversation import request, results, user
from tests.conversation.test_persistent_driver import ASKING

ANSWER = format_ndjson(
    {"type": "init", "session_id": "00000000-0000-4000-8000-000000000001", "model": "m1"},
    {"type": "message", "role": "assistant", "content": "Hello.", "delta": True},
    {"type": "result", "status": "success", "stats": {}},
)
ANSWER_STEPS = (["out", ANSWER], ["leave", 0])
REFUSED = {"jsonrpc": "2.0", "id": 1, "error": {"code": -32602, "message": "no such thing"}}
STRANGE = {"jsonrpc": "2.0", "id": 1, "result": {"protocolVersion": 7}}
GREETED = {"jsonrpc": "2.0", "id": 1, "result": {"protocolVersion": 1}}
NO_LOGIN = {
    "jsonrpc": "2.0",
    "id": 2,
    "error": {"code": -32000, "message": "Authentication required"},
}
BROKEN = {
    "an unknown flag": [["complain", "Unknown argument: acp\n"], ["leave", 1]],
    "a help on stdout": [["out", "usage: …\n"], ["leave", 0]],
    "an error": [
        ["hear", '"initialize"'],
        ["out", format_ndjson(REFUSED)],
        ["hear", "nothing more"],
    ],
    "another version": [
        ["hear", '"initialize"'],
        ["out", format_ndjson(STRANGE)],
        ["hear", "nothing more"],
    ],
    "no login": [
        ["hear", '"initialize"'],
        ["out", format_ndjson(GREETED, NO_LOGIN)],
        ["hear", "nothing more"],
    ],
}


@pytest.fixture
def box(quick_box):
    return quick_box


def converse(box, child_steps, *flags, vendor="gemini"):
    child = box.create_fake_sequence(child_steps, ANSWER_STEPS, ANSWER_STEPS)
    environment = {"SHIM_VENDOR": vendor, "SHIM_BIN": child}
    with box.start_claude(
        *CONVERSE, *flags, stdin=subprocess.PIPE, environment=environment
    ) as running:
        running.send_lines(user("one"))
        running.read_until(b'"type":"result"')
        running.send_lines(user("two"))
        running.read_until(b'"type":"result"')
        return running.end_input()


@pytest.mark.parametrize("child_steps", BROKEN.values(), ids=BROKEN)
def test_driver_falls_back_with_a_warning_if_two_way_startup_fails(box, child_steps):
    done = converse(box, child_steps)
    assert [line["result"] for line in results(done)] == ["Hello.", "Hello."]
    first, second = (line for line in done.lines if line.get("subtype") == "init")
    (attempt,) = first["shim"]["tried"]
    assert attempt["vendor"] == "gemini"
    assert "tried" not in second["shim"]
    assert done.stderr.count("gemini's two-way mode failed (") == 1
    assert done.stderr.count("falling back to one-way mode") == 1


def test_driver_fallback_is_refused_if_the_frontend_answers_prompts(box):
    done = converse(box, BROKEN["an error"], *ASKING)
    assert results(done)[0]["is_error"]
    assert "no such thing" in str(results(done)[0])
    assert "one-way" not in done.stderr


def test_driver_fallback_is_refused_if_denied_calls_would_run(box):
    done = converse(box, BROKEN["an error"], vendor="opencode")
    assert results(done)[0]["is_error"]
    assert "one-way" not in done.stderr


def test_driver_fallback_is_not_used_after_the_session_starts(box):
    session = {"jsonrpc": "2.0", "id": 2, "result": {"sessionId": "s1"}}
    failed = {"jsonrpc": "2.0", "id": 3, "error": {"code": -32603, "message": "the model is gone"}}
    opening = [
        ["hear", '"initialize"'],
        ["out", format_ndjson(GREETED)],
        ["hear", '"session/new"'],
        ["out", format_ndjson(session)],
    ]
    done = converse(
        box, [*opening, ["hear", '"session/prompt"'], ["out", format_ndjson(failed)], ["leave", 1]]
    )
    assert "the model is gone" in str(results(done)[0])
    assert "one-way" not in done.stderr


def test_driver_fallback_is_refused_if_the_frontend_has_hooks(box):
    child = box.create_fake_sequence(BROKEN["an error"], ANSWER_STEPS)
    hooks = {"PreToolUse": [{"matcher": None, "hookCallbackIds": ["h"]}]}
    environment = {"SHIM_VENDOR": "gemini", "SHIM_BIN": child}
    with box.start_claude(*CONVERSE, stdin=subprocess.PIPE, environment=environment) as running:
        running.send_lines(request("i", "initialize", hooks=hooks), user("one"))
        running.read_until(b'"type":"result"')
        done = running.end_input()
    assert "its one-way mode cannot ask" in str(results(done)[0])


# -- the selection ---------------------------------------------------------------------------------


def way(*args, driver=None, vendor="gemini"):
    settings = ShimSettings(vendors={vendor: VendorSettings(driver=driver)})
    return select_driver(
        get_adapter(vendor), parse_argv(args), settings, {"PATH": "", "HOME": "/nowhere"}, "/"
    )


@pytest.mark.parametrize(
    ("args", "driver", "is_two_way", "why"),
    [
        (
            (*CONVERSE,),
            None,
            True,
            "the frontend sends stream-json messages, or accepts permission prompts",
        ),
        (
            ("-p", "hi", "--output-format", "stream-json", *ASKING),
            None,
            True,
            "the frontend sends stream-json messages",
        ),
        (("-p", "hi"), None, False, "the frontend sends one message"),
        ((*CONVERSE,), "one-way", False, "[vendors.gemini] driver"),
        (("-p", "hi"), "two-way", True, "[vendors.gemini] driver"),
    ],
)
def test_driver_is_selected_by_frontend_flags_unless_configured(args, driver, is_two_way, why):
    choice = way(*args, driver=driver)
    assert bool(choice.adapter.child_input_ref) == is_two_way
    assert choice.reason.startswith(why)


@pytest.mark.parametrize(
    ("vendor", "is_persistent"), [("codex", True), ("gemini", False), ("opencode", False)]
)
def test_partial_messages_select_a_persistent_driver_if_no_calls_are_lost(vendor, is_persistent):
    """gemini sends partial text anyway. opencode, without permission prompts, would run fewer calls
    than without the flag.
    """
    args = ("-p", "hi", "--output-format", "stream-json", "--include-partial-messages")
    assert way(*args, vendor=vendor).adapter.cli.always_keeps_child == is_persistent
    assert not way(*args, vendor=vendor, driver="one-way").adapter.cli.always_keeps_child


@pytest.mark.parametrize(
    ("help_text", "is_two_way"), [("usage: gemini [--acp]", True), ("usage: gemini", False)]
)
def test_two_way_driver_requires_its_flag_in_the_cached_help(box, help_text, is_two_way):
    program = box.write_program("gemini", f"#!/bin/sh\necho '{help_text}'\n")
    box.write_settings(f'[vendors.gemini]\nbin = "{program}"\n')
    for vendor in json.loads(box.run_shim("vendors", "--json").stdout):
        if vendor["name"] == "gemini":
            assert (vendor["lacks"], vendor["driven"]) == (
                ("", "one process per conversation")
                if is_two_way
                else ("--acp", "one process per message")
            )
    explained = box.run_shim("explain", "--json", "--", "--shim-vendor", "gemini", *CONVERSE).stdout
    assert (b'"driver": "two-way"' in explained) == is_two_way
    assert (b"--help does not list --acp" in explained) != is_two_way


def test_permission_prompts_are_refused_for_a_version_without_acp(box):
    program = box.write_program("opencode", "#!/bin/sh\necho 'usage: opencode run'\n")
    box.write_settings(f'[vendors.opencode]\nbin = "{program}"\n')
    box.run_shim("vendors", "--json")
    done = box.run_claude(
        "-p", "hi", "--output-format", "stream-json", "--verbose", *ASKING, SHIM_VENDOR="opencode"
    )
    assert "does not support them: its --help does not list acp" in str(done.result)
    wide = box.run_claude(
        *(
            "-p",
            "hi",
            "--output-format",
            "stream-json",
            "--verbose",
            "--permission-mode",
            "bypassPermissions",
        ),
        *ASKING,
        SHIM_VENDOR="opencode",
    )
    assert "asks nobody" not in str(wide.result)
