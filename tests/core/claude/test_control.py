"""The frontend's side without a process: lines go in; responses and actions come out (contract
sections 3 and 6).
"""

import itertools
import json

import pytest
from policy_builder import build_policy
from sweeps import loop_over_rows
from turn_stage import build_session_state

from shim.core.claude.argv.models import OfferedModel
from shim.core.claude.control.actions import (
    InterruptRequested,
    PermissionDecided,
    SettingChanged,
    TitleChanged,
)
from shim.core.claude.control.handlers import REQUEST_HANDLERS
from shim.core.claude.control.session import ControlSession
from shim.core.claude.control.session_reports import describe_models
from shim.core.claude.control.state_handlers import STATE_HANDLERS
from shim.core.claude.ignored_options import IGNORED_INITIALIZE_FIELDS
from shim.core.claude.mcp_reports import McpServerReport
from shim.core.claude.messages import parse_user_message
from shim.core.claude.permissions import (
    MAX_OPEN_PROMPTS,
    PROMPT_TIMEOUT_TEXT,
    STREAM_CLOSED_TEXT,
    PermissionDecision,
    PermissionRequest,
    PermissionRuleChange,
)
from shim.core.claude.session_state import VendorCapabilities
from shim.core.errors import FrontendError
from shim.core.policy.policy import parse_permission_rules
from shim.core.policy.serialize import parse_settings
from shim.core.policy.settings import ClaudeSettings, SettingsSource
from shim.core.reading.values import escape_control_chars

BASH_REQUEST = PermissionRequest(
    "q1", "call_1", "Bash", {"command": "ls"}, "shell", {"command": "ls"}
)


def control(**overrides):
    numbers = itertools.count(1)
    state_fields = {
        "display_name": "pi",
        "session_id": "S",
        "mode": "default",
        "answers_prompts": True,
    } | overrides
    return ControlSession(
        build_session_state(**state_fields),
        lambda: f"uuid-{next(numbers)}",
        lambda: "2026-11-20T10:00:00.000Z",
    )


def ask(session, subtype, **more):
    """Return the response to a request, and the session's actions."""
    line = {"type": "control_request", "request_id": "r", "request": {"subtype": subtype, **more}}
    wishes = session.receive_line(json.dumps(line).encode())
    lines = [json.loads(line) for line in session.take_output().splitlines()]
    return lines, wishes


def body(session, subtype, **more):
    (line, *_), _ = ask(session, subtype, **more)
    assert line["type"] == "control_response" and line["response"]["request_id"] == "r"
    return line["response"]


def give(session, request, **answer):
    response = {"subtype": "success", "request_id": request, "response": answer}
    return session.receive_line(
        json.dumps({"type": "control_response", "response": response}).encode()
    )


# Subtype → the measured body (contract 6.1). None is a success without a body.
MEASURED = {
    "set_max_thinking_tokens": None,
    "mcp_status": {"mcpServers": []},
    "mcp_set_servers": {"added": [], "removed": [], "errors": {}},
    "apply_flag_settings": None,
    "stop_task": {},
    "background_tasks": {},
    "cancel_async_message": {"cancelled": False},
    "generate_session_title": {"title": None},
    "reload_skills": {"skills": []},
}


@loop_over_rows(("subtype", "expected"), MEASURED.items())
def test_request_returns_the_measured_response(subtype, expected):
    """C8, C8b"""
    response = body(control(), subtype)
    assert response["subtype"] == "success"
    assert response.get("response") == expected
    assert ("response" in response) == (expected is not None)


def test_permission_rules_response_contains_the_working_directory():
    """C8"""
    state = body(control(cwd="/repo"), "list_permission_rules")["response"]["state"]
    assert state == {
        "rules": [],
        "workspaceDirectories": [],
        "originalCwd": "/repo",
        "managedOnly": False,
    }


@loop_over_rows("subtype", sorted((*REQUEST_HANDLERS, *STATE_HANDLERS)))
def test_every_supported_request_gets_a_single_response(subtype):
    """C5, C8"""
    lines, _ = ask(control(), subtype)
    assert lines[0]["type"] == "control_response"
    assert sum(line["type"] == "control_response" for line in lines) == 1


@pytest.mark.parametrize("subtype", ["mcp_reconnect", "mcp_toggle", "mcp_read_resource"])
def test_server_name_that_is_not_a_text_is_refused(subtype):
    (line,), _ = ask(control(), subtype, serverName=["a"])
    assert line["response"]["error"] == "Server not found: ['a']"


def test_dry_run_of_a_rewind_reports_that_files_cannot_be_restored():
    """Measured with claude 2.1.332 without file checkpoints."""
    (line,), _ = ask(control(), "rewind_files", user_message_id="x", dry_run=True)
    assert line["response"]["response"] == {
        "canRewind": False,
        "error": "File rewinding is not enabled.",
    }


@loop_over_rows(
    ("subtype", "request_body", "error"),
    [
        ("rewind_files", {"user_message_id": "x"}, "File rewinding is not enabled."),
        ("mcp_reconnect", {"serverName": "x"}, "Server not found: x"),
        ("mcp_toggle", {"serverName": "x", "enabled": False}, "Server not found: x"),
        ("no_such", {}, "Unsupported control request subtype: no_such"),
        (
            "set_permission_mode",
            {"mode": "nonsense"},
            "Cannot set permission mode: must be one of acceptEdits, auto, bypassPermissions, default, dontAsk, plan",
        ),
        (
            "set_permission_mode",
            {"mode": "bypassPermissions"},
            "Cannot set permission mode to bypassPermissions because the session was not launched with "
            "--dangerously-skip-permissions",
        ),
    ],
)
def test_impossible_request_returns_claude_error_text(subtype, request_body, error):
    """C5, C7, C8"""
    response = body(control(), subtype, **request_body)
    assert (response["subtype"], response["error"]) == ("error", error)


def test_response_repeats_the_request_id():
    """C4"""
    session = control()
    session.receive_line(
        b'{"type":"control_request","request_id":17,"request":{"subtype":"mcp_status"}}'
    )
    session.receive_line(b'{"type":"control_request","request":{"subtype":"mcp_status"}}')
    first, second = [json.loads(line) for line in session.take_output().splitlines()]
    assert first["response"]["request_id"] == 17
    assert second["response"]["subtype"] == "success"


