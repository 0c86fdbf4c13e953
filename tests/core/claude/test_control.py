"""The frontend's side without a process: lines in, answers and wishes out (contract sections 3 and
6).
"""

import itertools
import json

import pytest
from ruling import build_policy
from support import build_session_state
from sweeps import loop_over_rows

from shim.core.claude.control.actions import Interrupt, PermissionAnswered, SettingChanged
from shim.core.claude.control.handlers import REQUEST_HANDLERS
from shim.core.claude.control.session import MAX_OPEN_PROMPTS, ControlSession
from shim.core.claude.permissions import (
    PROMPT_TIMEOUT_TEXT,
    STREAM_CLOSED_TEXT,
    PermissionDecision,
    PermissionRequest,
    PermissionRuleChange,
)
from shim.core.claude.session_state import ServingVendor
from shim.core.reading.diagnostics import escape_control_chars

ASKED = PermissionRequest("q1", "call_1", "Bash", {"command": "ls"}, "shell", {"command": "ls"})


def control(**overrides):
    numbers = itertools.count(1)
    state_fields = {
        "display_name": "pi",
        "session_id": "S",
        "mode": "default",
        "answers_prompts": True,
    } | overrides
    return ControlSession(
        build_session_state(**state_fields),
        lambda: f"uuid-{next(numbers)}",
        lambda: "2026-11-20T10:00:00.000Z",
    )


def ask(session, subtype, **more):
    """The answer to a request, and what it made the session do."""
    line = {"type": "control_request", "request_id": "r", "request": {"subtype": subtype, **more}}
    wishes = session.receive_line(json.dumps(line).encode())
    lines = [json.loads(line) for line in session.take_output().splitlines()]
    return lines, wishes


def body(session, subtype, **more):
    (line, *_), _ = ask(session, subtype, **more)
    assert line["type"] == "control_response" and line["response"]["request_id"] == "r"
    return line["response"]


def give(session, request, **answer):
    response = {"subtype": "success", "request_id": request, "response": answer}
    return session.receive_line(
        json.dumps({"type": "control_response", "response": response}).encode()
    )


# Subtype → the body as it was measured (contract 6.1); None: a success without one.
MEASURED = {
    "set_max_thinking_tokens": None,
    "mcp_status": {"mcpServers": []},
    "mcp_set_servers": {"added": [], "removed": [], "errors": {}},
    "apply_flag_settings": None,
    "stop_task": {},
    "background_tasks": {},
    "cancel_async_message": {"cancelled": False},
    "generate_session_title": {"title": None},
    "reload_skills": {"skills": []},
}


@loop_over_rows(("subtype", "expected"), MEASURED.items())
def test_a_request_is_answered_as_it_was_measured(subtype, expected):
    """C8, C8b"""
    response = body(control(), subtype)
    assert response["subtype"] == "success"
    assert response.get("response") == expected
    assert ("response" in response) == (expected is not None)


def test_the_rules_are_listed_with_the_folder_that_they_are_for():
    """C8"""
    state = body(control(cwd="/repo"), "list_permission_rules")["response"]["state"]
    assert state == {
        "rules": [],
        "workspaceDirectories": [],
        "originalCwd": "/repo",
        "managedOnly": False,
    }


@loop_over_rows("subtype", sorted(REQUEST_HANDLERS))
def test_every_known_request_gets_one_answer_whatever_it_lacks(subtype):
    """C5, C8"""
    lines, _ = ask(control(), subtype)
    assert lines[0]["type"] == "control_response"
    assert sum(line["type"] == "control_response" for line in lines) == 1


