"""The input of copilot's hook for a call, in Claude's terms, and copilot's arguments."""

import json

import pytest
from sweeps import loop_over_rows

from shim.adapters import get_adapter
from shim.adapters.copilot_hook import format_hook_output, list_hook_calls
from shim.adapters.copilot_rules import HOOK_VARIABLE, PLUGIN_FOLDER, SERVERS_FLAG
from shim.conversation.tool_hook import is_prompted_tool
from shim.core.adapter.adapter import LaunchRequest, McpServers
from shim.core.claude.argv.flags import parse_argv
from shim.core.errors import UnsupportedPermissionModeError
from shim.core.policy.policy import BYPASS_MODE, Policy, Workspace, parse_permission_rules

HERE = Workspace("/work")


def parse_calls(name, tool_input, folder="/work"):
    return list_hook_calls(
        {"sessionId": "s", "cwd": folder, "toolName": name, "toolArgs": tool_input}, HERE
    )


def launch(mode, **more):
    policy = Policy(
        workspace=HERE,
        **{kind: parse_permission_rules(texts) for kind, texts in more.pop("rules", {}).items()},
    )
    vendor = get_adapter("copilot")
    return vendor.build_launch(
        LaunchRequest(
            parse_argv(["-p", "hi"]),
            "hi",
            mode_arguments=vendor.resolve_permission_mode_args(mode),
            permission_mode=mode,
            policy=policy,
            hook_argv=("judge",),
            **more,
        )
    )


@loop_over_rows(
    ("name", "tool_input", "expected"),
    [
        ("bash", {"command": "ls", "description": "d"}, ("Bash", {"command": "ls"})),
        ("view", {"path": "a.txt"}, ("Read", {"file_path": "/work/a.txt"})),
        (
            "create",
            {"path": "/b", "file_text": "x"},
            ("Write", {"file_path": "/b", "content": "x"}),
        ),
        (
            "edit",
            {"path": "/b", "old_str": "x", "new_str": "y"},
            ("Edit", {"file_path": "/b", "old_string": "x", "new_string": "y"}),
        ),
        ("grep", {"pattern": "x"}, ("Grep", {"pattern": "x", "path": "/work"})),
        ("rg", {"pattern": "x", "paths": ["sub"]}, ("Grep", {"pattern": "x", "path": "/work/sub"})),
        ("glob", {"pattern": "*", "paths": "/b"}, ("Glob", {"pattern": "*", "path": "/b"})),
        ("task", {"prompt": "x"}, ("Task", {"prompt": "x"})),
        ("web_fetch", {"url": "https://a.b"}, ("WebFetch", {"url": "https://a.b"})),
        ("something_new", {"a": 1}, ("something_new", {"a": 1})),
        (
            "apply_patch",
            "*** Begin Patch\n*** Delete File: a\n*** End Patch",
            ("Delete", {"file_path": "/work/a"}),
        ),
        ("srv-tool", {"a": 1}, ("mcp__srv__tool", {"a": 1})),
    ],
)
def test_tool_call_is_converted_to_claude_name_and_input(name, tool_input, expected):
    assert parse_calls(name, tool_input) == [expected]


def test_command_outside_the_workspace_includes_its_directory():
    assert parse_calls("bash", {"command": "ls"}, "/other") == [
        ("Bash", {"command": "ls", "directory": "/other"})
    ]


def test_search_with_two_paths_becomes_two_calls():
    assert [
        tool_input["path"]
        for _, tool_input in parse_calls("grep", {"pattern": "x", "paths": ["a", "/b"]})
    ] == [
        "/work/a",
        "/b",
    ]


def test_ambiguous_mcp_tool_name_yields_every_server_split():
    assert [name for name, _ in parse_calls("my-srv-make", {})] == [
        "mcp__my__srv-make",
        "mcp__my-srv__make",
    ]


@loop_over_rows(
    ("name", "tool_input", "folder"),
    [
        ("bash", {}, "/work"),
        ("bash", "ls", "/work"),
        ("view", {"path": 1}, "/work"),
        ("grep", {"pattern": "x", "paths": [1]}, "/work"),
        ("apply_patch", "nothing", "/work"),
        ("bash", {"command": "ls"}, "work"),
        (None, {}, "/work"),
    ],
)
def test_malformed_hook_event_raises_value_error(name, tool_input, folder):
    with pytest.raises(ValueError, match=r"the (event|call|patch)"):
        parse_calls(name, tool_input, folder)


def test_answer_is_formatted_as_a_copilot_permission_decision():
    assert json.loads(format_hook_output("", {})) == {"permissionDecision": "allow"}
    assert json.loads(format_hook_output("no", {})) == {
        "permissionDecision": "deny",
        "permissionDecisionReason": "no",
    }


