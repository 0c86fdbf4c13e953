"""What a vendor's program is asked: its version and whether that was tried, its models, and whether
it has a login.

A version is its numbers, in order: `1.0.102`, `0.0.1790142911`, `2026.09.10` and `2026-07-07`
compare alike, and what stands behind them (`0.25.0-nightly.3`, `2026.09.10-7ae6800`) does not
count: a preview is nearer to what it is a preview of than to what came before.
"""

from collections.abc import Mapping
from itertools import islice

from shim.core.claude.argv.models import can_pass_model_name_as_argument
from shim.core.reading.typed import NamedTuple

MAX_ANSWER_CHARS = 4000  # characters that a pattern sees
MAX_VERSION_CHARS = 64  # of one; a program that prints a page has no version
MAX_VERSION_PARTS = 8  # of one
MAX_PART_DIGITS = 18  # of one number
# What most programs print, alone or behind their name; a text, because a pattern is compiled only
# where one is asked.
DEFAULT_VERSION_REGEX = r"(?<![\w.])v?(\d+(?:\.\d+)+[\w.+-]*)"
# Colours and other escape sequences: some programs also print them to a pipe.
ESCAPE_REGEX = r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)"
OPERATORS = (">=", "<=", "==", ">", "<")
MAX_CONDITIONS = 4  # of one range
MAX_MODELS = 500  # of one program: a frontend shows them all


class VersionCheck(NamedTuple):
    """What the version of the installed program means for the promises of its profile.

    A promise is that the vendor asks before a tool runs, that it keeps a permission mode, or that
    it keeps a rule.

    version   the version, or None if it was not recognised
    note      a remark about a version whose promises hold, such as "newer than tested", or ""
    distrust  why the promises do not hold, or ""
    withdrawn the version ran a call that was denied, so that nobody can vouch for it
    """

    version: str | None = None
    note: str = ""
    distrust: str = ""
    withdrawn: bool = False


class VersionProbe(NamedTuple):
    """How a vendor's program is asked for its version, and which versions were tried.

    `args` are the arguments of the question. `regex` finds the version in what it answers: its
    first group, or all that it matches; `^` and `$` are the ends of a line. `tested_range` is a
    range, conditions with commas between them (`>=0.169,<0.170`); "" where none was.
    """

    args: tuple[str, ...] = ("--version",)
    regex: str = DEFAULT_VERSION_REGEX
    tested_range: str = ""

    def parse_version(self, answer: str) -> str | None:
        """The version in an answer; None without any."""
        import re

        plain = re.sub(ESCAPE_REGEX, "", answer[:MAX_ANSWER_CHARS])
        lines = "\n".join(line.strip() for line in plain.splitlines())
        match = re.search(self.regex, lines, re.MULTILINE)
        if match is None:
            return None
        version = match[1] if match.re.groups else match[0]
        if not version:
            version = ""
        return version.strip().rstrip(".,;:)")[:MAX_VERSION_CHARS] or None

    def classify_version(self, version: str | None) -> str:
        """Where a version stands in the range: `tested`, `newer`, `older`, or `unknown`."""
        numbers = parse_version_numbers(version or "")
        bounds = parse_version_conditions(self.tested_range)
        if not numbers or not bounds:
            return "unknown"
        for operator, bound in bounds:
            if not _matches_condition(numbers, operator, bound):
                is_older = _pad_numbers(numbers, bound) < _pad_numbers(bound, numbers)
                return "older" if operator[0] == ">" or is_older else "newer"
        return "tested"

    def has_tested_major(self, version: str) -> bool:
        """Return whether a version has the first number of a tested version. A range may have no
        upper bound.
        """
        numbers = parse_version_numbers(version)
        if not numbers:
            return False
        return all(
            _allows_major(numbers[0], operator, bound)
            for operator, bound in parse_version_conditions(self.tested_range)
        )