@loop_over_rows(
    ("subtype", "request_body", "error"),
    [
        ("rewind_files", {"user_message_id": "x"}, "File rewinding is not enabled."),
        ("mcp_reconnect", {"serverName": "x"}, "Server not found: x"),
        ("mcp_toggle", {"serverName": "x", "enabled": False}, "Server not found: x"),
        ("no_such", {}, "Unsupported control request subtype: no_such"),
        (
            "set_permission_mode",
            {"mode": "nonsense"},
            "Cannot set permission mode: must be one of acceptEdits, auto, bypassPermissions, default, dontAsk, plan",
        ),
        (
            "set_permission_mode",
            {"mode": "bypassPermissions"},
            "Cannot set permission mode to bypassPermissions because the session was not launched with "
            "--dangerously-skip-permissions",
        ),
    ],
)
def test_what_cannot_be_done_is_refused_in_the_real_ones_words(subtype, request_body, error):
    """C5, C7, C8"""
    response = body(control(), subtype, **request_body)
    assert (response["subtype"], response["error"]) == ("error", error)


def test_an_answer_carries_the_id_of_its_question_whatever_it_is():
    """C4"""
    session = control()
    session.receive_line(
        b'{"type":"control_request","request_id":17,"request":{"subtype":"mcp_status"}}'
    )
    session.receive_line(b'{"type":"control_request","request":{"subtype":"mcp_status"}}')
    first, second = [json.loads(line) for line in session.take_output().splitlines()]
    assert first["response"]["request_id"] == 17
    assert second["response"]["subtype"] == "success"


def test_initialize_gives_every_key_that_a_client_reads():
    """C3"""
    answer = body(control(model="m-1"), "initialize")["response"]
    assert answer["commands"] == [] and answer["agents"] == [] and answer["account"]
    assert [model["value"] for model in answer["models"]] == ["default", "m-1"]
    assert all(
        {"value", "displayName", "description"} <= model.keys() for model in answer["models"]
    )
    assert answer["output_style"] in answer["available_output_styles"]
    assert "mcp_servers_applied" not in answer
    applied = body(control(), "initialize", mcpServers={"calc": {}})["response"][
        "mcp_servers_applied"
    ]
    assert applied is False


def test_initialize_brings_the_system_prompts_that_are_not_on_the_command_line():
    session = control()
    ask(session, "initialize", systemPrompt=["Be", "brief."], appendSystemPrompt="And kind.")
    assert (session.session_state.system_prompt, session.session_state.append_system_prompt) == (
        "Be\n\nbrief.",
        "And kind.",
    )
    ask(session, "initialize", systemPrompt=[""])
    assert session.session_state.system_prompt == "Be\n\nbrief."


def test_a_model_is_checked_before_it_becomes_an_argument():
    def reject_model(name):
        raise ValueError(f"{name} will not do")

    session = control(validate_model=reject_model)
    assert (
        body(session, "set_model", model="--evil")["error"]
        == "Cannot set model: --evil will not do"
    )
    assert session.session_state.model is None


def test_no_model_is_the_first_one_again():
    """C7"""
    session = control(model="m-1")
    lines, wishes = ask(session, "set_model", model="m-2")
    assert (lines[0]["response"]["response"], wishes) == (
        {"model": "m-2"},
        [SettingChanged("model", "m-2")],
    )
    lines, wishes = ask(session, "set_model", model=None)
    assert (lines[0]["response"]["response"], wishes) == (
        {"model": "m-1"},
        [SettingChanged("model", "m-1")],
    )


def test_a_name_of_claudes_is_answered_with_what_it_stands_for():
    """C7"""
    session = control(
        model="m-1", map_model={"m-1": "m-1", "sonnet": "big"}.get, list_models=lambda: ("sonnet",)
    )
    lines, wishes = ask(session, "set_model", model="sonnet")
    assert (lines[0]["response"]["response"], wishes) == (
        {"model": "big"},
        [SettingChanged("model", "big")],
    )
    lines, wishes = ask(session, "set_model", model="opus")
    assert (lines[0]["response"]["response"], wishes) == (
        {"model": "default"},
        [SettingChanged("model", None)],
    )


@pytest.mark.parametrize("name", ["default", "pi:"])
def test_the_default_is_the_vendors_own_whatever_the_command_line_asked_for(name):
    session = control(
        model="m-1",
        map_model=lambda model: None if model == "default" else model,
        validate_model=lambda model: None,
    )
    session.session_state.reported_model = "its-own"
    lines, wishes = ask(session, "set_model", model=name)
    assert (lines[0]["response"]["response"], wishes) == (
        {"model": "its-own"},
        [SettingChanged("model", None)],
    )


