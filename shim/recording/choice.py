"""Which recording answers a message: of one cast the next child, of a directory the one with the same prompt.

A cast is read only as far as needed. Its content is trusted no more than the vendor's own output.
"""

import hashlib
import os
import stat
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import orjson

from shim.core.cast.records import SUFFIX, CastError, Header, Reader, Record
from shim.core.cast.words import read_word
from shim.core.claude.argv.invocation import Invocation
from shim.core.claude.argv.parse import parse
from shim.core.claude.messages import read_message
from shim.core.dialects import dialect_called
from shim.core.errors import PASSED_OVER, FrontendError, Tried, VendorError, read_tried
from shim.core.ids import parse_uuid, vendor_id
from shim.core.reading.account import printable
from shim.core.reading.lines import LineSplitter
from shim.core.vendor.vendor import Launch, Request, Vendor, as_stdin
from shim.core.yume.argv import parse as parse_yume
from shim.recording.wanted import CHUNK_BYTES, Wanted, open_cast, words_of
from shim.vendors import find_recorded

MOST_CASTS = 10_000  # of a directory; nobody keeps an overview of more
MOST_PROMPTS = 1_000_000  # characters of a prompt that are compared
SHOWN, SHOWN_CHARACTERS = 5, 60  # of the recorded prompts, in an error
FASTEST = 1e6  # the largest speed, and the longest gap in seconds, that is taken seriously
HINT = "`SHIM_VENDOR=replay:PATH` takes a cast, or a directory of them"


class Take(NamedTuple):
    """One child of one recording. `identity` names it in a session; `listens` says that it read lines from its stdin.

    `stopped`: it was ended by a signal, and playing it waits for that signal. `tried` are the vendors of a fallback
    list that did not answer before this one; their output is not played.
    """

    path: str
    child: int
    identity: str
    prompt: str | None = None
    listens: bool = False
    stopped: bool = False
    vendor: str = ""
    tried: tuple[Tried, ...] = ()

    @property
    def cast(self) -> str:
        """The part of the identity that all children of the recording share."""
        return self.identity.rpartition(":")[0]


class Sitting(NamedTuple):
    header: Header
    invocation: Invocation
    takes: tuple[Take, ...]

    @property
    def vendor(self) -> str:
        """The vendor that answered first; where none answered, the vendor that was asked."""
        return self.takes[0].vendor if self.takes else self.header.vendor


