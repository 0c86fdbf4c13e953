"""Blanks the secrets of a cast: those of a line before it is written, those that are split over
lines afterwards.

Each string of a line is cleaned by itself, and as a fragment of a text: the strings under one path
of keys in one stream form one text, and so do plain lines. When a secret turns out to be split, the
lines that are already written get an edit: the record's number, the string's number in it, and its
new text. `edited` applies edits to a record.
"""

import itertools
from collections.abc import Callable, Iterable
from typing import Any

import orjson

from shim.core.cast.seams import (
    JsonPath,
    SecretSpan,
    SpanCursor,
    StringChunk,
    TextJoiner,
    count_secret,
    find_secret_spans,
    replace_spans,
)
from shim.core.reading.json_text import (
    dump_json,
    find_long_integers,
    map_leaves,
    restore_long_integers,
)
from shim.core.secrets.mcp_servers import blank_server_values, has_mcp_servers
from shim.core.secrets.patterns import NAME_CONTEXT_CHARS, SECRET_NAME_ENDINGS
from shim.core.secrets.redactor import CUT_PLACEHOLDER, Redactor, has_no_secret_start

# Texts that are followed at the same time; a vendor has a few dozen paths with texts. When there
# are more, one that is not in the middle of a secret is dropped.
MAX_TEXT_JOINERS = 128
# of a text that may be a secret; a key has half of it
MAX_WINDOW_STRINGS, MAX_WINDOW_CHARS = 10_000, 128 * 1024
MAX_SNAPSHOT_CHARS = 4 * 1024 * 1024  # of texts that are printed repeatedly, each time longer
MAX_EDITS, MAX_EDIT_CHARS = 10_000, 16 * 1024 * 1024  # that wait for the end of the file
MAX_CUSTOM_MATCH_CHARS = (
    512  # the longest match of a user's own pattern that is found across strings
)
MAX_JSON_PATHS = (
    4000  # paths of keys; the strings under further ones are cleaned by themselves only
)
MAX_SAFE_HASHES = 20_000  # hashes of strings in which no secret begins; most strings come again

# Keys whose strings are whole words (an id, a kind, a name), and never fragments of a text.
_TOKEN_KEYS = frozenset((
    *("type", "subtype", "id", "uuid", "session_id", "sessionId", "message_id", "messageId", "request_id", "requestId"),
    *("tool_use_id", "toolCallId", "call_id", "parent_tool_use_id", "parentId", "responseId", "role", "model", "name"),
    *("toolName", "api", "provider", "timestamp", "stop_reason", "stopReason", "cwd", "session", "version", "object"),
))  # fmt: skip

SecretSearch = Callable[[str], Iterable[SecretSpan]]  # finds a user's own patterns in a text
StringEdit = tuple[int, str]  # the number of a string in its line, and its new text


