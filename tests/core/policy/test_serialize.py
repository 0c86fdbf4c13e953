"""A policy is the same after it was passed to another process."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sweeps import loop_over_rows

from shim.core.policy.policy import PERMISSION_MODES, PermissionRule, Policy, Workspace
from shim.core.policy.serialize import (
    PolicyContext,
    parse_policy,
    parse_settings,
    serialize_policy,
    serialize_settings,
)
from shim.core.policy.settings import ClaudeSettings
from shim.core.policy.settings_hooks import SettingsHook

# Names may contain bytes that are not text.
TEXTS = st.text(max_size=20) | st.just("\udcff") | st.just("a'b\"c\\\n\x7f\0")
RULES = st.lists(st.builds(PermissionRule, TEXTS, st.none() | TEXTS, TEXTS, TEXTS), max_size=4)
HOOKS = st.lists(
    st.builds(
        SettingsHook,
        TEXTS,
        TEXTS,
        st.none() | st.tuples(TEXTS),
        TEXTS,
        st.floats(1, 1e9),
        st.booleans(),
    ),
    max_size=2,
)


@given(
    RULES,
    RULES,
    RULES,
    HOOKS,
    st.none() | st.lists(TEXTS, max_size=3),
    TEXTS,
    st.sampled_from(PERMISSION_MODES),
)
def test_policy_survives_serialization_and_parsing(deny, ask, allow, hooks, only, folder, mode):
    workspace = Workspace(f"/{folder}", "/home", ("../other", folder))
    original = Policy(
        workspace=workspace, only_tools=only, deny=deny, ask=ask, allow=allow, hooks=hooks
    )
    context = PolicyContext(mode, folder, "/t", folder)
    text = serialize_policy(original, context)
    assert text.isascii() and text.isprintable()
    policy, parsed_context = parse_policy(text, workspace.resolve_links)
    assert (policy.hooks, parsed_context) == (tuple(hooks), context)
    assert (policy.deny, policy.ask, policy.allow) == (tuple(deny), tuple(ask), tuple(allow))
    assert (policy.only_tools, policy.workspace) == (original.only_tools, workspace)


@loop_over_rows("text", ["", "{}", "1", "('default',)", "__import__('os')", "(" * 5000, "\0"])
def test_parsing_an_invalid_policy_or_settings_text_raises_value_error(text):
    for reads in (lambda: parse_policy(text, str), lambda: parse_settings(text)):
        with pytest.raises(ValueError, match=r"."):
            reads()


@given(
    RULES,
    RULES,
    RULES,
    HOOKS,
    st.none() | st.sampled_from(PERMISSION_MODES),
    TEXTS,
    st.lists(TEXTS, max_size=2),
)
def test_settings_survive_serialization_and_parsing(deny, ask, allow, hooks, mode, forbids, names):
    rules = (tuple(deny), tuple(ask), tuple(allow))
    keys = dict.fromkeys(names, "{}")
    settings = ClaudeSettings(*rules, mode, forbids, tuple(names), tuple(hooks), keys)
    assert parse_settings(serialize_settings(settings)) == settings


def test_settings_of_an_older_version_have_unsupported_keys_without_values():
    text = "([[], [], []], [], (None, '', ()), ('sandbox in /f',))"
    assert parse_settings(text) == ClaudeSettings(unsupported_keys={"sandbox in /f": ""})
