"""Formats `claude --help`: the flags that the parser knows, their effects in the shim, and the
subcommands.
"""

import textwrap

from shim.core.claude.argv.flags import ALL_FLAGS, FLAGS

_USAGE = """Usage: claude [options] [prompt]

claude-shim: runs another agent in place of claude, with Claude's stream-json output.
`shim --help` lists the shim's commands.

Arguments:
  prompt    the message; text on stdin is added after it

An unknown option is ignored with a warning. A misspelled permission option is refused.
"""

# Invocation field → description of its flag. The table contains all flags of the shim, and all of
# Claude's flags that have an effect.
FLAG_TEXTS = {
    "print_mode": "print the answer and exit (one-shot mode)",
    "output_format": "text (default), json (one result) or stream-json",
    "input_format": "text (default) or stream-json (a conversation on stdin)",
    "verbose": "with json: print all events as one array",
    "partial": "write partial messages as they arrive (stream-json)",
    "replay_user_messages": "also write the user's messages to stdout (stream-json in and out)",
    "model": "the model, or a name in [models]; VENDOR:MODEL also selects the vendor",
    "fallback_model": "the model to use if --model is overloaded, if the vendor supports it",
    "session_id": "the id of the new session",
    "resume": "resume a session",
    "continue_last": "resume the last session of this directory",
    "fork_session": "resume under a new id",
    "resume_session_at": "with --resume: drop all messages after this message",
    "resume_drops_turn": "with --resume-session-at: the only turn that may be dropped",
    "no_session_persistence": "do not store the session",
    "background": "run the session in the background (see `shim help bridge`)",
    "name": "a display name for the session",
    "machine": "with --bg: start the session on this machine",
    "cwd": "with --machine: the session's folder on that machine",
    "system_prompt": "the system prompt",
    "system_prompt_file": "the system prompt, from a file",
    "append_system_prompt": "append text to the system prompt",
    "append_system_prompt_file": "append the text of a file to the system prompt",
    "allowed_tools": "tools to auto-approve",
    "disallowed_tools": "tools to disable",
    "tools": 'make only these tools available; "" for none',
    "permission_mode": "default, plan, acceptEdits, dontAsk, auto or bypassPermissions",
    "permission_prompts": "the target of permission prompts",
    "permission_prompt_tool": "stdio: permission prompts on stdout, answers on stdin",
    "skip_permissions": "the same as --permission-mode bypassPermissions",
    "allow_skip_permissions": "let the session switch to bypassPermissions later",
    "restricted": "accepted, but has no effect",
    "max_turns": "stop the turn after this many replies",
    "max_budget_usd": "stop the turn when it exceeds this cost, if the vendor reports costs",
    "max_thinking_tokens": "the limit for thinking, if the vendor supports it",
    "thinking": "the thinking mode, if the vendor supports it",
    "effort": "the effort level, if the vendor supports it",
    "add_dirs": "additional directories that tools may use",
    "mcp_config": "MCP servers, as JSON or files, if the vendor supports them",
    "strict_mcp_config": "use only the servers of --mcp-config; needs the real claude",
    "settings": "Claude's settings: permission rules and the permission mode",
    "setting_sources": "which of Claude's settings files to load: user, project, local",
    "json_schema": "require an answer that is one JSON object valid for this schema",
    "version": "print the version of Claude that the shim emulates",
    "help": "print this help",
    "shim_vendor": "the vendor (takes precedence over SHIM_VENDOR and the settings)",
    "shim_record": "record the run to this file or directory",
    "shim_dialect": "claude (default) or yume",
    "shim_terminator": "the line after each result: auto, message_stop, dollar or none",
    "shim_config": "use this settings file of the shim",
    "shim_log": "write a log: LEVEL or LEVEL:FILE",
    "shim_explain": "print what would be started and why, without starting it",
}
# Flags without an Invocation field that also have an effect with other vendors.
EXTRA_FLAG_TEXTS = {
    "--forward-subagent-text": "also write the text and thinking of subagents",
    "--session-mirror": "write the new entries of the transcript to stdout (stream-json)",
}
SUBCOMMAND_TEXTS = {
    "auth": "status [--text], login, logout",
    "mcp": "list (always empty; add servers with --mcp-config or the vendor's CLI)",
    "agents": "[--json] [--all] [--cwd PATH]: list background sessions",
    "attach": "ID or NAME: attach to a background session",
    "logs": "ID or NAME: print the recent output of a background session",
    "stop": "ID: stop a background session (alias: kill)",
    "rm": "ID: stop and remove a background session",
    "respawn": "ID or --all: restart background sessions",
    "daemon": "status, logs, stop --any (no daemon exists, only sessions)",
    "doctor": "print which vendor runs the turns",
    "update": "explain how to update the shim (alias: upgrade)",
    "install": "explain how to install the shim in another folder",
    "config": "list (always empty; the settings are in the shim's config.toml)",
    "plugin": "list (always empty; each vendor has its own plugins; alias: plugins)",
    "setup-token": "not needed",
}
# Lines that the real claude prints if the arguments are wrong (B25).
USAGE_TEXTS = {
    "agents": "Usage: claude agents [options]",
    "attach": "Usage: claude attach <id|name>",
    "logs": "Usage: claude logs <id|name>",
    "stop": "Usage: claude stop <id>",
    "rm": "Usage: claude rm <id>",
    "respawn": "Usage: claude respawn <id>|--all",
    "daemon": "Usage: claude daemon [subcommand] [options]",
}
# Claude subcommands that the shim does not support.
# They are refused, because they would otherwise be sent as prompts.
REFUSED_COMMANDS = (
    *(
        "auto-mode",
        "code",
        "gateway",
        "import",
        "project",
        "purge",
        "remote-control",
        "rc",
        "remote",
        "bridge",
        "sync",
    ),
    *("self-hosted-runner", "ultrareview"),
)
SPELLING_COLUMNS = 46
PARAGRAPH_COLUMNS = 118


