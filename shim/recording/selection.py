"""Selects the recorded child that answers a message. In a single recording, the next child answers.
In a folder, the child with the same prompt answers.
"""

import os
import stat
from collections.abc import Iterator, Mapping

from shim.core.adapter.adapter import Adapter, LaunchRequest, LaunchSpec, encode_prompt_stdin
from shim.core.cast.format import CAST_SUFFIX, RecordingError
from shim.core.errors import FailedVendorAttempt, FrontendError, VendorError
from shim.core.reading.values import as_str, canonicalize_uuid, escape_control_chars
from shim.recording.folders import is_cast_file
from shim.recording.recorded_run import (
    MAX_PROMPT_CHARS,
    RecordedChild,
    RecordedRun,
    load_recorded_run,
    parse_user_message_text,
)
from shim.recording.replay_adapter import build_replay_adapter
from shim.recording.replay_request import ReplayRequest, format_replay_args
from shim.state.config import get_home_dir

MAX_CASTS = 10_000  # recordings in a folder
MAX_LISTED_PROMPTS = 5  # recorded prompts in an error message
MAX_EXCERPT_CHARS = 60  # the length of a prompt in an error message
MAX_PACE_VALUE = 1e6  # the highest speed, and the longest pause in seconds
PATH_HINT = "`SHIM_VENDOR=replay:PATH` expects a recording or a directory of recordings"


