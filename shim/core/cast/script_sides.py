"""The two sides of a script: the records of the one, the lines of the live one, and the ids that
are paired.
"""

import re
from collections import deque
from collections.abc import Iterator

import orjson

from shim.core.cast.records import CastRecord
from shim.core.cast.words import ANSWERS, Word, read_word
from shim.core.reading.bounded import Bounded

# of the other side that are kept until the script waits for them; more are dropped
HEARD_LINES = 1000
IDS = 1000  # that are replaced
IDENTITY_CHARACTERS = 200  # of one id; a longer one is not replaced

SESSION = re.compile(rb'"session_id"\s*:\s*("[0-9a-fA-F-]{36}")')
# The places of the other side's ids in a line: in an answer, and in its repeated message. The same
# text in any other place is not an id: a frontend may number its requests, with ids like "2".
ANSWERED = re.compile(rb'("request_id"\s*:\s*)("(?:[^"\\]|\\.){0,%d}")' % (6 * IDENTITY_CHARACTERS))
SAID_BACK = re.compile(rb'("uuid"\s*:\s*)("(?:[^"\\]|\\.){0,%d}")' % (6 * IDENTITY_CHARACTERS))


class ScriptRecords:
    """The records of one side, one ahead: `said` are its output streams, `told` is its input
    stream.
    """

    def __init__(self, records: Iterator[CastRecord], said: str, told: str) -> None:
        self.said = said
        self.told = told
        self.at = 0.0  # the seconds of the last record that was taken
        self._records = records
        self._next: CastRecord | None = None
        self._pair = b""  # the pieces of a line of `told` so far

    def continue_with(self, records: Iterator[CastRecord]) -> None:
        """Go on with other records."""
        self._records, self._next = records, None

    def peek(self) -> CastRecord | None:
        """The next record; None at the end of the recording."""
        while self._next is None:
            record = next(self._records, None)
            if record is not None and record.code == "s":
                self.at = record.at
            elif record is None or record.code in self.said or record.code in (self.told, "x", "n"):
                self._next = record
                break
        return self._next

    def take(self) -> float:
        """Pass the next record; the seconds since the one before."""
        record, self._next = self._next, None
        assert record is not None
        pause, self.at = record.at - self.at, record.at
        return max(pause, 0.0)

    def skip(self) -> None:
        """Pass the next record; the seconds before it count for the one behind it."""
        self._next = None

    def read(self) -> Word | None:
        """Take the next record, of `told`. Its line; None if it is not whole yet."""
        record = self.peek()
        assert record is not None
        self.take()
        self._pair += record.data
        following = self.peek()
        if not self._pair.endswith(b"\n") and following is not None and following.code == self.told:
            return None
        line, self._pair = self._pair, b""
        return read_word(line)


class LiveSide:
    """What the live side has sent and the script has not met yet.

    words    its lines of the protocol
    texts    how many of its lines are not of the protocol
    closed   it sends nothing more
    answers  lines for it: to requests that the recording does not have
    """

    def __init__(self) -> None:
        self.words = deque[Word]()
        self.texts = 0
        self.closed = False
        self.answers = deque[bytes]()

    def keep(self, word: Word) -> bool:
        """Keep a line; False if too many wait already."""
        if len(self.words) >= HEARD_LINES:
            return False
        self.words.append(word)
        return True

    def find(self, told: Word) -> Word | None:
        """Take out the line that a recorded one stands for, if it has come."""
        for word in self.words:
            if word.kind == told.kind and (
                told.kind not in ANSWERS or word.identity == told.identity
            ):
                self.words.remove(word)
                return word
        return None

    @property
    def has_message(self) -> bool:
        return any(word.kind == "user" for word in self.words)

    def grant(self, word: Word) -> None:
        """Grant a request that the recording does not have: a replay does nothing real."""
        if word.kind.startswith("control_request/") and len(self.answers) < HEARD_LINES:
            response = {"subtype": "success", "request_id": word.identity, "response": {}}
            self.answers.append(
                orjson.dumps({"type": "control_response", "response": response}) + b"\n"
            )

    def grant_requests(self) -> None:
        """Grant all requests that wait."""
        for word in [word for word in self.words if word.kind.startswith("control_request/")]:
            self.words.remove(word)
            self.grant(word)


class TodaysIds:
    """The ids of today for those of the recording. `session` is today's id of the session, or
    empty.
    """

    def __init__(self, session: str) -> None:
        self._session = quoted(session) if session else b""
        self._sessions: tuple[bytes, bytes] | None = None  # the recorded one, and today's
        self._ids = Bounded[bytes, bytes](IDS)

    def pair(self, told: Word, word: Word) -> None:
        """`word` stands today for the recorded line `told`."""
        if (
            told.identity
            and word.identity != told.identity
            and 0 < len(word.identity) <= IDENTITY_CHARACTERS
        ):
            self._ids[quoted(told.identity)] = quoted(word.identity)

    def as_now(self, data: bytes) -> bytes:
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


def quoted(identity: str) -> bytes:
    return orjson.dumps(identity)
