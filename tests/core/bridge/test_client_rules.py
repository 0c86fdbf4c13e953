"""Rules of a client: they hold in the session while it is here."""

from bridging import Play, of_kind, user

RULES = {"subtype": "apply_flag_settings", "settings": {"permissions": {"deny": ["Bash"], "ask": []}}}
NONE = {"subtype": "apply_flag_settings", "settings": {"permissions": {"deny": [], "ask": []}}}


def test_the_rules_of_a_client_that_has_gone_are_taken_back():
    play = Play()
    play.join(1)
    play.join(2)
    play.say(1, "request", id="r", request=RULES)
    play.hub.left(2)
    play.do()
    assert [line["request"] for line in play.requests()] == [RULES]
    play.hub.left(1)
    play.do()
    assert [line["request"] for line in play.requests()] == [NONE]


def test_a_client_without_rules_takes_none_back():
    play = Play()
    play.join(1)
    play.say(1, "request", id="r", request=NONE)
    play.requests()
    play.hub.left(1)
    play.do()
    assert play.requests() == []


def test_a_turn_ends_under_the_rules_that_it_began_under():
    play = Play()
    play.join(1)
    play.say(1, "request", id="r", request=RULES)
    play.say(1, "message", message=user())
    play.requests()
    play.hub.left(1)
    play.do()
    assert play.requests() == []
    (message,) = play.stdin
    play.said({"type": "system", "subtype": "init"}, {**message, "isReplay": True})
    assert play.requests() == []
    play.turn()
    assert [line["request"] for line in play.requests()] == [NONE]


def rules(*deny, ask=()):
    return {"subtype": "apply_flag_settings", "settings": {"permissions": {"deny": [*deny], "ask": [*ask]}}}


def mode(name):
    return {"subtype": "set_permission_mode", "mode": name}


def told(play):
    """The requests that the conversation was told, each of which it obeys."""
    found = play.requests()
    for line in found:
        body = {"mode": line["request"]["mode"]} if "mode" in line["request"] else {}
        said = {"subtype": "success", "request_id": line["request_id"], "response": body}
        play.said({"type": "control_response", "response": said})
    return [line["request"] for line in found]


def leaves(play, client):
    play.hub.left(client)
    play.do()
    return told(play)


def two(mode="default"):
    play = Play(mode=mode)
    play.join(1)
    play.join(2)
    return play


def test_the_rules_of_one_who_goes_take_none_from_another():
    play = two()
    play.say(1, "narrow", id="r", deny=["Bash"])
    play.say(2, "take")
    play.say(2, "request", id="r", request=rules("Write", ask=["Read"]))
    assert told(play) == [rules("Bash"), rules("Bash", "Write", ask=["Read"])]
    assert leaves(play, 2) == [rules("Bash")]
    assert leaves(play, 1) == [rules()]


def test_the_narrowest_mode_of_those_who_are_here_holds():
    play = two("acceptEdits")
    play.say(1, "narrow", id="m", mode="default")
    play.say(2, "narrow", id="m", mode="plan")
    assert told(play) == [mode("default"), mode("plan")]
    assert leaves(play, 1) == []
    assert leaves(play, 2) == [mode("acceptEdits")]


def test_a_mode_that_is_chosen_is_no_wider_than_what_another_allows():
    play = two("acceptEdits")
    play.say(2, "narrow", id="m", mode="default")
    play.say(1, "mode", id="m", mode="acceptEdits")
    play.say(1, "request", id="r", request=mode("acceptEdits"))
    assert told(play) == [mode("default")] * 3
    play.say(2, "take")
    play.say(2, "mode", id="own", mode="acceptEdits")
    assert told(play) == [mode("acceptEdits")]


def test_a_message_that_waits_is_answered_in_the_mode_that_its_client_was_promised():
    play = two("acceptEdits")
    play.say(2, "take")
    play.say(2, "message", message=user())
    (first,) = play.stdin
    play.said({**first, "isReplay": True})
    play.stdin.clear()
    play.say(1, "narrow", id="m", mode="plan")
    play.say(1, "take")
    play.say(1, "message", message=user())
    assert told(play) == [mode("plan")]
    assert leaves(play, 1) == []
    play.said({"type": "result", "subtype": "success", "is_error": False, "result": "first"})
    assert told(play) == []
    play.turn()
    assert told(play) == [mode("acceptEdits")]


def test_an_agent_that_widens_its_mode_by_itself_is_put_back():
    play = two()
    play.say(2, "narrow", id="m", mode="plan")
    told(play)
    play.said({"type": "system", "subtype": "status", "permissionMode": "acceptEdits"})
    assert told(play) == [mode("plan")]


def test_who_allows_the_plan_lets_its_own_ceiling_go():
    play = two()
    play.say(1, "narrow", id="m", mode="plan")
    told(play)
    play.question("q", "ExitPlanMode")
    play.say(1, "answer", question="q", decision={"behavior": "allow"})
    play.said({"type": "system", "subtype": "status", "permissionMode": "default"})
    assert told(play) == []


def test_an_answer_chooses_no_wider_mode_than_another_allows():
    play = two()
    play.say(2, "narrow", id="m", mode="plan")
    told(play)
    play.question("q")
    play.read(1)
    wider = {"type": "setMode", "mode": "acceptEdits", "destination": "session"}
    play.say(1, "answer", question="q", decision={"behavior": "allow", "updatedPermissions": [wider]})
    assert [said["reason"] for said in of_kind(play.read(1), "refused")] == ["wider"]
    assert play.responses() == []


def test_what_the_conversation_refuses_to_keep_is_refused_and_takes_nothing_from_another():
    play = two()
    play.say(1, "narrow", id="r", deny=["Bash"])
    told(play)
    play.read(2)
    play.say(2, "narrow", id="r", deny=["Odd"])
    play.answer(subtype="error", error="this vendor keeps no such rule")
    (refused,) = of_kind(play.read(2), "refused")
    assert refused["id"] == "r" and refused["reason"] == "failed"
    assert rules("Bash") in told(play)


def test_settings_that_could_widen_are_not_passed_on():
    play = two()
    for settings in (
        {"permissions": {"allow": ["Bash"]}},
        {"permissions": {"defaultMode": "bypassPermissions"}},
        {"permissions": "all"},
        {"hooks": {"PreToolUse": []}, "env": {"A": "b"}},
    ):
        play.read(1)
        play.say(1, "request", id="s", request={"subtype": "apply_flag_settings", "settings": settings})
        assert [said["reason"] for said in of_kind(play.read(1), "refused")] == ["wider"], settings
    assert play.requests() == []
    play.say(1, "request", id="e", request={"subtype": "apply_flag_settings", "settings": {"effortLevel": "low"}})
    (line,) = play.requests()
    assert line["request"]["settings"]["effortLevel"] == "low"
