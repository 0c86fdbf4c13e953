"""Blanks the secrets of a cast: those of a line before it is written, those that are split over
lines afterwards.

Each string of a line is cleaned by itself, and as a fragment of a text: the strings under one path
of keys in one stream form one text, and so do plain lines. When a secret turns out to be split, the
lines that are already written get an edit: the record's number, the string's number in it, and its
new text. `apply_string_edits` applies edits to a record.
"""

import itertools
from collections.abc import Callable, Iterable
from typing import Any

import orjson

from shim.core.cast.text_joiner import (
    JsonPathNode,
    RecordedString,
    SecretSpan,
    SecretSpanCursor,
    TextJoiner,
    count_redaction_placeholder,
    find_secret_spans,
    replace_secret_spans,
)
from shim.core.reading.json_text import (
    dump_json,
    find_long_integer_digits_by_float,
    map_json_leaves,
    restore_long_integers,
)
from shim.core.secrets.mcp_servers import has_mcp_server_config_key, redact_mcp_server_configs
from shim.core.secrets.patterns import NAME_CONTEXT_CHARS, SECRET_NAME_ENDINGS
from shim.core.secrets.redactor import CUT_PLACEHOLDER, Redactor, has_no_secret_prefix

# Texts that are followed at the same time; a vendor has a few dozen paths with texts. When there
# are more, one that is not in the middle of a secret is dropped.
MAX_TEXT_JOINERS = 128
# of a text that may be a secret; a key has half of it
MAX_WINDOW_STRINGS, MAX_WINDOW_CHARS = 10_000, 128 * 1024
MAX_SNAPSHOT_CHARS = 4 * 1024 * 1024  # of texts that are printed repeatedly, each time longer
MAX_EDITS, MAX_EDIT_CHARS = 10_000, 16 * 1024 * 1024  # that wait for the end of the file
# the longest match of a user's own pattern that is found across strings
MAX_CUSTOM_MATCH_CHARS = 512
# paths of keys; the strings under further ones are cleaned by themselves only
MAX_JSON_PATHS = 4000
MAX_SAFE_HASHES = 20_000  # hashes of strings in which no secret begins; most strings come again

# Keys whose strings are whole words (an id, a kind, a name), and never fragments of a text.
_TOKEN_KEYS = frozenset((
    *("type", "subtype", "id", "uuid", "session_id", "sessionId", "message_id", "messageId", "request_id", "requestId"),
    *("tool_use_id", "toolCallId", "call_id", "parent_tool_use_id", "parentId", "responseId", "role", "model", "name"),
    *("toolName", "api", "provider", "timestamp", "stop_reason", "stopReason", "cwd", "session", "version", "object"),
))  # fmt: skip

SecretSearch = Callable[[str], Iterable[SecretSpan]]  # finds a user's own patterns in a text
StringEdit = tuple[int, str]  # the number of a string in its line, and its new text


