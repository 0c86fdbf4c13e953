"""The files and the flag that define subagents."""

import json
import os

import pytest

from shim.core.claude.argv.flags import parse_argv
from shim.core.errors import CliArgumentError
from shim.state import claude_agents
from shim.state.claude_agents import load_agents
from shim.state.claude_settings import find_agent_folders

FLAG = json.dumps(
    {"flag": {"description": "d", "prompt": "p"}, "both": {"description": "flag", "prompt": "p"}}
)


def write_agent(path, name, description="d"):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"---\nname: {name}\ndescription: {description}\n---\nYou are {name}.\n")


@pytest.fixture
def root(tmp_path):
    """Agents of the user, of the project, of a folder inside it, and of an added folder."""
    write_agent(tmp_path / "home/.claude/agents/u.md", "user")
    write_agent(tmp_path / "home/.claude/agents/b.md", "both", "user")
    write_agent(tmp_path / "work/.claude/agents/p.md", "project")
    write_agent(tmp_path / "work/.claude/agents/b.md", "both", "project")
    write_agent(tmp_path / "work/.claude/agents/deep/n.md", "nested")
    write_agent(tmp_path / "work/inner/.claude/agents/b.md", "both", "inner")
    write_agent(tmp_path / "added/.claude/agents/a.md", "added")
    write_agent(tmp_path / "added/.claude/agents/b.md", "both", "added")
    return tmp_path


def load(root, *args, folder="work", **environment):
    environment = {"HOME": f"{root}/home"} | environment
    invocation = parse_argv(list(args))
    folders = list(find_agent_folders(invocation, environment, f"{root}/{folder}"))
    return load_agents(invocation, environment, folders)


def test_setting_sources_select_the_folders(root):
    assert list(load(root)) == ["both", "nested", "project", "user"]
    assert list(load(root, "--setting-sources", "user")) == ["both", "user"]
    assert list(load(root, "--setting-sources", "project")) == ["both", "nested", "project"]
    for sources in ("local", ""):
        assert load(root, "--setting-sources", sources) == {}


def test_precedence_of_the_sources(root):
    assert load(root, "--setting-sources", "user")["both"].description == "user"
    assert load(root)["both"].description == "project"
    assert load(root, "--add-dir", "../added")["both"].description == "project"
    assert load(root, folder="work/inner")["both"].description == "inner"
    assert load(root, "--agents", FLAG)["both"].description == "flag"
    assert "added" in load(root, "--add-dir", "../added")


def test_real_claude_without_files_reads_none(root):
    for flag in ("--bare", "--safe-mode"):
        assert list(load(root, flag, "--agents", FLAG)) == ["both", "flag"]


def test_run_of_a_subagent_has_no_subagents(root):
    assert load(root, "--agents", FLAG, SHIM_AGENT_RUN="1") == {}


def test_config_dir_of_claude_replaces_the_folder_in_home(root):
    write_agent(root / "config/agents/c.md", "configured")
    assert "configured" in load(root, CLAUDE_CONFIG_DIR=f"{root}/config")


def test_file_that_cannot_be_read_is_skipped(root, capfd, monkeypatch):
    os.mkfifo(root / "work/.claude/agents/pipe.md")
    (root / "work/.claude/agents/large.md").write_text("x" * 100)
    (root / "work/.claude/agents/other.txt").write_text("not read")
    monkeypatch.setattr(claude_agents, "MAX_AGENT_FILE_BYTES", 99)
    assert "project" in load(root)
    warnings = capfd.readouterr().err
    assert "pipe.md is skipped" in warnings and "large.md is skipped" in warnings


@pytest.mark.parametrize("value", ["{bad", "[1]", '{"x": {"description": "d"}}'])
def test_invalid_flag_is_refused(root, value):
    with pytest.raises(CliArgumentError, match="Error: Invalid --agents configuration:\n"):
        load(root, "--agents", value)
