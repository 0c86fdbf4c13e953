"""What a vendor is started with."""

import pytest

from shim import adapters
from shim.conversation.drivers.setup import ConversationContext, ResumeState
from shim.core.claude.argv.parse import parse_argv
from shim.core.policy.judge import PolicyEvaluator
from shim.state.config import Settings


def setup(*words, **settings):
    """The demo vendor, as flags and settings have it."""
    return build_context("demo", *words, **settings)


def build_context(vendor, *words, **settings):
    return ConversationContext(
        adapters.get_adapter(vendor),
        parse_argv(words),
        Settings(**settings),
        {},
        "/repo",
        lambda *_, **__: None,
    )


@pytest.mark.parametrize(
    ("words", "deny", "removed"),
    [
        (("--disallowedTools", "Read,Bash(rm *)"), (), ("Read",)),
        ((), ("Bash",), ("Bash",)),
        (("--disallowedTools", "Read"), ("Bash",), ("Bash", "Read")),
    ],
)
def test_what_a_flag_or_the_settings_deny_is_removed(words, deny, removed):
    one = setup(*words, deny=deny)
    assert one.list_removed_tools(one.build_policy()) == removed


def test_what_a_frontend_allows_stays_denied_where_the_settings_deny_it():
    judge = PolicyEvaluator(setup("--allowedTools", "Bash,Read", deny=("Bash",)).build_policy())
    assert [judge.evaluate(name, {}, "default").outcome for name in ("Bash", "Read")] == [
        "deny",
        "allow",
    ]


@pytest.mark.parametrize(("vendor", "words", "named"), [
    ("claude", (), True), ("claude", ("--continue",), False), ("qwen", ("--continue",), True),
])  # fmt: skip
def test_a_real_claude_that_goes_on_by_itself_is_given_no_session_of_ours(vendor, words, named):
    """It refuses both flags together; for another vendor nothing goes on where no session is known."""
    one = build_context(vendor, *words)
    standing = ResumeState(one, None)
    standing.persistent = True
    assert (
        standing.assign_session_id(one.invocation, one.adapter, "fresh").session.session_id
        == "fresh"
    ) == named
