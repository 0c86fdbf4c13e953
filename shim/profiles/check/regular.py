"""Which regular expressions a profile may have: those that cannot take long on any text.

A vendor's text is anybody's words, and Python's `re` tries every way to match. Two forms are refused: a repeated group
whose turns can be cut differently (`(a+)+`, `(a|ab)*`, `(aa?){9}`: the time doubles with each character or turn), and
repetitions that share a text between them (`.*x.*y`, `^\\s*(.*?)\\s*$`: the time grows with the cube of its length).
One such pair is taken behind `^`, and one repetition anywhere: the square of the few characters that are looked at.
"""

import re

_ATOM = (
    r"(?s:\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|\(\?(?:[a-zA-Z]+|P=\w+)\)|\((?:\?(?:P<\w+>|[a-zA-Z-]*:|[=!>]|<[=!]))?"
    r"|\)|\||[*+?]\??|\{\d*,?\d*\}\??|.)"
)
_QUANTIFIER = r"([*+?])\??|\{(\d*)(,?)(\d*)\}\??"
_FLAGS = r"\(\?[a-zA-Z]+\)"
_FOLDS = r"\(\?[a-zA-Z]*i"  # case does not count in the pattern, or in a part of it
MANY = 50  # repetitions of `{n,m}` are as good as without an end
SAMPLES = "".join(map(chr, range(128))) + "é—"  # the characters that two atoms may have in common
CUT = "a regular expression without a repetition, a choice or a ? inside a repeated group"
SHARED = "a regular expression whose repetitions share no text: with ^ in front, or characters between that none takes"
_WIDTHLESS = frozenset(("^", "$", "\\b", "\\B", "\\A", "\\Z"))
_PLAIN = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789 -_/:,;<>=!\"'@#%&~`")

Characters = frozenset[str]
_NONE: Characters = frozenset()


class _Group:
    """A group while it is read. `degree` is the power of the time, `shared` what the last repetition may still take."""

    def __init__(self, degree: int, shared: Characters) -> None:
        self.entry = shared
        self.start, self.degree, self.shared = degree, degree, shared
        self.ends: list[tuple[int, Characters]] = []  # of the alternatives before this one
        self.firsts = [""]  # the first atom of each alternative
        self.characters = _NONE
        self.varies = False  # whether it can match texts of different lengths, other than by its alternatives

    def choose(self) -> None:
        """Another alternative."""
        self.ends.append((self.degree, self.shared))
        self.degree, self.shared = self.start, self.entry
        self.firsts.append("")

    def first(self, atom: str) -> None:
        """What an alternative begins with."""
        self.firsts[-1] = self.firsts[-1] or atom

    @property
    def cuts(self) -> bool:
        """Whether a text can be cut into turns of this group in several ways."""
        return self.varies or (
            len(self.firsts) > 1
            and (len(set(self.firsts)) < len(self.firsts) or not all(one in _PLAIN for one in self.firsts))
        )

    def take(self, characters: Characters, least: int, many: bool) -> None:
        """An atom, or a group: at least so many times, or without an end."""
        self.characters |= characters
        meets = bool(characters & self.shared)
        if many:
            self.degree += meets
            self.shared = characters if least and not meets else self.shared | characters
        elif least and not meets:
            self.shared = _NONE

    def leave(self, inner: "_Group", least: int, many: bool, varies: bool) -> None:
        """A group inside is over."""
        ends = [*inner.ends, (inner.degree, inner.shared)]
        before, self.degree = self.shared, max(degree for degree, _ in ends)
        self.varies = self.varies or inner.cuts or varies
        self.shared = frozenset().union(*(shared for _, shared in ends), *(() if least else (before,)))
        self.characters |= inner.characters
        if many:
            self.degree += bool(inner.characters & before)
            self.shared |= inner.characters


def fault(pattern: str) -> str:
    """What a pattern must be and is not; "" for a good one. It need not be one that compiles."""
    if not any(sign in pattern for sign in "*+{"):
        return ""
    atoms, folds = re.findall(_ATOM, pattern), re.search(_FOLDS, pattern) is not None
    groups = [_Group(0 if pattern.startswith("^") and "|" not in pattern else 1, _NONE)]
    place = 0
    while place < len(atoms):
        atom, group = atoms[place], groups[-1]
        place += 1
        if atom[0] == "(" and atom[-1] != ")":
            group.first(atom)
            groups.append(_Group(group.degree, group.shared))
        elif atom == "|":
            group.choose()
        elif atom != ")" or len(groups) > 1:
            least, most, varies, counted = _times(atoms[place] if place < len(atoms) else "")
            many = most > MANY and varies
            place += counted
            if atom == ")":
                groups.pop()
                if group.cuts and most > 1:
                    return CUT
                groups[-1].leave(group, least, many, varies)
            elif atom not in _WIDTHLESS and not re.fullmatch(_FLAGS, atom):
                group.first(atom)
                group.varies = group.varies or varies
                group.take(_characters(atom, folds=folds), least, many)
    return SHARED if max([groups[0].degree, *(degree for degree, _ in groups[0].ends)]) > 1 else ""


def _times(sign: str) -> tuple[int, int, bool, bool]:
    """What stands behind an atom: the least of times, the most, whether that varies, and if it is a sign at all."""
    found = re.fullmatch(_QUANTIFIER, sign)
    if found is None or sign in ("{}", "{,}"):
        return 1, 1, False, False
    if found[1]:
        return int(found[1] == "+"), 1 if found[1] == "?" else MANY + 1, True, True
    least = int(found[2] or 0)
    most = least if not found[3] else int(found[4]) if found[4] else max(MANY, least) + 1
    return least, most, most > least, True


def _characters(atom: str, *, folds: bool) -> Characters:
    """Which of the samples an atom matches; `folds`: case does not count."""
    if len(atom) == 1 and atom != ".":
        found = frozenset(atom)
    else:
        try:
            found = frozenset(re.findall(atom, SAMPLES, re.DOTALL))
        except re.error:
            return frozenset(SAMPLES)  # a group's text again
    return found | {one.swapcase() for one in found} if folds else found
