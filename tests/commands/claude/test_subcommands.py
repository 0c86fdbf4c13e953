"""Claude's subcommands and `--help`, answered without a vendor (contract F11b, 5.12)."""

import json
import re
import subprocess
import sys

import pytest

from shim.commands.claude.claude_help import (
    FLAG_TEXTS,
    REFUSED_COMMANDS,
    SUBCOMMAND_TEXTS,
    format_claude_help,
)
from shim.commands.claude.subcommands import ALIASES, COMMAND_SENTENCES, dispatch_subcommand
from shim.core.claude.argv.flags import ALL_SUBCOMMANDS, FIRST_ARG_SUBCOMMANDS, FLAGS


@pytest.fixture
def ask(capfd, monkeypatch, tmp_path):
    """Return a function that runs a subcommand. It returns the exit status, stdout and stderr."""
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("SHIM_VENDOR", "SHIM_CONFIG", "XDG_CONFIG_HOME", "CLAUDE_CONFIG_DIR"):
        monkeypatch.delenv(name, raising=False)

    def run_subcommand(*args, installed=None):
        status = dispatch_subcommand(args, installed or {})
        output = capfd.readouterr()
        return status, output.out, output.err

    return run_subcommand


# -- auth ------------------------------------------------------------------------------------------


def test_auth_status_reports_the_first_vendor_of_a_list(ask, monkeypatch):
    monkeypatch.setenv("SHIM_VENDOR", "pi, qwen")
    assert json.loads(ask("auth", "status", "--json")[1])["authMethod"] == "pi"


@pytest.mark.parametrize("args", [("--json",), ()], ids=["json", "plain"])
def test_contract_f11b_auth_status_prints_indented_json(ask, monkeypatch, tmp_path, args):
    monkeypatch.setenv("SHIM_VENDOR", "qwen")
    status, out, err = ask("auth", "status", *args)
    assert (status, err) == (0, "")
    assert out.startswith('{\n  "loggedIn": true,\n  "authMethod": "qwen",\n') and out.endswith(
        "\n}\n"
    )
    assert json.loads(out) == {
        "loggedIn": True,
        "authMethod": "qwen",
        "apiProvider": "shim",
        "analyticsDisabled": True,
        "projectsDirectory": f"{tmp_path}/.claude/projects",
        "configDirectory": f"{tmp_path}/.claude",
        "loginExpiresAt": None,
        "consoleProfileSignInOffered": False,
    }


def test_auth_status_uses_directories_of_claude_config_dir(ask, monkeypatch):
    monkeypatch.setenv("CLAUDE_CONFIG_DIR", "/elsewhere")
    assert json.loads(ask("auth", "status")[1])["projectsDirectory"] == "/elsewhere/projects"


@pytest.mark.parametrize("who", ["flag", "environment", "installed", "settings", "settings list"])
def test_auth_status_uses_the_same_vendor_precedence_as_a_turn(ask, monkeypatch, tmp_path, who):
    """The sources have the precedence of a turn. Each source is combined with all later sources,
    which name another vendor.
    """
    order = ["flag", "environment", "installed", "settings"]
    position = order.index(who.partition(" ")[0])
    if position <= 3:
        folder = tmp_path / ".config" / "shim"
        folder.mkdir(parents=True)
        vendor_setting = (
            ["cake" if position == 3 else "pi", "qwen"]
            if "list" in who
            else "cake"
            if position == 3
            else "pi"
        )
        (folder / "config.toml").write_text(f"vendor = {json.dumps(vendor_setting)}\n")
    if position <= 1:
        monkeypatch.setenv("SHIM_VENDOR", "cake" if position == 1 else "pi")
    installed = {"vendor": "cake" if position == 2 else "pi"} if position <= 2 else {}
    flag = ("--shim-vendor", "cake") if position == 0 else ()
    assert (
        json.loads(ask(*flag, "auth", "status", "--json", installed=installed)[1])["authMethod"]
        == "cake"
    )


def test_auth_status_ignores_invalid_settings(ask, tmp_path):
    folder = tmp_path / ".config" / "shim"
    folder.mkdir(parents=True)
    (folder / "config.toml").write_text("vendor = 7\n")
    status, out, _ = ask("auth", "status", "--json")
    assert (status, json.loads(out)["authMethod"]) == (0, "shim")


def test_auth_status_prints_a_sentence_with_text_flag(ask, monkeypatch):
    monkeypatch.setenv("SHIM_VENDOR", "pi")
    assert ask("auth", "status", "--text") == (0, "Logged in through pi\n", "")


@pytest.mark.parametrize("action", ["login", "logout"])
@pytest.mark.parametrize("vendor", ["", "pi", "demo", "nobody"])
def test_auth_login_and_logout_are_refused(ask, monkeypatch, action, vendor):
    monkeypatch.setenv("SHIM_VENDOR", vendor)
    status, out, err = ask("auth", action)
    assert (status, out) == (1, "")
    assert err.startswith("the shim has no login: ") and err.count("\n") == 1
    assert ("/login" in err) is (vendor == "pi" and action == "login")
    assert vendor in err


# -- other subcommands -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "command_line",
    [
        "mcp list",
        "plugin list",
        "plugin marketplace list",
        "config list",
        "doctor",
        "update",
        "install",
    ],
)
def test_supported_subcommand_prints_a_single_line(ask, command_line):
    status, out, err = ask(*command_line.split())
    assert (status, err) == (0, "")
    assert out.endswith("\n") and out.count("\n") == 1


