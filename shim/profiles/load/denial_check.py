"""Checks that the texts in `[launch.denials]` make each variable in `json` a JSON object."""

from collections.abc import Sequence

import orjson

from shim.core.errors import FrontendError
from shim.core.reading.typed import NamedTuple
from shim.core.reading.values import escape_control_chars, shorten_end
from shim.profiles.check.config_node import ConfigNode

MAX_TEXT_CHARS = 200  # the longest excerpt of a variable's text in a hint


class DenialSample(NamedTuple):
    """Texts that the program could receive together."""

    key: str  # the key of `[launch.denials]` that adds these texts
    text: str


def check_json_variable(
    node: ConfigNode, variable: str, samples: Sequence[DenialSample], empty_text: str
) -> None:
    """Raise FrontendError if the text of a variable is not a JSON object in one of the samples.

    `node` is the table `[launch.denials]`. `empty_text` is the variable's text with `{}` in the
    place of the rules.
    """
    wrong_texts: dict[str, str] = {}
    for sample in samples:
        if explain_json_problem(sample.text):
            wrong_texts.setdefault(sample.key, sample.text)
    if not wrong_texts:
        return
    key, text = next(iter(wrong_texts.items()))
    if wrong_texts.keys() == {sample.key for sample in samples}:
        # No rule is JSON, so the error is in a text that all rules share.
        key = "text"
        if explain_json_problem(empty_text):
            raise build_json_error(node.get_child("json").get_child(variable), variable, text)
    raise build_json_error(node.get_child(key), variable, text)


def explain_json_problem(text: str) -> str:
    """Return why a text is not a JSON object, or "" if it is one."""
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        return str(error)
    if not isinstance(value, dict):
        return f"it is {text}"
    return ""


def build_json_error(node: ConfigNode, variable: str, text: str) -> FrontendError:
    """Return the error about a key of `[launch.denials]`, because of which the text of a variable
    is not a JSON object.
    """
    description = ""
    if not node:
        description = "missing"
    error = node.build_error(
        f"a text that makes {variable} a JSON object ({explain_json_problem(text)})",
        description=description,
    )
    error.hint = f"{variable} would be: {shorten_end(escape_control_chars(text), MAX_TEXT_CHARS)}"
    return error
