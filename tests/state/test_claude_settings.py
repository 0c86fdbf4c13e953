"""`--settings` for vendors other than Claude: restrictions are applied."""

import json
import os

import pytest
from box import ANSWER, ASK, STREAM, format_ndjson
from sweeps import loop_over_rows

from shim.core.claude.argv.flags import parse_argv
from shim.core.errors import CliArgumentError, FrontendError
from shim.core.policy.settings import ClaudeSettings
from shim.state import claude_settings
from shim.state.claude_settings import load_claude_settings

DENY = {"permissions": {"deny": ["Bash(rm *)", "Write"], "allow": ["Read"], "defaultMode": "plan"}}
NOTHING = ClaudeSettings()


def load_settings_for_args(*args, root="/nowhere"):
    return load_claude_settings(parse_argv(list(args)), {"HOME": f"{root}/home"}, f"{root}/work")


def flag(settings):
    return load_settings_for_args(
        "--settings", settings if isinstance(settings, str) else json.dumps(settings)
    )


def write(path, settings):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        settings if isinstance(settings, str) else json.dumps(settings), encoding="utf-8"
    )


def test_settings_flag_accepts_json_or_a_path(tmp_path):
    write(tmp_path / "settings.json", DENY)
    for value in (DENY, str(tmp_path / "settings.json")):
        settings = flag(value)
        assert [str(rule) for rule in settings.deny] == ["Bash(rm *)", "Write"]
        assert ([str(rule) for rule in settings.allow], settings.mode) == (["Read"], "plan")


@pytest.mark.parametrize("settings", [{}, {"permissions": 7}, {"model": "m"}])
def test_unrelated_settings_are_ignored(settings):
    assert flag(settings) == NOTHING


@loop_over_rows("settings", ["{bad", "/nowhere.json", "a\0b", "[]", "7"])
def test_invalid_settings_flag_is_refused(settings):
    with pytest.raises(CliArgumentError, match="ettings"):
        flag(settings)


FILES = {"user": "home/.claude/settings.json", "project": "work/.claude/settings.json"} | {
    "local": "work/.claude/settings.local.json"
}


@pytest.mark.parametrize(
    ("args", "read"),
    [
        ((), {"user", "project", "local"}),
        (("--setting-sources", "user"), {"user"}),
        (("--setting-sources", "project,local"), {"project", "local"}),
        (("--setting-sources", ""), set()),
    ],
)
def test_setting_sources_select_the_settings_files(tmp_path, args, read):
    """Permission-parity W13."""
    for name, file_name in FILES.items():
        write(tmp_path / file_name, {"permissions": {"deny": [f"Bash({name})"]}})
    settings = load_settings_for_args(*args, root=tmp_path)
    assert {rule.content for rule in settings.deny} == read
    assert {rule.source for rule in settings.deny} == {str(tmp_path / FILES[name]) for name in read}


def test_claude_config_dir_selects_the_user_settings(tmp_path):
    write(tmp_path / "settings.json", DENY)
    settings = load_claude_settings(
        parse_argv([]), {"HOME": "/nowhere", "CLAUDE_CONFIG_DIR": str(tmp_path)}, "/nowhere"
    )
    assert {rule.base for rule in settings.deny} == {str(tmp_path)}


@pytest.mark.parametrize(
    "content",
    ["{", "[]", "\xff", '"' + "x" * 2_000_000 + '"'],
    ids=["cut", "list", "text", "large"],
)
def test_unreadable_settings_file_is_refused_with_its_path(tmp_path, content):
    write(tmp_path / FILES["project"], content)
    with pytest.raises(FrontendError, match=r"work/\.claude/settings\.json"):
        load_settings_for_args(root=tmp_path)
    assert load_settings_for_args("--setting-sources", "user", root=tmp_path) == NOTHING


