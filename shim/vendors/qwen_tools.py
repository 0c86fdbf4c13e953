"""qwen's tools in Claude's words (qwen page, section 8)."""

from shim.core.vendor.tools import Tool, one_based, todos

# Claude calls them the same, in its own spelling: `exit_plan_mode` is ExitPlanMode.
_PASCAL = (
    *("exit_plan_mode", "enter_plan_mode", "notebook_edit", "tool_search", "monitor", "task_stop", "send_message"),
    *("list_agents", "cron_create", "cron_list", "cron_delete", "enter_worktree", "exit_worktree", "report_findings"),
    *("structured_output", "ask_user_question", "skill", "web_search"),
)

_TASK = Tool("Task", drop=("fork_context", "fork_session", "fork_turns"))

TOOLS = {name: Tool(name.title().replace("_", "")) for name in _PASCAL} | {
    "loop_wakeup": Tool("ScheduleWakeup"),
    "read_file": Tool("Read", {"absolute_path": "file_path", "path": "file_path"}, convert={"offset": one_based}),
    "write_file": Tool("Write", drop=("record_as_artifact",)),
    "edit": Tool("Edit"),
    "run_shell_command": Tool("Bash", {"is_background": "run_in_background"}),  # its `directory` decides what runs
    "glob": Tool("Glob"),
    "grep_search": Tool("Grep", {"limit": "head_limit"}, extra={"output_mode": "content"}),
    "list_directory": Tool("LS", drop=("file_filtering_options",)),
    "todo_write": Tool("TodoWrite", convert={"todos": todos}),
    "agent": _TASK,
    "task": _TASK,
    "web_fetch": Tool("WebFetch", drop=("format",)),
    "exit_plan_mode": Tool("ExitPlanMode", drop=("originalRequest", "researchSummary")),
    "ask_user_question": Tool("AskUserQuestion", drop=("metadata",)),
}

# Announced, but no tool a frontend could name: `tool_call` only wraps the others (section 8).
NOT_LISTED = frozenset(("tool_call",))