def test_initialize_returns_every_key_that_clients_read():
    """C3"""
    answer = body(control(model="m-1"), "initialize")["response"]
    assert answer["commands"] == [] and answer["agents"] == [] and answer["account"]
    assert [model["value"] for model in answer["models"]] == ["default", "m-1"]
    assert all(
        {"value", "displayName", "description"} <= model.keys() for model in answer["models"]
    )
    assert answer["output_style"] in answer["available_output_styles"]
    assert "mcp_servers_applied" not in answer
    applied = body(control(), "initialize", mcpServers={"calc": {}})["response"][
        "mcp_servers_applied"
    ]
    assert applied is False


def test_initialize_sets_system_prompts():
    session = control()
    ask(session, "initialize", systemPrompt=["Be", "brief."], appendSystemPrompt="And kind.")
    assert (session.session_state.system_prompt, session.session_state.append_system_prompt) == (
        "Be\n\nbrief.",
        "And kind.",
    )
    ask(session, "initialize", systemPrompt=[""])
    assert session.session_state.system_prompt == "Be\n\nbrief."


def test_model_name_is_validated():
    def reject_model(name):
        raise ValueError(f"{name} will not do")

    session = control(validate_model=reject_model)
    assert (
        body(session, "set_model", model="--evil")["error"]
        == "Cannot set model: --evil will not do"
    )
    assert session.session_state.model is None


def test_null_model_restores_the_initial_model():
    """C7"""
    session = control(model="m-1")
    lines, wishes = ask(session, "set_model", model="m-2")
    assert (lines[0]["response"]["response"], wishes) == (
        {"model": "m-2"},
        [SettingChanged("model", "m-2")],
    )
    lines, wishes = ask(session, "set_model", model=None)
    assert (lines[0]["response"]["response"], wishes) == (
        {"model": "m-1"},
        [SettingChanged("model", "m-1")],
    )


def test_claude_model_name_is_mapped_in_the_response():
    """C7"""
    session = control(
        model="m-1",
        map_model={"m-1": "m-1", "sonnet": "big"}.get,
        list_models=lambda: (OfferedModel("sonnet"),),
    )
    lines, wishes = ask(session, "set_model", model="sonnet")
    assert (lines[0]["response"]["response"], wishes) == (
        {"model": "big"},
        [SettingChanged("model", "big")],
    )
    lines, wishes = ask(session, "set_model", model="opus")
    assert (lines[0]["response"]["response"], wishes) == (
        {"model": "default"},
        [SettingChanged("model", None)],
    )


@pytest.mark.parametrize("name", ["default", "pi:"])
def test_default_model_is_the_vendor_default(name):
    session = control(
        model="m-1",
        map_model=lambda model: None if model == "default" else model,
        validate_model=lambda model: None,
    )
    session.session_state.reported_model = "its-own"
    lines, wishes = ask(session, "set_model", model=name)
    assert (lines[0]["response"]["response"], wishes) == (
        {"model": "its-own"},
        [SettingChanged("model", None)],
    )


@pytest.mark.parametrize("subtype", ["initialize", "list_models"])
def test_models_response_lists_the_selectable_models(subtype):
    session = control(
        model="haiku",
        map_model={"sonnet": "big", "fast": "quick"}.get,
        list_models=lambda: (OfferedModel("sonnet"), OfferedModel("fast")),
    )
    models = body(session, subtype)["response"]["models"]
    assert [(model["value"], model["description"].split()[0]) for model in models] == [
        ("default", "The"),
        ("sonnet", "big"),
        ("fast", "quick"),
    ]


def test_requested_model_is_stored_per_vendor():
    session = control(model="sonnet")
    session.session_state.switch_vendor(VendorCapabilities("qwen"))
    assert (session.session_state.requested_model, session.session_state.initial_model) == (
        "sonnet",
        "sonnet",
    )
    ask(session, "set_model", model="qwen3")
    session.session_state.switch_vendor(VendorCapabilities("codex"))
    assert (session.session_state.requested_model, session.session_state.initial_model) == (
        None,
        "sonnet",
    )
    session.session_state.switch_vendor(VendorCapabilities("qwen"))
    assert session.session_state.requested_model == "qwen3"


@pytest.mark.parametrize(
    ("never_asks", "reason"),
    [(False, ""), (True, " only, because it runs some tools without asking")],
)
def test_unsupported_permission_mode_is_refused(never_asks, reason):
    session = control(modes=("default", "plan"), never_asks=never_asks)
    error = body(session, "set_permission_mode", mode="acceptEdits")["error"]
    assert error.endswith(f"pi supports default, plan{reason}")
    assert session.session_state.mode == "default"


def test_permission_mode_change_sends_a_response_and_a_status():
    """C7"""
    lines, wishes = ask(control(), "set_permission_mode", mode="plan")
    assert lines[0]["response"]["response"] == {"mode": "plan"}
    assert (lines[1]["subtype"], lines[1]["permissionMode"], lines[1]["session_id"]) == (
        "status",
        "plan",
        "S",
    )
    assert wishes == [SettingChanged("mode", "plan")]


def test_bypass_mode_is_accepted_if_the_session_allows_bypass():
    assert (
        body(control(allows_bypass=True), "set_permission_mode", mode="bypassPermissions")[
            "subtype"
        ]
        == "success"
    )


def test_interrupt_stops_only_a_running_turn():
    """C6"""
    session = control()
    assert ask(session, "interrupt")[1] == []
    session.start_turn("hi")
    lines, wishes = ask(session, "interrupt")
    assert wishes == [InterruptRequested()]
    assert lines[-1]["response"]["response"] == {"still_queued": []}


def test_interrupt_can_drop_queued_messages():
    """The capability `interrupt_cancel_queued_v1` in `init`."""
    session = control()
    session.start_turn("hi")
    for uuid in ("u1", "u2"):
        message = {"type": "user", "uuid": uuid, "message": {"role": "user", "content": "x"}}
        session.receive_line(json.dumps(message).encode())
    response = body(session, "interrupt")["response"]
    assert (len(response["still_queued"]), len(session.queued_messages)) == (2, 2)
    response = body(session, "interrupt", cancel_queued=True)["response"]
    assert (response["still_queued"], len(response["cancelled"])) == ([], 2)
    assert not session.queued_messages


