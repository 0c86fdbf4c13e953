"""Permission rules: what the real claude would decide about a tool call under the same flags and
settings.
"""

PRE_TOOL_EVENT = "PreToolUse"  # the event of the hooks that decide about tool calls
# The events whose hooks are called.
HOOK_EVENTS = (
    *(PRE_TOOL_EVENT, "UserPromptSubmit", "PostToolUse", "PostToolUseFailure", "Stop"),
    *("SessionStart", "SessionEnd", "PreCompact", "PostCompact", "StopFailure"),
    *("PermissionRequest", "SubagentStart", "SubagentStop"),
)
