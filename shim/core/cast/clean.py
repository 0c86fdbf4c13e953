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

from shim.core.cast.seams import Covered, Fragment, KeyPath, Seam, SecretSpan, count, cut_out, spans
from shim.core.reading.json_text import dump, exact, long_integers, mapped
from shim.core.secrets.mcp_servers import has_servers, without_values
from shim.core.secrets.patterns import BEFORE_CHARACTERS, NAME_ENDS
from shim.core.secrets.redactor import CUT, Redactor, signless

# Texts that are followed at the same time; a vendor has a few dozen paths with texts. When there
# are more, one that is not in the middle of a secret is dropped.
SEAMS = 128
# of a text that may be a secret; a key has half of it
WINDOW_STRINGS, WINDOW_CHARACTERS = 10_000, 128 * 1024
SNAPSHOT_CHARACTERS = 4 * 1024 * 1024  # of texts that are printed repeatedly, each time longer
EDITS, EDIT_CHARACTERS = 10_000, 16 * 1024 * 1024  # that wait for the end of the file
OWN_CHARACTERS = 512  # the longest match of a user's own pattern that is found across strings
PLACES = 4000  # paths of keys; the strings under further ones are cleaned by themselves only
HARMLESS = 20_000  # hashes of strings in which no secret begins; most strings come again

# Keys whose strings are whole words (an id, a kind, a name), and never fragments of a text.
_WHOLE = frozenset((
    *("type", "subtype", "id", "uuid", "session_id", "sessionId", "message_id", "messageId", "request_id", "requestId"),
    *("tool_use_id", "toolCallId", "call_id", "parent_tool_use_id", "parentId", "responseId", "role", "model", "name"),
    *("toolName", "api", "provider", "timestamp", "stop_reason", "stopReason", "cwd", "session", "version", "object"),
))  # fmt: skip

Search = Callable[[str], Iterable[SecretSpan]]  # finds a user's own patterns in a text
Edit = tuple[int, str]  # the number of a string in its line, and its new text


