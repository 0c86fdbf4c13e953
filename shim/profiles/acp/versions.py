"""The differences between the two versions of the protocol. The agent chooses the version.

Version 2 is a draft (as in the official TypeScript SDK 2.4.0). It is only offered if a profile has
`draft = true`, but an agent may also choose it after an offer of version 1.
"""

from collections.abc import Mapping
from types import MappingProxyType

from shim.core.reading.typed import Any, NamedTuple
from shim.core.reading.values import as_dict

CLIENT_INFO = {"name": "claude-shim", "version": "1"}
# The states of version 2 in which the agent works on a prompt.
WORKING_STATES = ("running", "requires_action")


class PermissionRequestToolCall(NamedTuple):
    """The call of a permission request, in the form of an update.

    `is_complete` is true if the request itself contains everything that it allows, so that earlier
    updates of the call do not matter.
    """

    call: Mapping[str, Any]
    is_complete: bool = False


def build_initialize_params(version_number: int, capabilities: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters of `initialize`. An agent of version 2 reads the additional keys."""
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
    """Version 1 of the protocol."""

    number = 1
    # whether the response to a prompt ends the turn; otherwise it only accepts the prompt
    answer_ends_turn = True
    option_key = "id"  # the key of a configuration option's name
    value_fields: Mapping[str, str] = MappingProxyType({})  # sent with the value of an option

    def choose_method(self, agent_info: Mapping[str, Any], is_fork: bool) -> str:
        """Return the method that resumes or forks a session, by the result of `initialize`."""
        if is_fork:
            return "fork"
        sessions = as_dict(as_dict(agent_info.get("agentCapabilities")).get("sessionCapabilities"))
        if "resume" in sessions:
            return "resume"
        return "load"

    def convert_server(
        self, server: Mapping[str, Any], agent_info: Mapping[str, Any]
    ) -> Mapping[str, Any] | None:
        """Return an MCP server in the format of this version, or None if the agent cannot reach it.
        Every agent accepts a server with a command.
        """
        kind = server.get("type")
        capabilities = as_dict(as_dict(agent_info.get("agentCapabilities")).get("mcpCapabilities"))
        if kind is None or capabilities.get(kind) is True:
            return server
        return None

    def parse_subject(
        self, request: Mapping[str, Any], request_id: object
    ) -> PermissionRequestToolCall | None:
        """Return the call of a permission request, or None if the request cannot be evaluated."""
        call = request.get("toolCall")
        if isinstance(call, dict) and "toolCallId" in call:
            return PermissionRequestToolCall(call)
        return None


class AcpDraftVersion(AcpVersion):
    """Version 2 of the protocol."""

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
        """Return the call of a permission request: a tool call, a command, or the title of a
        request without a subject. Return None if the request cannot be evaluated.
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
    """Detects the end of a turn in version 2, by the states of the session.

    A prompt is in the conversation after its response, or after the agent has repeated it as a
    user's message. Before that, the agent may be idle or work on something else. The turn ends when
    the agent becomes idle after that. An agent that is idle without having worked may have
    finished, because its own commands need no work.
    """

    def __init__(self) -> None:
        self._first_prompt = 0  # the number of the turn's first prompt; 0 outside of turns
        self._is_placed = False  # the first prompt is in the conversation
        self._is_answered = False  # the first prompt has a response
        self._has_worked = False  # since the prompt was sent
        self._state: object = "idle"

    def record_sent_prompt(self, prompt_number: int) -> None:
        """Record a prompt. It may be the first prompt of a turn."""
        if not self._first_prompt:
            self._first_prompt = prompt_number
            self._is_placed = False
            self._has_worked = self._state in WORKING_STATES
            self._is_answered = False

    def record_prompt_and_detect_turn_end(self, prompt_number: int, *, is_answered: bool) -> bool:
        """Record that a prompt is in the conversation. Return whether the turn may have ended,
        because the agent has worked and is idle again.
        """
        self._is_placed = self._is_placed or 0 < self._first_prompt <= prompt_number
        self._is_answered = self._is_answered or (is_answered and self._is_placed)
        if not self._is_placed:
            return False
        if not self._first_prompt:
            return False
        if not self._has_worked:
            return False
        return self._state not in WORKING_STATES

    def detect_turn_end(self, state: object, has_open_prompt: bool) -> bool | None:
        """Return whether a state ends the turn, or None if it may end it. `has_open_prompt` is true
        if the response to another prompt is missing.
        """
        previous_state = self._state
        self._state = state
        self._has_worked = self._has_worked or state in WORKING_STATES
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
        """Reset the state after a turn that has ended without a state of the agent."""
        self._first_prompt = 0
