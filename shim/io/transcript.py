"""Writes the transcript of a session. History views and the SDKs' `list_sessions` read this file
(contract F12).

A transcript line is a stream line with additional members at its start. Lines are therefore not
parsed: they are recognized by their start and copied (`transcript_lines`). Readers ignore members
that only the stream has. Each message contains the id of the previous message. For a resumed
session, the last message's id is read from the end of the file.

Folders above a project's folder may be symbolic links, because some people keep `~/.claude`
elsewhere. Symbolic links below these folders are not followed. Files that the shim did not create
are not changed. After an error, one line is printed on stderr, and the rest of the transcript is
not written. The turn always continues.
"""

import os
import stat
from collections.abc import Callable, Mapping

from shim.core.claude.usage import MessageUsageCounter
from shim.core.reading.json_text import dump_json
from shim.core.reading.typed import TYPE_CHECKING, NamedTuple
from shim.core.reading.values import canonicalize_uuid
from shim.io.ids import create_uuid, format_now
from shim.io.stderr import warn
from shim.io.transcript_lines import (
    UUID_CHARS,
    TranscriptUsageUpdater,
    encode_project_folder_name,
    extract_prompt_title,
    find_last_message_uuid_as_json,
    list_message_line_spans,
    list_user_message_uuids,
    select_transcript_lines,
)

if TYPE_CHECKING:
    from shim.core.claude.resume_point import ResumePoint

MAX_FILE_BYTES = 256 * 1024 * 1024  # readers load complete transcripts, and skip larger files
TAIL_BYTES = 64 * 1024  # the part of an existing file that is searched for the last message id
MAX_ENTRYPOINT_CHARS = 64  # limited because every line contains the entrypoint

# The start of every transcript that the shim creates. A session store may reorder the members of a
# line. A file that another program wrote is not changed.
FILE_PREFIX = b'{"parentUuid":null,"isSidechain":false,"shim":true,'

# The first line shows which program wrote a file. A longer first line is not read.
MAX_FIRST_LINE_BYTES = 1024 * 1024

_INIT_PREFIX = b'{"type":"system","subtype":"init",'
_SESSION_ID_KEY = b'"session_id":"'


# The size of the part at the end of a transcript that is searched for message ids.
MAX_RESUMED_BYTES = 16 * 1024 * 1024


def read_user_message_uuids(path: str) -> list[str]:
    """Return the ids of the user messages in a transcript, or [] if the file cannot be read."""
    return list_user_message_uuids(read_transcript_end(path))


