"""A forbidden call stops the turn when it is seen, also if its id is that of an open call that is allowed, or empty."""

import json

import pytest
from box import ASK
from shared_ids import OTHER, STREAMS


@pytest.mark.parametrize("identity", ["same", ""], ids=["same", "empty"])
@pytest.mark.parametrize("vendor", ["cursor", "kimi", "gemini", "pi", "cake"])
def test_a_forbidden_second_call_stops_the_child(box, vendor, identity):
    box.settings(f"[vendors.{vendor}]\nlate_denials = true\n")
    calls, _ = STREAMS[vendor](identity)
    printed = "".join(json.dumps(event) + "\n" for event in calls)
    lifeline, gate = box.lifeline(), box.gate()
    child = box.fake(["say", lifeline.path, "child"], ["out", printed], ["wait", gate.path])
    words = (*ASK, "--permission-mode=bypassPermissions", f"--disallowedTools=Bash({OTHER})")
    with box.running(*words, environment={"SHIM_VENDOR": vendor, "SHIM_BIN": child}) as dropin:
        done = dropin.finish()
    assert lifeline.wait_for("child") and lifeline.gone()
    assert (done.status, done.cause) == (1, "denied")
    assert [each["tool_input"]["command"] for each in done.result["permission_denials"]] == [OTHER]
