"""Converts an ACP form (`elicitation/create`) to Claude's AskUserQuestion tool, and the answers
back.

A form field with a list of values becomes a question with options. A boolean field has two options.
Any other field is answered with text. In Claude's answers, the key is the question's text, and
several values are separated by commas.
"""

from collections.abc import Mapping
from typing import Any

from shim.core.claude.permissions import PermissionDecision
from shim.core.reading.values import as_dict, as_list, get_text

# The maximum number of open requests from the shim, and of open permission requests and forms from
# the child. If the shim sends more requests, it does not recognize the responses to them.
MAX_OPEN_REQUESTS = 1000
MAX_FIELDS = 20  # fields in one form
MAX_HEADER_CHARS = 12  # the length of a question's header, as in Claude
OPTION_KEYS = ("oneOf", "anyOf", "enum")  # the keys that list a field's allowed values
BOOLEAN_CHOICES = {"Yes": True, "No": False}
DECLINED_RESULT = {"action": "decline"}
DISMISSED_RESULT = {"action": "cancel"}


class OpenElicitationForms:
    """The forms that wait for an answer from the frontend.

    requests  form key → the id of the form's request, the id of its tool call, and its params
    results   for each answered form: the id of its tool call, the result, whether it is an error
    """

    def __init__(self) -> None:
        self.requests: dict[str, tuple[object, str, Mapping[str, Any]]] = {}
        self.results: list[tuple[str, str, bool]] = []

    def open_form(
        self, key: str, request_id: object, call_id: str, params: Mapping[str, Any]
    ) -> dict[str, Any] | None:
        """Store a form until it is answered. Return the tool input for AskUserQuestion.

        Return None if the user cannot be asked: `params` is not a valid form, or too many forms are
        open.
        """
        tool_input = build_ask_user_question_input(params)
        if tool_input is None or len(self.requests) >= MAX_OPEN_REQUESTS:
            return None
        self.requests[key] = request_id, call_id, params
        return tool_input

    def close_form(self, key: str, decision: PermissionDecision) -> dict[str, Any]:
        """Remove an open form and return its result."""
        _, call_id, params = self.requests.pop(key)
        if decision.allow:
            result = build_elicitation_result(params, decision.updated_input)
        else:
            result = dict(DISMISSED_RESULT if decision.ends_turn else DECLINED_RESULT)
        is_error = result["action"] != "accept"
        text = ""
        if not is_error:
            text = format_ask_user_question_result(decision.updated_input)
        self.results.append((call_id, text, is_error))
        return result


def build_ask_user_question_input(params: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the tool input for AskUserQuestion. Return None if `params` is not a form, or if the
    form has no fields or too many fields.
    """
    fields = _list_fields(params)
    if params.get("mode") != "form" or not 0 < len(fields) <= MAX_FIELDS:
        return None
    questions = []
    for (name, field), text in zip(fields.items(), _list_question_texts(params), strict=True):
        options = [
            {"label": label, "description": get_text(option, "description")}
            for label, _, option in _list_options(field)
        ]
        if not options and field.get("default") is not None:
            options = [{"label": str(field["default"]), "description": "as it is"}]
        is_multiple = field.get("type") == "array"
        questions.append(
            {
                "question": text,
                "header": name[:MAX_HEADER_CHARS],
                "multiSelect": is_multiple,
                "options": options,
            }
        )
    return {"questions": questions}


def build_elicitation_result(
    params: Mapping[str, Any], updated_input: Mapping[str, Any] | None
) -> dict[str, Any]:
    """Return the result of a form. `updated_input` is the AskUserQuestion input with the user's
    answers.

    The form is dismissed if a required answer is missing, or if an answer is not an allowed value.
    """
    answers = as_dict(as_dict(updated_input).get("answers"))
    fields = _list_fields(params)
    content = {}
    required = as_dict(params.get("requestedSchema")).get("required")
    for (name, field), text in zip(fields.items(), _list_question_texts(params), strict=True):
        value = None
        if text in answers:
            value = _convert_answer(field, answers[text])
        if value is not None:
            content[name] = value
        elif text in answers or name in as_list(required):
            return dict(DISMISSED_RESULT)
    if content:
        return {"action": "accept", "content": content}
    return dict(DISMISSED_RESULT)


def format_ask_user_question_result(updated_input: Mapping[str, Any] | None) -> str:
    """Return the text of an AskUserQuestion tool result."""
    answers = as_dict(as_dict(updated_input).get("answers")).items()
    pairs = ", ".join(f'"{question}"="{reply}"' for question, reply in answers)
    return f"User has answered your questions: {pairs}. You can now continue with the user's answers in mind."


def _list_fields(params: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    properties = as_dict(as_dict(params.get("requestedSchema")).get("properties"))
    return {str(name): field for name, field in properties.items() if isinstance(field, dict)}


def _list_question_texts(params: Mapping[str, Any]) -> list[str]:
    """Return a unique question text for each field of a form. The first question starts with the
    form's message.
    """
    texts: list[str] = []
    for name, field in _list_fields(params).items():
        title = str(field.get("title") or field.get("description") or name)
        text = title
        if not texts and params.get("message"):
            text = f"{params.get('message')}\n{title}"
        texts.append(f"{text} ({name})" if text in texts else text)
    return texts


def _list_options(field: Mapping[str, Any]) -> list[tuple[str, object, Mapping[str, Any]]]:
    """Return the label, value and details of each option that a form field has."""
    if field.get("type") == "boolean":
        return [(label, value, {}) for label, value in BOOLEAN_CHOICES.items()]
    schema = field
    if field.get("type") == "array":
        schema = as_dict(field.get("items"))
    values = next((schema[key] for key in OPTION_KEYS if isinstance(schema.get(key), list)), ())
    options = [option if isinstance(option, dict) else {"const": option} for option in values]
    return [
        (str(option.get("title") or option.get("const")), option.get("const"), option)
        for option in options
    ]


def _convert_answer(field: Mapping[str, Any], answer: object) -> object:
    """Return the form field's value for an answer, or None if the field does not allow the answer."""
    kind = field.get("type")
    options = _list_options(field)
    if kind == "array":
        if isinstance(answer, list):
            labels = answer
        else:
            labels = str(answer).split(", ")
        chosen_values = [_find_option_value(options, label) for label in labels]
        if None in chosen_values:
            return None
        return chosen_values
    if options:
        return _find_option_value(options, answer)
    if kind not in ("number", "integer"):
        return str(answer)
    try:
        if kind == "integer":
            return int(str(answer))
        return float(str(answer))
    except ValueError:
        return None


def _find_option_value(
    options: list[tuple[str, object, Mapping[str, Any]]], answer: object
) -> object:
    return next((value for label, value, _ in options if str(answer) in (label, str(value))), None)
