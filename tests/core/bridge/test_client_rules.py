"""Rules of a client: they hold in the session while it is here."""

from hub_harness import Play, build_user_message, select_frames
from sweeps import loop_over_rows

from shim.core.bridge.handlers import REFUSED_SUBTYPES
from shim.core.bridge.requests import MAX_PENDING_REQUESTS

RULES = {
    "subtype": "apply_flag_settings",
    "settings": {"permissions": {"deny": ["Bash"], "ask": []}},
}
NONE = {"subtype": "apply_flag_settings", "settings": {"permissions": {"deny": [], "ask": []}}}


def test_rules_of_a_client_are_removed_when_the_client_disconnects():
    play = Play()
    play.join_client(1)
    play.join_client(2)
    play.send_frame(1, "request", id="r", request=RULES)
    play.remove_client(2)
    assert [line["request"] for line in play.take_requests()] == [RULES]
    play.remove_client(1)
    assert [line["request"] for line in play.take_requests()] == [NONE]


def test_disconnect_of_a_client_without_rules_sends_no_request():
    play = Play()
    play.join_client(1)
    play.send_frame(1, "request", id="r", request=NONE)
    play.take_requests()
    play.remove_client(1)
    assert play.take_requests() == []


def test_rules_of_a_disconnected_client_apply_until_its_turn_ends():
    play = Play()
    play.join_client(1)
    play.send_frame(1, "request", id="r", request=RULES)
    play.send_frame(1, "message", message=build_user_message())
    play.take_requests()
    play.remove_client(1)
    assert play.take_requests() == []
    (message,) = play.stdin
    play.feed_stdout({"type": "system", "subtype": "init"}, {**message, "isReplay": True})
    assert play.take_requests() == []
    play.finish_turn()
    assert [line["request"] for line in play.take_requests()] == [NONE]


def rules(*deny, ask=()):
    return {
        "subtype": "apply_flag_settings",
        "settings": {"permissions": {"deny": [*deny], "ask": [*ask]}},
    }


def mode(name):
    return {"subtype": "set_permission_mode", "mode": name}


def accept_requests(play):
    """The requests that the conversation was told, each of which it obeys."""
    requests = play.take_requests()
    for line in requests:
        body = {"mode": line["request"]["mode"]} if "mode" in line["request"] else {}
        response = {"subtype": "success", "request_id": line["request_id"], "response": body}
        play.feed_stdout({"type": "control_response", "response": response})
    return [line["request"] for line in requests]


def leaves(play, client):
    play.remove_client(client)
    return accept_requests(play)


def two(mode="default"):
    play = Play(mode=mode)
    play.join_client(1)
    play.join_client(2)
    return play


def test_disconnect_preserves_the_rules_of_other_clients():
    play = two()
    play.send_frame(1, "narrow", id="r", deny=["Bash"])
    play.send_frame(2, "take")
    play.send_frame(2, "request", id="r", request=rules("Write", ask=["Read"]))
    assert accept_requests(play) == [rules("Bash"), rules("Bash", "Write", ask=["Read"])]
    assert leaves(play, 2) == [rules("Bash")]
    assert leaves(play, 1) == [rules()]


def test_strictest_mode_of_the_joined_clients_applies():
    play = two("acceptEdits")
    play.send_frame(1, "narrow", id="m", mode="default")
    play.send_frame(2, "narrow", id="m", mode="plan")
    assert accept_requests(play) == [mode("default"), mode("plan")]
    assert leaves(play, 1) == []
    assert leaves(play, 2) == [mode("acceptEdits")]


def test_selected_mode_is_limited_by_the_restriction_of_another_client():
    play = two("acceptEdits")
    play.send_frame(2, "narrow", id="m", mode="default")
    play.send_frame(1, "mode", id="m", mode="acceptEdits")
    play.send_frame(1, "request", id="r", request=mode("acceptEdits"))
    assert accept_requests(play) == [mode("default")] * 3
    play.send_frame(2, "take")
    play.send_frame(2, "mode", id="own", mode="acceptEdits")
    assert accept_requests(play) == [mode("acceptEdits")]