def test_second_initialize_lists_the_open_permission_prompts():
    session = control()
    assert body(session, "initialize")["pending_permission_requests"] == []
    session.start_turn("hi")
    session.decide_permission(BASH_REQUEST)
    (prompt,) = [json.loads(line) for line in session.take_output().splitlines()]
    response = body(session, "initialize")
    assert response["pending_permission_requests"] == [prompt]
    assert response["pending_user_dialog_requests"] == []
    assert response["response"]["session_state"] == "requires_action"
    give(session, prompt["request_id"], behavior="allow")
    session.take_output()
    response = body(session, "initialize")
    assert response["pending_permission_requests"] == []
    assert response["response"]["session_state"] == "running"


def test_initialize_reports_what_became_of_its_parts():
    response = body(control(), "initialize")["response"]
    assert not response.keys() & {"hooks_applied", "plugins_applied", "sdk_mcp_manifests_parked"}
    response = body(
        control(),
        "initialize",
        hooks={"Stop": [{"hookCallbackIds": ["h"]}]},
        plugins=[{"type": "local", "path": "/x"}],
        sdkMcpServers=["a"],
        sdkMcpServerManifests={"a": {}, "other": {}},
    )["response"]
    assert (response["hooks_applied"], response["plugins_applied"]) == (True, False)
    assert response["sdk_mcp_manifests_parked"] == {"a": "not_honoured"}


SOURCES = [  # the highest precedence first
    SettingsSource("--settings", {"model": "m-2", "env": {"A": "flag"}}),
    SettingsSource(
        "/repo/.claude/settings.json",
        {"permissions": {"deny": ["Read(x)"]}, "env": {"A": "project", "B": "b"}},
        "/repo",
        can_allow=False,
    ),
    SettingsSource(
        "/home/.claude/settings.json", {"permissions": {"ask": ["Bash(rm:*)"]}}, "/home"
    ),
]


def test_settings_response_has_each_source_and_the_merged_values():
    session = control(load_setting_sources=lambda: SOURCES)
    response = body(session, "get_settings")["response"]
    assert [source["source"] for source in response["sources"]] == [
        "userSettings",
        "projectSettings",
        "flagSettings",
    ]
    assert response["effective"] == {
        "permissions": {"ask": ["Bash(rm:*)"], "deny": ["Read(x)"]},
        "env": {"A": "flag", "B": "b"},
        "model": "m-2",
    }
    body(session, "apply_flag_settings", settings={"effortLevel": "low", "model": "m-3"})
    response = body(session, "get_settings")["response"]
    assert response["sources"][-1]["settings"]["effortLevel"] == "low"
    assert response["applied"] == {"model": "m-3", "effort": "low"}


def test_settings_that_cannot_be_read_are_left_out():
    def fail():
        raise FrontendError("unreadable")

    response = body(control(load_setting_sources=fail), "get_settings")["response"]
    assert (response["effective"], response["sources"]) == ({}, [])


def test_model_in_flag_settings_is_applied():
    _, actions = ask(control(model="m-1"), "apply_flag_settings", settings={"model": "m-2"})
    assert actions == [SettingChanged("model", "m-2")]
    assert ask(control(model="m-1"), "apply_flag_settings", settings={"env": {}})[1] == []


def test_permission_rules_have_their_sources():
    policy = build_policy(deny=["Read(x)"])
    policy.ask = parse_permission_rules(["Bash(rm:*)"], source="/home/.claude/settings.json")
    session = control(load_setting_sources=lambda: SOURCES, policy=policy)
    rules = body(session, "list_permission_rules")["response"]["state"]["rules"]
    assert {
        (rule["behavior"], rule["source"], rule["rule"], rule["editability"]) for rule in rules
    } >= {
        ("ask", "userSettings", "Bash(rm:*)", "persistent"),
        ("deny", "cliArg", "Read(x)", "session"),
    }


def test_only_files_that_may_be_read_are_returned():
    policy = build_policy(deny=["Read(secret.txt)"])
    files = {"/work/a.txt": b"alpha\xff", "/work/secret.txt": b"s", "/outside/b.txt": b"b"}
    session = control(
        cwd="/work", policy=policy, read_file=lambda path, max_bytes: files[path][:max_bytes]
    )
    response = body(session, "read_file", path="a.txt")["response"]
    assert (response["contents"], response["lossy"]) == ("alpha\ufffd", True)
    assert response["absPath"] == "/work/a.txt"
    response = body(session, "read_file", path="a.txt", encoding="base64", max_bytes=2)["response"]
    assert (response["contents"], response["truncated"]) == ("YWw=", True)
    for path in ("secret.txt", "/outside/b.txt", "../outside/b.txt", ""):
        assert body(session, "read_file", path=path)["subtype"] == "error"


def test_error_about_a_missing_file_names_the_requested_path():
    def read_file(path, max_bytes):
        raise FileNotFoundError(2, "No such file or directory", path)

    session = control(cwd="/work", policy=build_policy(), read_file=read_file)
    response = body(session, "read_file", path="a.txt")
    assert response["error"] == "No such file or directory: a.txt"


STDIO = {"command": "x", "args": ["y"], "env": {"TOKEN": "secret"}}


def list_statuses(session):
    servers = body(session, "mcp_status")["response"]["mcpServers"]
    return {server["name"]: server["status"] for server in servers}


def test_servers_are_replaced_and_need_a_new_child():
    session = control(accepts_mcp_servers=True)
    session.session_state.configured_servers = {"first": STDIO}
    session.start_turn("hi")
    lines, actions = ask(session, "mcp_set_servers", servers={"a": STDIO, "b": {"url": "http://x"}})
    assert lines[0]["response"]["response"] == {"added": ["a", "b"], "removed": [], "errors": {}}
    assert actions == [SettingChanged("servers", None)]
    lines, actions = ask(session, "mcp_set_servers", servers={"a": STDIO})
    assert lines[0]["response"]["response"] == {"added": [], "removed": ["b"], "errors": {}}
    assert actions == [SettingChanged("servers", None)]
    assert ask(session, "mcp_set_servers", servers={"a": STDIO})[1] == []
    assert list(session.session_state.configured_servers) == ["first", "a"]
    assert session.session_state.initialize_server_names >= {"a"}


