"""The Turn: the state machine that owns every invariant of a turn of Claude's stream-json."""
