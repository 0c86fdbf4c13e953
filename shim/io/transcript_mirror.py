"""Copies a session's transcript to the frontend, which stores the copy (`session_store=` of the SDKs).

The real claude writes `transcript_mirror` lines between the other lines of its stream. A line names
the transcript file and contains new entries of this file. The entries of a turn come before the
turn's result, because the SDKs fill their store when they receive the result.
"""

import orjson

from shim.core.reading.json_text import dump_json
from shim.core.reading.limits import shorten_line_to_fit
from shim.core.reading.typed import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shim.io.subagent_transcripts import SubagentTranscripts
    from shim.io.transcript import Transcript

# The maximum length of a line with several entries. The Python SDK accepts 1 MiB.
MAX_MIRROR_LINE_BYTES = 256 * 1024

_RESULT_PREFIX = b'{"type":"result",'
_USER_PREFIX = b'{"type":"user",'


class TranscriptMirror:
    """Adds `transcript_mirror` lines to the stream.

    max_line_bytes        the size limit for a line; a longer entry is shortened, and 0 means no limit
    subagent_transcripts  the transcripts of subagents, which are mirrored, too
    """

    def __init__(
        self,
        transcript: "Transcript",
        max_line_bytes: int = 0,
        subagent_transcripts: "SubagentTranscripts | None" = None,
    ) -> None:
        self._transcript = transcript
        self._max_line_bytes = max_line_bytes
        self._subagent_transcripts = subagent_transcripts

    def add_new_entries(self, data: bytes) -> bytes:
        """Return stream lines with mirror lines before the turn's result, or after tool results.

        The transcript already contains the messages in `data`. The entries of an assistant message
        wait for a later line, because the vendor may still report the message's usage.
        """
        result_start = _find_line(data, _RESULT_PREFIX)
        if result_start is not None:
            self._transcript.write_last_prompt()
            return data[:result_start] + self.take_lines() + data[result_start:]
        if _find_line(data, _USER_PREFIX) is None:
            return data
        return data + self.take_lines()

    def take_lines(self) -> bytes:
        """Return mirror lines with all new entries of the transcripts."""
        entries = {self._transcript.path: self._transcript.take_new_entries().split(b"\n")}
        if self._subagent_transcripts is not None:
            entries |= self._subagent_transcripts.take_new_entries()
        return b"".join(
            line
            for path, file_entries in entries.items()
            for line in build_mirror_lines(path, file_entries, self._max_line_bytes)
        )


def build_mirror_lines(
    path: str, entries: list[bytes], max_line_bytes: int = 0
) -> "Iterator[bytes]":
    """Yield lines that mirror the entries of the transcript at `path`, in order."""
    line_start = b'{"type":"transcript_mirror","filePath":%b,"entries":[' % dump_json(path)
    line_end = b"]}\n"
    max_entry_bytes = max_line_bytes - len(line_start) - len(line_end)
    group: list[bytes] = []
    group_bytes = 0
    for entry in entries:
        if 0 < max_entry_bytes < len(entry):
            entry = dump_json(shorten_line_to_fit(orjson.loads(entry), max_entry_bytes))
        if group and group_bytes + len(entry) > MAX_MIRROR_LINE_BYTES:
            yield line_start + b",".join(group) + line_end
            group = []
            group_bytes = 0
        if entry:
            group.append(entry)
            group_bytes += len(entry)
    if group:
        yield line_start + b",".join(group) + line_end


def _find_line(data: bytes, prefix: bytes) -> int | None:
    """Return the offset of the first line with this start, or None."""
    if data.startswith(prefix):
        return 0
    offset = data.find(b"\n" + prefix)
    if offset < 0:
        return None
    return offset + 1
