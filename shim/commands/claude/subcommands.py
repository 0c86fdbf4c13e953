"""Implements Claude's subcommands without starting a vendor and with few imports (contract F11b).

ACP runs `auth status --json` four times in a short session. A subcommand that would change
something is refused. The message names the right command of the vendor's CLI or of `shim`. A
subcommand that lists something prints an empty list.
"""

import os
from collections.abc import Mapping, Sequence

from shim.commands.claude.command_output import CommandOutput, print_command_output
from shim.core.claude.argv.flags import FIRST_ARG_SUBCOMMANDS, Invocation, parse_argv
from shim.core.errors import FrontendError


def dispatch_subcommand(argv: Sequence[str], installed_options: Mapping[str, str]) -> int | None:
    """Run a subcommand and return its exit status. Return None if the arguments start a turn
    instead.
    """
    try:
        invocation = parse_argv(argv)
    except FrontendError:
        return None
    if not invocation.subcommand or invocation.version:
        return None
    return run_subcommand(invocation, installed_options)


def run_subcommand(invocation: Invocation, installed_options: Mapping[str, str]) -> int:
    """Run `--version`, `--help` or a subcommand, and print the output. Return the exit status."""
    if invocation.version:
        from shim.core.claude.writer import CLAUDE_VERSION

        output = CommandOutput(f"{CLAUDE_VERSION} (Claude Code)\n")
    elif invocation.subcommand:
        output = _build_output(invocation, installed_options)
    else:
        from shim.commands.claude.claude_help import format_claude_help

        output = CommandOutput(format_claude_help())
    return print_command_output(output)


def _build_output(invocation: Invocation, installed_options: Mapping[str, str]) -> CommandOutput:
    name = str(invocation.subcommand)
    args = invocation.subcommand_args
    if "-h" in args or "--help" in args:
        from shim.commands.claude.claude_help import format_subcommand_help

        return CommandOutput(format_subcommand_help(name))
    name = ALIASES.get(name, name)
    if name in SESSION_COMMANDS:
        return _answer_background(name, args)
    action = next((argument for argument in args if not argument.startswith("-")), "")
    vendor = find_default_vendor_name(invocation, installed_options)
    if name == "auth":
        return _answer_auth(action, args, vendor)
    output = LIST_OUTPUTS.get((name, action, "--json" in args))
    if output is None:
        output = _build_sentence(name, action, vendor)
    return output


def _answer_background(name: str, args: tuple[str, ...]) -> CommandOutput:
    """Return the output of a command for background sessions."""
    if name == "agents":
        from shim.commands.claude.agents import run_agents_command

        return run_agents_command(args)
    if name == "daemon":
        from shim.commands.claude.daemon import run_daemon_command

        return run_daemon_command(args)
    from shim.commands.claude.sessions import dispatch_session_command as run_session_command

    return run_session_command(name, args)


def find_default_vendor_name(invocation: Invocation, installed_options: Mapping[str, str]) -> str:
    """Return the name of the vendor that a turn would use. Return "" if no vendor is chosen or the
    settings have an error.
    """
    vendor_value = invocation.shim_vendor or os.environ.get("SHIM_VENDOR")
    if not vendor_value:
        vendor_value = installed_options.get("vendor")
    if vendor_value:
        if vendor_value.startswith("replay:"):
            return "replay"
        return vendor_value.partition(",")[0].strip()
    from shim.state import config

    try:
        return next(iter(config.load_shim_settings(invocation, os.environ).vendor), "")
    except FrontendError:
        return ""


# -- auth ------------------------------------------------------------------------------------------


def _answer_auth(action: str, args: tuple[str, ...], vendor: str) -> CommandOutput:
    if action == "status":
        return CommandOutput(
            f"Logged in through {_name_vendor(vendor)}\n"
            if "--text" in args
            else _format_auth_status(vendor)
        )
    if action in ("login", "logout"):
        return CommandOutput(f"the shim has no login: {_describe_login(action, vendor)}\n", 1)
    return CommandOutput(
        f"claude auth{' ' + action[:60] if action else ''}: unknown action; use status, login or logout\n",
        1,
    )


def _format_auth_status(vendor: str) -> str:
    """Format the login status, which is always "logged in", because only a turn shows whether the
    vendor is logged in (contract 5.12).
    """
    import json

    config_folder = os.environ.get("CLAUDE_CONFIG_DIR")
    if not config_folder:
        config_folder = os.path.join(os.path.expanduser("~"), ".claude")
    status = {
        "loggedIn": True,
        "authMethod": vendor or "shim",
        "apiProvider": "shim",
        "analyticsDisabled": True,
        "projectsDirectory": os.path.join(config_folder, "projects"),
        "configDirectory": config_folder,
        "loginExpiresAt": None,
        "consoleProfileSignInOffered": False,
    }
    return json.dumps(status, indent=2) + "\n"


