"""A hook program that checks tool calls, for vendors that run a hook before each call: `python -I
-m … MODULE POLICY ARG…`.

    MODULE  parses the event on stdin into tool calls, and encodes the answer for the vendor; an
            optional function `can_ask` tells whether the vendor asks for permission itself
    POLICY  the policy as text, written by `core.policy.serialize`
    ARG     arguments for MODULE

The hooks from Claude's settings files run first. Exit code 0 allows the call. Exit code 2 denies
the call, with a message for the model on stderr. Any other exit code is a failure, which the
command line that runs the hook treats as a denial (`core.adapter.policy_hook`).
"""

import json
import os
import signal
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any

from shim.core.claude.hooks.answers import HookDecision
from shim.core.claude.hooks.callbacks import HookContext, HookEvent
from shim.core.policy import PRE_TOOL_EVENT
from shim.core.policy.evaluate import PolicyEvaluator
from shim.core.policy.policy import (
    MCP_PREFIX,
    PERMISSION_MODES,
    Policy,
    normalize_mcp_name,
    normalize_tool_name,
)
from shim.core.policy.serialize import parse_policy
from shim.io.signals import reset_inherited_signals

MAX_EVENT_BYTES = 64 * 1024 * 1024  # a patch may contain complete files
MAX_MODE_CHARS = 40
DENY_EXIT_STATUS = 2
# The time limit for checking one tool call, without the user's hooks. If a hook takes much longer,
# a vendor may run the call anyway.
CHECK_TIMEOUT_S = 30
CHANGED_INPUT_TEXT = (
    "{tool} was not run: a hook in the settings allows this call only with a different "
    "input: {input}"
)
STOPPED_TEXT = "A hook stopped the turn before this call."

HookCall = tuple[str, dict[str, Any]]


def main() -> int:
    """Check the event on stdin. Return the exit code."""
    reset_inherited_signals()
    signal.alarm(CHECK_TIMEOUT_S)  # SIGALRM ends this process, which denies the call
    module = import_module(sys.argv[1])
    policy, policy_context = parse_policy(sys.argv[2], _resolve_path)
    if policy_context.mode_file:
        mode = _read_mode(policy_context.mode_file)
    else:
        mode = policy_context.mode
    context = HookContext(policy_context.session_id, policy_context.transcript_path, mode)
    event = None
    adapter_args = sys.argv[3:]
    try:
        event = _read_event()
        calls = module.list_hook_calls(event, policy.workspace, *adapter_args)
        vendor_asks = hasattr(module, "can_ask") and module.can_ask(event, mode, *adapter_args)
    except (ValueError, RecursionError) as error:
        reason = f"the call cannot be checked: {error}"
    else:
        reason = _find_refusal(
            event, calls, policy, context, policy_context.prompted_tools, vendor_asks=vendor_asks
        )
    if reason or not policy_context.prompted_tools:
        # A vendor that asks for permission itself asks about all calls that are not denied here.
        sys.stdout.write(module.format_hook_output(reason, event))
    if not reason:
        return 0
    sys.stderr.write(f"{reason}\n")
    return DENY_EXIT_STATUS


def _read_mode(path: str) -> str:
    """Read the current permission mode from the conversation's mode file. Raise OSError or
    ValueError if there is no mode.
    """
    with open(path, encoding="ascii") as file:
        mode = file.read(MAX_MODE_CHARS)
    if mode not in PERMISSION_MODES:
        raise ValueError(f"{path} has no permission mode")
    return mode


def _read_event() -> Any:
    """Read the hook event from stdin. Raise ValueError if stdin is not a JSON object."""
    data = sys.stdin.buffer.read(MAX_EVENT_BYTES + 1)
    if len(data) > MAX_EVENT_BYTES:
        raise ValueError("the input of the call is too large")
    return json.loads(data)


