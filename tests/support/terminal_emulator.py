"""Emulates how a terminal shows output. It only supports the sequences that the shim writes; any
other is a failure.

A `TerminalEmulator` keeps lines that were scrolled away, and wraps its lines again if its width
changes, as most terminals do.
"""

import re

_ORDER = re.compile(r"\x1b\[(\??)([0-9;]*)([A-Za-z])")


class TerminalEmulator:
    """The lines so far, and the position of the cursor: a row of `rows` and a column."""

    def __init__(self, columns: int = 80, lines: int = 24) -> None:
        self.columns, self.lines = columns, lines
        self.rows: list[str] = [""]
        self.row = self.column = 0
        self.is_cursor_visible = True
        self._broken: list[bool] = [False]  # whether a full row continues in the next one

    @property
    def text(self) -> str:
        return "\n".join(row.rstrip() for row in self.rows)

    def feed(self, written: str) -> None:
        at = 0
        while at < len(written):
            if written[at] == "\x1b":
                order = _ORDER.match(written, at)
                assert order, f"a terminal would obey {written[at : at + 12]!r}"
                self._apply_escape(*order.groups())
                at = order.end()
            else:
                self._put_character(written[at])
                at += 1

    def _apply_escape(self, private: str, numbers: str, order: str) -> None:
        count = int(numbers or 1) if numbers.isdigit() or not numbers else 0
        if order == "m" and not private:
            return
        if private and order in "hl":
            assert numbers in ("25", "2004"), f"a terminal would obey ?{numbers}{order}"
            if numbers == "25":
                self.is_cursor_visible = order == "h"
        elif order == "A":
            assert count <= self.row and self.row - count >= len(self.rows) - self.lines, (
                "moved out of the screen"
            )
            self.row -= count
        elif order == "C":
            assert self.column + count < self.columns, "moved out of the screen"
            self.column += count
        elif order == "J" and not numbers:
            self.rows[self.row] = self.rows[self.row][: self.column]
            del self.rows[self.row + 1 :], self._broken[self.row + 1 :]
            self._broken[self.row] = False
        else:
            raise AssertionError(f"a terminal would obey {private}{numbers}{order}")

    def _put_character(self, character: str) -> None:
        if character == "\n":
            self._start_row(broken=False)
        elif character == "\r":
            self.column = 0
        else:
            assert character.isprintable(), f"a terminal would obey {character!r}"
            if self.column >= self.columns:
                self._start_row(broken=True)
            row = self.rows[self.row].ljust(self.column)
            self.rows[self.row] = row[: self.column] + character + row[self.column + 1 :]
            self.column += 1

    def _start_row(self, *, broken: bool) -> None:
        self._broken[self.row] = broken
        self.row, self.column = self.row + 1, 0
        if self.row == len(self.rows):
            self.rows.append("")
            self._broken.append(False)

    def resize(self, columns: int) -> None:
        """Change the width. The cursor stays at its character."""
        lines: list[str] = []
        cursor = (0, 0)
        joined = False
        for number, row in enumerate(self.rows):
            if not joined:
                lines.append("")
            if number == self.row:
                cursor = (len(lines) - 1, len(lines[-1]) + self.column)
            lines[-1] += row
            joined = self._broken[number]
        self.columns, self.rows, self._broken = columns, [], []
        for number, row in enumerate(lines):
            if number == cursor[0]:
                self.row, self.column = len(self.rows) + cursor[1] // columns, cursor[1] % columns
            parts = [row[at : at + columns] for at in range(0, max(len(row), 1), columns)]
            self.rows += parts
            self._broken += [True] * (len(parts) - 1) + [False]
        self.rows += [""] * (self.row + 1 - len(self.rows))
        self._broken += [False] * (self.row + 1 - len(self._broken))
