"""Which recording answers a message: of one cast the next child, of a directory the one with the
same prompt.
"""

import os
import stat
from collections.abc import Iterator, Mapping

from shim.adapters import build_replay_adapter
from shim.core.adapter.vendor import Adapter, LaunchRequest, LaunchSpec, encode_stdin
from shim.core.cast.records import CAST_SUFFIX, CastError
from shim.core.errors import FailedAttempt, FrontendError, VendorError
from shim.core.reading.account import escape_control_chars
from shim.core.reading.ids import parse_uuid
from shim.recording.folders import is_cast
from shim.recording.playable_run import (
    MOST_PROMPTS,
    PlayableChild,
    PlayableRun,
    message_of,
    read_run,
)
from shim.recording.wanted import Wanted, words_of

MOST_CASTS = 10_000  # of a directory; nobody keeps an overview of more
SHOWN, SHOWN_CHARACTERS = 5, 60  # of the recorded prompts, in an error
FASTEST = 1e6  # the largest speed, and the longest gap in seconds, that is taken seriously
HINT = "`SHIM_VENDOR=replay:PATH` takes a cast, or a directory of them"


class Recordings:
    """The recordings at a path. FrontendError when there is none."""

    def __init__(self, path: str, cwd: str, environment: Mapping[str, str]) -> None:
        self._files, self._alone = _files(path, cwd, environment)
        self._read: list[PlayableRun] = []
        self._used: set[str] = set()
        self._pace = _pace(environment)
        self.place = ""
        self.asked = ""  # the vendor that the recording began with
        self._tried: tuple[FailedAttempt, ...] = ()
        self._vendor = ""
        self._report = ""  # the name of the file that the vendor writes about its run
        # the vendor's lines pass unchanged, so they must name the frontend's session
        self._verbatim = False

    def vendor(self, prompt: str | None, resumed: str, *, flat: bool) -> Adapter:
        """The stand-in for a recorded vendor: of the recording with this prompt or session, else of
        the first one.
        """
        first: PlayableRun | None = None
        for run in self._runs():
            first = first or run
            if any(
                child.identity == resumed or (prompt and child.prompt == prompt)
                for child in run.children
            ):
                first = run
                break
        if first is None:
            raise FrontendError("no recording there can be read", hint=HINT)
        self._vendor, self.asked = first.vendor, first.header.vendor
        name = self._vendor
        listens = any(child.listens for child in first.children)
        try:
            vendor = build_replay_adapter(
                name, self.launch, lambda: self.place, persistent=listens, flat=flat
            )
        except FrontendError:
            shown = escape_control_chars(name)[:40]
            place = (
                escape_control_chars(first.children[0].path) if first.children else "the recording"
            )
            raise FrontendError(f"{place} was recorded with the unknown vendor {shown!r}") from None
        self._verbatim = vendor.passthrough and not flat
        self._report = (
            vendor.environment.run_report.file_name
            if vendor.environment.run_report is not None
            else ""
        )
        return vendor

    def launch(self, request: LaunchRequest) -> LaunchSpec:
        """How the stand-in for the next child is started. VendorError when no recording answers the
        message.
        """
        child = self.choose(
            request.prompt, request.resume_id or "", asked=bool(request.invocation.json_schema)
        )
        self.place, self._tried = child.identity, child.tried
        self._used.add(child.identity)
        chosen = (
            request.invocation.session.session_id
            or parse_uuid(request.invocation.session.resume or "")
            or ""
        )
        session = chosen if self._verbatim else ""
        speed, most = self._pace
        folder = "" if self._alone or request.prompt else os.path.dirname(child.path)
        report = (
            os.path.join(request.files.report_folder, self._report)
            if request.files.report_folder
            else ""
        )
        wanted = Wanted(
            child.path, "vendor", child.number, speed, most, True, session, folder, report
        )
        return LaunchSpec(
            tuple(words_of(wanted)), b"" if request.persistent else encode_stdin(request.prompt)
        )

    def choose(self, prompt: str, resumed: str, *, asked: bool = False) -> PlayableChild:
        """The child that answers a prompt ("": not known yet). `asked`: the prompt may end in words
        that we added.

        VendorError when there is none. What follows the session's last child comes first, then
        recordings that were not stopped: one that was stopped waits for a signal, and would never
        end for a user who sends none.
        """
        place, before, behind = resumed or self.place, list[PlayableChild](), list[PlayableChild]()
        for child in self._children():
            behind.append(child)
            if child.identity == place:
                before, behind = [*before, *behind], []
        if self._alone:
            same = [child for child in behind if _answers(child, prompt, asked)] or behind
        else:
            fresh = [
                child
                for child in (*behind, *before)
                if child.identity not in self._used and child.identity != place
            ]
            same = [child for child in fresh if not prompt or _answers(child, prompt, asked)]
            if not same:
                from shim.core.secrets.redactor import Redactor

                blanked = Redactor().redact_text(prompt)  # as a recording without secrets has it
                same = [child for child in fresh if _answers(child, blanked, asked)]
            same = same or [child for child in fresh if child.prompt is None]
        if not same:
            raise VendorError(*self._nothing(prompt, [*before, *behind]))
        if same[0].cast == place.rpartition(":")[0]:
            return same[0]
        firsts = dict[str, PlayableChild]()
        for child in same:
            firsts.setdefault(child.path, child)
        return min(firsts.values(), key=lambda child: child.stopped)

    def tried(self) -> tuple[FailedAttempt, ...]:
        """The vendors that did not answer before the child that was chosen last."""
        return self._tried

    def only(self, vendor: str) -> None:
        self._vendor = vendor

    def knows(self, session_id: str) -> bool:
        return any(
            session_id
            in (run.invocation.session.session_id, parse_uuid(run.invocation.session.resume or ""))
            for run in self._runs()
        )

    def _nothing(self, prompt: str, children: list[PlayableChild]) -> tuple[str, str]:
        """The error for a message without a recording: why, and which prompts have one."""
        shown = repr(escape_control_chars(prompt[:SHOWN_CHARACTERS]))
        if self._alone:
            count = len(children)
            return (
                f"the recording has no more than {count} answers for {shown}",
                "start a new conversation",
            )
        prompts = dict.fromkeys(
            repr(escape_control_chars(child.prompt[:SHOWN_CHARACTERS]))
            for child in children
            if child.prompt
        )
        some = ", ".join(list(prompts)[:SHOWN]) + (
            f" and {len(prompts) - SHOWN} more" if len(prompts) > SHOWN else ""
        )
        return (
            f"no recording of {self._vendor} answers {shown}",
            f"the recorded prompts are: {some or 'none'}",
        )

    def _children(self) -> Iterator[PlayableChild]:
        """The children of the recorded vendor, in the order of recording."""
        for run in self._runs():
            yield from (
                child for child in run.children if child.vendor == self._vendor or not self._vendor
            )

    def _runs(self) -> Iterator[PlayableRun]:
        """The recordings, each read when it is asked for. In a directory, files that are no casts
        are skipped.
        """
        yield from self._read
        while self._files:
            path = self._files.pop(0)
            try:
                run = read_run(path)
            except CastError:
                if self._alone:
                    raise
                continue
            if not run.children and not self._alone:
                continue  # the run was refused, or nothing was asked: there is nothing to play
            self._read.append(run)
            yield run


