"""The Agent Client Protocol, for any agent that speaks it. Measured with gemini and opencode.

`session` encodes what the agent is told and opens its session. `translator` translates its updates,
`calls` its tool calls. `versions` has the differences between version 1 and the draft of version 2,
and `message_and_terminal_store` what version 2 updates by id. We offer neither files nor terminals:
each measured agent has its own, and asks before it uses them.
"""
