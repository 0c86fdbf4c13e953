"""The two versions of the protocol, as tables of what differs between them; the agent says which
one it speaks.

Version 2 is a draft (as in the official TypeScript SDK 2.4.0): it is offered only where a profile
says `draft = true`. An agent that answers so to an offer of version 1 is believed too.
"""

from collections.abc import Callable, Mapping

from shim.core.reading.typed import Any, NamedTuple
from shim.profiles.rpc.peer import table

CLIENT = {"name": "claude-shim", "version": "1"}
STATES = ("running", "requires_action")  # of version 2, in which the work of a prompt goes on


class Subject(NamedTuple):
    """The call that a question is about, as an update says one.

    `whole`: the question says all that it lets run, whatever was said of the call before.
    """

    call: Mapping[str, Any]
    whole: bool = False


class Version(NamedTuple):
    """One version of the protocol.

    number   as it is said in `initialize`
    answers  the answer to a prompt is the end of its turn; otherwise it says that the prompt was
    taken
    option   the key of an option's own name
    value    what stands beside a value of an option
    way      how a session goes on (resume, load or fork), by the answer to `initialize` and whether
             it is to be forked
    server   a server of MCP in the words of this version, by what the agent can do; None for one
             that it cannot reach
    subject  what a question is about, by its parameters and its id; None where it says nothing that
    can be judged
    """

    number: int
    answers: bool
    option: str
    value: Mapping[str, str]
    way: Callable[[Mapping[str, Any], bool], str]
    server: Callable[[Mapping[str, Any], Mapping[str, Any]], Mapping[str, Any] | None]
    subject: Callable[[Mapping[str, Any], object], Subject | None]


def greeting(number: int, abilities: Mapping[str, Any]) -> dict[str, Any]:
    """What is said in `initialize`: an agent of version 1 reads the first keys, one of version 2
    the others too.
    """
    said = {"protocolVersion": number, "clientCapabilities": abilities, "clientInfo": CLIENT}
    if number == SECOND.number:
        said |= {
            "capabilities": {key: abilities[key] for key in ("elicitation",) if key in abilities},
            "info": CLIENT,
        }
    return said


def _first_way(agent: Mapping[str, Any], fork: bool) -> str:
    sessions = table(table(agent.get("agentCapabilities")).get("sessionCapabilities"))
    return "fork" if fork else "resume" if "resume" in sessions else "load"


def _second_way(agent: Mapping[str, Any], fork: bool) -> str:
    return "fork" if fork else "resume"


def _first_server(server: Mapping[str, Any], agent: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """A command is for every agent; an address only for one that says so."""
    kind = server.get("type")
    can = table(table(agent.get("agentCapabilities")).get("mcpCapabilities"))
    return server if kind is None or can.get(kind) is True else None


def _second_server(server: Mapping[str, Any], agent: Mapping[str, Any]) -> Mapping[str, Any] | None:
    return None if server.get("type") == "sse" else {"type": "stdio", **server}


def _first_subject(question: Mapping[str, Any], identity: object) -> Subject | None:
    call = question.get("toolCall")
    return Subject(call) if isinstance(call, dict) and "toolCallId" in call else None


def _second_subject(question: Mapping[str, Any], identity: object) -> Subject | None:
    """A call, a command, or what only the question's title says; another kind of subject cannot be
    judged.
    """
    subject, title = question.get("subject"), question.get("title")
    if subject is None and isinstance(title, str):
        given = {"description": question.get("description")}
        return Subject(
            {"toolCallId": f"question_{identity}", "title": title, "rawInput": given}, whole=True
        )
    subject = table(subject)
    if subject.get("type") == "tool_call":
        return _first_subject(subject, identity)
    command, folder = subject.get("command"), subject.get("cwd")
    if subject.get("type") != "command" or not isinstance(command, str):
        return None
    call = {
        "toolCallId": subject.get("toolCallId") or f"question_{identity}",
        "title": command,
        "kind": "execute",
    }
    return Subject({**call, "rawInput": {"command": command, "directory": folder}}, whole=True)


FIRST = Version(1, True, "id", {}, _first_way, _first_server, _first_subject)
SECOND = Version(2, False, "configId", {"type": "id"}, _second_way, _second_server, _second_subject)
VERSIONS = {version.number: version for version in (FIRST, SECOND)}


class Work:
    """The work that the prompts of one turn began, as version 2 tells of it: a state of the
    session, and its change.

    A prompt has its place in the conversation once it was answered, or said again as a message of
    the user's; before that the agent may work on its own, or be idle. The work is over when the
    agent turns idle behind that. An agent that is idle all the same, and did not work, may be done:
    a command of its own needs no work.
    """

    def __init__(self) -> None:
        self._first = 0  # the number of the turn's first prompt; 0 outside of turns
        self._placed = False
        self._answered = False  # the first of its prompts
        self._worked = False  # since the prompt was said
        self._state: object = "idle"

    def begin(self, number: int) -> None:
        """A prompt was said: the first of a turn, or one more while the turn runs."""
        if not self._first:
            self._first, self._placed, self._worked = number, False, self._state in STATES
            self._answered = False

    def placed(self, number: int, *, answered: bool) -> bool:
        """A prompt has its place; whether the turn may be over, because the agent has worked and is
        idle again.
        """
        self._placed = self._placed or 0 < self._first <= number
        self._answered = self._answered or (answered and self._placed)
        return self._placed and bool(self._first) and self._worked and self._state not in STATES

    def reach(self, state: object, waits: bool) -> bool | None:
        """Whether a state ends the turn; None where it may. `waits`: one more prompt has no answer
        yet.
        """
        before, self._state = self._state, state
        self._worked = self._worked or state in STATES
        if state != "idle" or not (self._first and self._placed) or (waits and self._answered):
            return False
        if before not in STATES:
            return None
        self._first = 0
        return True

    def end(self) -> None:
        """The turn has ended without the agent's word."""
        self._first = 0
