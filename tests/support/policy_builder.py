"""Builds policies and evaluators from written rules, for a working directory that does not exist."""

from __future__ import annotations

from collections.abc import Iterable

from shim.core.policy.evaluate import PolicyEvaluator
from shim.core.policy.policy import PermissionRule, Policy, Workspace, parse_permission_rules

WORKSPACE = Workspace("/work", "/home/ann")


def build_policy(
    *,
    only: Iterable[str] | None = None,
    deny: Iterable[str] = (),
    ask: Iterable[str] = (),
    allow: Iterable[str] = (),
    hidden: Iterable[str] = (),
    hooks: Iterable[PermissionRule] = (),
) -> Policy:
    return Policy(
        workspace=WORKSPACE,
        only_tools=only,
        deny=parse_permission_rules(deny),
        ask=parse_permission_rules(ask),
        allow=parse_permission_rules(allow),
        hidden_tools=hidden,
        hooks=hooks,
    )


def build_evaluator(**rules: Iterable[str]) -> PolicyEvaluator:
    """Build an evaluator of `build_policy(**rules)`."""
    return PolicyEvaluator(build_policy(**rules))  # type: ignore[arg-type]