class ModelProbe(NamedTuple):
    """How a vendor's program is asked for the models that it can be told; () where it has no such
    list.

    `regex` finds one in each line of the answer: its groups with slashes between them, or all that
    it matches.
    """

    args: tuple[str, ...] = ()
    regex: str = r"^\S+$"

    def parse_models(self, answer: str) -> list[str]:
        """The names in an answer, in its order."""
        import re

        matches = re.finditer(self.regex, answer, re.MULTILINE)
        names = ["/".join(match.groups()) or match[0] for match in islice(matches, MAX_MODELS)]
        return [name for name in dict.fromkeys(names) if can_pass_model_name_as_argument(name)]


class LoginProbe(NamedTuple):
    """How a vendor's program is asked, free of charge, whether it has a login; its stdin is empty.

    `args` are its arguments, and `refusal_regex` matches its words for a missing login in a line
    that it prints; "" where there is no such question. `environment` are variables for it.
    `login_exception` says when it runs without a login all the same; "" where it never does.
    """

    args: tuple[str, ...] = ()
    refusal_regex: str = ""
    environment: Mapping[str, str] = {}
    login_exception: str = ""

    def find_missing_login_message(self, answer: str) -> str:
        """Its words for a missing login; "" where it says none."""
        import re

        matches = (
            re.search(self.refusal_regex, line[:MAX_ANSWER_CHARS]) for line in answer.splitlines()
        )
        return next((match[0] for match in matches if match), "")


VersionNumbers = tuple[int, ...]


def parse_version_numbers(version: str) -> VersionNumbers:
    """The numbers of a version; () without any."""
    text = version.removeprefix("v")
    if text[4:5] == text[7:8] == "-":  # a date
        text = text[:10].replace("-", ".")
    numbers = []
    for part in text.split(".", MAX_VERSION_PARTS)[:MAX_VERSION_PARTS]:
        digits = part[: len(part) - len(part.lstrip(_DIGITS))]
        if digits:
            numbers.append(int(digits[:MAX_PART_DIGITS]))
        if digits != part or not part:
            break
    return tuple(numbers)


_DIGITS = "0123456789"


def parse_version_conditions(text: str) -> list[tuple[str, VersionNumbers]]:
    """The conditions of a range, as (sign, numbers). ValueError names a part that is not a
    condition.
    """
    parts = []
    if text.strip():
        parts = [part.strip() for part in text.split(",")]
    conditions = []
    for part in parts:
        operator = next((operator for operator in OPERATORS if part.startswith(operator)), "")
        bound = part[len(operator) :].strip()
        numbers = bound.replace("-", ".").split(".")
        if (
            not operator
            or len(parts) > MAX_CONDITIONS
            or not all(number.isascii() and number.isdigit() for number in numbers)
        ):
            raise ValueError(part)
        conditions.append((operator, parse_version_numbers(bound)))
    return conditions


def format_newest_tested_version(version_range: str) -> str:
    """The end of a range, for a person: `0.24.4` for `>=0.15,<=0.24.4`; "" without an end."""
    upper_bounds = [
        part.strip().lstrip("<>= ")
        for part in version_range.split(",")
        if part.strip().startswith(("<", "=="))
    ]
    if upper_bounds:
        return upper_bounds[0]
    return ""


def _allows_major(major: int, operator: str, bound: VersionNumbers) -> bool:
    """Return whether a version with this first number can meet a condition. `<2.0` excludes every
    2.
    """
    if operator == "==":
        return major == bound[0]
    if operator in (">=", ">"):
        return major >= bound[0]
    if operator == "<" and not any(bound[1:]):
        return major < bound[0]
    return major <= bound[0]


def _matches_condition(numbers: VersionNumbers, operator: str, bound: VersionNumbers) -> bool:
    left = _pad_numbers(numbers, bound)
    right = _pad_numbers(bound, numbers)
    return {
        ">=": left >= right,
        "<=": left <= right,
        ">": left > right,
        "<": left < right,
        "==": left == right,
    }[operator]


def _pad_numbers(numbers: VersionNumbers, other: VersionNumbers) -> VersionNumbers:
    """The numbers, filled up with zeros: 0.24 is 0.24.0."""
    return numbers + (0,) * (len(other) - len(numbers))
