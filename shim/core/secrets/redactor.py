"""Secrets in strings: found by the table in `patterns`, replaced by `[REDACTED:kind]`, counted by
kind.

A text is looked through for the ways in which secrets begin, in small letters, before any pattern
is tried; nearly every text has none. A stream of fragments is redacted exactly as its whole text
would be: what could still become a secret waits for the next fragment, what is known to belong to
one is swallowed as it comes.
"""

import codecs
import re
from collections import deque
from collections.abc import Iterable, Iterator
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

# Characters. A stream holds back at most this: the longest pattern without its tail (a test
# measures it).
MAX_BUFFERED_CHARS = 512
# of a block whose end never comes; the largest keys in use are a third as long
MAX_KEY_CHARS = 64 * 1024
MIN_SECRET_CHARS = 8  # characters; `pwd=a1b2` is not a secret yet, so nothing shorter is
# A model's fragments are words that come again and again, with their space in front. Fragments in
# which no secret can begin are remembered.
MAX_HARMLESS_FRAGMENTS = 2000
MAX_HARMLESS_CHARS = 16
# keys of objects that are neither secrets nor names of secrets; they come again too
MAX_PLAIN_KEYS = 1000
# characters; in a longer text it pays to look first whether it has the name of a secret at all
MIN_PREFILTER_CHARS = 200

StemEntry = tuple[str, SecretPattern]  # a stem, and the pattern that begins with it
SecretMatch = tuple[SecretPattern | None, re.Match[str] | None]
NO_SECRET: SecretMatch = (None, None)
ROOT_CHARS = 3  # letters of a stem that are looked for; no stem is shorter


def _group_by_root(patterns: Iterable[SecretPattern]) -> dict[str, list[StemEntry]]:
    """The first letters of stems → the stems with these letters and their patterns, in the order of
    the table.
    """
    entries_by_root: dict[str, list[StemEntry]] = {}
    for pattern in patterns:
        for stem in pattern.stems:
            entries_by_root.setdefault(stem[:ROOT_CHARS], []).append((stem, pattern))
    return entries_by_root


# Where a secret may begin, or where the end of a text may be the beginning of a secret. Both
# expressions read small letters. A root of TOKENS counts only behind a character that is neither
# letter nor digit, which is matched too.
_TOKEN_ENTRIES, _DASHED_ENTRIES = _group_by_root(TOKEN_PATTERNS), _group_by_root(DASHED_PATTERNS)
_TOKEN_ROOT = re.compile(
    f"[^a-z0-9](?=[{''.join({root[0] for root in _TOKEN_ENTRIES})}])"
    f"{build_truncated_text_regex_source(_TOKEN_ENTRIES, matches_full_texts=True)}"
)
_SIGN = re.compile(
    f"{'|'.join(SIGN_CHARS)}|{build_truncated_text_regex_source(_DASHED_ENTRIES, matches_full_texts=True)}"
)
# The same for a whole text without any name of a secret.
_SIGN_WITHOUT_NAME = re.compile(
    f"://|{build_truncated_text_regex_source(_DASHED_ENTRIES, matches_full_texts=True)}"
)
_SECRET_NAME = re.compile("passw|passphrase|pwd|secret|token|key|credential|authorization|sig=")

_KEY_END = re.compile("-----END [A-Z0-9 ]{0,30}PRIVATE KEY[ BLOCK]{0,6}-----")
_MAX_KEY_END_CHARS = 80


# in the place of a possible beginning of a secret, where somebody cut the text
CUT_PLACEHOLDER = "[REDACTED:cut]"


TEXT_START = "\n"  # stands before every text, as if a line had ended there


