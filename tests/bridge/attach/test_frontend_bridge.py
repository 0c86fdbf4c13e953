"""A frontend's lines become frames, and a host's frames become its lines."""

import itertools

import orjson

from shim.bridge.attach.frontend_bridge import FrontendSessionBridge
from shim.bridge.attach.turn_filter import FrontendOutputOptions

PLAIN = FrontendOutputOptions()
SESSION = "0b5ca2c8-6f4e-4b9a-8f5e-0d9a3b1f2c3d"
MINE = "11111111-1111-4111-8111-111111111111"
QUESTION = {
    "subtype": "can_use_tool",
    "tool_name": "Bash",
    "input": {"command": "ls"},
    "tool_use_id": "t1",
}
TOOL = "AskUserQuestion"
INIT = {"type": "system", "subtype": "init"}
RESULT = {"type": "result", "subtype": "success", "is_error": False, "result": "done"}


def build_frontend(
    *, can_answer=True, denies_questions=False, driver="us", busy=False, wants=PLAIN, **welcome
):
    counter = itertools.count(1)
    frontend = FrontendSessionBridge(
        wants,
        SESSION,
        lambda: f"id-{next(counter)}",
        can_answer=can_answer,
        denies_questions=denies_questions,
    )
    state = {"status": "busy" if busy else "idle"}
    greeting = {
        "kind": "welcome",
        "client": "us",
        "session": SESSION,
        "driver": driver,
        "state": state,
        "mode": "plan",
    }
    frontend.on_host_frame({**greeting, "initialize": {"pid": 7}, "init": None, **welcome})
    frontend.on_host_frame({"kind": "synced", "number": 0})
    return frontend


def hear(frontend, **line):
    frontend.on_stdin_line(orjson.dumps(line))
    return take_frames(frontend)


def take_frames(frontend):
    frames, frontend.frames = frontend.frames, []
    return list(frames)


def tell(frontend, kind, **keys):
    frontend.on_host_frame({"kind": kind, **keys})
    return take_lines(frontend)


def say(frontend, *lines):
    for line in lines:
        frontend.on_host_frame({"kind": "line", "raw": orjson.dumps(line)})
    return take_lines(frontend)


def take_lines(frontend):
    lines, frontend.lines = frontend.lines, []
    return [orjson.loads(line) for line in lines]


def ask(frontend, subtype, **request):
    return hear(
        frontend, type="control_request", request_id="r1", request={"subtype": subtype, **request}
    )


def build_response(body=None, **error):
    response = {"subtype": "error" if error else "success", "request_id": "r1", **error}
    return [
        {
            "type": "control_response",
            "response": response | ({} if body is None else {"response": body}),
        }
    ]


def test_message_without_a_uuid_gets_a_new_id():
    frontend, message = build_frontend(), {"role": "user", "content": "hi"}
    assert hear(frontend, type="user", message=message, uuid=MINE) == [
        {"kind": "message", "id": MINE, "message": message}
    ]
    (frame,) = hear(frontend, type="user", message=message, priority="later")
    assert (frame["id"], frame["priority"]) == ("id-1", "later")
    assert list(frontend.turn_filter.waiting_ids) == [MINE, "id-1"]


def test_message_to_an_idle_session_takes_control_from_the_controller():
    frontend = build_frontend(driver="terminal")
    frames = hear(frontend, type="user", message={"role": "user", "content": "hi"}, uuid=MINE)
    assert [frame["kind"] for frame in frames] == ["take", "message"]
    assert frames[0]["if_idle"] is True


def test_refused_message_during_a_turn_names_the_controller():
    frontend = build_frontend(driver="editor")
    frontend.on_host_frame({"kind": "state", "status": "busy"})
    (message,) = hear(frontend, type="user", message={"role": "user", "content": "hi"}, uuid=MINE)
    frontend.on_host_frame(
        {
            "kind": "refused",
            "id": message["id"],
            "reason": "not-driver",
            "text": "x",
            "driver": "editor",
        }
    )
    assert (
        frontend.refusal
        == "editor has control and a turn is running; send the message again when the turn has ended"
    )


