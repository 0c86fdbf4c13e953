"""What the recordings of a person's own sessions have that is new to us (`drift`), for each vendor and its version."""

import os
import time
from collections.abc import Iterable
from dataclasses import dataclass, field

import orjson

from shim.commands.doctor.drift import Known, new_in, recorded, words_of
from shim.conversation.drivers.open_translation import open_translation
from shim.core.cast.records import Header
from shim.core.errors import ShimError
from shim.core.reading.account import OVERFLOW, SAMPLE_CHARACTERS, printable
from shim.core.reading.lines import LineSplitter
from shim.core.vendor.translation import Translation
from shim.recording.folders import cast_paths
from shim.story.reading import Cast, objects
from shim.vendors import find

# Enough to see what is new, and no diagnosis takes longer than a person waits for one.
CASTS = 200  # the newest ones
DRIFT_BYTES = 64 * 1024 * 1024  # of children's output
DRIFT_SECONDS = 10.0
LINE_BYTES = 1024 * 1024  # of a line whose fields are looked at; a longer one is a text
ROWS = 50  # vendors and versions
NEWS = 200  # of one row

AUTH = b'"cause":"auth"'  # in a result of ours
MALFORMED = "malformed_event"  # a repair of the account: a handler did not find what it needs in an event


@dataclass
class Drift:
    """One vendor in one version: how many casts, and by name what is new in them, each with its count.

    `events` nobody translates, `fields` nobody knows; `malformed` events had other contents than their handlers need.
    """

    vendor: str
    version: str
    casts: int = 0
    events: dict[str, int] = field(default_factory=dict)
    fields: dict[str, int] = field(default_factory=dict)
    malformed: int = 0


class Drifts:
    """The drift of many casts. `unread` are those that no limit or reader left room for, `problem` says why.

    `logins` are the vendors whose newest cast ended because the vendor was not logged in, with their own words for it.
    """

    def __init__(self) -> None:
        self.rows: dict[tuple[str, str], Drift] = {}
        self.read = self.unread = 0
        self.problem = ""
        self.logins: dict[str, str] = {}
        self._bytes = 0
        self._until = time.monotonic() + DRIFT_SECONDS
        self._known = recorded()
        self._logins: set[str] = set()
        self._vendors: dict[str, tuple[Known | None, frozenset[str]] | None] = {}

    def add(self, paths: Iterable[str]) -> None:
        """Read casts, given as files and folders, the newest first. CastError for a folder without casts."""
        files = sorted(cast_paths(paths), key=_age)
        self.unread += len(files[CASTS:])
        if len(files) > CASTS:
            self.problem = f"the newest {CASTS} are read"
        for path in files[:CASTS]:
            if self._full():
                self.unread += 1
                continue
            try:
                self._cast(Cast(path))
                self.read += 1
            except (ShimError, OSError) as error:
                self.unread += 1
                self.problem = printable(str(error))[:SAMPLE_CHARACTERS]

    def _full(self) -> bool:
        if self._bytes >= DRIFT_BYTES:
            self.problem = f"the first {DRIFT_BYTES // 1024**2} MB are read"
        elif time.monotonic() >= self._until:
            self.problem = f"what can be read in {DRIFT_SECONDS:g} s is read"
        else:
            return False
        return True

    def _cast(self, cast: Cast) -> None:
        reading: _Reading | None = None
        refused: tuple[str, str] | None = None
        seen = set[tuple[str, str]]()
        try:
            for record in cast.records():
                if record.letter == "s":
                    self._end(reading, seen)
                    reading = self._begin(cast.header, record.fact.get("vendor"))
                elif record.letter == "O" and AUTH in record.data:
                    refused = _words(record.data)
                elif record.letter == "o" and reading is not None:
                    self._bytes += len(record.data)
                    reading.feed(record.data)
                    if self._full():
                        break
        finally:
            cast.close()
            self._end(reading, seen)
            self._login(cast.header.vendor, refused)

    def _login(self, vendor: str, refused: tuple[str, str] | None) -> None:
        """Only the newest cast of a vendor counts."""
        named = refused[0] if refused else vendor
        if named not in self._logins and len(self._logins) < ROWS:
            self._logins.add(named)
            if refused:
                self.logins[named] = refused[1]

    def _begin(self, header: Header, other: object) -> "_Reading | None":
        """Begin a child; `other` is its vendor if that is not the cast's. None if nothing can be new in it."""
        vendor, version = (other, None) if isinstance(other, str) else (header.vendor, header.vendor_version)
        known = self._of(vendor)
        return None if known is None else _Reading(vendor, version, *known)

    def _of(self, name: str) -> tuple[Known | None, frozenset[str]] | None:
        """What is known of a vendor; None for an unknown vendor, and for one whose lines pass unchanged."""
        if name not in self._vendors:
            try:
                vendor = find(name)
                passes = vendor.passthrough or vendor.program.bundled
                self._vendors[name] = None if passes else (self._known.get(name), words_of(name, vendor.translator))
            except ShimError:
                self._vendors[name] = None
        return self._vendors[name]

    def _row(self, vendor: str, version: str) -> Drift:
        if len(self.rows) >= ROWS and (vendor, version) not in self.rows:
            version = OVERFLOW
        return self.rows.setdefault((vendor, version), Drift(vendor, version))

    def _end(self, reading: "_Reading | None", seen: set[tuple[str, str]]) -> None:
        """Add up a child; `seen` are the rows that its cast counts for already."""
        if reading is None:
            return
        row, account = self._row(reading.vendor, reading.version), reading.translation.account
        row.casts += (row.vendor, row.version) not in seen
        seen.add((row.vendor, row.version))
        unknown = account.unknown
        row.malformed += account.repairs.get(MALFORMED, 0)
        for name, count in unknown.items():
            _count(row.events, name, count)
        for name, count in reading.news.items():
            kind, colon, _ = name.partition(": ")
            if kind not in unknown and kind.partition("/")[0] not in unknown:
                _count(row.fields if colon else row.events, name, count)


