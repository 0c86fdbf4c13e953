"""What a vendor does with each thing that a frontend may ask for: itself, with our help, or not at
all.

Where the command line of a vendor decides, it is built with and without the thing and compared. So
the table cannot claim what a launch does not do.
"""

from collections.abc import Mapping
from typing import Any

from shim.core.adapter.vendor import Adapter, LaunchRequest, LaunchSpec
from shim.core.claude.argv.invocation import Invocation
from shim.core.errors import ShimError

YES, EMULATED, NO = "yes", "emulated", "no"
SAMPLE_PROMPT, SAMPLE_SYSTEM_PROMPT = "say hello", "speak briefly, please"
# vendors' ids are UUIDs, or have a prefix
SAMPLE_SESSION_IDS = ("00000000-0000-4000-8000-000000000000", "ses_0")
SAMPLE_MCP_CONFIG = '{"mcpServers":{"one":{"command":"one"}}}'


def collect_abilities(vendor: Adapter) -> dict[str, str]:
    """Each ability by name, with `yes`, `emulated` or `no`.

    Emulated means: fragments are whole blocks; a limit stops the turn; a system prompt stands
    before the prompt; the prompt asks for JSON, and the answer is checked.
    """
    return {
        "partial messages": YES if vendor.abilities.can_stream else EMULATED,
        "resume": YES if vendor.abilities.can_resume else NO,
        "fork": YES if vendor.abilities.can_resume and _can_fork(vendor) else NO,
        "interrupt": YES,
        "permission requests": YES if vendor.child_input_ref or vendor.passthrough else NO,
        "tool limits": YES if vendor.abilities.can_limit_tools else EMULATED,
        "turn limit": YES if vendor.abilities.can_limit_turns else EMULATED,
        "model": _find_passed_ability(vendor, model="name"),
        "directories": _find_passed_ability(vendor, add_dirs=("/elsewhere",)),
        "system prompt": _find_system_prompt_ability(vendor),
        "MCP servers": _find_passed_ability(vendor, mcp_config=(SAMPLE_MCP_CONFIG,)),
        "JSON schema": YES if vendor.abilities.accepts_json_schema else EMULATED,
        "budget": YES if vendor.abilities.reports_cost or vendor.passthrough else NO,
    }


def list_trust_args(vendor: Adapter) -> tuple[str, ...]:
    """The arguments that `trust = true` adds to its command line."""
    closed, opened = _build_launch(vendor), _build_launch(vendor, trust=True)
    if closed is None or opened is None:
        return ()
    return tuple(word for word in opened.arguments if word not in closed.arguments)


def _build_launch(
    vendor: Adapter, asked: Mapping[str, Any] = {}, **facts: Any
) -> LaunchSpec | None:
    """The vendor's command line for a prompt; None if the vendor refuses the request."""
    invocation = Invocation(prompt=SAMPLE_PROMPT, print_mode=True).with_flags(**asked)
    try:
        mode = vendor.modes.get("default", ())
        return vendor.build_launch(LaunchRequest(invocation, SAMPLE_PROMPT, mode, **facts))
    except ShimError:
        return None


def _find_passed_ability(vendor: Adapter, **asked: Any) -> str:
    """Whether the request changes the vendor's command line."""
    started = _build_launch(vendor, asked)
    return YES if started is not None and started != _build_launch(vendor) else NO


def _find_system_prompt_ability(vendor: Adapter) -> str:
    started = _build_launch(vendor, {"system_prompt": SAMPLE_SYSTEM_PROMPT})
    if started is None:
        return NO
    if any(
        SAMPLE_SYSTEM_PROMPT in word and SAMPLE_PROMPT not in word for word in started.arguments
    ):
        return YES
    together = (
        any(SAMPLE_SYSTEM_PROMPT in word for word in started.arguments)
        or SAMPLE_SYSTEM_PROMPT.encode() in started.stdin
    )
    return EMULATED if together else NO


def _can_fork(vendor: Adapter) -> bool:
    return any(
        _build_launch(vendor, {"fork_session": True}, resume=session) is not None
        for session in SAMPLE_SESSION_IDS
    )
