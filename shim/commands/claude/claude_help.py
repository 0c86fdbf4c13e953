"""`claude --help`: the flags of the parser, their effects in the shim, and the subcommands."""

import textwrap

from shim.core.claude.argv.flags import ALL_FLAGS, FLAGS

_USAGE = """Usage: claude [options] [prompt]

The shim in place of claude: another agent answers, in Claude's stream-json. `shim --help` lists the shim's commands.

Arguments:
  prompt    the message; text on stdin is added after it

An unknown option is ignored with a warning. A misspelled permission option is refused.
"""

# Field of the Invocation → what its flag does. It has every flag of the shim, and every flag of Claude
# that has an effect.
FLAG_TEXTS = {
    "print_mode": "print the answer and exit (the only mode here)",
    "output_format": "text (default), json (one result) or stream-json",
    "input_format": "text (default) or stream-json (a conversation on stdin)",
    "verbose": "with json: every event, as one array",
    "partial": "write fragments of the reply as they come (stream-json)",
    "replay_user_messages": "repeat the user's messages (stream-json in and out)",
    "model": "the model, or a name in [models]; VENDOR:MODEL chooses the vendor too",
    "fallback_model": "the model if the first is overloaded, where the vendor has that",
    "session_id": "the id of the new session",
    "resume": "resume a session",
    "continue_last": "resume the last session of this directory",
    "fork_session": "resume under a new id",
    "resume_session_at": "resume up to this message; claude only, unless it is the last one",
    "resume_drops_turn": "drop the turn of this message; claude only, refused elsewhere",
    "no_session_persistence": "keep no session",
    "background": "let the session run on its own, and return: `shim help bridge`",
    "name": "what people call the session",
    "system_prompt": "the system prompt",
    "system_prompt_file": "the system prompt, from a file",
    "append_system_prompt": "added to the system prompt",
    "append_system_prompt_file": "added to the system prompt, from a file",
    "allowed_tools": "tools that need no permission",
    "disallowed_tools": "tools that are taken away",
    "tools": 'the only tools; "" for none',
    "permission_mode": "default, plan, acceptEdits, dontAsk, auto or bypassPermissions",
    "permission_prompts": "who is asked for permission",
    "permission_prompt_tool": "stdio: permission is asked for on stdout and given on stdin",
    "skip_permissions": "the same as --permission-mode bypassPermissions",
    "allow_skip_permissions": "let the session choose that mode later",
    "restricted": "accepted, without effect",
    "max_turns": "end the turn after so many replies",
    "max_budget_usd": "end the turn beyond this cost, where the vendor names costs",
    "max_thinking_tokens": "how much the model may think, where the vendor has that",
    "thinking": "how the model thinks, where the vendor has that",
    "effort": "how hard the model tries, where the vendor has that",
    "add_dirs": "more directories that tools may use",
    "mcp_config": "MCP servers, as JSON or files, where the vendor has that",
    "strict_mcp_config": "only those MCP servers; no effect except on a real claude",
    "settings": "Claude's settings: the rules that deny and allow, and the mode",
    "setting_sources": "which of Claude's settings files count: user, project, local",
    "json_schema": "the answer is one JSON object that fits this schema",
    "version": "print the version of Claude that is imitated",
    "help": "print this",
    "shim_vendor": "the vendor (goes before SHIM_VENDOR and the settings)",
    "shim_record": "record the run: a file, or a directory",
    "shim_dialect": "claude (default) or yume",
    "shim_terminator": "the line after a result: auto, message_stop, dollar or none",
    "shim_config": "another settings file",
    "shim_log": "write a log: LEVEL or LEVEL:FILE",
    "shim_explain": "say what would be started and why, and start nothing",
}
# Flags without a field that have an effect with other vendors too.
EXTRA_FLAG_TEXTS = {"--forward-subagent-text": "write the texts and thoughts of subagents too"}
SUBCOMMAND_TEXTS = {
    "auth": "status [--text], login, logout",
    "mcp": "list; servers are given with --mcp-config or in the vendor's own CLI",
    "agents": "[--json] [--all] [--cwd PATH]: the background sessions",
    "attach": "open a background session: ID or NAME",
    "logs": "what was said in a background session: ID or NAME",
    "stop": "end a background session: ID (also kill)",
    "rm": "end a background session and forget it: ID",
    "respawn": "begin a background session again: ID, or --all",
    "daemon": "status, logs, stop --any: there is none, only sessions",
    "doctor": "which vendor runs the turns",
    "update": "how the shim is updated (also upgrade)",
    "install": "how the shim is put somewhere else",
    "config": "list; settings are in the shim's config.toml",
    "plugin": "list; plugins are the vendor's own (also plugins)",
    "setup-token": "not needed",
}
# The real claude prints these lines if the arguments are wrong (B25).
USAGE_TEXTS = {
    "agents": "Usage: claude agents [options]",
    "attach": "Usage: claude attach <id|name>",
    "logs": "Usage: claude logs <id|name>",
    "stop": "Usage: claude stop <id>",
    "rm": "Usage: claude rm <id>",
    "respawn": "Usage: claude respawn <id>|--all",
    "daemon": "Usage: claude daemon [subcommand] [options]",
}
# Subcommands of Claude that the shim does not have. They are refused, because they are not prompts
# either.
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
        ("Accepted, without effect except on a real claude:", others),
        ("Commands (none of them starts a vendor):", commands),
        ("Claude's, and refused here:", refused),
    )
    return _USAGE + "".join(f"\n{title}\n" + "\n".join(lines) + "\n" for title, lines in parts)


def format_subcommand_help(name: str) -> str:
    if name == "kill":
        name = "stop"
    description = SUBCOMMAND_TEXTS.get(name, "Claude's; not here")
    usage = USAGE_TEXTS.get(name)
    if not usage:
        usage = f"Usage: claude {name} [action] [options]"
    more_text = ""
    if name in USAGE_TEXTS:
        more_text = "More about it: shim help bridge\n"
    return f"{usage}\n\n{name}: {description}\n{more_text}"


def _format_line(spelling: str, description: str) -> str:
    if len(spelling) > SPELLING_COLUMNS:
        gap = "\n" + " " * (SPELLING_COLUMNS + 4)
    else:
        gap = " " * (SPELLING_COLUMNS + 2 - len(spelling))
    return f"  {spelling}{gap}{description}"