@pytest.mark.parametrize("subtype", ["initialize", "list_models"])
def test_the_models_are_those_that_can_be_chosen(subtype):
    session = control(
        model="haiku",
        map_model={"sonnet": "big", "fast": "quick"}.get,
        list_models=lambda: ("sonnet", "fast"),
    )
    models = body(session, subtype)["response"]["models"]
    assert [(model["value"], model["description"].split()[0]) for model in models] == [
        ("default", "The"),
        ("sonnet", "big"),
        ("fast", "quick"),
    ]


def test_of_the_models_that_were_asked_for_another_vendor_is_told_those_of_claudes():
    session = control(model="sonnet")
    session.session_state.switch_vendor(ServingVendor("qwen"))
    assert (session.session_state.requested_model, session.session_state.initial_model) == (
        "sonnet",
        "sonnet",
    )
    ask(session, "set_model", model="qwen3")
    session.session_state.switch_vendor(ServingVendor("codex"))
    assert (session.session_state.requested_model, session.session_state.initial_model) == (
        None,
        "sonnet",
    )
    session.session_state.switch_vendor(ServingVendor("qwen"))
    assert session.session_state.requested_model == "qwen3"


def test_a_mode_that_the_vendor_cannot_honour_is_refused():
    session = control(modes=("default", "plan"))
    assert (
        "pi can do default, plan"
        in body(session, "set_permission_mode", mode="acceptEdits")["error"]
    )
    assert session.session_state.mode == "default"


def test_a_mode_is_answered_told_and_wished_for():
    """C7"""
    lines, wishes = ask(control(), "set_permission_mode", mode="plan")
    assert lines[0]["response"]["response"] == {"mode": "plan"}
    assert (lines[1]["subtype"], lines[1]["permissionMode"], lines[1]["session_id"]) == (
        "status",
        "plan",
        "S",
    )
    assert wishes == [SettingChanged("mode", "plan")]


def test_bypassing_is_possible_where_the_session_was_launched_for_it():
    assert (
        body(control(allows_bypass=True), "set_permission_mode", mode="bypassPermissions")[
            "subtype"
        ]
        == "success"
    )


def test_an_interrupt_stops_what_runs_and_nothing_else():
    """C6"""
    session = control()
    assert ask(session, "interrupt")[1] == []
    session.start_turn("hi")
    lines, wishes = ask(session, "interrupt")
    assert wishes == [Interrupt()]
    assert lines[-1]["response"]["response"] == {"still_queued": []}


def test_an_interrupt_takes_open_questions_back_and_the_end_of_stdin_does_not():
    """C10"""
    interrupted, closed = control(), control()
    for session in (interrupted, closed):
        session.start_turn("hi")
        session.ask_permission(ASKED)
        session.take_output()
    lines, (decided, _) = ask(interrupted, "interrupt")
    assert lines[0] == {"type": "control_cancel_request", "request_id": "uuid-1"}
    assert decided == PermissionAnswered(ASKED, PermissionDecision(False, ends_turn=True))
    (decided,) = closed.close_input()
    assert (
        decided == PermissionAnswered(ASKED, PermissionDecision(False, message=STREAM_CLOSED_TEXT))
        and closed.take_output() == b""
    )


def states(session):
    return [
        line["state"]
        for line in map(json.loads, session.take_output().splitlines())
        if "state" in line
    ]


@pytest.mark.parametrize(
    "how", ["interrupt", "the end of stdin", "too late", "the end of the turn"]
)
def test_the_state_is_running_again_when_nothing_is_asked_any_more(how):
    """C17"""
    session = control(state_events="host")
    session.start_turn("hi")
    session.ask_permission(ASKED)
    assert states(session) == ["running", "requires_action"]
    if how == "interrupt":
        ask_to_stop = {
            "type": "control_request",
            "request_id": "r",
            "request": {"subtype": "interrupt"},
        }
        session.receive_line(json.dumps(ask_to_stop).encode())
    elif how == "the end of stdin":
        session.close_input()
    elif how == "too late":
        session.expire_permission_request(ASKED)
    else:
        session.cancel_open_prompts()
    assert states(session) == ["running"] and not session.has_open_requests