def test_queued_message_runs_in_the_restricted_mode_of_its_client():
    play = two("acceptEdits")
    play.send_frame(2, "take")
    play.send_frame(2, "message", message=build_user_message())
    (first,) = play.stdin
    play.feed_stdout({**first, "isReplay": True})
    play.stdin.clear()
    play.send_frame(1, "narrow", id="m", mode="plan")
    play.send_frame(1, "take")
    play.send_frame(1, "message", message=build_user_message())
    assert accept_requests(play) == [mode("plan")]
    assert leaves(play, 1) == []
    play.feed_stdout({"type": "result", "subtype": "success", "is_error": False, "result": "first"})
    assert accept_requests(play) == []
    play.finish_turn()
    assert accept_requests(play) == [mode("acceptEdits")]


def test_restricted_mode_is_restored_when_the_agent_changes_the_mode():
    play = two()
    play.send_frame(2, "narrow", id="m", mode="plan")
    accept_requests(play)
    play.feed_stdout({"type": "system", "subtype": "status", "permissionMode": "acceptEdits"})
    assert accept_requests(play) == [mode("plan")]


def test_client_that_allows_exit_plan_mode_drops_its_plan_restriction():
    play = two()
    play.send_frame(1, "narrow", id="m", mode="plan")
    accept_requests(play)
    play.ask_permission("q", "ExitPlanMode")
    play.send_frame(1, "answer", question="q", decision={"behavior": "allow"})
    play.feed_stdout({"type": "system", "subtype": "status", "permissionMode": "default"})
    assert accept_requests(play) == []


def test_answer_cannot_set_a_mode_that_another_client_forbids():
    play = two()
    play.send_frame(2, "narrow", id="m", mode="plan")
    accept_requests(play)
    play.ask_permission("q")
    play.read_frames(1)
    wider = {"type": "setMode", "mode": "acceptEdits", "destination": "session"}
    play.send_frame(
        1, "answer", question="q", decision={"behavior": "allow", "updatedPermissions": [wider]}
    )
    assert [frame["reason"] for frame in select_frames(play.read_frames(1), "refused")] == ["wider"]
    assert play.take_responses() == []


def test_restriction_refused_by_the_vendor_preserves_rules_of_other_clients():
    play = two()
    play.send_frame(1, "narrow", id="r", deny=["Bash"])
    accept_requests(play)
    play.read_frames(2)
    play.send_frame(2, "narrow", id="r", deny=["Odd"])
    play.answer_request(subtype="error", error="this vendor keeps no such rule")
    (refused,) = select_frames(play.read_frames(2), "refused")
    assert refused["id"] == "r" and refused["reason"] == "failed"
    assert rules("Bash") in accept_requests(play)


def refuse_request(play, error="this vendor keeps no such rule"):
    """The conversation refuses the oldest request."""
    play.answer_request(subtype="error", error=error)


def test_identical_restriction_of_a_second_client_is_refused_too():
    play = two("acceptEdits")
    for fields in ({"deny": ["Odd"]}, {"mode": "plan"}):
        play.send_frame(1, "narrow", id=f"r{fields}", **fields)
        play.send_frame(2, "narrow", id=f"r{fields}", **fields)
        play.read_frames(1), play.read_frames(2)
        refuse_request(play)
        refuse_request(play)
        assert [fields["reason"] for fields in select_frames(play.read_frames(2), "refused")] == [
            "failed"
        ], fields
        accept_requests(play)
    assert leaves(play, 2) == leaves(play, 1) == []


def test_refused_change_preserves_later_changes():
    play = two("acceptEdits")
    play.send_frame(1, "request", id="odd", request=rules("Odd"))
    play.send_frame(1, "request", id="good", request=rules("Bash"))
    refuse_request(play)
    assert accept_requests(play)[-1] == rules("Bash")
    play.send_frame(1, "mode", id="m", mode="auto")
    play.send_frame(2, "take")
    play.send_frame(2, "mode", id="m", mode="plan")
    refuse_request(play)
    assert accept_requests(play)[-1] == mode("plan")


def test_two_refused_modes_leave_the_previous_mode_selected():
    play = two("plan")
    for name in ("acceptEdits", "auto"):
        play.send_frame(1, "mode", id=name, mode=name)
    for _ in range(2):
        refuse_request(play)
    accept_requests(play)
    play.send_frame(2, "narrow", id="n", mode="default")
    assert set(map(str, accept_requests(play))) <= {str(mode("plan"))}
    assert select_frames(play.join_client(3), "welcome")[0]["chosen"] == "plan"