class RecordingRedactor:
    """Cleans the records of one cast. `custom_search` finds secrets besides the known kinds.

    `secret_counts` are the secrets by kind. `has_lost_edits`: more secrets were split over lines
    than `edits` can hold.
    """

    def __init__(self, custom_search: SecretSearch | None = None) -> None:
        self.secret_counts: dict[str, int] = {}
        self.edits: dict[int, list[StringEdit]] = {}
        self.has_lost_edits = False
        self._custom_search = custom_search
        self._redactor = Redactor(self.secret_counts)
        self._uncounted_redactor = Redactor()  # for second looks, which do not count again
        # by the letter of a stream; and a blank for lines that are no JSON
        self._root_paths: dict[str, JsonPathNode] = {}
        self._path_count = 0
        self._joiners: dict[JsonPathNode, TextJoiner] = {}
        self._safe_hashes: set[int] = set()
        self._current_chunk: RecordedString | None = None  # of the record that is not written yet
        self._snapshot_chars = 0
        self._record_number = -1
        self._string_number = 0
        self._edit_budget = [MAX_EDITS, MAX_EDIT_CHARS]

    def redact_record(self, stream_code: str, data: bytes, has_newline: bool = True) -> bytes:
        """The cleaned data of the next record, without its newline; the same object if nothing was
        found.

        `has_newline`: a newline follows the data.
        """
        self._record_number += 1
        self._string_number = 0
        if data[:1] in (b"{", b"["):
            try:
                value = orjson.loads(data)
                stripped = (
                    redact_mcp_server_configs(value) if has_mcp_server_config_key(data) else value
                )
                redacted = self._redact_value(
                    value if stripped == value else stripped,
                    self._root_paths.get(stream_code) or self._create_root_path(stream_code),
                )
            except (ValueError, RecursionError):
                pass
            else:
                return self._encode_record(data, value, redacted)
        text = data.decode("utf-8", "surrogateescape")
        redacted_text = self._redact_fragment(
            text + "\n" * has_newline,
            self._root_paths.get(stream_code + " ") or self._create_root_path(stream_code + " "),
        )
        redacted_text = (
            redacted_text[:-1] if has_newline and redacted_text.endswith("\n") else redacted_text
        )
        return data if redacted_text == text else redacted_text.encode("utf-8", "surrogateescape")

    def _encode_record(self, data: bytes, value: Any, redacted: Any) -> bytes:
        """The line as it came, unless its bytes hold more than its strings: a key that stands twice
        hides a value.
        """
        if redacted is value:
            encoded = orjson.dumps(value)
            if len(encoded) == len(data) or not (secrets := self._find_secrets(data.decode())):
                return data
            if len(secrets) <= len(self._find_secrets(encoded.decode())):
                return data
        return dump_json(restore_long_integers(redacted, find_long_integer_digits_by_float(data)))

    def redact_json_fields(self, fields: Any) -> Any:
        """A fact, or the header, without secrets."""
        redacted = self._redactor.redact_value(fields)
        return redacted if self._custom_search is None else self._redact_custom_patterns(redacted)

    def _redact_custom_patterns(self, value: Any) -> Any:
        if isinstance(value, str):
            return replace_secret_spans(
                value, self._find_and_count_secrets(value, self.secret_counts)
            )
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
        for joiner in self._joiners.values():
            self._close_joiner(joiner)
        self._joiners.clear()

    # -- strings -----------------------------------------------------------------------------------

    def _create_root_path(self, name: str) -> JsonPathNode:
        path = self._root_paths[name] = JsonPathNode(None, names_secret=False, is_token=False)
        return path

    def _create_child_path(self, parent: JsonPathNode, key: str) -> JsonPathNode:
        """The place of a key under another one."""
        secrets = self._find_and_count_secrets(key, self.secret_counts)
        redacted_key, names_secret = (
            replace_secret_spans(key, secrets) if secrets else None,
            key.lower().endswith(SECRET_NAME_ENDINGS),
        )
        if self._path_count >= MAX_JSON_PATHS:
            return JsonPathNode(redacted_key, names_secret=names_secret, is_token=True)
        self._path_count += 1
        path = parent.children[key] = JsonPathNode(
            redacted_key, names_secret=names_secret, is_token=key in _TOKEN_KEYS
        )
        return path

    def _redact_value(self, value: Any, path: JsonPathNode) -> Any:
        """A value of JSON without secrets; the same object if there are none. Strings are numbered
        in their order.
        """
        if value.__class__ is dict:
            return self._redact_object(value, path)
        if value.__class__ is list:
            redacted = [self._redact_value(item, path) for item in value]
            return (
                redacted
                if any(
                    redacted_item is not original_item
                    for redacted_item, original_item in zip(redacted, value, strict=True)
                )
                else value
            )
        if value.__class__ is str:
            self._string_number += 1
            return self._redact_string(value, path)
        return value

    def _redact_object(self, table: dict[str, Any], parent: JsonPathNode) -> dict[str, Any]:
        children, safe_hashes = parent.children, self._safe_hashes
        changes: dict[str, tuple[str, Any]] | None = None
        for key, item in table.items():
            path = children.get(key) or self._create_child_path(parent, key)
            if item.__class__ is str:
                self._string_number += 1
                if hash(item) in safe_hashes:
                    if path.is_token:
                        continue
                    joiner = path.joiner
                    if joiner is not None and not joiner.chunks:
                        joiner.add_text_without_secrets(item)
                        continue
                redacted: Any = self._redact_string(item, path)
                if path.names_secret and redacted is item:
                    redacted = self._redact_named_value(key, item)
            elif item.__class__ is dict:
                redacted = self._redact_object(item, path)
            elif item.__class__ is list:
                redacted = self._redact_value(item, path)
            else:
                redacted = item
            if redacted is not item or path.redacted_key is not None:
                changes = {} if changes is None else changes
                changes[key] = key if path.redacted_key is None else path.redacted_key, redacted
        return (
            table
            if changes is None
            else dict(changes.get(key, (key, item)) for key, item in table.items())
        )

    def _redact_named_value(self, key: str, text: str) -> str:
        """The value of a key that names a secret."""
        if next(iter(self._uncounted_redactor.redact_value({key: text}).values())) == text:
            return text
        redacted: str = next(iter(self._redactor.redact_value({key: text}).values()))
        return redacted

    def _redact_string(self, text: str, path: JsonPathNode) -> str:
        if not path.is_token:
            return self._redact_fragment(text, path)
        return (
            text
            if self._is_safe_text(text)
            else replace_secret_spans(text, self._find_and_count_secrets(text, self.secret_counts))
        )

    def _is_safe_text(self, text: str) -> bool:
        """Whether no secret begins in a text, whatever precedes it; if so, the text is remembered."""
        if self._custom_search is not None or not has_no_secret_prefix(text):
            return False
        if len(self._safe_hashes) >= MAX_SAFE_HASHES:
            self._safe_hashes.clear()
        self._safe_hashes.add(hash(text))
        return True

    def _redact_fragment(self, text: str, path: JsonPathNode) -> str:
        if not text:
            return text
        joiner = path.joiner or self._open_joiner(path)
        stream = joiner.stream
        if not joiner.chunks and self._custom_search is None:
            if self._is_safe_text(text):
                joiner.add_text_without_secrets(text)
                self._clear_snapshots(joiner)
                return text
        elif joiner.does_text_extend_last_snapshot(text):
            stream.flush()
            self._redact_joined_text(joiner)
            joiner.context.clear()
        stream.feed(text)
        return self._add_chunk(joiner, text)

    def _open_joiner(self, path: JsonPathNode) -> TextJoiner:
        """A new seam; if there are too many, an idle one is closed."""
        joiners = self._joiners
        if len(joiners) >= MAX_TEXT_JOINERS:
            idle_path = next(
                (candidate_path for candidate_path, joiner in joiners.items() if not joiner.chunks),
                next(iter(joiners)),
            )
            self._close_joiner(joiners.pop(idle_path))
            idle_path.joiner = None
        joiner = joiners[path] = path.joiner = TextJoiner()
        return joiner

    def _close_joiner(self, joiner: TextJoiner) -> None:
        joiner.stream.flush()
        self._redact_joined_text(joiner)
        self._clear_snapshots(joiner)

    def _add_chunk(self, joiner: TextJoiner, text: str) -> str:
        """A string in which a secret may begin, go on or end."""
        self._current_chunk = chunk = RecordedString(
            self._record_number,
            self._string_number,
            text,
            self._find_and_count_secrets(text, self.secret_counts),
        )
        joiner.size_chars += len(text) if joiner.chunks else 0
        joiner.chunks.append(chunk)
        self._update_snapshots(joiner, chunk)
        if (
            is_full := joiner.size_chars > MAX_WINDOW_CHARS
            or len(joiner.chunks) > MAX_WINDOW_STRINGS
        ):
            joiner.stream.flush()
        if self._custom_search is None:
            if not joiner.stream.is_busy:
                self._redact_joined_text(joiner)
        elif is_full or (
            not joiner.stream.is_busy
            and len(joiner.chunks[0].text) + joiner.size_chars > 2 * MAX_CUSTOM_MATCH_CHARS
        ):
            self._redact_joined_text(joiner, open_chars=MAX_CUSTOM_MATCH_CHARS)
        self._current_chunk = None
        return text if chunk.written_text == text else chunk.written_text

    def _find_and_count_secrets(self, text: str, counts: dict[str, int]) -> list[SecretSpan]:
        """The secrets of a string by itself."""
        secrets = self._find_secrets(text)
        for _, _, placeholder in secrets:
            count_redaction_placeholder(counts, placeholder)
        return secrets

    def _find_secrets(self, text: str) -> list[SecretSpan]:
        secrets = (
            find_secret_spans(text)
            if self._uncounted_redactor.redact_text(text) is not text
            else []
        )
        if self._custom_search is not None:
            secrets += self._custom_search(text)
        return secrets

    # -- texts -------------------------------------------------------------------------------------

    def _redact_joined_text(self, joiner: TextJoiner, open_chars: int = 0) -> None:
        """Find the secrets of a seam's text so far; its last `open_chars` characters stay open."""
        chunks = joiner.chunks
        context = "".join(joiner.context)[-NAME_CONTEXT_CHARS:]
        secrets = self._find_secrets(context + "".join([chunk.text for chunk in chunks]))
        self._distribute_secrets(
            chunks,
            [
                (start - len(context), end - len(context), placeholder)
                for start, end, placeholder in secrets
            ],
        )
        for chunk in chunks:
            self._record_edit(chunk)
        resolved_count, size_chars = len(chunks), 0
        while resolved_count and size_chars < open_chars:
            resolved_count -= 1
            size_chars += len(chunks[resolved_count].text)
        for chunk in chunks[:resolved_count]:
            joiner.context.append(chunk.text[-NAME_CONTEXT_CHARS:])
        joiner.chunks = chunks[resolved_count:]
        joiner.size_chars = sum(len(chunk.text) for chunk in joiner.chunks[1:])

    def _distribute_secrets(self, chunks: list[RecordedString], secrets: list[SecretSpan]) -> None:
        """Give each string its piece of the joined text's secrets; the first piece gets the mark.

        Places that a string's own secrets cover are skipped. Each string is passed once: one of a
        megabyte may have a hundred thousand secrets.
        """
        first_index, first_offset, cursors = 0, 0, dict[int, SecretSpanCursor]()
        for start, end, placeholder in sorted(secrets):
            while (
                first_index < len(chunks) and first_offset + len(chunks[first_index].text) <= start
            ):
                first_offset += len(chunks[first_index].text)
                first_index += 1
            index, offset, has_placeholder = first_index, first_offset, False
            while index < len(chunks) and offset < end:
                chunk = chunks[index]
                chunk_start, chunk_end = max(start - offset, 0), min(end - offset, len(chunk.text))
                if chunk_start < chunk_end:
                    cursor = cursors.get(index) or cursors.setdefault(
                        index, SecretSpanCursor(chunk.spans)
                    )
                    if not cursor.is_range_covered(chunk_start, chunk_end):
                        chunk.spans.append(
                            (chunk_start, chunk_end, "" if has_placeholder else placeholder)
                        )
                        cursor.covered_end = chunk_end
                        if not has_placeholder:
                            count_redaction_placeholder(self.secret_counts, placeholder)
                    has_placeholder = True
                offset += len(chunk.text)
                index += 1

    def _update_snapshots(self, joiner: TextJoiner, chunk: RecordedString) -> None:
        """Blank what the shorter forms of a growing text had of its secrets."""
        snapshots = joiner.snapshots
        if joiner.does_text_extend_last_snapshot(chunk.text):
            for start, end, placeholder in chunk.spans:
                for snapshot in snapshots:
                    if start < len(snapshot.text) < end:
                        snapshot.spans.append((start, len(snapshot.text), placeholder))
                        self._record_edit(snapshot)
        else:
            self._clear_snapshots(joiner)
        if not joiner.stream.is_busy or self._snapshot_chars > MAX_SNAPSHOT_CHARS:
            self._clear_snapshots(joiner)
        else:
            snapshots.append(chunk)
            self._snapshot_chars += len(chunk.text)

    def _clear_snapshots(self, joiner: TextJoiner) -> None:
        if joiner.snapshots:
            self._snapshot_chars -= sum(len(snapshot.text) for snapshot in joiner.snapshots)
            joiner.snapshots.clear()

    def _record_edit(self, chunk: RecordedString) -> None:
        """Note an edit, if a string should be another text than was written."""
        redacted = replace_secret_spans(chunk.text, chunk.spans)
        if redacted == chunk.written_text:
            return
        chunk.written_text = redacted
        if chunk is self._current_chunk:
            return
        self._edit_budget[0] -= 1
        self._edit_budget[1] -= len(redacted)
        if min(self._edit_budget) < 0:
            self.has_lost_edits = True
            return
        edits = self.edits.setdefault(chunk.record_number, [])
        edits[:] = [edit for edit in edits if edit[0] != chunk.string_number]
        edits.append((chunk.string_number, redacted))


def apply_string_edits(data: bytes, edits: Iterable[StringEdit]) -> bytes:
    """The written bytes of a record with its edits applied."""
    texts = dict(edits)
    if 0 in texts:  # a plain line
        return texts[0].removesuffix("\n").encode("utf-8", "surrogateescape")
    string_numbers = itertools.count(1)
    try:
        value = map_json_leaves(
            orjson.loads(data), str, lambda text: texts.get(next(string_numbers), text)
        )
        return dump_json(restore_long_integers(value, find_long_integer_digits_by_float(data)))
    except (ValueError, RecursionError):  # these are not the bytes that were written
        return CUT_PLACEHOLDER.encode()