class Redactor:
    """Redacts strings; `counts` is filled by kind. A string of exactly `cut_chars` characters was
    cut there (0: none was).
    """

    def __init__(self, counts: dict[str, int] | None = None, *, cut_chars: int = 0) -> None:
        self.counts: dict[str, int] = {} if counts is None else counts
        self._cut_chars = cut_chars
        self._plain_keys: set[str] = set()

    def redact_text(self, text: str) -> str:
        """A whole text without its secrets; the same object when there are none."""
        if len(text) < MIN_SECRET_CHARS:
            return text
        lower_text = f"\n{text}".lower()
        sign_regex = (
            _SIGN
            if len(text) < MIN_PREFILTER_CHARS or _SECRET_NAME.search(lower_text)
            else _SIGN_WITHOUT_NAME
        )
        if sign_regex.search(lower_text) is None and _TOKEN_ROOT.search(lower_text) is None:
            return text
        stream_redactor = StreamRedactor(self.counts)
        if len(text) == self._cut_chars:
            redacted = stream_redactor.feed(text)
            return redacted + CUT_PLACEHOLDER if stream_redactor.has_buffered_text else redacted
        redacted = stream_redactor.redact_full_text(text, sign_regex)
        return text if redacted == text else redacted

    def redact_value(self, value: Any) -> Any:
        """A value of JSON with all its strings redacted; the same object when nothing was found."""
        if isinstance(value, str):
            return self.redact_text(value)
        if isinstance(value, dict):
            return self._redact_dict(value)
        if isinstance(value, list | tuple):
            redacted_items = [self.redact_value(item) for item in value]
            return (
                redacted_items
                if any(
                    redacted_item is not original_item
                    for redacted_item, original_item in zip(redacted_items, value, strict=True)
                )
                else value
            )
        return value

    def _redact_dict(self, members: dict[str, Any]) -> dict[str, Any]:
        redacted, is_unchanged = {}, True
        for key, item in members.items():
            if key in self._plain_keys:
                redacted_key, redacted_item = key, self.redact_value(item)
            else:
                redacted_key, redacted_item = (
                    self.redact_text(key),
                    self._redact_named_value(key, item),
                )
                if (
                    redacted_key is key
                    and not key.lower().endswith(SECRET_NAME_ENDINGS)
                    and len(self._plain_keys) < MAX_PLAIN_KEYS
                ):
                    self._plain_keys.add(key)
            is_unchanged = is_unchanged and redacted_key is key and redacted_item is item
            redacted[redacted_key] = redacted_item
        return members if is_unchanged else redacted

    def _redact_named_value(self, key: str, item: Any) -> Any:
        if not isinstance(item, str):
            return self.redact_value(item)
        text = self.redact_text(item)
        if text is not item or not key.lower().endswith(SECRET_NAME_ENDINGS):
            return text
        assignment_start = f'{key}="'
        redacted_assignment = Redactor().redact_text(f'{assignment_start}{item}"')
        if (
            not redacted_assignment.startswith(assignment_start)
            or redacted_assignment[len(assignment_start) : -1] == item
        ):
            return item
        return self.redact_text(f'{assignment_start}{item}"')[len(assignment_start) : -1]


def has_no_secret_prefix(text: str) -> bool:
    """Whether no secret can begin in a text, whatever stands before the text."""
    lower_text = f"{TEXT_START}{text}".lower()
    return _SIGN.search(lower_text, 1) is None and _TOKEN_ROOT.search(lower_text) is None


def _convert_to_lower(text: str) -> str:
    """The text in small letters, each at the place of its letter."""
    lower_text = text.lower()
    return lower_text if len(lower_text) == len(text) else text.replace("\u0130", "I").lower()


