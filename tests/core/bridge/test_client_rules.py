"""The changes that clients may make to a session's permissions: its mode, its rules, and calls."""

import pytest
from hub_harness import Play, build_user_message, select_frames
from sweeps import loop_over_rows

from shim.core.bridge.handlers import REFUSED_SUBTYPES
from shim.core.bridge.requests import MAX_PENDING_REQUESTS


def rules(*deny, ask=()):
    return {
        "subtype": "apply_flag_settings",
        "settings": {"permissions": {"deny": [*deny], "ask": [*ask]}},
    }


def mode(name):
    return {"subtype": "set_permission_mode", "mode": name}


def accept_requests(play):
    """Return the requests to the conversation, and let it carry out each of them."""
    requests = play.take_requests()
    for line in requests:
        body = {"mode": line["request"]["mode"]} if "mode" in line["request"] else {}
        response = {"subtype": "success", "request_id": line["request_id"], "response": body}
        play.feed_stdout({"type": "control_response", "response": response})
    return [line["request"] for line in requests]


def two(mode="default", **options):
    play = Play(mode=mode, **options)
    play.join_client(1)
    play.join_client(2)
    return play


def list_refusals(frames):
    return [frame["reason"] for frame in select_frames(frames, "refused")]


def test_mode_of_a_controller_applies_after_the_controller_leaves():
    play = two("acceptEdits")
    play.send_frame(1, "mode", id="m", mode="plan")
    play.send_frame(1, "request", id="r", request=mode("manual"))
    assert accept_requests(play) == [mode("plan"), mode("default")]
    play.remove_client(1)
    assert accept_requests(play) == []
    assert select_frames(play.join_client(3), "welcome")[0]["mode"] == "default"


@pytest.mark.parametrize(
    ("kind", "fields"), [("mode", {"mode": "plan"}), ("request", {"request": mode("plan")})]
)
def test_client_without_control_cannot_change_the_mode(kind, fields):
    play = two()
    assert list_refusals(play.exchange_frames(2, kind, id="m", **fields)) == ["not-driver"]
    play.send_frame(2, "take")
    play.send_frame(2, kind, id="m2", **fields)
    assert accept_requests(play) == [mode("plan")]


def test_control_of_an_idle_session_is_not_taken_from_a_client_whose_turn_runs():
    play = two()
    play.send_frame(1, "message", id="m", message=build_user_message())
    frames = play.exchange_frames(2, "take", id="t", if_idle=True)
    (refused,) = select_frames(frames, "refused")
    assert (refused["reason"], refused["driver"]) == ("not-driver", "c1")
    assert list_refusals(play.exchange_frames(1, "take", id="t", if_idle=True)) == []
    play.finish_turn()
    assert list_refusals(play.exchange_frames(2, "take", id="t2", if_idle=True)) == []
    assert play.hub.roles.controller_name == "c2"


@pytest.mark.parametrize("can_bypass", [True, False])
def test_bypass_mode_needs_a_session_that_permits_bypassing(can_bypass):
    play = two(can_bypass=can_bypass)
    frames = play.exchange_frames(1, "mode", id="m", mode="bypassPermissions")
    frames += play.exchange_frames(1, "request", id="r", request=mode("bypassPermissions"))
    assert list_refusals(frames) == ([] if can_bypass else ["bypass"] * 2)
    assert accept_requests(play) == [mode("bypassPermissions")] * 2 * can_bypass


def test_mode_that_the_conversation_refuses_changes_nothing():
    play = two()
    play.send_frame(1, "mode", id="m", mode="plan")
    play.answer_request(subtype="error", error="no such mode")
    assert list_refusals(play.read_frames(1)) == ["failed"]
    assert select_frames(play.join_client(3), "welcome")[0]["mode"] == "default"


def test_mode_of_the_agent_is_reported_to_new_clients():
    play = two()
    play.feed_stdout({"type": "system", "subtype": "status", "permissionMode": "acceptEdits"})
    assert accept_requests(play) == []
    assert select_frames(play.join_client(3), "welcome")[0]["mode"] == "acceptEdits"


@pytest.mark.parametrize("fields", [{"mode": "plan"}, {"deny": ["Bash"], "ask": []}])
def test_restriction_of_an_older_frontend_gets_an_answer(fields):
    """Without an answer it would wait, and then run what it forbids."""
    play = two()
    frames = play.exchange_frames(1, "narrow", id="n", **fields)
    (refused,) = select_frames(frames, "refused")
    assert (refused["id"], refused["reason"]) == ("n", "unknown-kind")
    assert "--fork-session" in refused["text"]
    assert play.take_requests() == []