def test_servers_in_the_frontend_are_replaced_too():
    session = control(accepts_mcp_servers=True)
    body(session, "initialize", sdkMcpServers=["old"])
    (line, *more), _ = ask(session, "mcp_set_servers", servers={"new": {"type": "sdk"}})
    assert line["response"]["response"] == {"added": ["new"], "removed": ["old"], "errors": {}}
    assert [message["request"]["server_name"] for message in more] == ["new"]
    assert session.session_state.sdk_servers.names == ("new",)


def test_servers_of_a_vendor_without_mcp_are_refused():
    response = body(control(), "mcp_set_servers", servers={"a": STDIO})["response"]
    assert response == {
        "added": [],
        "removed": [],
        "errors": {"a": "pi does not support MCP servers"},
    }


def test_server_is_disabled_and_reenabled():
    session = control(accepts_mcp_servers=True)
    session.session_state.configured_servers = {"first": STDIO}
    session.start_turn("hi")
    _, actions = ask(session, "mcp_toggle", serverName="first", enabled=False)
    assert actions == [SettingChanged("servers", None)]
    assert (list_statuses(session), session.session_state.configured_servers) == (
        {"first": "disabled"},
        {},
    )
    assert ask(session, "mcp_toggle", serverName="first", enabled=False)[1] == []
    assert "disabled" in body(session, "mcp_reconnect", serverName="first")["error"]
    _, actions = ask(session, "mcp_toggle", serverName="first", enabled=True)
    assert actions == [SettingChanged("servers", None)]
    assert list_statuses(session) == {"first": "pending"}
    assert ask(session, "mcp_reconnect", serverName="first")[1] == [SettingChanged("servers", None)]


def test_server_status_has_the_report_of_the_vendor_and_no_secrets():
    session = control(accepts_mcp_servers=True)
    session.session_state.configured_servers = {"my server": STDIO}
    session.session_state.server_statuses = {"my_server": McpServerReport("failed", "gone")}
    (server,) = body(session, "mcp_status")["response"]["mcpServers"]
    assert (server["status"], server["error"], server["scope"]) == ("failed", "gone", "dynamic")
    assert server["config"] == {"type": "stdio", "command": "x", "args": ["y"]}


def test_no_call_is_reported_as_moved_to_the_background():
    session = control()
    assert body(session, "background_tasks")["response"] == {}
    response = body(session, "background_tasks", tool_use_id="x")["response"]
    assert response == {"backgrounded": False}
    session.start_turn("hi")
    assert "cannot move" in body(session, "background_tasks")["error"]


def test_resources_of_servers_are_refused():
    session = control(accepts_mcp_servers=True)
    session.session_state.configured_servers = {"first": STDIO}
    assert "does not pass" in body(session, "mcp_read_resource", serverName="first")["error"]
    error = body(session, "mcp_read_resource", serverName="x")["error"]
    assert error == "Server not found: x"


def test_ignored_members_of_initialize_are_reported_once():
    session = control()
    fields = {name: ["x"] for name in IGNORED_INITIALIZE_FIELDS}
    for _ in range(2):
        body(session, "initialize", **fields)
    assert len(session.warnings) == len(IGNORED_INITIALIZE_FIELDS)
    names = [option.what for option in session.session_state.ignored_options]
    assert names == list(IGNORED_INITIALIZE_FIELDS)
    assert json.dumps([option.to_json() for option in session.session_state.ignored_options])


def test_empty_members_of_initialize_are_not_reported():
    session = control()
    body(session, "initialize", **dict.fromkeys(IGNORED_INITIALIZE_FIELDS))
    body(session, "initialize", plugins=[], toolAliases={})
    assert (session.warnings, session.session_state.ignored_options) == ([], ())


def test_empty_list_of_skills_is_reported():
    """The real claude shows its model no skills then, and vendors show theirs."""
    session = control()
    body(session, "initialize", skills=[])
    assert [option.what for option in session.session_state.ignored_options] == ["skills"]
    assert session.warnings[0].startswith("skills has no effect: ")


def test_thinking_budget_is_accepted_and_reported_once():
    session = control()
    response = body(session, "set_max_thinking_tokens", max_thinking_tokens=None)
    assert response["subtype"] == "success"
    assert session.warnings == []
    for budget in (0, 4000):
        response = body(session, "set_max_thinking_tokens", max_thinking_tokens=budget)
        assert response["subtype"] == "success"
    (warning,) = session.warnings
    assert warning.startswith(
        "set_max_thinking_tokens has no effect: vendors have levels of effort"
    )
    (option,) = session.session_state.ignored_options
    assert option.what == "set_max_thinking_tokens"


def test_verbatim_message_is_no_command():
    """The TypeScript SDK's `verbatimPrompts`: the user has not typed the text."""
    state = control(answers_commands=True, load_commands=lambda: 1 / 0).session_state
    fields = {"message": {"role": "user", "content": "/cost"}}
    assert state.parse_local_command(parse_user_message(fields, "")) is not None
    verbatim = parse_user_message({**fields, "client_composed": True}, "")
    assert state.parse_local_command(verbatim) is None
    assert state.find_command_call(verbatim) is None


@pytest.mark.parametrize("subtype", ["initialize", "rename_session"])
def test_title_of_a_session_is_reported_and_stored(subtype):
    lines, actions = ask(control(), subtype, title="My title")
    assert (lines[1]["subtype"], lines[1]["title"]) == ("session_title_changed", "My title")
    assert actions == [TitleChanged("My title")]
    assert len(ask(control(), "initialize")[0]) == 1


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"title": " "}, "title must be non-empty"),
        ({"title": 7}, "rename_session: title must be a string"),
        ({}, "rename_session: title must be a string"),
    ],
)
def test_invalid_title_is_an_error(fields, error):
    lines, actions = ask(control(), "rename_session", **fields)
    assert [line["response"]["error"] for line in lines] == [error] and actions == []


