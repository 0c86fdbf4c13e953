"""Redacts a recording. A secret within one line is redacted before the line is written. A secret
that is split over several lines is redacted later.

Each string in a line is redacted on its own, and also as a fragment of a longer text. The strings
at the same path of JSON keys in one stream form such a text, and so do lines that are not JSON. If
a secret is split over lines that are already written, these lines get edits. An edit contains a
record number, the number of a string in that record, and the new text. `apply_string_edits` applies
the edits to a record.
"""

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any

import orjson

from shim.core.cast.text_joiner import (
    JsonPathNode,
    RecordedString,
    SecretSpan,
    SecretSpanCursor,
    TextJoiner,
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
from shim.core.secrets.patterns import NAME_CONTEXT_CHARS
from shim.core.secrets.redactor import (
    CUT_PLACEHOLDER,
    Redactor,
    add_placeholder_counts,
    has_no_secret_prefix,
    is_secret_name,
    keep_if_unchanged,
)

# The limit for texts that are tracked at the same time. A vendor's output has texts at a few dozen
# paths. Above the limit, texts that cannot contain a part of a secret are no longer tracked.
MAX_TEXT_JOINERS = 128
# the limits for a joined text that may contain a part of a secret; a private key is at most half as
# long
MAX_WINDOW_STRINGS = 10_000
MAX_WINDOW_CHARS = 128 * 1024
MAX_SNAPSHOT_CHARS = 4 * 1024 * 1024  # the limit for stored versions of growing texts
# the limits for edits, which are stored until the end of the file
MAX_EDITS = 10_000
MAX_EDIT_CHARS = 16 * 1024 * 1024
# the longest match for a user's own pattern that is found across several strings
MAX_CUSTOM_MATCH_CHARS = 512
# the limit for paths of JSON keys; a string at a further path is only redacted on its own
MAX_JSON_PATHS = 4000
MAX_SAFE_HASHES = 20_000  # the cache size for strings in which no secret starts

# JSON keys whose strings are always complete (an id, a kind, a name), and never fragments of a
# text.
_TOKEN_KEYS = frozenset((
    *("type", "subtype", "id", "uuid", "session_id", "sessionId", "message_id", "messageId", "request_id", "requestId"),
    *("tool_use_id", "toolCallId", "call_id", "parent_tool_use_id", "parentId", "responseId", "role", "model", "name"),
    *("toolName", "api", "provider", "timestamp", "stop_reason", "stopReason", "cwd", "session", "version", "object"),
))  # fmt: skip

SecretSearch = Callable[[str], Iterable[SecretSpan]]  # finds matches for a user's own patterns
StringEdit = tuple[int, str]  # the number of a string in its record, and its new text


class RecordingRedactor:
    """Redacts the records of a recording. `custom_search` finds secrets that match the user's own
    patterns.

    `secret_counts` counts the secrets by kind. `record_number` is the number of the last record,
    counted from 0. `edits` has a list of edits for each record number. `has_lost_edits` is true if
    more secrets were split over lines than `edits` can store.
    """

    def __init__(self, custom_search: SecretSearch | None = None) -> None:
        self.secret_counts: dict[str, int] = {}
        self.edits: dict[int, list[StringEdit]] = {}
        self.has_lost_edits = False
        self._custom_search = custom_search
        self._redactor = Redactor(self.secret_counts)
        self._uncounted_redactor = Redactor()  # used where secrets must not be counted twice
        # The root paths, by stream code. For lines that are not JSON, a space follows the stream
        # code.
        self._root_paths = defaultdict[str, JsonPathNode](JsonPathNode)
        self._path_count = 0
        self._joiners: dict[JsonPathNode, TextJoiner] = {}
        self._safe_hashes: set[int] = set()
        # the string that is being redacted, which belongs to the current record
        self._current_chunk: RecordedString | None = None
        self._snapshot_chars = 0
        self.record_number = -1
        self._string_number = 0
        self._edit_budget = [MAX_EDITS, MAX_EDIT_CHARS]

    def redact_record(self, stream_code: str, data: bytes, has_newline: bool = True) -> bytes:
        """Return the redacted data of the next record, without its newline. If the data has no
        secrets, return the same object.

        `has_newline` is true if a newline follows the data.
        """
        self.record_number += 1
        self._string_number = 0
        if data[:1] in (b"{", b"["):
            try:
                value = orjson.loads(data)
                stripped = value
                if has_mcp_server_config_key(data):
                    stripped = redact_mcp_server_configs(value)
                redacted = self._redact_value(
                    value if stripped == value else stripped, self._root_paths[stream_code]
                )
            except (ValueError, RecursionError):
                pass
            else:
                return self._encode_record(data, value, redacted)
        text = data.decode("utf-8", "surrogateescape")
        line = text + "\n" * has_newline
        redacted_text = self._redact_fragment(line, self._root_paths[stream_code + " "])
        if has_newline:
            redacted_text = redacted_text.removesuffix("\n")
        if redacted_text == text:
            return data
        return redacted_text.encode("utf-8", "surrogateescape")

    def _encode_record(self, data: bytes, value: Any, redacted: Any) -> bytes:
        """Return the redacted line, or the original bytes if the line has no secrets.

        If a JSON key occurs twice, the parsed value contains only one of the two strings. So the
        original bytes may have more secrets than the value.
        """
        if redacted is value:
            encoded = orjson.dumps(value)
            if len(encoded) == len(data) or not (secrets := self._find_secrets(data.decode())):
                return data
            if len(secrets) <= len(self._find_secrets(encoded.decode())):
                return data
        return dump_json(restore_long_integers(redacted, find_long_integer_digits_by_float(data)))

    def redact_json_fields(self, fields: Any) -> Any:
        """Return the fields of a header or an event without their secrets."""
        redacted = self._redactor.redact_value(fields)
        if self._custom_search is None:
            return redacted
        return self._redact_custom_patterns(redacted)

    def _redact_custom_patterns(self, value: Any) -> Any:
        if isinstance(value, str):
            return replace_secret_spans(value, self._find_and_count_secrets(value))
        if isinstance(value, dict):
            return {
                self._redact_custom_patterns(key): self._redact_custom_patterns(item)
                for key, item in value.items()
            }
        if isinstance(value, list | tuple):
            return [self._redact_custom_patterns(item) for item in value]
        return value

    def close(self) -> None:
        """Redact all texts that are still open after the last record."""
        for joiner in self._joiners.values():
            self._close_joiner(joiner)
        self._joiners.clear()

    # -- strings -----------------------------------------------------------------------------------

    def _create_child_path(self, parent: JsonPathNode, key: str) -> JsonPathNode:
        secrets = self._find_and_count_secrets(key)
        redacted_key = None
        if secrets:
            redacted_key = replace_secret_spans(key, secrets)
        path = JsonPathNode(
            redacted_key=redacted_key,
            names_secret=is_secret_name(key),
            is_token=key in _TOKEN_KEYS or self._path_count >= MAX_JSON_PATHS,
        )
        if self._path_count < MAX_JSON_PATHS:
            self._path_count += 1
            parent.children[key] = path
        return path

    def _redact_value(self, value: Any, path: JsonPathNode) -> Any:
        """Return a JSON value without its secrets. If the value has no secrets, return the same
        object. The strings in the value are numbered in order.
        """
        if value.__class__ is dict:
            return self._redact_object(value, path)
        if value.__class__ is list:
            return keep_if_unchanged(value, [self._redact_value(item, path) for item in value])
        if value.__class__ is str:
            self._string_number += 1
            return self._redact_string(value, path)
        return value

    def _redact_object(self, table: dict[str, Any], parent: JsonPathNode) -> dict[str, Any]:
        children = parent.children
        safe_hashes = self._safe_hashes
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
                    redacted = self._redactor.redact_named_value(key, item)
            elif item.__class__ is dict or item.__class__ is list:
                redacted = self._redact_value(item, path)
            else:
                # Other values are not passed to `_redact_value`, because recordings contain many
                # numbers.
                redacted = item
            if redacted is not item or path.redacted_key is not None:
                if changes is None:
                    changes = {}
                changes[key] = key if path.redacted_key is None else path.redacted_key, redacted
        if changes is None:
            return table
        return dict(changes.get(key, (key, item)) for key, item in table.items())

    def _redact_string(self, text: str, path: JsonPathNode) -> str:
        if not path.is_token:
            return self._redact_fragment(text, path)
        if self._is_safe_text(text):
            return text
        return replace_secret_spans(text, self._find_and_count_secrets(text))

    def _is_safe_text(self, text: str) -> bool:
        """Return whether no secret can start in a text, regardless of the preceding text. Safe
        texts are cached.
        """
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
        """Create the joiner for the strings at a path. If too many joiners are open, first close
        one of them, if possible a joiner without open strings.
        """
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
        """Add a string that may contain the start, middle or end of a secret. Return the text to
        write.
        """
        self._current_chunk = chunk = RecordedString(
            self.record_number,
            self._string_number,
            text,
            self._find_and_count_secrets(text),
        )
        if joiner.chunks:
            joiner.size_chars += len(text)
        joiner.chunks.append(chunk)
        self._update_snapshots(joiner, chunk)
        is_full = joiner.size_chars > MAX_WINDOW_CHARS or len(joiner.chunks) > MAX_WINDOW_STRINGS
        if is_full:
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
        if chunk.written_text == text:
            return text
        return chunk.written_text

    def _find_and_count_secrets(self, text: str) -> list[SecretSpan]:
        """Return the secrets in a single string, and count them."""
        secrets = self._find_secrets(text)
        for _, _, placeholder in secrets:
            add_placeholder_counts(placeholder, self.secret_counts)
        return secrets

    def _find_secrets(self, text: str) -> list[SecretSpan]:
        secrets: list[SecretSpan] = []
        if self._uncounted_redactor.redact_text(text) is not text:
            secrets = find_secret_spans(text)
        if self._custom_search is not None:
            secrets += self._custom_search(text)
        return secrets

    # -- texts -------------------------------------------------------------------------------------

    def _redact_joined_text(self, joiner: TextJoiner, open_chars: int = 0) -> None:
        """Find the secrets in the text that has been joined so far. The strings that contain the
        last `open_chars` characters stay open, because more text may follow.
        """
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
        resolved_count = len(chunks)
        size_chars = 0
        while resolved_count and size_chars < open_chars:
            resolved_count -= 1
            size_chars += len(chunks[resolved_count].text)
        for chunk in chunks[:resolved_count]:
            joiner.context.append(chunk.text[-NAME_CONTEXT_CHARS:])
        joiner.chunks = chunks[resolved_count:]
        joiner.size_chars = sum(len(chunk.text) for chunk in joiner.chunks[1:])

    def _distribute_secrets(self, chunks: list[RecordedString], secrets: list[SecretSpan]) -> None:
        """Add the joined text's secrets to the strings in which they occur. If a secret is split
        over several strings, the first string gets the placeholder.

        A part that is covered by the string's own secrets is skipped. Each string is visited only
        once, because a string of one megabyte may have a hundred thousand secrets.
        """
        first_index = first_offset = 0
        cursors: dict[int, SecretSpanCursor] = {}
        for start, end, placeholder in sorted(secrets):
            while (
                first_index < len(chunks) and first_offset + len(chunks[first_index].text) <= start
            ):
                first_offset += len(chunks[first_index].text)
                first_index += 1
            index = first_index
            offset = first_offset
            has_placeholder = False
            while index < len(chunks) and offset < end:
                chunk = chunks[index]
                chunk_start = max(start - offset, 0)
                chunk_end = min(end - offset, len(chunk.text))
                if chunk_start < chunk_end:
                    cursor = cursors.get(index)
                    if not cursor:
                        cursor = cursors.setdefault(index, SecretSpanCursor(chunk.spans))
                    if not cursor.is_range_covered(chunk_start, chunk_end):
                        chunk.spans.append(
                            (chunk_start, chunk_end, "" if has_placeholder else placeholder)
                        )
                        cursor.covered_end = chunk_end
                        if not has_placeholder:
                            add_placeholder_counts(placeholder, self.secret_counts)
                    has_placeholder = True
                offset += len(chunk.text)
                index += 1

    def _update_snapshots(self, joiner: TextJoiner, chunk: RecordedString) -> None:
        """Redact a growing text's secrets in earlier, shorter versions of the text, which may end
        with a part of a secret.
        """
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
        """Add an edit if the redacted string differs from the string that was written."""
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
    """Return the bytes of a written record after its edits are applied."""
    texts = dict(edits)
    if 0 in texts:  # the line is not JSON
        return texts[0].removesuffix("\n").encode("utf-8", "surrogateescape")
    string_numbers = itertools.count(1)
    try:
        value = map_json_leaves(
            orjson.loads(data), str, lambda text: texts.get(next(string_numbers), text)
        )
        return dump_json(restore_long_integers(value, find_long_integer_digits_by_float(data)))
    except (ValueError, RecursionError):  # the data does not belong to the written record
        return CUT_PLACEHOLDER.encode()