class RecordingSet:
    """The recordings at a path. The constructor raises FrontendError if there are none.

    If `vendor_name` is set, only children of that vendor are selected.
    """

    def __init__(
        self, path: str, cwd: str, environment: Mapping[str, str], vendor_name: str = ""
    ) -> None:
        self._files, self._is_single_file = _resolve_files(path, cwd, environment)
        self._loaded_runs: list[RecordedRun] = []
        self._used_ids: set[str] = set()
        self._pace = _parse_pace(environment)
        self.child_id = ""  # the id of the last selected child
        self._failed_attempts: tuple[FailedVendorAttempt, ...] = ()
        self._vendor_name = vendor_name
        self.requested_vendor = ""  # the vendor in the header of the recording
        self._report_name = ""  # the file name of the vendor's report
        # Passthrough sends the vendor's lines unchanged, so they must have the frontend's session id.
        self._is_passthrough = False

    def create_replay_adapter(
        self, prompt: str | None, resumed_child_id: str, *, without_passthrough: bool
    ) -> Adapter:
        """Return the replay adapter for the recording that has this prompt or child, or for the
        first recording if none matches. Raise FrontendError if no recording can be read.
        """
        run = self._find_run(prompt, resumed_child_id)
        self._vendor_name = run.vendor
        self.requested_vendor = run.header.vendor
        try:
            adapter = build_replay_adapter(
                run.vendor,
                self,
                persistent=any(child.reads_lines for child in run.children),
                without_passthrough=without_passthrough,
            )
        except FrontendError:
            display_name = escape_control_chars(run.vendor)[:40]
            path = "the recording"
            if run.children:
                path = escape_control_chars(run.children[0].path)
            raise FrontendError(
                f"{path} was recorded with the unknown vendor {display_name!r}"
            ) from None
        self._is_passthrough = adapter.passthrough and not without_passthrough
        if adapter.environment.run_report is not None:
            self._report_name = adapter.environment.run_report.file_name
        return adapter

    def _find_run(self, prompt: str | None, child_id: str) -> RecordedRun:
        first_run: RecordedRun | None = None
        for run in self._load_runs():
            if not first_run:
                first_run = run
            if any(child.id == child_id for child in run.children):
                return run
            if prompt and any(child.prompt == prompt for child in run.children):
                return run
        if first_run is None:
            raise FrontendError("no recording in the directory can be read", hint=PATH_HINT)
        return first_run

    def build_launch(self, request: LaunchRequest) -> LaunchSpec:
        """Return the launch parameters for a player that replays the next child. Raise VendorError
        if no recording answers the message.
        """
        child = self.select_recorded_child(
            request.prompt,
            as_str(request.resume_id),
            allows_prompt_suffix=bool(request.invocation.json_schema),
        )
        self.child_id = child.id
        self._failed_attempts = child.failed_attempts
        self._used_ids.add(child.id)
        speed, max_gap_s = self._pace
        session = ""
        if self._is_passthrough:
            session = as_str(
                request.invocation.session_id or canonicalize_uuid(request.invocation.resume)
            )
        folder = ""
        if not (self._is_single_file or request.prompt):
            folder = os.path.dirname(child.path)
        report = ""
        if request.files.report_folder:
            report = os.path.join(request.files.report_folder, self._report_name)
        replay_request = ReplayRequest(
            child.path,
            child=child.number,
            speed=speed,
            max_gap=max_gap_s,
            signals=True,
            session=session,
            folder=folder,
            report=report,
        )
        return LaunchSpec(
            tuple(format_replay_args(replay_request)),
            b"" if request.persistent else encode_prompt_stdin(request.prompt),
        )

    def select_recorded_child(
        self, prompt: str, resumed_child_id: str, *, allows_prompt_suffix: bool = False
    ) -> RecordedChild:
        """Return the child that answers a prompt. `prompt` is "" if it is not known yet.

        If `allows_prompt_suffix` is true, the prompt may end with text that the shim added.
        Children after the session's last child are preferred. Among children of other
        recordings, a child that no signal has stopped is preferred, because the replay of a stopped
        child waits for a signal from the user. Raise VendorError if no child matches.
        """
        last_child_id = resumed_child_id or self.child_id
        children = list(self._list_children())
        ids = [child.id for child in children]
        start = 0
        if last_child_id in ids:
            start = ids.index(last_child_id) + 1
        later = children[start:]

        def match(candidates: list[RecordedChild], prompt: str) -> list[RecordedChild]:
            return [
                child
                for child in candidates
                if _matches_prompt(child, prompt, allows_prompt_suffix)
            ]

        if self._is_single_file:
            matches = match(later, prompt) or later
        else:
            unused = [
                child
                for child in (*later, *children[:start])
                if child.id not in self._used_ids and child.id != last_child_id
            ]
            matches = unused
            if prompt:
                matches = match(unused, prompt)
            if not matches:
                from shim.core.secrets.redactor import Redactor

                # A redacted recording contains the redacted prompt.
                matches = match(unused, Redactor().redact_text(prompt))
            if not matches:
                matches = [child for child in unused if child.prompt is None]
        if not matches:
            raise VendorError(*self._explain_no_match(prompt, children))
        if matches[0].recording_id == last_child_id.rpartition(":")[0]:
            return matches[0]
        first_by_path: dict[str, RecordedChild] = {}
        for child in matches:
            first_by_path.setdefault(child.path, child)
        return min(first_by_path.values(), key=lambda child: child.was_stopped)

    def get_failed_vendor_attempts(self) -> tuple[FailedVendorAttempt, ...]:
        """Return the vendors that failed before the last selected child answered."""
        return self._failed_attempts

    def has_session(self, session_id: str) -> bool:
        return any(
            session_id
            in (
                run.invocation.session_id,
                canonicalize_uuid(run.invocation.resume),
            )
            for run in self._load_runs()
        )

    def _explain_no_match(self, prompt: str, children: list[RecordedChild]) -> tuple[str, str]:
        """Return the error and the hint for a message that no recording answers."""
        excerpt = repr(escape_control_chars(prompt[:MAX_EXCERPT_CHARS]))
        if self._is_single_file:
            return (
                (f"the recording has only {len(children)} answers, and none is left for {excerpt}"),
                "start a new conversation",
            )
        prompts = dict.fromkeys(
            repr(escape_control_chars(child.prompt[:MAX_EXCERPT_CHARS]))
            for child in children
            if child.prompt
        )
        prompt_list = ", ".join(list(prompts)[:MAX_LISTED_PROMPTS])
        if len(prompts) > MAX_LISTED_PROMPTS:
            prompt_list += f" and {len(prompts) - MAX_LISTED_PROMPTS} more"
        return (
            f"no recording of {self._vendor_name} contains the prompt {excerpt}",
            f"the recorded prompts are: {prompt_list or 'none'}",
        )

    def _list_children(self) -> Iterator[RecordedChild]:
        """Yield the children of the recorded vendor, in recording order."""
        for run in self._load_runs():
            yield from (
                child
                for child in run.children
                if child.vendor == self._vendor_name or not self._vendor_name
            )

    def _load_runs(self) -> Iterator[RecordedRun]:
        """Yield the recorded runs. Each file is loaded only once. Other files in a folder are
        skipped.
        """
        yield from self._loaded_runs
        while self._files:
            path = self._files.pop(0)
            try:
                run = load_recorded_run(path)
            except RecordingError:
                if self._is_single_file:
                    raise
                continue
            if not run.children and not self._is_single_file:
                continue  # the recorded run was rejected or received no message
            self._loaded_runs.append(run)
            yield run