def test_models_of_the_vendor_have_its_names_and_descriptions():
    session = control(
        list_models=lambda: (OfferedModel("m-1"), OfferedModel("m-2", "Old", "An old text"))
    )
    session.session_state.reported_model = "m-9"
    session.session_state.offered_models = (OfferedModel("m-2", "New", "A new text"),)
    default, first, second = body(session, "list_models")["response"]["models"]
    assert (default["value"], default["resolvedModel"]) == ("default", "m-9")
    assert (first["displayName"], first["description"]) == ("m-1", "m-1 through pi")
    assert (second["displayName"], second["description"]) == ("New", "A new text")
    assert second["resolvedModel"] == "m-2"
    session.session_state.switch_vendor(VendorCapabilities("codex"))
    assert body(session, "list_models")["response"]["models"][2]["displayName"] == "Old"


def test_interrupt_cancels_open_prompts_but_end_of_stdin_does_not():
    """C10"""
    interrupted, closed = control(), control()
    for session in (interrupted, closed):
        session.start_turn("hi")
        session.decide_permission(BASH_REQUEST)
        session.take_output()
    lines, (decided, _) = ask(interrupted, "interrupt")
    assert lines[0] == {"type": "control_cancel_request", "request_id": "uuid-1"}
    assert decided == PermissionDecided(BASH_REQUEST, PermissionDecision(False, ends_turn=True))
    (decided,) = closed.close_input()
    assert (
        decided
        == PermissionDecided(BASH_REQUEST, PermissionDecision(False, message=STREAM_CLOSED_TEXT))
        and closed.take_output() == b""
    )


def states(session):
    return [
        line["state"]
        for line in map(json.loads, session.take_output().splitlines())
        if "state" in line
    ]


@pytest.mark.parametrize(
    "how", ["interrupt", "the end of stdin", "too late", "the end of the turn"]
)
def test_state_returns_to_running_when_no_prompt_is_open(how):
    """C17"""
    session = control(state_events="host")
    session.start_turn("hi")
    session.decide_permission(BASH_REQUEST)
    assert states(session) == ["running", "requires_action"]
    if how == "interrupt":
        ask_to_stop = {
            "type": "control_request",
            "request_id": "r",
            "request": {"subtype": "interrupt"},
        }
        session.receive_line(json.dumps(ask_to_stop).encode())
    elif how == "the end of stdin":
        session.close_input()
    elif how == "too late":
        session.expire_prompt(BASH_REQUEST)
    else:
        session.cancel_permission_prompts()
    assert states(session) == ["running"] and not session.has_undecided_requests


def test_prompts_are_answered_once_and_in_any_order():
    """C9, C17"""
    session = control(state_events="visible")
    second = BASH_REQUEST._replace(request_id="q2", call_id="call_2")
    session.start_turn("hi")
    session.decide_permission(BASH_REQUEST)
    session.decide_permission(second)
    first_line, second_line = (
        line for line in map(json.loads, session.take_output().splitlines()) if "request" in line
    )
    assert give(session, second_line["request_id"], behavior="deny", message="no") == [
        PermissionDecided(
            second, PermissionDecision(False, message="no", is_message_for_model=True)
        )
    ]
    assert states(session) == [] and session.has_undecided_requests
    assert give(session, first_line["request_id"], behavior="allow") == [
        PermissionDecided(BASH_REQUEST, PermissionDecision(True))
    ]
    assert states(session) == ["running"] and not session.has_undecided_requests
    assert give(session, second_line["request_id"], behavior="allow") == []


def test_timed_out_prompt_is_denied_and_cancelled():
    session = control()
    session.start_turn("hi")
    session.decide_permission(BASH_REQUEST)
    session.take_output()
    assert session.expire_prompt(BASH_REQUEST) == PermissionDecision(
        False, message=PROMPT_TIMEOUT_TEXT
    )
    assert json.loads(session.take_output()) == {
        "type": "control_cancel_request",
        "request_id": "uuid-1",
    }
    assert (
        session.expire_prompt(BASH_REQUEST) is None
        and give(session, "uuid-1", behavior="allow") == []
    )


def test_answered_prompt_does_not_expire():
    session = control()
    session.decide_permission(BASH_REQUEST)
    give(session, "uuid-1", behavior="allow")
    assert session.expire_prompt(BASH_REQUEST) is None


def test_open_prompts_are_limited():
    session = control()
    decisions = [
        session.decide_permission(
            BASH_REQUEST._replace(request_id=f"q{number}", call_id=f"call_{number}")
        )
        for number in range(MAX_OPEN_PROMPTS + 1)
    ]
    assert decisions[:-1] == [None] * MAX_OPEN_PROMPTS
    assert decisions[-1] is not None and not decisions[-1].allow


CHOICE = BASH_REQUEST._replace(
    tool="AskUserQuestion", tool_input={"questions": [{"question": "Which?"}]}
)


@pytest.mark.parametrize(
    "state_fields",
    [
        {"policy": build_policy()},
        {"policy": build_policy(allow=["AskUserQuestion"])},
        {"policy": build_policy(), "mode": "bypassPermissions"},
        {"policy": build_policy(), "mode": "plan"},
    ],
)
def test_ask_user_question_prompts_regardless_of_permissions(state_fields):
    """The real claude 2.1.329 does so in each of these modes."""
    session = control(**state_fields)
    assert session.decide_permission(CHOICE) is None
    request = json.loads(session.take_output())["request"]
    assert request["requires_user_interaction"] is True and "permission_suggestions" not in request


@pytest.mark.parametrize(
    "state_fields",
    [
        {"mode": "dontAsk"},
        {"answers_prompts": False},
        {"answers_prompts": False, "mode": "bypassPermissions"},
    ],
)
def test_ask_user_question_is_denied_if_prompts_cannot_be_answered(state_fields):
    decision = control(policy=build_policy(), **state_fields).decide_permission(CHOICE)
    assert decision is not None and not decision.allow


def test_ask_user_question_answered_by_a_hook_does_not_prompt():
    session = control(policy=build_policy(allow=["AskUserQuestion"]))
    answered = CHOICE._replace(tool_input={**CHOICE.tool_input, "answers": {"Which?": "this"}})
    assert session.decide_permission(answered) == PermissionDecision(True)


