"""The denied tools that a vendor with a profile receives at its start."""

import json
import re
import tomllib
from pathlib import Path

import pytest
from policy_builder import build_policy
from profile_builder import build_profile_adapter
from sweeps import loop_over_rows

from shim.adapters import get_adapter
from shim.core.adapter.adapter import LaunchRequest
from shim.core.adapter.enforcement import check_policy_enforcement, list_removed_tools
from shim.core.claude.argv.flags import parse_argv
from shim.core.errors import FrontendError, UnsupportedPermissionModeError
from shim.core.policy.policy import parse_permission_rule
from shim.profiles.load import denials


def build_launch(
    name,
    mode="bypassPermissions",
    *,
    environment=None,
    policy_bypass="",
    persistent=False,
    **rules,
):
    """Return the launch of a turn, and the texts of the files that were written for it."""
    vendor, stored_texts, rules = get_adapter(name), [], build_policy(**rules)
    if persistent:
        vendor = vendor.build_two_way()

    def keep(text, suffix=".txt"):
        stored_texts.append(text)
        return f"/kept{suffix}"

    request = LaunchRequest(
        invocation=parse_argv([]),
        prompt="say hi",
        mode_arguments=vendor.resolve_permission_mode_args(mode),
        permission_mode=mode,
        removed_tools=list_removed_tools(vendor, rules) if rules.has_restrictions else (),
        environment=environment or {},
        policy_bypass=policy_bypass,
        store_text=keep,
        policy=rules,
        persistent=persistent,
    )
    check_policy_enforcement(vendor, rules, request, late_denials=False)
    return vendor.build_launch(request), stored_texts


def gemini_rules(*args, **options):
    _, (text,) = build_launch("gemini", *args, **options)
    rules = tomllib.loads(text)["rule"]
    assert all(rule["decision"] == "deny" and rule["priority"] == 999 for rule in rules)
    return {(rule.get("mcpName", ""), rule["toolName"]) for rule in rules}


def opencode_permission(*args, **options):
    launch, _ = build_launch("opencode", *args, **options)
    return json.loads(launch.enforced_environment["OPENCODE_PERMISSION"])


def test_gemini_denies_a_tool_by_its_vendor_name():
    assert gemini_rules(deny=["Bash"]) == {("", "run_shell_command")}


def test_gemini_in_a_conversation_asks_about_each_shell_command():
    """gemini runs commands that it considers safe if the rule that matches them has no pattern."""
    for mode in ("default", "bypassPermissions"):
        _, (text,) = build_launch("gemini", mode, persistent=True, deny=["Bash(echo:*)"])
        matching_rules = [
            rule
            for rule in tomllib.loads(text)["rule"]
            if rule["toolName"] in ("*", "run_shell_command") and "mcpName" not in rule
        ]
        first_rule = max(matching_rules, key=lambda rule: rule["priority"])
        assert first_rule["decision"] == "ask_user"
        assert re.search(first_rule["argsPattern"], '{"command":"echo out"}')


def test_opencode_loads_the_plugin_that_makes_it_ask_about_each_command():
    launch, _ = build_launch("opencode", persistent=True, environment={"OPENCODE_PURE": "1"})
    config = json.loads(launch.enforced_environment["OPENCODE_CONFIG_CONTENT"])
    (plugin,) = config["plugin"]
    assert Path(plugin.removeprefix("file://")).is_file()
    assert launch.enforced_environment["OPENCODE_PURE"] == "0"


def test_plugins_of_the_user_stay_disabled_outside_a_conversation():
    launch, _ = build_launch("opencode", deny=["Bash"], environment={"OPENCODE_PURE": "1"})
    assert "OPENCODE_PURE" not in launch.enforced_environment


def test_plugins_of_the_user_precede_the_plugin_of_the_shim():
    environment = {"OPENCODE_CONFIG_CONTENT": '{"plugin": ["mine"]}'}
    launch, _ = build_launch("opencode", persistent=True, environment=environment)
    config = json.loads(launch.enforced_environment["OPENCODE_CONFIG_CONTENT"])
    first_plugin, last_plugin = config["plugin"]
    assert first_plugin == "mine" and last_plugin.endswith("/opencode_plugin.js")


def test_url_of_the_opencode_plugin_is_quoted(monkeypatch):
    monkeypatch.setattr(denials, "BUNDLED_FOLDER", '/a b/#"c')
    launch, _ = build_launch("opencode", persistent=True)
    config = json.loads(launch.enforced_environment["OPENCODE_CONFIG_CONTENT"])
    assert config["plugin"] == ["file:///a%20b/%23%22c/opencode_plugin.js"]


def test_ask_rule_removes_the_tool():
    assert gemini_rules(ask=["Write"]) == {("", "write_file")}


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ("mcp__srv", ("srv", "*")),
        ("mcp__srv__*", ("srv", "*")),
        ("mcp__srv__a_tool", ("srv", "a_tool")),
    ],
)
def test_gemini_denies_an_mcp_server_or_a_single_mcp_tool(rule, expected):
    assert gemini_rules(deny=[rule]) == {expected}


