"""Damages the stream of any fixture in the ways in which real agents print malformed output.

A damage is a function of the lines of a stream and a position. A damage in `REPAIRABLE` loses
nothing: the output is the same as for the undamaged stream. A damage in `LOSSY` may lose the
damaged line, but the output still follows the contract. `damage_stream` applies random damages.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any

from stream_lines import Line, parse_lines

Lines = list[bytes]
Damage = Callable[[Lines, int], Lines]

DEEP = b"[" * 3000 + b'"x"' + b"]" * 3000
ESCAPES = b"\x1b]0;a title\x07\x1b[2K\x1b[1G\x1b[31mred\x1b[0m"
PROGRESS = b"\r  1%\r 50%\r100%\r"
BANNER = b"YOLO mode is enabled. All tool calls will be automatically approved."

# An additional member of an object. No translator reads it, but the complete line must be repaired.
MEMBERS: Mapping[str, bytes] = {
    "nan": b'"hostile":NaN',
    "infinity": b'"hostile":[Infinity,-Infinity]',
    "large float": b'"hostile":1e400',
    "long integer": b'"hostile":123456789012345678901234567890',
    "endless integer": b'"hostile":' + b"9" * 5000,
    "key twice": b'"hostile":1,"hostile":2',
    "deep": b'"hostile":' + DEEP,
    "control characters": b'"hostile":"\x00\x01\t\x1b[31m\x7f"',
    "raw newlines": b'"hostile":"one\n\n  two\r\n\n\nthree\n"',
    "many raw newlines": b'"hostile":"' + b"line\n" * 100 + b'"',
    "latin-1": b'"hostile":"caf\xe9"',
    "cut emoji": b'"hostile":"\xf0\x9f"',
    "overlong": b'"hostile":"\xc0\xaf"',
    "never a byte": b'"hostile":"\xff\xfe"',
    "cesu-8": b'"hostile":"\xed\xa0\xbd\xed\xb8\x80"',
    "half a surrogate": b'"hostile":"\\ud83d"',
    "a surrogate as key": b'"\\ud99c":{"\\udc00\\ud83d":1}',
    "separators": '"hostile":"a\u2028b\u2029c\x85d"'.encode(),
    "bad key": b'"\xff\xed\xa0\xbd":1',
}


def _insert_member(member: bytes) -> Damage:
    def damage_lines(lines: Lines, at: int) -> Lines:
        line = lines[at].rstrip()
        if not (line.startswith(b'{"') and line.endswith(b"}")):
            return lines
        return [*lines[:at], line[:-1] + b"," + member + b"}", *lines[at + 1 :]]

    return damage_lines


def _surround_line(before: bytes, suffix: bytes) -> Damage:
    def damage_lines(lines: Lines, at: int) -> Lines:
        return [*lines[:at], before + lines[at] + suffix, *lines[at + 1 :]]

    return damage_lines


def _insert_lines(*more: bytes) -> Damage:
    def damage_lines(lines: Lines, at: int) -> Lines:
        return [*lines[:at], *more, *lines[at:]]

    return damage_lines


def _join_lines(count: int, between: bytes = b"") -> Damage:
    def damage_lines(lines: Lines, at: int) -> Lines:
        return [*lines[:at], between.join(lines[at : at + count]), *lines[at + count :]]

    return damage_lines


def _change_every_line(change: Callable[[bytes], bytes]) -> Damage:
    def damage_lines(lines: Lines, at: int) -> Lines:
        return [change(line) for line in lines]

    return damage_lines


def as_cesu(line: bytes) -> bytes:
    """Encode each character outside the first plane as two surrogates in bytes (CESU-8)."""
    text = line.decode("utf-8", "surrogateescape")
    pairs = re.sub("[\U00010000-\U0010ffff]", lambda match: _split_into_surrogates(match[0]), text)
    return b"".join(
        character.encode(
            "utf-8", "surrogateescape" if "\udc80" <= character <= "\udcff" else "surrogatepass"
        )
        if not _is_low(pairs, position)
        else character.encode("utf-8", "surrogatepass")
        for position, character in enumerate(pairs)
    )


def _split_into_surrogates(character: str) -> str:
    return (
        character.encode("utf-16-le").decode("utf-16-le", "surrogatepass")
        if character.isascii()
        else "".join(
            chr(int.from_bytes(character.encode("utf-16-be")[start : start + 2], "big"))
            for start in (0, 2)
        )
    )


def _is_low(text: str, position: int) -> bool:
    return position > 0 and "\ud800" <= text[position - 1] <= "\udbff"


def unescape_line(line: bytes) -> bytes:
    """Replace escaped newlines and tabs in the strings of a line by raw ones."""
    if b"\\\\" in line or line.count(b"\\n") > 500:
        return line
    return line.replace(b"\\n", b"\n").replace(b"\\t", b"\t")


REPAIRABLE: Mapping[str, Damage] = {
    **{name: _insert_member(member) for name, member in MEMBERS.items()},
    "byte order mark": _surround_line(b"\xef\xbb\xbf", b""),
    "two marks": _surround_line(b" \xef\xbb\xbf\xef\xbb\xbf", b""),
    "nul padding": _surround_line(b"\x00\x00", b"\x00"),
    "banner in front": _surround_line(BANNER, b""),
    "banner behind": _surround_line(b"", BANNER),
    "escapes around": _surround_line(ESCAPES, ESCAPES),
    "progress bar in front": _surround_line(PROGRESS, b""),
    "progress bar between": _insert_lines(PROGRESS),
    "escapes between": _insert_lines(ESCAPES, b"\x1b]52;c;ZXZpbA==\x07"),
    "noise between": _insert_lines(
        b"(node:12) DeprecationWarning: punycode", b"caf\xe9", b"Active code page: 65001\r"
    ),
    "values between": _insert_lines(b"null", b"[]", b"42", b'"text"', b"true", b"{}"),
    "blank lines": _insert_lines(*[b""] * 1000, b"\r", b"  ", b"\x00"),
    "two on a line": _join_lines(2),
    "ten on a line": _join_lines(10),
    "ten with something between": _join_lines(10, b" \x1b[0m "),
    "carriage returns": _change_every_line(lambda line: line + b"\r"),
    "surrogates in bytes": _change_every_line(as_cesu),
    "raw control characters": _change_every_line(unescape_line),
}


def _cut_line(lines: Lines, at: int) -> Lines:
    return [*lines[:at], lines[at][: len(lines[at]) // 2], *lines[at + 1 :]]


def _cut_off(lines: Lines, at: int) -> Lines:
    return [*lines[:at], lines[at][: 2 * len(lines[at]) // 3]]


def _split_in_two(lines: Lines, at: int) -> Lines:
    half = len(lines[at]) // 2
    return [*lines[:at], lines[at][:half], lines[at][half:], *lines[at + 1 :]]


LOSSY: Mapping[str, Damage] = {
    "cut line": _cut_line,
    "cut stream": _cut_off,
    "a newline in the middle": _split_in_two,
    "glued to a broken one": _surround_line(b'{"type":"x","a":"', b""),
    "an open bracket": _surround_line(b"[", b""),
    "quotes in front": _surround_line(b'"', b""),
    "endless depth": _insert_lines(b'{"type":' + b"[" * 5000),
    "bad bytes everywhere": _change_every_line(lambda line: line.replace(b" ", b"\xf0\x9f ")),
    "half of all bytes": _change_every_line(lambda line: line[::2]),
}


def clean_lines(data: bytes) -> Lines:
    """Return the lines of a stream, without the empty one after its last newline."""
    lines = data.split(b"\n")
    return lines[:-1] if lines and not lines[-1] else lines


def join_lines(lines: Sequence[bytes], *, ended: bool = True) -> bytes:
    """Join lines to a stream. With `ended`, the last line has a newline."""
    return b"\n".join(lines) + (b"\n" if ended else b"")


def damage_stream(
    chance: Random, data: bytes, kinds: Mapping[str, Damage] = REPAIRABLE, at_most: int = 4
) -> bytes:
    """Apply one or a few damages to a stream."""
    lines = clean_lines(data)
    for _ in range(chance.randint(1, at_most)):
        if lines:
            lines = kinds[chance.choice(sorted(kinds))](lines, chance.randrange(len(lines)))
    return join_lines(lines, ended=chance.random() < 0.5)


def summarize_stream(data: bytes) -> dict[str, Any]:
    """Return what a frontend learns from a stream: texts, calls, results, and how each turn ended."""
    summary: dict[str, Any] = {"text": "", "thinking": "", "calls": [], "results": [], "ends": []}
    for line in parse_lines(data):
        if line["type"] == "result":
            summary["ends"].append((line["is_error"], None if line["is_error"] else line["result"]))
        for block in _list_blocks(line):
            if block["type"] in ("text", "thinking"):
                summary[block["type"]] += block[block["type"]]
            elif block["type"] == "tool_use":
                summary["calls"].append((block["name"], block["input"]))
            elif block["type"] == "tool_result":
                summary["results"].append(block["content"])
    return summary


def _list_blocks(line: Line) -> list[Line]:
    content = (
        line.get("message", {}).get("content", []) if line["type"] in ("assistant", "user") else []
    )
    return content if isinstance(content, list) else []
