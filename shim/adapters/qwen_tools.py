"""qwen's tools in Claude's words (qwen page, section 8)."""

from shim.core.adapter.tools import (
    Arguments,
    ToolMapping,
    convert_to_claude_todos,
    convert_zero_based_read_offset,
    translate_tool_call,
)
from shim.core.policy.rules import MCP_PREFIX

# Claude calls them the same, in its own spelling: `exit_plan_mode` is ExitPlanMode.
_PASCAL_CASE_TOOLS = (
    *(
        "exit_plan_mode",
        "enter_plan_mode",
        "notebook_edit",
        "tool_search",
        "monitor",
        "task_stop",
        "send_message",
    ),
    *(
        "list_agents",
        "cron_create",
        "cron_list",
        "cron_delete",
        "enter_worktree",
        "exit_worktree",
        "report_findings",
    ),
    *("structured_output", "ask_user_question", "skill", "web_search"),
)

_TASK = ToolMapping("Task", drop=("fork_context", "fork_session", "fork_turns"))

TOOLS = {name: ToolMapping(name.title().replace("_", "")) for name in _PASCAL_CASE_TOOLS} | {
    "loop_wakeup": ToolMapping("ScheduleWakeup"),
    "read_file": ToolMapping(
        "Read",
        {"absolute_path": "file_path", "path": "file_path"},
        convert={"offset": convert_zero_based_read_offset},
    ),
    "write_file": ToolMapping("Write", drop=("record_as_artifact",)),
    "edit": ToolMapping("Edit"),
    # its `directory` decides what runs
    "run_shell_command": ToolMapping("Bash", {"is_background": "run_in_background"}),
    "glob": ToolMapping("Glob"),
    "grep_search": ToolMapping("Grep", {"limit": "head_limit"}, extra={"output_mode": "content"}),
    "list_directory": ToolMapping("LS", drop=("file_filtering_options",)),
    "todo_write": ToolMapping("TodoWrite", convert={"todos": convert_to_claude_todos}),
    "agent": _TASK,
    "task": _TASK,
    "web_fetch": ToolMapping("WebFetch", drop=("format",)),
    "exit_plan_mode": ToolMapping("ExitPlanMode", drop=("originalRequest", "researchSummary")),
    "ask_user_question": ToolMapping("AskUserQuestion", drop=("metadata",)),
}

# Announced, but no tool a frontend could name: `tool_call` only wraps the others (section 8).
UNLISTED_TOOLS = frozenset(("tool_call",))

# qwen appends a hash to the name of a server's tool that has other characters than letters, digits,
# `_` and `-`, or is longer than 63: 32 bits in base 36, so its first digit is 0 or 1. `s.x` and `do
# it` are `mcp__s_x__do_it_1lf321w`.
HASH_STARTS = ("_0", "_1")
_HASH_CHARS = frozenset("0123456789abcdefghijklmnopqrstuvwxyz")


def strip_tool_name_hash(name: str) -> str:
    """Return the name of a server's tool without qwen's hash. It is the name that Claude has for
    the tool.
    """
    has_hash = (
        name.startswith(MCP_PREFIX)
        and name[-8:-6] in HASH_STARTS
        and _HASH_CHARS.issuperset(name[-6:])
    )
    return name[:-8] if has_hash else name


def translate_qwen_tool_call(name: str, arguments: object) -> tuple[str, Arguments]:
    """Return a call in Claude's words."""
    return translate_tool_call(TOOLS, strip_tool_name_hash(name), arguments)
