"""One `codex app-server`: the thread that it holds, and what it was asked. Measured with 0.169.0.

Sans-IO: each method gives the bytes of whole lines. A thread is opened step by step, each by the
answer to the step before: `initialize`, `config/read`, `hooks/list`, then `thread/start` (or
resume, fork), then `turn/start`. A message that comes earlier waits. Its lines are JSON-RPC without
the word `jsonrpc`.
"""

from collections.abc import Callable, Iterable, Mapping

from shim.adapters import codex_settings
from shim.core.claude.messages import Kinds, Message
from shim.core.policy.rules import plain_name
from shim.core.reading.json_text import dump
from shim.core.reading.typed import Any, NamedTuple
from shim.profiles.rpc.form import Forms
from shim.profiles.rpc.peer import Heard, Peer, table

QUESTIONS = 1000  # of codex's that wait for their answer
SERVERS = 100  # of MCP, that are told to ask
GREETING, CONFIG, HOOKS, THREAD, TURN = "greeting", "config", "hooks", "thread", "turn"
STOPPING, STEERING, REASON, CLEANING = "stopping", "steering", "reason", "cleaning"
OPENING = (GREETING, HOOKS, THREAD)  # steps without which there is no thread
TAKES: Kinds = frozenset(("image", "url"))
# it asks before each command and each patch, in every sandbox
ASKS = {"approvalPolicy": "untrusted"}
# Experimental: what asks a person, `request_user_input`, and `excludeTurns`.
ABILITIES = {"experimentalApi": True, "requestAttestation": False}
# a hook that nobody has reviewed is left out without a word, also ours
BYPASS_TRUST = "bypass_hook_trust"


class Opening(NamedTuple):
    """How a thread begins. `resume` is the id of one that goes on, in another one if `fork`.

    `instructions` stand behind codex's own, `servers` of MCP beside those that codex is set up
    with: name → configuration as Claude has it. `hooks` gives our hooks, as codex's table, for the
    names of all servers.
    """

    cwd: str
    hooks: Callable[[list[str]], Mapping[str, Any]]
    resume: str | None = None
    fork: bool = False
    model: str | None = None
    effort: str | None = None
    instructions: str = ""
    servers: Mapping[str, Mapping[str, Any]] = {}


class Question(NamedTuple):
    """A request of codex's that waits. It is allowed once all its `parts` are, one for each of its
    `calls`.
    """

    identity: object
    kind: str
    parts: set[str]
    calls: list[str]


