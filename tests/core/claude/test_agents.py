"""Subagents that a frontend defines: definitions, the MCP tool that starts them, and their runs."""

import json

import pytest
from sweeps import loop_over_rows

from shim.core.claude.agent_definitions import (
    AgentDefinition,
    merge_agents,
    parse_agent_definitions,
    parse_agent_file,
)
from shim.core.claude.agent_run import AgentRequests, AgentRun, AgentSession, build_agent_args
from shim.core.claude.agent_tool import (
    MAX_LIST_CHARS,
    answer_mcp_request,
    build_tool_description,
    parse_agent_call,
)
from shim.core.claude.argv.flags import parse_argv
from shim.core.claude.hooks.commands import HookCommandResult
from shim.core.policy.policy import (
    AGENT_TOOL,
    ANSWER_SOURCE,
    FLAGS_SOURCE,
    Policy,
    Workspace,
    normalize_tool_name,
    parse_permission_rules,
)
from shim.core.policy.settings_hooks import SettingsHook

AGENT = AgentDefinition("a", "does a", "You are A.")


# -- definitions -----------------------------------------------------------------------------------


def test_definitions_of_a_frontend_are_parsed():
    agents = parse_agent_definitions(
        {
            "a": {
                "description": "D",
                "prompt": "P",
                "tools": ["Read", "Bash(ls:*)"],
                "disallowedTools": ["Edit"],
                "model": "haiku",
                "maxTurns": 3,
            },
            "b": {"description": "D2", "prompt": "P2", "tools": ["*"]},
        },
        "initialize",
    )
    assert agents["a"] == AgentDefinition(
        "a", "D", "P", ("Read", "Bash(ls:*)"), ("Edit",), "haiku", 3, "initialize"
    )
    assert agents["b"].tools is None
    assert agents["a"].to_json() == {"name": "a", "description": "D", "model": "haiku"}
    assert agents["b"].to_json() == {"name": "b", "description": "D2"}


@loop_over_rows(
    ("value", "problem"),
    [
        ([1], "Invalid input: expected record, received array"),
        ({"x": 1}, "x: Invalid input: expected object, received number"),
        (
            {"x": {"description": "d"}},
            "x.prompt: Invalid input: expected string, received undefined",
        ),
        (
            {"x": {"description": "d", "prompt": "p", "tools": "Read"}},
            "x.tools: Invalid input: expected array, received string",
        ),
        (
            {"x": {"description": "d", "prompt": "p", "model": 7}},
            "x.model: Invalid input: expected string, received number",
        ),
    ],
)
def test_one_invalid_definition_makes_all_invalid(value, problem):
    """The sentences are those of the real claude for `--agents`."""
    good = {"y": {"description": "d", "prompt": "p"}}
    with pytest.raises(ValueError, match=problem.replace("[", r"\[")):
        parse_agent_definitions(value | good if isinstance(value, dict) else value, "--agents")


@loop_over_rows(
    ("header", "expected"),
    [
        ("name: n\ndescription: has: a colon", ("n", "has: a colon", None, None)),
        ("name: 'a name'\ndescription: \"x \\n y\"", ("a name", "x \n y", None, None)),
        ("name: n # c\ndescription: d # c\nmodel: haiku", ("n", "d", None, "haiku")),
        ("name: n\ndescription: |\n  one\n  two", ("n", "one\ntwo\n", None, None)),
        ("name: n\ndescription: >\n  one\n  two", ("n", "one two\n", None, None)),
        ("name: n\ndescription: one\n  two", ("n", "one two", None, None)),
        ("name: n\ndescription: d\ntools: Read, Grep", ("n", "d", ("Read", "Grep"), None)),
        ("name: n\ndescription: d\ntools:\n  - Read", ("n", "d", ("Read",), None)),
        (
            "name: n\ndescription: d\ntools: [Read, 'Bash(ls:*)']",
            ("n", "d", ("Read", "Bash(ls:*)"), None),
        ),
        ("name: n\ndescription: d\ntools: '*'", ("n", "d", None, None)),
        ("name: n\r\ndescription: d\r", ("n", "d", None, None)),
        ("description: d", None),
        ("name: n", None),
        ("name: n\ndescription: ", None),
        ("name: n\ndescription: [a, b]", None),
    ],
)
def test_agent_file_is_read_like_the_real_claude_reads_it(header, expected):
    for prefix in ("", "\ufeff"):
        agent = parse_agent_file(f"{prefix}---\n{header}\n---\n\nYou are N.\n", ".claude/agents")
        if expected is None:
            assert agent is None
            continue
        assert agent.prompt == "You are N."
        assert (agent.name, agent.description, agent.tools, agent.model) == expected


