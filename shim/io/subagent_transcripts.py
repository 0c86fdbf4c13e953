"""Writes the transcripts of a session's subagents, in the folder `SESSION/subagents` beside the
session's transcript.

A subagent has two files: `agent-ID.jsonl` with its messages, and `agent-ID.meta.json` with the tool
call that runs it. After an error, one line is printed on stderr, and no more transcripts of
subagents are written.
"""

import os

from shim.core.claude.subagent_log import SubagentChange, SubagentEntry, SubagentLog
from shim.core.errors import explain_os_error
from shim.core.reading.json_text import dump_json
from shim.core.reading.typed import Any
from shim.io.ids import create_uuid
from shim.io.stderr import warn
from shim.io.transcript import MAX_FILE_BYTES, Transcript, open_folder

FOLDER = "subagents"
_NEW_FILE_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class SubagentTranscripts:
    """Writes the messages of subagents that a log has collected.

    transcript  the session's transcript, which provides the session id and the folder
    log         collects the messages
    mirrored    entries are also kept for the frontend's session store, until they are taken
    """

    def __init__(self, transcript: Transcript, log: SubagentLog, *, mirrored: bool = False) -> None:
        self._transcript = transcript
        self._log = log
        self._is_mirrored = mirrored
        self._new_entries: dict[str, list[bytes]] = {}  # by the path of the transcript
        self._parents: dict[str, bytes] = {}  # agent id → id of the agent's last message, as JSON
        self._size_bytes = 0
        self._has_failed = False

    def write_new_messages(self) -> None:
        """Write everything that was collected since the last call."""
        for change in self._log.take_changes():
            if self._has_failed or not self._transcript.path:
                return
            try:
                self._write_change(change)
            except OSError as error:
                self._has_failed = True
                warn(f"no transcripts of subagents are written: {explain_os_error(error)}\n")

    def take_new_entries(self) -> dict[str, list[bytes]]:
        """Return the entries since the last call, by the path of their transcript."""
        entries = self._new_entries
        self._new_entries = {}
        return entries

    def _write_change(self, change: SubagentChange) -> None:
        name = f"agent-{change.agent_id}"
        if change.entry is not None:
            entry = self._encode_entry(change.agent_id, change.entry)
            self._write_file(f"{name}.jsonl", entry + b"\n", os.O_APPEND)
            self._record_entry(name, entry)
        if change.metadata is not None:
            metadata: Any = self._transcript.redact_value(change.metadata)
            self._write_file(f"{name}.meta.json", dump_json(metadata), os.O_TRUNC)
            self._record_entry(name, dump_json({"type": "agent_metadata", **metadata}))

    def _record_entry(self, name: str, entry: bytes) -> None:
        if self._is_mirrored:
            folder = self._transcript.path.removesuffix(".jsonl")
            path = f"{folder}/{FOLDER}/{name}.jsonl"
            self._new_entries.setdefault(path, []).append(entry)

    def _encode_entry(self, agent_id: str, entry: SubagentEntry) -> bytes:
        message: Any = self._transcript.redact_value(entry.message)
        uuid = dump_json(entry.uuid or create_uuid())
        members = (
            self._parents.get(agent_id, b"null"),
            self._transcript.build_subagent_members(agent_id),
            dump_json(entry.role),
            dump_json(message),
            uuid,
        )
        self._parents[agent_id] = uuid
        return b'{"parentUuid":%b%b"type":%b,"message":%b,"uuid":%b}' % members

    def _write_file(self, name: str, data: bytes, flag: int) -> None:
        self._size_bytes += len(data)
        if self._size_bytes > MAX_FILE_BYTES:
            raise OSError(f"they would be larger than {MAX_FILE_BYTES // (1024 * 1024)} MB")
        folder = self._open_folder()
        try:
            descriptor = os.open(name, _NEW_FILE_FLAGS | flag, 0o600, dir_fd=folder)
        finally:
            os.close(folder)
        try:
            while data:
                data = data[os.write(descriptor, data) :]
        finally:
            os.close(descriptor)

    def _open_folder(self) -> int:
        """Open the folder for the files. Create it if it is missing."""
        folder = self._transcript.open_project_folder()
        session = os.path.basename(self._transcript.path).removesuffix(".jsonl")
        for name in (session, FOLDER):
            try:
                os.mkdir(name, 0o700, dir_fd=folder)
            except FileExistsError:
                pass
            except OSError:
                os.close(folder)
                raise
            try:
                subfolder = open_folder(name, folder)
            finally:
                os.close(folder)
            folder = subfolder
        return folder
