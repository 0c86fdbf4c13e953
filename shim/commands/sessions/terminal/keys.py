"""What a person types on a terminal that hands over every key: the keys, and one line that they
edit. Pure.
"""

import codecs
import re
from collections import deque
from collections.abc import Callable, Mapping

PASTE_CHARACTERS = 1_000_000  # of a paste; the rest of it is left out
# of silence end a paste without an end mark, because a terminal sends a paste without pauses
PASTE_SECONDS = 1.0
LINE_CHARACTERS = 1_000_000  # of a message that is typed
ORDER_CHARACTERS = 64  # of an escape sequence; what goes on for longer is none
KEPT_LINES = 100  # that the arrow up brings back

ENTER, BACKSPACE, DELETE, LEFT, RIGHT, HOME, END, UP, DOWN = (
    "enter", "backspace", "delete", "left", "right", "home", "end", "up", "down",
)  # fmt: skip
CTRL_C, CTRL_D, CTRL_T, CTRL_Z, TAB = "ctrl-c", "ctrl-d", "ctrl-t", "ctrl-z", "tab"
NEWLINE, _KILL, _CUT, _WORD = "newline", "kill", "cut", "word"
_PASTED = "\x1b[201~"  # the end of a paste
CTRL_C_BYTE = b"\x03"
# keys that are text if several lines come in one read
_BURST = {ENTER: "\n", NEWLINE: "\n", TAB: "\t"}
# a terminal then says where a paste begins and ends
PASTE_ON, PASTE_OFF = "\x1b[?2004h", "\x1b[?2004l"

_TEXT = re.compile(r"[^\x00-\x1f\x7f]+")
_ORDER = re.compile(r"\x1b(?:\[([0-9;?<>]*)([@-~])|O(.)|([\r\n])|([^\[O]))")
_UNFINISHED = re.compile(r"\x1b(?:\[[0-9;?<>]*|O)?\Z")
_LETTERS = {"A": UP, "B": DOWN, "C": RIGHT, "D": LEFT, "F": END, "H": HOME}
_NUMBERS = {"1": HOME, "3": DELETE, "4": END, "7": HOME, "8": END}
_CONTROL = {
    "\x01": HOME, "\x02": LEFT, "\x03": CTRL_C, "\x04": CTRL_D, "\x05": END, "\x06": RIGHT, "\x08": BACKSPACE,
    "\t": TAB, "\n": NEWLINE, "\x0b": _CUT, "\r": ENTER, "\x0e": DOWN, "\x10": UP, "\x14": CTRL_T,
    "\x15": _KILL, "\x17": _WORD, "\x1a": CTRL_Z, "\x7f": BACKSPACE,
}  # fmt: skip


class Text(str):
    """Characters that were typed or pasted, and are no key of their own."""

    __slots__ = ()


class Pasted(Text):
    """Text that nobody pressed a key for."""

    __slots__ = ()