class Thread:
    """One thread. It is greeted again when another child takes its place."""

    takes = TAKES

    def __init__(self) -> None:
        self._reset()

    def _reset(self) -> None:
        self.outbox: list[bytes] = []
        self.session = self.turn = ""
        self.cwd = ""  # as codex names it
        self.greeted = False  # False where a recording is read, of which our half is not known
        self.usable = True  # whether a thread is there, or may come
        self.peer = Peer()
        self._opening = Opening("", lambda servers: {})
        self._waiting: Message | None = None
        self._servers: Mapping[str, Any] = {}  # of MCP, that codex is set up with
        self.steering = 0  # messages of this turn that codex has not taken
        self._stopped = False  # the turn that is about to begin is not wanted any more
        self._own_model: str | None = None
        # the model that the next turn is to have, where it is another one
        self._told: str | None = None
        self._questions: dict[str, Question] = {}  # by each part
        self.forms = Forms()  # what MCP servers want to know, and all answers of a person

    def greet(self, opening: Opening) -> bytes:
        self._reset()  # another child knows nothing of what was before
        self.greeted, self._opening = True, opening
        client = {"name": "claude-shim", "title": None, "version": "1"}
        return self.peer.ask(GREETING, "initialize", clientInfo=client, capabilities=ABILITIES)

    def prompt(self, message: Message) -> bytes:
        """The message of a turn; nothing yet while there is no thread."""
        self.turn, self._stopped, self.steering = "", False, 0
        if not self.session:
            self._waiting = message
            return b""
        more: dict[str, object] = {} if self._told is None else {"model": self._told}
        if self._opening.effort is not None:
            more["effort"] = self._opening.effort
        self._told = None
        return self.peer.ask(
            TURN, "turn/start", threadId=self.session, input=_input(message), **ASKS, **more
        )

    def steer(self, message: Message) -> bytes | None:
        """A message into the turn that runs; None where no turn is known to run."""
        if not self.turn:
            return None
        self.steering += 1
        said = {"threadId": self.session, "expectedTurnId": self.turn, "input": _input(message)}
        return self.peer.ask(STEERING, "turn/steer", **said)

    def took(self) -> None:
        """A message stands in the thread: what was accepted before that is lost when the turn is
        interrupted.
        """
        self.steering = max(0, self.steering - 1)

    def explain(self, words: str) -> bytes:
        """Words for the model about a call that was denied: codex tells it only that the call was."""
        if not self.turn:
            return b""
        said = {
            "threadId": self.session,
            "expectedTurnId": self.turn,
            "input": _input(Message(words)),
        }
        return self.peer.ask(REASON, "turn/steer", **said)

    def stop(self) -> bytes:
        """Stop the turn: codex ends it by itself. A message that waits is never said."""
        self._waiting, self._stopped = None, True
        if not self.turn:  # it is stopped when codex names it
            return b""
        return self.peer.ask(STOPPING, "turn/interrupt", threadId=self.session, turnId=self.turn)

    def set_model(self, name: str | None) -> bytes | None:
        """Another model from the next turn on, None is codex's own; gives back None where that one
        is not known.
        """
        self._opening = self._opening._replace(model=name)
        if not self.session:
            return b""
        self._told = self._own_model if name is None else name
        return None if self._told is None else b""

    def set_effort(self, level: str) -> bytes:
        """Another effort from the next turn on."""
        self._opening = self._opening._replace(effort=level)
        return b""

    @property
    def model(self) -> str | None:
        """The model that answers: the one that was asked for, or codex's own."""
        return self._opening.model or self._own_model

    def begun(self, turn: str) -> None:
        """codex named the turn that runs."""
        if turn == self.turn:
            return
        self.turn = turn
        if self._stopped:
            self.outbox.append(self.stop())

    def over(self) -> None:
        """The turn has ended."""
        self.turn = ""
        self.forms.open.clear()

    def end_commands(self, threads: Iterable[str] = ()) -> None:
        """End the background commands of an interrupted turn, and those of its subagents'
        `threads`.

        On an interrupt, codex itself ends only the call that it waits for. Background commands
        would run until the conversation ends.
        """
        if self.greeted:
            for thread in (self.session, *threads):
                self.outbox.append(
                    self.peer.ask(CLEANING, "thread/backgroundTerminals/clean", threadId=thread)
                )

    # -- its questions -----------------------------------------------------------------------------

    def question(self, identity: object, kind: str, calls: list[str]) -> list[str]:
        """The names under which the parts of a question wait for `decide`; none where it was
        refused at once.
        """
        if not calls or len(self._questions) + len(calls) > QUESTIONS:
            self.outbox.append(self.refusal(identity, kind))
            return []
        said = dump(identity).decode()
        names = [f"{said}.{place}" for place in range(len(calls))]
        question = Question(identity, kind, set(names), calls)
        self._questions |= dict.fromkeys(names, question)
        return names

    def decide(
        self,
        name: str,
        *,
        allow: bool,
        stop: bool,
        answers: Mapping[str, Any] | None = None,
        words: str = "",
    ) -> bytes:
        """The answer to a part of a question. What would allow more than this call is never chosen.

        `answers` are those of a person, `words` the same for whom the call is shown to.
        """
        question = self._questions.pop(name, None)
        if question is None:
            return b""
        if allow:
            question.parts.discard(name)
            if question.parts:
                return b""
            if question.kind == USER_INPUT:
                self.forms.answered.append((question.calls[0], words, False))
            return self.peer.answer(
                question.identity, result=_allowed(question.kind, answers or {})
            )
        for other in question.parts:
            self._questions.pop(other, None)
        if question.kind == USER_INPUT:
            self.forms.answered.append((question.calls[0], "", True))
        return self.refusal(question.identity, question.kind, stop=stop)

    def fill(
        self, name: str, changed: Mapping[str, Any] | None, *, allow: bool, stop: bool
    ) -> bytes:
        """The answer to a form of a server's."""
        identity = self.forms.open[name][0]
        said = self.forms.close(name, changed, allow=allow, stop=stop)
        return self.peer.answer(identity, result={"content": None, **said, "_meta": None})

    def refusal(self, identity: object, kind: str, *, stop: bool = False) -> bytes:
        """No, in the words of a question. `stop`: the turn is to end with it."""
        if kind == USER_INPUT:
            return self.peer.answer(identity, result={"answers": {}})
        if kind == ELICITATION:
            said = {"action": "cancel" if stop else "decline", "content": None, "_meta": None}
            return self.peer.answer(identity, result=said)
        return self.peer.answer(identity, result={"decision": "cancel" if stop else "decline"})

    # -- the steps ---------------------------------------------------------------------------------

    def hear(self, message: Mapping[str, Any]) -> Heard | None:
        """An answer of codex's; None for one to nothing that was asked."""
        heard = self.peer.heard(message) if self.greeted else _form_of(message)
        if heard is None:
            return None
        if heard.step == HOOKS and heard.error is None:
            heard = self._open(heard)
        if heard.error is not None:
            if heard.step in OPENING:
                self._waiting, self.usable = None, False
            if heard.step != CONFIG:
                return heard
        if heard.step == THREAD:
            self.session = str(table(heard.result.get("thread")).get("id") or "")
            self.cwd = str(heard.result.get("cwd") or "")
            model = heard.result.get("model")
            if self._opening.model is None and isinstance(model, str):
                self._own_model = model
        if self.greeted:
            self._go_on(heard)
        return heard

    def _go_on(self, heard: Heard) -> None:
        if heard.step == GREETING:
            cwd = self._opening.cwd
            self.outbox += [
                self.peer.tell("initialized"),
                self.peer.ask(CONFIG, "config/read", cwd=cwd),
            ]
        elif heard.step == CONFIG:
            self._servers = table(table(heard.result.get("config")).get("mcp_servers"))
            self.outbox.append(self.peer.ask(HOOKS, "hooks/list", cwds=[self._opening.cwd]))
        elif heard.step == THREAD and self._waiting is not None:
            message, self._waiting = self._waiting, None
            self.outbox.append(self.prompt(message))
        elif heard.step == TURN:
            self.begun(str(table(heard.result.get("turn")).get("id") or ""))

    def _open(self, heard: Heard) -> Heard:
        """Open the thread, where the hooks that codex lists can be kept from deciding."""
        opening, known = self._opening, self._servers
        own = {
            plain_name(name): codex_settings.server(said) for name, said in opening.servers.items()
        }
        named = [name for name in {**own, **known} if name == plain_name(name)][:SERVERS]
        hooks = opening.hooks(named)
        try:
            state = codex_settings.switched_off(heard.result, judged=bool(hooks))
        except ValueError as error:
            return heard._replace(error={"message": str(error)})
        config: dict[str, Any] = {BYPASS_TRUST: True, "hooks": {**hooks, "state": state}}
        config["mcp_servers"] = codex_settings.servers(own, known, named)
        self.outbox.append(self._begin(config))
        return heard

    def _begin(self, config: Mapping[str, Any]) -> bytes:
        """A new thread with these settings, or the one that goes on."""
        opening = self._opening
        said: dict[str, object] = {"cwd": opening.cwd, "config": config, **ASKS}
        if opening.model is not None:
            said["model"] = opening.model
        if opening.instructions:
            said["developerInstructions"] = opening.instructions
        if opening.resume is None:
            return self.peer.ask(THREAD, "thread/start", **said)
        way = "fork" if opening.fork else "resume"
        return self.peer.ask(
            THREAD, f"thread/{way}", threadId=opening.resume, excludeTurns=True, **said
        )


