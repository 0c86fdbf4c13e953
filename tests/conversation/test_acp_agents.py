"""Agents of the Agent Client Protocol that are broken or hostile: real processes started by the
drop-in.

Each message has one result, which states what happened. No call is allowed without a decision.
"""

import json

import pytest
from box import format_ndjson

from tests.conversation.test_conversation import request as control
from tests.conversation.test_conversation import results, user
from tests.conversation.test_persistent_driver import ASKING, answer

OPTIONS = [{"optionId": "yes", "kind": "allow_once"}, {"optionId": "no", "kind": "reject_once"}]
GREETED = {"id": 1, "result": {"protocolVersion": 1}}
OPENED = {"id": 2, "result": {"sessionId": "s1"}}
ENDED = {"id": 3, "result": {"stopReason": "end_turn"}}
NO, CANCELLED = {"outcome": "selected", "optionId": "no"}, {"outcome": "cancelled"}
YES = {"outcome": "selected", "optionId": "yes"}
ALIVE = 0.3  # seconds that an agent may be silent here


def update(name, /, session="s1", **fields):
    return {
        "method": "session/update",
        "params": {"sessionId": session, "update": {"sessionUpdate": name, **fields}},
    }


def says(text):
    return update("agent_message_chunk", content={"type": "text", "text": text})


def asks(request_id=7, call="c1", command="touch x", session="s1", **fields):
    tool_call = {
        "toolCallId": call,
        "title": "bash",
        "kind": "execute",
        "rawInput": {"command": command},
    } | fields
    params = {"sessionId": session, "toolCall": tool_call, "options": OPTIONS}
    return {"id": request_id, "method": "session/request_permission", "params": params}


def lines(*messages):
    return format_ndjson(*({"jsonrpc": "2.0"} | message for message in messages))


def out(*messages):
    return ["out", lines(*messages)]


OPENING = (["hear", '"initialize"'], out(GREETED), ["hear", '"session/new"'], out(OPENED))
PROMPTED = (*OPENING, ["hear", '"session/prompt"'])


@pytest.fixture
def box(quick_box):
    return quick_box


@pytest.fixture
def talk(box):
    """Return a function that starts a conversation with an agent. The agent performs the steps
    after its first prompt, or it is `program`.
    """

    def start(*child_steps, program=None, flags=ASKING):
        child = program or box.create_fake(
            *PROMPTED, *child_steps, ["record", str(box.recording)], ["hear", "never"]
        )
        return box.start_conversation(child, *flags, vendor="opencode")

    return start


def answers(box):
    """Return the answers that the agent received to its questions, by id."""
    stdin_lines = [json.loads(line) for line in box.read_record()["stdin"].splitlines()]
    return {
        json.dumps(line["id"]): line["result"]["outcome"]
        for line in stdin_lines
        if "outcome" in line.get("result", {})
    }


def run_turn(running):
    running.send_lines(user("one"))
    running.read_until(b'"type":"result"')
    return running.end_input()


# -- the agent's output ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "noise",
    [
        lines(
            update("tea_time", cups=2), {"method": "_their/own", "params": {}}, {"method": 7}, {}
        ),
        lines(
            update("agent_message_chunk"),
            update("tool_call"),
            update("plan", entries=7),
            update("usage_update"),
        ),
        lines({"id": 99, "result": {"stopReason": "end_turn"}}, {"id": None, "error": {"code": 1}}),
        lines(
            {"id": 1, "result": {"protocolVersion": 1}}, {"id": 2, "result": {"sessionId": "s2"}}
        ),
        lines(
            update("agent_message_chunk", session="s2", content={"type": "text", "text": "psst"})
        ),
        '[]\n[1,null,"x"]\nnull\n7\n"text"\n[[]]\n'
        + json.dumps([{"id": []}, {"method": "session/update"}])
        + "\n",
        "\udcff\udcfe not UTF-8 \udcc0\udcaf\n",
        '{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"s1","update":{"sessionUpdate"\n',
        lines(
            update("tool_call_update", toolCallId="c" * 100_000, status="completed", rawOutput="x")
        ),
    ],
)
def test_unreadable_agent_output_does_not_affect_the_turn(talk, noise):
    with talk(["out", noise], out(says("Hello."), ENDED)) as running:
        done = run_turn(running)
    assert done.status == 0
    assert [line["result"] for line in results(done)] == ["Hello."]


