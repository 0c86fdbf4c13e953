"""The turn state machine, which enforces the order of lines in a turn of Claude's stream-json."""