def test_questions_are_answered_in_any_order_and_each_only_once():
    """C9, C17"""
    session = control(state_events="visible")
    second = ASKED._replace(request_id="q2", call_id="call_2")
    session.start_turn("hi")
    session.ask_permission(ASKED)
    session.ask_permission(second)
    first_line, second_line = (
        line for line in map(json.loads, session.take_output().splitlines()) if "request" in line
    )
    assert give(session, second_line["request_id"], behavior="deny", message="no") == [
        PermissionAnswered(second, PermissionDecision(False, message="no"))
    ]
    assert states(session) == [] and session.has_open_requests
    assert give(session, first_line["request_id"], behavior="allow") == [
        PermissionAnswered(ASKED, PermissionDecision(True))
    ]
    assert states(session) == ["running"] and not session.has_open_requests
    assert give(session, second_line["request_id"], behavior="allow") == []


def test_a_question_that_nobody_answered_in_time_is_denied_and_taken_back():
    session = control()
    session.start_turn("hi")
    session.ask_permission(ASKED)
    session.take_output()
    assert session.expire_permission_request(ASKED) == PermissionDecision(
        False, message=PROMPT_TIMEOUT_TEXT
    )
    assert json.loads(session.take_output()) == {
        "type": "control_cancel_request",
        "request_id": "uuid-1",
    }
    assert (
        session.expire_permission_request(ASKED) is None
        and give(session, "uuid-1", behavior="allow") == []
    )


def test_an_answer_in_time_leaves_nothing_to_deny():
    session = control()
    session.ask_permission(ASKED)
    give(session, "uuid-1", behavior="allow")
    assert session.expire_permission_request(ASKED) is None


def test_open_questions_are_bounded():
    session = control()
    decisions = [
        session.ask_permission(ASKED._replace(request_id=f"q{number}", call_id=f"call_{number}"))
        for number in range(MAX_OPEN_PROMPTS + 1)
    ]
    assert decisions[:-1] == [None] * MAX_OPEN_PROMPTS
    assert decisions[-1] is not None and not decisions[-1].allow


CHOICE = ASKED._replace(tool="AskUserQuestion", tool_input={"questions": [{"question": "Which?"}]})


@pytest.mark.parametrize(
    "state_fields",
    [
        {"policy": build_policy()},
        {"policy": build_policy(allow=["AskUserQuestion"])},
        {"policy": build_policy(), "mode": "bypassPermissions"},
        {"policy": build_policy(), "mode": "plan"},
    ],
)
def test_a_question_to_the_person_is_asked_whatever_is_allowed(state_fields):
    """As the real claude 2.1.329 did in each of these modes."""
    session = control(**state_fields)
    assert session.ask_permission(CHOICE) is None
    request = json.loads(session.take_output())["request"]
    assert request["requires_user_interaction"] is True and "permission_suggestions" not in request


@pytest.mark.parametrize(
    "state_fields",
    [
        {"mode": "dontAsk"},
        {"answers_prompts": False},
        {"answers_prompts": False, "mode": "bypassPermissions"},
    ],
)
def test_a_question_to_the_person_that_nobody_can_answer_is_denied(state_fields):
    decision = control(policy=build_policy(), **state_fields).ask_permission(CHOICE)
    assert decision is not None and not decision.allow


def test_a_question_to_the_person_that_a_hook_answered_is_not_asked():
    session = control(policy=build_policy(allow=["AskUserQuestion"]))
    answered = CHOICE._replace(tool_input={**CHOICE.tool_input, "answers": {"Which?": "this"}})
    assert session.ask_permission(answered) == PermissionDecision(True)