def test_queued_message_can_be_cancelled():
    session = control()
    session.receive_line(b'{"type":"user","uuid":"u1","message":{"role":"user","content":"hi"}}')
    assert body(session, "cancel_async_message", message_uuid="u1")["response"] == {
        "cancelled": True,
        "message_uuid": "u1",
    }
    assert not session.queued_messages


# -- permissions -----------------------------------------------------------------------------------


def test_permission_request_has_claude_format():
    """C9"""
    session = control()
    assert session.decide_permission(BASH_REQUEST) is None
    (line,) = [json.loads(line) for line in session.take_output().splitlines()]
    assert line == {
        "type": "control_request",
        "request_id": "uuid-1",
        "request": {
            "subtype": "can_use_tool",
            "tool_name": "Bash",
            "display_name": "Bash",
            "input": {"command": "ls"},
            "permission_suggestions": [],
            "tool_use_id": "call_1",
        },
    }
    assert give(session, "uuid-1", behavior="allow") == [
        PermissionDecided(BASH_REQUEST, PermissionDecision(True))
    ]
    assert give(session, "uuid-1", behavior="allow") == []


@loop_over_rows(
    ("answer", "decision"),
    [
        ({"behavior": "allow", "updatedInput": {"command": "ls"}}, PermissionDecision(True)),
        (
            {"behavior": "allow", "updatedInput": {"command": "pwd"}},
            PermissionDecision(True, updated_input={"command": "pwd"}),
        ),
        (
            {"behavior": "deny", "message": "no"},
            PermissionDecision(False, message="no", is_message_for_model=True),
        ),
        (
            {"behavior": "deny", "message": "no", "interrupt": True},
            PermissionDecision(False, message="no", ends_turn=True, is_message_for_model=True),
        ),
        (
            {"behavior": "deny", "message": "User refused permission to run tool"},
            PermissionDecision(False, message="User refused permission to run tool"),
        ),
        ({"behavior": "maybe"}, PermissionDecision(False, message="The call was denied.")),
        ({"behavior": "allow", "updatedInput": "ls"}, None),
        ({}, PermissionDecision(False, message="The call was denied.")),
    ],
)
def test_only_an_explicit_allow_is_accepted(answer, decision):
    """C9"""
    session = control()
    session.decide_permission(BASH_REQUEST)
    ((request, actual),) = give(session, "uuid-1", **answer)
    assert request is BASH_REQUEST
    assert actual == decision if decision else not actual.allow


def test_call_is_denied_without_a_prompt_if_prompts_are_disabled():
    for state_fields in ({"answers_prompts": False}, {"mode": "dontAsk"}):
        session = control(**state_fields)
        decision = session.decide_permission(BASH_REQUEST)
        assert decision is not None and not decision.allow and decision.needs_notice
        assert session.take_output() == b""


def test_request_with_a_refusal_is_denied_without_a_prompt():
    decision = control().decide_permission(BASH_REQUEST._replace(refusal="The turn is over."))
    assert decision == PermissionDecision(False, message="The turn is over.")


def test_oversized_input_is_denied():
    decision = control().decide_permission(
        BASH_REQUEST._replace(tool_input={"command": "x" * 1_000_001})
    )
    assert decision is not None and not decision.allow and "too large" in decision.message


TOUCH = BASH_REQUEST._replace(tool_input={"command": "touch a"})


def test_allow_rule_matches_only_the_allowed_command():
    session = control(answers_prompts=False, policy=build_policy(allow=["Bash(touch:*)"]))
    assert session.decide_permission(TOUCH) == PermissionDecision(True)
    for command in (
        "touch a; rm -rf x",
        "touchy",
        "touch $(reboot)",
        "touch a\nreboot",
        "touch a && reboot",
    ):
        decision = session.decide_permission(TOUCH._replace(tool_input={"command": command}))
        assert decision is not None and not decision.allow, command


ALWAYS = {
    "type": "addRules",
    "rules": [{"toolName": "Bash", "ruleContent": "touch:*"}],
    "behavior": "allow",
}


@loop_over_rows(
    ("update", "is_prompted"),
    [
        (ALWAYS | {"destination": "session"}, False),
        (ALWAYS | {"rules": [{"toolName": "Bash"}]}, False),
        (ALWAYS | {"rules": [{"toolName": "Bash", "ruleContent": "rm:*"}]}, True),
        (ALWAYS | {"rules": [{"toolName": "Bash", "ruleContent": 7}]}, True),
        (ALWAYS | {"rules": [7, {"ruleContent": "touch a"}]}, True),
        (ALWAYS | {"rules": "Bash"}, True),
        (ALWAYS | {"type": "removeRules"}, True),
        (ALWAYS | {"type": "replaceRules"}, False),
        ({"type": "addDirectories", "directories": 7}, True),
        ({"type": "nothingRules", "rules": [{"toolName": "Bash"}], "behavior": "allow"}, True),
        (7, True),
    ],
)
def test_valid_permission_update_allows_later_calls(update, is_prompted):
    """C9, contract 6.3: `updatedPermissions`"""
    session = control(policy=build_policy())
    assert session.decide_permission(TOUCH) is None
    give(session, "uuid-1", behavior="allow", updatedPermissions=[update])
    assert (
        session.decide_permission(TOUCH._replace(request_id="q2", call_id="call_2")) is None
    ) is is_prompted


@pytest.mark.parametrize(("behavior", "became"), [("deny", False), ("ask", None)])
def test_restricting_update_applies_to_the_next_call(behavior, became):
    session = control(policy=build_policy(allow=["Bash"]), mode="bypassPermissions")
    session.session_state.apply_permission_updates(
        [PermissionRuleChange("add", "ask", ("Bash(touch b)",))]
    )
    assert session.decide_permission(TOUCH._replace(tool_input={"command": "touch b"})) is None
    give(session, "uuid-1", behavior="allow", updatedPermissions=[ALWAYS | {"behavior": behavior}])
    decision = session.decide_permission(TOUCH._replace(request_id="q2", call_id="call_2"))
    assert (decision and decision.allow) is became