class Cleaner:
    """Cleans the records of one cast. `search` finds secrets besides the known kinds.

    `counts` are the secrets by kind. `lost`: more secrets were split over lines than `edits` can
    hold.
    """

    def __init__(self, search: Search | None = None) -> None:
        self.counts: dict[str, int] = {}
        self.edits: dict[int, list[Edit]] = {}
        self.lost = False
        self._search = search
        self._redactor = Redactor(self.counts)
        self._again = Redactor()  # for second looks, which do not count again
        # by the letter of a stream; and a blank for lines that are no JSON
        self._places: dict[str, KeyPath] = {}
        self._told_apart = 0
        self._seams: dict[KeyPath, Seam] = {}
        self._harmless: set[int] = set()
        self._current: Fragment | None = None  # of the record that is not written yet
        self._snapshots = 0
        self._record = -1
        self._number = 0
        self._room = [EDITS, EDIT_CHARACTERS]

    def clean(self, letter: str, data: bytes, whole: bool = True) -> bytes:
        """The cleaned data of the next record, without its newline; the same object if nothing was
        found.

        `whole`: a newline follows the data.
        """
        self._record += 1
        self._number = 0
        if data[:1] in (b"{", b"["):
            try:
                value = orjson.loads(data)
                told = without_values(value) if has_servers(data) else value
                clean = self._value(
                    value if told == value else told, self._places.get(letter) or self._top(letter)
                )
            except (ValueError, RecursionError):
                pass
            else:
                return self._written(data, value, clean)
        text = data.decode("utf-8", "surrogateescape")
        said = self._leaf(
            text + "\n" * whole, self._places.get(letter + " ") or self._top(letter + " ")
        )
        said = said[:-1] if whole and said.endswith("\n") else said
        return data if said == text else said.encode("utf-8", "surrogateescape")

    def _written(self, data: bytes, value: Any, clean: Any) -> bytes:
        """The line as it came, unless its bytes hold more than its strings: a key that stands twice
        hides a value.
        """
        if clean is value:
            again = orjson.dumps(value)
            if len(again) == len(data) or not (found := self._find(data.decode())):
                return data
            if len(found) <= len(self._find(again.decode())):
                return data
        return dump(exact(clean, long_integers(data)))

    def fact(self, fact: Any) -> Any:
        """A fact, or the header, without secrets."""
        clean = self._redactor.value(fact)
        return clean if self._search is None else self._searched(clean)

    def _searched(self, value: Any) -> Any:
        if isinstance(value, str):
            return cut_out(value, self._own(value, self.counts))
        if isinstance(value, dict):
            return {self._searched(key): self._searched(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self._searched(item) for item in value]
        return value

    def close(self) -> None:
        """There are no more records: decide the texts that are still open."""
        for seam in self._seams.values():
            self._end(seam)
        self._seams.clear()

    # -- strings -----------------------------------------------------------------------------------

    def _top(self, name: str) -> KeyPath:
        place = self._places[name] = KeyPath(None, named=False, whole=False)
        return place

    def _place(self, above: KeyPath, key: str) -> KeyPath:
        """The place of a key under another one."""
        found = self._own(key, self.counts)
        own, named = cut_out(key, found) if found else None, key.lower().endswith(NAME_ENDS)
        if self._told_apart >= PLACES:
            return KeyPath(own, named=named, whole=True)
        self._told_apart += 1
        place = above.below[key] = KeyPath(own, named=named, whole=key in _WHOLE)
        return place

    def _value(self, value: Any, place: KeyPath) -> Any:
        """A value of JSON without secrets; the same object if there are none. Strings are numbered
        in their order.
        """
        if value.__class__ is dict:
            return self._table(value, place)
        if value.__class__ is list:
            cleaned = [self._value(item, place) for item in value]
            return (
                cleaned
                if any(one is not other for one, other in zip(cleaned, value, strict=True))
                else value
            )
        if value.__class__ is str:
            self._number += 1
            return self._string(value, place)
        return value

    def _table(self, table: dict[str, Any], above: KeyPath) -> dict[str, Any]:
        below, harmless = above.below, self._harmless
        changed: dict[str, tuple[str, Any]] | None = None
        for key, item in table.items():
            place = below.get(key) or self._place(above, key)
            if item.__class__ is str:
                self._number += 1
                if hash(item) in harmless:
                    if place.whole:
                        continue
                    seam = place.seam
                    if seam is not None and not seam.entries:
                        seam.pass_by(item)
                        continue
                said: Any = self._string(item, place)
                if place.named and said is item:
                    said = self._named(key, item)
            elif item.__class__ is dict:
                said = self._table(item, place)
            elif item.__class__ is list:
                said = self._value(item, place)
            else:
                said = item
            if said is not item or place.own is not None:
                changed = {} if changed is None else changed
                changed[key] = key if place.own is None else place.own, said
        return (
            table
            if changed is None
            else dict(changed.get(key, (key, item)) for key, item in table.items())
        )

    def _named(self, key: str, item: str) -> str:
        """The value of a key that names a secret."""
        if next(iter(self._again.value({key: item}).values())) == item:
            return item
        said: str = next(iter(self._redactor.value({key: item}).values()))
        return said

    def _string(self, text: str, place: KeyPath) -> str:
        if not place.whole:
            return self._leaf(text, place)
        return text if self._pass(text) else cut_out(text, self._own(text, self.counts))

    def _pass(self, text: str) -> bool:
        """Whether no secret begins in a text, whatever precedes it; if so, the text is remembered."""
        if self._search is not None or not signless(text):
            return False
        if len(self._harmless) >= HARMLESS:
            self._harmless.clear()
        self._harmless.add(hash(text))
        return True

    def _leaf(self, text: str, place: KeyPath) -> str:
        if not text:
            return text
        seam = place.seam or self._open(place)
        stream = seam.stream
        if not seam.entries and self._search is None:
            if self._pass(text):
                seam.pass_by(text)
                self._forget(seam)
                return text
        elif seam.grows(text):
            stream.flush()
            self._resolve(seam)
            seam.before.clear()
        stream.feed(text)
        return self._enter(seam, text)

    def _open(self, place: KeyPath) -> Seam:
        """A new seam; if there are too many, an idle one is closed."""
        seams = self._seams
        if len(seams) >= SEAMS:
            idle = next(
                (known for known, seam in seams.items() if not seam.entries), next(iter(seams))
            )
            self._end(seams.pop(idle))
            idle.seam = None
        seam = seams[place] = place.seam = Seam()
        return seam

    def _end(self, seam: Seam) -> None:
        seam.stream.flush()
        self._resolve(seam)
        self._forget(seam)

    def _enter(self, seam: Seam, text: str) -> str:
        """A string in which a secret may begin, go on or end."""
        self._current = entry = Fragment(
            self._record, self._number, text, self._own(text, self.counts)
        )
        seam.size += len(text) if seam.entries else 0
        seam.entries.append(entry)
        self._grow(seam, entry)
        if full := seam.size > WINDOW_CHARACTERS or len(seam.entries) > WINDOW_STRINGS:
            seam.stream.flush()
        if self._search is None:
            if not seam.stream.busy:
                self._resolve(seam)
        elif full or (
            not seam.stream.busy and len(seam.entries[0].text) + seam.size > 2 * OWN_CHARACTERS
        ):
            self._resolve(seam, keep=OWN_CHARACTERS)
        self._current = None
        return text if entry.written == text else entry.written

    def _own(self, text: str, counts: dict[str, int]) -> list[SecretSpan]:
        """The secrets of a string by itself."""
        found = self._find(text)
        for _, _, mark in found:
            count(counts, mark)
        return found

    def _find(self, text: str) -> list[SecretSpan]:
        found = spans(text) if self._again.text(text) is not text else []
        if self._search is not None:
            found += self._search(text)
        return found

    # -- texts -------------------------------------------------------------------------------------

    def _resolve(self, seam: Seam, keep: int = 0) -> None:
        """Find the secrets of a seam's text so far; its last `keep` characters stay open."""
        entries = seam.entries
        before = "".join(seam.before)[-BEFORE_CHARACTERS:]
        found = self._find(before + "".join([entry.text for entry in entries]))
        self._distribute(
            entries, [(start - len(before), end - len(before), mark) for start, end, mark in found]
        )
        for entry in entries:
            self._edit(entry)
        kept, size = len(entries), 0
        while kept and size < keep:
            kept -= 1
            size += len(entries[kept].text)
        for entry in entries[:kept]:
            seam.before.append(entry.text[-BEFORE_CHARACTERS:])
        seam.entries = entries[kept:]
        seam.size = sum(len(entry.text) for entry in seam.entries[1:])

    def _distribute(self, entries: list[Fragment], found: list[SecretSpan]) -> None:
        """Give each string its piece of the joined text's secrets; the first piece gets the mark.

        Places that a string's own secrets cover are skipped. Each string is passed once: one of a
        megabyte may have a hundred thousand secrets.
        """
        begin, begins, covers = 0, 0, dict[int, Covered]()
        for start, end, mark in sorted(found):
            while begin < len(entries) and begins + len(entries[begin].text) <= start:
                begins += len(entries[begin].text)
                begin += 1
            number, at, begun = begin, begins, False
            while number < len(entries) and at < end:
                entry = entries[number]
                first, last = max(start - at, 0), min(end - at, len(entry.text))
                if first < last:
                    covered = covers.get(number) or covers.setdefault(number, Covered(entry.spans))
                    if not covered.has(first, last):
                        entry.spans.append((first, last, "" if begun else mark))
                        covered.reach = last
                        if not begun:
                            count(self.counts, mark)
                    begun = True
                at += len(entry.text)
                number += 1

    def _grow(self, seam: Seam, entry: Fragment) -> None:
        """Blank what the shorter forms of a growing text had of its secrets."""
        held = seam.held
        if seam.grows(entry.text):
            for start, end, mark in entry.spans:
                for shorter in held:
                    if start < len(shorter.text) < end:
                        shorter.spans.append((start, len(shorter.text), mark))
                        self._edit(shorter)
        else:
            self._forget(seam)
        if not seam.stream.busy or self._snapshots > SNAPSHOT_CHARACTERS:
            self._forget(seam)
        else:
            held.append(entry)
            self._snapshots += len(entry.text)

    def _forget(self, seam: Seam) -> None:
        if seam.held:
            self._snapshots -= sum(len(entry.text) for entry in seam.held)
            seam.held.clear()

    def _edit(self, entry: Fragment) -> None:
        """Note an edit, if a string should be another text than was written."""
        said = cut_out(entry.text, entry.spans)
        if said == entry.written:
            return
        entry.written = said
        if entry is self._current:
            return
        self._room[0] -= 1
        self._room[1] -= len(said)
        if min(self._room) < 0:
            self.lost = True
            return
        edits = self.edits.setdefault(entry.record, [])
        edits[:] = [edit for edit in edits if edit[0] != entry.number]
        edits.append((entry.number, said))


def edited(data: bytes, edits: Iterable[Edit]) -> bytes:
    """The written bytes of a record with its edits applied."""
    texts = dict(edits)
    if 0 in texts:  # a plain line
        return texts[0].removesuffix("\n").encode("utf-8", "surrogateescape")
    numbers = itertools.count(1)
    try:
        value = mapped(orjson.loads(data), str, lambda text: texts.get(next(numbers), text))
        return dump(exact(value, long_integers(data)))
    except (ValueError, RecursionError):  # these are not the bytes that were written
        return CUT.encode()