def like(line: bytes, path: str, folder: str) -> PlayableChild | None:
    """The child in a folder whose first message was this line, of the same vendor as the recording
    at `path`.

    A stand-in that starts before the first message is known asks this.
    """
    recordings = Recordings(folder, folder, {})
    prompt = message_of(line)
    recordings.only(read_run(path).vendor)
    try:
        return recordings.choose(prompt, "") if prompt else None
    except VendorError:
        return None


def _answers(child: PlayableChild, prompt: str, asked: bool) -> bool:
    if child.prompt is None:
        return False
    return child.prompt == prompt[:MOST_PROMPTS] or (asked and prompt.startswith(child.prompt))


def _files(path: str, cwd: str, environment: Mapping[str, str]) -> tuple[list[str], bool]:
    """The casts at a path, in the order of recording (their names begin with the time), and whether
    it is one file.
    """
    if not path or "\0" in path:
        raise FrontendError("replay: needs the path of a cast", hint=HINT)
    home = environment.get("HOME") or os.path.expanduser("~")
    full = os.path.join(cwd, os.path.join(home, path[2:]) if path.startswith("~/") else path)
    shown = escape_control_chars(full)
    try:
        kind = os.stat(full).st_mode
        if stat.S_ISREG(kind):
            return [full], True
        if not stat.S_ISDIR(kind):
            raise FrontendError(
                f"the recording {shown} is neither a file nor a directory", hint=HINT
            )
        with os.scandir(full) as entries:
            found = [entry.path for entry in entries if is_cast(entry)]
    except OSError as error:
        raise FrontendError(
            f"the recording {shown} cannot be read: {error.strerror}", hint=HINT
        ) from None
    if not found:
        raise FrontendError(
            f"the directory {shown} holds no cast (a file that ends in {CAST_SUFFIX})", hint=HINT
        )
    if len(found) > MOST_CASTS:
        raise FrontendError(
            f"the directory {shown} holds more than {MOST_CASTS} casts", hint="name a smaller one"
        )
    return sorted(found), False


def _pace(environment: Mapping[str, str]) -> tuple[float, float | None]:
    """The speed and the longest pause in seconds, from the environment. FrontendError for a
    mistake.
    """
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