class StreamRedactor:
    """Redacts a text that comes in fragments. All that was given back is the beginning of the whole
    text, redacted.
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
        self.is_busy = False  # characters are held back, or a secret is being swallowed
        # fragments that need no look while the stream is not busy
        self.harmless_fragments: set[str] = set()
        # the last fragments that were said as they came
        self._passed_fragments = deque[str](maxlen=NAME_CONTEXT_CHARS)
        self.record_passed = self._passed_fragments.append
        # the last characters that were decided before `_passed_fragments`, and then what is held
        # back
        self._pending_text = TEXT_START
        self._decided_chars = 1  # how many characters of `_pending_text` were decided
        self._secret_pattern: SecretPattern | None = None
        self._key_end_text = ""
        self._key_chars_left = 0

    @property
    def has_buffered_text(self) -> bool:
        return len(self._pending_text) > self._decided_chars

    def feed(self, fragment: str) -> str:
        """The text that may be said once this fragment has come."""
        if not fragment:
            return ""
        if not self.is_busy:
            passed_fragments = self._passed_fragments
            lower_text = (
                (passed_fragments[-1] if passed_fragments else self._pending_text)[-1] + fragment
            ).lower()
            if _SIGN.search(lower_text, 1) is None and _TOKEN_ROOT.search(lower_text) is None:
                self._pass_fragment(fragment)
                return fragment
            self._set_decided(
                decided_text := self._pending_text + "".join(passed_fragments), len(decided_text)
            )
            passed_fragments.clear()
        elif self._secret_pattern is not None and not (
            fragment := self._skip_open_secret(fragment)
        ):
            return ""
        return self._scan_text(self._pending_text + fragment, self._decided_chars, is_final=False)

    def _pass_fragment(self, fragment: str) -> None:
        """No secret begins in a fragment, whatever came before; a short fragment is known from now
        on.
        """
        if len(fragment) > MAX_HARMLESS_CHARS:
            fragment = fragment[-NAME_CONTEXT_CHARS:]
        elif not fragment[0].isalnum():
            if len(self.harmless_fragments) >= MAX_HARMLESS_FRAGMENTS:
                self.harmless_fragments.clear()
            self.harmless_fragments.add(fragment)
        self._passed_fragments.append(fragment)

    def redact_full_text(self, text: str, candidate_regex: re.Pattern[str] = _SIGN) -> str:
        """A text in one piece, redacted; `sign_regex` finds the places to look at."""
        return self._scan_text(TEXT_START + text, 1, is_final=True, sign_regex=candidate_regex)

    def flush(self) -> str:
        """The text has ended: gives back what was held back, redacted."""
        redacted = (
            self._scan_text(self._pending_text, self._decided_chars, is_final=True)
            if self.has_buffered_text
            else ""
        )
        if self.is_busy or self._passed_fragments or self._decided_chars > 1:
            self._pending_text, self._decided_chars, self._secret_pattern, self.is_busy = (
                TEXT_START,
                1,
                None,
                False,
            )
            self._passed_fragments.clear()
        return redacted

    def _set_decided(self, text: str, position: int) -> None:
        """The text before a place is decided, the text behind it is held back."""
        self._pending_text = text[max(position - NAME_CONTEXT_CHARS, 0) :]
        self._decided_chars = min(position, NAME_CONTEXT_CHARS)
        self.is_busy = position < len(text) or self._secret_pattern is not None

    def _scan_text(
        self, text: str, position: int, *, is_final: bool, sign_regex: re.Pattern[str] = _SIGN
    ) -> str:
        """The text from a place on, redacted, up to where a secret may have begun."""
        lower_text, size, pieces = _convert_to_lower(text), len(text), list[str]()
        token_position = sign_position = 0
        written_until = position
        while True:
            if token_position < position:
                match = _TOKEN_ROOT.search(lower_text, position - 1)
                token_position = match.start() + 1 if match else size
            if sign_position < position:
                match = sign_regex.search(lower_text, position)
                sign_position = match.start() if match else size
            position = min(token_position, sign_position)
            if position == size:
                break
            # most signs follow no name of a secret
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
        self._set_decided(text, size)
        return "".join(pieces)

    def _skip_secret(self, pattern: SecretPattern, text: str, match: re.Match[str]) -> int:
        """Where the text goes on behind the secret whose head was found."""
        position = match.end()
        if not pattern.tail_chars and not pattern.body_chars:
            return position
        self._secret_pattern, self._key_end_text, self._key_chars_left = pattern, "", MAX_KEY_CHARS
        return len(text) - len(self._skip_open_secret(text[position:]))

    def _skip_open_secret(self, text: str) -> str:
        """The rest of a text, without the part that belongs to the secret before it."""
        assert self._secret_pattern is not None
        if self._secret_pattern.body_chars:
            return self._skip_key_block(text, self._secret_pattern)
        match = self._secret_pattern.secret_tail_regex.match(text)
        end = match.end() if match else 0
        if end < len(text):
            self._secret_pattern = None
        self._set_decided(decided_text := self._pending_text + text[:end], len(decided_text))
        return text[end:]

    def _skip_key_block(self, text: str, pattern: SecretPattern) -> str:
        """A key's block ends with its last line; without one it ends where the text stops looking
        like a block.
        """
        match = pattern.secret_tail_regex.match(text, 0, self._key_chars_left)
        end = match.end() if match else 0
        body = self._key_end_text + text[:end]
        if key_end := _KEY_END.search(body):
            end = key_end.end() - len(self._key_end_text)
            self._secret_pattern = None
        elif end < len(text) or end == self._key_chars_left:
            self._secret_pattern = None
        self._key_chars_left -= end
        self._key_end_text = body[-_MAX_KEY_END_CHARS:]
        self._set_decided(decided_text := self._pending_text + text[:end], len(decided_text))
        return text[end:]


def _match_secret(
    text: str, lower_text: str, position: int, is_token_start: bool, *, is_final: bool
) -> SecretMatch | None:
    """The secret that begins at a place, NOTHING, or None when only more text can tell.

    `is_token_start`: what stands before is neither letter nor digit.
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
    """The name before a sign, without quotes and brackets, if it ends as the name of a secret does;
    else "".
    """
    name = lower_text[max(position - NAME_CONTEXT_CHARS, 0) : position].rstrip(CLOSING_CHARS)
    return name if name.endswith(SECRET_NAME_ENDINGS) else ""


