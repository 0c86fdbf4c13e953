"""The two versions of the protocol, as tables of what differs between them; the agent says which
one it speaks.

Version 2 is a draft (as in the official TypeScript SDK 2.4.0): it is offered only where a profile
says `draft = true`. An agent that answers so to an offer of version 1 is believed too.
"""

from collections.abc import Callable, Mapping

from shim.core.reading.typed import Any, NamedTuple
from shim.core.reading.values import as_dict

CLIENT_INFO = {"name": "claude-shim", "version": "1"}
# of version 2, in which the work of a prompt goes on
WORKING_STATES = ("running", "requires_action")


class PermissionRequestToolCall(NamedTuple):
    """The call that a question is about, as an update says one.

    `is_complete`: the question says all that it lets run, whatever was said of the call before.
    """

    call: Mapping[str, Any]
    is_complete: bool = False


class AcpVersion(NamedTuple):
    """One version of the protocol.

    number            as it is said in `initialize`
    answer_ends_turn  the answer to a prompt is the end of its turn; otherwise it says that the
                      prompt was taken
    option_key        the key of an option's own name
    value_fields      what stands beside a value of an option
    choose_method     how a session goes on (resume, load or fork), by the answer to `initialize`
                      and whether it is to be forked
    convert_server    a server of MCP in the words of this version, by what the agent can do; None
                      for one that it cannot reach
    parse_subject     what a question is about, by its parameters and its id; None where it says
                      nothing that can be judged
    """

    number: int
    answer_ends_turn: bool
    option_key: str
    value_fields: Mapping[str, str]
    choose_method: Callable[[Mapping[str, Any], bool], str]
    convert_server: Callable[[Mapping[str, Any], Mapping[str, Any]], Mapping[str, Any] | None]
    parse_subject: Callable[[Mapping[str, Any], object], PermissionRequestToolCall | None]


def build_initialize_params(version_number: int, capabilities: Mapping[str, Any]) -> dict[str, Any]:
    """What is said in `initialize`: an agent of version 1 reads the first keys, one of version 2
    the others too.
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


def _choose_method_v1(agent_info: Mapping[str, Any], fork: bool) -> str:
    sessions = as_dict(as_dict(agent_info.get("agentCapabilities")).get("sessionCapabilities"))
    return "fork" if fork else "resume" if "resume" in sessions else "load"


def _choose_method_v2(agent_info: Mapping[str, Any], fork: bool) -> str:
    return "fork" if fork else "resume"


def _convert_server_v1(
    server: Mapping[str, Any], agent_info: Mapping[str, Any]
) -> Mapping[str, Any] | None:
    """A command is for every agent; an address only for one that says so."""
    kind = server.get("type")
    capabilities = as_dict(as_dict(agent_info.get("agentCapabilities")).get("mcpCapabilities"))
    return server if kind is None or capabilities.get(kind) is True else None


def _convert_server_v2(
    server: Mapping[str, Any], agent_info: Mapping[str, Any]
) -> Mapping[str, Any] | None:
    return None if server.get("type") == "sse" else {"type": "stdio", **server}


def _parse_subject_v1(
    request: Mapping[str, Any], request_id: object
) -> PermissionRequestToolCall | None:
    call = request.get("toolCall")
    return (
        PermissionRequestToolCall(call) if isinstance(call, dict) and "toolCallId" in call else None
    )


def _parse_subject_v2(
    request: Mapping[str, Any], request_id: object
) -> PermissionRequestToolCall | None:
    """A call, a command, or what only the question's title says; another kind of subject cannot be
    judged.
    """
    subject, title = request.get("subject"), request.get("title")
    if subject is None and isinstance(title, str):
        raw_input = {"description": request.get("description")}
        return PermissionRequestToolCall(
            {"toolCallId": f"question_{request_id}", "title": title, "rawInput": raw_input},
            is_complete=True,
        )
    subject = as_dict(subject)
    if subject.get("type") == "tool_call":
        return _parse_subject_v1(subject, request_id)
    command, folder = subject.get("command"), subject.get("cwd")
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


VERSION_1 = AcpVersion(1, True, "id", {}, _choose_method_v1, _convert_server_v1, _parse_subject_v1)
VERSION_2 = AcpVersion(
    2, False, "configId", {"type": "id"}, _choose_method_v2, _convert_server_v2, _parse_subject_v2
)
VERSIONS = {version.number: version for version in (VERSION_1, VERSION_2)}


class AcpTurnEndDetector:
    """The work that the prompts of one turn began, as version 2 tells of it: a state of the
    session, and its change.

    A prompt has its place in the conversation once it was answered, or said again as a message of
    the user's; before that the agent may work on its own, or be idle. The work is over when the
    agent turns idle behind that. An agent that is idle all the same, and did not work, may be done:
    a command of its own needs no work.
    """

    def __init__(self) -> None:
        self._first_prompt = 0  # the number of the turn's first prompt; 0 outside of turns
        self._is_placed = False
        self._is_answered = False  # the first of its prompts
        self._has_worked = False  # since the prompt was said
        self._state: object = "idle"

    def record_sent_prompt(self, prompt_number: int) -> None:
        """A prompt was said: the first of a turn, or one more while the turn runs."""
        if not self._first_prompt:
            self._first_prompt, self._is_placed, self._has_worked = (
                prompt_number,
                False,
                self._state in WORKING_STATES,
            )
            self._is_answered = False

    def record_prompt_and_detect_turn_end(self, prompt_number: int, *, is_answered: bool) -> bool:
        """A prompt has its place; whether the turn may be over, because the agent has worked and is
        idle again.
        """
        self._is_placed = self._is_placed or 0 < self._first_prompt <= prompt_number
        self._is_answered = self._is_answered or (is_answered and self._is_placed)
        return (
            self._is_placed
            and bool(self._first_prompt)
            and self._has_worked
            and self._state not in WORKING_STATES
        )

    def detect_turn_end(self, state: object, has_open_prompt: bool) -> bool | None:
        """Whether a state ends the turn; None where it may. `has_open_prompt`: one more prompt has
        no answer yet.
        """
        previous_state, self._state = self._state, state
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
        """The turn has ended without the agent's word."""
        self._first_prompt = 0
