"""`--settings`: the part of Claude's own settings that binds every vendor.

It is the part that narrows: deny rules and the mode. Allow rules spare questions. The rest is for a real claude.
"""

import os
from typing import Any

import orjson

from shim.channels.raw_output import tell
from shim.core.claude.argv.invocation import Invocation
from shim.core.errors import ArgumentError

SETTINGS_BYTES = 1024 * 1024
MODES = ("acceptEdits", "auto", "default", "dontAsk", "manual", "plan")  # only a flag can ask for a bypass


def obey_settings(invocation: Invocation) -> Invocation:
    """The invocation with the rules and the mode of `--settings`. A flag for the mode goes before them."""
    if not invocation.configuration.settings:
        return invocation
    given = _read(invocation.configuration.settings)
    permissions = given.get("permissions")
    permissions = permissions if isinstance(permissions, dict) else {}
    mode = permissions.get("defaultMode")
    if isinstance(given.get("sandbox"), dict) and given["sandbox"].get("enabled"):
        tell("--settings asks for a sandbox, which only the real claude has; it is ignored\n")
    return invocation.with_flags(
        disallowed_tools=(*invocation.rules.disallowed_tools, *_rules(permissions.get("deny"))),
        allowed_tools=(*invocation.rules.allowed_tools, *_rules(permissions.get("allow"))),
        permission_mode=invocation.permissions.permission_mode or (mode if mode in MODES else None),
    )


def _read(text: str) -> dict[str, Any]:
    """The object in the text itself, or in the file that the text names."""
    try:
        given = orjson.loads(text)
    except orjson.JSONDecodeError:
        given = _read_file(text)
    if not isinstance(given, dict):
        raise ArgumentError("Error: --settings is not a JSON object")
    return given


def _read_file(path: str) -> Any:
    try:
        with open(path, "rb") as file:
            data = file.read(SETTINGS_BYTES + 1)
    except (OSError, ValueError):
        raise ArgumentError(f"Error: Settings file not found: {os.path.abspath(path)}") from None
    try:
        if len(data) > SETTINGS_BYTES:
            raise ValueError
        return orjson.loads(data)
    except ValueError:
        raise ArgumentError(f"Error: the settings file {os.path.abspath(path)} is not JSON, or too large") from None


def _rules(given: object) -> list[str]:
    return [rule for rule in given if isinstance(rule, str) and rule] if isinstance(given, list) else []
