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
    ADDRESS,
    ASSIGNED,
    BEFORE_CHARACTERS,
    CLOSING,
    DASHED,
    NAME_ENDS,
    SIGNS,
    TOKENS,
    Pattern,
    trie,
)

# Characters. A stream holds back at most this: the longest pattern without its tail (a test
# measures it).
HELD_CHARACTERS = 512
# of a block whose end never comes; the largest keys in use are a third as long
KEY_CHARACTERS = 64 * 1024
SHORTEST = 8  # characters; `pwd=a1b2` is not a secret yet, so nothing shorter is
# A model's fragments are words that come again and again, with their space in front. Fragments in
# which no secret can begin are remembered.
HARMLESS_FRAGMENTS = 2000
HARMLESS_CHARACTERS = 16
# keys of objects that are neither secrets nor names of secrets; they come again too
PLAIN_KEYS = 1000
# characters; in a longer text it pays to look first whether it has the name of a secret at all
PREFILTERED = 200

Entry = tuple[str, Pattern]  # a stem, and the pattern that begins with it
Found = tuple[Pattern | None, re.Match[str] | None]
NOTHING: Found = (None, None)
ROOT = 3  # letters of a stem that are looked for; no stem is shorter


def _roots(patterns: Iterable[Pattern]) -> dict[str, list[Entry]]:
    """The first letters of stems → the stems with these letters and their patterns, in the order of
    the table.
    """
    roots: dict[str, list[Entry]] = {}
    for pattern in patterns:
        for stem in pattern.stems:
            roots.setdefault(stem[:ROOT], []).append((stem, pattern))
    return roots


# Where a secret may begin, or where the end of a text may be the beginning of a secret. Both
# expressions read small letters. A root of TOKENS counts only behind a character that is neither
# letter nor digit, which is matched too.
_TOKENS, _DASHED = _roots(TOKENS), _roots(DASHED)
_TOKEN_ROOT = re.compile(
    f"[^a-z0-9](?=[{''.join({root[0] for root in _TOKENS})}]){trie(_TOKENS, whole=True)}"
)
_SIGN = re.compile(f"{'|'.join(SIGNS)}|{trie(_DASHED, whole=True)}")
# The same for a whole text without any name of a secret.
_OTHER_SIGN = re.compile(f"://|{trie(_DASHED, whole=True)}")
_NAME = re.compile("passw|passphrase|pwd|secret|token|key|credential|authorization|sig=")

_KEY_END = re.compile("-----END [A-Z0-9 ]{0,30}PRIVATE KEY[ BLOCK]{0,6}-----")
_KEY_END_CHARACTERS = 80


# in the place of a possible beginning of a secret, where somebody cut the text
CUT = "[REDACTED:cut]"


START = "\n"  # stands before every text, as if a line had ended there