class Takes:
    """The recordings at a path. FrontendError when there is none."""

    def __init__(self, path: str, cwd: str, environment: Mapping[str, str]) -> None:
        self._files, self._alone = _files(path, cwd, environment)
        self._read: list[Sitting] = []
        self._used: set[str] = set()
        self._pace = _pace(environment)
        self.place = ""
        self.asked = ""  # the vendor that the recording began with
        self._tried: tuple[Tried, ...] = ()
        self._vendor = ""
        self._report = ""  # the name of the file that the vendor writes about its run
        self._verbatim = False  # the vendor's lines pass unchanged, so they must name the frontend's session

    def vendor(self, prompt: str | None, resumed: str, *, flat: bool) -> Vendor:
        """The stand-in for a recorded vendor: of the recording with this prompt or session, else of the first one."""
        first: Sitting | None = None
        for sitting in self._sittings():
            first = first or sitting
            if any(take.identity == resumed or (prompt and take.prompt == prompt) for take in sitting.takes):
                first = sitting
                break
        if first is None:
            raise FrontendError("no recording there can be read", hint=HINT)
        self._vendor, self.asked = first.vendor, first.header.vendor
        name = self._vendor
        listens = any(take.listens for take in first.takes)
        try:
            vendor = find_recorded(name, self.launch, lambda: self.place, listens=listens, flat=flat)
        except FrontendError:
            shown = printable(name)[:40]
            place = printable(first.takes[0].path) if first.takes else "the recording"
            raise FrontendError(f"{place} was recorded with the unknown vendor {shown!r}") from None
        self._verbatim = vendor.passthrough and not flat
        self._report = vendor.surroundings.report.file if vendor.surroundings.report is not None else ""
        return vendor

    def launch(self, request: Request) -> Launch:
        """How the stand-in for the next child is started. VendorError when no recording answers the message."""
        take = self.choose(request.prompt, request.resume or "", asked=bool(request.invocation.json_schema))
        self.place, self._tried = take.identity, take.tried
        self._used.add(take.identity)
        chosen = request.invocation.session.session_id or parse_uuid(request.invocation.session.resume or "") or ""
        session = chosen if self._verbatim else ""
        speed, most = self._pace
        folder = "" if self._alone or request.prompt else os.path.dirname(take.path)
        report = os.path.join(request.report_folder, self._report) if request.report_folder else ""
        wanted = Wanted(take.path, "vendor", take.child, speed, most, True, session, folder, report)
        return Launch(tuple(words_of(wanted)), b"" if request.listens else as_stdin(request.prompt))

    def choose(self, prompt: str, resumed: str, *, asked: bool = False) -> Take:
        """The take that answers a prompt ("": not known yet). `asked`: the prompt may end in words that we added.

        VendorError when there is none. What follows the session's last take comes first, then recordings that were
        not stopped: one that was stopped waits for a signal, and would never end for a user who sends none.
        """
        place, before, behind = resumed or self.place, list[Take](), list[Take]()
        for take in self._takes():
            behind.append(take)
            if take.identity == place:
                before, behind = [*before, *behind], []
        if self._alone:
            same = [take for take in behind if _answers(take, prompt, asked)] or behind
        else:
            fresh = [take for take in (*behind, *before) if take.identity not in self._used and take.identity != place]
            same = [take for take in fresh if not prompt or _answers(take, prompt, asked)]
            if not same:
                from shim.core.secrets.redactor import Redactor

                blanked = Redactor().text(prompt)  # as a recording without secrets has it
                same = [take for take in fresh if _answers(take, blanked, asked)]
            same = same or [take for take in fresh if take.prompt is None]
        if not same:
            raise VendorError(*self._nothing(prompt, [*before, *behind]))
        if same[0].cast == place.rpartition(":")[0]:
            return same[0]
        firsts = dict[str, Take]()
        for take in same:
            firsts.setdefault(take.path, take)
        return min(firsts.values(), key=lambda take: take.stopped)

    def tried(self) -> tuple[Tried, ...]:
        """The vendors that did not answer before the take that was chosen last."""
        return self._tried

    def only(self, vendor: str) -> None:
        self._vendor = vendor

    def knows(self, session_id: str) -> bool:
        return any(
            session_id in (sitting.invocation.session.session_id, parse_uuid(sitting.invocation.session.resume or ""))
            for sitting in self._sittings()
        )

    def _nothing(self, prompt: str, takes: list[Take]) -> tuple[str, str]:
        """The error for a message without a recording: why, and which prompts have one."""
        shown = repr(printable(prompt[:SHOWN_CHARACTERS]))
        if self._alone:
            count = len(takes)
            return f"the recording has {count} answers and no further one, for {shown}", "start a new conversation"
        prompts = dict.fromkeys(repr(printable(take.prompt[:SHOWN_CHARACTERS])) for take in takes if take.prompt)
        some = ", ".join(list(prompts)[:SHOWN]) + (f" and {len(prompts) - SHOWN} more" if len(prompts) > SHOWN else "")
        return f"no recording of {self._vendor} answers {shown}", f"there are, each once: {some or 'none'}"

    def _takes(self) -> Iterator[Take]:
        """The takes of the recorded vendor, in the order of recording."""
        for sitting in self._sittings():
            yield from (take for take in sitting.takes if take.vendor == self._vendor or not self._vendor)

    def _sittings(self) -> Iterator[Sitting]:
        """The recordings, each read when it is asked for. In a directory, files that are no casts are skipped."""
        yield from self._read
        while self._files:
            path = self._files.pop(0)
            try:
                sitting = read_sitting(path)
            except CastError:
                if self._alone:
                    raise
                continue
            if not sitting.takes and not self._alone:
                continue  # the run was refused, or nothing was asked: there is nothing to play
            self._read.append(sitting)
            yield sitting


def like(line: bytes, path: str, folder: str) -> Take | None:
    """The child in a folder whose first message was this line, of the same vendor as the recording at `path`.

    A stand-in that starts before the first message is known asks this.
    """
    takes = Takes(folder, folder, {})
    prompt = _message(line)
    takes.only(read_sitting(path).vendor)
    try:
        return takes.choose(prompt, "") if prompt else None
    except VendorError:
        return None


def _answers(take: Take, prompt: str, asked: bool) -> bool:
    if take.prompt is None:
        return False
    return take.prompt == prompt[:MOST_PROMPTS] or (asked and prompt.startswith(take.prompt))


def read_sitting(path: str) -> Sitting:
    """A recording's header, and what each of its children was asked. CastError if it cannot be read."""
    reader = Reader()
    told = list[bytes]()
    takes, before, count = list[Take](), list[Tried](), 0
    turns = list[object]()
    for record in _asked(path, reader):
        fact = record.fact
        if record.letter == "i":
            told.append(record.data)
        elif record.letter == "s":
            count += 1
            vendor = fact.get("vendor")
            vendor = vendor if isinstance(vendor, str) else reader.header.vendor if reader.header else ""
            takes.append(Take(path, count, _identity(path, count), vendor=vendor, tried=tuple(before)))
            turns.append(fact.get("turn"))
            before = []
        elif record.letter == "n":
            if fact.get("kind") == PASSED_OVER:
                if fact.get("started") and takes:
                    before = [*takes.pop().tried, *before]
                    turns.pop()
                before.append(read_tried(fact))
            elif fact.get("kind") == "signal" and takes and takes[-1].child == fact.get("child"):
                takes[-1] = takes[-1]._replace(stopped=True)
        elif takes and not takes[-1].listens:
            takes[-1] = takes[-1]._replace(listens=bool(read_word(record.data).kind))
    header = reader.header
    assert header is not None
    invocation = invocation_of(header)
    prompts = _prompts(invocation, header, b"".join(told))
    for place, (take, turn) in enumerate(zip(takes, turns, strict=True)):
        at = turn if isinstance(turn, int) else take.child
        at = 1 if len(prompts) == 1 else at
        prompt = prompts[at - 1][:MOST_PROMPTS] if 1 <= at <= len(prompts) and prompts[at - 1] else None
        takes[place] = take._replace(prompt=prompt)
    return Sitting(header, invocation, tuple(takes))


