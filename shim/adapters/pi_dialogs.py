"""Converts a dialog of a pi extension to a form for the user, and converts the form's result to
pi's answer.
"""

from collections.abc import Mapping
from typing import Any

DIALOG_METHODS = ("select", "confirm", "input", "editor")  # dialogs that wait for an answer
ANSWER_FIELD = "answer"  # the only field of the form


def build_dialog_form(dialog: Mapping[str, Any]) -> dict[str, Any]:
    """Return a dialog as a form in the format of the Agent Client Protocol."""
    method = dialog.get("method")
    texts = [dialog.get("title"), dialog.get("message")]
    field: dict[str, Any] = {"type": "boolean" if method == "confirm" else "string"}
    if method == "select":
        field["enum"] = dialog.get("options")
    elif isinstance(dialog.get("prefill"), str):
        field["default"] = dialog["prefill"]
    field["title"] = "\n".join(text for text in texts if isinstance(text, str) and text)
    return {
        "mode": "form",
        "requestedSchema": {"properties": {ANSWER_FIELD: field}, "required": [ANSWER_FIELD]},
    }


def build_dialog_answer(form_answer: Mapping[str, Any]) -> dict[str, Any]:
    """Return the answer for pi, built from the form's result."""
    if form_answer.get("action") != "accept":
        return {"cancelled": True}
    value = form_answer["content"][ANSWER_FIELD]
    if isinstance(value, bool):
        return {"confirmed": value}
    return {"value": value}