def test_session_rule_can_be_removed_but_an_initial_rule_cannot():
    session = control(policy=build_policy(allow=["Bash(mkdir:*)"]))
    session.decide_permission(TOUCH)
    give(session, "uuid-1", behavior="allow", updatedPermissions=[ALWAYS])
    assert session.decide_permission(TOUCH) == PermissionDecision(True)
    session.session_state.apply_permission_updates([PermissionRuleChange("replace", "allow", ())])
    assert session.decide_permission(TOUCH) is None
    assert session.decide_permission(
        TOUCH._replace(tool_input={"command": "mkdir a"})
    ) == PermissionDecision(True)


def test_added_directory_is_allowed_until_removed():
    session = control(policy=build_policy(), mode="acceptEdits")
    write = BASH_REQUEST._replace(
        tool="Write", tool_input={"file_path": "/elsewhere/a", "content": "x"}
    )
    assert session.decide_permission(write) is None
    folder = {"directories": ["/elsewhere"], "destination": "session"}
    give(
        session,
        "uuid-1",
        behavior="allow",
        updatedPermissions=[{"type": "addDirectories", **folder}],
    )
    assert session.decide_permission(write) == PermissionDecision(True)
    session.decide_permission(TOUCH._replace(tool_input={"command": "reboot"}))
    give(
        session,
        "uuid-2",
        behavior="allow",
        updatedPermissions=[{"type": "removeDirectories", **folder}],
    )
    assert session.decide_permission(write) is None


def test_deny_answer_adds_no_allow_rule():
    session = control(policy=build_policy())
    session.decide_permission(TOUCH)
    give(session, "uuid-1", behavior="deny", message="no", updatedPermissions=[ALWAYS])
    assert session.decide_permission(TOUCH) is None


def test_permission_update_does_not_override_a_deny_rule():
    session = control(policy=build_policy(deny=["Bash(touch -a)"]))
    session.decide_permission(TOUCH)
    give(session, "uuid-1", behavior="allow", updatedPermissions=[ALWAYS])
    assert session.decide_permission(TOUCH) == PermissionDecision(True)
    denied = session.decide_permission(TOUCH._replace(tool_input={"command": "touch -a"}))
    assert denied is not None and not denied.allow and "Bash(touch -a)" in denied.message


def test_updated_input_matching_a_deny_rule_is_denied():
    session = control(policy=build_policy(deny=["Bash(rm:*)"]))
    session.decide_permission(TOUCH)
    ((_, decision),) = give(session, "uuid-1", behavior="allow", updatedInput={"command": "rm a"})
    assert not decision.allow and "Bash(rm:*)" in decision.message and decision.needs_notice


def test_allowed_call_is_denied_if_a_deny_rule_was_added_meanwhile():
    """A frontend that forbids the call has joined meanwhile."""
    session = control(policy=build_policy())
    session.decide_permission(TOUCH)
    ask(session, "apply_flag_settings", settings={"permissions": {"deny": ["Bash(touch:*)"]}})
    ((_, decision),) = give(session, "uuid-1", behavior="allow")
    assert not decision.allow and "Bash(touch:*)" in decision.message and decision.needs_notice


def test_deny_rule_in_an_answer_applies_only_to_later_calls():
    session = control(policy=build_policy())
    session.decide_permission(TOUCH)
    rules = [{"toolName": "Bash", "ruleContent": "touch:*"}]
    update = {"type": "addRules", "rules": rules, "behavior": "deny", "destination": "session"}
    ((_, decision),) = give(session, "uuid-1", behavior="allow", updatedPermissions=[update])
    assert decision.allow
    next_decision = session.decide_permission(TOUCH._replace(request_id="q2", call_id="call_2"))
    assert next_decision is not None and not next_decision.allow


def test_permission_mode_in_an_answer_applies_to_the_next_call():
    session = control(policy=build_policy())
    session.decide_permission(TOUCH)
    change = {"type": "setMode", "mode": "acceptEdits", "destination": "session"}
    assert give(session, "uuid-1", behavior="allow", updatedPermissions=[change])[1:] == [
        SettingChanged("mode", "acceptEdits")
    ]
    assert session.decide_permission(
        TOUCH._replace(request_id="q2", call_id="call_2")
    ) == PermissionDecision(True)


@loop_over_rows(
    ("settings", "wishes", "applied"),
    [
        ({"effortLevel": "HIGH"}, [SettingChanged("effort", "high")], "high"),
        ({"effortLevel": None}, [SettingChanged("effort", None)], None),
        ({"effortLevel": "nonsense"}, [], "low"),
        ({"effortLevel": 7}, [], "low"),
        ({}, [], "low"),
        (7, [], "low"),
    ],
)
def test_effort_setting_changes_the_session_effort(settings, wishes, applied):
    """C8"""
    session = control(effort="low")
    request = {"subtype": "apply_flag_settings", "settings": settings}
    assert ask(session, **request)[1] == wishes
    assert body(session, "get_settings")["response"]["applied"]["effort"] == applied


def test_effort_without_effect_is_accepted_and_reported_once():
    session = control(accepts_effort=False)
    for level in (None, "nonsense"):
        ask(session, "apply_flag_settings", settings={"effortLevel": level})
    assert not (session.warnings or session.session_state.ignored_options)
    for level in ("high", "low"):
        response = body(session, "apply_flag_settings", settings={"effortLevel": level})
        assert response["subtype"] == "success"
    assert session.warnings == ["effortLevel has no effect: pi has no effort setting\n"]
    assert [option.what for option in session.session_state.ignored_options] == ["effortLevel"]
    accepting = control(accepts_effort=True)
    ask(accepting, "apply_flag_settings", settings={"effortLevel": "high"})
    assert not accepting.warnings


@pytest.mark.parametrize("takes", [True, False])
def test_models_list_effort_levels_only_if_the_vendor_accepts_effort(takes):
    """C3"""
    (listed,) = describe_models(control(accepts_effort=takes).session_state)
    assert ("supportedEffortLevels" in listed) is takes


@pytest.mark.parametrize("mode", ["bypassPermissions", "nonsense", 7])
def test_answer_cannot_set_a_forbidden_or_invalid_mode(mode):
    session = control(policy=build_policy())
    session.decide_permission(TOUCH)
    change = {"type": "setMode", "mode": mode, "destination": "session"}
    assert len(give(session, "uuid-1", behavior="allow", updatedPermissions=[change])) == 1
    assert session.session_state.mode == "default" and session.warnings