def read_transcript_end(path: str) -> bytes:
    """Return the last part of a transcript. Return b"" if the file cannot be read."""
    try:
        with open(path, "rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - MAX_RESUMED_BYTES))
            return file.read(MAX_RESUMED_BYTES)
    except OSError:
        return b""


def is_shim_transcript(data: bytes) -> bool:
    """Return whether the start of a transcript was written by the shim."""
    if data.startswith(FILE_PREFIX):
        return True
    first_line = data[: data.find(b"\n") + 1]
    if not first_line:
        return False
    from shim.core.claude.resume_point import parse_transcript_entry

    entry = parse_transcript_entry(first_line)
    return entry is not None and entry.line.get("shim") is True


class _Prompt(NamedTuple):
    """A user message for the transcript: its text or content blocks, and the frontend's id."""

    content: object
    uuid: str | None = None
    is_command_text: bool = False  # the text of the command that the previous prompt invoked


class Transcript:
    """Appends the messages of one session to its transcript file. Nothing is written until the
    session id is known.
    """

    def __init__(
        self,
        environment: Mapping[str, str],
        cwd: str,
        version: str,
        redact: Callable[[object], object] | None = None,
        usage_counter: MessageUsageCounter | None = None,
        forked_from: str = "",
        resume_point: "ResumePoint | None" = None,
    ) -> None:
        """Create the transcript.

        redact         removes secrets from prompts and the folder name; stream lines are already
                       redacted
        usage_counter  provides the token usage of the messages
        forked_from    the path of the original session's transcript, which is copied for a fork
        resume_point   the message after which the transcript continues, if later messages of the
                       resumed session are dropped
        """
        self._redact = redact
        self._projects_dir = get_projects_dir(environment, cwd)
        self._cwd = cwd
        self._version = version
        # History lists omit sessions whose entrypoint is a program.
        self._entrypoint = environment.get("CLAUDE_CODE_ENTRYPOINT") or "sdk-cli"
        self._file_name: str | None = None
        self._forked_from = forked_from
        self._resume_point = resume_point
        self._descriptor: int | None = None
        self._is_closed = not self._projects_dir
        self._size_bytes = 0
        self._mirrored_bytes = 0  # the size of the part that `take_new_entries` has returned
        self._parent_uuid = b"null"
        self._constant_members = b""
        self._missing_newline = b""
        # The next turn's prompt and the text of its command. They wait for the session id.
        self._pending_prompts: list[_Prompt] = []
        self._last_prompt = ""
        self._title = ""  # the title that the frontend has given to the session
        self._is_title_pending = False  # the title is not in the file yet
        self._usage_writer = TranscriptUsageUpdater(usage_counter)

    def start_new_session(self) -> None:
        """Close the session's file. The next `init` line has the id of the new session."""
        self.close()
        self._is_closed = not self._projects_dir
        self._file_name = None
        self._forked_from = self._last_prompt = self._title = ""
        self._resume_point = None
        self._size_bytes = self._mirrored_bytes = 0
        self._parent_uuid = b"null"
        self._missing_newline = b""
        self._usage_writer.offsets.clear()

    def open(self, session_id: str) -> None:
        """Set the session id, and write a prompt that arrived earlier. Only the first call has an
        effect.

        The file is created with its first line. If the shim created the file in an earlier run, new
        lines are appended.
        """
        if self._file_name is not None or canonicalize_uuid(session_id) is None:
            return
        self._file_name = f"{session_id}.jsonl"
        self._constant_members = (
            b',"isSidechain":false,"shim":true,"userType":"external","entrypoint":'
            + dump_json(self._entrypoint[:MAX_ENTRYPOINT_CHARS])
            + b',"cwd":'
            + dump_json(self._cwd if self._redact is None else self._redact(self._cwd))
            + b',"sessionId":'
            + dump_json(session_id)
            + b',"version":'
            + dump_json(self._version)
            + b',"timestamp":"'
        )
        pending_prompts = self._pending_prompts
        self._pending_prompts = []
        for prompt in pending_prompts:
            self._write_prompt(prompt)

    def write_prompt(self, content: object, uuid: str | None = None) -> None:
        """Write a user message, as text or content blocks, when its turn starts. `uuid` is the
        frontend's id for the message.
        """
        if self._file_name is None:
            self._pending_prompts.clear()
        self._write_prompt(_Prompt(content, uuid))

    def write_command_text(self, text: str) -> None:
        """Write the text of the command that the last prompt invoked. History views hide this
        line.
        """
        self._write_prompt(_Prompt(text, is_command_text=True))

    def _write_prompt(self, prompt: "_Prompt") -> None:
        if self._file_name is None:
            self._pending_prompts.append(prompt)
            return
        if not self._ensure_open():
            return
        content = prompt.content
        if self._redact is not None:
            content = self._redact(content)
        uuid = prompt.uuid
        message_uuid = dump_json(uuid if canonicalize_uuid(uuid) else create_uuid())
        tail = b'},"uuid":'
        if prompt.is_command_text:
            tail = b'},"isMeta":true,"uuid":'
        message = b'"type":"user","message":{"role":"user","content":' + dump_json(content)
        self._append_lines(
            [
                b'{"parentUuid":',
                self._parent_uuid,
                self._build_front_members(),
                message,
                tail,
                message_uuid,
                b"}\n",
            ]
        )
        self._parent_uuid = message_uuid
        if not prompt.is_command_text:
            title = extract_prompt_title(content)
            if title:
                self._last_prompt = title
        if self._is_title_pending:
            self._write_title()

    def write_lines(self, data: bytes) -> None:
        """Write the messages of the main conversation from complete stream lines.

        The session id comes from the first `init` line, unless `open` was called before.
        """
        if self._file_name is None:
            self._open_from_init(data)
        if self._file_name is None or self._is_closed:
            return
        pieces: list[bytes] = []
        new_offsets: dict[bytes, int] = {}
        offsets = self._usage_writer.offsets
        size_bytes = 0
        for line in list_message_line_spans(data):
            if not self._ensure_open():
                return
            front_members = b'{"parentUuid":%b%b' % (self._parent_uuid, self._build_front_members())
            is_first = line.message_id not in offsets and line.message_id not in new_offsets
            line_pieces = (
                front_members,
                *line.split_line_around_usage_json(data, is_first_of_message=is_first),
            )
            if is_first and line.message_id:
                new_offsets[line.message_id] = size_bytes + len(front_members) + len(line_pieces[1])
            pieces += line_pieces
            size_bytes += sum(map(len, line_pieces))
            self._parent_uuid = data[line.end - UUID_CHARS - 4 : line.end - 2]
        if pieces:
            start = self._append_lines(pieces)
            offsets.update(
                (message_id, start + offset) for message_id, offset in new_offsets.items()
            )
        self._write_usage()

    def _write_usage(self) -> None:
        """Overwrite the token usage of earlier messages if it has changed."""
        if self._descriptor is not None:
            try:
                self._usage_writer.write_changed_usage(self._descriptor)
            except OSError as error:
                reason = error.strerror
                if not reason:
                    reason = str(error)
                self._stop_writing(reason)

    def _open_from_init(self, data: bytes) -> None:
        start = 0
        if not data.startswith(_INIT_PREFIX):
            start = data.find(b"\n" + _INIT_PREFIX) + 1
        id_start = data.find(_SESSION_ID_KEY, start) + len(_SESSION_ID_KEY)
        if data.startswith(_INIT_PREFIX, start) and id_start >= len(_SESSION_ID_KEY):
            self.open(data[id_start : id_start + UUID_CHARS].decode("ascii", "replace"))

    @property
    def path(self) -> str:
        """The path of the file, or "" if the session id is not known yet."""
        if self._file_name is None:
            return ""
        folder = encode_project_folder_name(self._cwd)
        return f"{self._projects_dir}/{folder}/{self._file_name}"

    def take_new_entries(self) -> bytes:
        """Return the complete lines that were appended since the last call, as they are in the file
        now. For a fork, the first call returns its history, too.
        """
        if self._descriptor is None:
            return b""
        size_bytes = os.fstat(self._descriptor).st_size - self._mirrored_bytes
        data = os.pread(self._descriptor, max(0, size_bytes), self._mirrored_bytes)
        data = data[: data.rfind(b"\n") + 1]
        self._mirrored_bytes += len(data)
        return data

    def write_title(self, title: str) -> None:
        """Write the title that the frontend has given to the session, or write it after the first
        prompt. The title is repeated at the end of the file, where history lists look for it.
        """
        self._title = title
        self._is_title_pending = True
        self._write_title()

    def _write_title(self) -> None:
        if self._descriptor is not None and self._title:
            self._is_title_pending = False
            title = self.redact_value(self._title)
            values = dump_json(title), dump_json(str(self._file_name).removesuffix(".jsonl"))
            self._append_lines(
                [b'{"type":"custom-title","customTitle":%b,"sessionId":%b}\n' % values]
            )

    def write_last_prompt(self) -> None:
        """Write the last prompt, unless no prompt was written since the last call."""
        if self._descriptor is not None and self._last_prompt:
            values = (
                dump_json(self._last_prompt),
                self._parent_uuid,
                dump_json(str(self._file_name).removesuffix(".jsonl")),
            )
            self._append_lines(
                [b'{"type":"last-prompt","lastPrompt":%b,"leafUuid":%b,"sessionId":%b}\n' % values]
            )
            self._last_prompt = ""

    def close(self) -> None:
        """Write the last prompt and the title at the end of the file, where history lists look for a
        title. Close the file.
        """
        self.write_last_prompt()
        self._write_title()
        self._close_file()

    def _build_front_members(self) -> bytes:
        """Return the JSON members between the parent message's id and the line's own members."""
        return b'%b%b",' % (self._constant_members, format_now().encode())

    def _ensure_open(self) -> bool:
        """Open the file unless it is already open. Return whether the file can be written."""
        if self._descriptor is None and not self._is_closed:
            try:
                self._open_file()
            except OSError as error:
                reason = error.strerror
                if not reason:
                    reason = str(error)
                self._stop_writing(reason)
        return not self._is_closed

    def open_project_folder(self) -> int:
        """Open the folder for the project's transcripts. Create it if it is missing."""
        for path in (os.path.dirname(self._projects_dir), self._projects_dir):
            os.makedirs(path, mode=0o700, exist_ok=True)
        projects_descriptor = open_folder(self._projects_dir, None)
        try:
            project_name = encode_project_folder_name(self._cwd)
            try:
                os.mkdir(project_name, 0o700, dir_fd=projects_descriptor)
            except FileExistsError:
                pass
            return open_folder(project_name, projects_descriptor)
        finally:
            os.close(projects_descriptor)

    def redact_value(self, value: object) -> object:
        """Return a value without secrets, if secrets are removed from the transcript."""
        if self._redact is None:
            return value
        return self._redact(value)

    def build_subagent_members(self, agent_id: str) -> bytes:
        """Return the JSON members after the parent message's id in a line of a subagent."""
        sidechain = b'"isSidechain":true,"agentId":' + dump_json(agent_id)
        return self._build_front_members().replace(b'"isSidechain":false', sidechain, 1)

    def _open_file(self) -> None:
        folder_descriptor = self.open_project_folder()
        try:
            flags = os.O_RDWR | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            try:
                self._descriptor = os.open(
                    str(self._file_name),
                    flags | os.O_CREAT | os.O_EXCL,
                    0o600,
                    dir_fd=folder_descriptor,
                )
                self._copy_history(self._descriptor)
            except FileExistsError:
                self._descriptor = os.open(str(self._file_name), flags, dir_fd=folder_descriptor)
                self._continue_file(self._descriptor)
        finally:
            os.close(folder_descriptor)

    def _copy_history(self, descriptor: int) -> None:
        """Copy the original session's lines into the transcript of a fork. The session id is
        replaced by the fork's id.
        """
        original_id = os.path.basename(self._forked_from).removesuffix(".jsonl")
        data = b""
        if original_id:
            data = read_transcript_end(self._forked_from)
        # the original is missing, too long, or was not written by the shim
        if not is_shim_transcript(data):
            return
        data = data[: data.rfind(b"\n") + 1]
        point = self._resume_point
        if point is not None:
            data = select_transcript_lines(data, point.history_uuids)
        session_id = str(self._file_name).removesuffix(".jsonl")
        for key in (
            b'"sessionId":',
            b'"session_id":',
        ):  # this cannot match inside a JSON string, because its quotes are escaped
            data = data.replace(key + dump_json(original_id), key + dump_json(session_id))
        while data:
            count = os.write(descriptor, data)
            self._size_bytes += count
            self._parent_uuid = find_last_message_uuid_as_json(data[-TAIL_BYTES:])
            data = data[count:]
        if point is not None:
            self._parent_uuid = dump_json(point.uuid)

    def _continue_file(self, descriptor: int) -> None:
        """Prepare to append to the file. Raise OSError if the shim did not create it."""
        status = os.fstat(descriptor)
        is_shim_file = (
            stat.S_ISREG(status.st_mode) and status.st_uid == os.getuid() and status.st_nlink == 1
        )
        if not is_shim_file or not is_shim_transcript(
            os.pread(descriptor, MAX_FIRST_LINE_BYTES, 0)
        ):
            raise OSError("the file exists and was not created by the shim")
        self._size_bytes = status.st_size
        self._mirrored_bytes = status.st_size
        tail = os.pread(descriptor, TAIL_BYTES, max(0, status.st_size - TAIL_BYTES))
        # The last line may be incomplete, because the shim was killed or the disk was full.
        if tail.endswith(b"\n"):
            self._missing_newline = b""
        else:
            self._missing_newline = b"\n"
        if self._resume_point is None:
            self._parent_uuid = find_last_message_uuid_as_json(tail)
        else:  # the dropped messages stay in the file, as another branch of the conversation
            self._parent_uuid = dump_json(self._resume_point.uuid)

    def _append_lines(self, pieces: list[bytes]) -> int:
        """Append complete lines in a single write, so that lines of other processes cannot be mixed
        in.

        Return the file position of the first line.
        """
        if self._descriptor is None or self._is_closed:
            return 0
        lines = b"".join(pieces)
        data = self._missing_newline + lines
        self._size_bytes += len(data)
        if self._size_bytes > MAX_FILE_BYTES:
            self._stop_writing(
                f"the file would be larger than {MAX_FILE_BYTES // (1024 * 1024)} MB"
            )
            return 0
        self._missing_newline = b""
        try:
            while data:
                data = data[os.write(self._descriptor, data) :]
            return os.lseek(self._descriptor, 0, os.SEEK_CUR) - len(lines)
        except OSError as error:
            reason = error.strerror
            if not reason:
                reason = str(error)
            self._stop_writing(reason)
            return 0

    def _stop_writing(self, reason: str) -> None:
        warn(f"no transcript is written to {self.path}: {reason}\n")
        self._close_file()

    def _close_file(self) -> None:
        self._is_closed = True
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def build_transcript_path(environment: Mapping[str, str], cwd: str, session_id: str) -> str:
    """Return the path of a session's transcript, or "" if the home folder is not known."""
    projects_dir = get_projects_dir(environment, cwd)
    if not projects_dir:
        return ""
    return f"{projects_dir}/{encode_project_folder_name(cwd)}/{session_id}.jsonl"


def get_projects_dir(environment: Mapping[str, str], cwd: str) -> str:
    """Return the folder that contains all transcripts, or "" if the home folder is not known."""
    home = environment.get("HOME")
    if not home:
        home = os.path.expanduser("~")
    config_dir = environment.get("CLAUDE_CONFIG_DIR")
    if not config_dir:
        config_dir = ""
        if os.path.isabs(home):
            config_dir = os.path.join(home, ".claude")
    if config_dir:
        return os.path.join(cwd, config_dir, "projects")
    return ""


def open_folder(path: str, parent: int | None) -> int:
    """Open a folder that belongs to the current user and that other users cannot write to. A folder
    inside `parent` must not be a symbolic link.
    """
    nofollow_flag = 0
    if parent is not None:
        nofollow_flag = os.O_NOFOLLOW
    descriptor = os.open(
        path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | nofollow_flag, dir_fd=parent
    )
    status = os.fstat(descriptor)
    if status.st_uid != os.getuid() or status.st_mode & 0o002:
        os.close(descriptor)
        raise OSError("the folder is owned by another user, or is writable by others")
    return descriptor
