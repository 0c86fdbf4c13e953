"""The trace of a cast in a file, for those who export it: replies and what was beside them, and when it all was."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

from shim.story.reading import Cast, Teller
from shim.story.trace import Item, Trace

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Traced:
    """A cast that is read once as a trace. CastError when it cannot be read."""

    def __init__(self, path: str) -> None:
        self._cast = Cast(path)
        self.header = self._cast.header
        self.trace = Trace()
        self._began = _moment(self.header.started)

    def items(self) -> Iterator[tuple[str, Item]]:
        """What happened, each with the lane of its agent; those of a lane in order."""
        teller = Teller(self.header)
        teller.story = self.trace
        for record in self._cast.records():
            teller.feed(record)
            yield from self.trace.replies.take()
        teller.close()
        yield from self.trace.replies.take(everything=True)

    @property
    def cut(self) -> bool:
        """Whether the recording has no end, or lines that nobody can read; known when all items were taken."""
        return not self._cast.reader.ended or bool(self._cast.reader.skipped)

    @property
    def model(self) -> str:
        """The model of the session, or ""."""
        name = str(self.trace.replies.facts.get("model") or "")
        return "" if name == "unknown" else name  # what an init says that came before anybody knew

    @property
    def vendor(self) -> str:
        """Who answered: of a list it may be another one than the recording began with."""
        return self.trace.vendor or self.header.vendor

    @property
    def session(self) -> str:
        """The session's id, or ""."""
        return str(self.trace.replies.facts.get("session_id") or "")

    @property
    def version(self) -> str:
        """The version of the agent, or "": a real claude says its own, where nobody else knew."""
        passed = not self.trace.replies.facts.get("shim")
        said: Any = self.trace.replies.facts.get("claude_code_version") if passed else ""
        recorded = self.header.vendor_version if self.vendor == self.header.vendor else ""
        return recorded or str(said or "")

    def iso(self, at: float) -> str | None:
        """ISO 8601 in UTC to the millisecond; None where the recording does not say when it began."""
        if self._began is None:
            return None
        try:
            return (self._began + timedelta(seconds=at)).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        except OverflowError:
            return None

    def nanoseconds(self, at: float) -> int:
        """Since 1970; since the recording began where it does not say when that was."""
        began = 0 if self._began is None else (self._began - EPOCH) // timedelta(microseconds=1)
        return min(max(began * 1000 + round(at * 1e9), 0), 2**63 - 1)


def _moment(text: str) -> datetime | None:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