COMMAND = "item/commandExecution/requestApproval"
PATCH = "item/fileChange/requestApproval"
USER_INPUT = "item/tool/requestUserInput"
ELICITATION = "mcpServer/elicitation/request"
PERMISSIONS = "item/permissions/requestApproval"


def _allowed(kind: str, answers: Mapping[str, Any]) -> dict[str, Any]:
    """Yes to this call alone, in the words of a question."""
    if kind == USER_INPUT:
        return {"answers": answers}
    if kind == ELICITATION:
        return {"action": "accept", "content": {}, "_meta": None}
    return {"decision": "accept"}


def _input(message: Message) -> list[dict[str, Any]]:
    """A message as codex takes it: texts, and images by their address or as they are."""
    found: list[dict[str, Any]] = []
    for part in message.given(TAKES):
        if part.kind == "image":
            found.append(
                {"type": "image", "url": part.url or f"data:{part.media_type};base64,{part.data}"}
            )
        else:
            found.append({"type": "text", "text": part.text, "text_elements": []})
    return found


def _form_of(message: Mapping[str, Any]) -> Heard | None:
    """An answer in a recording, whose step shows in its form."""
    result = message.get("result")
    if isinstance(result, dict) and isinstance(result.get("thread"), dict):
        return Heard(THREAD, result)
    return Heard(CONFIG, {})
