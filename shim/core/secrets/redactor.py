"""Replaces secrets in strings with `[REDACTED:kind]`, and counts them by kind.

The table in `patterns` describes the secrets. The lower-case text is first searched for possible
beginnings of secrets, and most texts have none. Patterns are tried only at these positions.

A stream of fragments is redacted like its full text. If a fragment may be the beginning of a
secret, it is buffered until the next fragment arrives. The rest of a secret is dropped as it
arrives.
"""

import codecs
import operator
import re
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from shim.core.reading.head_and_tail import HeadTailBuffer
from shim.core.secrets.patterns import (
    ASSIGNED_PATTERNS,
    CLOSING_CHARS,
    DASHED_PATTERNS,
    NAME_CONTEXT_CHARS,
    SECRET_NAME_ENDINGS,
    SIGN_CHARS,
    TOKEN_PATTERNS,
    URL_PASSWORD_PATTERN,
    SecretPattern,
    build_truncated_text_regex_source,
)

# The maximum length of the text that a stream buffers: the length of the longest pattern without its
# tail. A test measures this length.
MAX_BUFFERED_CHARS = 512
# the limit for a key block without an end; the largest real keys are a third as long
MAX_KEY_CHARS = 64 * 1024
MIN_SECRET_CHARS = 8  # a shorter text, such as `pwd=a1b2`, is not a secret
# The limits for the cache of fragments in which no secret can begin. The cache helps because a
# model repeats many fragments, such as a word with a space before it.
MAX_HARMLESS_FRAGMENTS = 2000
MAX_HARMLESS_CHARS = 16
# the cache size for object keys that are neither secrets nor names of secrets
MAX_PLAIN_KEYS = 1000
# For texts longer than this, it is faster to search for the names of secrets first.
MIN_PREFILTER_CHARS = 200

StemEntry = tuple[str, SecretPattern]  # a stem, and a pattern that begins with this stem
SecretMatch = tuple[SecretPattern | None, re.Match[str] | None]
NO_SECRET: SecretMatch = (None, None)
ROOT_CHARS = 3  # the search looks for the first 3 letters of a stem; no stem is shorter


def _group_by_root(patterns: Iterable[SecretPattern]) -> dict[str, list[StemEntry]]:
    """Return the stems and their patterns, grouped by the first letters of the stem. Within a
    group, the order of the table is kept.
    """
    entries_by_root: dict[str, list[StemEntry]] = {}
    for pattern in patterns:
        for stem in pattern.stems:
            entries_by_root.setdefault(stem[:ROOT_CHARS], []).append((stem, pattern))
    return entries_by_root


# These regular expressions match the possible beginnings of secrets, including an incomplete
# beginning at the end of a text. They are applied to lower-case text. A token must follow a
# character that is neither a letter nor a digit. That character is part of the match.
_TOKEN_ENTRIES = _group_by_root(TOKEN_PATTERNS)
_DASHED_ENTRIES = _group_by_root(DASHED_PATTERNS)
_TOKEN_ROOT = re.compile(
    f"[^a-z0-9](?=[{''.join({root[0] for root in _TOKEN_ENTRIES})}])"
    f"{build_truncated_text_regex_source(_TOKEN_ENTRIES, matches_full_texts=True)}"
)
_SIGN = re.compile(
    f"{'|'.join(SIGN_CHARS)}|{build_truncated_text_regex_source(_DASHED_ENTRIES, matches_full_texts=True)}"
)
# Matches where a secret may begin in a complete text that does not contain the name of a secret.
_SIGN_WITHOUT_NAME = re.compile(
    f"://|{build_truncated_text_regex_source(_DASHED_ENTRIES, matches_full_texts=True)}"
)
_SECRET_NAME = re.compile("passw|passphrase|pwd|secret|token|key|credential|authorization|sig=")

_KEY_END = re.compile("-----END [A-Z0-9 ]{0,30}PRIVATE KEY[ BLOCK]{0,6}-----")
_MAX_KEY_END_CHARS = 80

# the placeholder for a possible beginning of a secret at the end of a truncated text
CUT_PLACEHOLDER = "[REDACTED:cut]"

TEXT_START = "\n"  # prepended to every text, so that the text starts like a line


