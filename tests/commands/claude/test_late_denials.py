"""A forbidden call stops the turn when it is seen, even if its id belongs to an open allowed call,
or is empty.
"""

import json

import pytest
from box import ASK
from shared_ids import LS_B, STREAMS


@pytest.mark.parametrize("call_id", ["same", ""], ids=["same", "empty"])
@pytest.mark.parametrize("vendor", ["cursor", "kimi", "gemini", "pi", "cake"])
def test_denied_second_call_with_a_shared_id_stops_the_child(box, vendor, call_id):
    box.write_settings(f"[vendors.{vendor}]\nlate_denials = true\n")
    calls, _ = STREAMS[vendor](call_id)
    printed = "".join(json.dumps(event) + "\n" for event in calls)
    lifeline, gate = box.create_lifeline(), box.create_gate()
    child = box.create_fake(["say", lifeline.path, "child"], ["out", printed], ["wait", gate.path])
    args = (*ASK, "--permission-mode=bypassPermissions", f"--disallowedTools=Bash({LS_B})")
    with box.start_claude(*args, environment={"SHIM_VENDOR": vendor, "SHIM_BIN": child}) as dropin:
        done = dropin.wait_for_end()
    assert lifeline.wait_for("child") and lifeline.wait_until_closed()
    assert (done.status, done.cause) == (1, "denied")
    assert [each["tool_input"]["command"] for each in done.result["permission_denials"]] == [LS_B]


def test_denied_call_of_a_subagent_stops_the_child(box):
    """qwen receives the rule and does not get its tool for subagents. A qwen that still runs the
    call is stopped.
    """

    def event(kind, parent, *content):
        message = {
            "id": "x",
            "role": kind,
            "model": "m",
            "content": content,
            "usage": {"input_tokens": 1},
        }
        return {"type": kind, "parent_tool_use_id": parent, "message": message}

    call = {"type": "tool_use", "id": "n", "name": "run_shell_command", "input": {"command": LS_B}}
    task = {"type": "tool_use", "id": "task", "name": "agent", "input": {"prompt": "go"}}
    done = {"type": "tool_result", "tool_use_id": "n", "content": "ran", "is_error": False}
    init = {
        "type": "system",
        "subtype": "init",
        "session_id": "8c2c266e-8fbb-425d-888c-65a44f240dbd",
        "model": "m",
    }
    events = [
        init,
        event("assistant", None, task),
        event("assistant", "task", call),
        event("user", "task", done),
    ]
    lifeline, gate = box.create_lifeline(), box.create_gate()
    printed = "".join(json.dumps(each) + "\n" for each in events)
    child = box.create_fake(["say", lifeline.path, "child"], ["out", printed], ["wait", gate.path])
    args = (*ASK, "--permission-mode=bypassPermissions", f"--disallowedTools=Bash({LS_B})")
    with box.start_claude(*args, environment={"SHIM_VENDOR": "qwen", "SHIM_BIN": child}) as dropin:
        done = dropin.wait_for_end()
    assert lifeline.wait_for("child") and lifeline.wait_until_closed()
    assert (done.status, done.cause) == (1, "denied")
    assert [each["tool_input"]["command"] for each in done.result["permission_denials"]] == [LS_B]
    assert "ran a denied Bash call" in done.stderr