def test_flag_settings_of_the_controller_are_sent_unchanged():
    play = two()
    play.send_frame(1, "request", id="r", request=rules("Bash", ask=["Read"]))
    assert accept_requests(play) == [rules("Bash", ask=["Read"])]
    assert list_refusals(play.exchange_frames(2, "request", id="r", request=rules())) == [
        "not-driver"
    ]
    play.remove_client(1)
    assert accept_requests(play) == []


def test_settings_are_reloaded_for_a_client_without_control():
    play = two()
    request = {"subtype": "reload_settings"}
    play.send_frame(2, "request", id="r", request=request)
    assert accept_requests(play) == [request]
    play.join_client(3, role="watch")
    frames = play.exchange_frames(3, "request", id="r", request=request)
    assert list_refusals(frames) == ["watch-only"]


def test_host_reloads_the_settings_of_a_real_claude():
    play = two(has_vendor_settings=True)
    request = {"subtype": "reload_settings"}
    frames = play.exchange_frames(2, "request", id="r", request=request)
    (response,) = select_frames(frames, "response")
    settings = {"settings": "settings"}
    assert response["response"] == {"subtype": "success", "response": settings}
    assert play.take_requests() == []


def test_request_beyond_the_pending_limit_is_refused_without_an_effect():
    play = two("acceptEdits")
    for number in range(MAX_PENDING_REQUESTS):
        play.send_frame(1, "model", id=f"m{number}", model="a")
    play.take_requests()
    hooks = {"subtype": "initialize", "hooks": EVENTS}
    for kind, fields in (
        ("mode", {"mode": "plan"}),
        ("request", {"request": rules("Bash")}),
        ("request", {"request": hooks}),
    ):
        frames = play.exchange_frames(1, kind, id=f"{kind}{fields}", **fields)
        assert list_refusals(frames) == ["too-many"], (kind, fields)
    assert play.take_requests() == []
    play.send_frame(2, "take")
    play.send_frame(2, "request", id="i", request=hooks)
    (initialize,) = [line["request"] for line in play.take_requests()]
    assert [len(groups) for groups in initialize["hooks"].values()] == [1, 1]


def test_settings_that_widen_permissions_are_rejected():
    play = two()
    for settings in (
        {"permissions": {"allow": ["Bash"]}},
        {"permissions": {"defaultMode": "bypassPermissions"}},
        {"permissions": "all"},
        {"hooks": {"PreToolUse": []}, "env": {"A": "b"}},
    ):
        play.read_frames(1)
        play.send_frame(
            1, "request", id="s", request={"subtype": "apply_flag_settings", "settings": settings}
        )
        assert [frame["reason"] for frame in select_frames(play.read_frames(1), "refused")] == [
            "wider"
        ], settings
    assert play.take_requests() == []
    play.send_frame(
        1,
        "request",
        id="e",
        request={"subtype": "apply_flag_settings", "settings": {"effortLevel": "low"}},
    )
    (line,) = play.take_requests()
    assert line["request"]["settings"]["effortLevel"] == "low"


@loop_over_rows("subtype", REFUSED_SUBTYPES)
def test_request_that_bypasses_the_rules_of_the_session_is_rejected(subtype):
    play = two()
    request = {"subtype": subtype, "tool": "mcp__s__go", "path": "/"}
    assert list_refusals(play.exchange_frames(1, "request", id="s", request=request)) == ["wider"]
    assert play.take_requests() == []
    play.send_frame(1, "request", id="o", request={"subtype": "mcp_status"})
    assert [line["request"]["subtype"] for line in play.take_requests()] == ["mcp_status"]


def test_answer_of_another_client_than_the_controller_cannot_set_a_mode():
    play = two()
    wider = {"type": "setMode", "mode": "acceptEdits", "destination": "session"}
    decision = {"behavior": "allow", "updatedPermissions": [wider]}
    play.ask_permission("q")
    play.read_frames(2)
    assert list_refusals(play.exchange_frames(2, "answer", question="q", decision=decision)) == [
        "not-driver"
    ]
    assert play.take_responses() == []
    play.send_frame(1, "answer", question="q", decision=decision)
    assert [frame["response"]["behavior"] for frame in play.take_responses()] == ["allow"]