def test_file_without_a_header_defines_no_agent():
    assert parse_agent_file("name: n\ndescription: d\n", "") is None


def test_agents_are_sorted_by_name_and_later_sources_win():
    older = {name: AgentDefinition(name, "old", "p") for name in ("Plan", "explore", "x")}
    newer = {"x": AgentDefinition("x", "new", "p"), "a": AGENT}
    merged = merge_agents(older, newer)
    assert list(merged) == ["a", "explore", "Plan", "x"]
    assert merged["x"].description == "new"


# -- the tool --------------------------------------------------------------------------------------


def answer(method, **params):
    request = {"jsonrpc": "2.0", "id": 5, "method": method, "params": params}
    return json.loads(answer_mcp_request(request, [AGENT]))


def test_server_offers_a_single_tool_that_names_the_agents():
    assert answer("initialize", protocolVersion="2025-11-25")["result"] == {
        "protocolVersion": "2025-11-25",
        "capabilities": {"tools": {}},
        "serverInfo": {"name": "claudeagents", "version": "1"},
    }
    (tool,) = answer("tools/list")["result"]["tools"]
    assert tool["name"] == "Task" and "- a: does a" in tool["description"]
    assert tool["inputSchema"]["properties"]["subagent_type"]["enum"] == ["a"]
    assert answer("ping")["result"] == {}
    assert answer("resources/list")["error"]["code"] == -32601
    assert answer_mcp_request({"method": "notifications/initialized"}, [AGENT]) == b""


def test_tool_description_is_limited():
    agents = [AgentDefinition(f"a{number}", "x" * 5000, "p") for number in range(200)]
    tool = build_tool_description(agents)
    assert len(tool["description"]) < MAX_LIST_CHARS + 1000
    assert tool["description"].count("x" * 1000) > 40
    assert len(tool["inputSchema"]["properties"]["subagent_type"]["enum"]) == 200


def test_frontends_see_the_tool_under_the_name_of_claude():
    assert normalize_tool_name(AGENT_TOOL) == "Task"
    (rule,) = parse_permission_rules(("Agent",))
    assert rule.matches_tool(AGENT_TOOL, is_restriction=True)


def call(**arguments):
    return {"id": 1, "method": "tools/call", "params": {"name": "Task", "arguments": arguments}}


def test_call_must_name_a_known_agent_and_a_prompt():
    parsed = parse_agent_call(call(subagent_type="a", prompt="go"), {"a": AGENT})
    assert (parsed.agent, parsed.prompt) == (AGENT, "go")
    with pytest.raises(ValueError, match=r"'b' not found\. Available agents: a"):
        parse_agent_call(call(subagent_type="b", prompt="go"), {"a": AGENT})
    with pytest.raises(ValueError, match="no prompt"):
        parse_agent_call(call(subagent_type="a"), {"a": AGENT})


# -- runs ------------------------------------------------------------------------------------------


def session(*argv, policy=None, **fields):
    defaults = {
        "invocation": parse_argv(["-p", "--verbose", *argv]),
        "vendor": "qwen",
        "mode": "acceptEdits",
        "model": "opus",
        "effort": None,
        "answers_prompts": True,
        "policy": policy,
        "hooks": {},
        "sdk_server_names": (),
        "mcp_server_names": (),
        "private_servers": {},
        "session_id": "S",
        "transcript_path": "/t.jsonl",
    }
    return AgentSession(**(defaults | fields))


def parse_run_args(agent, state):
    return parse_argv(build_agent_args(agent, state))