def test_a_message_that_waits_can_be_taken_back():
    session = control()
    session.receive_line(b'{"type":"user","uuid":"u1","message":{"role":"user","content":"hi"}}')
    assert body(session, "cancel_async_message", message_uuid="u1")["response"] == {
        "cancelled": True,
        "message_uuid": "u1",
    }
    assert not session.queued_messages


# -- permissions -----------------------------------------------------------------------------------


def test_a_question_is_put_to_the_frontend_in_claudes_words():
    """C9"""
    session = control()
    assert session.ask_permission(ASKED) is None
    (line,) = [json.loads(line) for line in session.take_output().splitlines()]
    assert line == {
        "type": "control_request",
        "request_id": "uuid-1",
        "request": {
            "subtype": "can_use_tool",
            "tool_name": "Bash",
            "display_name": "Bash",
            "input": {"command": "ls"},
            "permission_suggestions": [],
            "tool_use_id": "call_1",
        },
    }
    assert give(session, "uuid-1", behavior="allow") == [
        PermissionAnswered(ASKED, PermissionDecision(True))
    ]
    assert give(session, "uuid-1", behavior="allow") == []


@loop_over_rows(
    ("answer", "decision"),
    [
        ({"behavior": "allow", "updatedInput": {"command": "ls"}}, PermissionDecision(True)),
        (
            {"behavior": "allow", "updatedInput": {"command": "pwd"}},
            PermissionDecision(True, updated_input={"command": "pwd"}),
        ),
        ({"behavior": "deny", "message": "no"}, PermissionDecision(False, message="no")),
        (
            {"behavior": "deny", "message": "no", "interrupt": True},
            PermissionDecision(False, message="no", ends_turn=True),
        ),
        ({"behavior": "maybe"}, PermissionDecision(False, message="The call was denied.")),
        ({"behavior": "allow", "updatedInput": "ls"}, None),
        ({}, PermissionDecision(False, message="The call was denied.")),
    ],
)
def test_only_a_clear_permission_is_one(answer, decision):
    """C9"""
    session = control()
    session.ask_permission(ASKED)
    ((request, actual),) = give(session, "uuid-1", **answer)
    assert request is ASKED
    assert actual == decision if decision else not actual.allow


def test_who_cannot_be_asked_is_not_asked():
    for state_fields in ({"answers_prompts": False}, {"mode": "dontAsk"}):
        session = control(**state_fields)
        decision = session.ask_permission(ASKED)
        assert decision is not None and not decision.allow and not decision.frontend_knows
        assert session.take_output() == b""


def test_a_question_that_carries_its_refusal_is_not_asked():
    decision = control().ask_permission(ASKED._replace(refusal="The turn is over."))
    assert decision == PermissionDecision(False, message="The turn is over.")


def test_an_input_that_is_too_large_to_be_shown_is_denied():
    decision = control().ask_permission(ASKED._replace(tool_input={"command": "x" * 1_000_001}))
    assert decision is not None and not decision.allow and "too large" in decision.message


TOUCH = ASKED._replace(tool_input={"command": "touch a"})


def test_what_was_allowed_beforehand_is_allowed():
    session = control(answers_prompts=False, policy=build_policy(allow=["Bash(touch:*)"]))
    assert session.ask_permission(TOUCH) == PermissionDecision(True)
    for command in (
        "touch a; rm -rf x",
        "touchy",
        "touch $(reboot)",
        "touch a\nreboot",
        "touch a && reboot",
    ):
        decision = session.ask_permission(TOUCH._replace(tool_input={"command": command}))
        assert decision is not None and not decision.allow, command


ALWAYS = {
    "type": "addRules",
    "rules": [{"toolName": "Bash", "ruleContent": "touch:*"}],
    "behavior": "allow",
}


