"""The hook program that checks one tool call for vendors that run a hook before each call: `python
-I -m … MODULE POLICY ARG…`.

MODULE parses the event on stdin into calls and encodes the answer for the vendor; it also gets the
ARGs. Its function `can_ask`, if it has one, tells whether the vendor asks about these calls before
it runs them. POLICY is a text of `core.policy.serialize`. The hooks of Claude's settings files run
first. Exit code 0 allows the call. Exit code 2 denies it, with a sentence for the model on stderr.
Any other exit is a failure, and the command line that starts the hook treats it as a denial
(`core.adapter.policy_hook`).
"""

import json
import os
import signal
import sys
from importlib import import_module
from typing import Any

from shim.core.claude.hooks.callbacks import HookDecision
from shim.core.claude.hooks.commands import HookContext
from shim.core.policy.evaluate import PolicyEvaluator
from shim.core.policy.policy import PERMISSION_MODES, Policy, normalize_tool_name
from shim.core.policy.serialize import parse_policy
from shim.io.early_signals import reset_inherited_signals

MAX_EVENT_BYTES = 64 * 1024 * 1024  # a patch may hold whole files
MAX_MODE_CHARS = 40
DENY_EXIT_STATUS = 2
# The time for one call without its hooks. A vendor may run the call if its hook takes much longer.
JUDGE_TIMEOUT_S = 30
CHANGED_INPUT_TEXT = (
    "{tool} was not run: a hook in the settings allows it only with another input: {input}"
)

HookCall = tuple[str, dict[str, Any]]


def main() -> int:
    """Check the event on stdin."""
    reset_inherited_signals()
    signal.alarm(JUDGE_TIMEOUT_S)  # the signal ends this process, which denies the call
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
        # A vendor that asks for permission itself asks about the calls that are not refused here.
        sys.stdout.write(module.format_hook_output(reason, event))
    if not reason:
        return 0
    sys.stderr.write(f"{reason}\n")
    return DENY_EXIT_STATUS


def _read_mode(path: str) -> str:
    """Read the permission mode from the file that the conversation keeps up to date. Raise OSError
    or ValueError if there is none.
    """
    with open(path, encoding="ascii") as file:
        mode = file.read(MAX_MODE_CHARS)
    if mode not in PERMISSION_MODES:
        raise ValueError(f"{path} has no permission mode")
    return mode


def _read_event() -> Any:
    """Read the event from stdin. Raise ValueError if it is not a JSON object."""
    data = sys.stdin.buffer.read(MAX_EVENT_BYTES + 1)
    if len(data) > MAX_EVENT_BYTES:
        raise ValueError("it is too large")
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
    """Return why the calls of an event may not run, or "" if they may run or the vendor asks about
    them.

    `prompted_tools` are the tools about which the vendor asks the shim; their hooks and prompts run
    there. About other tools it asks by its own mode, which no rule changes. `vendor_asks`: the
    vendor asks about each of these calls, and the answer decides.
    """
    evaluator = PolicyEvaluator(policy)
    for vendor_name, tool_input in calls:
        name = normalize_tool_name(vendor_name)
        is_asked_about = vendor_asks or name in prompted_tools.split(",")
        if is_asked_about:
            hook_decision = HookDecision()
        else:
            hook_decision = _run_settings_hooks(policy, event, name, tool_input, context)
        if hook_decision.allow is False:
            return hook_decision.reason
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
            is_asked_about
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


def _run_settings_hooks(
    policy: Policy,
    event: dict[str, Any],
    name: str,
    tool_input: dict[str, Any],
    context: HookContext,
) -> HookDecision:
    """Return the decision of the hooks of Claude's settings files about a call."""
    if not policy.hooks:
        return HookDecision()
    import anyio

    from shim.conversation.drivers.hook_runner import MAX_HOOK_TIMEOUT_S, run_hooks

    signal.alarm(JUDGE_TIMEOUT_S + int(MAX_HOOK_TIMEOUT_S))
    session_id = context.session_id
    if not session_id:
        session_id = str(event.get("session_id") or event.get("sessionId") or "")
    if context.transcript_path:
        context = context._replace(
            transcript_path=os.path.join(
                os.path.dirname(context.transcript_path), f"{session_id}.jsonl"
            )
        )
    call_id = str(event.get("tool_use_id", ""))
    context = context._replace(session_id=session_id)
    return anyio.run(run_hooks, policy, call_id, name, tool_input, context, os.environ)


def _resolve_path(path: str) -> str:
    """Return a path with its links resolved, or the path itself if they cannot be resolved."""
    try:
        return os.path.realpath(path)
    except (OSError, ValueError):
        return path


if __name__ == "__main__":
    sys.exit(main())