def format_claude_help() -> str:
    shim_lines = [
        _format_line(FLAGS[field], description)
        for field, description in FLAG_TEXTS.items()
        if field.startswith("shim_")
    ]
    claude_lines = [
        _format_line(FLAGS[field], description)
        for field, description in FLAG_TEXTS.items()
        if not field.startswith("shim_")
    ]
    claude_lines += [
        _format_line(flag, description) for flag, description in EXTRA_FLAG_TEXTS.items()
    ]
    others = [
        f"  {flag.spelling}"
        for flag in ALL_FLAGS
        if flag.field == "other_flags" and flag.spelling not in EXTRA_FLAG_TEXTS
    ]
    commands = [_format_line(name, description) for name, description in SUBCOMMAND_TEXTS.items()]
    refused = textwrap.wrap(
        ", ".join(REFUSED_COMMANDS), PARAGRAPH_COLUMNS, initial_indent="  ", subsequent_indent="  "
    )
    parts = (
        ("Options:", claude_lines),
        ("Options of the shim:", shim_lines),
        ("Options that are accepted, but have an effect only with the real claude:", others),
        ("Commands (they do not start a vendor):", commands),
        ("Claude commands that the shim does not support:", refused),
    )
    return _USAGE + "".join(f"\n{title}\n" + "\n".join(lines) + "\n" for title, lines in parts)


def format_subcommand_help(name: str) -> str:
    if name == "kill":
        name = "stop"
    description = SUBCOMMAND_TEXTS.get(name, "a Claude command that the shim does not support")
    usage = USAGE_TEXTS.get(name) or f"Usage: claude {name} [action] [options]"
    more_text = ""
    if name in USAGE_TEXTS:
        more_text = "For more information, run `shim help bridge`.\n"
    return f"{usage}\n\n{name}: {description}\n{more_text}"


def _format_line(spelling: str, description: str) -> str:
    if len(spelling) > SPELLING_COLUMNS:
        gap = "\n" + " " * (SPELLING_COLUMNS + 4)
    else:
        gap = " " * (SPELLING_COLUMNS + 2 - len(spelling))
    return f"  {spelling}{gap}{description}"