@loop_over_rows(
    ("update", "asked_again"),
    [
        (ALWAYS | {"destination": "session"}, False),
        (ALWAYS | {"rules": [{"toolName": "Bash"}]}, False),
        (ALWAYS | {"rules": [{"toolName": "Bash", "ruleContent": "rm:*"}]}, True),
        (ALWAYS | {"rules": [{"toolName": "Bash", "ruleContent": 7}]}, True),
        (ALWAYS | {"rules": [7, {"ruleContent": "touch a"}]}, True),
        (ALWAYS | {"rules": "Bash"}, True),
        (ALWAYS | {"type": "removeRules"}, True),
        (ALWAYS | {"type": "replaceRules"}, False),
        ({"type": "addDirectories", "directories": 7}, True),
        ({"type": "nothingRules", "rules": [{"toolName": "Bash"}], "behavior": "allow"}, True),
        (7, True),
    ],
)
def test_what_a_user_allowed_for_good_is_not_asked_about_again(update, asked_again):
    """C9, contract 6.3: `updatedPermissions`"""
    session = control(policy=build_policy())
    assert session.ask_permission(TOUCH) is None
    give(session, "uuid-1", behavior="allow", updatedPermissions=[update])
    assert (
        session.ask_permission(TOUCH._replace(request_id="q2", call_id="call_2")) is None
    ) is asked_again


@pytest.mark.parametrize(("behavior", "became"), [("deny", False), ("ask", None)])
def test_a_rule_of_an_answer_that_narrows_binds_the_next_call(behavior, became):
    session = control(policy=build_policy(allow=["Bash"]), mode="bypassPermissions")
    session.session_state.apply_permission_updates(
        [PermissionRuleChange("add", "ask", ("Bash(touch b)",))]
    )
    assert session.ask_permission(TOUCH._replace(tool_input={"command": "touch b"})) is None
    give(session, "uuid-1", behavior="allow", updatedPermissions=[ALWAYS | {"behavior": behavior}])
    decision = session.ask_permission(TOUCH._replace(request_id="q2", call_id="call_2"))
    assert (decision and decision.allow) is became


def test_a_rule_of_an_answer_can_be_taken_back_and_one_of_the_start_cannot():
    session = control(policy=build_policy(allow=["Bash(mkdir:*)"]))
    session.ask_permission(TOUCH)
    give(session, "uuid-1", behavior="allow", updatedPermissions=[ALWAYS])
    assert session.ask_permission(TOUCH) == PermissionDecision(True)
    session.session_state.apply_permission_updates([PermissionRuleChange("replace", "allow", ())])
    assert session.ask_permission(TOUCH) is None
    assert session.ask_permission(
        TOUCH._replace(tool_input={"command": "mkdir a"})
    ) == PermissionDecision(True)


def test_a_folder_of_an_answer_is_one_of_the_turns_until_it_is_taken_back():
    session = control(policy=build_policy(), mode="acceptEdits")
    write = ASKED._replace(tool="Write", tool_input={"file_path": "/elsewhere/a", "content": "x"})
    assert session.ask_permission(write) is None
    folder = {"directories": ["/elsewhere"], "destination": "session"}
    give(
        session,
        "uuid-1",
        behavior="allow",
        updatedPermissions=[{"type": "addDirectories", **folder}],
    )
    assert session.ask_permission(write) == PermissionDecision(True)
    session.ask_permission(TOUCH._replace(tool_input={"command": "reboot"}))
    give(
        session,
        "uuid-2",
        behavior="allow",
        updatedPermissions=[{"type": "removeDirectories", **folder}],
    )
    assert session.ask_permission(write) is None


def test_a_denial_allows_nothing_for_good():
    session = control(policy=build_policy())
    session.ask_permission(TOUCH)
    give(session, "uuid-1", behavior="deny", message="no", updatedPermissions=[ALWAYS])
    assert session.ask_permission(TOUCH) is None


def test_a_call_that_is_forbidden_is_not_allowed_for_good():
    session = control(policy=build_policy(deny=["Bash(touch -a)"]))
    session.ask_permission(TOUCH)
    give(session, "uuid-1", behavior="allow", updatedPermissions=[ALWAYS])
    assert session.ask_permission(TOUCH) == PermissionDecision(True)
    denied = session.ask_permission(TOUCH._replace(tool_input={"command": "touch -a"}))
    assert denied is not None and not denied.allow and "Bash(touch -a)" in denied.message