def test_fifo_instead_of_a_settings_file_is_refused(tmp_path):
    (tmp_path / "work/.claude").mkdir(parents=True)
    os.mkfifo(tmp_path / FILES["project"])
    with pytest.raises(FrontendError, match="regular"):
        load_settings_for_args(root=tmp_path)


@pytest.fixture
def managed_folder(tmp_path, monkeypatch):
    """Return a folder that replaces the folder of the managed settings."""
    folder = tmp_path / "managed"
    monkeypatch.setattr(claude_settings, "MANAGED_FOLDER", str(folder))
    return folder


def test_managed_settings_merge_the_file_and_its_drop_in_directory(managed_folder):
    """Measured with Claude 2.1.329: it reads neither hidden files nor files with another ending."""
    write(
        managed_folder / "managed-settings.json",
        {"permissions": {"deny": ["Bash(a)"], "defaultMode": "acceptEdits"}},
    )
    write(
        managed_folder / "managed-settings.d/10.json",
        {"permissions": {"deny": ["Bash(b)"], "defaultMode": "dontAsk"}},
    )
    write(
        managed_folder / "managed-settings.d/20.json",
        {"permissions": {"deny": ["Bash(c)"], "defaultMode": "plan"}},
    )
    for name in (".30.json", "40.txt"):
        write(managed_folder / "managed-settings.d" / name, {"permissions": {"deny": ["Bash(d)"]}})
    settings = load_settings_for_args("--setting-sources", "")
    assert sorted(map(str, settings.deny)) == ["Bash(a)", "Bash(b)", "Bash(c)"]
    assert settings.mode == "plan"


def test_managed_settings_flag_applies_only_without_managed_files(managed_folder):
    args = ("--managed-settings", json.dumps(DENY))
    assert [rule.source for rule in load_settings_for_args(*args).deny] == [
        "--managed-settings"
    ] * 2
    write(managed_folder / "managed-settings.json", {"permissions": {"deny": ["Read"]}})
    assert list(map(str, load_settings_for_args(*args).deny)) == ["Read"]
    with pytest.raises(CliArgumentError, match="--managed-settings"):
        (managed_folder / "managed-settings.json").unlink()
        load_settings_for_args("--managed-settings", "settings.json")


def test_local_settings_of_the_repository_root_add_only_deny_rules(tmp_path):
    (tmp_path / ".git").mkdir()
    top = tmp_path / ".claude/settings.local.json"
    write(top, {"permissions": {"deny": ["Read(/a)"], "allow": ["Bash"]}})
    write(tmp_path / ".claude/settings.json", {"permissions": {"deny": ["Bash"]}})
    settings = load_settings_for_args(root=tmp_path)
    assert [(str(rule), rule.source, rule.base) for rule in settings.deny] == [
        ("Read(/a)", str(top), f"{tmp_path}/work")
    ]
    assert settings.allow == ()


def test_home_that_is_not_a_directory_has_no_settings():
    assert load_claude_settings(parse_argv([]), {"HOME": "/dev/null"}, "/dev/null") == NOTHING


def test_missing_settings_file_error_matches_claude(box):
    """Contract 11."""
    done = box.run_claude(
        *ASK, "--settings", "{bad", SHIM_VENDOR="demo", SHIM_BIN=box.create_fake(["out", ANSWER])
    )
    assert (done.status, done.stdout) == (1, b"")
    assert done.stderr == f"Error: Settings file not found: {box.cwd}/{{bad\n"


def test_denied_tool_is_not_listed_and_ends_the_turn(box):
    call = {"type": "call", "id": "c1", "name": "Bash", "input": {"command": "rm -rf x"}}
    first, *other_lines = ANSWER.splitlines(keepends=True)
    child = box.create_fake(["read"], ["out", first + format_ndjson(call) + "".join(other_lines)])
    settings = json.dumps({"permissions": {"deny": ["Bash(rm *)", "Read"]}})
    done = box.run_claude("hi", *STREAM, "--settings", settings, SHIM_VENDOR="demo", SHIM_BIN=child)
    assert done.init["tools"] == ["Bash"]
    assert (done.status, done.cause) == (1, "denied")