def is_secret_name(key: str) -> bool:
    """Return whether the name of a key shows that its value is a secret."""
    return key.lower().endswith(SECRET_NAME_ENDINGS)


def keep_if_unchanged(items: Sequence[Any], redacted_items: list[Any]) -> Sequence[Any]:
    """Return `items` if `redacted_items` contains exactly the same objects, otherwise
    `redacted_items`.
    """
    if all(map(operator.is_, redacted_items, items)):
        return items
    return redacted_items


class Redactor:
    """Redacts strings, and counts the secrets by kind in `counts`.

    A string of exactly `cut_chars` characters was truncated to this length. If `cut_chars` is 0, no
    string was truncated.
    """

    def __init__(self, counts: dict[str, int] | None = None, *, cut_chars: int = 0) -> None:
        if counts is None:
            self.counts: dict[str, int] = {}
        else:
            self.counts = counts
        self._cut_chars = cut_chars
        self._plain_keys: set[str] = set()

    def redact_text(self, text: str) -> str:
        """Return a complete text without its secrets. If the text has no secrets, return the same
        object.
        """
        if len(text) < MIN_SECRET_CHARS:
            return text
        lower_text = f"{TEXT_START}{text}".lower()
        sign_regex = _SIGN
        if len(text) >= MIN_PREFILTER_CHARS and not _SECRET_NAME.search(lower_text):
            sign_regex = _SIGN_WITHOUT_NAME
        if sign_regex.search(lower_text) is None and _TOKEN_ROOT.search(lower_text) is None:
            return text
        stream_redactor = StreamRedactor(self.counts)
        if len(text) == self._cut_chars:
            redacted = stream_redactor.feed(text)
            if stream_redactor.has_buffered_text:
                return redacted + CUT_PLACEHOLDER
            return redacted
        redacted = stream_redactor.redact_full_text(text, sign_regex)
        if redacted == text:
            return text
        return redacted

    def redact_value(self, value: Any) -> Any:
        """Return a JSON value with all its strings redacted. If there are no secrets, return the
        same object.
        """
        if isinstance(value, str):
            return self.redact_text(value)
        if isinstance(value, dict):
            return self._redact_dict(value)
        if isinstance(value, list | tuple):
            return keep_if_unchanged(value, [self.redact_value(item) for item in value])
        return value

    def _redact_dict(self, members: dict[str, Any]) -> dict[str, Any]:
        redacted = {}
        is_unchanged = True
        for key, item in members.items():
            if key in self._plain_keys:
                redacted_key = key
                redacted_item = self.redact_value(item)
            else:
                redacted_key = self._redact_key(key)
                redacted_item = self.redact_named_value(key, item)
            if redacted_key is not key or redacted_item is not item:
                is_unchanged = False
            redacted[redacted_key] = redacted_item
        if is_unchanged:
            return members
        return redacted

    def _redact_key(self, key: str) -> str:
        redacted = self.redact_text(key)
        if redacted is key and not is_secret_name(key) and len(self._plain_keys) < MAX_PLAIN_KEYS:
            self._plain_keys.add(key)
        return redacted

    def redact_named_value(self, key: str, item: Any) -> Any:
        """Return a key's value without secrets. The key's name may show that the complete value is
        a secret.
        """
        redacted = self.redact_value(item)
        if redacted is not item or not isinstance(item, str) or not is_secret_name(key):
            return redacted
        value_start = f'{key}="'
        assignment = f'{value_start}{item}"'
        redacted_assignment = Redactor().redact_text(assignment)
        if redacted_assignment == assignment or not redacted_assignment.startswith(value_start):
            return item
        return self.redact_text(assignment)[len(value_start) : -1]


def has_no_secret_prefix(text: str) -> bool:
    """Return whether no secret can begin in a text, regardless of the preceding text."""
    lower_text = f"{TEXT_START}{text}".lower()
    if _SIGN.search(lower_text, 1) is not None:
        return False
    return _TOKEN_ROOT.search(lower_text) is None


def _convert_to_lower(text: str) -> str:
    """Convert a text to lower case, so that each character keeps its index."""
    lower_text = text.lower()
    if len(lower_text) == len(text):
        return lower_text
    return text.replace("\u0130", "I").lower()