def test_run_has_the_prompt_of_the_agent_and_the_rules_of_the_session():
    state = session(
        *("--system-prompt", "not this", "--append-system-prompt", "nor this", "--max-turns", "9"),
        *("--disallowedTools=Bash", "--settings", "{}", "--agents", "{}", "--session-id"),
        *("0" * 8 + "-0000-4000-8000-" + "0" * 12, "--dangerously-skip-permissions", "the prompt"),
    )
    run = parse_run_args(AGENT, state)
    assert (run.system_prompt, run.append_system_prompt, run.max_turns) == (
        "You are A.",
        None,
        None,
    )
    assert (run.permission_mode, run.skip_permissions, run.model) == ("acceptEdits", False, "opus")
    assert (run.disallowed_tools, run.settings, run.shim_vendor) == (("Bash",), "{}", "qwen")
    assert (run.input_format, run.permission_prompt_tool) == ("stream-json", "stdio")
    assert (run.session_id, run.prompt, run.other_flags) == (None, None, ())
    assert run.no_session_persistence
    assert (
        parse_run_args(AGENT, state._replace(answers_prompts=False)).permission_prompt_tool is None
    )


def test_tools_of_an_agent_never_widen_those_of_the_session():
    agent = AGENT._replace(
        tools=("Read", "Bash(ls:*)", "mcp__calc__add"), disallowed_tools=("Edit",), model="haiku"
    )
    state = session("--tools=Read,Edit", mcp_server_names=("calc", "mail"))
    run = parse_run_args(agent, state)
    assert (run.tools, run.model) == (("Read",), "haiku")
    assert run.disallowed_tools == ("Edit", "mcp__mail")
    assert parse_run_args(agent, session()).tools == ("Read", "Bash")
    inherited = AGENT._replace(model="inherit")
    assert parse_run_args(inherited, session("--tools=Read")).tools == ("Read",)
    assert parse_run_args(inherited, session()).model == "opus"


def start_run(state=None):
    changes = []
    run = AgentRun("id-1", "a", "go", state or session(), lambda: changes.append(1))
    run.start()
    return run, AgentRequests(1000), changes


def take(run):
    return [json.loads(line) for line in run.take_lines().splitlines()]


def test_run_gets_the_hooks_and_rules_of_the_session_before_its_message():
    policy = Policy(
        workspace=Workspace("/work"),
        deny=(
            *parse_permission_rules(("Write",), source=FLAGS_SOURCE),
            *parse_permission_rules(("Edit",), source="settings.json"),
        ),
        allow=parse_permission_rules(("Bash(ls)",), source=ANSWER_SOURCE),
    )
    hooks = {"PreToolUse": [{"hookCallbackIds": ["h"]}], "Stop": [{"hookCallbackIds": ["s"]}]}
    state = session(policy=policy, hooks=hooks, sdk_server_names=("calc",))
    run, _, changes = start_run(state)
    initialize, rules, message = take(run)
    assert initialize["request"] == {
        "subtype": "initialize",
        "hooks": {"PreToolUse": [{"hookCallbackIds": ["h"]}]},
        "sdkMcpServers": ["calc"],
    }
    assert rules["request"]["settings"] == {"permissions": {"deny": ["Write"], "ask": []}}
    assert message["message"] == {"role": "user", "content": "go"}
    assert changes
    assert parse_run_args(AGENT, state).allowed_tools == ("Bash(ls)",)


def receive(run, requests, **line):
    return run.receive_line(json.dumps(line).encode(), requests)


def ask(run, requests, request_id="7", **request):
    receive(run, requests, type="control_request", request_id=request_id, request=request)
    return [json.loads(line) for line in requests.take_lines()]


