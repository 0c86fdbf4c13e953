"""A scripted model that follows instructions in plain words, for clients whose prompts have no tags.

The last message with an instruction selects the model's steps: calls of tools, or a text. Everything
else gets a fixed reply.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from model_scripts import (
    ERROR_MESSAGES,
    REPLY,
    REPLY_AFTER_TOOL,
    REPLY_BEFORE_TOOL,
    REPLY_TO_HIDDEN_REQUEST,
    Failure,
    Json,
    ModelRequest,
    ScriptedAnswer,
    ScriptedCall,
    ScriptedServer,
    build_tool_call,
    join_message_text,
)

# Instructions in a prompt, and the steps of the model that follow from them. A step is a kind of tool
# and its argument. In the argument, `*` is the pattern's group.
INSTRUCTIONS: Sequence[tuple[str, Sequence[tuple[str, str]]]] = (
    (
        r"First use the greet tool",
        (("mcp", 'test__greet {"name": "A"}'), ("mcp", 'test__echo {"text": "b"}')),
    ),
    (
        r"Call mcp__(\w+)__echo with .* and mcp__\w+__greet",
        (("mcp", '*__echo {"text": "b"}'), ("mcp", '*__greet {"name": "A"}')),
    ),
    (r"Call the mcp__(\w+) tool", (("mcp", '* {"text": "a"}'),)),
    (r"Run(?: (?:the|this)(?: bash)? command)?: ([^\n]+)", (("shell", "*"),)),
    (r"Run a bash echo command that says ('[^']*')", (("shell", "echo *"),)),
    (r"Use the Write tool to create the file (\S+)", (("write", "*"),)),
    (r"Write the text '[^']*' to a file called (\S+)", (("write", "*"),)),
    (r"Create a (?:simple |file called )?(\S+\.txt)", (("write", "*"),)),
    (
        r"1\. List the files[^\n]*\n2\. Create .* at (\S+)",
        (("shell", "ls"), ("write", "*"), ("shell", "cat *")),
    ),
    (r"Calculate 15 \+ 27", (("mcp", 'calc__add {"a": 15, "b": 27}'),)),
    (r"Use the ([\w-]+) agent to", (("agent", "*"),)),
    (r"Use the Agent tool exactly once with subagent_type '(\w+)'", (("agent", "*"),)),
    (r"Reply with(?: exactly)?: (\w+)", (("say", "*"),)),
    (r"\bThink\b", (("think", REPLY),)),
    (r"Count how many Python files", (("json", '{"file_count": 3, "has_tests": true}'),)),
    (
        r"Analyze this text",
        (
            (
                "json",
                '{"analysis": {"word_count": 2, "character_count": 11},'
                ' "words": ["Hello", "world"]}',
            ),
        ),
    ),
    (r"Search for test files", (("json", '{"has_tests": true, "test_framework": "pytest"}'),)),
    (r"Count how many files", (("json", '{"file_count": 3, "has_readme": true}'),)),
)

# Vendors' tools for subagents: the name, and the names of the parameters for the agent's type and
# its prompt.
SHIM_AGENT_TOOL = "claudeagents__Task"  # the shim's tool for the agents that a frontend defines
AGENT_TOOLS: Sequence[tuple[str, str, str]] = (
    ("Agent", "subagent_type", "prompt"),
    ("Task", "subagent_type", "prompt"),
    ("agent", "subagent_type", "prompt"),
    ("task.subagent_type", "subagent_type", "prompt"),
    ("task.agent_type", "agent_type", "prompt"),
    ("invoke_agent", "agent_name", "prompt"),
    ("spawn_agent", "agent_type", "message"),
)
THOUGHT = "2 and 2: that is 4, which is not in doubt."
STRUCTURED_OUTPUT = "StructuredOutput"  # the real claude's tool for answers with a schema


class InstructedServer:
    """Selects the model's answer by the instructions in the last prompt, for any API."""

    def answer_request(
        self: Any, body: Json, offered: Sequence[str]
    ) -> tuple[int, ModelRequest, ScriptedAnswer | Failure]:
        """Store the request. Return its number from 1, the request, and its answer."""
        request = ModelRequest(body, offered, "suite", "", None)
        with self._lock:
            self.requests.append(request)
            number = len(self.requests)
        if "nonexistent" in request.model:
            return number, request, Failure(404, ERROR_MESSAGES[404])
        if not offered:
            return number, request, ScriptedAnswer(REPLY_TO_HIDDEN_REQUEST)
        return number, request, self._follow_instructions(request, number)

    def _follow_instructions(self: Any, request: ModelRequest, number: int) -> ScriptedAnswer:
        steps, done_steps = self._find_steps(request)
        if done_steps >= len(steps):
            return ScriptedAnswer(REPLY_AFTER_TOOL if steps else REPLY)
        kind, argument = steps[done_steps]
        if kind in ("say", "think"):
            return ScriptedAnswer(argument, THOUGHT if kind == "think" else "")
        if kind == "json" and STRUCTURED_OUTPUT not in request.offered:
            return ScriptedAnswer(argument)
        call = _build_call(kind, argument, request, f"call_{number}")
        return ScriptedAnswer(REPLY_BEFORE_TOOL, calls=(call,))

    def _find_steps(self: Any, request: ModelRequest) -> tuple[Sequence[tuple[str, str]], int]:
        """Return the steps of the last message with instructions, and the number of tool results
        after this message.
        """
        result_count = 0
        for message in reversed(request.messages):
            if self.find_tool_result(message) is not None:
                result_count += 1
            if message.get("role") == "user":
                text = join_message_text(message)
                for pattern, steps in INSTRUCTIONS:
                    if match := re.search(pattern, text):
                        group = match[match.lastindex or 0]
                        filled = [(kind, argument.replace("*", group)) for kind, argument in steps]
                        return filled, result_count
        return (), 0