def test_huge_agent_message_emits_no_oversized_line(talk):
    with talk(out(says("a" * 3_000_000)), out(says("Hello."), ENDED)) as running:
        done = run_turn(running)
    assert done.status == 0
    assert results(done)[0]["result"].endswith("Hello.")
    assert max(map(len, done.stdout.splitlines())) < 100_000


def test_output_after_the_end_of_a_turn_is_ignored(box, talk):
    late = (says("too late"), asks(), {"id": 3, "result": {"stopReason": "refusal"}})
    second_turn = (
        ["hear", '"session/prompt"'],
        out(says("Again."), {"id": 4, "result": {"stopReason": "end_turn"}}),
    )
    with talk(out(says("Hello."), ENDED, *late), *second_turn) as running:
        running.send_lines(user("one"))
        running.read_until(b'"type":"result"')
        running.send_lines(user("two"))
        running.read_until(b'"result":"Again."')
        done = running.end_input()
    assert [line["result"] for line in results(done)] == ["Hello.", "Again."]
    assert b"can_use_tool" not in done.stdout
    assert answers(box)["7"] != YES


# -- the agent's questions -------------------------------------------------------------------------


def allow(running):
    request = running.read_line_containing(b'"subtype":"can_use_tool"')
    running.send_lines(
        answer(request["request_id"], behavior="allow", updatedInput=request["request"]["input"])
    )
    return request["request"]["input"]


def test_changed_call_is_not_allowed_by_an_earlier_answer(box, talk):
    child_steps = (
        out(asks()),
        ["hear", "outcome"],
        out(asks(8, command="rm -rf /")),
        ["hear", "outcome"],
    )
    with talk(*child_steps, out(ENDED)) as running:
        running.send_lines(user("one"))
        assert allow(running) == {"command": "touch x"}
        running.read_until(b'"type":"result"')
        done = running.end_input()
    assert answers(box) == {"7": YES, "8": NO}
    assert len(results(done)) == 1


def test_permission_request_with_a_duplicate_id_is_ignored(box, talk):
    with talk(
        out(asks(), asks(call="c2", command="rm -rf /")), ["hear", "outcome"], out(ENDED)
    ) as running:
        running.send_lines(user("one"))
        assert allow(running) == {"command": "touch x"}
        running.read_until(b'"type":"result"')
        done = running.end_input()
    assert answers(box) == {"7": YES}
    assert done.stdout.count(b"can_use_tool") == 1


def test_permission_request_for_another_session_is_cancelled(box, talk):
    with talk(out(asks(session="s2")), ["hear", "outcome"], out(ENDED)) as running:
        done = run_turn(running)
    assert answers(box) == {"7": CANCELLED}
    assert b"can_use_tool" not in done.stdout


def test_permission_request_after_an_interrupt_is_not_forwarded(box, talk):
    end = {"id": 3, "result": {"stopReason": "cancelled"}}
    with talk(
        out(says("Hel")), ["hear", '"session/cancel"'], out(asks()), ["hear", "outcome"], out(end)
    ) as running:
        running.send_lines(user("one"))
        running.read_until(b'"type":"system"')
        running.send_lines(control("i1", subtype="interrupt"))
        running.read_until(b'"type":"result"')
        done = running.end_input()
    assert answers(box)["7"] != YES
    assert b"can_use_tool" not in done.stdout
    assert results(done)[0]["subtype"] == "error_during_execution"


def test_title_changed_after_approval_is_not_emitted(talk):
    changed = update(
        "tool_call_update", toolCallId="c1", title="rm -rf /", status="completed", rawOutput="x"
    )
    with talk(out(asks()), ["hear", "outcome"], out(changed, ENDED)) as running:
        running.send_lines(user("one"))
        allow(running)
        running.read_until(b'"type":"result"')
        done = running.end_input()
    assert b"rm -rf" not in done.stdout


@pytest.mark.parametrize(
    "request_id", [0, -1, 2**53, 1.5, "7", "", "x" * 200, None, [7], {"a": 1}, True]
)
def test_permission_response_has_the_id_of_its_request(box, talk, request_id):
    with talk(out(asks(request_id)), ["hear", "outcome"], out(ENDED), flags=()) as running:
        run_turn(running)
    assert answers(box) == {json.dumps(request_id): NO}


