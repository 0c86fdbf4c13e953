"""The Turn: the state machine that enforces the rules of one turn in Claude's stream-json."""