class StreamRedactor:
    """Redacts a text that arrives in fragments. At any time, all returned texts joined together are
    the beginning of the redacted full text.

    Text is final once it no longer depends on later fragments. Other text is buffered.
    """

    __slots__ = (
        "_decided_chars",
        "_key_chars_left",
        "_key_end_text",
        "_passed_fragments",
        "_pending_text",
        "_secret_pattern",
        "counts",
        "harmless_fragments",
        "is_busy",
        "record_passed",
    )

    def __init__(self, counts: dict[str, int]) -> None:
        self.counts = counts
        # fragments that need no search while `is_busy` is false
        self.harmless_fragments: set[str] = set()
        # the last fragments that were returned unchanged
        self._passed_fragments = deque[str](maxlen=NAME_CONTEXT_CHARS)
        self.record_passed = self._passed_fragments.append
        self._key_end_text = ""
        self._key_chars_left = 0
        self._reset()

    def _reset(self) -> None:
        self.is_busy = False  # true while text is buffered or the rest of a secret is dropped
        # the buffered text, preceded by the end of the final text before `_passed_fragments`
        self._pending_text = TEXT_START
        self._decided_chars = 1  # the number of final characters in `_pending_text`
        # the pattern of an unfinished secret; the rest of the secret is dropped
        self._secret_pattern: SecretPattern | None = None
        self._passed_fragments.clear()

    @property
    def has_buffered_text(self) -> bool:
        return len(self._pending_text) > self._decided_chars

    def feed(self, fragment: str) -> str:
        """Add a fragment. Return the text that has become final, redacted."""
        if not fragment:
            return ""
        if not self.is_busy:
            passed_fragments = self._passed_fragments
            if passed_fragments:
                previous_text = passed_fragments[-1]
            else:
                previous_text = self._pending_text
            lower_text = (previous_text[-1] + fragment).lower()
            if _SIGN.search(lower_text, 1) is None and _TOKEN_ROOT.search(lower_text) is None:
                self._pass_fragment(fragment)
                return fragment
            self._set_all_decided(self._pending_text + "".join(passed_fragments))
            passed_fragments.clear()
        elif self._secret_pattern is not None:
            fragment = self._skip_open_secret(fragment, self._secret_pattern)
            if not fragment:
                return ""
        return self._scan_text(self._pending_text + fragment, self._decided_chars, is_final=False)

    def _pass_fragment(self, fragment: str) -> None:
        """Record a fragment in which no secret can begin. Short fragments are cached."""
        if len(fragment) > MAX_HARMLESS_CHARS:
            fragment = fragment[-NAME_CONTEXT_CHARS:]
        elif not fragment[0].isalnum():
            if len(self.harmless_fragments) >= MAX_HARMLESS_FRAGMENTS:
                self.harmless_fragments.clear()
            self.harmless_fragments.add(fragment)
        self._passed_fragments.append(fragment)

    def redact_full_text(self, text: str, sign_regex: re.Pattern[str] = _SIGN) -> str:
        """Return `text` with its secrets replaced. No other fragment precedes or follows the text.
        Patterns other than token patterns are tried only where `sign_regex` matches.
        """
        return self._scan_text(TEXT_START + text, 1, is_final=True, sign_regex=sign_regex)

    def flush(self) -> str:
        """Return the rest of the text, redacted, after the last fragment."""
        redacted = ""
        if self.has_buffered_text:
            redacted = self._scan_text(self._pending_text, self._decided_chars, is_final=True)
        self._reset()
        return redacted

    def _set_decided(self, text: str, position: int) -> None:
        """Mark the text before a position as final, and keep only its end. Buffer the text after
        the position.
        """
        self._pending_text = text[max(position - NAME_CONTEXT_CHARS, 0) :]
        self._decided_chars = min(position, NAME_CONTEXT_CHARS)
        self.is_busy = position < len(text) or self._secret_pattern is not None

    def _set_all_decided(self, text: str) -> None:
        self._set_decided(text, len(text))

    def _scan_text(
        self, text: str, position: int, *, is_final: bool, sign_regex: re.Pattern[str] = _SIGN
    ) -> str:
        """Return the redacted text from a position up to the first possible secret that is not
        complete yet.
        """
        lower_text = _convert_to_lower(text)
        size = len(text)
        pieces: list[str] = []
        token_position = sign_position = 0
        written_until = position
        while True:
            if token_position < position:
                match = _TOKEN_ROOT.search(lower_text, position - 1)
                token_position = size
                if match:
                    token_position = match.start() + 1
            if sign_position < position:
                match = sign_regex.search(lower_text, position)
                sign_position = size
                if match:
                    sign_position = match.start()
            position = min(token_position, sign_position)
            if position == size:
                break
            # Most assignment signs do not follow the name of a secret.
            if (
                position != token_position
                and lower_text[position] in "=>"
                and not _find_secret_name(lower_text, position)
            ):
                position += 1
                continue
            secret = _match_secret(
                text, lower_text, position, position == token_position, is_final=is_final
            )
            if secret is None:
                pieces.append(text[written_until:position])
                self._set_decided(text, position)
                return "".join(pieces)
            pattern, match = secret
            if pattern is None or match is None:
                position += 1
                continue
            pieces += text[written_until : match.end(1)], pattern.placeholder
            self.counts[pattern.kind] = self.counts.get(pattern.kind, 0) + 1
            written_until = position = self._skip_secret(pattern, text, match)
        pieces.append(text[written_until:])
        self._set_all_decided(text)
        return "".join(pieces)

    def _skip_secret(self, pattern: SecretPattern, text: str, match: re.Match[str]) -> int:
        """Return the position after a secret, given the match of its beginning."""
        position = match.end()
        if not pattern.tail_chars and not pattern.body_chars:
            return position
        self._secret_pattern = pattern
        self._key_end_text = ""
        self._key_chars_left = MAX_KEY_CHARS
        return len(text) - len(self._skip_open_secret(text[position:], pattern))

    def _skip_open_secret(self, text: str, pattern: SecretPattern) -> str:
        """Return the text without the rest of the previous secret, which continues at the start of
        the text.
        """
        if pattern.body_chars:
            end = self._find_key_block_end(text, pattern)
        else:
            match = pattern.secret_tail_regex.match(text)
            end = 0
            if match:
                end = match.end()
            if end < len(text):
                self._secret_pattern = None
        self._set_all_decided(self._pending_text + text[:end])
        return text[end:]

    def _find_key_block_end(self, text: str, pattern: SecretPattern) -> int:
        """Return the end of a private key's block. A block without a last line ends where the text
        no longer looks like a key.
        """
        match = pattern.secret_tail_regex.match(text, 0, self._key_chars_left)
        end = 0
        if match:
            end = match.end()
        body = self._key_end_text + text[:end]
        if key_end := _KEY_END.search(body):
            end = key_end.end() - len(self._key_end_text)
            self._secret_pattern = None
        elif end < len(text) or end == self._key_chars_left:
            self._secret_pattern = None
        self._key_chars_left -= end
        self._key_end_text = body[-_MAX_KEY_END_CHARS:]
        return end