def test_permission_request_flood_is_limited_to_1000_prompts(box, talk):
    flood = [asks(number, call=f"c{number}") for number in range(1_200)]
    remaining_steps = [
        step
        for at in range(1000, 1_200, 100)
        for step in (out(*flood[at : at + 100]), ["hear", f'"id":{at + 99}'])
    ]
    with talk(out(*flood[:1000]), *remaining_steps, out(ENDED), ["hear", '"id":999']) as running:
        running.send_lines(user("one"))
        running.read_until(b'"type":"result"')
        done = running.end_input()
    assert len(results(done)) == 1
    assert 0 < done.stdout.count(b"can_use_tool") <= 1000
    assert len(answers(box)) == 1_200
    assert YES not in answers(box).values()


def test_open_prompt_is_cancelled_at_the_end_of_the_turn(box, talk):
    with talk(out(asks(), ENDED), ["hear", "outcome"]) as running:
        running.send_lines(user("one"))
        running.read_until(b'"type":"result"')
        request = running.read_line_containing(b'"subtype":"can_use_tool"')
        running.send_lines(
            answer(
                request["request_id"], behavior="allow", updatedInput=request["request"]["input"]
            )
        )
        done = running.end_input()
    kinds = [line["type"] for line in done.lines]
    assert kinds.index("control_cancel_request") < kinds.index("result")
    assert answers(box) == {"7": CANCELLED}


def test_prompt_is_cancelled_when_the_agent_cancels_its_request(box, talk):
    back = {"method": "$/cancel_request", "params": {"requestId": 7}}
    with talk(out(asks(), back), ["hear", "outcome"], out(says("Never mind."), ENDED)) as running:
        running.send_lines(user("one"))
        running.read_until(b'"control_cancel_request"')
        running.read_until(b'"type":"result"')
        running.end_input()
    assert answers(box) == {"7": CANCELLED}


def test_request_that_the_agent_cancels_during_a_hook_is_not_prompted(box, talk):
    back = {"method": "$/cancel_request", "params": {"requestId": 7}}
    hooks = {"PreToolUse": [{"hookCallbackIds": ["h0"]}]}
    with talk(out(asks(), back), ["hear", "outcome"], out(says("Never mind."), ENDED)) as running:
        running.send_lines(control("i", "initialize", hooks=hooks), user("one"))
        callback = running.read_line_containing(b'"hook_callback"')
        running.send_lines(answer(callback["request_id"]))
        running.read_until(b'"type":"result"')
        done = running.end_input()
    assert answers(box) == {"7": CANCELLED}
    assert b"can_use_tool" not in done.stdout


def test_agent_crash_during_a_prompt_reports_a_single_error_result(talk):
    with talk(out(asks()), ["leave", 3]) as running:
        done = run_turn(running)
    (result,) = results(done)
    assert b'"control_cancel_request"' in done.stdout
    assert result["is_error"]
    assert "3" in json.dumps(result["errors"])


# -- missing output --------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 3, 5])
def test_silent_agent_times_out_with_an_error_result(box, talk, count):
    lifeline = box.create_lifeline()
    box.write_settings(f"[vendors.opencode.timeouts]\nfirst_byte = {ALIVE}\nidle = {ALIVE}\n")
    silent = box.create_fake(["say", lifeline.path, "agent"], *PROMPTED[:count], ["hang"])
    with talk(program=silent) as running:
        done = run_turn(running)
    (result,) = results(done)
    assert result["is_error"]
    assert f"{ALIVE:g} s" in json.dumps(result["errors"])
    assert lifeline.wait_until_closed()


def test_agent_that_ignores_an_interrupt_is_terminated(box, talk):
    lifeline = box.create_lifeline()
    with talk(["say", lifeline.path, "agent"], out(says("Hel")), ["hang"]) as running:
        running.send_lines(user("one"))
        running.read_until(b'"type":"system"')
        running.send_lines(control("i1", subtype="interrupt"))
        running.read_until(b'"type":"result"')
        done = running.end_input()
    assert results(done)[0]["subtype"] == "error_during_execution"
    assert lifeline.wait_until_closed()