def test_mode_set_by_the_agent_is_preserved_when_a_later_mode_is_refused():
    play = two("plan")
    for name in ("acceptEdits", "auto"):
        play.send_frame(1, "mode", id=name, mode=name)
    refuse_request(play)
    accept_requests(play)
    play.feed_stdout({"type": "system", "subtype": "status", "permissionMode": "acceptEdits"})
    play.send_frame(1, "mode", id="c", mode="dontAsk")
    refuse_request(play)
    assert select_frames(play.join_client(3), "welcome")[0]["chosen"] == "acceptEdits"


def test_change_beyond_the_pending_limit_is_refused_without_an_effect():
    play = two("acceptEdits")
    for number in range(MAX_PENDING_REQUESTS):
        play.send_frame(1, "model", id=f"m{number}", model="a")
    play.take_requests()
    hooks = {"subtype": "initialize", "hooks": EVENTS}
    for kind, fields in (
        ("mode", {"mode": "plan"}),
        ("narrow", {"mode": "plan"}),
        ("narrow", {"deny": ["Bash"]}),
        ("request", {"request": rules("Bash")}),
        ("request", {"request": hooks}),
    ):
        frames = play.exchange_frames(1, kind, id=f"{kind}{fields}", **fields)
        reasons = [frame["reason"] for frame in select_frames(frames, "refused")]
        assert reasons == ["too-many"], (kind, fields)
    assert play.take_requests() == []
    assert select_frames(play.join_client(3), "welcome")[0]["chosen"] == "acceptEdits"
    play.send_frame(2, "take")
    play.send_frame(2, "narrow", id="n", mode="default")
    play.send_frame(2, "request", id="r", request=rules("Read"))
    play.send_frame(2, "request", id="i", request=hooks)
    mode_request, rule_request, initialize = [line["request"] for line in play.take_requests()]
    assert (mode_request, rule_request) == (mode("default"), rules("Read"))
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
def test_request_that_bypasses_restrictions_of_other_clients_is_rejected(subtype):
    play = two()
    play.send_frame(2, "narrow", id="n", deny=["mcp__s__go", "Edit(./secret/**)"])
    accept_requests(play)
    play.read_frames(1)
    play.send_frame(
        1, "request", id="s", request={"subtype": subtype, "tool": "mcp__s__go", "path": "/"}
    )
    assert [frame["reason"] for frame in select_frames(play.read_frames(1), "refused")] == ["wider"]
    assert play.take_requests() == []
    play.send_frame(1, "request", id="o", request={"subtype": "mcp_status"})
    assert [line["request"]["subtype"] for line in play.take_requests()] == ["mcp_status"]


def test_exit_plan_mode_answer_is_rejected_if_another_client_requires_plan_mode():
    play = two()
    play.send_frame(2, "narrow", id="m", mode="plan")
    accept_requests(play)
    play.ask_permission("q", "ExitPlanMode")
    play.read_frames(1)
    play.send_frame(1, "answer", question="q", decision={"behavior": "allow"})
    assert [frame["reason"] for frame in select_frames(play.read_frames(1), "refused")] == ["wider"]
    assert play.take_responses() == []
    play.send_frame(2, "answer", question="q", decision={"behavior": "allow"})
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
    """A hook of a client answers about a call; what the conversation is told."""
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
    """Two clients, of which the first drives; the hooks of one are in force."""
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


def test_hook_can_set_the_mode_only_for_the_controller_and_within_restrictions():
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
    play.send_frame(1, "narrow", id="m", mode="default")
    accept_requests(play)
    assert answer_hook(play, 2, build_permission_output("acceptEdits")) == empty
    assert answer_hook(play, 2, build_permission_output("default")) == build_permission_output(
        "default"
    )


def test_hook_cannot_exit_plan_mode_while_a_client_requires_plan_mode():
    for client in (1, 2):
        play = build_hooked_play(2)
        assert answer_hook(play, 2, GRANT, "ExitPlanMode") == GRANT
        play.send_frame(client, "narrow", id="m", mode="plan")
        accept_requests(play)
        assert answer_hook(play, 2, GRANT, "ExitPlanMode") == UNGRANTED
        assert (
            answer_hook(play, 2, build_permission_output(), "ExitPlanMode")
            != build_permission_output()
        )
        assert answer_hook(play, 2, GRANT, "Bash") == GRANT
        play.ask_permission("q", "ExitPlanMode")
        play.send_frame(client, "answer", question="q", decision={"behavior": "allow"})
        assert len(play.take_responses()) == 1
