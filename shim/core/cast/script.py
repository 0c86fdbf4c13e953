"""Replays one side of a recording: what it says next, what it waits for, how it ends. Sans-IO.

The other side is live. Its lines are paired with the recorded ones: the script waits where the recording has a line of
the other side, and replaces recorded ids of its requests and messages by today's.
"""

import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import orjson

from shim.core.bounded import Bounded
from shim.core.cast.records import Record
from shim.core.cast.words import ANSWERS, INTERRUPTS, REPORT, Word, read_word

HEARD_LINES = 1000  # of the other side that are kept until the script waits for them; more are dropped
IDS = 1000  # that are replaced
IDENTITY_CHARACTERS = 200  # of one id; a longer one is not replaced

SESSION = re.compile(rb'"session_id"\s*:\s*("[0-9a-fA-F-]{36}")')
# The places of the other side's ids in a line: in an answer, and in its repeated message. The same text in any other
# place is not an id: a frontend may number its requests, with ids like "2".
ANSWERED = re.compile(rb'("request_id"\s*:\s*)("(?:[^"\\]|\\.){0,%d}")' % (6 * IDENTITY_CHARACTERS))
SAID_BACK = re.compile(rb'("uuid"\s*:\s*)("(?:[^"\\]|\\.){0,%d}")' % (6 * IDENTITY_CHARACTERS))
RESULT = re.compile(rb'\s*\{\s*"type"\s*:\s*"result"')
NEVER_ENDED = "the recording ends here: nobody knows how this went on"


class ScriptStep(NamedTuple):
    """What comes next: `say` data after a pause, `wait` for a line or a signal, `end`, or `fail` with a reason.

    `letter` is the stream of the data, or REPORT for the child's file. `pause` is the recorded one, in seconds.
    """

    kind: str
    pause: float = 0.0
    letter: str = ""
    data: bytes = b""
    code: int | None = None
    signal: str | None = None
    reason: str = ""