def test_answer_cannot_remove_a_rule_of_the_session_start():
    play = two()
    play.ask_permission("q")
    play.read_frames(1)
    rule = {"behavior": "deny", "rules": [{"toolName": "Bash"}]}
    for kind, behavior, destination in (
        *(("removeRules", "deny", "cliArg"), ("removeRules", "ask", "userSettings")),
        *(("replaceRules", "deny", "localSettings"), ("replaceRules", None, None)),
    ):
        change = {**rule, "type": kind, "behavior": behavior, "destination": destination}
        play.send_frame(
            1,
            "answer",
            question="q",
            decision={"behavior": "allow", "updatedPermissions": [change]},
        )
        assert [fields["reason"] for fields in select_frames(play.read_frames(1), "refused")] == [
            "wider"
        ], change
        fields = {"decision": {"behavior": "allow", "updatedPermissions": [change]}}
        assert answer_hook(build_hooked_play(1), 1, {"hookSpecificOutput": fields}) == {
            "hookSpecificOutput": {}
        }
    assert play.take_responses() == []
    changes = [
        {**rule, "type": "removeRules", "destination": "session"},
        {**rule, "type": "removeRules", "behavior": "allow", "destination": "cliArg"},
        {**rule, "type": "addRules", "destination": "session"},
    ]
    play.send_frame(
        1, "answer", question="q", decision={"behavior": "allow", "updatedPermissions": changes}
    )
    (answer,) = play.take_responses()
    assert answer["response"]["updatedPermissions"] == changes


# -- what a hook allows ----------------------------------------------------------------------------

EVENTS = {event: [{"hookCallbackIds": ["h"]}] for event in ("PreToolUse", "PermissionRequest")}
GRANT = {
    "hookSpecificOutput": {
        "hookEventName": "PreToolUse",
        "permissionDecision": "allow",
        "updatedInput": {"a": 1},
    }
}
UNGRANTED = {"hookSpecificOutput": {"hookEventName": "PreToolUse", "updatedInput": {"a": 1}}}
OLD_GRANT = {"decision": "approve", "systemMessage": "fine"}
DENIAL = {"hookSpecificOutput": {"permissionDecision": "deny"}, "decision": "approve"}


def build_permission_output(mode=None, **decision):
    changes = {} if mode is None else {"updatedPermissions": [{"type": "setMode", "mode": mode}]}
    output = {
        "hookEventName": "PermissionRequest",
        "decision": {"behavior": "allow", **changes, **decision},
    }
    return {"hookSpecificOutput": output}


def answer_hook(play, client, answer, tool="Bash"):
    """Answer a hook request as a client. Return what the conversation receives."""
    request = {
        "subtype": "hook_callback",
        "callback_id": f"{client}/h",
        "input": {"tool_name": tool},
    }
    play.feed_stdout({"type": "control_request", "request_id": "j", "request": request})
    play.send_frame(client, "reply", id="j", response={"subtype": "success", "response": answer})
    (response,) = play.take_responses()
    assert response["subtype"] == "success" and response["request_id"] == "j"
    return response["response"]


def build_hooked_play(client, **options):
    """Build a hub with two clients, of which the first has control. The hooks of `client` are
    active.
    """
    play = Play(**options)
    play.join_client(1)
    play.join_client(2)
    play.send_frame(client, "take")
    play.send_frame(client, "request", id="i", request={"subtype": "initialize", "hooks": EVENTS})
    play.send_frame(1, "take")
    accept_requests(play)
    return play


def test_hook_can_allow_only_if_its_client_may_answer():
    play = build_hooked_play(2)
    for answer in (
        GRANT,
        OLD_GRANT,
        DENIAL,
        build_permission_output(),
        {},
        None,
        "odd",
        {"hookSpecificOutput": "odd"},
    ):
        assert answer_hook(play, 2, answer) == answer
    owned = build_hooked_play(2, answer_policy="owner")
    assert answer_hook(owned, 2, GRANT) == UNGRANTED
    assert answer_hook(owned, 2, OLD_GRANT) == {"systemMessage": "fine"}
    assert answer_hook(owned, 2, DENIAL) == {"hookSpecificOutput": DENIAL["hookSpecificOutput"]}
    assert answer_hook(owned, 2, build_permission_output()) == {
        "hookSpecificOutput": {"hookEventName": "PermissionRequest"}
    }
    assert answer_hook(
        owned, 2, build_permission_output(behavior="deny")
    ) == build_permission_output(behavior="deny")
    owned.send_frame(2, "take")
    assert answer_hook(owned, 2, GRANT) == GRANT


def test_hook_can_set_the_mode_only_for_the_controller():
    empty = {"hookSpecificOutput": {"hookEventName": "PermissionRequest"}}
    play = build_hooked_play(2)
    assert answer_hook(play, 2, build_permission_output("acceptEdits")) == empty
    play.send_frame(2, "take")
    assert answer_hook(play, 2, build_permission_output("acceptEdits")) == build_permission_output(
        "acceptEdits"
    )
    assert answer_hook(play, 2, build_permission_output("bypassPermissions")) == empty
    assert answer_hook(
        build_hooked_play(1, can_bypass=True), 1, build_permission_output("bypassPermissions")
    ) == build_permission_output("bypassPermissions")
