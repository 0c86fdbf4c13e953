"""The questions to a vendor's program: its version and whether that was tested, its models, and
whether the user is logged in.

A version is compared by its numbers, in order. `1.0.102`, `0.0.1790142911`, `2026.09.10` and
`2026-07-07` are compared in the same way. A suffix (`0.25.0-nightly.3`, `2026.09.10-7ae6800`) is
ignored, because a preview is closer to its release than to the previous version.
"""

from collections.abc import Mapping
from itertools import islice

from shim.core.claude.argv.models import can_pass_model_name_as_argument
from shim.core.reading.typed import NamedTuple

MAX_ANSWER_CHARS = 4000  # at the start of an answer; only this part is searched
MAX_VERSION_CHARS = 64  # a longer text is cut; no program has such a version
MAX_VERSION_PARTS = 8
MAX_PART_DIGITS = 18  # of one number of a version
# The version that most programs print, alone or after their name. This is a string, because a
# pattern is only compiled when a program is asked.
DEFAULT_VERSION_REGEX = r"(?<![\w.])v?(\d+(?:\.\d+)+[\w.+-]*)"
# Colors and other escape sequences. Some programs also print them to a pipe.
ESCAPE_REGEX = r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)"
OPERATORS = (">=", "<=", "==", ">", "<")
MAX_CONDITIONS = 4  # of one range
MAX_MODELS = 500  # of one program; a frontend shows all of them


class VersionCheck(NamedTuple):
    """Whether the guarantees of a profile hold for the version of the installed program.

    The guarantees are that the vendor asks before a tool runs, that it obeys a permission mode, and
    that it obeys a rule.

    version    the version, or None if it was not recognized
    note       a remark about a version whose guarantees hold, such as "newer than tested", or ""
    distrust   why the guarantees do not hold, or ""
    withdrawn  whether the version has run a denied call, so that it is no longer trusted
    """

    version: str | None = None
    note: str = ""
    distrust: str = ""
    withdrawn: bool = False


class VersionProbe(NamedTuple):
    """The command that prints a program's version, and the tested versions.

    `args` are the arguments of the command. `regex` finds the version in its output: the first
    group, or the complete match; `^` and `$` match at the ends of a line. `tested_range` has
    conditions separated by commas (`>=0.169,<0.170`), "" if no version was tested.
    """

    args: tuple[str, ...] = ("--version",)
    regex: str = DEFAULT_VERSION_REGEX
    tested_range: str = ""

    def parse_version(self, answer: str) -> str | None:
        """Return the version in the output of a program, or None."""
        import re

        plain = re.sub(ESCAPE_REGEX, "", answer[:MAX_ANSWER_CHARS])
        lines = "\n".join(line.strip() for line in plain.splitlines())
        match = re.search(self.regex, lines, re.MULTILINE)
        if match is None:
            return None
        if match.re.groups:
            version = match[1]
        else:
            version = match[0]
        if not version:
            version = ""
        return version.strip().rstrip(".,;:)")[:MAX_VERSION_CHARS] or None

    def classify_version(self, version: str | None) -> str:
        """Return the position of a version relative to the tested range: `tested`, `newer`,
        `older`, or `unknown`.
        """
        numbers = parse_version_numbers(version or "")
        bounds = parse_version_conditions(self.tested_range)
        if not numbers or not bounds:
            return "unknown"
        for operator, bound in bounds:
            if not _matches_condition(numbers, operator, bound):
                is_older = _pad_numbers(numbers, bound) < _pad_numbers(bound, numbers)
                if operator[0] == ">" or is_older:
                    return "older"
                return "newer"
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
    """The command that lists the models of a program. `args` is () if the program has no such
    command.

    `regex` finds a model in each line of the output: its groups joined with slashes, or the
    complete match.
    """

    args: tuple[str, ...] = ()
    regex: str = r"^\S+$"

    def parse_models(self, answer: str) -> list[str]:
        """Return the names of models in the output of a program, in order."""
        import re

        matches = re.finditer(self.regex, answer, re.MULTILINE)
        names = ["/".join(match.groups()) or match[0] for match in islice(matches, MAX_MODELS)]
        return [name for name in dict.fromkeys(names) if can_pass_model_name_as_argument(name)]


class LoginProbe(NamedTuple):
    """The command that checks, free of charge, whether the user is logged in. Its stdin is empty.

    `args` are its arguments. `refusal_regex` matches the message about a missing login in a line of
    its output, "" without such a command. `environment` has variables for it. `login_exception`
    describes when the program runs without a login, "" if it never does.
    """

    args: tuple[str, ...] = ()
    refusal_regex: str = ""
    environment: Mapping[str, str] = {}
    login_exception: str = ""

    def find_missing_login_message(self, answer: str) -> str:
        """Return the message about a missing login in the output of the program, or ""."""
        import re

        matches = (
            re.search(self.refusal_regex, line[:MAX_ANSWER_CHARS]) for line in answer.splitlines()
        )
        return next((match[0] for match in matches if match), "")


VersionNumbers = tuple[int, ...]


def parse_version_numbers(version: str) -> VersionNumbers:
    """Return the numbers of a version, () without any."""
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
    """Return the conditions of a range, each with its operator and its numbers. Raise ValueError
    with the text of a part that is not a condition.
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
    """Return the upper bound of a range for a person: `0.24.4` for `>=0.15,<=0.24.4`, "" without an
    upper bound.
    """
    upper_bounds = [
        part.strip().lstrip("<>= ")
        for part in version_range.split(",")
        if part.strip().startswith(("<", "=="))
    ]
    if upper_bounds:
        return upper_bounds[0]
    return ""


def _allows_major(major: int, operator: str, bound: VersionNumbers) -> bool:
    """Return whether a version with this first number can satisfy a condition. `<2.0` excludes
    every version 2.
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
    """Return the numbers padded with zeros, because 0.24 is equal to 0.24.0."""
    return numbers + (0,) * (len(other) - len(numbers))
