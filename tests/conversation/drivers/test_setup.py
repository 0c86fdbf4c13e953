"""What a vendor is started with."""

import pytest

from shim import vendors
from shim.conversation.drivers.setup import Setup
from shim.core.claude.argv.parse import parse
from shim.core.policy.judge import Judge
from shim.state.config import Settings


def setup(*words, **settings):
    """The demo vendor, as flags and settings have it."""
    return Setup(vendors.find("demo"), parse(words), Settings(**settings), {}, "/repo", lambda *_, **__: None)


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
    assert one.removed(one.policy()) == removed


def test_what_a_frontend_allows_stays_denied_where_the_settings_deny_it():
    judge = Judge(setup("--allowedTools", "Bash,Read", deny=("Bash",)).policy())
    assert [judge.verdict(name, {}, "default").decided for name in ("Bash", "Read")] == ["deny", "allow"]