def test_prompts_and_hooks_of_a_run_reach_the_frontend_and_return():
    run, requests, _ = start_run()
    run.take_lines()
    (prompt,) = ask(run, requests, subtype="can_use_tool", tool_name="Bash")
    assert prompt["request"]["agent_id"] == "id-1"
    hook_input = {
        "session_id": "inner",
        "transcript_path": "",
        "hook_event_name": "PreToolUse",
        "tool_name": "Bash",
    }
    (hook,) = ask(run, requests, "8", subtype="hook_callback", input=hook_input)
    assert hook["request"]["input"] == {
        "session_id": "S",
        "transcript_path": "/t.jsonl",
        "hook_event_name": "PreToolUse",
        "tool_name": "Bash",
        "agent_id": "id-1",
        "agent_type": "a",
    }
    assert prompt["request_id"] != hook["request_id"]
    body = {"subtype": "success", "request_id": prompt["request_id"], "response": {"x": 1}}
    assert requests.accept_frontend_response(prompt["request_id"], body)
    assert not requests.accept_frontend_response(prompt["request_id"], body)
    (returned,) = take(run)
    assert returned["response"] == {"subtype": "success", "request_id": "7", "response": {"x": 1}}
    receive(run, requests, type="control_cancel_request", request_id="8")
    (cancelled,) = requests.take_lines()
    assert json.loads(cancelled)["request_id"] == hook["request_id"]


def call_agent_hook(event, **hook_input):
    """Return the request of a run's hook as the frontend receives it, the run and its requests."""
    run, requests, _ = start_run(session(prompt_id="P"))
    run.take_lines()
    hook_input |= {"hook_event_name": event, "permission_mode": "plan", "prompt": "go"}
    (line,) = ask(run, requests, subtype="hook_callback", callback_id="h", input=hook_input)
    return line, run, requests


def answer_agent_hook(event, answer):
    """Return the answer that a run receives for a hook."""
    line, run, requests = call_agent_hook(event)
    body = {"subtype": "success", "request_id": line["request_id"], "response": answer}
    assert requests.accept_frontend_response(line["request_id"], body)
    return take(run)[0]["response"]["response"]


def test_hooks_for_subagents_are_called_by_the_events_of_the_run():
    hooks = {
        "SubagentStart": [{"matcher": "other", "hookCallbackIds": ["no"]}],
        "SubagentStop": [{"matcher": "a", "hookCallbackIds": ["s"]}],
        "Stop": [{"hookCallbackIds": ["no"]}],
    }
    run, _, _ = start_run(session(hooks=hooks))
    (initialize, _) = take(run)
    assert initialize["request"]["hooks"] == {"Stop": [{"hookCallbackIds": ["s"]}]}
    line, _, _ = call_agent_hook("UserPromptSubmit", cwd="/w")
    assert line["request"]["input"] == {
        "session_id": "S",
        "transcript_path": "/t.jsonl",
        "cwd": "/w",
        "prompt_id": "P",
        "agent_id": "id-1",
        "agent_type": "a",
        "hook_event_name": "SubagentStart",
    }
    line, _, _ = call_agent_hook("Stop", stop_hook_active=False)
    hook_input = line["request"]["input"]
    assert (hook_input["hook_event_name"], hook_input["stop_hook_active"]) == (
        "SubagentStop",
        False,
    )
    assert hook_input["agent_transcript_path"] == ""


def test_hook_for_the_start_of_a_subagent_can_only_add_context():
    output = {"hookEventName": "SubagentStart", "additionalContext": "C"}
    answer = {"decision": "block", "continue": False, "hookSpecificOutput": output}
    assert answer_agent_hook("UserPromptSubmit", answer) == {
        "hookSpecificOutput": {"hookEventName": "UserPromptSubmit", "additionalContext": "C"}
    }
    assert answer_agent_hook("UserPromptSubmit", {"decision": "block"}) == {
        "hookSpecificOutput": {}
    }


def test_hook_for_the_end_of_a_subagent_can_continue_the_run():
    output = {"hookEventName": "SubagentStop", "additionalContext": "C"}
    answer = {"decision": "block", "reason": "R", "hookSpecificOutput": output}
    assert answer_agent_hook("Stop", answer) == {
        **answer,
        "hookSpecificOutput": {"hookEventName": "Stop", "additionalContext": "C"},
    }


