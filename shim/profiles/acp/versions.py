"""The differences between ACP version 1 and version 2. The agent chooses the version.

Version 2 is a draft, as implemented in the official TypeScript SDK 2.4.0. The shim only offers it
if the profile has `draft = true`. An agent may choose it even if the shim offered version 1.
"""

from collections.abc import Mapping
from types import MappingProxyType

from shim.core.reading.typed import Any, NamedTuple
from shim.core.reading.values import as_dict

CLIENT_INFO = {"name": "claude-shim", "version": "1"}
# The version 2 session states in which the agent works on a prompt.
WORKING_STATES = ("running", "requires_action")


class PermissionRequestToolCall(NamedTuple):
    """The tool call in a permission request, in the form of an update.

    `is_complete` is true if the request itself describes everything that it would allow. Earlier
    updates for the call then do not matter.
    """

    call: Mapping[str, Any]
    is_complete: bool = False


def build_initialize_params(version_number: int, capabilities: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters of `initialize`. The additional keys are for agents that support
    version 2.
    """
    params = {
        "protocolVersion": version_number,
        "clientCapabilities": capabilities,
        "clientInfo": CLIENT_INFO,
    }
    if version_number == VERSION_2.number:
        params |= {
            "capabilities": {
                key: capabilities[key] for key in ("elicitation",) if key in capabilities
            },
            "info": CLIENT_INFO,
        }
    return params


class AcpVersion:
    """Version 1 of the Agent Client Protocol."""

    number = 1
    # Whether the response to a prompt ends the turn. If not, the response only accepts the prompt.
    answer_ends_turn = True
    option_key = "id"  # the key that names a configuration option
    # Extra fields that are sent with an option's value.
    value_fields: Mapping[str, str] = MappingProxyType({})

    def choose_method(self, agent_info: Mapping[str, Any], is_fork: bool) -> str:
        """Return the method that resumes or forks a session, depending on the `initialize` result."""
        if is_fork:
            return "fork"
        sessions = as_dict(as_dict(agent_info.get("agentCapabilities")).get("sessionCapabilities"))
        if "resume" in sessions:
            return "resume"
        return "load"

    def convert_server(
        self, server: Mapping[str, Any], agent_info: Mapping[str, Any]
    ) -> Mapping[str, Any] | None:
        """Return an MCP server in this version's format, or None if the agent cannot reach the
        server. Every agent accepts a server that is started by a command.
        """
        kind = server.get("type")
        capabilities = as_dict(as_dict(agent_info.get("agentCapabilities")).get("mcpCapabilities"))
        if kind is None or capabilities.get(kind) is True:
            return server
        return None

    def parse_subject(
        self, request: Mapping[str, Any], request_id: object
    ) -> PermissionRequestToolCall | None:
        """Return the tool call in a permission request, or None if the request cannot be evaluated."""
        call = request.get("toolCall")
        if isinstance(call, dict) and "toolCallId" in call:
            return PermissionRequestToolCall(call)
        return None


class AcpDraftVersion(AcpVersion):
    """Version 2 of the Agent Client Protocol, which is a draft."""

    number = 2
    answer_ends_turn = False
    option_key = "configId"
    value_fields = MappingProxyType({"type": "id"})

    def choose_method(self, agent_info: Mapping[str, Any], is_fork: bool) -> str:
        if is_fork:
            return "fork"
        return "resume"

    def convert_server(
        self, server: Mapping[str, Any], agent_info: Mapping[str, Any]
    ) -> Mapping[str, Any] | None:
        if server.get("type") == "sse":
            return None
        return {"type": "stdio", **server}

    def parse_subject(
        self, request: Mapping[str, Any], request_id: object
    ) -> PermissionRequestToolCall | None:
        """Return the tool call in a permission request, or None if the request cannot be evaluated.

        The subject of the request is a tool call or a command. For a request without a subject, its
        title is used.
        """
        subject = request.get("subject")
        title = request.get("title")
        if subject is None and isinstance(title, str):
            raw_input = {"description": request.get("description")}
            return PermissionRequestToolCall(
                {"toolCallId": f"question_{request_id}", "title": title, "rawInput": raw_input},
                is_complete=True,
            )
        subject = as_dict(subject)
        if subject.get("type") == "tool_call":
            return super().parse_subject(subject, request_id)
        command = subject.get("command")
        folder = subject.get("cwd")
        if subject.get("type") != "command" or not isinstance(command, str):
            return None
        call = {
            "toolCallId": subject.get("toolCallId") or f"question_{request_id}",
            "title": command,
            "kind": "execute",
        }
        return PermissionRequestToolCall(
            {**call, "rawInput": {"command": command, "directory": folder}}, is_complete=True
        )


VERSION_1 = AcpVersion()
VERSION_2 = AcpDraftVersion()
VERSIONS = {version.number: version for version in (VERSION_1, VERSION_2)}


class AcpTurnEndDetector:
    """Detects the end of a turn in version 2 from the session states.

    A prompt counts as part of the conversation after the agent has responded to it, or has echoed
    it as a user message. Before that, the agent may be idle or work on something else. After that,
    the turn ends when the agent becomes idle. If the agent is idle without having worked, the turn
    may have ended, because the agent's own commands need no work.
    """

    def __init__(self) -> None:
        self._first_prompt = 0  # the number of the turn's first prompt; 0 outside of turns
        self._is_placed = False  # whether the first prompt is in the conversation
        self._is_answered = False  # whether the first prompt has a response
        self._has_worked = False  # whether the agent has worked since the prompt was sent
        self._state: object = "idle"

    def record_sent_prompt(self, prompt_number: int) -> None:
        """Record that a prompt was sent. It may be the first prompt of a turn."""
        if not self._first_prompt:
            self._first_prompt = prompt_number
            self._is_placed = False
            self._has_worked = self._state in WORKING_STATES
            self._is_answered = False

    def record_prompt_and_detect_turn_end(self, prompt_number: int, *, is_answered: bool) -> bool:
        """Record that a prompt is in the conversation. Return whether the turn may have ended,
        because the agent has worked and is idle again.
        """
        if 0 < self._first_prompt <= prompt_number:
            self._is_placed = True
        if is_answered and self._is_placed:
            self._is_answered = True
        if not (self._is_placed and self._first_prompt and self._has_worked):
            return False
        return self._state not in WORKING_STATES

    def detect_turn_end(self, state: object, has_open_prompt: bool) -> bool | None:
        """Return whether a session state ends the turn, or None if it may end the turn.
        `has_open_prompt` is true if a different prompt still waits for its response.
        """
        previous_state = self._state
        self._state = state
        self._has_worked |= state in WORKING_STATES
        if (
            state != "idle"
            or not (self._first_prompt and self._is_placed)
            or (has_open_prompt and self._is_answered)
        ):
            return False
        if previous_state not in WORKING_STATES:
            return None
        self._first_prompt = 0
        return True

    def reset(self) -> None:
        """Reset the detector after a turn that ended without a session state from the agent."""
        self._first_prompt = 0
