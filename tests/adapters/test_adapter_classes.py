"""Methods of adapters that several kinds of adapter share."""

from types import SimpleNamespace

import pytest

from shim.adapters import get_adapter
from shim.core.adapter.adapter import Adapter, LaunchRequest, VendorCliInfo, VendorVariant
from shim.core.claude.argv.flags import Invocation
from shim.core.policy.policy import parse_permission_rule
from shim.recording.replay_adapter import build_replay_adapter

REQUEST = LaunchRequest(Invocation(), "", persistent=True)
RULE = parse_permission_rule("Read(secret)")


def test_two_way_codex_prompts_for_commands_and_changes():
    adapter = get_adapter("codex").build_two_way()
    assert {"Bash", "Edit", "Write"} <= adapter.list_prompted_tools(REQUEST)
    assert not get_adapter("codex").list_prompted_tools(REQUEST)


@pytest.mark.parametrize(("name", "is_enforced"), [("copilot", True), ("gemini", False)])
def test_acp_agent_enforces_every_rule_only_with_the_shim_hook(name, is_enforced):
    assert get_adapter(name).build_two_way().can_enforce_rule(RULE, REQUEST) is is_enforced


def test_two_way_codex_enforces_rules_by_the_hook_of_its_profile():
    assert get_adapter("codex").build_two_way().can_enforce_rule(RULE, REQUEST)


def test_last_variant_is_used_if_the_help_text_fits_none():
    variants = {"old": VendorVariant(("run",), ()), "new": VendorVariant(("--json",), ())}
    adapter = Adapter().copy_with(cli=VendorCliInfo(variants=variants))
    assert [adapter.detect_variant(text) for text in ("run", "--json", "")] == ["old", "new", "new"]


@pytest.mark.parametrize("persistent", [True, False])
@pytest.mark.parametrize("name", ["codex", "pi", "gemini"])
def test_replay_of_a_persistent_child_translates_like_the_two_way_adapter(name, persistent):
    source = SimpleNamespace(child_id="")
    replay = build_replay_adapter(name, source, persistent=persistent, without_passthrough=False)
    recorded = get_adapter(name)
    if persistent:
        recorded = recorded.build_two_way()
    assert replay.translator_class.__name__ == recorded.translator_class.__name__
    assert bool(replay.child_input_ref) is persistent
    assert (replay.display_name, replay.cli.has_two_way) == (name, False)


def test_copy_keeps_the_class_and_the_other_attributes():
    pi = get_adapter("pi")
    copy = pi.copy_with(name="other")
    assert (type(copy), copy.name, copy.modes, pi.name) == (type(pi), "other", pi.modes, "pi")