def test_refused_message_is_resent_once_with_take_if_the_session_is_idle():
    """Another client told the frontend about the end of the turn before the bridge received it."""
    frontend = build_frontend(driver="editor", busy=True)
    (message,) = hear(frontend, type="user", message={"role": "user", "content": "hi"}, uuid=MINE)
    refused = {"id": MINE, "reason": "not-driver", "text": "x", "driver": "editor"}
    tell(frontend, "state", status="idle")
    assert tell(frontend, "refused", **refused) == [] and frontend.refusal == ""
    take = {"kind": "take", "id": "id-1", "if_idle": True}
    assert take_frames(frontend) == [take, message]
    tell(frontend, "refused", **refused)
    assert take_frames(frontend) == [] and frontend.refusal and frontend.turn_filter.is_idle


def test_malformed_stdin_line_is_skipped_with_a_warning():
    frontend = build_frontend()
    frontend.on_stdin_line(b"{nonsense")
    frontend.on_stdin_line(b'{"type":"user","message":{"role":"assistant"}}')
    assert [text.partition(" ")[0] for text in frontend.warnings] == ["Error", "Error:"]
    assert take_frames(frontend) == []


def test_initialize_response_has_the_current_permission_mode():
    frontend = build_frontend()
    assert ask(frontend, "initialize", hooks=None) == []
    assert take_lines(frontend) == build_response({"pid": 7, "current_permission_mode": "plan"})


def test_initialize_with_hooks_is_forwarded_to_the_session():
    frontend = build_frontend()
    request = {"subtype": "initialize", "hooks": {"PreToolUse": [{"hookCallbackIds": ["h"]}]}}
    assert ask(frontend, **request) == [{"kind": "request", "id": "id-1", "request": request}]
    body = {"subtype": "success", "request_id": "other", "response": {"pid": 7}}
    assert tell(frontend, "response", id="id-1", response=body) == build_response({"pid": 7})


def test_control_request_is_forwarded_to_the_session():
    frontend, request = build_frontend(), {"subtype": "set_model", "model": "small"}
    assert ask(frontend, **request) == [{"kind": "request", "id": "id-1", "request": request}]
    assert take_lines(frontend) == [] and frontend.has_open_requests
    body = {"subtype": "success", "request_id": "id-1", "response": {"model": "small"}}
    assert tell(frontend, "response", id="id-1", response=body) == build_response(
        {"model": "small"}
    )
    assert not frontend.has_open_requests


def test_refused_control_request_gets_an_error_response():
    frontend = build_frontend()
    ask(frontend, "set_permission_mode", mode="bypassPermissions")
    refusal = tell(frontend, "refused", id="id-1", reason="bypass", text="it did not begin with it")
    assert refusal == build_response(error="it did not begin with it")


def test_invalid_permission_decision_is_sent_as_a_deny():
    frontend = build_frontend()
    tell(frontend, "question", question="q1", request=QUESTION)
    response = {"subtype": "success", "request_id": "q1", "response": {"behavior": "maybe"}}
    (answer,) = hear(frontend, type="control_response", response=response)
    tell(frontend, "refused", id=answer["id"], reason="bad-decision", text="no such behavior")
    (denial,) = take_frames(frontend)
    assert (denial["question"], denial["decision"]["behavior"]) == ("q1", "deny")


def test_permission_response_of_the_frontend_is_sent_to_the_host():
    frontend = build_frontend()
    line = {"type": "control_request", "request_id": "q1", "request": QUESTION}
    assert tell(frontend, "question", question="q1", request=QUESTION) == [line]
    decision = {"behavior": "allow", "updatedInput": {"command": "ls"}}
    response = {"subtype": "success", "request_id": "q1", "response": decision}
    assert hear(frontend, type="control_response", response=response) == [
        {"kind": "answer", "id": "id-1", "question": "q1", "decision": decision}
    ]
    assert tell(frontend, "settled", question="q1", by="us", how="allow") == []


