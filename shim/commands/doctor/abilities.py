"""Determines whether a vendor supports each feature that a frontend may request: natively, emulated
by the shim, or not at all.

If the vendor's command line decides this, the command line is built with and without the feature,
and both are compared. The table therefore agrees with a real start.
"""

from collections.abc import Mapping
from typing import Any

from shim.core.adapter.adapter import Adapter, LaunchRequest, LaunchSpec
from shim.core.claude.argv.flags import Invocation
from shim.core.errors import ShimError

YES = "yes"
EMULATED = "emulated"
NO = "no"
SAMPLE_PROMPT = "say hello"
SAMPLE_SYSTEM_PROMPT = "speak briefly, please"
# Example session ids. Vendors use UUIDs, or ids with a prefix.
SAMPLE_SESSION_IDS = ("00000000-0000-4000-8000-000000000000", "ses_0")
SAMPLE_MCP_CONFIG = '{"mcpServers":{"one":{"command":"one"}}}'


def collect_adapter_abilities(adapter: Adapter) -> dict[str, str]:
    """Return the abilities by name, with the values `yes`, `emulated` or `no`.

    The shim can emulate four abilities:

    - streaming: complete blocks replace fragments
    - a turn limit: the shim stops the turn
    - a system prompt: it is added to the prompt
    - JSON output: it is requested in the prompt, and the answer is checked
    """
    resume = NO
    if adapter.abilities.can_resume:
        resume = YES
    fork = NO
    if adapter.abilities.can_resume and _can_fork(adapter):
        fork = YES
    budget = NO
    if adapter.abilities.reports_cost or adapter.passthrough:
        budget = YES
    return {
        "partial messages": YES if adapter.abilities.can_stream else EMULATED,
        "resume": resume,
        "fork": fork,
        "interrupt": YES,
        "permission requests": YES if adapter.child_input_ref or adapter.passthrough else NO,
        "tool limits": YES if adapter.abilities.can_limit_tools else EMULATED,
        "turn limit": YES if adapter.abilities.can_limit_turns else EMULATED,
        "model": _find_passed_ability(adapter, model="name"),
        "directories": _find_passed_ability(adapter, add_dirs=("/elsewhere",)),
        "system prompt": _find_system_prompt_ability(adapter),
        "MCP servers": _find_passed_ability(adapter, mcp_config=(SAMPLE_MCP_CONFIG,)),
        "JSON schema": YES if adapter.abilities.accepts_json_schema else EMULATED,
        "budget": budget,
    }


def list_workspace_trust_args(adapter: Adapter) -> tuple[str, ...]:
    """Return the arguments that `trust = true` adds to a vendor's command line."""
    default_launch = _build_launch(adapter)
    trusting_launch = _build_launch(adapter, opens_trust_prompt=True)
    if default_launch is None or trusting_launch is None:
        return ()
    return tuple(arg for arg in trusting_launch.arguments if arg not in default_launch.arguments)


def _build_launch(
    adapter: Adapter, flags: Mapping[str, Any] = {}, **request_fields: Any
) -> LaunchSpec | None:
    """Build a vendor's command line for a prompt. Return None if the vendor does not support the
    request.
    """
    invocation = Invocation(prompt=SAMPLE_PROMPT, print_mode=True, **flags)
    try:
        mode = adapter.modes.get("default", ())
        return adapter.build_launch(
            LaunchRequest(invocation, SAMPLE_PROMPT, mode, **request_fields)
        )
    except ShimError:
        return None


def _find_passed_ability(adapter: Adapter, **flags: Any) -> str:
    """Return `yes` if a request changes the vendor's command line, and `no` otherwise."""
    launch = _build_launch(adapter, flags)
    if launch is not None and launch != _build_launch(adapter):
        return YES
    return NO


def _find_system_prompt_ability(adapter: Adapter) -> str:
    launch = _build_launch(adapter, {"system_prompt": SAMPLE_SYSTEM_PROMPT})
    if launch is None:
        return NO
    if any(SAMPLE_PROMPT not in arg for arg in launch.arguments if SAMPLE_SYSTEM_PROMPT in arg):
        return YES
    if any(SAMPLE_SYSTEM_PROMPT in arg for arg in launch.arguments):
        return EMULATED
    if SAMPLE_SYSTEM_PROMPT.encode() in launch.stdin:
        return EMULATED
    return NO


def _can_fork(adapter: Adapter) -> bool:
    return any(
        _build_launch(adapter, {"fork_session": True}, resume_id=session_id) is not None
        for session_id in SAMPLE_SESSION_IDS
    )