class _Reading:
    """One child's output: translated anew for its account, and looked through for what is new."""

    def __init__(self, vendor: str, version: str | None, known: Known | None, words: frozenset[str]) -> None:
        """`known` is None for a vendor whose fields are not written down."""
        self.vendor, self._version = vendor, version
        self._known, self._words = known, words
        self.translation: Translation = open_translation(vendor, terminator="none", stable=True)
        self._lines = LineSplitter(LINE_BYTES)
        self.news: dict[str, int] = {}

    @property
    def version(self) -> str:
        """As the cast has it, or as the stream says it."""
        said = self._version or self.translation.turn.facts.get("vendor_version")
        return printable(said)[:SAMPLE_CHARACTERS] if isinstance(said, str) and said else "unknown"

    def feed(self, data: bytes) -> None:
        self.translation.feed(data)
        if self._known is None:
            return
        for event in objects(b"\n".join(self._lines.feed(data))):
            for name in new_in(event, self._known, self._words):
                _count(self.news, name, 1)


def _count(counts: dict[str, int], name: str, count: int) -> None:
    if name not in counts and len(counts) >= NEWS:
        name = OVERFLOW
    counts[name] = counts.get(name, 0) + count


def _words(line: bytes) -> tuple[str, str] | None:
    """The vendor of a result whose cause is `auth`, and what it said itself: the last line, behind ours."""
    try:
        result = orjson.loads(line)
        shim = result["shim"]
        text = result.get("result") or result["errors"][0]
        if shim["cause"] != "auth":
            return None
        return str(shim["vendor"]), printable(str(text).strip().rpartition("\n")[2])[:SAMPLE_CHARACTERS]
    except (orjson.JSONDecodeError, LookupError, TypeError, AttributeError):
        return None


def _age(path: str) -> tuple[float, str]:
    try:
        return -os.stat(path).st_mtime, path
    except OSError:
        return 0.0, path


def drift_of(paths: Iterable[str]) -> Drifts:
    """The drift of casts, given as files and folders. CastError without any cast."""
    drifts = Drifts()
    drifts.add(paths)
    return drifts