def _match_secret(
    text: str, lower_text: str, position: int, is_token_start: bool, *, is_final: bool
) -> SecretMatch | None:
    """Return the secret that begins at a position, or NO_SECRET if there is none. Return None if
    more text is needed to decide.

    `is_token_start` is set if the character before the position is neither a letter nor a digit.
    """
    is_near_end = not is_final and len(text) - position <= MAX_BUFFERED_CHARS
    for pattern in _iterate_candidates(text, lower_text, position, is_token_start, is_near_end):
        if pattern is None or (
            is_near_end and pattern.incomplete_secret_regex.match(text, position)
        ):
            return None
        if match := pattern.secret_without_tail_regex.match(text, position):
            return pattern, match
    return NO_SECRET


def _find_secret_name(lower_text: str, position: int) -> str:
    """Return the name of a secret before an assignment sign, without quotes and brackets. Return ""
    if the text before the sign is not such a name.
    """
    name = lower_text[max(position - NAME_CONTEXT_CHARS, 0) : position].rstrip(CLOSING_CHARS)
    if name.endswith(SECRET_NAME_ENDINGS):
        return name
    return ""


def _iterate_candidates(
    text: str, lower_text: str, position: int, is_token_start: bool, is_near_end: bool
) -> Iterator[SecretPattern | None]:
    """Yield the secret patterns that may match at a position. Yield None if the text is too short
    to decide.
    """
    character = lower_text[position]
    if character in SIGN_CHARS:
        if lower_text[position - 1] in SIGN_CHARS:
            return
        if character == ":" and (is_near_end or lower_text.startswith("//", position + 1)):
            yield URL_PASSWORD_PATTERN
        if name := _find_secret_name(lower_text, position):
            original_text = text[max(position - NAME_CONTEXT_CHARS, 0) : position]
            for pattern in ASSIGNED_PATTERNS:
                name_text = name
                if pattern.is_uppercase:
                    name_text = original_text
                if name_text.endswith(pattern.preceding_names):
                    yield pattern
        return
    root = lower_text[position : position + ROOT_CHARS]
    if is_near_end and len(text) - position < ROOT_CHARS:
        yield None
    for stem, pattern in [
        *(_TOKEN_ENTRIES.get(root, ()) if is_token_start else ()),
        *_DASHED_ENTRIES.get(root, ()),
    ]:
        if lower_text.startswith(stem, position):
            yield pattern
        elif is_near_end and stem.startswith(lower_text[position:]):
            yield None


