"""Rules of a client: they hold in the session while it is here."""

from bridging import Play, user

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