def test_permission_prompt_is_cancelled_when_another_client_answers():
    frontend = build_frontend()
    tell(frontend, "question", question="q1", request=QUESTION)
    cancel = {"type": "control_cancel_request", "request_id": "q1"}
    assert tell(frontend, "settled", question="q1", by="terminal", how="deny") == [cancel]
    late = {"subtype": "success", "request_id": "q1", "response": {"behavior": "allow"}}
    assert hear(frontend, type="control_response", response=late) == []


def test_permission_prompt_is_not_sent_to_a_frontend_that_cannot_answer():
    frontend = build_frontend(can_answer=False)
    assert [frame["kind"] for frame in take_frames(frontend)] == ["deaf"]
    assert tell(frontend, "question", question="q1", request=QUESTION) == []


def test_question_of_the_agent_is_denied_if_the_frontend_forbids_questions():
    """claude-agent-acp forbids AskUserQuestion, and joins sessions that were started with it."""
    frontend, asks_user = build_frontend(denies_questions=True), {**QUESTION, "tool_name": TOOL}
    assert tell(frontend, "question", question="q0", request=asks_user) == []
    assert take_frames(frontend) == [], "it is left to others in their own turns"
    hear(frontend, type="user", message={"role": "user", "content": "hi"}, uuid=MINE)
    say(frontend, INIT, {"type": "user", "uuid": MINE, "isReplay": True})
    assert tell(frontend, "question", question="q1", request=asks_user) == []
    (denial,) = take_frames(frontend)
    assert (denial["kind"], denial["question"]) == ("answer", "q1")
    assert denial["decision"]["behavior"] == "deny"
    (line,) = tell(frontend, "question", question="q2", request=QUESTION)
    assert line["request_id"] == "q2" and take_frames(frontend) == []


def test_denial_is_reported_to_a_frontend_that_cannot_answer():
    frontend = build_frontend(can_answer=False)
    hear(frontend, type="user", message={"role": "user", "content": "hi"}, uuid=MINE)
    say(frontend, INIT, {"type": "user", "uuid": MINE, "isReplay": True})
    for question in ("q1", "q2"):
        tell(frontend, "question", question=question, request=QUESTION)
    (denied,) = tell(frontend, "settled", question="q1", by=None, how="deny")
    assert (denied["subtype"], denied["tool_name"], denied["tool_use_id"]) == (
        "permission_denied",
        "Bash",
        "t1",
    )
    assert tell(frontend, "settled", question="q2", by="terminal", how="deny") == []


def test_cancelled_message_leaves_the_turn_filter_idle():
    frontend = build_frontend()
    hear(frontend, type="user", message={"role": "user", "content": "hi"}, uuid=MINE)
    (frame,) = ask(frontend, "cancel_async_message", message_uuid=MINE)
    body = {"cancelled": True, "message_uuid": MINE}
    response = {"subtype": "success", "request_id": frame["id"], "response": body}
    assert tell(frontend, "response", id=frame["id"], response=response) == build_response(body)
    assert frontend.turn_filter.is_idle


def test_internal_message_cancellation_is_not_reported_to_the_frontend():
    frontend = build_frontend()
    hear(frontend, type="user", message={"role": "user", "content": "hi"}, uuid=MINE)
    frontend.cancel_waiting_messages()
    (frame,) = take_frames(frontend)
    assert frame["request"] == {"subtype": "cancel_async_message", "message_uuid": MINE}
    assert tell(frontend, "response", id=frame["id"], response={"subtype": "success"}) == []
    assert frontend.turn_filter.is_idle and not frontend.has_open_requests


def test_permission_prompt_is_sent_after_the_other_controller_disconnects():
    frontend = build_frontend(driver="terminal")
    assert tell(frontend, "question", question="q1", request=QUESTION) == []
    assert [line["type"] for line in tell(frontend, "driver", client=None)] == ["control_request"]
    assert tell(frontend, "driver", client="us") == []


def test_permission_prompt_over_the_line_limit_is_not_sent():
    frontend = build_frontend(wants=FrontendOutputOptions(max_line_bytes=1000))
    request = {**QUESTION, "input": {"command": "x" * 2000}}
    assert tell(frontend, "question", question="q1", request=request) == []