def test_login_error_lists_the_login_methods(box, talk):
    methods = [{"id": "key", "name": "Use a key"}, {"id": "web", "name": "Log in with a browser"}]
    greeted = {"id": 1, "result": {"protocolVersion": 1, "authMethods": methods}}
    refused = {"id": 2, "error": {"code": -32000, "message": "Authentication required"}}
    child_steps = (
        ["hear", '"initialize"'],
        out(greeted),
        ["hear", '"session/new"'],
        out(refused),
        ["hear", "never"],
    )
    with talk(program=box.create_fake(*child_steps)) as running:
        done = run_turn(running)
    result_text = json.dumps(results(done)[0])
    assert "Use a key, Log in with a browser" in result_text
    assert "opencode auth login" in result_text


# -- the system prompt -----------------------------------------------------------------------------

SYSTEM = ("--system-prompt", "You are a goat.", "--append-system-prompt", "Be brief.")


def prompts(box):
    """Return the texts of the prompts that the agent has received."""
    stdin_lines = [json.loads(line) for line in box.read_record()["stdin"].splitlines()]
    return [
        line["params"]["prompt"][0]["text"]
        for line in stdin_lines
        if line.get("method") == "session/prompt"
    ]


def say_each(talk, first, flags):
    """Send two messages, and answer the first with `first`."""
    second_turn = (
        ["hear", '"session/prompt"'],
        out(says("Again."), {"id": 4, "result": {"stopReason": "end_turn"}}),
    )
    with talk(out(says("Hello."), first), *second_turn, flags=(*ASKING, *flags)) as running:
        for message in ("one", "two"):
            running.send_lines(user(message))
            running.read_until(b'"type":"result"')
        running.end_input()


def test_system_prompts_precede_the_first_message(box, talk):
    """The protocol has no field for system prompts."""
    say_each(talk, ENDED, SYSTEM)
    assert prompts(box) == ["You are a goat.\n\nBe brief.\n\none", "two"]


def test_system_prompts_are_resent_after_a_failed_turn(box, talk):
    say_each(talk, {"id": 3, "error": {"code": -32603, "message": "no model"}}, SYSTEM[2:])
    assert prompts(box) == ["Be brief.\n\none", "Be brief.\n\ntwo"]


def test_message_is_sent_unchanged_without_system_prompts(box, talk):
    say_each(talk, ENDED, ())
    assert prompts(box) == ["one", "two"]


def test_session_that_the_agent_would_lose_is_sent_as_text(box):
    """gemini loses the records of a session that it loads."""
    session_id = "33333333-2222-4333-8444-555555555555"
    steps = (*PROMPTED, out(says("Hello."), ENDED), ["record", str(box.recording)], ["hear", "x"])
    flags = (("--session-id", session_id), ("--resume", session_id))
    for step_flags in flags:
        child = box.create_fake(*steps)
        with box.start_conversation(child, *ASKING, *step_flags, vendor="gemini") as running:
            run_turn(running)
    (prompt,) = prompts(box)
    assert "Message of the user: one" in prompt and prompt.endswith("\n\none")
    assert '"session/load"' not in box.read_record()["stdin"]


def test_session_that_the_agent_would_lose_is_sent_as_text_after_a_restart(box):
    """gemini receives its MCP servers only when it starts, and loses a session that it loads."""
    steps = (*PROMPTED, out(says("Hello."), ENDED), ["record", str(box.recording)], ["hear", "x"])
    servers = {"srv": {"type": "stdio", "command": "true"}}
    with box.start_conversation(box.create_fake(*steps), *ASKING, vendor="gemini") as running:
        for message in ("one", "two"):
            running.send_lines(user(message))
            running.read_until(b'"type":"result"')
            running.send_lines(control("c", subtype="mcp_set_servers", servers=servers))
            running.read_until(b'"type":"control_response"')
        done = running.end_input()
    (prompt,) = prompts(box)
    assert "Message of the user: one" in prompt and prompt.endswith("\n\ntwo")
    assert "Message of the user: two" not in prompt
    assert '"session/load"' not in box.read_record()["stdin"]
    assert "gemini can lose a session that a new process resumes" in done.stderr
