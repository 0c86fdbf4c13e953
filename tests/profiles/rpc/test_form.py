"""An agent's form as a question of Claude, and the answers to it."""

import json

import pytest
from acp_agent import ANSWERS, DONE, AcpConversation
from stream_invariants import check_turns
from sweeps import loop_over_rows

from shim.core.claude.permissions import PermissionDecision
from shim.core.policy.policy import Policy, Workspace, parse_permission_rules
from shim.profiles.rpc.form import (
    DISMISSED_RESULT,
    build_ask_user_question_input,
    build_elicitation_result,
    format_ask_user_question_result,
)


def form(required=(), message="How?", **fields):
    schema = {"type": "object", "properties": fields, "required": list(required)}
    return {"mode": "form", "message": message, "requestedSchema": schema}


COLOUR = {"type": "string", "title": "Which colour?", "enum": ["red", "blue"]}
SIZE = {
    "type": "string",
    "title": "Size?",
    "oneOf": [{"const": "s", "title": "Small"}, {"const": "l", "title": "Large"}],
}
SEVERAL = {
    "type": "array",
    "title": "What with?",
    "items": {"type": "string", "enum": ["salt", "oil"]},
}


def test_enum_field_becomes_a_question_with_options():
    question_input = build_ask_user_question_input(form(colour=COLOUR, size=SIZE))
    assert question_input == {
        "questions": [
            {
                "question": "How?\nWhich colour?",
                "header": "colour",
                "multiSelect": False,
                "options": [
                    {"label": "red", "description": ""},
                    {"label": "blue", "description": ""},
                ],
            },
            {
                "question": "Size?",
                "header": "size",
                "multiSelect": False,
                "options": [
                    {"label": "Small", "description": ""},
                    {"label": "Large", "description": ""},
                ],
            },
        ]
    }


@loop_over_rows(
    ("field", "answer_text", "value"),
    [
        (COLOUR, "blue", "blue"),
        (SIZE, "Large", "l"),
        (SEVERAL, "salt, oil", ["salt", "oil"]),
        (SEVERAL, ["oil"], ["oil"]),
        ({"type": "boolean"}, "Yes", True),
        ({"type": "boolean"}, "No", False),
        ({"type": "string"}, "in my own words", "in my own words"),
        ({"type": "integer"}, "7", 7),
        ({"type": "number"}, "0.5", 0.5),
    ],
)
def test_answer_is_converted_to_the_type_of_the_field(field, answer_text, value):
    form_params = form(it=field)
    text = build_ask_user_question_input(form_params)["questions"][0]["question"]
    assert build_elicitation_result(form_params, {"answers": {text: answer_text}}) == {
        "action": "accept",
        "content": {"it": value},
    }


@pytest.mark.parametrize(
    ("field", "answer_text"),
    [(COLOUR, "green"), (SEVERAL, "salt, sand"), ({"type": "integer"}, "many"), (COLOUR, None)],
)
def test_invalid_answer_dismisses_the_form(field, answer_text):
    form_params = form(it=field)
    text = build_ask_user_question_input(form_params)["questions"][0]["question"]
    assert (
        build_elicitation_result(form_params, {"answers": {text: answer_text}}) == DISMISSED_RESULT
    )


def test_missing_answer_dismisses_the_form_if_the_field_is_required():
    form_params = form(["colour"], colour=COLOUR, size=SIZE)
    assert build_elicitation_result(form_params, {"answers": {"How?\nWhich colour?": "red"}})[
        "content"
    ] == {"colour": "red"}
    assert (
        build_elicitation_result(form_params, {"answers": {"Size?": "Small"}}) == DISMISSED_RESULT
    )
    assert build_elicitation_result(form_params, None) == DISMISSED_RESULT


def test_fields_with_equal_titles_get_distinct_questions():
    question_input = build_ask_user_question_input(
        form(
            a={"type": "string", "title": "Name?"}, b={"type": "string", "title": "Name?"}, c=COLOUR
        )
    )
    assert len({question["question"] for question in question_input["questions"]}) == 3