class Keys:
    """Takes the bytes of a terminal apart. What is no key and no text is left out."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._rest = ""
        self._paste: str | None = None  # since a paste began

    @property
    def is_pasting(self) -> bool:
        """Return whether a paste has started and its end mark has not come."""
        return self._paste is not None

    def end_paste(self) -> list[str]:
        """End a paste without an end mark, and return its keys. The next bytes are keys again."""
        keys = list[str]()
        if self._paste is not None:
            keys.append(_clean_paste(self._paste))
            self._paste = None
        return keys

    def feed(self, data: bytes) -> list[str]:
        """The keys: the names above, and `Text`. Characters that came at once are one text.

        Several lines that came at once are one paste: a terminal without paste marks sends them as
        if they were typed. Ctrl-C that comes alone, also several times, ends a paste without its
        end mark.
        """
        if self.is_pasting and not data.strip(CTRL_C_BYTE):
            return [*self.end_paste(), *[CTRL_C] * len(data)]
        return _join_burst(self._read_keys(data))

    def _read_keys(self, data: bytes) -> list[str]:
        begun, text = self._rest, self._decoder.decode(data)
        # The key Esc is a sequence that has only begun; a key that follows it in another read is a
        # key of its own.
        text, self._rest = text if begun == "\x1b" and text[:1] not in "[O" else begun + text, ""
        # a place, because a copy of the rest for each line takes minutes for a megabyte
        keys, place = list[str](), 0
        while place < len(text):
            if self._paste is not None:
                place = self._read_paste(text, place, keys)
            elif (run := _TEXT.match(text, place)) is not None:
                keys.append(Text(run[0]))
                place = run.end()
            elif text[place] == "\x1b":
                place = self._read_sequence(text, place, keys)
            else:
                keys += [_CONTROL[text[place]]] if text[place] in _CONTROL else []
                place += 1
        return keys

    def _read_sequence(self, text: str, place: int, keys: list[str]) -> int:
        """Take an escape sequence. Returns the place after it."""
        found = _ORDER.match(text, place)
        if found is None:
            if _UNFINISHED.match(text, place) and len(text) - place < ORDER_CHARACTERS:
                self._rest = text[place:]  # the rest of it is on its way
                return len(text)
            return place + 1
        numbers, final, single, newline, _ = found.groups()
        name = NEWLINE if newline else _LETTERS.get(single or final or "")
        if final == "~":
            name = _NUMBERS.get(numbers)
            self._paste = "" if numbers == "200" else None
        keys += [name] if name is not None else []
        return found.end()

    def _read_paste(self, text: str, place: int, keys: list[str]) -> int:
        """Take a paste up to its end, which may come later. Returns the place after it."""
        assert self._paste is not None
        before = len(self._paste)
        both = self._paste + text[place:]
        pasted, ended, _ = both.partition(_PASTED)
        if not ended:
            kept = both[:PASTE_CHARACTERS]
            # The end of a paste may come in two pieces, also behind the characters that are kept.
            self._paste = kept if len(kept) == len(both) else kept + both[-len(_PASTED) + 1 :]
            return len(text)
        self._paste = None
        keys.append(_clean_paste(pasted))
        return place + len(pasted) + len(ended) - before


def _clean_paste(text: str) -> Pasted:
    """Return a paste as text: bounded, with line feeds, without control characters."""
    text = text[:PASTE_CHARACTERS].replace("\r\n", "\n").replace("\r", "\n")
    return Pasted(
        "".join(
            letter for letter in text if letter in "\n\t" or (letter >= " " and letter != "\x7f")
        )
    )


def _join_burst(keys: list[str]) -> list[str]:
    """Join the lines of one read to one paste, and return the keys. An Enter at the end stays a
    key.

    If the read contains an editing key, such as an arrow, the keys are returned unchanged: they
    were typed ahead.
    """
    last_text = max((place for place, key in enumerate(keys) if isinstance(key, Text)), default=-1)
    burst = keys[: last_text + 1]
    if ENTER not in burst or not all(isinstance(key, Text) or key in _BURST for key in burst):
        return keys
    text = "".join(key if isinstance(key, Text) else _BURST[key] for key in burst)
    return [Pasted(text), *keys[last_text + 1 :]]


class Editor:
    """One message while it is typed; it may have several lines. `place` is the cursor's, in
    characters.
    """

    def __init__(self) -> None:
        self.text = ""
        self.place = 0
        self._kept = deque[str](maxlen=KEPT_LINES)
        self._shown = 0  # how far back the arrow up has gone

    def press(self, key: str) -> str | None:
        """Take a key. Returns the message when it is done, which empties the line."""
        if isinstance(key, Text):
            self._insert(key)
        elif key == NEWLINE:
            self._insert("\n")
        elif key == ENTER:
            return self._done()
        elif key in (UP, DOWN):
            self._bring(1 if key == UP else -1)
        elif key in _EDITS:
            self.text, self.place = _EDITS[key](self.text, self.place)
        return None

    def put(self, text: str) -> None:
        """Have this text in the line, with the cursor behind it."""
        self.text, self.place, self._shown = text, len(text), 0

    def _insert(self, text: str) -> None:
        text = text[: max(LINE_CHARACTERS - len(self.text), 0)]
        self.text = self.text[: self.place] + text + self.text[self.place :]
        self.place += len(text)

    def _done(self) -> str:
        said = self.text
        if said.strip():
            self._kept.append(said)
        self.put("")
        return said

    def _bring(self, step: int) -> None:
        """Show an earlier or a later message."""
        shown = min(max(self._shown + step, 0), len(self._kept))
        if shown != self._shown:
            self.put(self._kept[-shown] if shown else "")
            self._shown = shown


def _word_before(text: str, place: int) -> tuple[str, int]:
    kept = text[:place].rstrip()
    kept = kept[: max(kept.rfind(" "), kept.rfind("\n")) + 1]
    return kept + text[place:], len(kept)


# What a key makes of a text and of the place of the cursor.
_EDITS: Mapping[str, Callable[[str, int], tuple[str, int]]] = {
    BACKSPACE: lambda text, place: (text[: max(place - 1, 0)] + text[place:], max(place - 1, 0)),
    DELETE: lambda text, place: (text[:place] + text[place + 1 :], place),
    LEFT: lambda text, place: (text, max(place - 1, 0)),
    RIGHT: lambda text, place: (text, min(place + 1, len(text))),
    HOME: lambda text, place: (text, 0),
    END: lambda text, place: (text, len(text)),
    _KILL: lambda text, place: (text[place:], 0),
    _CUT: lambda text, place: (text[:place], place),
    _WORD: _word_before,
}
