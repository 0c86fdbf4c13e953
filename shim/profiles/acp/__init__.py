"""The Agent Client Protocol (ACP), for any agent that supports it. The behavior was measured with
gemini and opencode.

`session` encodes the messages for the agent and opens its session. `translator` translates the
session updates, and `calls` the tool calls. `versions` has the differences between version 1 and
the draft of version 2. `message_and_terminal_store` stores the messages and terminals that version
2 updates by id.

The shim does not offer file or terminal access to agents. Every measured agent has its own file and
terminal tools, and asks for permission before it uses them.
"""
