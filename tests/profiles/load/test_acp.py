"""`[acp]` and `protocol = "acp"`: the description of an agent of the Agent Client Protocol in a
profile.
"""

import tomllib

import pytest
from acp_agent import ANSWERS, DONE, AcpConversation, build_text_update, build_update
from sweeps import loop_over_rows

from shim.adapters import get_adapter
from shim.core.adapter.adapter import LaunchRequest
from shim.core.adapter.enforcement import check_policy_enforcement
from shim.core.claude.argv.flags import parse_argv
from shim.core.errors import FrontendError, UnsupportedPermissionModeError
from shim.core.policy.policy import Policy, Workspace, parse_permission_rule
from shim.profiles.check.config_node import ConfigSource
from shim.profiles.load.adapter import build_adapter

AGENT = 'schema = 1\nid = "own"\nprotocol = "acp"\n[launch]\ncommand = ["own", "--acp"]\n'
BOTH = 'schema = 1\nid = "own"\n[launch]\ncommand = ["own"]\n[[event]]\nmatch = { type = "x" }\nemit = "ignore"\n'
ASKS = '[acp]\nasks = ["Bash", "Edit", "Write"]\n'


def build_profile_from_text(profile):
    return build_adapter("own", tomllib.loads(profile), ConfigSource("own.toml", lambda: profile))


def request(*denied):
    policy = Policy(workspace=Workspace("/w"), deny=tuple(map(parse_permission_rule, denied)))
    return LaunchRequest(parse_argv(()), "", persistent=True, policy=policy)


def test_acp_profile_without_event_rules_answers_a_prompt():
    vendor = build_profile_from_text(AGENT)
    assert (vendor.cli.has_two_way, vendor.cli.always_keeps_child) == (False, True)
    assert vendor.build_launch(request()).arguments == ("--acp",)
    talk = (
        AcpConversation(made=vendor)
        .feed_messages(*ANSWERS, build_text_update("Hello."), DONE)
        .close_stream()
    )
    assert b'"result":"Hello."' in talk.lines


def test_acp_call_without_a_tool_table_is_named_by_its_kind():
    call = {
        "toolCallId": "c1",
        "title": "`ls`",
        "kind": "execute",
        "status": "pending",
        "rawInput": {"command": "ls"},
    }
    talk = AcpConversation(made=build_profile_from_text(AGENT)).feed_messages(
        *ANSWERS, build_update("tool_call", **call)
    )
    assert b'"name":"Bash","input":{"command":"ls"}' in talk.lines
    assert "Bash" in talk.vendor.listed_tools


def test_acp_agent_without_declared_prompts_is_unattended():
    vendor = build_profile_from_text(AGENT)
    assert vendor.unattended
    assert list(vendor.modes) == ["default", "bypassPermissions"]
    with pytest.raises(UnsupportedPermissionModeError, match="cannot enforce Bash"):
        check_policy_enforcement(
            vendor, request("Bash(rm:*)").policy, request("Bash(rm:*)"), late_denials=False
        )


def test_rules_are_enforceable_only_for_tools_the_agent_prompts_for():
    vendor = build_profile_from_text(AGENT + ASKS)
    assert not vendor.unattended
    assert list(vendor.modes) == ["default", "acceptEdits", "dontAsk", "bypassPermissions"]
    check_policy_enforcement(
        vendor, request("Bash(rm:*)").policy, request("Bash(rm:*)"), late_denials=False
    )
    with pytest.raises(UnsupportedPermissionModeError, match="cannot enforce Read"):
        check_policy_enforcement(
            vendor, request("Read(./x)").policy, request("Read(./x)"), late_denials=False
        )


@loop_over_rows(
    ("profile", "expected"),
    [
        (AGENT.replace('"acp"', '"mcp"'), 'protocol is "mcp"; it must be one of acp'),
        (
            AGENT + '[stream]\ntext = "delta"\n',
            "stream is there; it must be left out of a profile with `protocol",
        ),
        (AGENT + '[acp]\nask = ["Bash"]\n', "unknown key `acp.ask`"),
        (
            AGENT + '[acp]\ntool_name = "colour"\n',
            'acp.tool_name is "colour"; it must be one of title, id, kind',
        ),
        (AGENT + "[acp]\nasks = 7\n", "acp.asks is 7"),
        (BOTH + '[acp]\ncommands = ["own", "--acp"]\n', "unknown key `acp.commands`"),
        (BOTH + '[acp]\nnotices = "("\n', 'acp.notices is "("'),
        (
            BOTH + '[acp]\npath = "No .*"\n',
            'acp.path is "No .*"; it must be a regular expression with a group',
        ),
        (BOTH + '[acp]\nsigns = { x = { title = "x" } }\n', "acp.signs.x.kind"),
    ],
)
def test_invalid_acp_profile_raises_an_error_on_load(profile, expected):
    with pytest.raises(FrontendError) as error:
        build_profile_from_text(profile)
    assert expected in str(error.value)


@pytest.mark.parametrize("way", ["one", "two"])
def test_kimi_is_refused_with_a_web_fetch_deny_rule(way):
    kimi = get_adapter("kimi")
    vendor = kimi if way == "one" else kimi.build_two_way()
    with pytest.raises(UnsupportedPermissionModeError, match="cannot enforce WebFetch"):
        check_policy_enforcement(
            vendor, request("WebFetch").policy, request("WebFetch"), late_denials=False
        )


def test_kimi_lists_all_tools_of_its_two_way_mode():
    kimi = get_adapter("kimi").build_two_way()
    assert {tool.name for tool in kimi.tools.values()} <= set(kimi.listed_tools)