def test_a_call_is_not_changed_into_one_that_a_rule_denies():
    session = control(policy=build_policy(deny=["Bash(rm:*)"]))
    session.ask_permission(TOUCH)
    ((_, decision),) = give(session, "uuid-1", behavior="allow", updatedInput={"command": "rm a"})
    assert not decision.allow and "Bash(rm:*)" in decision.message and not decision.frontend_knows


def test_a_call_is_not_run_that_a_rule_has_come_to_deny_since_it_was_asked_about():
    """A frontend has joined meanwhile, which forbids it."""
    session = control(policy=build_policy())
    session.ask_permission(TOUCH)
    ask(session, "apply_flag_settings", settings={"permissions": {"deny": ["Bash(touch:*)"]}})
    ((_, decision),) = give(session, "uuid-1", behavior="allow")
    assert (
        not decision.allow and "Bash(touch:*)" in decision.message and not decision.frontend_knows
    )


def test_a_rule_of_an_answer_binds_the_next_call_and_not_the_one_that_it_allows():
    session = control(policy=build_policy())
    session.ask_permission(TOUCH)
    rules = [{"toolName": "Bash", "ruleContent": "touch:*"}]
    update = {"type": "addRules", "rules": rules, "behavior": "deny", "destination": "session"}
    ((_, decision),) = give(session, "uuid-1", behavior="allow", updatedPermissions=[update])
    assert decision.allow
    next_decision = session.ask_permission(TOUCH._replace(request_id="q2", call_id="call_2"))
    assert next_decision is not None and not next_decision.allow


def test_the_mode_of_an_answer_binds_the_next_call():
    session = control(policy=build_policy())
    session.ask_permission(TOUCH)
    change = {"type": "setMode", "mode": "acceptEdits", "destination": "session"}
    assert give(session, "uuid-1", behavior="allow", updatedPermissions=[change])[1:] == [
        SettingChanged("mode", "acceptEdits")
    ]
    assert session.ask_permission(
        TOUCH._replace(request_id="q2", call_id="call_2")
    ) == PermissionDecision(True)


@loop_over_rows(
    ("settings", "wishes", "applied"),
    [
        ({"effortLevel": "HIGH"}, [SettingChanged("effort", "high")], "high"),
        ({"effortLevel": None}, [SettingChanged("effort", None)], None),
        ({"effortLevel": "nonsense"}, [], "low"),
        ({"effortLevel": 7}, [], "low"),
        ({}, [], "low"),
        (7, [], "low"),
    ],
)
def test_an_effort_is_what_the_settings_of_the_session_say(settings, wishes, applied):
    """C8"""
    session = control(effort="low")
    request = {"subtype": "apply_flag_settings", "settings": settings}
    assert ask(session, **request)[1] == wishes
    assert body(session, "get_settings")["response"]["applied"]["effort"] == applied


@pytest.mark.parametrize("takes", [True, False])
def test_the_models_are_listed_with_efforts_only_where_the_vendor_can_be_told_one(takes):
    """C3"""
    (listed,) = control(accepts_effort=takes).session_state.list_models()
    assert ("supportedEffortLevels" in listed) is takes


@pytest.mark.parametrize("mode", ["bypassPermissions", "nonsense", 7])
def test_an_answer_chooses_no_mode_that_the_session_may_not_have(mode):
    session = control(policy=build_policy())
    session.ask_permission(TOUCH)
    change = {"type": "setMode", "mode": mode, "destination": "session"}
    assert len(give(session, "uuid-1", behavior="allow", updatedPermissions=[change])) == 1
    assert session.session_state.mode == "default" and session.warnings


@pytest.mark.parametrize("state_fields", [{}, {"mode": "plan"}, {"answers_prompts": False}])
def test_what_the_real_one_runs_unasked_is_not_asked_about(state_fields):
    """Permission-parity N5"""
    assert control(policy=build_policy(), **state_fields).ask_permission(
        ASKED
    ) == PermissionDecision(True)