class Redactor:
    """Redacts strings; `counts` is filled by kind. A string of exactly `cut` characters was cut
    there (0: none was).
    """

    def __init__(self, counts: dict[str, int] | None = None, *, cut: int = 0) -> None:
        self.counts: dict[str, int] = {} if counts is None else counts
        self._cut = cut
        self._plain: set[str] = set()

    def text(self, text: str) -> str:
        """A whole text without its secrets; the same object when there are none."""
        if len(text) < SHORTEST:
            return text
        low = f"\n{text}".lower()
        signs = _SIGN if len(text) < PREFILTERED or _NAME.search(low) else _OTHER_SIGN
        if signs.search(low) is None and _TOKEN_ROOT.search(low) is None:
            return text
        stream = Stream(self.counts)
        if len(text) == self._cut:
            said = stream.feed(text)
            return said + CUT if stream.held else said
        said = stream.whole(text, signs)
        return text if said == text else said

    def value(self, value: Any) -> Any:
        """A value of JSON with all its strings redacted; the same object when nothing was found."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, dict):
            return self._table(value)
        if isinstance(value, list | tuple):
            cleaned = [self.value(item) for item in value]
            return (
                cleaned
                if any(one is not other for one, other in zip(cleaned, value, strict=True))
                else value
            )
        return value

    def _table(self, table: dict[str, Any]) -> dict[str, Any]:
        cleaned, same = {}, True
        for key, item in table.items():
            if key in self._plain:
                own, said = key, self.value(item)
            else:
                own, said = self.text(key), self._named(key, item)
                if (
                    own is key
                    and not key.lower().endswith(NAME_ENDS)
                    and len(self._plain) < PLAIN_KEYS
                ):
                    self._plain.add(key)
            same = same and own is key and said is item
            cleaned[own] = said
        return table if same else cleaned

    def _named(self, key: str, item: Any) -> Any:
        if not isinstance(item, str):
            return self.value(item)
        text = self.text(item)
        if text is not item or not key.lower().endswith(NAME_ENDS):
            return text
        before = f'{key}="'
        said = Redactor().text(f'{before}{item}"')
        if not said.startswith(before) or said[len(before) : -1] == item:
            return item
        return self.text(f'{before}{item}"')[len(before) : -1]


def signless(text: str) -> bool:
    """Whether no secret can begin in a text, whatever stands before the text."""
    low = f"{START}{text}".lower()
    return _SIGN.search(low, 1) is None and _TOKEN_ROOT.search(low) is None


def _lowered(text: str) -> str:
    """The text in small letters, each at the place of its letter."""
    low = text.lower()
    return low if len(low) == len(text) else text.replace("\u0130", "I").lower()


class Stream:
    """Redacts a text that comes in fragments. All that was given back is the beginning of the whole
    text, redacted.
    """

    __slots__ = (
        "_before",
        "_carry",
        "_passed",
        "_room",
        "_tail",
        "_waiting",
        "busy",
        "counts",
        "harmless",
        "passed",
    )

    def __init__(self, counts: dict[str, int]) -> None:
        self.counts = counts
        self.busy = False  # characters are held back, or a secret is being swallowed
        self.harmless: set[str] = set()  # fragments that need no look while the stream is not busy
        # the last fragments that were said as they came
        self._passed = deque[str](maxlen=BEFORE_CHARACTERS)
        self.passed = self._passed.append
        # the last characters that were decided before `_passed`, and then what is held back
        self._waiting = START
        self._before = 1  # how many characters of `_waiting` were decided
        self._tail: Pattern | None = None
        self._carry = ""
        self._room = 0

    @property
    def held(self) -> bool:
        return len(self._waiting) > self._before

    def feed(self, fragment: str) -> str:
        """The text that may be said once this fragment has come."""
        if not fragment:
            return ""
        if not self.busy:
            passed = self._passed
            low = ((passed[-1] if passed else self._waiting)[-1] + fragment).lower()
            if _SIGN.search(low, 1) is None and _TOKEN_ROOT.search(low) is None:
                self._pass(fragment)
                return fragment
            self._decided(behind := self._waiting + "".join(passed), len(behind))
            passed.clear()
        elif self._tail is not None and not (fragment := self._swallow(fragment)):
            return ""
        return self._scan(self._waiting + fragment, self._before, final=False)

    def _pass(self, fragment: str) -> None:
        """No secret begins in a fragment, whatever came before; a short fragment is known from now
        on.
        """
        if len(fragment) > HARMLESS_CHARACTERS:
            fragment = fragment[-BEFORE_CHARACTERS:]
        elif not fragment[0].isalnum():
            if len(self.harmless) >= HARMLESS_FRAGMENTS:
                self.harmless.clear()
            self.harmless.add(fragment)
        self._passed.append(fragment)

    def whole(self, text: str, signs: re.Pattern[str] = _SIGN) -> str:
        """A text in one piece, redacted; `signs` finds the places to look at."""
        return self._scan(START + text, 1, final=True, signs=signs)

    def flush(self) -> str:
        """The text has ended: gives back what was held back, redacted."""
        said = self._scan(self._waiting, self._before, final=True) if self.held else ""
        if self.busy or self._passed or self._before > 1:
            self._waiting, self._before, self._tail, self.busy = START, 1, None, False
            self._passed.clear()
        return said

    def _decided(self, text: str, at: int) -> None:
        """The text before a place is decided, the text behind it is held back."""
        self._waiting = text[max(at - BEFORE_CHARACTERS, 0) :]
        self._before = min(at, BEFORE_CHARACTERS)
        self.busy = at < len(text) or self._tail is not None

    def _scan(self, text: str, at: int, *, final: bool, signs: re.Pattern[str] = _SIGN) -> str:
        """The text from a place on, redacted, up to where a secret may have begun."""
        low, size, said = _lowered(text), len(text), list[str]()
        token = sign = 0
        done = at
        while True:
            if token < at:
                hit = _TOKEN_ROOT.search(low, at - 1)
                token = hit.start() + 1 if hit else size
            if sign < at:
                hit = signs.search(low, at)
                sign = hit.start() if hit else size
            at = min(token, sign)
            if at == size:
                break
            # most signs follow no name of a secret
            if at != token and low[at] in "=>" and not _named(low, at):
                at += 1
                continue
            found = _found(text, low, at, at == token, final=final)
            if found is None:
                said.append(text[done:at])
                self._decided(text, at)
                return "".join(said)
            pattern, hit = found
            if pattern is None or hit is None:
                at += 1
                continue
            said += text[done : hit.end(1)], pattern.mark
            self.counts[pattern.kind] = self.counts.get(pattern.kind, 0) + 1
            done = at = self._skip_secret(pattern, text, hit)
        said.append(text[done:])
        self._decided(text, size)
        return "".join(said)

    def _skip_secret(self, pattern: Pattern, text: str, match: re.Match[str]) -> int:
        """Where the text goes on behind the secret whose head was found."""
        at = match.end()
        if not pattern.tail and not pattern.body:
            return at
        self._tail, self._carry, self._room = pattern, "", KEY_CHARACTERS
        return len(text) - len(self._swallow(text[at:]))

    def _swallow(self, text: str) -> str:
        """The rest of a text, without the part that belongs to the secret before it."""
        assert self._tail is not None
        if self._tail.body:
            return self._swallow_key(text, self._tail)
        found = self._tail.rest.match(text)
        end = found.end() if found else 0
        if end < len(text):
            self._tail = None
        self._decided(behind := self._waiting + text[:end], len(behind))
        return text[end:]

    def _swallow_key(self, text: str, key: Pattern) -> str:
        """A key's block ends with its last line; without one it ends where the text stops looking
        like a block.
        """
        found = key.rest.match(text, 0, self._room)
        end = found.end() if found else 0
        body = self._carry + text[:end]
        if last := _KEY_END.search(body):
            end = last.end() - len(self._carry)
            self._tail = None
        elif end < len(text) or end == self._room:
            self._tail = None
        self._room -= end
        self._carry = body[-_KEY_END_CHARACTERS:]
        self._decided(behind := self._waiting + text[:end], len(behind))
        return text[end:]


def _found(text: str, low: str, at: int, token: bool, *, final: bool) -> Found | None:
    """The secret that begins at a place, NOTHING, or None when only more text can tell.

    `token`: what stands before is neither letter nor digit.
    """
    near = not final and len(text) - at <= HELD_CHARACTERS
    for pattern in _candidates(text, low, at, token, near):
        if pattern is None or (near and pattern.open.match(text, at)):
            return None
        if hit := pattern.full.match(text, at):
            return pattern, hit
    return NOTHING


def _named(low: str, at: int) -> str:
    """The name before a sign, without quotes and brackets, if it ends as the name of a secret does;
    else "".
    """
    name = low[max(at - BEFORE_CHARACTERS, 0) : at].rstrip(CLOSING)
    return name if name.endswith(NAME_ENDS) else ""


def _candidates(text: str, low: str, at: int, token: bool, near: bool) -> Iterator[Pattern | None]:
    """The patterns that may begin at a place; None among them where the text ends too soon to tell."""
    first = low[at]
    if first in SIGNS:
        if low[at - 1] in SIGNS:
            return
        if first == ":" and (near or low.startswith("//", at + 1)):
            yield ADDRESS
        if name := _named(low, at):
            written = text[max(at - BEFORE_CHARACTERS, 0) : at]
            for pattern in ASSIGNED:
                if (written if pattern.shouted else name).endswith(pattern.behind):
                    yield pattern
        return
    root = low[at : at + ROOT]
    if near and len(text) - at < ROOT:
        yield None
    for stem, pattern in [*(_TOKENS.get(root, ()) if token else ()), *_DASHED.get(root, ())]:
        if low.startswith(stem, at):
            yield pattern
        elif near and stem.startswith(low[at:]):
            yield None


class RedactedTail(HeadTailBuffer):
    """The head and tail of a vendor's stderr, redacted before anything is cut out of its middle."""

    __slots__ = ("_decoder", "_stream")

    def __init__(self) -> None:
        super().__init__()
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._stream = Stream({})

    def add(self, chunk: bytes) -> None:
        super().add(self._stream.feed(self._decoder.decode(chunk)).encode("utf-8", "replace"))

    def to_text(self) -> str:
        """The head and the tail. No bytes are added afterwards."""
        rest = self._stream.feed(self._decoder.decode(b"", True)) + self._stream.flush()
        super().add(rest.encode("utf-8", "replace"))
        return super().to_text()