def _prompts(invocation: Invocation, header: Header, told: bytes) -> list[str]:
    """The prompts in order: the messages from stdin, or the one of the command line with what was piped in."""
    if invocation.streams.input_format == "stream-json" or (
        dialect_called(header.dialect).frames and not invocation.prompt
    ):
        messages = [text for line in told.split(b"\n") if (text := _message(line)) is not None]
        if messages or invocation.streams.input_format == "stream-json":
            return messages
    asks = invocation.permissions.permission_prompt_tool == "stdio"
    answers = asks and invocation.prompt  # then stdin has answers, not text
    piped = "" if answers else told.decode("utf-8", "replace")
    return ["\n".join(part for part in (invocation.prompt or "", piped) if part.strip())]


_COUNTS = (b"i", b"I", b"s", b"n")  # letters


def _asked(path: str, reader: Reader) -> Iterator[Record]:
    """The records that say what was asked. The others are many, and are not parsed."""
    descriptor = open_cast(path)
    try:
        lines = LineSplitter()
        while chunk := os.read(descriptor, CHUNK_BYTES):
            for raw in lines.feed(chunk):
                if reader.header is None or raw[raw.find(b'"') + 1 : raw.find(b'"') + 2] in _COUNTS:
                    yield from reader.feed(raw + b"\n")
        reader.close()
    except OSError as error:
        raise CastError(f"{path!r} cannot be read: {error.strerror}") from None
    finally:
        os.close(descriptor)


def program_of(header: Header) -> str:
    """The program of ours that was called."""
    return dialect_called(header.dialect).program_of(header.argv)


def invocation_of(header: Header) -> Invocation:
    """The recorded command line, of the drop-in or of yume-cli; an empty one if it was refused."""
    if program_of(header) != "claude":
        call = parse_yume(header.argv)
        known = parse_uuid(call.session), parse_uuid(call.resume)
        return call.invocation().with_flags(session_id=known[0], resume=known[1])
    try:
        return parse(header.argv)
    except FrontendError:
        return Invocation()


def _message(line: bytes) -> str | None:
    """The text of a user's message; None for any other line."""
    if b'"user"' not in line:
        return None
    try:
        frame = orjson.loads(line)
        if frame.get("type") != "user":
            return None
        message = frame.get("message")
        if not isinstance(message, dict):
            message = {"role": "user", "content": frame.get("content")}
        return read_message({**frame, "message": message}, "").text
    except (ValueError, AttributeError):
        return None


def _identity(path: str, child: int) -> str:
    """A take's name in a session, made of the file's name without its folder, and of the child's number."""
    name = os.path.basename(path).removesuffix(SUFFIX)
    if len(name) > 100 or vendor_id(name) is None:
        name = hashlib.sha256(name.encode("utf-8", "surrogateescape")).hexdigest()[:16]
    return f"{name}:{child}"


def _files(path: str, cwd: str, environment: Mapping[str, str]) -> tuple[list[str], bool]:
    """The casts at a path, in the order of recording (their names begin with the time), and whether it is one file."""
    if not path or "\0" in path:
        raise FrontendError("replay: needs the path of a cast", hint=HINT)
    home = environment.get("HOME") or os.path.expanduser("~")
    full = os.path.join(cwd, os.path.join(home, path[2:]) if path.startswith("~/") else path)
    shown = printable(full)
    try:
        kind = os.stat(full).st_mode
        if stat.S_ISREG(kind):
            return [full], True
        if not stat.S_ISDIR(kind):
            raise FrontendError(f"the recording {shown} is neither a file nor a directory", hint=HINT)
        with os.scandir(full) as entries:
            found = [entry.path for entry in entries if entry.name.endswith(SUFFIX) and entry.is_file()]
    except OSError as error:
        raise FrontendError(f"the recording {shown} cannot be read: {error.strerror}", hint=HINT) from None
    if not found:
        raise FrontendError(f"the directory {shown} holds no cast (a file that ends in {SUFFIX})", hint=HINT)
    if len(found) > MOST_CASTS:
        raise FrontendError(f"the directory {shown} holds more than {MOST_CASTS} casts", hint="name a smaller one")
    return sorted(found), False


def _pace(environment: Mapping[str, str]) -> tuple[float, float | None]:
    """The speed and the longest pause in seconds, from the environment. FrontendError for a mistake."""
    found: list[float | None] = []
    for name in ("SHIM_REPLAY_SPEED", "SHIM_REPLAY_MAX_GAP"):
        given = environment.get(name)
        try:
            number = float(given) if given else None
        except ValueError:
            number = -1.0
        if number is not None and not 0 <= number < FASTEST:
            raise FrontendError(f"{name} is {given!r}, it must be a number that is not negative")
        found.append(number)
    return 1.0 if found[0] is None else found[0], found[1]