def _describe_login(action: str, vendor: str) -> str:
    if action == "login" and vendor:
        from shim.adapters import get_adapter

        try:
            if hint := get_adapter(vendor).login_hint:
                return f"for {vendor}, {hint}"
        except FrontendError:
            pass
    direction = "out"
    if action == "login":
        direction = "in"
    return f"use the CLI of {_name_vendor(vendor)} to log {direction}"


def _name_vendor(vendor: str) -> str:
    if vendor:
        return vendor
    return "the vendor that you choose (SHIM_VENDOR)"


# -- other subcommands -----------------------------------------------------------------------------

# Aliases of subcommands.
ALIASES = {"plugins": "plugin", "upgrade": "update", "kill": "stop"} | dict.fromkeys(
    ("rc", "remote", "bridge", "sync"), "remote-control"
)
SESSION_COMMANDS = {"agents"} | FIRST_ARG_SUBCOMMANDS  # commands for background sessions
_EMPTY_LIST = "[]\n"
# (subcommand, action, whether JSON is requested) → output for an empty list.
LIST_OUTPUTS = {
    ("mcp", "list", False): CommandOutput(
        "No MCP servers are configured here: each vendor has its own.\n"
    ),
    ("mcp", "list", True): CommandOutput(_EMPTY_LIST),
    ("plugin", "list", False): CommandOutput("No plugins installed.\n"),
    ("plugin", "list", True): CommandOutput(_EMPTY_LIST),
    ("plugin", "marketplace", False): CommandOutput("No marketplaces configured.\n"),
    ("plugin", "marketplace", True): CommandOutput(_EMPTY_LIST),
    ("config", "list", False): CommandOutput("{}\n"),
    ("config", "list", True): CommandOutput("{}\n"),
    ("config", "ls", False): CommandOutput("{}\n"),
}
# Subcommand → message that names the right command, and exit status. {vendor} is the vendor that
# runs the turns.
COMMAND_SENTENCES = {
    "mcp": CommandOutput("pass servers with --mcp-config, or add them to {vendor} with its CLI", 1),
    "doctor": CommandOutput(
        "This is claude-shim in place of claude; {vendor} runs the turns. `shim vendors` lists "
        "the installed vendors."
    ),
    "update": CommandOutput(
        "This is claude-shim: update it with the tool that installed it. Update {vendor} with its CLI."
    ),
    "install": CommandOutput(
        "This is claude-shim, which is already installed: `shim install` installs it in "
        "another folder."
    ),
    "config": CommandOutput("settings are in the shim's config.toml and in {vendor}'s files", 1),
    "plugin": CommandOutput(
        "each vendor has its own plugins: install them with the CLI of {vendor}", 1
    ),
    "setup-token": CommandOutput("the shim needs no token: use the CLI of {vendor} to log in", 1),
    "auto-mode": CommandOutput("the auto mode and its rules are configured in {vendor}", 1),
    "code": CommandOutput(
        "the shim has no interactive screen: use `claude -p MESSAGE` or `shim run MESSAGE`",
        1,
    ),
    "gateway": CommandOutput("the shim has no gateway: {vendor} runs the turns", 1),
    "import": CommandOutput(
        "the shim cannot import settings: its settings are in config.toml and in {vendor}'s files",
        1,
    ),
    "project": CommandOutput(
        "the shim does not delete Claude's data; `shim sessions` lists the shim's sessions", 1
    ),
    "purge": CommandOutput(
        "the shim does not delete Claude's data; `shim sessions` lists the shim's sessions", 1
    ),
    "remote-control": CommandOutput(
        "only the real Claude supports Remote Control; here {vendor} runs the turns", 1
    ),
    "self-hosted-runner": CommandOutput(
        "the shim cannot be a self-hosted runner: {vendor} runs the turns", 1
    ),
    "ultrareview": CommandOutput(
        "the shim has no review command: ask {vendor} for a review with `claude -p MESSAGE`", 1
    ),
}


def _build_sentence(name: str, action: str, vendor: str) -> CommandOutput:
    output = COMMAND_SENTENCES[name]
    prefix = ""
    if output.status:
        prefix = f"claude {name}{' ' + action[:60] if action else ''}: "
    return output._replace(text=prefix + output.text.format(vendor=_name_vendor(vendor)) + "\n")
