"""The frame of a turn: its states, the one table of all transitions, and what a turn remembers.

A vendor's translator says what happened, in verbs. What must be said on the way, and what may never be said, is
decided here, for any order of verbs: one `init` first, blocks that never overlap, calls and results in pairs, one
`result` last, nothing behind it. Pure: no clock, no file, no randomness; the pen collects the bytes.

                                   HOW TO READ THE TABLE

A verb names a goal; the cell (state, goal) lists what is said on the way there, in order.
  init    the first line                         text, thinking   a block opens
  start   a reply begins                         close            the open block: last delta, its line, its stop
  stop    a reply ends                           unecho           a repeated reply turns out to be nothing new
  fill    results that never came, and the       end              the result and the terminator
          user line of an interrupt              late             too late: counted, not said
NEW nothing said yet · READY between replies · MESSAGE in a reply, no block open · TEXT, THINKING a block is open ·
ECHO a reply that was cut comes again and has said nothing new yet · DONE the vendor said that this was all, but may
not have ended yet · CLOSED the result is said.
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from shim.core.api_errors import Failure, classify
from shim.core.claude.hooks import Seen
from shim.core.claude.messages import Message
from shim.core.claude.permissions import TURN_OVER, Permission
from shim.core.claude.usage import NO_USAGE, Usage, place
from shim.core.errors import Cause
from shim.core.reading.account import Account
from shim.core.reading.json_scan import DEPTH_KEPT
from shim.core.reading.json_text import exact, flat, long_integers, survey
from shim.core.turn import result
from shim.core.turn.result import Exit, Outcome
from shim.core.turn.said_blocks import Spoken
from shim.core.turn.terms import SEEN_IDS, Conversation, Structured, Terms

if TYPE_CHECKING:
    from shim.core.turn.pen import Pen

NEW, READY, MESSAGE, TEXT, THINKING, ECHO, DONE, CLOSED = (
    "new",
    "ready",
    "message",
    "text",
    "thinking",
    "echo",
    "done",
    "closed",
)

# fmt: off
TRANSITIONS: dict[str, dict[str, str]] = {
    NEW:      {READY: "init",       MESSAGE: "init start",   TEXT: "init start text",
               THINKING: "init start thinking",              CLOSED: "init fill end"},
    READY:    {READY: "",           MESSAGE: "start",        TEXT: "start text",
               THINKING: "start thinking",                   CLOSED: "fill end"},
    MESSAGE:  {READY: "stop",       MESSAGE: "",             TEXT: "text",
               THINKING: "thinking",                         CLOSED: "stop fill end"},
    TEXT:     {READY: "close stop", MESSAGE: "close",        TEXT: "close text",
               THINKING: "close thinking",                   CLOSED: "close stop fill end"},
    THINKING: {READY: "close stop", MESSAGE: "close",        TEXT: "close text",
               THINKING: "close thinking",                   CLOSED: "close stop fill end"},
    ECHO:     {READY: "unecho",     MESSAGE: "unecho start", TEXT: "unecho start text",
               THINKING: "unecho start thinking",            CLOSED: "unecho fill end"},
    DONE:     {READY: "late",       MESSAGE: "late",         TEXT: "late",
               THINKING: "late",                             CLOSED: "fill end"},
    CLOSED:   {READY: "late",       MESSAGE: "late",         TEXT: "late",
               THINKING: "late",                             CLOSED: "late"},
}
# fmt: on


# Of an id or a name that a vendor gives: they stand in every line of ours, and are remembered.
NAME_CHARACTERS = 200

LEFT_OUT = "\n[…]\n"  # in the middle of an answer that is longer than a line

Steps = dict[str, dict[str, tuple[Callable[[Any], None], ...]]]
Call = tuple[str, str, Mapping[str, Any]]  # id as said, name, arguments


class Frame:
    """State and memory of a turn; the verbs are in `blocks`, `calls` and `turn`, each on top of the one before."""

    paths: ClassVar[Steps]
    redact: Callable[[Any], Any] | None = None  # what a value is said as, where secrets are left out of the stream

    def __init__(self, pen: "Pen", terms: Terms, conversation: Conversation, account: Account) -> None:
        self.pen = pen
        self.terms = terms
        self.conversation = conversation
        self.account = account
        self.state = NEW
        self.facts: dict[str, Any] = {}
        self.outcome: Outcome | None = None
        self.stated = b""
        self.stated_outcome: Outcome | None = None
        self.sealed = True
        self.settled = False
        self.paused = False  # nothing but silence will tell whether it is done
        self.beating = False  # the vendor gives signs of life, so its silence says something
        self._judged = False  # the vendor said how it ended
        self.began = False
        self.interrupted_call = False
        self.is_error = False
        self.cause: Cause | Literal[""] = ""  # until the result is said
        self.child_exit: Exit | None = None
        self.final_text = ""
        self.denials: dict[str, dict[str, Any]] = {}
        self.answered: Message | None = None
        self.echo = False
        self.asked: list[Permission] = []
        self.waits: Failure | None = None  # what the vendor asks its model again for, the last time it said so
        self.observed: list[Seen] | None = None  # calls and results for a frontend's hooks, if it has any
        self._denial_bytes = 0
        self._asking: set[str] = set()
        self._asking_requests: set[str] = set()
        self._refusals: dict[str, str] = {}
        self.open: dict[str, Call] = {}
        self._open_bytes = 0  # at least of their arguments
        self.nested_calls: dict[str, tuple[str | None, str]] = {}
        self.results = 0
        self.replies = 0
        self.stop_reason: str | None = None
        self.usage: dict[str, Usage] = {}
        self.cost = 0.0
        self.last_text = ""
        self.model = ""
        self._partial = pen.partial
        self._policy = terms.policy
        self._max_turns = terms.max_turns
        self._budget = terms.budget
        self._retracts = terms.retracts
        self._retries = terms.retries
        self._room = pen.room
        self._digits_of: tuple[bytes, Mapping[float, str]] = (b"", {})
        self._size = 0
        self._long: tuple[object, str] | None = None
        self._hidden: set[str] = set()
        self._hidden_block: int | None = None
        self._early: dict[str, tuple[object, bool]] = {}
        self._key: object = None
        self._parts: list[str] = []
        self._carry = ""
        self._spoken = Spoken(account, self._answerable)
        self._said_text: list[str] = []
        self._said_thinking: list[str] = []
        self._said_size = 0
        self.repeatable = True  # what was said is remembered, so that it is not said twice if it comes again
        self._echo: dict[str, tuple[str, int]] = {}
        self._prefix = ""
        self._stop_due = False
        self._aborted = False
        self._calls_in_reply = False
        self._reply_usage: Usage = NO_USAGE
        self._start_usage: Usage = NO_USAGE

    def go(self, goal: str) -> bool:
        """Say what lies on the way to `goal`; False when the turn is over and nothing may be said."""
        if self.state is CLOSED or (self.state is DONE and goal is not CLOSED):
            self._late()
            return False
        for step in self.paths[self.state][goal]:
            step(self)
        self.state = goal
        return True

    @property
    def spoken(self) -> bool:
        """Whether anything was said or done in this turn that is the model's: a block, a call, a result, a question."""
        done = self.results or self.open or self.nested_calls or self._hidden or self._early
        return bool(self.replies or done or self.asked)

    @property
    def hides_calls(self) -> bool:
        """Whether a call was left out of the stream in this turn."""
        return bool(self._hidden)

    @property
    def asks_by_line(self) -> bool:
        """Whether a call's line may be the question to the frontend: it decides about what it is shown."""
        return self.terms.questions is not None and self.terms.questions()

    # -- the end ------------------------------------------------------------------------------------------

    def ended(self, **facts: Any) -> None:
        """The vendor said that it is done; facts are usage, cost, duration_ms, api_ms, result, stop_reason …"""
        if self._over():
            return
        self._judged = True
        if self.outcome is None or self.outcome.kind == "ended":
            self.outcome = Outcome("ended", facts=facts)
        elif self.outcome.kind == "interrupted" or self.outcome.ours:
            self.outcome = self.outcome._replace(facts=facts)

    def failed(
        self,
        message: str,
        *,
        api: bool | None = None,
        kind: Cause | None = None,
        status: int | None = None,
        subtype: str | None = None,
        **facts: Any,
    ) -> None:
        """The vendor said, or showed, that the turn failed; `kind` is the cause, else it is read off the text.

        `api` says whether the model's API failed (contract S10); None leaves that to the text.
        """
        if self._over():
            return
        self._judged = True
        if self.outcome is not None and (self.outcome.kind == "interrupted" or self.outcome.ours):
            self.outcome = self.outcome._replace(facts=facts or self.outcome.facts)
            return
        failure = classify(message, status)
        if api is None:
            api = failure.api and subtype is None and kind is None
        self.outcome = Outcome(
            "failed",
            message=message,
            cause=kind or (failure.cause if api else "vendor_error"),
            failure=failure,
            api=api,
            subtype=subtype,
            facts=facts,
        )

    def stopped(self, message: str, cause: Cause) -> None:
        """We end the turn, and that is the reason, whatever the vendor says of its end while it goes."""
        if self.state is CLOSED or (self.outcome is not None and self.outcome.kind == "interrupted"):
            return
        facts = {} if self.outcome is None else self.outcome.facts
        self.outcome = Outcome("failed", message, cause, facts=facts, ours=True)

    def interrupted(self, **facts: Any) -> None:
        """The frontend stopped the turn, or the vendor says so; this beats what the vendor says of its end."""
        if self.state is DONE or self.state is CLOSED:
            return
        if self.outcome is not None and self.outcome.ours:
            self.outcome = self.outcome._replace(facts=facts or self.outcome.facts)
            return
        self.outcome = Outcome("interrupted", cause="interrupted", facts=facts)
        self.interrupted_call = self.interrupted_call or bool(self.open)

    def _over(self) -> bool:
        """Whether the vendor's word about the end was said: the first stands, another is late."""
        if self.state is DONE:
            self._late()
        return self.state is DONE or self.state is CLOSED

    def settle(self) -> None:
        """The vendor is done: the shell may give it a last moment and then end it.

        If it also said how, that stands: whatever it prints from now on is too late.
        """
        self.settled = True
        if self._judged and self.state is not CLOSED and self.state is not DONE:
            self.began = self.state is not NEW
            self.go(READY)
            self.state = DONE

    @property
    def asks_tools(self) -> bool:
        """Whether the last reply ended with calls, and no other came after them."""
        return self._calls_in_reply or self.stop_reason == "tool_use"

    def unsettle(self) -> None:
        """It was not: the vendor goes on. Once it said how it ended, it is too late for that."""
        self.settled = self.state is DONE
        self.paused = False

    def pause(self) -> None:
        """The vendor may be done, and has no word for it: for a child that stays, a silence is the end."""
        self.paused = self.state is not DONE and self.state is not CLOSED

    def heartbeat(self) -> None:
        """The vendor said that it is alive; from now on in this turn it says so while it works."""
        self.beating = True

    def finish(self) -> None:
        """Say the result now, without waiting for the child's end."""
        self.closed(None, "")

    def closed(self, child_exit: Exit | None, stderr: str) -> None:
        """The child's stdout is at its end. `child_exit` is None when we ended the child ourselves."""
        if self.state is CLOSED:
            return
        if self.state is DONE:
            self.state = READY
        else:
            self.began = self.state is not NEW
        self.child_exit = child_exit
        self.outcome = result.decide(self, child_exit, stderr)
        if self.terms.read is not None and self.outcome.kind == "ended":
            self._structure(self.terms.read, self.outcome)
        # A question behind the result would be answered by nobody (contract S16b); the vendor gets its refusal.
        self.asked = [asked._replace(refusal=asked.refusal or TURN_OVER) for asked in self.asked]
        self.go(CLOSED)

    def _structure(self, read: Callable[[str], Structured], outcome: Outcome) -> None:
        """Make the structured answer out of the last text (in `calls`: it is said as a call)."""

    def fail_hard(self, reason: str) -> None:
        """The end itself failed, our own mistake: a result all the same, with nothing in it that could fail again."""
        self.state = CLOSED
        self.is_error, self.cause = True, "internal"
        self.final_text = f"the shim failed: {reason}"
        if not self.began:
            self.pen.init(self.conversation.session_id or self.terms.fresh_id, {})
        self.pen.result(result.bare(self.terms.vendor, self.final_text))

    def seal(self) -> None:
        """Say the terminator that a passed result still owes: nothing at all comes behind it."""
        if not self.sealed:
            self.sealed = True
            self.pen.end_of_stream()

    def _answerable(self, text: str) -> str:
        """What of an answer a line can hold."""
        half = self._room // 2
        return text if len(text) <= self._room else text[:half] + LEFT_OUT + text[-half:]

    def count(self, usage: Usage) -> None:
        """Add the usage of one reply to its model's (contract 5.3)."""
        counted = self.usage.get(self.model)
        if counted is None:
            counted = place(self.usage, self.model)
        counted["input_tokens"] += usage["input_tokens"]
        counted["cache_creation_input_tokens"] += usage["cache_creation_input_tokens"]
        counted["cache_read_input_tokens"] += usage["cache_read_input_tokens"]
        counted["output_tokens"] += usage["output_tokens"]

    def claim(self, identity: str) -> str:
        """The id under which a call is said: its own, or a minted one when that was used before."""
        conversation = self.conversation
        seen, size = conversation.seen, len(conversation.seen)
        seen.add(identity)
        if len(seen) == size or identity in conversation.seen_before:
            self.account.repaired("reused_tool_id", identity)
            identity = conversation.mint(identity)
            seen.add(identity)
        if size > SEEN_IDS // 2:
            conversation.forget()
        return identity

    def sure(self, value: Any) -> Any:
        """A value of the vendor's own shape as it can be written: as deep as a reader likes, no digit lost."""
        depth, lossy = survey(value)
        if depth > DEPTH_KEPT:
            self.account.repaired("too_deep")
            value = flat(value)
        if lossy and (kept := exact(value, self._digits())) != value:
            self.account.repaired("long_integer")
            return kept
        return value

    def _digits(self) -> Mapping[float, str]:
        """The long integers of the line that is read: looked for once, however many values stand in it."""
        line = self.account.line
        if self._digits_of[0] is not line:
            self._digits_of = line, long_integers(line)
        return self._digits_of[1]

    def _late(self) -> None:
        self.account.repaired("late_event")


def paths(turn: type[Frame]) -> Steps:
    """TRANSITIONS with the methods of `turn` in place of their names."""
    return {
        state: {goal: tuple(getattr(turn, "_" + step) for step in steps.split()) for goal, steps in row.items()}
        for state, row in TRANSITIONS.items()
    }