class CastRedactor:
    """Cleans the records of one cast. `search` finds secrets besides the known kinds.

    `counts` are the secrets by kind. `lost`: more secrets were split over lines than `edits` can
    hold.
    """

    def __init__(self, search: SecretSearch | None = None) -> None:
        self.secret_counts: dict[str, int] = {}
        self.edits: dict[int, list[StringEdit]] = {}
        self.has_lost_edits = False
        self._custom_search = search
        self._redactor = Redactor(self.secret_counts)
        self._uncounted_redactor = Redactor()  # for second looks, which do not count again
        # by the letter of a stream; and a blank for lines that are no JSON
        self._root_paths: dict[str, JsonPath] = {}
        self._path_count = 0
        self._joiners: dict[JsonPath, TextJoiner] = {}
        self._safe_hashes: set[int] = set()
        self._current_chunk: StringChunk | None = None  # of the record that is not written yet
        self._snapshot_chars = 0
        self._record_number = -1
        self._string_number = 0
        self._edit_budget = [MAX_EDITS, MAX_EDIT_CHARS]

    def redact_record(self, letter: str, data: bytes, whole: bool = True) -> bytes:
        """The cleaned data of the next record, without its newline; the same object if nothing was
        found.

        `whole`: a newline follows the data.
        """
        self._record_number += 1
        self._string_number = 0
        if data[:1] in (b"{", b"["):
            try:
                value = orjson.loads(data)
                told = blank_server_values(value) if has_mcp_servers(data) else value
                clean = self._redact_value(
                    value if told == value else told,
                    self._root_paths.get(letter) or self._create_root_path(letter),
                )
            except (ValueError, RecursionError):
                pass
            else:
                return self._encode_record(data, value, clean)
        text = data.decode("utf-8", "surrogateescape")
        said = self._redact_fragment(
            text + "\n" * whole,
            self._root_paths.get(letter + " ") or self._create_root_path(letter + " "),
        )
        said = said[:-1] if whole and said.endswith("\n") else said
        return data if said == text else said.encode("utf-8", "surrogateescape")

    def _encode_record(self, data: bytes, value: Any, clean: Any) -> bytes:
        """The line as it came, unless its bytes hold more than its strings: a key that stands twice
        hides a value.
        """
        if clean is value:
            again = orjson.dumps(value)
            if len(again) == len(data) or not (found := self._find_secrets(data.decode())):
                return data
            if len(found) <= len(self._find_secrets(again.decode())):
                return data
        return dump_json(restore_long_integers(clean, find_long_integers(data)))

    def redact_fields(self, fields: Any) -> Any:
        """A fact, or the header, without secrets."""
        clean = self._redactor.redact_value(fields)
        return clean if self._custom_search is None else self._redact_custom_patterns(clean)

    def _redact_custom_patterns(self, value: Any) -> Any:
        if isinstance(value, str):
            return replace_spans(value, self._find_and_count_secrets(value, self.secret_counts))
        if isinstance(value, dict):
            return {
                self._redact_custom_patterns(key): self._redact_custom_patterns(item)
                for key, item in value.items()
            }
        if isinstance(value, list | tuple):
            return [self._redact_custom_patterns(item) for item in value]
        return value

    def close(self) -> None:
        """There are no more records: decide the texts that are still open."""
        for seam in self._joiners.values():
            self._close_joiner(seam)
        self._joiners.clear()

    # -- strings -----------------------------------------------------------------------------------

    def _create_root_path(self, name: str) -> JsonPath:
        place = self._root_paths[name] = JsonPath(None, names_secret=False, is_token=False)
        return place

    def _create_child_path(self, above: JsonPath, key: str) -> JsonPath:
        """The place of a key under another one."""
        found = self._find_and_count_secrets(key, self.secret_counts)
        own, named = (
            replace_spans(key, found) if found else None,
            key.lower().endswith(SECRET_NAME_ENDINGS),
        )
        if self._path_count >= MAX_JSON_PATHS:
            return JsonPath(own, names_secret=named, is_token=True)
        self._path_count += 1
        place = above.children[key] = JsonPath(own, names_secret=named, is_token=key in _TOKEN_KEYS)
        return place

    def _redact_value(self, value: Any, place: JsonPath) -> Any:
        """A value of JSON without secrets; the same object if there are none. Strings are numbered
        in their order.
        """
        if value.__class__ is dict:
            return self._redact_object(value, place)
        if value.__class__ is list:
            cleaned = [self._redact_value(item, place) for item in value]
            return (
                cleaned
                if any(one is not other for one, other in zip(cleaned, value, strict=True))
                else value
            )
        if value.__class__ is str:
            self._string_number += 1
            return self._redact_string(value, place)
        return value

    def _redact_object(self, table: dict[str, Any], above: JsonPath) -> dict[str, Any]:
        below, harmless = above.children, self._safe_hashes
        changed: dict[str, tuple[str, Any]] | None = None
        for key, item in table.items():
            place = below.get(key) or self._create_child_path(above, key)
            if item.__class__ is str:
                self._string_number += 1
                if hash(item) in harmless:
                    if place.is_token:
                        continue
                    seam = place.joiner
                    if seam is not None and not seam.chunks:
                        seam.add_safe_text(item)
                        continue
                said: Any = self._redact_string(item, place)
                if place.names_secret and said is item:
                    said = self._redact_named_value(key, item)
            elif item.__class__ is dict:
                said = self._redact_object(item, place)
            elif item.__class__ is list:
                said = self._redact_value(item, place)
            else:
                said = item
            if said is not item or place.redacted_key is not None:
                changed = {} if changed is None else changed
                changed[key] = key if place.redacted_key is None else place.redacted_key, said
        return (
            table
            if changed is None
            else dict(changed.get(key, (key, item)) for key, item in table.items())
        )

    def _redact_named_value(self, key: str, item: str) -> str:
        """The value of a key that names a secret."""
        if next(iter(self._uncounted_redactor.redact_value({key: item}).values())) == item:
            return item
        said: str = next(iter(self._redactor.redact_value({key: item}).values()))
        return said

    def _redact_string(self, text: str, place: JsonPath) -> str:
        if not place.is_token:
            return self._redact_fragment(text, place)
        return (
            text
            if self._is_safe_text(text)
            else replace_spans(text, self._find_and_count_secrets(text, self.secret_counts))
        )

    def _is_safe_text(self, text: str) -> bool:
        """Whether no secret begins in a text, whatever precedes it; if so, the text is remembered."""
        if self._custom_search is not None or not has_no_secret_start(text):
            return False
        if len(self._safe_hashes) >= MAX_SAFE_HASHES:
            self._safe_hashes.clear()
        self._safe_hashes.add(hash(text))
        return True

    def _redact_fragment(self, text: str, place: JsonPath) -> str:
        if not text:
            return text
        seam = place.joiner or self._open_joiner(place)
        stream = seam.stream
        if not seam.chunks and self._custom_search is None:
            if self._is_safe_text(text):
                seam.add_safe_text(text)
                self._clear_snapshots(seam)
                return text
        elif seam.is_extended_by(text):
            stream.flush()
            self._redact_joined_text(seam)
            seam.context.clear()
        stream.feed(text)
        return self._add_chunk(seam, text)

    def _open_joiner(self, place: JsonPath) -> TextJoiner:
        """A new seam; if there are too many, an idle one is closed."""
        seams = self._joiners
        if len(seams) >= MAX_TEXT_JOINERS:
            idle = next(
                (known for known, seam in seams.items() if not seam.chunks), next(iter(seams))
            )
            self._close_joiner(seams.pop(idle))
            idle.joiner = None
        seam = seams[place] = place.joiner = TextJoiner()
        return seam

    def _close_joiner(self, seam: TextJoiner) -> None:
        seam.stream.flush()
        self._redact_joined_text(seam)
        self._clear_snapshots(seam)

    def _add_chunk(self, seam: TextJoiner, text: str) -> str:
        """A string in which a secret may begin, go on or end."""
        self._current_chunk = entry = StringChunk(
            self._record_number,
            self._string_number,
            text,
            self._find_and_count_secrets(text, self.secret_counts),
        )
        seam.size_chars += len(text) if seam.chunks else 0
        seam.chunks.append(entry)
        self._update_snapshots(seam, entry)
        if full := seam.size_chars > MAX_WINDOW_CHARS or len(seam.chunks) > MAX_WINDOW_STRINGS:
            seam.stream.flush()
        if self._custom_search is None:
            if not seam.stream.is_busy:
                self._redact_joined_text(seam)
        elif full or (
            not seam.stream.is_busy
            and len(seam.chunks[0].text) + seam.size_chars > 2 * MAX_CUSTOM_MATCH_CHARS
        ):
            self._redact_joined_text(seam, keep=MAX_CUSTOM_MATCH_CHARS)
        self._current_chunk = None
        return text if entry.written_text == text else entry.written_text

    def _find_and_count_secrets(self, text: str, counts: dict[str, int]) -> list[SecretSpan]:
        """The secrets of a string by itself."""
        found = self._find_secrets(text)
        for _, _, mark in found:
            count_secret(counts, mark)
        return found

    def _find_secrets(self, text: str) -> list[SecretSpan]:
        found = (
            find_secret_spans(text)
            if self._uncounted_redactor.redact_text(text) is not text
            else []
        )
        if self._custom_search is not None:
            found += self._custom_search(text)
        return found

    # -- texts -------------------------------------------------------------------------------------

    def _redact_joined_text(self, seam: TextJoiner, keep: int = 0) -> None:
        """Find the secrets of a seam's text so far; its last `keep` characters stay open."""
        entries = seam.chunks
        before = "".join(seam.context)[-NAME_CONTEXT_CHARS:]
        found = self._find_secrets(before + "".join([entry.text for entry in entries]))
        self._distribute_secrets(
            entries, [(start - len(before), end - len(before), mark) for start, end, mark in found]
        )
        for entry in entries:
            self._record_edit(entry)
        kept, size = len(entries), 0
        while kept and size < keep:
            kept -= 1
            size += len(entries[kept].text)
        for entry in entries[:kept]:
            seam.context.append(entry.text[-NAME_CONTEXT_CHARS:])
        seam.chunks = entries[kept:]
        seam.size_chars = sum(len(entry.text) for entry in seam.chunks[1:])

    def _distribute_secrets(self, entries: list[StringChunk], found: list[SecretSpan]) -> None:
        """Give each string its piece of the joined text's secrets; the first piece gets the mark.

        Places that a string's own secrets cover are skipped. Each string is passed once: one of a
        megabyte may have a hundred thousand secrets.
        """
        begin, begins, covers = 0, 0, dict[int, SpanCursor]()
        for start, end, mark in sorted(found):
            while begin < len(entries) and begins + len(entries[begin].text) <= start:
                begins += len(entries[begin].text)
                begin += 1
            number, at, begun = begin, begins, False
            while number < len(entries) and at < end:
                entry = entries[number]
                first, last = max(start - at, 0), min(end - at, len(entry.text))
                if first < last:
                    covered = covers.get(number) or covers.setdefault(
                        number, SpanCursor(entry.spans)
                    )
                    if not covered.is_covered(first, last):
                        entry.spans.append((first, last, "" if begun else mark))
                        covered.covered_end = last
                        if not begun:
                            count_secret(self.secret_counts, mark)
                    begun = True
                at += len(entry.text)
                number += 1

    def _update_snapshots(self, seam: TextJoiner, entry: StringChunk) -> None:
        """Blank what the shorter forms of a growing text had of its secrets."""
        held = seam.snapshots
        if seam.is_extended_by(entry.text):
            for start, end, mark in entry.spans:
                for shorter in held:
                    if start < len(shorter.text) < end:
                        shorter.spans.append((start, len(shorter.text), mark))
                        self._record_edit(shorter)
        else:
            self._clear_snapshots(seam)
        if not seam.stream.is_busy or self._snapshot_chars > MAX_SNAPSHOT_CHARS:
            self._clear_snapshots(seam)
        else:
            held.append(entry)
            self._snapshot_chars += len(entry.text)

    def _clear_snapshots(self, seam: TextJoiner) -> None:
        if seam.snapshots:
            self._snapshot_chars -= sum(len(entry.text) for entry in seam.snapshots)
            seam.snapshots.clear()

    def _record_edit(self, entry: StringChunk) -> None:
        """Note an edit, if a string should be another text than was written."""
        said = replace_spans(entry.text, entry.spans)
        if said == entry.written_text:
            return
        entry.written_text = said
        if entry is self._current_chunk:
            return
        self._edit_budget[0] -= 1
        self._edit_budget[1] -= len(said)
        if min(self._edit_budget) < 0:
            self.has_lost_edits = True
            return
        edits = self.edits.setdefault(entry.record_number, [])
        edits[:] = [edit for edit in edits if edit[0] != entry.string_number]
        edits.append((entry.string_number, said))


def apply_edits(data: bytes, edits: Iterable[StringEdit]) -> bytes:
    """The written bytes of a record with its edits applied."""
    texts = dict(edits)
    if 0 in texts:  # a plain line
        return texts[0].removesuffix("\n").encode("utf-8", "surrogateescape")
    numbers = itertools.count(1)
    try:
        value = map_leaves(orjson.loads(data), str, lambda text: texts.get(next(numbers), text))
        return dump_json(restore_long_integers(value, find_long_integers(data)))
    except (ValueError, RecursionError):  # these are not the bytes that were written
        return CUT_PLACEHOLDER.encode()