def _find_refusal(
    event: dict[str, Any],
    calls: list[HookCall],
    policy: Policy,
    context: HookContext,
    prompted_tools: str,
    *,
    vendor_asks: bool = False,
) -> str:
    """Return the reason to deny an event's tool calls. Return "" if the calls may run, or if the
    vendor will ask for permission.

    `prompted_tools` are the tools and MCP servers for which the vendor asks the shim for
    permission, or whose calls the shim's relay decides about. Hooks and prompts for them run in the
    shim. For other tools, the vendor decides by its own mode, which no rule changes. `vendor_asks`
    means that the vendor asks for permission for each call and obeys the answer.
    """
    evaluator = PolicyEvaluator(policy)
    for vendor_name, tool_input in calls:
        name = normalize_tool_name(vendor_name)
        is_prompted = vendor_asks or is_prompted_tool(vendor_name, prompted_tools.split(","))
        if is_prompted:
            hook_decision = HookDecision()
        else:
            hook_decision = _run_settings_hooks(policy, event, name, tool_input, context)
        # The turn cannot be stopped from here. The call is denied instead.
        if hook_decision.allow is False or hook_decision.stops_turn:
            return hook_decision.reason or STOPPED_TEXT
        if hook_decision.updated_input not in (None, tool_input):
            return CHANGED_INPUT_TEXT.format(
                tool=name, input=json.dumps(hook_decision.updated_input)
            )
        decision = evaluator.evaluate_tool_call(
            name,
            tool_input,
            context.permission_mode,
            hook_allows_call=bool(hook_decision.allow),
            hook_requires_prompt=hook_decision.requires_prompt,
        )
        if decision.outcome == "ask" and (
            is_prompted
            or (prompted_tools and not (decision.is_by_rule or hook_decision.requires_prompt))
        ):
            continue
        if decision.outcome != "allow":
            suffix = ""
            if decision.outcome == "ask":
                suffix = " and permission prompts are not available"
            return (
                f"{name} is not allowed{suffix} "
                f"({hook_decision.reason if hook_decision.requires_prompt else decision.reason})"
            )
    return ""


def is_prompted_tool(vendor_name: str, prompted_tools: Sequence[str]) -> bool:
    """Return whether the shim decides about the calls of a tool. `prompted_tools` has names of
    tools and of MCP servers (`mcp__server`).
    """
    if not vendor_name.startswith(MCP_PREFIX):
        return vendor_name in prompted_tools
    name = normalize_mcp_name(vendor_name)
    return any(name == entry or name.startswith(f"{entry}__") for entry in prompted_tools)


def _run_settings_hooks(
    policy: Policy,
    event: dict[str, Any],
    name: str,
    tool_input: dict[str, Any],
    context: HookContext,
) -> HookDecision:
    """Run the hooks from Claude's settings files for a tool call. Return their decision."""
    if not policy.hooks:
        return HookDecision()
    import anyio

    from shim.conversation.drivers.hook_runner import MAX_HOOK_TIMEOUT_S, run_hooks

    signal.alarm(CHECK_TIMEOUT_S + int(MAX_HOOK_TIMEOUT_S))
    session_id = context.session_id
    if not session_id:
        session_id = str(event.get("session_id") or event.get("sessionId") or "")
    if context.transcript_path:
        context = context._replace(
            transcript_path=os.path.join(
                os.path.dirname(context.transcript_path), f"{session_id}.jsonl"
            )
        )
    context = context._replace(session_id=session_id)
    call = HookEvent(PRE_TOOL_EVENT, str(event.get("tool_use_id", "")), name, tool_input)
    return anyio.run(run_hooks, policy, call, context, os.environ)


def _resolve_path(path: str) -> str:
    """Return a path with symbolic links resolved. Return it unchanged if the links cannot be
    resolved.
    """
    try:
        return os.path.realpath(path)
    except (OSError, ValueError):
        return path


if __name__ == "__main__":
    sys.exit(main())
