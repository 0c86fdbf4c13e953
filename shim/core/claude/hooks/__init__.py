"""Claude's hooks: callbacks in the frontend, and commands from Claude's settings files."""
