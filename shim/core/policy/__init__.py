"""Permission rules: what the real claude would decide about a tool call under the same flags and
settings.
"""

PRE_TOOL_EVENT = "PreToolUse"  # the event of the hooks that decide about tool calls
