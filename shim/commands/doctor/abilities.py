"""What a vendor does with each thing that a frontend may ask for: itself, with our help, or not at
all.

Where the command line of a vendor decides, it is built with and without the thing and compared. So
the table cannot claim what a launch does not do.
"""

from collections.abc import Mapping
from typing import Any

from shim.core.adapter.vendor import Launch, Request, Vendor
from shim.core.claude.argv.invocation import Invocation
from shim.core.errors import ShimError

YES, HELPED, NO = "yes", "emulated", "no"
_PROMPT, _MARK = "say hello", "speak briefly, please"
# vendors' ids are UUIDs, or have a prefix
_SESSIONS = ("00000000-0000-4000-8000-000000000000", "ses_0")
_MCP = '{"mcpServers":{"one":{"command":"one"}}}'


def abilities(vendor: Vendor) -> dict[str, str]:
    """Each ability by name, with `yes`, `emulated` or `no`.

    Emulated means: fragments are whole blocks; a limit stops the turn; a system prompt stands
    before the prompt; the prompt asks for JSON, and the answer is checked.
    """
    return {
        "partial messages": YES if vendor.abilities.streams else HELPED,
        "resume": YES if vendor.abilities.resumes else NO,
        "fork": YES if vendor.abilities.resumes and _forks(vendor) else NO,
        "interrupt": YES,
        "permission requests": YES if vendor.speaks or vendor.passthrough else NO,
        "tool limits": YES if vendor.abilities.limits_tools else HELPED,
        "turn limit": YES if vendor.abilities.limits_turns else HELPED,
        "model": _passed(vendor, model="name"),
        "directories": _passed(vendor, add_dirs=("/elsewhere",)),
        "system prompt": _system_prompt(vendor),
        "MCP servers": _passed(vendor, mcp_config=(_MCP,)),
        "JSON schema": YES if vendor.abilities.structures else HELPED,
        "budget": YES if vendor.abilities.prices or vendor.passthrough else NO,
    }


def trust_words(vendor: Vendor) -> tuple[str, ...]:
    """The arguments that `trust = true` adds to its command line."""
    closed, opened = _launch(vendor), _launch(vendor, trust=True)
    if closed is None or opened is None:
        return ()
    return tuple(word for word in opened.arguments if word not in closed.arguments)


def _launch(vendor: Vendor, asked: Mapping[str, Any] = {}, **facts: Any) -> Launch | None:
    """The vendor's command line for a prompt; None if the vendor refuses the request."""
    invocation = Invocation(prompt=_PROMPT, print_mode=True).with_flags(**asked)
    try:
        mode = vendor.modes.get("default", ())
        return vendor.launch(Request(invocation, _PROMPT, mode, **facts))
    except ShimError:
        return None


def _passed(vendor: Vendor, **asked: Any) -> str:
    """Whether the request changes the vendor's command line."""
    started = _launch(vendor, asked)
    return YES if started is not None and started != _launch(vendor) else NO


def _system_prompt(vendor: Vendor) -> str:
    started = _launch(vendor, {"system_prompt": _MARK})
    if started is None:
        return NO
    if any(_MARK in word and _PROMPT not in word for word in started.arguments):
        return YES
    together = any(_MARK in word for word in started.arguments) or _MARK.encode() in started.stdin
    return HELPED if together else NO


def _forks(vendor: Vendor) -> bool:
    return any(
        _launch(vendor, {"fork_session": True}, resume=session) is not None for session in _SESSIONS
    )