def test_hook_callback_response_is_sent_to_the_host():
    frontend, request = build_frontend(), {"subtype": "hook_callback", "callback_id": "h"}
    line = {"type": "control_request", "request_id": "a1", "request": request}
    assert tell(frontend, "ask", id="a1", request=request) == [line]
    response = {"subtype": "success", "request_id": "a1", "response": {}}
    expected = [{"kind": "reply", "id": "a1", "response": response}]
    assert hear(frontend, type="control_response", response=response) == expected


def test_hook_callback_gets_an_error_after_stdin_ends():
    frontend, request = build_frontend(), {"subtype": "hook_callback", "callback_id": "h"}
    tell(frontend, "ask", id="a1", request=request)
    frontend.on_stdin_end()
    tell(frontend, "ask", id="a2", request=request)
    deaf, *replies = take_frames(frontend)
    assert deaf["kind"] == "deaf"
    assert [(frame["kind"], frame["response"]["subtype"]) for frame in replies] == [
        ("reply", "error")
    ] * 2


def test_session_state_events_surround_a_permission_prompt():
    frontend = build_frontend(wants=FrontendOutputOptions(state_events="visible"))
    hear(frontend, type="user", message={"role": "user", "content": "hi"}, uuid=MINE)
    lines = say(frontend, INIT, {"type": "user", "uuid": MINE, "isReplay": True})
    lines += tell(frontend, "question", question="q1", request=QUESTION)
    response = {"subtype": "success", "request_id": "q1", "response": {"behavior": "allow"}}
    hear(frontend, type="control_response", response=response)
    lines += (
        take_lines(frontend)
        + tell(frontend, "settled", question="q1", by="us", how="allow")
        + say(frontend, RESULT)
    )
    states = [line["state"] for line in lines if line.get("subtype") == "session_state_changed"]
    assert states == ["running", "requires_action", "running", "idle"]


def test_refused_message_sets_the_refusal_text():
    frontend = build_frontend()
    hear(frontend, type="user", message={"role": "user", "content": "hi"}, uuid=MINE)
    tell(frontend, "refused", id=MINE, reason="driven", text="terminal drives", driver="terminal")
    assert frontend.refusal == "terminal drives" and frontend.turn_filter.is_idle


HOOKS = {"hooks": {"PreToolUse": [{"hookCallbackIds": ["h"]}]}}


def test_initialize_with_hooks_takes_control_of_an_idle_session():
    frontend = build_frontend(driver="terminal")
    take, request = ask(frontend, "initialize", **HOOKS)
    assert (take["kind"], request["kind"]) == ("take", "request")


def test_message_waits_until_the_session_accepts_the_hooks():
    frontend = build_frontend()
    (request,) = ask(frontend, "initialize", **HOOKS)
    assert (
        hear(
            frontend,
            type="user",
            message={"role": "user", "content": "hi"},
            uuid=MINE,
            priority="next",
        )
        == []
    )
    assert not frontend.turn_filter.is_idle
    tell(frontend, "response", id=request["id"], response={"subtype": "success", "response": {}})
    (message,) = take_frames(frontend)
    assert (message["kind"], message["id"], message["priority"]) == ("message", MINE, "next")


def test_message_is_refused_until_the_session_accepts_the_hooks():
    frontend = build_frontend(driver="terminal", busy=True)
    (request,) = ask(frontend, "initialize", **HOOKS)
    assert hear(frontend, type="user", message={"role": "user", "content": "hi"}, uuid=MINE) == []
    assert (
        tell(frontend, "refused", id=request["id"], reason="not-driver", text="terminal drives")
        != []
    )
    assert (
        take_frames(frontend) == []
        and frontend.turn_filter.is_idle
        and frontend.refusal.endswith(": terminal drives")
    )
    tell(frontend, "driver", client=None)
    frontend.refusal = ""
    assert hear(frontend, type="user", message={"role": "user", "content": "again"}) == []
    assert frontend.refusal and frontend.turn_filter.is_idle
    (request,) = ask(frontend, "initialize", **HOOKS)
    tell(frontend, "response", id=request["id"], response={"subtype": "success"})
    assert [
        frame["kind"]
        for frame in hear(frontend, type="user", message={"role": "user", "content": "hi"})
    ] == ["message"]
