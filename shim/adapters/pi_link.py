"""One pi that is driven by its RPC: what it was asked, and what it asks (pi page, section 5).

Sans-IO: each method gives the bytes of whole lines. A session is known once two questions are
answered, and a message that comes earlier waits. Nothing is said to a pi in which our extension is
not at work: it would ask about no call.
"""

from collections.abc import Mapping

from shim.adapters.pi_dialogs import answer, form
from shim.core.claude.messages import TEXT_ONLY, Kinds, Message
from shim.core.reading.json_text import dump
from shim.core.reading.typed import Any, NamedTuple
from shim.profiles.rpc.form import Forms, questions

REQUESTS = 1000  # of ours that are open, and of pi's that wait for their answer
IMAGES: Kinds = frozenset(("image",))
# What an answer is about. What is on the first line keeps a message from being said.
STATE, COMMANDS, SETTING = "state", "commands", "setting"
PROMPT, STEER, ABORT, REST, CLEAR = "prompt", "steer", "abort", "rest", "clear"
# The same for a recording, in which our half is not known.
STEPS = {
    **{
        "get_state": STATE,
        "get_commands": COMMANDS,
        "set_model": SETTING,
        "set_thinking_level": SETTING,
    },
    **{"prompt": PROMPT, "abort": ABORT, "clear_queue": CLEAR},
}
# of thinking, behind a model's name
LEVELS = frozenset(("off", "minimal", "low", "medium", "high", "xhigh", "max"))
# commands that are texts for the model; others are programs of an extension
TEXTS = ("prompt", "skill")


class Opening(NamedTuple):
    """How it was started: its working directory, and what is known of the frontend.

    must_ask     nothing is said to it unless our extension is there
    chooses      it was not told a model
    asks_person  the frontend can be asked a question to the person
    """

    cwd: str = ""
    must_ask: bool = False
    chooses: bool = False
    asks_person: bool = False


class Heard(NamedTuple):
    """An answer: what it is about, and its data, or why pi did not do it."""

    step: str
    data: Mapping[str, Any]
    error: str = ""


