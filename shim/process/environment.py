"""Builds the environment variables of a child process. Variables of Claude and the shim are
removed, and a depth counter prevents endless recursion.
"""

import os
from collections.abc import Mapping

from shim.core.adapter.adapter import Adapter, LaunchSpec
from shim.core.errors import FrontendError
from shim.state.config import VendorSettings

DEPTH_VARIABLE = "SHIM_DEPTH"
# If one of these variables is set, Claude reports each change of a session's state (contract 5.13).
SESSION_STATE_VARIABLES = frozenset((
    "CLAUDE_CODE_EMIT_SESSION_STATE_EVENTS",
    "CLAUDE_CODE_SDK_READS_SESSION_STATE",
))  # fmt: skip
# A vendor's tool may run `claude`, whose vendor may run `claude` again. A fourth level is an error.
MAX_DEPTH = 3

# The prefix for variables that the drop-in hides from the shim's Python. A child process gets these
# variables under their original names.
SAVED_PREFIX = "SHIM_PUT_ASIDE_"
SHIM_PREFIXES = ("SHIM_", "CLAUDE_SHIM_")
_CLAUDE_PREFIXES = ("CLAUDE_CODE_", "CLAUDE_AGENT_SDK_")


def parse_shim_depth(environment: Mapping[str, str]) -> int:
    """Return how many drop-ins are ancestors of this process."""
    text = environment.get(DEPTH_VARIABLE, "0")
    if text.isascii() and text.isdigit() and len(text) < 4:
        return int(text)
    return MAX_DEPTH


def build_child_environment(
    adapter: Adapter, settings: VendorSettings, environment: Mapping[str, str]
) -> dict[str, str]:
    """Build the environment variables for the vendor's children. No vendor receives another
    vendor's API key.

    PWD is set to the working directory, because some vendors work in PWD and a frontend may have
    passed on another program's value.
    """
    variables = {}
    for name, value in environment.items():
        # A bundled program runs in the shim's Python, so these variables stay hidden.
        if name.startswith(SAVED_PREFIX) and not adapter.cli.bundled_module:
            name = name.removeprefix(SAVED_PREFIX)
        if name.startswith(SHIM_PREFIXES):
            continue
        if not adapter.passthrough and (name == "CLAUDECODE" or name.startswith(_CLAUDE_PREFIXES)):
            continue
        if name.startswith("ANTHROPIC_") and not (
            adapter.passthrough or name in adapter.environment.visible_variables
        ):
            continue
        variables[name] = value
    variables[DEPTH_VARIABLE] = str(parse_shim_depth(environment) + 1)
    if cwd := get_working_directory():
        variables["PWD"] = cwd
    return variables | dict(settings.env)


def build_launch_environment(
    child_environment: Mapping[str, str], launch: LaunchSpec, settings: VendorSettings
) -> dict[str, str]:
    """Build the environment variables for one launch. The user's settings override the adapter's
    variables, except variables that enforce rules.
    """
    variables = {
        name: value
        for name, value in {**child_environment, **launch.environment}.items()
        if name not in launch.unset_variables
    }
    return variables | dict(settings.env) | dict(launch.enforced_environment)


LAST_STRICT_SDK_VERSION = (0, 1, 39)  # newer Python SDKs skip unknown lines


def is_sdk_rejecting_unknown_messages(environment: Mapping[str, str]) -> bool:
    """Return whether the frontend is a version of the Python SDK that fails on unknown message
    types.
    """
    if not environment.get("CLAUDE_CODE_ENTRYPOINT", "").startswith("sdk-py"):
        return False
    version = environment.get("CLAUDE_AGENT_SDK_VERSION", "").split(".")
    if len(version) != 3:
        return False
    if not all(map(str.isdigit, version)):
        return False
    return tuple(map(int, version)) <= LAST_STRICT_SDK_VERSION


def get_working_directory() -> str:
    """Return the working directory, or "" if the directory was removed."""
    try:
        return os.getcwd()
    except OSError:
        return ""


def parse_extra_args(environment: Mapping[str, str]) -> list[str]:
    """Split the value of SHIM_ARGS into arguments, as a shell would. Raise FrontendError if the
    shell syntax is invalid.
    """
    text = environment.get("SHIM_ARGS")
    if not text:
        return []
    import shlex

    try:
        return shlex.split(text)
    except ValueError as error:
        raise FrontendError(f"SHIM_ARGS is not valid shell syntax: {error}") from None