class RedactedHeadTailBuffer(HeadTailBuffer):
    """Keeps the beginning and the end of a vendor's stderr. The text is redacted before its middle
    is omitted.
    """

    __slots__ = ("_decoder", "_stream_redactor")

    def __init__(self) -> None:
        super().__init__()
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._stream_redactor = StreamRedactor({})

    def add(self, chunk: bytes) -> None:
        super().add(
            self._stream_redactor.feed(self._decoder.decode(chunk)).encode("utf-8", "replace")
        )

    def to_text(self) -> str:
        """Return the kept text. No bytes may be added afterwards."""
        redacted = self._stream_redactor.feed(self._decoder.decode(b"", True))
        redacted += self._stream_redactor.flush()
        super().add(redacted.encode("utf-8", "replace"))
        return super().to_text()


_PLACEHOLDER = re.compile("\\[REDACTED:([a-z-]{1,40})\\]")


def add_placeholder_counts(text: str, counts_by_kind: dict[str, int]) -> None:
    """Add the placeholders in a redacted text to `counts_by_kind`."""
    for kind in _PLACEHOLDER.findall(text):
        counts_by_kind[kind] = counts_by_kind.get(kind, 0) + 1


# Flags whose values are always replaced, because the values are secrets or may contain secrets.
SECRET_FLAGS = (
    "--mcp-config",
    "--settings",
    "--managed-settings",
    "--api-key",
    "--openai-api-key",
    "-H",
    "--header",
    "--auth-token",
)
ARGUMENT_PLACEHOLDER = "[REDACTED:argument]"


def redact_argv(argv: Iterable[str]) -> list[str]:
    """Return a command line for a log or a recording. The values of SECRET_FLAGS and all other
    secrets are replaced.
    """
    redactor = Redactor()
    redacted: list[str] = []
    open_flag = ""
    for argument in argv:
        name, equals, _ = argument.partition("=")
        if open_flag and (not argument.startswith("-") or open_flag == redacted[-1]):
            redacted.append(ARGUMENT_PLACEHOLDER)
            if open_flag != "--mcp-config":  # --mcp-config takes several values
                open_flag = ""
            continue
        open_flag = ""
        if argument in SECRET_FLAGS:
            open_flag = argument
        if equals and name in SECRET_FLAGS:
            redacted.append(f"{name}={ARGUMENT_PLACEHOLDER}")
        elif argument.startswith("-H") and argument != "-H":
            redacted.append(f"-H{ARGUMENT_PLACEHOLDER}")
        else:
            redacted.append(redactor.redact_text(argument))
    return redacted


def describe_redactions(counts_by_kind: dict[str, int]) -> str:
    """Return a sentence with the number of secrets of each kind, or "" if no secret was redacted."""
    if not counts_by_kind:
        return ""
    total = sum(counts_by_kind.values())
    kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(counts_by_kind.items()))
    return f"{total} secret{'s were' if total > 1 else ' was'} redacted: {kinds}"
