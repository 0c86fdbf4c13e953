"""Suggests permission rules that would have allowed the denied tool calls of a turn."""

import os
import shlex
from collections.abc import Mapping
from typing import Any

from shim.adapters import VENDORS, get_adapter
from shim.bridge.decisions import DENIED_MESSAGE, find_narrowest_allow_rule
from shim.conversation.plan import select_driver
from shim.core.adapter.adapter import Adapter, LaunchRequest
from shim.core.adapter.enforcement import list_unsupported_rules
from shim.core.claude.argv.flags import Invocation
from shim.core.policy.policy import Policy, Workspace, parse_permission_rule
from shim.core.reading.diagnostics import pluralize
from shim.core.reading.values import as_dict, list_dicts
from shim.state.config import load_shim_settings
from shim.story.events import find_vendor_name

MAX_NAMED_RULES = 5  # rules in a suggestion
# Texts in a tool result that show that a person or a rule denied the call.
DENIAL_PHRASES = (DENIED_MESSAGE, "was denied:")


def suggest_allow_rules(
    result: Mapping[str, Any],
    init: Mapping[str, Any],
    call_outputs: Mapping[str, str],
    cwd: str,
    *,
    is_attended: bool,
) -> str:
    """Return advice for allowing the denied tool calls of a turn, or "" if no rule would help.

    `init` is the turn's first line. `call_outputs` contains the results of failed calls. Calls that
    a person or a rule denied are skipped, because another rule would not allow them. `is_attended`
    is set if a person could answer prompts.
    """
    remaining = list_dicts(result.get("permission_denials"))
    mode = str(init.get("permissionMode"))
    if remaining and mode == "plan":
        return "plan mode allows no changes: run without --permission-mode plan"
    remaining = [
        denial
        for denial in remaining
        if not any(
            phrase in call_outputs.get(str(denial.get("tool_use_id")), "")
            for phrase in DENIAL_PHRASES
        )
    ]
    if not remaining:
        return ""
    name = find_vendor_name(init)
    vendor = None
    if name in VENDORS:
        vendor = _find_conversation_vendor(name, cwd)
    rules: dict[str, None] = {}
    for denial in remaining:
        rule = _find_effective_rule(
            str(denial.get("tool_name")),
            as_dict(denial.get("tool_input")),
            cwd,
            vendor,
            mode,
        )
        if rule is not None:
            rules[rule] = None
    if not rules:
        return ""
    flags = " ".join(f"--allow {shlex.quote(rule)}" for rule in list(rules)[:MAX_NAMED_RULES])
    more_text = ""
    if len(rules) > MAX_NAMED_RULES:
        more_text = f" and {pluralize(len(rules) - MAX_NAMED_RULES, 'more rule')}"
    advice = f"to allow this call: shim run {flags}{more_text} …"
    if (
        vendor is not None
        and (vendor.child_input_ref or vendor.passthrough)
        and mode != "dontAsk"
        and not is_attended
    ):
        advice += "; on a terminal, `shim run` asks you"
    return advice


def _find_conversation_vendor(name: str, cwd: str) -> Adapter:
    """Return the adapter that `shim run` uses, which is the vendor's adapter for conversations."""
    invocation = Invocation(input_format="stream-json")
    return select_driver(
        get_adapter(name), invocation, load_shim_settings(invocation, os.environ), os.environ, cwd
    ).adapter


def _find_effective_rule(
    tool: str, tool_input: Mapping[str, Any], cwd: str, vendor: Adapter | None, mode: str
) -> str | None:
    """Return the narrowest rule that allows a tool call and that the vendor supports, or None."""
    for rule in filter(None, (find_narrowest_allow_rule(tool, tool_input, cwd), tool)):
        policy = Policy(workspace=Workspace(cwd), allow=(parse_permission_rule(rule),))
        if vendor is None:
            return rule
        request = LaunchRequest(
            Invocation(),
            "",
            permission_mode=mode,
            persistent=bool(vendor.child_input_ref),
            policy=policy,
        )
        if not list_unsupported_rules(vendor, policy, request, ()):
            return rule
    return None
