"""The facts of a session that its hub knows, and where it stands (background page, section 3)."""

from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from typing import Any, NamedTuple

from shim.core.claude.permissions import DESCRIBING, ELICITATION, QUESTION
from shim.core.policy.sources import rank
from shim.core.reading.account import printable
from shim.core.reading.ids import short_id
from shim.core.reading.lines import INBOUND_BYTES

DETAIL_CHARACTERS = 200
NAME_CHARACTERS = 80  # of a session that was given no name: the beginning of its first message
STARTING = "starting…"
SEND_TO_START = "send a prompt to start"
SEND_TO_GO_ON = "send a prompt to go on"
INTERRUPTED = "interrupted"
TIMED_OUT = "nobody answered in time ({question}); {next}"
STOPPED = "stopped"


class Session(NamedTuple):
    """What a client is told of a session, and what holds for it.

    session           its UUID; its short id is how that begins
    model, mode       what the session began with; both change as the conversation says so
    bypass            it began with bypassPermissions, so that this mode may be chosen
    answers           who may answer questions: "any" who may drive, or the "owner", who drives or
                      drove last
    question_seconds  a question that waits for longer is denied. The conversation has to wait a
    little longer than
                      that: of two clocks only one may settle a question
    frame_bytes       no frame of a client is longer
    """

    session: str
    vendor: str = ""
    name: str = ""
    cwd: str = ""
    model: str | None = None
    mode: str = "default"
    pid: int = 0
    version: str = ""
    bypass: bool = False
    answers: str = "any"
    question_seconds: float = float("inf")
    frame_bytes: int = INBOUND_BYTES

    def facts(self) -> dict[str, Any]:
        """The keys of a `welcome` frame."""
        return {
            "session": self.session,
            "id": short_id(self.session),
            "name": self.name,
            "vendor": self.vendor,
            "cwd": self.cwd,
            "model": self.model,
            "mode": self.mode,
            "bypass": self.bypass,
            "pid": self.pid,
            "version": self.version,
        }


class Ceiling(NamedTuple):
    """What somebody forbids beyond the session: all modes wider than `mode` ("": none), and calls
    by rules.
    """

    mode: str = ""
    deny: tuple[str, ...] = ()
    ask: tuple[str, ...] = ()

    def and_also(self, other: "Ceiling") -> "Ceiling":
        """What both forbid."""
        modes = [mode for mode in (self.mode, other.mode) if mode]
        return Ceiling(
            find_strictest_mode(modes) if modes else "",
            tuple(dict.fromkeys((*self.deny, *other.deny))),
            tuple(dict.fromkeys((*self.ask, *other.ask))),
        )


NOTHING = Ceiling()


def find_strictest_mode(modes: Iterable[str]) -> str:
    """The mode that lets least run."""
    return min(modes, key=rank)


