"""The strict reader of a cast: finds what is damaged and where, and what is only unusual.

A checkpoint is the hash of all bytes before its line. The first one that does not match shows that
the damage lies between it and the one before; after it nothing can be proved. The chain proves
damage, not who wrote the file.
"""

import hashlib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from shim.core.cast.records import (
    CHECKPOINT,
    DAMAGE,
    MAX_LINE_BYTES,
    NOTE,
    CastError,
    CastLine,
    format_excerpt,
    parse_cast_line,
    parse_header,
    strip_bom,
)

# of each severity; the rest is counted, since one damaged line may affect all later ones
FINDINGS_KEPT = 100

# The keys of a header. `vendor_version` may be null; a cast without `dialect` is in Claude's.
HEADER: dict[str, type | tuple[type, ...]] = {
    "started": str,
    "shim": str,
    "vendor": str,
    "vendor_version": (str, type(None)),
    "argv": list,
    "cwd": str,
    "env": dict,
    "redact": str,
    "platform": str,
}
LATER: dict[str, type | tuple[type, ...]] = {"dialect": str, "swept": bool}
TYPES = {str: "a text", list: "a list of texts", dict: "an object", bool: "true or false"}


class CastFinding(NamedTuple):
    """A fault of lines `first` to `last`, from 1; the other fields are those of `Fault`."""

    first: int
    last: int
    severity: str
    kind: str
    text: str


