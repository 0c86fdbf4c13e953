"""qwen's tools in Claude's words (qwen page, section 8)."""

from shim.core.vendor.tools import Tool, one_based, todos

_PASCAL = {
    "exit_plan_mode": "ExitPlanMode",
    "enter_plan_mode": "EnterPlanMode",
    "notebook_edit": "NotebookEdit",
    "tool_search": "ToolSearch",
    "monitor": "Monitor",
    "task_stop": "TaskStop",
    "send_message": "SendMessage",
    "list_agents": "ListAgents",
    "cron_create": "CronCreate",
    "cron_list": "CronList",
    "cron_delete": "CronDelete",
    "loop_wakeup": "ScheduleWakeup",
    "enter_worktree": "EnterWorktree",
    "exit_worktree": "ExitWorktree",
    "report_findings": "ReportFindings",
    "structured_output": "StructuredOutput",
    "ask_user_question": "AskUserQuestion",
    "skill": "Skill",
    "web_search": "WebSearch",
}

_TASK = Tool("Task", drop=("fork_context", "fork_session", "fork_turns"))

TOOLS = {name: Tool(claude) for name, claude in _PASCAL.items()} | {
    "read_file": Tool("Read", {"absolute_path": "file_path", "path": "file_path"}, convert={"offset": one_based}),
    "write_file": Tool("Write", drop=("record_as_artifact",)),
    "edit": Tool("Edit"),
    "run_shell_command": Tool("Bash", {"is_background": "run_in_background"}, drop=("directory",)),
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