# -- the launch ------------------------------------------------------------------------------------


@loop_over_rows(
    ("mode", "rules", "hooked"),
    [("default", {}, True), ("plan", {}, True), ("acceptEdits", {}, True), (BYPASS_MODE, {}, False)]
    + [(BYPASS_MODE, {kind: ["Bash(rm:*)"]}, True) for kind in ("deny", "ask")],
)
def test_hook_is_installed_unless_bypass_mode_has_no_deny_or_ask_rules(mode, rules, hooked):
    started = launch(mode, rules=rules)
    assert (
        ("--plugin-dir" in started.arguments)
        is (HOOK_VARIABLE in started.enforced_environment)
        is hooked
    )
    if hooked:
        assert started.arguments[started.arguments.index("--plugin-dir") + 1] == PLUGIN_FOLDER
    assert started.environment["COPILOT_ALLOW_ALL"] == "false"


def test_plugin_hook_evaluates_the_required_hook_variable():
    with open(f"{PLUGIN_FOLDER}/plugin.json", "rb") as file:
        hooks = json.load(file)["hooks"]
    with open(f"{PLUGIN_FOLDER}/{hooks}", "rb") as file:
        (hook,) = json.load(file)["hooks"]["preToolUse"]
    assert hook["bash"] == f'eval "${{{HOOK_VARIABLE}:?}}"'


def test_launch_is_refused_if_copilot_might_not_load_the_hook():
    with pytest.raises(UnsupportedPermissionModeError, match="might not start the hook"):
        launch(
            "default",
            policy_bypass="a program that a launcher starts might not see the shim's file",
        )
    assert launch(
        BYPASS_MODE, policy_bypass="a program that a launcher starts might not see the shim's file"
    ).arguments


# -- the MCP servers of a conversation -------------------------------------------------------------


def launch_with_servers(servers, **more):
    """Return the arguments for a conversation's servers, and the file with the private servers."""
    files = []

    def store_text(text, suffix):
        files.append(json.loads(text))
        return "/state/servers.json"

    arguments = launch(
        "default", persistent=True, mcp_servers=servers, store_text=store_text, **more
    ).arguments
    return [
        argument for argument in arguments if argument.startswith((SERVERS_FLAG, "--allow-tool"))
    ], files


def test_prompts_are_turned_off_for_the_relays_only():
    """The relay decides about its calls. Nothing decides about the calls of the other servers."""
    relay = {"command": "/relay", "env": {"TICKET": "x"}}
    other = {"command": "/other", "env": {"SECRET": "x"}}
    arguments, files = launch_with_servers(
        McpServers(
            {"public": {"command": "/p"}, "web": {"url": "http://w"}},
            {"other": other, "my calc": relay},
            ("my calc",),
        )
    )
    assert arguments == [
        SERVERS_FLAG + '={"mcpServers":{"public":{"command":"/p"}}}',
        f"{SERVERS_FLAG}=@/state/servers.json",
        "--allow-tool=my_calc",
    ]
    assert files == [{"mcpServers": {"other": other, "my_calc": relay}}]


@loop_over_rows("name", ["shell", "write", "url", "read", "memory", "custom-tool", "githubiq"])
def test_relay_with_a_name_of_copilot_keeps_the_prompts(name):
    """`--allow-tool=shell` would allow every command."""
    relays = McpServers({}, {name: {"command": "/relay"}}, (name,))
    assert launch_with_servers(relays)[0] == [f"{SERVERS_FLAG}=@/state/servers.json"]


def test_relay_with_the_name_of_another_server_keeps_the_prompts():
    servers = McpServers(
        {"my_calc": {"url": "http://w"}}, {"my calc": {"command": "/relay"}}, ("my calc",)
    )
    assert launch_with_servers(servers)[0] == [f"{SERVERS_FLAG}=@/state/servers.json"]


def test_relays_without_a_file_are_not_passed():
    servers = McpServers({}, {"calc": {"command": "/relay"}}, ("calc",))
    started = launch("default", persistent=True, mcp_servers=servers)
    assert not [text for text in started.arguments if "calc" in text]


@loop_over_rows(
    ("entries", "name", "is_prompted"),
    [
        (("Bash",), "Bash", True),
        (("Bash",), "Task", False),
        (("mcp__calc",), "mcp__calc__add", True),
        (("mcp__my_calc",), "mcp__my.calc__add", True),
        (("mcp__calc",), "mcp__calculator__add", False),
        (("mcp__claudeagents",), "mcp__claudeagents__Task", True),
        (("mcp__claudeagents",), "Task", False),
    ],
)
def test_hook_leaves_the_calls_of_a_relay_to_the_shim(entries, name, is_prompted):
    assert is_prompted_tool(name, entries) is is_prompted
