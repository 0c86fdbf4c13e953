"""Formats usage errors as `error: …` and `hint: …`, as for all other failures."""

import re
from typing import Any, NamedTuple

HINT_SEPARATOR = "\nhint: "
UNKNOWN_COMMAND_PATTERN = re.compile(
    r"No such command '(.*?)'\.(?: Did you mean '(.*?)')?", re.DOTALL
)
INVALID_VALUE_PATTERN = re.compile(r"Invalid value for (.*?): (.*)", re.DOTALL)
# Matches messages that form a sentence with the option's name as the subject, such as `--into
# cannot be combined with --to`.
PREDICATE_PATTERN = re.compile(r"(can|cannot|may|must|requires)\b")


class UsageErrorText(NamedTuple):
    """A usage error, and a hint with the correct command."""

    text: str
    hint: str


def is_usage_error(error: Exception) -> bool:
    """Return whether an exception is a usage error from the argument parser.

    Typer uses either a bundled copy of Click or the installed Click. The exception classes of the
    two are unrelated.
    """
    if not hasattr(error, "format_message"):
        return False
    return hasattr(error, "exit_code")


def describe_usage_error(error: Any) -> UsageErrorText:
    """Return the error and the hint for a usage error from the argument parser. Without a hint of
    its own, the hint is the command's usage line.
    """
    text, _, hint = _describe_problem(error).partition(HINT_SEPARATOR)
    context = getattr(error, "ctx", None)
    if not hint and context is not None:
        usage = " ".join(context.get_usage().split()).removeprefix("Usage: ")
        hint = f"the usage is `{usage}`; see `{context.command_path} --help`"
    return UsageErrorText(text, hint)


def _describe_problem(error: Any) -> str:
    message: str = error.message
    kind = type(error).__name__
    if kind == "NoSuchOption":
        return f"unknown option {error.option_name}" + _format_suggestion(error.possibilities)
    if kind == "MissingParameter":
        parts = error.format_message().replace("'", "").removesuffix(".").split()
        name = parts[-1]
        if "argument" in parts:
            name = name.upper()
        return f"missing {parts[1]} {name}"
    if match := UNKNOWN_COMMAND_PATTERN.match(message):
        return f"unknown command {match[1]}" + _format_suggestion([match[2]] if match[2] else None)
    if kind != "BadParameter":
        return _lower_first_letter(message.removesuffix("."))
    match = INVALID_VALUE_PATTERN.match(error.format_message())
    if match is None:
        return _lower_first_letter(message)
    option = match[1].replace("'", "")
    message = match[2]
    if PREDICATE_PATTERN.match(message):
        return f"{option} {message}"
    return f"invalid value for {option}: {_lower_first_letter(message)}"


def _format_suggestion(names: Any) -> str:
    if names:
        return f", did you mean `{sorted(names)[0]}`?"
    return ""


def _lower_first_letter(text: str) -> str:
    if text[1:2].islower():
        return text[:1].lower() + text[1:]
    return text
