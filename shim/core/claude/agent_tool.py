"""The MCP server of the shim whose only tool starts subagents. The vendor's model sees this tool,
and frontends see its calls as calls of Claude's tool Task.
"""

from collections.abc import Iterable, Mapping

from shim.core.claude.agent_definitions import AgentDefinition
from shim.core.claude.sdk_servers import RpcMessage
from shim.core.policy.policy import AGENT_SERVER, SUBAGENT_TOOL
from shim.core.reading.json_text import dump_json
from shim.core.reading.typed import Any, NamedTuple
from shim.core.reading.values import as_dict, get_text

SERVER_INFO = {"name": AGENT_SERVER, "version": "1"}
DEFAULT_PROTOCOL_VERSION = "2025-06-18"
CANCEL_METHOD = "notifications/cancelled"
UNKNOWN_METHOD_CODE = -32601
# The limits for the list of agents in the tool's description, which is part of each request to the
# model. An agent that does not fit into the list is still an allowed value of `subagent_type`.
MAX_LISTED_DESCRIPTION_CHARS = 1000
MAX_LIST_CHARS = 50_000


class AgentToolCall(NamedTuple):
    """A call of the tool that starts a subagent."""

    request_id: object  # the MCP client's id
    agent: AgentDefinition
    prompt: str
    tool_input: Mapping[str, Any]
    progress_token: object = None  # None if the client wants no progress


def build_tool_description(agents: Iterable[AgentDefinition]) -> dict[str, Any]:
    """Return the tool's entry in the server's tool list."""
    agents = tuple(agents)
    lines = [
        f"- {agent.name}: {agent.description[:MAX_LISTED_DESCRIPTION_CHARS]}" for agent in agents
    ]
    text = (
        "Start an agent that works on a task on its own. The agent does not see this conversation, "
        "so the prompt must describe the task completely. The result is the agent's last message. "
        "The agents are:\n"
    )
    properties = {
        "description": {"type": "string", "description": "The task in three to five words"},
        "prompt": {"type": "string", "description": "The task for the agent"},
        "subagent_type": {
            "type": "string",
            "enum": [agent.name for agent in agents],
            "description": "The agent's name",
        },
    }
    return {
        "name": SUBAGENT_TOOL,
        "description": text + "\n".join(lines)[:MAX_LIST_CHARS],
        "inputSchema": {
            "type": "object",
            "properties": properties,
            "required": ["description", "prompt", "subagent_type"],
        },
    }


def answer_mcp_request(message: RpcMessage, agents: Iterable[AgentDefinition]) -> bytes:
    """Return the line that answers a client's request, except for a tool call. Return b"" for a
    notification.
    """
    request_id = message.get("id")
    method = message.get("method")
    if request_id is None or not isinstance(method, str):
        return b""
    if method == "initialize":
        params = as_dict(message.get("params"))
        return encode_result(
            request_id,
            {
                "protocolVersion": get_text(params, "protocolVersion", DEFAULT_PROTOCOL_VERSION),
                "capabilities": {"tools": {}},
                "serverInfo": SERVER_INFO,
            },
        )
    if method == "tools/list":
        return encode_result(request_id, {"tools": [build_tool_description(agents)]})
    if method == "ping":
        return encode_result(request_id, {})
    error = {"code": UNKNOWN_METHOD_CODE, "message": f"unknown method {method[:60]}"}
    return _encode_line({"id": request_id, "error": error})


def parse_agent_call(message: RpcMessage, agents: Mapping[str, AgentDefinition]) -> AgentToolCall:
    """Parse a `tools/call` request. Raise ValueError with a sentence for the model if the call does
    not name a known agent and a prompt.
    """
    params = as_dict(message.get("params"))
    tool_input = as_dict(params.get("arguments"))
    name = get_text(tool_input, "subagent_type")
    agent = agents.get(name)
    if agent is None:
        raise ValueError(
            f"Agent type '{name[:100]}' not found. Available agents: {', '.join(agents)}"
        )
    prompt = get_text(tool_input, "prompt")
    if not prompt:
        raise ValueError("The call has no prompt for the agent.")
    token = as_dict(params.get("_meta")).get("progressToken")
    return AgentToolCall(message.get("id"), agent, prompt, tool_input, token)


def encode_call_result(request_id: object, text: str, *, is_error: bool) -> bytes:
    """Return the line that answers a call with a text."""
    result = {"content": [{"type": "text", "text": text}], "isError": is_error}
    return encode_result(request_id, result)


def encode_result(request_id: object, result: RpcMessage) -> bytes:
    return _encode_line({"id": request_id, "result": result})


def encode_progress(token: object, step: int) -> bytes:
    """Return the line that reports progress, so that the client waits longer for the result."""
    params = {"progressToken": token, "progress": step}
    return _encode_line({"method": "notifications/progress", "params": params})


def _encode_line(fields: RpcMessage) -> bytes:
    return dump_json({"jsonrpc": "2.0", **fields}) + b"\n"
