"""The program that judges one call, where a vendor runs a hook before each: `python -I -m … MODULE
POLICY WORD…`.

MODULE reads the event on stdin as calls and gives the vendor's words for the answer; the words are
for it alone. Where it has a function `can_ask`, that says whether the vendor puts a question about
these calls before it runs them. POLICY is a text of `core.policy.serialize`. The hooks of Claude's
settings files run first. Exit code 0 lets the call run; 2 refuses it, with a sentence for the model
on stderr. Every other end is a failure, which the line that starts this takes for a refusal
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
from shim.core.policy.policy import PERMISSION_MODES, Policy
from shim.core.policy.rules import normalize_tool_name
from shim.core.policy.serialize import parse_policy
from shim.io.early_signals import reset_inherited_signals

MAX_EVENT_BYTES = 64 * 1024 * 1024  # a patch may hold whole files
MAX_MODE_CHARS = 40
DENY_EXIT_STATUS = 2
# for one call, without its hooks; a vendor may run a call whose hook takes much longer
JUDGE_TIMEOUT_S = 30
CHANGED_INPUT_TEXT = (
    "{tool} was not run: a hook of the settings allows it with another input only, which is {input}"
)

HookCall = tuple[str, dict[str, Any]]


def main() -> int:
    """Judge the event on stdin."""
    reset_inherited_signals()
    signal.alarm(JUDGE_TIMEOUT_S)  # it ends us, and every failure is a refusal
    module = import_module(sys.argv[1])
    policy, policy_context = parse_policy(sys.argv[2], _resolve_path)
    mode = _read_mode(policy_context.mode_file) if policy_context.mode_file else policy_context.mode
    context, event, adapter_args = (
        HookContext(policy_context.session_id, policy_context.transcript_path, mode),
        None,
        sys.argv[3:],
    )
    try:
        event = _read_event()
        calls = module.list_hook_calls(event, policy.workspace, *adapter_args)
        vendor_asks = hasattr(module, "can_ask") and module.can_ask(event, mode, *adapter_args)
    except (ValueError, RecursionError) as error:
        reason = f"the call cannot be judged: {error}"
    else:
        reason = _find_refusal(
            event, calls, policy, context, policy_context.prompted_tools, vendor_asks=vendor_asks
        )
    if reason or not policy_context.prompted_tools:
        # a vendor that asks too asks about what is not refused here
        sys.stdout.write(module.format_hook_output(reason, event))
    if not reason:
        return 0
    sys.stderr.write(f"{reason}\n")
    return DENY_EXIT_STATUS


def _read_mode(path: str) -> str:
    """The permission mode in a file of ours, which the conversation keeps up to date. OSError,
    ValueError: none.
    """
    with open(path, encoding="ascii") as file:
        mode = file.read(MAX_MODE_CHARS)
    if mode not in PERMISSION_MODES:
        raise ValueError(f"{path} has no permission mode")
    return mode


def _read_event() -> Any:
    """The event on stdin. ValueError for what is none."""
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
    """Why the calls of an event may not run; "" where all may, or where the vendor asks about them.

    `prompted_tools` are the tools about which it asks: hooks and questions are run there. About
    others it asks by its own mode, and no rule decides that. `vendor_asks`: it puts a question
    about each of these calls, and its answer decides.
    """
    evaluator = PolicyEvaluator(policy)
    for vendor_name, tool_input in calls:
        name = normalize_tool_name(vendor_name)
        is_asked_about = vendor_asks or name in prompted_tools.split(",")
        hook_decision = (
            HookDecision()
            if is_asked_about
            else _run_settings_hooks(policy, event, name, tool_input, context)
        )
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
            suffix = " and nobody can be asked" if decision.outcome == "ask" else ""
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
    """The verdict of the hooks of Claude's settings about a call of an event."""
    if not policy.hooks:
        return HookDecision()
    import anyio

    from shim.conversation.drivers.hook_runner import MAX_HOOK_TIMEOUT_S, run_hooks

    signal.alarm(JUDGE_TIMEOUT_S + int(MAX_HOOK_TIMEOUT_S))
    session_id = context.session_id or str(event.get("session_id") or event.get("sessionId") or "")
    if context.transcript_path:
        context = context._replace(
            transcript_path=os.path.join(
                os.path.dirname(context.transcript_path), f"{session_id}.jsonl"
            )
        )
    call_id, context = str(event.get("tool_use_id", "")), context._replace(session_id=session_id)
    return anyio.run(run_hooks, policy, call_id, name, tool_input, context, os.environ)


def _resolve_path(path: str) -> str:
    """Where a path's links lead; the path itself where nobody can tell."""
    try:
        return os.path.realpath(path)
    except (OSError, ValueError):
        return path


if __name__ == "__main__":
    sys.exit(main())