class Verifier:
    """Feed it a cast in chunks of any size, then `close`; `findings` are in the order of the lines.

    `proved` is the last line that a checkpoint covers, `count` the number of lines, `left_out` of
    further findings. `cut`: the last checkpoint is missing.
    """

    def __init__(self) -> None:
        self.findings: list[CastFinding] = []
        self.left_out = 0
        self.count = 0
        self.proved = 0
        self.cut = False
        self._kept = {DAMAGE: 0, NOTE: 0}
        self._hash = hashlib.sha256()
        self._parts: list[bytes] = []
        self._size = 0
        self._long = False
        self._readable = True  # the first line was that of a cast
        self._broken = False  # a checkpoint did not match, or lines follow the last one
        self._ended = 0  # the line of the last checkpoint
        self._children: set[int] = set()
        # the running child, and the line of its start
        self._child: tuple[object, int] | None = None
        self._unfinished: dict[str, int] = {}  # streams with an unfinished line → where it begins

    @property
    def intact(self) -> bool:
        return not self._kept[DAMAGE]

    @property
    def chained(self) -> bool:
        """Whether every checkpoint matches: damage that was found was written so."""
        return self._readable and not self._broken

    @property
    def state(self) -> str:
        """`intact`, `damaged`, `cut off` if nothing else is wrong, or `unreadable`: no cast, or of
        a newer version.
        """
        if self.intact or not self._readable:
            return "intact" if self.intact else "unreadable"
        return "cut off" if self.cut and self._kept[DAMAGE] == 1 else "damaged"

    def feed(self, chunk: bytes) -> None:
        *lines, rest = chunk.split(b"\n")
        for line in lines:
            if self._parts or self._long:
                self._hold(line)
                line = b"".join(self._parts)
            self._line(line)
        if rest:
            self._hold(rest)

    def close(self) -> None:
        last = self.count + (self._long or bool(self._parts))
        if not self._readable:
            return
        if not self._ended:
            self.cut = True
            self._found(
                min(self.proved + 1, max(last, 1)),
                max(last, 1),
                DAMAGE,
                "cut",
                self._cut_text(last),
            )
        else:
            if last > self._ended:
                self._broken = True
                told = "behind the last checkpoint: nothing proves what stands there"
                self._found(self._ended + 1, last, DAMAGE, "behind", told)
            self._settle()
        self.findings.sort(key=lambda finding: (finding.first, finding.last))

    def _cut_text(self, last: int) -> str:
        if not self.count:
            return (
                "cut off in the first line"
                if last
                else "empty: not even its first line was written"
            )
        where = f"cut off behind line {self.count}: the last checkpoint is missing"
        if self._broken:
            return where
        if self.proved == self.count:
            return f"{where}; all lines up to there are proved"
        return f"{where}, and {_lines(self.proved + 1, self.count)} not proved"

    def _hold(self, part: bytes) -> None:
        """Keep a part of an unfinished line; of a line that is too long only the hash is kept."""
        self._parts.append(part)
        self._size += len(part)
        if self._size > MAX_LINE_BYTES:
            self._long = True
        if self._long:
            self._hash.update(b"".join(self._parts))
            self._parts = []

    def _line(self, raw: bytes) -> None:
        """Check a whole line, then add its bytes to the hash."""
        self.count += 1
        if self._long or len(raw) > MAX_LINE_BYTES:
            self._found_here(
                DAMAGE, "too_long", f"longer than {MAX_LINE_BYTES} bytes: no reader takes it"
            )
            self._readable = self._readable and self.count > 1
        elif self.count == 1:
            if raw != (raw := strip_bom(raw)):
                self._found_here(
                    NOTE,
                    "bom",
                    "the file begins with a byte order mark, which the shim does not write",
                )
            self._header(raw)
        elif self._readable and not self._ended:
            line = parse_cast_line(raw)
            for fault in line.problems:
                self._found_here(*fault)
            if line.code == CHECKPOINT:
                self._checkpoint(raw, end=line.fields["end"])
            elif line.is_stream:
                self._bytes(line)
            elif line.code:
                self._fact(line.code, line.fields)
        self._hash.update(b"\n" if self._long else raw + b"\n")
        self._parts, self._size, self._long = [], 0, False

    # -- the chain ---------------------------------------------------------------------------------

    def _checkpoint(self, raw: bytes, *, end: bool) -> None:
        digest = self._hash.hexdigest().encode()
        if raw not in (b'["h","%s"]' % digest, b'["h","%s","end"]' % digest):
            if not self._broken:
                told = f"the checkpoint of line {self.count} does not match; nothing behind it can be proved"
                self._found(self.proved + 1, self.count, DAMAGE, "changed", told)
            self._broken = True
        elif not self._broken:
            self.proved = self.count
        if end:
            self._ended = self.count

    # -- what the lines say ------------------------------------------------------------------------

    def _header(self, raw: bytes) -> None:
        try:
            header = parse_header(raw)
        except CastError as error:
            self._readable = False
            self._found_here(DAMAGE, "no_cast", str(error))
            return
        facts = header.fields
        for key, kind in (*HEADER.items(), *LATER.items()):
            if key not in facts:
                if key in HEADER:
                    self._found_here(NOTE, "header", f"the header has no {key}")
            elif not isinstance(facts[key], kind) or (kind is list and not _texts(facts[key])):
                wanted = TYPES[kind if isinstance(kind, type) else kind[0]]
                self._found_here(
                    DAMAGE,
                    "header",
                    f"{key} of the header is not {wanted}: {format_excerpt(facts[key])}",
                )

    def _bytes(self, line: CastLine) -> None:
        letter = line.code
        if line.has_newline:
            self._unfinished.pop(letter, None)
        else:
            self._unfinished.setdefault(letter, self.count)
        if letter in "oeI" and self._child is None:
            when = "behind the end of its child" if self._children else "before any child"
            self._found_here(DAMAGE, "order", f"a record of {letter} {when}")

    def _fact(self, letter: str, fact: Mapping[str, Any]) -> None:
        if letter == "s":
            if self._child is not None:
                running, since = self._child
                told = f"a child starts while {format_excerpt(running)} of line {since} runs"
                self._found(since, self.count, DAMAGE, "order", told)
            self._child = (fact.get("child"), self.count)
            self._number(fact.get("child"))
        elif letter == "x":
            self._ended_child(fact)

    def _number(self, child: object) -> None:
        if isinstance(child, bool) or not isinstance(child, int):
            self._found_here(DAMAGE, "no_record", f"a child's number is {format_excerpt(child)}")
        elif child <= max(self._children, default=0):
            self._found_here(NOTE, "order", f"child {child} does not follow the one before it")
        else:
            self._children = {child}  # they count up, so the last one is enough

    def _ended_child(self, fact: Mapping[str, Any]) -> None:
        child = fact.get("child")
        if self._child is None or self._child[0] != child:
            self._found_here(
                DAMAGE, "order", f"the end of child {format_excerpt(child)}, which was not running"
            )
            return
        self._child = None
        for letter in "oe":  # a child may end without a newline
            self._unfinished.pop(letter, None)

    def _settle(self) -> None:
        """Note what is unfinished at the end of a complete file."""
        if self._child is not None:
            child, since = self._child
            self._found(
                since,
                self.count,
                NOTE,
                "order",
                f"nothing says how child {format_excerpt(child)} ended",
            )
        if since := self._unfinished.get("O", 0):
            self._found(
                since, self.count, NOTE, "unfinished", "a line of ours in pieces that has no end"
            )

    # -- findings ----------------------------------------------------------------------------------

    def _found_here(self, severity: str, kind: str, text: str) -> None:
        self._found(self.count, self.count, severity, kind, text)

    def _found(self, first: int, last: int, severity: str, kind: str, text: str) -> None:
        kept = self._kept[severity] = self._kept[severity] + 1
        if kept > FINDINGS_KEPT and kind not in ("changed", "cut", "behind"):
            self.left_out += 1
        else:
            self.findings.append(CastFinding(first, last, severity, kind, text))


def verify(read: Callable[[], bytes]) -> Verifier:
    """Check a whole cast; `read` returns its next bytes, and b"" at its end. Errors of `read` are
    raised.
    """
    verifier = Verifier()
    while chunk := read():
        verifier.feed(chunk)
    verifier.close()
    return verifier


def _texts(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(word, str) for word in value)


def _lines(first: int, last: int) -> str:
    return f"line {first} is" if first == last else f"lines {first} to {last} are"