class Script:
    """Replays the records of one side: `said` are its output streams, `told` is its input stream.

    `signals`: wait for a signal where the recording has one. `session` is today's id of the session.
    `choose` takes today's first message, and returns the records from the same message on, perhaps of another
    recording; None if no recording has it.
    """

    def __init__(
        self,
        records: Iterable[Record],
        *,
        said: str,
        told: str,
        signals: bool = False,
        session: str = "",
        choose: Callable[[bytes], Iterator[Record] | None] | None = None,
    ) -> None:
        self._records: Iterator[Record] = iter(records)
        self._next: Record | None = None
        self._said = said
        self._told = told
        self._signals = signals
        self._kinds = ("signal",) if told == "I" else ("caught", "signal")  # of notes about a signal
        self._session = _quoted(session) if session else b""
        self._sessions: tuple[bytes, bytes] | None = None
        self._at = 0.0
        self._choose = choose
        self._first = b""  # the first message, for `choose`
        self._heard = deque[Word]()
        self._texts = 0  # heard lines that are not of the protocol
        self._closed = False
        self._pair = b""  # the pieces of a recorded line so far
        self._waiting: Word | None = None  # the recorded line that the script waits for
        self._ids = Bounded[bytes, bytes](IDS)
        self._unasked: set[bytes] = set()
        self._answers = deque[bytes]()  # to requests that the recording does not have
        self._protocol = self._busy = False
        self._overdue = False  # the recorded child was ended for its silence; no frontend repeats that signal
        self._settled = False  # the turn is over once the last step is said
        self._whole = True  # the last piece ended a line
        self._dropping = False
        self._failed = False  # what the last result says
        self._end: ScriptStep | None = None
        self.jumps = 0  # how often the script went on at another place

    # -- what the other side does ---------------------------------------------------------------------------

    def hear(self, line: bytes) -> None:
        word = read_word(line)
        if not word.kind:
            self._texts += 1
        elif word.kind in INTERRUPTS:
            self._interrupt(word)
        elif len(self._heard) < HEARD_LINES:
            if word.kind == "user" and self._choose is not None:
                self._first = self._first or line
            self._heard.append(word)

    def hang_up(self) -> None:
        """The other side has closed: stop waiting for its lines."""
        self._closed = True

    def signal(self, name: str) -> None:
        """A signal came: go on after the recorded one, or end by it if the recording has none."""
        self._jump()
        while (record := self._peek()) is not None and record.letter != "x":
            self._take()
            fact = record.fact
            if record.letter == "n" and fact.get("kind") in self._kinds and fact.get("signal") == name:
                self._waiting = None
                return
        self._end = ScriptStep("end", signal=name)

    def _jump(self) -> None:
        """Continue at another place, without the last step."""
        self.jumps += 1
        self._settled = False

    def _interrupt(self, word: Word) -> None:
        """Go on after the recorded interrupt of this turn, or end the turn if the recording has none."""
        waiting, self._waiting = self._waiting, None
        if waiting is not None and waiting.kind in INTERRUPTS:
            self._meet(waiting, word)
            return
        if not self._busy:
            self._waiting = waiting
            self._answer(word)
            return
        self._jump()
        while (record := self._peek()) is not None and record.letter != "x":
            if record.letter == self._told:
                told = self._read()
                if told is not None and told.kind in INTERRUPTS:
                    self._meet(told, word)
                    return
                if told is not None and told.kind == "user":
                    break
            else:
                self._take()
        self._answer(word)
        self._end = ScriptStep("end", signal="SIGINT")

    # -- what comes next ------------------------------------------------------------------------------------

    def step(self) -> ScriptStep:
        """What comes next. After a `wait`, ask again when something happened; other steps are returned once."""
        if self._waiting is not None and self._waiting.kind == "user" and self._first and not self._chosen():
            return self._end or ScriptStep("fail")
        if self._settled:
            self._busy = self._settled = False
        if self._answers:
            return ScriptStep("say", letter=self._said[0], data=self._answers.popleft())
        if self._end is not None:
            return self._end
        while True:
            if self._waiting is not None:
                if (step := self._meeting(self._waiting)) is not None:
                    return step
                continue
            record = self._peek()
            if record is None or record.letter == "x":
                return self._ending(record)
            if record.letter == self._told:
                if (step := self._listen()) is not None:
                    return step
            elif record.letter == "n":
                if (step := self._note(record)) is not None:
                    return step
            elif (step := self._say(record)) is not None:
                return step

    def _chosen(self) -> bool:
        """Whether a recording has the first message; if so, continue there."""
        choose, self._choose = self._choose, None
        found = choose(self._first) if choose is not None else None
        self._first = b""
        if found is None:
            self._end = ScriptStep("fail", reason="no recording there begins with this message")
            return False
        self._records, self._next, self._waiting = found, None, None
        return True

    def give_up(self) -> None:
        """Continue without the awaited event, which did not come."""
        record = self._peek()
        if self._waiting is not None:
            self._waiting = None
        elif record is not None and record.letter == "n":
            self._take()
        else:
            self._closed = True

    def _peek(self) -> Record | None:
        while self._next is None:
            record = next(self._records, None)
            if record is not None and record.letter == "s":
                self._at = record.at
            elif record is None or record.letter in self._said or record.letter in (self._told, "x", "n"):
                self._next = record
                break
        return self._next

    def _take(self) -> float:
        """Pass the next record; the seconds since the one before."""
        record, self._next = self._next, None
        assert record is not None
        pause, self._at = record.at - self._at, record.at
        return max(pause, 0.0)

    def _say(self, record: Record) -> ScriptStep | None:
        pause, data = self._take(), record.data
        if record.letter != self._said[0]:
            return ScriptStep("say", pause, record.letter, data)
        if self._whole and self._protocol:
            asked = ANSWERED.search(data) if b'"control_response"' in data else None
            self._dropping = asked is not None and asked[2] in self._unasked
        if self._whole and RESULT.match(data) is not None:
            self._settled = True
            self._failed = b'"is_error":true' in data
        self._whole = data.endswith(b"\n")
        return None if self._dropping else ScriptStep("say", pause, record.letter, self._as_now(data))

    def _as_now(self, data: bytes) -> bytes:
        """A line with today's ids."""
        if self._ids and b'"control_response"' in data:
            data = ANSWERED.sub(self._id_as_now, data, count=1)
        elif self._ids and b'"isReplay"' in data:
            data = SAID_BACK.sub(self._id_as_now, data)
        if self._session:
            if self._sessions is None and (found := SESSION.search(data)) is not None:
                self._sessions = found[1], self._session
            if self._sessions is not None:
                data = data.replace(*self._sessions)
        return data

    def _id_as_now(self, found: re.Match[bytes]) -> bytes:
        return found[1] + self._ids.get(found[2], found[2])

    def _listen(self) -> ScriptStep | None:
        """The recorded side read something here."""
        told = self._read()
        if told is None:
            return None
        if told.kind:
            self._protocol = True
            self._waiting = told
            return None
        self._waiting = told  # text: consecutive lines are one
        while (record := self._peek()) is not None and record.letter == self._told:
            if read_word(record.data).kind:
                break
            self._take()
        return None

    def _read(self) -> Word | None:
        """The recorded line at the next record; None if it is not whole yet."""
        record = self._peek()
        assert record is not None
        self._take()
        self._pair += record.data
        following = self._peek()
        if not self._pair.endswith(b"\n") and following is not None and following.letter == self._told:
            return None
        line, self._pair = self._pair, b""
        return read_word(line)

    def _meeting(self, told: Word) -> ScriptStep | None:
        """A step if the awaited line has not come; None if the script can go on."""
        if not told.kind:
            if self._texts or self._closed or self._heard or self._protocol:
                self._texts = 0
                self._waiting = None
                return None
            return ScriptStep("wait", reason="a line")
        for word in self._heard:
            if word.kind == told.kind and (told.kind not in ANSWERS or word.identity == told.identity):
                self._heard.remove(word)
                self._waiting = None
                return self._meet(told, word)
        if self._closed or (told.kind.startswith("control_request/") and any(w.kind == "user" for w in self._heard)):
            if len(self._unasked) < IDS:
                self._unasked.add(_quoted(told.identity))
            self._busy = self._busy or told.kind == "user"
            self._waiting = None
            return None
        for word in [word for word in self._heard if word.kind.startswith("control_request/")]:
            self._heard.remove(word)
            self._answer(word)
        if self._answers:
            return ScriptStep("say", letter=self._said[0], data=self._answers.popleft())
        return ScriptStep("wait", reason=told.kind)

    def _meet(self, told: Word, word: Word) -> ScriptStep | None:
        """Pair a recorded line with today's."""
        if told.kind == "user":
            self._busy = True
        if told.kind in ANSWERS and told.verdict and word.verdict and told.verdict != word.verdict:
            reason = f"the recording goes on with {told.verdict}, and the answer is {word.verdict} now"
            self._end = ScriptStep("fail", reason=reason)
            return self._end
        if told.identity and word.identity != told.identity and 0 < len(word.identity) <= IDENTITY_CHARACTERS:
            self._ids[_quoted(told.identity)] = _quoted(word.identity)
        return None

    def _answer(self, word: Word) -> None:
        """Grant a request that the recording does not have: a replay does nothing real."""
        if word.kind.startswith("control_request/") and len(self._answers) < HEARD_LINES:
            response = {"subtype": "success", "request_id": word.identity, "response": {}}
            self._answers.append(orjson.dumps({"type": "control_response", "response": response}) + b"\n")

    def _note(self, record: Record) -> ScriptStep | None:
        kind = record.fact.get("kind")
        if kind == REPORT and self._said[0] != "O":
            return ScriptStep("say", self._take(), REPORT, orjson.dumps(record.fact.get("report")))
        self._overdue = self._overdue or kind == "timeout"
        if self._signals and kind == "signal" and not self._overdue:
            return ScriptStep("wait", reason="signal")
        self._next = None
        return None

    def _ending(self, record: Record | None) -> ScriptStep:
        """How it ended. A recorded program that ended with its input waits for the end of its input."""
        if self._protocol and not self._busy and not self._closed:
            if any(word.kind == "user" for word in self._heard):
                return ScriptStep("fail", reason="the recording has no further message")
            for word in self._heard:
                self._answer(word)
            self._heard.clear()
            if self._answers:
                return ScriptStep("say", letter=self._said[0], data=self._answers.popleft())
            return ScriptStep("wait", reason="the end of stdin")
        if record is None and self._said[0] == "O":
            return ScriptStep("end", code=int(self._failed))
        if record is None:
            return ScriptStep("fail", reason=NEVER_ENDED)
        pause = 0.0 if self._protocol else max(record.at - self._at, 0.0)
        code, signal = record.fact.get("code"), record.fact.get("signal")
        if isinstance(signal, str):
            return ScriptStep("end", pause, signal=signal)
        return ScriptStep("end", pause, code=code if isinstance(code, int) else 0)


def _quoted(identity: str) -> bytes:
    return orjson.dumps(identity)
