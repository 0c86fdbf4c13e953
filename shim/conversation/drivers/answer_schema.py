"""Implements `--json-schema` for vendors that cannot enforce a JSON schema themselves (contract
F11, 5.11).

The prompt asks for JSON, and the turn's last text is validated against the schema. Importing
jsonschema takes a tenth of a second, so it is imported only if the flag is used.
"""

import json
import re
from collections.abc import Callable
from itertools import islice
from typing import Any

import orjson

from shim.core.errors import CliArgumentError
from shim.core.turn.context import JsonSchemaAnswer

MAX_NAMED_ERRORS = 3  # the number of validation errors in an error message
MAX_ERROR_CHARS = 300  # the length limit for one validation error, which quotes the invalid value
NOT_JSON = "Error: --json-schema is not valid JSON: JSON Parse error: "
INSTRUCTION = (
    "Your last message must be one JSON object and nothing else: no explanation, no Markdown. "
    "It must be valid against this JSON Schema:"
)
_CODE_FENCE = re.compile(r"^[ \t]*```[^\n`]*\n(.*?)^[ \t]*```[ \t]*$", re.S | re.M)


def parse_json_schema(schema: str) -> dict[str, Any]:
    """Parse the schema. Raise CliArgumentError with Claude's error text if the schema is not a JSON
    object (contract 11).
    """
    try:
        value = json.loads(schema)
    except ValueError as error:
        reason = str(error)
        # Use the real claude's error text for a common mistake, a key without quotes.
        raise CliArgumentError(
            NOT_JSON + ("Expected '}'" if "property name" in reason else reason)
        ) from None
    except RecursionError:
        raise CliArgumentError(NOT_JSON + "nested too deeply") from None
    if not isinstance(value, dict):
        raise CliArgumentError("Error: --json-schema is not a JSON Schema: it must be an object")
    return value


def build_answer_parser(schema: str) -> Callable[[str], JsonSchemaAnswer]:
    """Return a function that parses an answer and validates it against the schema. Raise
    CliArgumentError if the schema is not a valid JSON Schema.
    """
    import jsonschema
    from jsonschema_specifications import REGISTRY

    schema_object = parse_json_schema(schema)
    validator_class = jsonschema.validators.validator_for(
        schema_object, default=jsonschema.Draft202012Validator
    )
    try:
        validator_class.check_schema(schema_object)
    except jsonschema.SchemaError as error:
        json_path = error.json_path
        reason = f"{json_path}: {error.message[:MAX_ERROR_CHARS]}"
        raise CliArgumentError(f"Error: --json-schema is not a JSON Schema: {reason}") from None
    # The default registry would fetch a $ref from the network. This registry contains only the
    # standard drafts.
    validator = validator_class(schema_object, registry=REGISTRY)

    def parse_structured(text: str) -> JsonSchemaAnswer:
        value = extract_json_object_or_error(text)
        if isinstance(value, str):
            return JsonSchemaAnswer(problem=value)
        try:
            problems = [
                f"{problem.json_path}: {problem.message[:MAX_ERROR_CHARS]}"
                for problem in islice(validator.iter_errors(value), MAX_NAMED_ERRORS)
            ]
        except Exception as error:  # for example an unresolvable $ref or an invalid pattern
            return JsonSchemaAnswer(
                problem=f"the answer cannot be checked: {str(error)[:MAX_ERROR_CHARS]}"
            )
        if problems:
            return JsonSchemaAnswer(problem="; ".join(problems))
        return JsonSchemaAnswer(value)

    return parse_structured


def extract_json_object_or_error(text: str) -> dict[str, Any] | str:
    """Return the JSON object in a text, or an error message. The object may be the complete text,
    or the content of the only code fence.
    """
    if not text.strip():
        return "the answer is empty"
    fences = _CODE_FENCE.findall(text)
    try:
        value = orjson.loads(fences[0] if len(fences) == 1 else text)
    except orjson.JSONDecodeError as error:
        return f"the answer is not JSON: {error}"
    if isinstance(value, dict):
        return value
    return "the answer is JSON, but not an object"


def add_schema_instruction(prompt: str, schema: str) -> str:
    """Append an instruction to answer with JSON that matches the schema."""
    return f"{prompt}\n\n{INSTRUCTION}\n{orjson.dumps(parse_json_schema(schema)).decode()}"