@loop_over_rows(
    "rule", ["mcp__*", "mcp__a_server", "mcp__srv__get_*", 'mcp__s"rv', "mcp__" + "s" * 60]
)
def test_mcp_rule_that_gemini_cannot_match_exactly_is_refused(rule):
    with pytest.raises(UnsupportedPermissionModeError, match="cannot enforce"):
        build_launch("gemini", deny=[rule])


def test_tool_selection_denies_all_other_tools():
    names = {tool for _, tool in gemini_rules(only=["Read", "Edit"])}
    assert {"run_shell_command", "write_file", "invoke_agent", "activate_skill"} <= names
    assert names.isdisjoint({"read_file", "replace"})


@pytest.mark.parametrize("mode", ["default", "plan", "acceptEdits"])
def test_permission_mode_denies_tools_that_project_files_could_allow(mode):
    denied = gemini_rules(mode, allow=["Nothing"])
    assert ("*", "*") in denied and ("", "run_shell_command") in denied
    assert (("", "write_file") in denied) is (mode != "acceptEdits")


@pytest.mark.parametrize(
    ("mode", "gemini_mode"), [("default", "default"), ("plan", "plan"), ("acceptEdits", "autoEdit")]
)
def test_bundled_policy_file_contains_the_denials_of_a_mode(mode, gemini_mode):
    launch, stored_texts = build_launch("gemini", mode)
    path = launch.arguments[-1].removeprefix("--admin-policy=")
    denied_tools = set()
    for rule in tomllib.loads(Path(path).read_text())["rule"]:
        assert rule["decision"] == "deny" and rule["priority"] == 999
        names = rule["toolName"] if isinstance(rule["toolName"], list) else [rule["toolName"]]
        denied_tools |= {
            (rule.get("mcpName", ""), name) for name in names if gemini_mode in rule["modes"]
        }
    assert denied_tools == gemini_rules(mode, allow=["Nothing"])
    assert not (stored_texts or launch.temporary_files)


def test_no_denials_are_passed_without_rules():
    for name in ("gemini", "opencode"):
        launch, stored_texts = build_launch(name)
        assert not (launch.enforced_environment or launch.temporary_files or stored_texts)


def test_policy_file_is_temporary_and_passed_as_admin_policy():
    launch, _ = build_launch("gemini", deny=["Bash"])
    assert (
        launch.temporary_files == ("/kept.toml",)
        and launch.arguments[-1] == "--admin-policy=/kept.toml"
    )


def test_opencode_receives_denials_globally_and_for_each_start_agent():
    launch, _ = build_launch("opencode", deny=["Bash"])
    rules = {"bash*": "deny", "task*": "deny"}
    assert json.loads(launch.enforced_environment["OPENCODE_PERMISSION"]) == rules
    agents = json.loads(launch.enforced_environment["OPENCODE_CONFIG_CONTENT"])["agent"]
    assert [agents[name]["permission"] for name in ("build", "plan")] == [rules, rules]
    assert launch.enforced_environment["OPENCODE_DISABLE_PROJECT_CONFIG"] == "1"


def test_write_denial_denies_the_edit_permission_of_opencode():
    assert "edit*" in opencode_permission(deny=["Write"])


def test_allow_rule_extends_accept_edits_mode_but_not_plan_mode():
    assert "bash*" not in opencode_permission("acceptEdits", allow=["Bash"])
    assert "bash*" in opencode_permission("plan", allow=["Bash"])
    assert "task*" in opencode_permission("acceptEdits", allow=["Task"])


def test_denials_follow_the_permissions_of_the_user():
    before = {"OPENCODE_PERMISSION": '{"bash*": "allow", "read": "deny", "*": "allow"}'}
    permission = opencode_permission(deny=["Bash"], environment=before)
    assert (
        permission["read"] == "deny"
        and list(permission)[-2:] == ["bash*", "task*"]
        and permission["bash*"] == "deny"
    )


@pytest.mark.parametrize("value", ["{} // mine", "[]", "{"])
def test_unparsable_opencode_config_variable_is_refused(value):
    with pytest.raises(UnsupportedPermissionModeError, match="OPENCODE_CONFIG_CONTENT is set"):
        build_launch("opencode", deny=["Bash"], environment={"OPENCODE_CONFIG_CONTENT": value})


@pytest.mark.parametrize("name", ["gemini", "opencode"])
def test_launch_is_refused_if_the_vendor_might_not_read_the_denials(name):
    with pytest.raises(
        UnsupportedPermissionModeError, match=r"might not receive .* a launcher starts"
    ):
        build_launch(
            name,
            deny=["Bash"],
            policy_bypass="a program that a launcher starts might not see the shim's file",
        )
    assert build_launch(
        name, policy_bypass="a program that a launcher starts might not see the shim's file"
    )


def test_launch_is_refused_if_the_policy_file_cannot_be_written():
    rules = build_policy(deny=["Bash"])
    request = LaunchRequest(
        parse_argv([]),
        "hi",
        permission_mode="bypassPermissions",
        removed_tools=("Bash",),
        policy=rules,
    )
    with pytest.raises(FrontendError, match="could not be written"):
        get_adapter("gemini").build_launch(request)


