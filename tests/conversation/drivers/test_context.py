"""The arguments with which a vendor is started."""

import pytest

from shim import adapters
from shim.conversation.drivers.context import ConversationContext, VendorSessionResumeState
from shim.core.claude.argv.flags import parse_argv
from shim.core.policy.evaluate import PolicyEvaluator
from shim.state.config import ShimSettings


def setup(*args, **settings):
    """Build the demo vendor's context from flags and settings."""
    return build_context("demo", *args, **settings)


def build_context(vendor, *args, **settings):
    return ConversationContext(
        adapters.get_adapter(vendor),
        parse_argv(args),
        ShimSettings(**settings),
        {},
        "/repo",
        lambda *_, **__: None,
    )


@pytest.mark.parametrize(
    ("args", "deny", "removed"),
    [
        (("--disallowedTools", "Read,Bash(rm *)"), (), ("Read",)),
        ((), ("Bash",), ("Bash",)),
        (("--disallowedTools", "Read"), ("Bash",), ("Bash", "Read")),
    ],
)
def test_tools_denied_by_flag_or_config_are_removed(args, deny, removed):
    context = setup(*args, deny=deny)
    assert context.list_removed_tools(context.build_policy()) == removed


def test_config_deny_rule_overrides_allowed_tools_flag():
    evaluator = PolicyEvaluator(setup("--allowedTools", "Bash,Read", deny=("Bash",)).build_policy())
    assert [
        evaluator.evaluate_tool_call(name, {}, "default").outcome for name in ("Bash", "Read")
    ] == [
        "deny",
        "allow",
    ]


@pytest.mark.parametrize(("vendor", "args", "expected"), [
    ("claude", (), True), ("claude", ("--continue",), False), ("qwen", ("--continue",), True),
])  # fmt: skip
def test_continue_flag_of_claude_prevents_a_new_session_id(vendor, args, expected):
    """The real claude refuses both flags together. For another vendor nothing is resumed if no
    session is known.
    """
    context = build_context(vendor, *args)
    resume_state = VendorSessionResumeState(context, None)
    resume_state.persistent = True
    assert (
        resume_state.assign_session_id(context.invocation, context.adapter, "fresh").session_id
        == "fresh"
    ) == expected