def find_recorded_child_by_message(line: bytes, path: str, folder: str) -> RecordedChild | None:
    """Return the recorded child in a folder whose first message is this line, or None.

    Only children of the vendor recorded at `path` are considered. The player calls this function if
    it was started before its first message.
    """
    recordings = RecordingSet(folder, folder, {}, load_recorded_run(path).vendor)
    prompt = parse_user_message_text(line)
    try:
        if prompt:
            return recordings.select_recorded_child(prompt, "")
        return None
    except VendorError:
        return None


def _matches_prompt(child: RecordedChild, prompt: str, allows_suffix: bool) -> bool:
    if child.prompt is None:
        return False
    if child.prompt == prompt[:MAX_PROMPT_CHARS]:
        return True
    return allows_suffix and prompt.startswith(child.prompt)


def _resolve_files(path: str, cwd: str, environment: Mapping[str, str]) -> tuple[list[str], bool]:
    """Return the recordings at a path, and whether the path is a single file. Recordings in a
    folder are sorted by name, which is the order of recording. Raise FrontendError if there are
    none.
    """
    if not path or "\0" in path:
        raise FrontendError("replay: requires the path of a recording", hint=PATH_HINT)
    full_path = os.path.join(cwd, path)
    if path.startswith("~/"):
        full_path = os.path.join(cwd, get_home_dir(environment), path[2:])
    display_path = escape_control_chars(full_path)
    try:
        mode = os.stat(full_path).st_mode
        if stat.S_ISREG(mode):
            return [full_path], True
        if not stat.S_ISDIR(mode):
            raise FrontendError(
                f"the recording {display_path} is neither a file nor a directory", hint=PATH_HINT
            )
        with os.scandir(full_path) as entries:
            paths = [entry.path for entry in entries if is_cast_file(entry)]
    except OSError as error:
        raise FrontendError(
            f"the recording {display_path} cannot be read: {error.strerror}", hint=PATH_HINT
        ) from None
    if not paths:
        raise FrontendError(
            f"the directory {display_path} has no recording (a file that ends in {CAST_SUFFIX})",
            hint=PATH_HINT,
        )
    if len(paths) > MAX_CASTS:
        raise FrontendError(
            f"the directory {display_path} has more than {MAX_CASTS} recordings",
            hint="use a smaller directory",
        )
    return sorted(paths), False


def _parse_pace(environment: Mapping[str, str]) -> tuple[float, float | None]:
    """Read the speed and the longest pause in seconds (or None) from the environment. Raise
    FrontendError for an invalid value.
    """
    values: list[float | None] = []
    for name in ("SHIM_REPLAY_SPEED", "SHIM_REPLAY_MAX_GAP"):
        value = environment.get(name)
        try:
            number = None
            if value:
                number = float(value)
        except ValueError:
            number = -1.0
        if number is not None and not 0 <= number < MAX_PACE_VALUE:
            raise FrontendError(f"{name} is {value!r}; it must be a number that is not negative")
        values.append(number)
    return 1.0 if values[0] is None else values[0], values[1]