@pytest.mark.parametrize("rule", ["Edit(./secret/**)", "Bash(touch:*)"])
@pytest.mark.parametrize("name", ["gemini", "opencode"])
def test_deny_rule_with_a_specifier_is_refused(name, rule):
    with pytest.raises(UnsupportedPermissionModeError, match="cannot enforce"):
        build_launch(name, deny=[rule])


def test_kilo_refuses_deny_rules():
    with pytest.raises(UnsupportedPermissionModeError, match="kilo cannot enforce Bash"):
        build_launch("kilo", deny=["Bash"])


@loop_over_rows(
    ("rule", "is_enforced"),
    [("Bash", True), ("Bash(touch:*)", False), ("B*", False), ("*", False), ("mcp__srv", True)],
)
def test_gemini_accepts_only_rules_for_entire_tools(rule, is_enforced):
    assert get_adapter("gemini").accepts_rule(parse_permission_rule(rule)) is is_enforced


def test_gemini_does_not_accept_an_mcp_rule_with_a_specifier():
    assert not get_adapter("gemini").accepts_rule(parse_permission_rule("mcp__srv__make(x)"))


TOOL_TABLE = '[tools]\nsh = { name = "Bash" }\nlook = { name = "Read" }\n'
DENIALS = {
    "tool": '"{tool}":"deny"',
    "allow": '"{tool}":"allow"',
    "server": '"{server}_*":"deny"',
    "between": ",",
    "text": "{{denials}}",
}


def build_denials(variable='{"permission":{denials}}', **changes):
    """Return a profile whose deny rules are in the JSON variable OWN."""
    values = {key: value for key, value in {**DENIALS, **changes}.items() if value is not None}
    lines = [f"{key} = {json.dumps(value)}" for key, value in values.items()]
    lines.append(f"json = {{ OWN = {json.dumps(variable)} }}")
    return "[launch]\ncommand = ['own']\n[launch.denials]\n" + "\n".join(lines) + "\n" + TOOL_TABLE


def test_user_profile_whose_deny_rules_are_json_is_accepted():
    for changes in ({}, {"asking": '"*":"ask"', "server": None}, {"also": ["lsp"]}):
        assert build_profile_adapter(build_denials(**changes))
    assert build_profile_adapter(build_denials('{"permission":{{denials}}}', text="{denials}"))


@loop_over_rows(
    ("changes", "key", "value"),
    [
        ({"text": "{denials}"}, "text", '"{denials}"'),
        ({"text": "words"}, "text", '"words"'),
        ({"text": None}, "text", "missing"),
        ({"variable": '{"permission":{denials}'}, "json.OWN", "{denials}"),
        ({"variable": "[{denials}]"}, "json.OWN", '"[{denials}]"'),
        ({"tool": "{tool}"}, "tool", '"{tool}"'),
        ({"also": ['a"b']}, "tool", "{tool}"),
        ({"allow": "{tool}"}, "allow", '"{tool}"'),
        ({"server": "{server}"}, "server", '"{server}"'),
        ({"server_tool": "{tool}"}, "server_tool", '"{tool}"'),
        ({"servers": "all"}, "servers", '"all"'),
        ({"asking": "ask"}, "asking", '"ask"'),
        ({"protected": "{files}", "protected_file": "{name}"}, "protected", '"{files}"'),
        ({"between": ";"}, "between", '";"'),
    ],
)
def test_user_profile_whose_deny_rules_are_not_json_is_rejected(changes, key, value):
    with pytest.raises(FrontendError) as refused:
        build_profile_adapter(build_denials(**changes))
    message = str(refused.value)
    assert re.match(rf"own\.toml:\d+: launch\.denials\.{re.escape(key)} is ", message)
    assert value in message
    assert "it must be a text that makes OWN a JSON object (" in message
    assert refused.value.hint.startswith("OWN would be: ")


@pytest.mark.parametrize("key", ["plain", "asking_plain", "json"])
@pytest.mark.parametrize("name", ["A=B", "PATH", "LD_PRELOAD", "SHIM_VENDOR"])
def test_user_profile_whose_deny_rules_set_a_reserved_variable_is_rejected(key, name):
    profile = f"""[launch]
command = ["own"]
[launch.denials]
tool = "x"
{key} = {{ "{name}" = "{{}}" }}
"""
    with pytest.raises(FrontendError, match="it must be a variable that only this program uses"):
        build_profile_adapter(profile)


def test_user_profile_without_the_text_that_denies_a_tool_is_rejected():
    with pytest.raises(FrontendError, match=r"launch\.denials\.tool is .* must be a string"):
        build_profile_adapter(build_denials(tool=None))


def test_error_of_wrong_deny_rules_names_the_line_and_shows_the_text():
    with pytest.raises(FrontendError) as refused:
        build_profile_adapter(build_denials(text="{denials}"))
    assert str(refused.value) == (
        'own.toml:10: launch.denials.text is "{denials}"; it must be a text that makes OWN a JSON '
        "object (unexpected character, expected ',' or '}': line 1 column 19 (char 18))"
    )
    assert refused.value.hint == 'OWN would be: {"permission":"sh":"deny"}'