def _iterate_candidates(
    text: str, lower_text: str, position: int, is_token_start: bool, is_near_end: bool
) -> Iterator[SecretPattern | None]:
    """The patterns that may begin at a place; None among them where the text ends too soon to tell."""
    character = lower_text[position]
    if character in SIGN_CHARS:
        if lower_text[position - 1] in SIGN_CHARS:
            return
        if character == ":" and (is_near_end or lower_text.startswith("//", position + 1)):
            yield URL_PASSWORD_PATTERN
        if name := _find_secret_name(lower_text, position):
            original_text = text[max(position - NAME_CONTEXT_CHARS, 0) : position]
            for pattern in ASSIGNED_PATTERNS:
                if (original_text if pattern.is_uppercase else name).endswith(
                    pattern.preceding_names
                ):
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
    """The head and tail of a vendor's stderr, redacted before anything is cut out of its middle."""

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
        """The head and the tail. No bytes are added afterwards."""
        redacted = (
            self._stream_redactor.feed(self._decoder.decode(b"", True))
            + self._stream_redactor.flush()
        )
        super().add(redacted.encode("utf-8", "replace"))
        return super().to_text()


_PLACEHOLDER = re.compile("\\[REDACTED:([a-z-]{1,40})\\]")


def add_placeholder_counts(text: str, counts_by_kind: dict[str, int]) -> None:
    """Count the marks in a text that was redacted before."""
    for kind in _PLACEHOLDER.findall(text):
        counts_by_kind[kind] = counts_by_kind.get(kind, 0) + 1


# Options whose values are secrets, or may hold secrets, whatever they look like (surface page).
SECRET_FLAGS = (
    *(
        "--mcp-config",
        "--settings",
        "--managed-settings",
        "--api-key",
        "--openai-api-key",
        "-H",
        "--header",
    ),
    "--auth-token",
)
ARGUMENT_PLACEHOLDER = "[REDACTED:argument]"


def redact_argv(argv: Iterable[str]) -> list[str]:
    """A command line for a log or a recording: values of SECRET_FLAGS are blanked, the rest is
    redacted as text.
    """
    redactor = Redactor()
    redacted: list[str] = []
    open_flag = ""
    for argument in argv:
        name, equals, _ = argument.partition("=")
        if open_flag and (not argument.startswith("-") or open_flag == redacted[-1]):
            redacted.append(ARGUMENT_PLACEHOLDER)
            # this option takes several values
            open_flag = open_flag if open_flag == "--mcp-config" else ""
            continue
        open_flag = argument if argument in SECRET_FLAGS else ""
        if equals and name in SECRET_FLAGS:
            redacted.append(f"{name}={ARGUMENT_PLACEHOLDER}")
        elif argument.startswith("-H") and argument != "-H":
            redacted.append(f"-H{ARGUMENT_PLACEHOLDER}")
        else:
            redacted.append(redactor.redact_text(argument))
    return redacted


def describe_redactions(counts_by_kind: dict[str, int]) -> str:
    """The counts in a sentence; "" when nothing was redacted."""
    if not counts_by_kind:
        return ""
    total = sum(counts_by_kind.values())
    kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(counts_by_kind.items()))
    return f"{total} secret{'s were' if total > 1 else ' was'} redacted: {kinds}"