@pytest.mark.parametrize("state_fields", [{}, {"mode": "plan"}, {"answers_prompts": False}])
def test_read_only_command_is_allowed_without_a_prompt(state_fields):
    """Permission-parity N5"""
    assert control(policy=build_policy(), **state_fields).decide_permission(
        BASH_REQUEST
    ) == PermissionDecision(True)


def test_ask_rule_prompts_in_bypass_mode():
    """Permission-parity W4"""
    session = control(
        policy=build_policy(ask=["Bash(touch:*)"], allow=["Bash"]), mode="bypassPermissions"
    )
    assert session.decide_permission(TOUCH) is None
    assert session.decide_permission(
        BASH_REQUEST._replace(request_id="q2", call_id="call_2", tool_input={"command": "reboot"})
    ) == PermissionDecision(True)


def test_session_state_changes_around_a_prompt():
    """C17"""
    session = control(state_events="host")
    session.start_turn("hi")
    session.decide_permission(BASH_REQUEST)
    give(session, "uuid-2", behavior="allow")
    session.end_turn()
    lines = [json.loads(line) for line in session.take_output().splitlines()]
    assert [line["state"] for line in lines if "state" in line] == [
        "running",
        "requires_action",
        "running",
        "idle",
    ]
    assert all(line["sdk_host_only"] is True for line in lines if "state" in line)


def test_invalid_utf8_in_a_message_is_replaced():
    session = control()
    session.receive_line(b'{"type":"user","message":{"role":"user","content":"a \xff b"}}')
    (message,) = session.queued_messages
    assert message.text == "a � b" and not session.warnings


def test_permission_answer_is_echoed_if_echoes_are_enabled():
    """C15"""
    for replays in (False, True):
        session = control(echoes_messages=replays)
        session.decide_permission(BASH_REQUEST)
        session.take_output()
        give(session, "uuid-1", behavior="allow")
        lines = [json.loads(line) for line in session.take_output().splitlines()]
        assert [line["type"] for line in lines] == ["control_response"] * replays


@pytest.mark.parametrize("role", ["x" * 5000, "\x1b]52;c;aGk=\x07", "a\u202eb"])
def test_warning_is_short_and_escaped(role):
    session = control()
    session.receive_line(
        json.dumps({"type": "user", "message": {"role": role, "content": "hi"}}).encode()
    )
    (complaint,) = session.warnings
    assert len(complaint) < 200 and complaint == escape_control_chars(complaint)


def narrow(session, **permissions):
    return ask(session, "apply_flag_settings", settings={"permissions": permissions})


def test_flag_settings_rules_apply_until_replaced():
    session = control(policy=build_policy(deny=["Read"]))
    assert narrow(session, deny=["Bash(touch:*)"], ask=["Edit"])[1] == [
        SettingChanged("rules", None)
    ]
    assert session.decide_permission(TOUCH).allow is False
    assert narrow(session, deny=["Bash(touch:*)"], ask=["Edit"])[1] == []
    assert narrow(session, deny=[], ask=[])[1] == [SettingChanged("rules", None)]
    assert session.decide_permission(TOUCH) is None and [
        rule.tool for rule in session.session_state.policy.restricting_rules
    ] == ["Read"]


def test_unenforceable_rules_are_refused_without_changes():
    session = control(policy=build_policy())
    session.session_state.enforcement_checks.append(
        lambda narrower: f"cannot enforce {narrower.deny[0]}" if narrower.deny else ""
    )
    (line, *_), wishes = narrow(session, deny=["Bash"])
    assert (
        line["response"]["error"] == "Cannot apply settings: cannot enforce Bash" and wishes == []
    )
    assert session.session_state.policy.restricting_rules == ()
    (line, *_), _ = narrow(control(), deny=["Bash"])
    assert line["response"]["subtype"] == "error"


def build_reloading_session(files, **more):
    """Build a session whose settings files have the last value of `files`."""
    session = control(
        policy=build_policy(deny=["Read"]),
        claude_settings=ClaudeSettings(mode="plan"),
        load_settings=lambda: files[-1],
        **more,
    )

    def reload():
        response = body(session, "reload_settings")["response"]
        return parse_settings(response["settings"])

    return session, reload


def test_reloaded_settings_add_their_rules_and_are_reported():
    files = [ClaudeSettings()]
    session, reload = build_reloading_session(files)
    assert reload() == ClaudeSettings(mode="plan")
    files.append(
        ClaudeSettings(
            deny=parse_permission_rules(["Bash(touch:*)"]),
            ask=parse_permission_rules(["Edit"]),
            allow=parse_permission_rules(["Write"]),
        )
    )
    assert ask(session, "reload_settings")[1] == [SettingChanged("rules", None)]
    assert reload() == files[-1]._replace(allow=(), mode="plan")
    assert session.decide_permission(TOUCH).allow is False
    files.append(ClaudeSettings())
    assert ask(session, "reload_settings")[1] == []
    tools = [rule.tool for rule in session.session_state.policy.restricting_rules]
    assert tools == ["Read", "Bash", "Edit"], "a removed rule applies until the session ends"


def test_rules_that_the_vendor_would_not_apply_are_not_reported():
    files = [ClaudeSettings(deny=parse_permission_rules(["Bash"]))]
    session, reload = build_reloading_session(files)
    session.session_state.enforcement_checks.append(lambda policy: "cannot be kept")
    assert reload() == ClaudeSettings(mode="plan")
    assert len(session.session_state.policy.restricting_rules) == 1


def test_unreadable_settings_change_nothing():
    session, reload = build_reloading_session([])

    def fail():
        raise FrontendError("cannot be read")

    session.session_state.options = session.session_state.options._replace(load_settings=fail)
    assert reload() == ClaudeSettings(mode="plan")


@pytest.mark.parametrize("turn_running", [True, False])
def test_mcp_servers_added_during_a_turn_emit_a_setting_change(turn_running):
    session = control(accepts_mcp_servers=True)
    if turn_running:
        session.start_turn("hi")
    wishes = ask(session, "initialize", sdkMcpServers=["calc"])[1]
    assert wishes == ([SettingChanged("servers", None)] if turn_running else [])
    assert ask(session, "initialize", sdkMcpServers=["calc"])[1] == []