def test_unsupported_default_mode_is_refused(box):
    child = box.create_fake(["record", str(box.recording)])
    settings = json.dumps({"permissions": {"defaultMode": "plan"}})
    done = box.run_claude(*ASK, "--settings", settings, SHIM_VENDOR="acai", SHIM_BIN=child)
    assert (done.status, done.cause) == (1, "refused")
    assert not box.recording.exists()


def test_unsupported_sandbox_setting_causes_a_warning(box):
    child = box.create_fake(["out", ANSWER])
    done = box.run_claude(
        *ASK, "--settings", '{"sandbox":{"enabled":true}}', SHIM_VENDOR="demo", SHIM_BIN=child
    )
    assert (done.status, done.stderr.count("\n")) == (0, 1)
    assert "sandbox" in done.stderr


def test_settings_flag_is_passed_to_claude_unchanged(box):
    box.create_fake(["record", str(box.recording)], name="claude")
    settings = json.dumps(DENY)
    box.run_claude(*ASK, "--settings", settings, SHIM_VENDOR="claude")
    assert f"--settings={settings}" in box.read_record()["arguments"]
    assert not [
        arg for arg in box.read_record()["arguments"] if arg.startswith("--disallowedTools")
    ]


HOOK = {"hooks": {"PreToolUse": [{"hooks": [{"type": "command", "command": "x"}]}]}}


def hook_refusals(tmp_path, **trusted):
    """Return for the hooks of each settings file whether they are refused."""
    projects = {
        str(folder): {"hasTrustDialogAccepted": is_trusted}
        for folder, is_trusted in trusted.get("folders", ())
    }
    write(tmp_path / "home/.claude.json", {"projects": projects})
    for file_name in FILES.values():
        write(tmp_path / file_name, HOOK)
    return {
        hook.source.rpartition("/")[2]: bool(hook.refusal)
        for hook in load_settings_for_args(root=tmp_path).hooks[:2]
    }


def test_project_hooks_run_only_in_a_trusted_directory(tmp_path):
    work = tmp_path / "work"
    for folders, refused in (
        ((), True),
        (((work, False),), True),
        (((work, True),), False),
        (((tmp_path, True),), False),
        (((work / "below", True),), True),
    ):
        assert set(hook_refusals(tmp_path, folders=folders).values()) == {refused}
    assert [
        hook.refusal
        for hook in load_settings_for_args("--setting-sources", "user", root=tmp_path).hooks
    ] == [""]


def test_trust_of_a_parent_directory_does_not_extend_to_a_repository(tmp_path):
    (tmp_path / "work/.git").mkdir(parents=True)
    assert set(hook_refusals(tmp_path, folders=((tmp_path, True),)).values()) == {True}


def test_managed_settings_flag_adds_no_hooks(managed_folder):
    assert load_settings_for_args("--managed-settings", json.dumps(HOOK)).hooks == ()


@pytest.mark.parametrize("content", ["", "{", "[]", '{"projects": 7}', '{"projects": {"/": 7}}'])
def test_unreadable_claude_json_trusts_no_directory(tmp_path, content):
    write(tmp_path / "home/.claude.json", content)
    write(tmp_path / FILES["project"], HOOK)
    assert load_settings_for_args(root=tmp_path).hooks[0].refusal


@loop_over_rows("file", list(FILES.values()))
def test_any_settings_file_can_forbid_shell_code_in_commands(tmp_path, file):
    assert not load_settings_for_args(root=tmp_path).forbids_command_shell
    for value in ("yes", False, True):
        write(tmp_path / file, {"disableSkillShellExecution": value})
        settings = load_settings_for_args(root=tmp_path)
        assert settings.forbids_command_shell is (value is True)
    (tmp_path / file).unlink()
