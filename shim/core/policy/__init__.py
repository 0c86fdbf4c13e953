"""Permission rules: what the real claude would decide about a tool call under the same flags and
settings.
"""

PRE_TOOL_EVENT = "PreToolUse"  # the event of the hooks that decide about tool calls
PROMPT_EVENT = "UserPromptSubmit"
RESULT_EVENT, FAILURE_EVENT = "PostToolUse", "PostToolUseFailure"
RESULT_EVENTS = (RESULT_EVENT, FAILURE_EVENT)
PERMISSION_EVENT = "PermissionRequest"
PRE_COMPACT_EVENT, POST_COMPACT_EVENT = "PreCompact", "PostCompact"
SESSION_START_EVENT, SESSION_END_EVENT = "SessionStart", "SessionEnd"
STOP_EVENT, STOP_FAILURE_EVENT = "Stop", "StopFailure"
AGENT_START_EVENT, AGENT_STOP_EVENT = "SubagentStart", "SubagentStop"
AGENT_EVENTS = (AGENT_START_EVENT, AGENT_STOP_EVENT)
# The events whose hooks are called.
HOOK_EVENTS = (
    *(PRE_TOOL_EVENT, PROMPT_EVENT, *RESULT_EVENTS, STOP_EVENT),
    *(SESSION_START_EVENT, SESSION_END_EVENT, PRE_COMPACT_EVENT, POST_COMPACT_EVENT),
    *(STOP_FAILURE_EVENT, PERMISSION_EVENT, *AGENT_EVENTS),
)