class Link:
    """One pi. It is greeted again when another child takes its place."""

    def __init__(self) -> None:
        self._reset()

    def _reset(self) -> None:
        self.outbox: list[bytes] = []
        self.opening = Opening()
        self.session = ""
        self.model = ""
        self._own = ""  # the model that it chose by itself, as it is told one
        self.takes: Kinds = IMAGES
        self.texts: tuple[str, ...] = ()  # commands that a message may begin with
        self.greeted = False  # False where a recording is read
        self.gated = False  # our extension has said that it is there
        self.early = False  # another extension has opened a dialog while it started
        self.running = False
        self.stopping = False
        self.usable = True
        self.untaken = 0  # messages into the run that pi did not take, or gave back
        self._steered = False
        self._open: dict[str, str] = {}
        self._number = 0
        self._waiting: Message | None = None
        self._questions: set[str] = set()
        self.forms = Forms()  # dialogs of other extensions that the person is asked with

    def greet(self, opening: Opening) -> bytes:
        self._reset()  # another child knows nothing of what was before
        self.greeted, self.opening = True, opening
        return self._ask(STATE, "get_state") + self._ask(COMMANDS, "get_commands")

    # -- what it is told ---------------------------------------------------------------------------

    def prompt(self, message: Message) -> bytes:
        """The message of a turn; nothing yet while it has to wait."""
        self.stopping = self._steered = False
        self.untaken = 0
        if not self._ready:
            self._waiting = message
            return b""
        self._waiting = None
        # behind what an extension may have begun by itself
        return self._say(PROMPT, message, "followUp")

    def steer(self, message: Message) -> bytes | None:
        """A message into the run, which begins another one if the run has just ended; None while
        there is none.
        """
        if not (self.running and self._ready) or self.stopping:
            return None
        self._steered = True
        return self._say(STEER, message, "steer")

    def abort(self) -> bytes:
        """Stop the run; pi answers when it has stopped. A message that waits is never said.

        What was said into the run and is not read yet is asked back: 0.73 keeps it for the next
        message.
        """
        self._waiting, self.stopping = None, True
        return (self._ask(CLEAR, "clear_queue") if self._steered else b"") + self._ask(
            ABORT, "abort"
        )

    def set_model(self, name: str | None) -> bytes | None:
        """`provider/model`, and a level of thinking behind a colon; None is its own.

        Gives back None for a name that pi would have to look for.
        """
        provider, found, model = (self._own if name is None else name).partition("/")
        if not found:
            return None
        level = model.rpartition(":")[2]
        if level not in LEVELS:
            return self._ask(SETTING, "set_model", provider=provider, modelId=model)
        model = model.rpartition(":")[0]
        return self._ask(SETTING, "set_model", provider=provider, modelId=model) + self.set_level(
            level
        )

    def set_level(self, level: str) -> bytes:
        """How much its model is to think."""
        return self._ask(SETTING, "set_thinking_level", level=level)

    def rest(self) -> bytes:
        """Ask whether a run goes on: a message that an extension has answered begins none."""
        return self._ask(REST, "get_state")

    @property
    def starting(self) -> bool:
        """Whether it has not yet answered who it is: before that it runs what its extensions do at
        the start.
        """
        return STATE in self._open.values()

    @property
    def _ready(self) -> bool:
        """Whether pi can be given a message."""
        return bool(self.session) and not {STATE, COMMANDS, SETTING}.intersection(
            self._open.values()
        )

    @property
    def prompted(self) -> bool:
        """Whether it is not known yet if a message of ours begins a run."""
        return not {PROMPT, REST}.isdisjoint(self._open.values())

    @property
    def owes(self) -> bool:
        """Whether an answer is to come that belongs to the run: to an abort, or to a message into
        it.
        """
        return not {STEER, ABORT}.isdisjoint(self._open.values())

    # -- what it says ------------------------------------------------------------------------------

    def hear(self, response: Mapping[str, Any]) -> Heard | None:
        """An answer of pi's; None for one to nothing that was asked."""
        step = self._open.pop(str(response.get("id")), None)
        if step is None and not self.greeted:
            step = STEPS.get(str(response.get("command")))
        if step is None:
            return None
        data = response.get("data")
        heard = Heard(step, data if isinstance(data, dict) else {})
        if response.get("success") is not True:
            heard = heard._replace(
                error=str(response.get("error") or f"pi refused {response.get('command')}")
            )
        heard = self._understood(heard)
        if heard.error and step in (STATE, SETTING):
            self._waiting, self.usable = None, False
        if self._ready and self._waiting is not None:
            self.outbox.append(self.prompt(self._waiting))
        return heard

    def _understood(self, heard: Heard) -> Heard:
        """The same, once what it says of the session is known here."""
        data = heard.data
        if heard.step == STATE and not heard.error:
            if self.opening.must_ask and not self.gated:
                return heard._replace(error="ungated")
            model = data.get("model")
            self.session = str(data.get("sessionId") or "")
            if isinstance(model, dict):
                self.model = str(model.get("id") or "")
                self._own = f"{model.get('provider')}/{self.model}" if self.opening.chooses else ""
                self.takes = IMAGES if "image" in (model.get("input") or ()) else TEXT_ONLY
        elif heard.step == STEER:
            self.untaken += bool(heard.error)
        elif heard.step == CLEAR:
            given_back = data.get("steering")
            self.untaken += len(given_back) if isinstance(given_back, list) else 0
        elif heard.step == COMMANDS:
            found = data.get("commands")
            known = (
                [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []
            )
            programs = {one.get("name") for one in known if one.get("source") not in TEXTS}
            self.texts = tuple(
                str(one["name"]) for one in known if one.get("name") not in {None, *programs}
            )
        return heard

    # -- what it asks ------------------------------------------------------------------------------

    def question(self, identity: str) -> bool:
        """Keep a question until `decide`; False where too many are open."""
        if len(self._questions) >= REQUESTS:
            return False
        self._questions.add(identity)
        return True

    def dialog(
        self, identity: str, call: str, dialog: Mapping[str, Any]
    ) -> Mapping[str, Any] | None:
        """Keep a dialog of another extension until `fill`; the arguments of Claude's question.

        None where the person cannot be asked.
        """
        shown = form(dialog)
        asked = (
            questions(shown)
            if self.opening.asks_person and len(self.forms.open) < REQUESTS
            else None
        )
        if asked is not None:
            self.forms.open[identity] = identity, call, shown
        return asked

    def fill(
        self, identity: str, changed: Mapping[str, Any] | None, *, allow: bool, stop: bool
    ) -> bytes | None:
        """The answer to a dialog, by the arguments of Claude's question that came back; None for
        what is none.
        """
        if identity not in self.forms.open:
            return None
        filled = self.forms.close(identity, changed, allow=allow, stop=stop)
        return _line(type="extension_ui_response", id=identity, **answer(filled))

    def decide(self, identity: str, answer: Mapping[str, Any]) -> bytes:
        if identity not in self._questions:
            return b""
        self._questions.discard(identity)
        return _line(type="extension_ui_response", id=identity, value=dump(answer).decode())

    @staticmethod
    def refuse(identity: object) -> bytes:
        """The answer to a dialog that nobody sees: it was closed."""
        return _line(type="extension_ui_response", id=identity, cancelled=True)

    # -- lines -------------------------------------------------------------------------------------

    def _say(self, step: str, message: Message, behaviour: str) -> bytes:
        images = [
            {"type": "image", "data": part.data, "mimeType": part.media_type}
            for part in message.given(self.takes)
            if part.kind == "image"
        ]
        more = {"images": images} if images else {}
        return self._ask(
            step, "prompt", message=self._escaped(message.text), streamingBehavior=behaviour, **more
        )

    def _escaped(self, text: str) -> str:
        """A command that is a program of an extension would run, and ask nobody: it is a text like
        any other.
        """
        name = text[1:].split(maxsplit=1)[:1]
        return f"\\{text}" if text.startswith("/") and not set(name) & set(self.texts) else text

    def _ask(self, step: str, kind: str, **fields: object) -> bytes:
        self._number += 1
        identity = f"shim-{self._number}"
        if len(self._open) < REQUESTS:
            self._open[identity] = step
        return _line(id=identity, type=kind, **fields)


def _line(**message: object) -> bytes:
    return dump(message) + b"\n"
