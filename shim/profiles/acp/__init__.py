"""The Agent Client Protocol, for any agent that supports it. Measured with gemini and opencode.

`session` encodes the messages for the agent and opens its session. `translator` translates its
updates, and `calls` its tool calls. `versions` has the differences between version 1 and the draft
of version 2. `message_and_terminal_store` has the messages and terminals that version 2 updates by
id. The shim offers neither files nor terminals to agents, because every measured agent has its own
and asks before it uses them.
"""
