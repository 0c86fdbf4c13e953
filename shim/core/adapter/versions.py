"""The checks of a vendor's program: its version and whether that version was tested, its models,
and whether the user is logged in.

Versions are compared by their numbers, in order. This applies to all formats: `1.0.102`,
`0.0.1790142911`, `2026.09.10` and `2026-07-07`. A suffix (`0.25.0-nightly.3`, `2026.09.10-7ae6800`)
is ignored, because a preview is closer to its release than to the previous version.
"""

from collections.abc import Mapping
from itertools import islice

from shim.core.claude.argv.models import can_pass_model_name_as_argument
from shim.core.reading.typed import NamedTuple

MAX_ANSWER_CHARS = 4000  # only this part of a program's output is searched
MAX_VERSION_CHARS = 64  # longer version texts are cut; no real version is longer
MAX_VERSION_PARTS = 8
MAX_PART_DIGITS = 18  # the limit for one number in a version
# Matches the version that most programs print, alone or after their name. The pattern is a string,
# so that it is compiled only when it is used.
DEFAULT_VERSION_REGEX = r"(?<![\w.])v?(\d+(?:\.\d+)+[\w.+-]*)"
# Matches colors and other terminal escape sequences. Some programs print them even to a pipe.
ESCAPE_REGEX = r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)"
OPERATORS = (">=", "<=", "==", ">", "<")
MAX_CONDITIONS = 4  # the limit for conditions in one version range
MAX_MODELS = 500  # the limit for one program, because a frontend shows all models


class VersionCheck(NamedTuple):
    """Whether the guarantees in a vendor's profile hold for the installed version of its program.

    The guarantees are that the program asks before a tool runs, and that it obeys permission modes
    and rules.

    version    the version, or None if it was not recognized
    note       a remark about a version whose guarantees hold, such as "newer than tested", or ""
    distrust   why the guarantees do not hold, or ""
    withdrawn  whether this version is no longer trusted because it ran a denied tool call
    """

    version: str | None = None
    note: str = ""
    distrust: str = ""
    withdrawn: bool = False


class VersionProbe(NamedTuple):
    """The command that prints a program's version, and the tested versions.

    `args` are the command's arguments. `regex` finds the version in the command's output: the first
    group, or the complete match. `^` and `$` match at the ends of each line. `tested_range` has
    conditions separated by commas (`>=0.169,<0.170`), or is "" if no version was tested.
    """

    args: tuple[str, ...] = ("--version",)
    regex: str = DEFAULT_VERSION_REGEX
    tested_range: str = ""

    def parse_version(self, answer: str) -> str | None:
        """Return the version in a program's output, or None."""
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
        """Return how a version relates to the tested range: `tested`, `newer`, `older`, or
        `unknown`.
        """
        if version is None:
            return "unknown"
        numbers = parse_version_numbers(version)
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

    def check_version(
        self, vendor: str, version: str | None, version_problem: str = ""
    ) -> VersionCheck:
        """Return whether the guarantees in the vendor's profile hold for a version. If no version
        was found in the program's output, `version_problem` describes the output.
        """
        if version is None:
            return VersionCheck(
                None, distrust=f"the version of {vendor} is not recognized: {version_problem}"
            )
        if not self.has_tested_major(version):
            return VersionCheck(
                version,
                distrust=(
                    f"version {version} of {vendor} has another major version than the "
                    f"tested versions ({self.tested_range})"
                ),
            )
        position = self.classify_version(version)
        note = ""
        if position in ("newer", "older"):
            note = f"{position} than tested ({self.tested_range})"
        return VersionCheck(version, note)

    def has_tested_major(self, version: str) -> bool:
        """Return whether a version has the same major version as a tested version. A range without
        an upper bound includes all later major versions.
        """
        numbers = parse_version_numbers(version)
        if not numbers:
            return False
        return all(
            _allows_major(numbers[0], operator, bound)
            for operator, bound in parse_version_conditions(self.tested_range)
        )


class ModelProbe(NamedTuple):
    """The command that lists a program's models. If a program has no such command, `args` is ().

    `regex` finds a model in each line of the output: its groups joined with slashes, or the
    complete match.
    """

    args: tuple[str, ...] = ()
    regex: str = r"^\S+$"

    def parse_models(self, answer: str) -> list[str]:
        """Return the model names in a program's output, in order."""
        import re

        matches = re.finditer(self.regex, answer, re.MULTILINE)
        names = [
            "/".join(filter(None, match.groups())) or match[0]
            for match in islice(matches, MAX_MODELS)
        ]
        return [name for name in dict.fromkeys(names) if can_pass_model_name_as_argument(name)]


class LoginProbe(NamedTuple):
    """A command that checks whether the user is logged in, without a request to the model. Its
    stdin is empty.

    `args` are the command's arguments, and `environment` has variables for it. `refusal_regex`
    matches an output line that reports a missing login. If the program has no such command,
    `refusal_regex` is "". `login_exception` describes when the program runs without a login, or is
    "" if it never does.
    """

    args: tuple[str, ...] = ()
    refusal_regex: str = ""
    environment: Mapping[str, str] = {}
    login_exception: str = ""

    def find_missing_login_message(self, answer: str) -> str:
        """Return the message about a missing login in a program's output, or ""."""
        import re

        matches = (
            re.search(self.refusal_regex, line[:MAX_ANSWER_CHARS]) for line in answer.splitlines()
        )
        return next((match[0] for match in matches if match), "")


VersionNumbers = tuple[int, ...]


def parse_version_numbers(version: str) -> VersionNumbers:
    """Return the numbers in a version, or () if it has none."""
    text = version.removeprefix("v")
    if text[4:5] == text[7:8] == "-":  # the version is a date
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
    """Return the conditions in a version range, each with its operator and its numbers. If a part
    is not a condition, raise ValueError with that part's text.
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
    """Return the upper bound of a version range as text for the user: `0.24.4` for
    `>=0.15,<=0.24.4`. Return "" if there is no upper bound.
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
    """Return whether any version with this major version can satisfy a condition. For example,
    `<2.0` excludes all versions 2.x.
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
    """Return version numbers padded with zeros, because 0.24 is equal to 0.24.0."""
    return numbers + (0,) * (len(other) - len(numbers))