def _build_call(kind: str, argument: str, request: ModelRequest, call_id: str) -> ScriptedCall:
    if kind == "json":
        return ScriptedCall(call_id, STRUCTURED_OUTPUT, json.loads(argument))
    if kind == "mcp":
        tool, _, input_json = argument.partition(" ")
        return ScriptedCall(call_id, find_mcp_tool(tool, request), json.loads(input_json))
    if kind == "agent":
        return build_agent_call(argument, request, call_id)
    return build_tool_call(kind, argument, request.offered, call_id)


def build_agent_call(agent: str, request: ModelRequest, call_id: str) -> ScriptedCall:
    """Build a call that starts a subagent, with the shim's tool or the vendor's own."""
    tool_input: Json
    shim_tool = find_mcp_tool(SHIM_AGENT_TOOL, request)
    if shim_tool != f"mcp__{SHIM_AGENT_TOOL}" or shim_tool in request.offered:
        tool_input = {
            "subagent_type": agent,
            "prompt": "say hi",
            "description": "say hi",
        }
        return ScriptedCall(call_id, shim_tool, tool_input)
    for name, type_key, prompt_key in AGENT_TOOLS:
        if name in request.offered:
            tool_input = {
                type_key: agent,
                prompt_key: "say hi",
                "description": "say hi",
            }
            if name == "Agent":
                tool_input["run_in_background"] = False
            return ScriptedCall(call_id, name.partition(".")[0], tool_input)
    return ScriptedCall(call_id, "Agent", {"subagent_type": agent, "prompt": "say hi"})


def find_mcp_tool(tool: str, request: ModelRequest) -> str:
    """Return the vendor's name of an MCP tool. The argument is `SERVER__TOOL`. If the tool is not
    offered, return Claude's name: the real claude knows it all the same.
    """
    claude_name = f"mcp__{tool}"
    tool = tool.rpartition("__")[2]
    for name in request.offered:
        if name.endswith(tool) and name != tool:
            return name
    namespaces = [
        str(entry.get("name"))
        for entry in request.body.get("tools") or []
        for inner in entry.get("tools") or []
        if inner.get("name") == tool
    ]
    return f"{namespaces[0]}.{tool}" if namespaces else claude_name


def create_instructed_server(server_class: type[ScriptedServer]) -> ScriptedServer:
    """Create a server with the API of this class that follows instructions."""
    instructed_class = type("InstructedServer", (InstructedServer, server_class), {})
    return instructed_class()