def test_a_rule_that_asks_is_asked_about_whatever_the_mode_is():
    """Permission-parity W4"""
    session = control(
        policy=build_policy(ask=["Bash(touch:*)"], allow=["Bash"]), mode="bypassPermissions"
    )
    assert session.ask_permission(TOUCH) is None
    assert session.ask_permission(
        ASKED._replace(request_id="q2", call_id="call_2", tool_input={"command": "reboot"})
    ) == PermissionDecision(True)


def test_the_state_is_told_around_a_question():
    """C17"""
    session = control(state_events="host")
    session.start_turn("hi")
    session.ask_permission(ASKED)
    give(session, "uuid-2", behavior="allow")
    session.end_turn()
    lines = [json.loads(line) for line in session.take_output().splitlines()]
    assert [line["state"] for line in lines if "state" in line] == [
        "running",
        "requires_action",
        "running",
        "idle",
    ]
    assert all(line["sdk_host_only"] is True for line in lines if "state" in line)


def test_broken_bytes_in_a_message_are_mended_and_the_message_taken():
    session = control()
    session.receive_line(b'{"type":"user","message":{"role":"user","content":"a \xff b"}}')
    (message,) = session.queued_messages
    assert message.text == "a � b" and not session.warnings


def test_an_answer_is_said_back_where_messages_are():
    """C15"""
    for replays in (False, True):
        session = control(echoes_messages=replays)
        session.ask_permission(ASKED)
        session.take_output()
        give(session, "uuid-1", behavior="allow")
        lines = [json.loads(line) for line in session.take_output().splitlines()]
        assert [line["type"] for line in lines] == ["control_response"] * replays


@pytest.mark.parametrize("role", ["x" * 5000, "\x1b]52;c;aGk=\x07", "a\u202eb"])
def test_a_complaint_is_short_and_nothing_that_a_terminal_obeys(role):
    session = control()
    session.receive_line(
        json.dumps({"type": "user", "message": {"role": role, "content": "hi"}}).encode()
    )
    (complaint,) = session.warnings
    assert len(complaint) < 200 and complaint == escape_control_chars(complaint)


def narrow(session, **permissions):
    return ask(session, "apply_flag_settings", settings={"permissions": permissions})


def test_rules_of_the_settings_hold_until_others_stand_in_their_place():
    session = control(policy=build_policy(deny=["Read"]))
    assert narrow(session, deny=["Bash(touch:*)"], ask=["Edit"])[1] == [
        SettingChanged("rules", None)
    ]
    assert session.ask_permission(TOUCH).allow is False
    assert narrow(session, deny=["Bash(touch:*)"], ask=["Edit"])[1] == []
    assert narrow(session, deny=[], ask=[])[1] == [SettingChanged("rules", None)]
    assert session.ask_permission(TOUCH) is None and [
        rule.tool for rule in session.session_state.policy.restricting_rules
    ] == ["Read"]


def test_rules_that_the_vendor_would_not_keep_are_refused_and_change_nothing():
    session = control(policy=build_policy())
    session.session_state.enforcement_checks.append(
        lambda narrower: f"cannot be kept to {narrower.deny[0]}" if narrower.deny else ""
    )
    (line, *_), wishes = narrow(session, deny=["Bash"])
    assert (
        line["response"]["error"] == "Cannot apply settings: cannot be kept to Bash"
        and wishes == []
    )
    assert session.session_state.policy.restricting_rules == ()
    (line, *_), _ = narrow(control(), deny=["Bash"])
    assert line["response"]["subtype"] == "error"


@pytest.mark.parametrize("turn_running", [True, False])
def test_servers_that_come_in_the_middle_of_a_session_are_for_another_child(turn_running):
    session = control(accepts_mcp_servers=True)
    if turn_running:
        session.start_turn("hi")
    wishes = ask(session, "initialize", sdkMcpServers=["calc"])[1]
    assert wishes == ([SettingChanged("servers", None)] if turn_running else [])
    assert ask(session, "initialize", sdkMcpServers=["calc"])[1] == []