@pytest.mark.parametrize(
    "params",
    [
        {},
        {"mode": "url", "url": "http://a"},
        form(),
        form(**{f"f{number}": COLOUR for number in range(21)}),
    ],
)
def test_unsupported_form_has_no_questions(params):
    assert build_ask_user_question_input(params) is None


def test_default_value_is_an_option_of_a_text_field():
    (question,) = build_ask_user_question_input(form(name={"type": "string", "default": "main"}))[
        "questions"
    ]
    assert [option["label"] for option in question["options"]] == ["main"]


def test_question_result_contains_the_answer():
    assert '"Size?"="Small"' in format_ask_user_question_result({"answers": {"Size?": "Small"}})


# -- in a turn -------------------------------------------------------------------------------------

ASKING = ("--permission-prompt-tool", "stdio")


def asks(request_id=7, **params):
    request_params = {"sessionId": "s1", **form(["colour"], colour=COLOUR), **params}
    return {"id": request_id, "method": "elicitation/create", "params": request_params}


def start_conversation(*flags):
    return AcpConversation(flags=flags).feed_messages(*ANSWERS)


@pytest.mark.parametrize(("flags", "offered"), [((), False), (ASKING, True)])
def test_forms_are_offered_only_if_the_frontend_can_prompt(flags, offered):
    greeting = json.loads(AcpConversation(flags=flags).sent_bytes.splitlines()[0])["params"][
        "clientCapabilities"
    ]
    assert ("elicitation" in greeting) is offered
    assert greeting.get("elicitation", {"form": {}}) == {"form": {}}


def test_forms_are_not_offered_if_ask_user_question_is_denied():
    policy = Policy(
        workspace=Workspace("/w", "/h"), deny=parse_permission_rules(["AskUserQuestion"])
    )
    greeting = json.loads(AcpConversation(flags=ASKING, policy=policy).sent_bytes.splitlines()[0])[
        "params"
    ]["clientCapabilities"]
    assert "elicitation" not in greeting


def test_form_is_answered_by_the_frontend():
    talk = start_conversation(*ASKING).feed_messages(asks())
    (permission,) = talk.pending_permissions
    assert permission.tool == "AskUserQuestion"
    changed = {**permission.tool_input, "answers": {"How?\nWhich colour?": "blue"}}
    talk.sent_bytes += talk.child_input.encode_permission_response(
        permission, PermissionDecision(True, updated_input=changed)
    )
    assert talk.get_last_message()["result"] == {"action": "accept", "content": {"colour": "blue"}}
    talk.feed_messages(DONE).close_stream()
    (turn,) = check_turns(talk.lines, partial=False)
    (returned,) = [line["message"]["content"][0] for line in turn if line["type"] == "user"]
    assert '"How?\nWhich colour?"="blue"' in returned["content"]
    assert turn[-2]["subtype"] == "success"


@pytest.mark.parametrize(
    ("decision", "action"),
    [
        (PermissionDecision(False), "decline"),
        (PermissionDecision(False, ends_turn=True), "cancel"),
        (PermissionDecision(True), "cancel"),
    ],
)
def test_form_without_an_answer_is_declined_or_cancelled(decision, action):
    talk = start_conversation(*ASKING).feed_messages(asks())
    talk.sent_bytes += talk.child_input.encode_permission_response(
        talk.pending_permissions[0], decision
    )
    assert talk.get_last_message()["result"] == {"action": action}


@pytest.mark.parametrize(
    "params", [{"mode": "url", "url": "http://a"}, {"sessionId": "s2"}, {"requestedSchema": 7}]
)
def test_unsupported_form_request_returns_invalid_params(params):
    talk = start_conversation(*ASKING).feed_messages(asks(**params))
    assert not talk.pending_permissions
    assert talk.get_last_message()["error"]["code"] == -32602


def test_form_request_returns_an_error_if_forms_are_not_offered():
    talk = start_conversation().feed_messages(asks())
    assert not talk.pending_permissions
    assert talk.get_last_message()["error"]["code"] == -32601


def test_form_with_the_id_of_an_open_form_is_ignored():
    talk = start_conversation(*ASKING).feed_messages(asks(), asks())
    assert len(talk.pending_permissions) == 1
    assert b'"id":7' not in talk.sent_bytes