@pytest.mark.parametrize("command_line", ["mcp list", "plugin list"])
def test_list_with_json_flag_prints_an_empty_array(ask, command_line):
    status, out, _ = ask(*command_line.split(), "--json")
    assert (status, json.loads(out)) == (0, [])


@pytest.mark.parametrize(
    "command_line",
    [
        "mcp",
        "mcp add x",
        "mcp serve",
        "plugin install x",
        "config set a b",
        "setup-token",
        "auth",
        "auth no",
    ],
)
def test_unsupported_action_fails_with_a_single_line(ask, monkeypatch, command_line):
    monkeypatch.setenv("SHIM_VENDOR", "pi")
    status, out, err = ask(*command_line.split())
    assert (status, out) == (1, "")
    assert err.startswith(f"claude {' '.join(command_line.split()[:2])}: ") and err.count("\n") == 1


@pytest.mark.parametrize(
    "command_line",
    ["auto-mode", "gateway --config x", "import", "purge", "project purge", "ultrareview"],
)
def test_unsupported_subcommand_fails_with_a_single_line(ask, command_line):
    status, out, err = ask(*command_line.split())
    assert (status, out) == (1, "")
    assert err.startswith(f"claude {command_line.split()[0]}") and err.count("\n") == 1


@pytest.mark.parametrize("subcommand", ["remote-control", "rc", "remote", "bridge", "sync"])
def test_subcommand_aliases_print_the_same_output(ask, subcommand):
    assert ask(subcommand) == (
        1,
        "",
        f"claude remote-control: {ask('remote-control')[2].partition(': ')[2]}",
    )
    assert ask("plugins", "list", "--json") == ask("plugin", "list", "--json") == (0, "[]\n", "")
    assert ask("upgrade") == ask("update")


@pytest.mark.parametrize("name", sorted(ALL_SUBCOMMANDS - {"config"}))
def test_every_subcommand_runs_and_prints_help(ask, name):
    assert ask(name, "whatever")[0] in (0, 1)
    status, out, err = ask(name, "--help")
    assert (status, err) == (0, "")
    assert out.startswith(f"Usage: claude {'stop' if name == 'kill' else name} ")
    assert ("shim help bridge" in out) == (name in FIRST_ARG_SUBCOMMANDS | {"agents"})


def test_subcommand_tables_contain_the_same_names():
    subcommand_names = set(COMMAND_SENTENCES) | {"auth", "agents"}
    assert subcommand_names | set(ALIASES) | FIRST_ARG_SUBCOMMANDS == ALL_SUBCOMMANDS
    assert (
        set(SUBCOMMAND_TEXTS) | set(REFUSED_COMMANDS) | set(ALIASES) | FIRST_ARG_SUBCOMMANDS
        == ALL_SUBCOMMANDS
    )


@pytest.mark.parametrize(
    "args", [("hi",), ("--shim-vendor", "pi", "-p", "auth"), ("auth", "-v"), ("x", "auth"), ()]
)
def test_other_arguments_are_not_handled_as_a_subcommand(ask, args):
    assert ask(*args) == (None, "", "")


def test_invalid_arguments_are_not_handled_as_a_subcommand(ask):
    assert ask("hi", "--output-format", "xml")[0] is None


# -- help ------------------------------------------------------------------------------------------


def test_help_describes_every_flag_and_subcommand():
    assert set(FLAG_TEXTS) == set(FLAGS) - {"other_flags"}
    assert all(FLAG_TEXTS.values())
    text = format_claude_help()
    for spellings in FLAGS.values():
        for spelling in spellings.replace("\n", "|").split("|"):
            assert spelling.strip() in text
    for name in ALL_SUBCOMMANDS:
        assert re.search(rf"\b{name}\b", text), name


@pytest.mark.parametrize("flag", ["--forward-subagent-text", "--setting-sources <sources>"])
def test_help_does_not_list_portable_flags_as_ineffective(flag):
    text, _, ineffective = format_claude_help().partition(
        "Options that are accepted, but have an effect only with the real claude:"
    )
    (line,) = (line for line in text.splitlines() if line.strip().startswith(flag))
    assert "no effect" not in line and flag not in ineffective


def test_help_is_at_most_120_columns_wide():
    assert max(map(len, format_claude_help().splitlines())) <= 120


# -- import cost -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "args", [["auth", "status", "--json"], ["--shim-vendor", "pi", "auth", "status", "--json"]]
)
def test_contract_f11b_auth_status_imports_no_heavy_modules(tmp_path, args):
    """ACP runs it four times in a short session."""
    code = (
        "import sys; before = set(sys.modules)\n"
        "from shim import __main__\n"
        f"status = __main__._run_claude({args!r}, {{}})\n"
        "heavy = {'orjson', 'anyio', 'asyncio', 'subprocess', 'typer', 'structlog', 'inspect', 'uuid', 'tomllib'}\n"
        "found = heavy & (set(sys.modules) - before) | "
        "{m for m in sys.modules if m.startswith('shim.conversation.startup')}\n"
        "print(sorted(found), status, file=sys.stderr)"
    )
    environment = {"HOME": str(tmp_path), "PATH": ""}
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=30,
        env=environment,
        check=True,
    )
    assert done.stderr.strip() == "[] 0"
    assert json.loads(done.stdout)["loggedIn"] is True
