"""Replays one side of a recording: what it says next, what it waits for, how it ends. Sans-IO.

The other side is live. Its lines are paired with the recorded ones: the script waits where the
recording has a line of the other side, and replaces recorded ids of its requests and messages by
today's.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import orjson

from shim.core.cast.records import CastRecord
from shim.core.cast.script_sides import ANSWERED, IDS, LiveSide, ScriptRecords, TodaysIds, quoted
from shim.core.cast.words import ANSWERS, INTERRUPTS, REPORT, SIGNAL, Word, read_word

RESULT = re.compile(rb'\s*\{\s*"type"\s*:\s*"result"')
NEVER_ENDED = "the recording ends here: how the session went on is not known"


class ScriptStep(NamedTuple):
    """What comes next: `say` data after a pause, `wait` for a line or a signal, `end`, or `fail`
    with a reason.

    `letter` is the stream of the data, or REPORT for the child's file. `pause` is the recorded one,
    in seconds.
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

    `signals`: wait for a signal where the recording has one. `session` is today's id of the
    session. `choose` takes today's first message, and returns the records from the same message on,
    perhaps of another recording; None if no recording has it.
    """

    def __init__(
        self,
        records: Iterable[CastRecord],
        *,
        said: str,
        told: str,
        signals: bool = False,
        session: str = "",
        choose: Callable[[bytes], Iterator[CastRecord] | None] | None = None,
    ) -> None:
        self._records = ScriptRecords(iter(records), said, told)
        self._live = LiveSide()
        self._ids = TodaysIds(session)
        self._signals = signals
        self._choose = choose
        self._first = b""  # the first message, for `choose`
        self._waiting: Word | None = None  # the recorded line that the script waits for
        self._unasked: set[bytes] = set()  # recorded requests that nobody made today
        self._protocol = self._busy = False
        # the recorded child was ended for its silence; no frontend repeats that signal
        self._overdue = False
        self._settled = False  # the turn is over once the last step is said
        self._whole = True  # the last piece ended a line
        self._dropping = False
        self._failed = False  # what the last result says
        self._end: ScriptStep | None = None
        self.jumps = 0  # how often the script went on at another place

    # -- what the other side does ------------------------------------------------------------------

    def hear(self, line: bytes) -> None:
        word = read_word(line)
        if not word.kind:
            self._live.texts += 1
        elif word.kind in INTERRUPTS:
            self._interrupt(word)
        elif self._live.keep(word) and word.kind == "user" and self._choose is not None:
            self._first = self._first or line

    def hang_up(self) -> None:
        """The other side has closed: stop waiting for its lines."""
        self._live.closed = True

    def signal(self, name: str) -> None:
        """A signal came: go on after the recorded one, or end by it if the recording has none."""
        kinds = (SIGNAL,) if self._records.told == "I" else ("caught", SIGNAL)  # of notes about one
        self._jump()
        while (record := self._records.peek()) is not None and record.code != "x":
            self._records.take()
            fact = record.fields
            if record.code == "n" and fact.get("kind") in kinds and fact.get("signal") == name:
                self._waiting = None
                return
        self._end = ScriptStep("end", signal=name)

    def _jump(self) -> None:
        """Continue at another place, without the last step."""
        self.jumps += 1
        self._settled = False

    def _interrupt(self, word: Word) -> None:
        """Go on after the recorded interrupt of this turn, or end the turn if the recording has
        none.
        """
        waiting, self._waiting = self._waiting, None
        if waiting is not None and waiting.kind in INTERRUPTS:
            self._meet(waiting, word)
            return
        if not self._busy:
            self._waiting = waiting
            self._live.grant(word)
            return
        self._jump()
        while (record := self._records.peek()) is not None and record.code != "x":
            if record.code == self._records.told:
                told = self._records.read()
                if told is not None and told.kind in INTERRUPTS:
                    self._meet(told, word)
                    return
                if told is not None and told.kind == "user":
                    break
            else:
                self._records.take()
        self._live.grant(word)
        self._end = ScriptStep("end", signal="SIGINT")

    # -- what comes next ---------------------------------------------------------------------------

    def step(self) -> ScriptStep:
        """What comes next. After a `wait`, ask again when something happened; other steps are
        returned once.
        """
        if (
            self._waiting is not None
            and self._waiting.kind == "user"
            and self._first
            and not self._chosen()
        ):
            return self._end or ScriptStep("fail")
        if self._settled:
            self._busy = self._settled = False
        if self._live.answers:
            return ScriptStep(
                "say", letter=self._records.said[0], data=self._live.answers.popleft()
            )
        if self._end is not None:
            return self._end
        while True:
            if self._waiting is not None:
                if (step := self._meeting(self._waiting)) is not None:
                    return step
                continue
            record = self._records.peek()
            if record is None or record.code == "x":
                return self._ending(record)
            if record.code == self._records.told:
                if (step := self._listen()) is not None:
                    return step
            elif record.code == "n":
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
        self._records.continue_with(found)
        self._waiting = None
        return True

    def give_up(self) -> None:
        """Continue without the awaited event, which did not come."""
        record = self._records.peek()
        if self._waiting is not None:
            self._waiting = None
        elif record is not None and record.code == "n":
            self._records.take()
        else:
            self._live.closed = True

    def _say(self, record: CastRecord) -> ScriptStep | None:
        pause, data = self._records.take(), record.data
        if record.code != self._records.said[0]:
            return ScriptStep("say", pause, record.code, data)
        if self._whole and self._protocol:
            asked = ANSWERED.search(data) if b'"control_response"' in data else None
            self._dropping = asked is not None and asked[2] in self._unasked
        if self._whole and RESULT.match(data) is not None:
            self._settled = True
            self._failed = b'"is_error":true' in data
        self._whole = data.endswith(b"\n")
        return (
            None
            if self._dropping
            else ScriptStep("say", pause, record.code, self._ids.as_now(data))
        )

    def _listen(self) -> ScriptStep | None:
        """The recorded side read something here."""
        told = self._records.read()
        if told is None:
            return None
        if told.kind:
            self._protocol = True
            self._waiting = told
            return None
        self._waiting = told  # text: consecutive lines are one
        while (record := self._records.peek()) is not None and record.code == self._records.told:
            if read_word(record.data).kind:
                break
            self._records.take()
        return None

    def _meeting(self, told: Word) -> ScriptStep | None:
        """A step if the awaited line has not come; None if the script can go on."""
        if not told.kind:
            if self._live.texts or self._live.closed or self._live.words or self._protocol:
                self._live.texts = 0
                self._waiting = None
                return None
            return ScriptStep("wait", reason="a line")
        if (found := self._live.find(told)) is not None:
            self._waiting = None
            return self._meet(told, found)
        if self._live.closed or (
            told.kind.startswith("control_request/") and self._live.has_message
        ):
            if len(self._unasked) < IDS:
                self._unasked.add(quoted(told.identity))
            self._busy = self._busy or told.kind == "user"
            self._waiting = None
            return None
        self._live.grant_requests()
        if self._live.answers:
            return ScriptStep(
                "say", letter=self._records.said[0], data=self._live.answers.popleft()
            )
        return ScriptStep("wait", reason=told.kind)

    def _meet(self, told: Word, word: Word) -> ScriptStep | None:
        """Pair a recorded line with today's."""
        if told.kind == "user":
            self._busy = True
        if told.kind in ANSWERS and told.verdict and word.verdict and told.verdict != word.verdict:
            reason = (
                f"the recording goes on with {told.verdict}, and the answer is {word.verdict} now"
            )
            self._end = ScriptStep("fail", reason=reason)
            return self._end
        self._ids.pair(told, word)
        return None

    def _note(self, record: CastRecord) -> ScriptStep | None:
        kind = record.fields.get("kind")
        if kind == REPORT and self._records.said[0] != "O":
            return ScriptStep(
                "say", self._records.take(), REPORT, orjson.dumps(record.fields.get("report"))
            )
        self._overdue = self._overdue or kind == "timeout"
        if self._signals and kind == SIGNAL and not self._overdue:
            return ScriptStep("wait", reason="signal")
        self._records.skip()
        return None

    def _ending(self, record: CastRecord | None) -> ScriptStep:
        """How it ended. A recorded program that ended with its input waits for the end of its
        input.
        """
        if self._protocol and not self._busy and not self._live.closed:
            if self._live.has_message:
                return ScriptStep("fail", reason="the recording has no further message")
            self._live.grant_requests()
            self._live.words.clear()
            if self._live.answers:
                return ScriptStep(
                    "say", letter=self._records.said[0], data=self._live.answers.popleft()
                )
            return ScriptStep("wait", reason="the end of stdin")
        if record is None and self._records.said[0] == "O":
            return ScriptStep("end", code=int(self._failed))
        if record is None:
            return ScriptStep("fail", reason=NEVER_ENDED)
        pause = 0.0 if self._protocol else max(record.at - self._records.at, 0.0)
        code, signal = record.fields.get("code"), record.fields.get("signal")
        if isinstance(signal, str):
            return ScriptStep("end", pause, signal=signal)
        return ScriptStep("end", pause, code=code if isinstance(code, int) else 0)