class Ceilings:
    """What the clients of a session forbid, each for as long as it is here, and what is chosen
    below that.

    A client brings ceilings by several doors, and those of all doors and all clients hold at once.
    What one has brought that went holds until it is `released`: its turn, or its message in the
    queue, was accepted under it.

    `chosen` is the mode without anybody's ceiling. `told` is what the conversation was told last;
    None: nobody knows.
    """

    def __init__(self, mode: str) -> None:
        self.chosen = mode
        self._refused: dict[str, str] = {}  # a mode that was chosen and refused → the one before it
        self.told_mode: str | None = mode
        self.told_rules: tuple[tuple[str, ...], tuple[str, ...]] | None = ((), ())
        self._here: dict[tuple[int, str], Ceiling] = {}
        self._gone = NOTHING

    @property
    def mode(self) -> str:
        """The mode that is to hold."""
        return find_strictest_mode(mode for mode in (self.chosen, self._whole.mode) if mode)

    @property
    def rules(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Those that deny and those that ask."""
        whole = self._whole
        return whole.deny, whole.ask

    @property
    def _whole(self) -> Ceiling:
        return reduce(Ceiling.and_also, self._here.values(), self._gone)

    def of(self, client: int, door: str) -> Ceiling:
        return self._here.get((client, door), NOTHING)

    def allow(self, lifted: int | None, mode: str) -> bool:
        """Whether the ceilings of everybody but the client `lifted` let a mode be."""
        others = [
            brought.mode
            for (owner, _), brought in self._here.items()
            if owner != lifted and brought.mode
        ]
        return find_strictest_mode([mode, *others, *filter(None, [self._gone.mode])]) == mode

    def choose(self, mode: str) -> None:
        """Another mode is chosen."""
        self._refused.pop(mode, None)
        self.chosen = mode

    def choose_again(self, before: str, refused: str) -> None:
        """A choice was refused: where it still stands, the last one before it that was not refused
        stands again.
        """
        self._refused[refused] = before
        while self.chosen in self._refused:
            self.chosen = self._refused.pop(self.chosen)

    def bring(self, client: int, door: str, ceiling: Ceiling) -> None:
        """A client's ceiling, in the place of what it brought by this door."""
        self._here[client, door] = ceiling

    def left(self, client: int) -> None:
        """A client has gone."""
        for key in [key for key in self._here if key[0] == client]:
            self._gone = self._gone.and_also(self._here.pop(key))

    def released(self) -> bool:
        """Nothing runs or waits any more that was asked for under what is gone; whether that
        changes anything.
        """
        gone, self._gone = self._gone, NOTHING
        return gone != NOTHING


def name_of(message: Mapping[str, Any]) -> str:
    """The name of a session that was given none, by its first message."""
    content = message.get("content")
    if isinstance(content, list):
        content = next(
            (one.get("text") for one in content if isinstance(one, dict) and one.get("text")), None
        )
    return " ".join(content.split())[:NAME_CHARACTERS] if isinstance(content, str) else ""


def brief(text: object) -> str:
    """The first line of a text, short and printable."""
    line = next((line for line in str(text or "").splitlines() if line.strip()), "") if text else ""
    line = printable(line[: 4 * DETAIL_CHARACTERS]).strip()
    return line if len(line) <= DETAIL_CHARACTERS else line[: DETAIL_CHARACTERS - 1] + "…"


def of_call(tool: object, arguments: object) -> str:
    """A call in a line: its tool, and what it is about."""
    said = arguments if isinstance(arguments, dict) else {}
    named = (
        said[key]
        for key in ("command", *DESCRIBING)
        if isinstance(said.get(key), str) and said[key]
    )
    about = next(named, "")
    return brief(f"{tool}: {about}" if about else tool)


def needed(request: Mapping[str, Any]) -> str:
    """What a question wants of a person."""
    if request.get("tool_name") != QUESTION:
        if request.get("subtype") == ELICITATION:
            return brief(f"answer: {request.get('message')}")
        return brief(f"approve {of_call(request.get('tool_name'), request.get('input'))}")
    said = request.get("input")
    asked = said.get("questions") if isinstance(said, dict) else None
    first = asked[0] if isinstance(asked, list) and asked and isinstance(asked[0], dict) else {}
    options = first.get("options")
    labels = (
        [str(each.get("label")) for each in options if isinstance(each, dict)]
        if isinstance(options, list)
        else []
    )
    return brief(
        f"answer: {first.get('question')}" + (f" ({' · '.join(labels)})" if labels else "")
    )


def _was_stopped(result: Mapping[str, Any]) -> bool:
    """Whether the session was told to end in the middle of this turn. A child that another signal
    ended has its name there: that is a failure, which nobody of ours wanted."""
    said = result.get("shim")
    return isinstance(said, dict) and said.get("cause") == "signal" and not said.get("signal")


class Situation:
    """`active`: a turn runs."""

    def __init__(self) -> None:
        self.active = False
        self._ended = ""
        self._state = "blocked"
        self._needs = SEND_TO_START
        self._detail = ""
        self._timed_out = ""  # the first question of this turn that nobody answered in time

    def facts(
        self, waiting: Sequence[Mapping[str, Any]] = (), messages: bool = False
    ) -> dict[str, Any]:
        """The keys of `host.json` and of a `state` frame.

        `waiting` are the requests of the questions that are open, in their order; `messages` wait
        for their turn.
        """
        if self._ended:
            return self._said(None, None, self._ended, "")
        if waiting:
            first = waiting[0]
            asks = first.get("tool_name") == QUESTION or first.get("subtype") == ELICITATION
            return self._said(
                "waiting", "input needed" if asks else "permission prompt", "blocked", needed(first)
            )
        if self.active or messages:
            return self._said("busy", None, "working", "")
        return self._said("idle", None, self._state, self._needs)

    def _said(
        self, status: str | None, waiting: str | None, state: str, needs: str
    ) -> dict[str, Any]:
        return {
            "state": state,
            "status": status,
            "waitingFor": waiting,
            "needs": needs or None,
            "detail": self._detail or None,
        }

    def asked(self) -> None:
        """A message waits for its turn."""
        if not self.active:
            self._detail = STARTING

    def time_out(self, request: Mapping[str, Any]) -> None:
        """Record that a question of this turn was denied because it was not answered in time."""
        self._timed_out = self._timed_out or needed(request)

    def line(self, line: Mapping[str, Any]) -> None:
        """A whole line of the conversation."""
        kind = line.get("type")
        if kind == "result":
            self._result(line)
            self.active = False
        elif kind in ("user", "assistant") or (kind == "system" and line.get("subtype") == "init"):
            self.active = True
        if kind == "assistant" and line.get("parent_tool_use_id") is None:
            self._assistant(line)

    def _assistant(self, line: Mapping[str, Any]) -> None:
        message = line.get("message")
        blocks = message.get("content") if isinstance(message, dict) else None
        for block in blocks if isinstance(blocks, list) else ():
            if isinstance(block, dict) and block.get("type") == "tool_use":
                self._detail = of_call(block.get("name"), block.get("input"))
            elif isinstance(block, dict) and block.get("type") == "text":
                self._detail = brief(block.get("text")) or self._detail

    def _result(self, line: Mapping[str, Any]) -> None:
        errors = line.get("errors")
        said = line.get("result") or (errors[0] if isinstance(errors, list) and errors else "")
        self._needs = ""
        if _was_stopped(line):
            self._state = self._detail = STOPPED
        elif str(line.get("terminal_reason")).startswith("aborted"):
            self._state, self._needs, self._detail = "blocked", SEND_TO_GO_ON, INTERRUPTED
        elif line.get("is_error") is True or line.get("subtype") != "success":
            self._state, self._detail = "failed", brief(said) or str(line.get("subtype"))
        else:
            self._state, self._detail = "done", brief(said) or self._detail
            if self._timed_out:
                self._state = "blocked"
                self._needs = TIMED_OUT.format(question=self._timed_out, next=SEND_TO_GO_ON)
        self._timed_out = ""

    def end(self, failed: str = "", *, messages: bool = False) -> None:
        """The session is over; `failed` says why, where nobody stopped it. `messages` waited for
        their turn.
        """
        if failed:
            self._ended, self._detail = "failed", brief(failed)
        elif self.active or messages or self._state == "blocked":
            self._ended = STOPPED
        else:
            self._ended = self._state
        self._needs, self.active = "", False
