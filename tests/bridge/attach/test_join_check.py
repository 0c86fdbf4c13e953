"""The comparison of a frontend with the session that it joins: its paths, its servers, its mode."""

import json

import pytest

from shim.bridge import registry
from shim.bridge.attach.join_check import check_join
from shim.bridge.registry import SessionRecord
from shim.core.claude.argv.flags import parse_argv
from shim.core.errors import FrontendError
from shim.core.policy.settings import ClaudeSettings

NO_SETTINGS = ClaudeSettings()


@pytest.fixture
def join(tmp_path, monkeypatch):
    """Return a function that checks whether a frontend in the folder `here` may join a session in
    the folder `there`.
    """
    here, there, session_folder = (tmp_path / name for name in ("here", "there", "session"))
    for folder in (here, there, session_folder):
        folder.mkdir()
    monkeypatch.chdir(here)

    def join(*argv, session=(), settings=NO_SETTINGS, mode="default"):
        registry.write_session_start_data(str(session_folder), {"arguments": [*session]})
        record = SessionRecord("0b5ca2c8-0000", str(session_folder), True, {"cwd": str(there)})
        return check_join(parse_argv(argv), record, settings, mode, {"HOME": str(tmp_path)})

    join.here, join.there = here, there
    return join


def refuse(join, *argv, **options):
    with pytest.raises(FrontendError) as refusal:
        join(*argv, **options)
    return refusal.value


def test_refusal_names_the_session_the_difference_and_the_way_out(join):
    error = refuse(join, "--disallowedTools", "Bash", session=("--disallowedTools=Read",))
    assert str(error) == (
        "this frontend cannot join the background session 0b5ca2c8, because a running session "
        "cannot be restricted further: the frontend passes --disallowedTools Bash, but the session "
        "was started with --disallowedTools Read"
    )
    assert "--fork-session" in error.hint and "claude stop 0b5ca2c8" in error.hint


def test_relative_paths_mean_the_folder_of_their_command_line(join):
    session = ("--disallowedTools=Edit(./x/y)", "--add-dir=d")
    assert join("--disallowedTools", f"Edit(/{join.there}/x/y)", session=session).mode == ""
    error = refuse(join, "--disallowedTools", "Edit(./x/y)", session=session)
    assert f"--disallowedTools Edit(/{join.here}/x/y)" in str(error)
    assert join("--add-dir", "d", session=session).ignored_flags == ["--add-dir"]
    assert join("--add-dir", f"{join.there}/d", session=session).ignored_flags == []


def test_settings_file_with_more_deny_rules_is_refused(join):
    (join.here / "s.json").write_text('{"permissions": {"deny": ["Read(mine/**)"]}}')
    assert "--settings denies Read(" in str(refuse(join, "--settings", "s.json"))
    (join.here / "s.json").write_text('{"permissions": {"allow": ["Read"]}}')
    assert join("--settings", "s.json").ignored_flags == ["--settings"]


def test_unreadable_settings_of_the_frontend_are_refused(join):
    assert "not found" in str(refuse(join, "--settings", "gone.json"))


def test_mcp_servers_are_compared_by_their_configuration(join):
    servers = {"mcpServers": {"calc": {"command": "a"}}}
    (join.here / "mine.json").write_text(json.dumps(servers))
    (join.there / "yours.json").write_text(json.dumps(servers))
    session = ("--mcp-config=yours.json",)
    assert join("--mcp-config", "mine.json", session=session).ignored_flags == []
    assert join("--mcp-config", json.dumps(servers), session=session).ignored_flags == []
    assert "--mcp-config calc" in str(refuse(join, "--mcp-config", "mine.json"))
    (join.there / "yours.json").unlink()
    assert "yours.json" in str(refuse(join, "--mcp-config", "mine.json", session=session))


def test_mcp_servers_of_the_frontend_process_are_not_compared(join):
    sdk_servers = {"mcpServers": {"own": {"type": "sdk", "name": "own"}}}
    assert join("--mcp-config", json.dumps(sdk_servers)).ignored_flags == []
    more = {"mcpServers": {**sdk_servers["mcpServers"], "calc": {"command": "a"}}}
    assert "--mcp-config calc," in str(refuse(join, "--mcp-config", json.dumps(more)))


@pytest.mark.parametrize(
    "flags", [("--mcp-config", '{"mcpServers": {}}'), ("--strict-mcp-config",)]
)
def test_frontend_without_servers_does_not_join_a_session_with_servers(join, flags):
    session = ("--strict-mcp-config", '--mcp-config={"mcpServers": {"calc": {"command": "a"}}}')
    assert "was started with --mcp-config calc" in str(
        refuse(join, "--strict-mcp-config", *flags, session=session)
    )
    assert join(*session, session=session).ignored_flags == []


@pytest.mark.parametrize(
    ("argv", "mode", "chosen"),
    [
        ((), "acceptEdits", ""),
        (("--permission-mode", "plan"), "default", "plan"),
        (("--permission-mode", "plan"), "plan", "plan"),
        (("--permission-mode", "acceptEdits"), "plan", "acceptEdits"),
        (("--permission-mode", "manual"), "default", "default"),
        (("--permission-mode", "default"), "acceptEdits", "default"),
        (("--dangerously-skip-permissions",), "default", "bypassPermissions"),
    ],
)
def test_permission_mode_is_chosen_as_by_the_controller(join, argv, mode, chosen):
    assert join(*argv, mode=mode).mode == chosen


@pytest.mark.parametrize(
    ("file_mode", "started_mode", "mode", "chosen"),
    [
        ("plan", None, "acceptEdits", "plan"),
        ("plan", "plan", "acceptEdits", ""),
        ("acceptEdits", None, "default", ""),
        ("plan", None, "plan", ""),
    ],
)
def test_settings_files_choose_only_a_new_and_stricter_mode(
    join, file_mode, started_mode, mode, chosen
):
    settings = json.dumps({"permissions": {"defaultMode": file_mode}})
    session_settings = ClaudeSettings(mode=started_mode)
    request = join("--settings", settings, settings=session_settings, mode=mode)
    assert request.mode == chosen
    assert join("--settings", settings, "--permission-mode", mode, mode=mode).mode == mode


@pytest.mark.parametrize(
    ("argv", "session", "chosen"),
    [
        ((), (), "default"),
        (("--setting-sources=",), (), "default"),
        (("--settings", "{}"), ("--settings={}",), "default"),
        ((), ("--settings={}",), ""),
        (("--permission-mode", "acceptEdits"), (), "acceptEdits"),
    ],
)
def test_mode_that_only_the_settings_of_the_session_choose_is_left(join, argv, session, chosen):
    session_settings = ClaudeSettings(mode="acceptEdits")
    request = join(*argv, session=session, settings=session_settings, mode="acceptEdits")
    assert request.mode == chosen
    settings = ("--settings", '{"permissions": {"defaultMode": "acceptEdits"}}')
    request = join(*settings, session=session, settings=session_settings, mode="acceptEdits")
    assert request.mode == ""


def test_model_of_the_frontend_is_requested(join):
    assert join("--model", "small", session=("--model", "large")).model == "small"