def run_agent_command(event, result, **hook_fields):
    """Let a run call a hook command of the settings. Return the call, and the run's answer."""
    session_event = {"Stop": "SubagentStop"}.get(event, "SubagentStart")
    hooks = (
        SettingsHook("other", "no", event=session_event),
        SettingsHook("a", "yes", event=session_event, **hook_fields),
    )
    run, requests, _ = start_run(session(event_hooks=hooks))
    (initialize, _) = take(run)
    ((group,),) = initialize["request"]["hooks"].values()
    (callback_id,) = group["hookCallbackIds"]
    hook_input = {"hook_event_name": event, "session_id": "inner"}
    request = {"subtype": "hook_callback", "callback_id": callback_id, "input": hook_input}
    assert ask(run, requests, "9", **request) == []  # the frontend is not asked
    (call,) = run.take_hook_calls()
    run.accept_hook_result(call, result)
    (line,) = take(run)
    assert line["response"]["request_id"] == "9"
    return call, line["response"]["response"]


def test_hook_commands_of_the_settings_are_called_for_their_agent():
    call, answer = run_agent_command("Stop", HookCommandResult(2, stderr="more"))
    assert call.hook.command == "yes"
    hook_input = json.loads(call.stdin)
    assert (hook_input["hook_event_name"], hook_input["session_id"]) == ("SubagentStop", "S")
    assert (hook_input["agent_id"], hook_input["agent_type"]) == ("id-1", "a")
    assert (answer["decision"], answer["reason"]) == ("block", "[yes]: more")


def test_hook_command_for_the_start_of_a_subagent_can_only_add_context():
    _, answer = run_agent_command("UserPromptSubmit", HookCommandResult(2, stderr="no"))
    assert answer == {"hookSpecificOutput": {}}
    output = {"hookEventName": "SubagentStart", "additionalContext": "C"}
    stdout = json.dumps({"hookSpecificOutput": output})
    _, answer = run_agent_command("UserPromptSubmit", HookCommandResult(0, stdout))
    assert answer["hookSpecificOutput"]["additionalContext"] == "C"


def test_request_that_is_too_large_for_the_frontend_gets_an_error():
    run, requests, _ = start_run()
    run.take_lines()
    assert ask(run, requests, subtype="can_use_tool", input={"x": "y" * 2000}) == []
    assert take(run)[0]["response"]["subtype"] == "error"


def test_run_that_ends_withdraws_its_prompts():
    run, requests, _ = start_run()
    requests.runs.append(run)
    (prompt,) = ask(run, requests, subtype="can_use_tool")
    requests.stop_runs("the turn is over")
    assert (run.has_ended, run.result_text, run.is_error) == (True, "the turn is over", True)
    requests.remove_run(run)
    (line,) = requests.take_lines()
    assert json.loads(line) == {
        "type": "control_cancel_request",
        "request_id": prompt["request_id"],
    }


def test_result_of_a_run_is_its_last_message():
    run, requests, _ = start_run()
    text = {"type": "text", "text": "hm"}
    use = {"type": "tool_use", "id": "c", "name": "Bash", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "c", "content": "x"}
    assert receive(run, requests, type="assistant", message={"content": [text, use]}) == [text, use]
    assert receive(run, requests, type="user", message={"content": [result]}) == [result]
    nested = {"message": {"content": [use]}, "parent_tool_use_id": "c"}
    assert receive(run, requests, type="assistant", **nested) == []
    usage = {"usage": {"input_tokens": 3, "output_tokens": 4}, "total_cost_usd": 0.5}
    receive(run, requests, type="result", is_error=False, result="done", **usage)
    assert (run.has_ended, run.result_text, run.is_error) == (True, "done", False)
    assert (run.usage["output_tokens"], run.cost_usd) == (4, 0.5)


def test_run_without_the_rules_of_the_session_does_not_continue():
    run, requests, _ = start_run()
    refusal = {"subtype": "error", "error": "no such rule"}
    receive(run, requests, type="control_response", response=refusal)
    assert run.has_ended and run.is_error and "no such rule" in run.result_text


def test_errors_of_a_run_are_its_result():
    run, requests, _ = start_run()
    receive(run, requests, type="result", is_error=True, errors=["one", "two"])
    assert (run.result_text, run.is_error) == ("one\ntwo", True)