_MARK = re.compile("\\[REDACTED:([a-z-]{1,40})\\]")


def marks(text: str, counts: dict[str, int]) -> None:
    """Count the marks in a text that was redacted before."""
    for kind in _MARK.findall(text):
        counts[kind] = counts.get(kind, 0) + 1


# Options whose values are secrets, or may hold secrets, whatever they look like (surface page).
SECRET_OPTIONS = (
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
ARGUMENT = "[REDACTED:argument]"


def redact_argv(arguments: Iterable[str]) -> list[str]:
    """A command line for a log or a recording: values of SECRET_OPTIONS are blanked, the rest is
    redacted as text.
    """
    redactor = Redactor()
    cleaned: list[str] = []
    option = ""
    for argument in arguments:
        name, equals, _ = argument.partition("=")
        if option and (not argument.startswith("-") or option == cleaned[-1]):
            cleaned.append(ARGUMENT)
            option = option if option == "--mcp-config" else ""  # this option takes several values
            continue
        option = argument if argument in SECRET_OPTIONS else ""
        if equals and name in SECRET_OPTIONS:
            cleaned.append(f"{name}={ARGUMENT}")
        elif argument.startswith("-H") and argument != "-H":
            cleaned.append(f"-H{ARGUMENT}")
        else:
            cleaned.append(redactor.text(argument))
    return cleaned


def summary(counts: dict[str, int]) -> str:
    """The counts in a sentence; "" when nothing was redacted."""
    if not counts:
        return ""
    total = sum(counts.values())
    kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(counts.items()))
    return f"{total} secret{'s were' if total > 1 else ' was'} redacted: {kinds}"
