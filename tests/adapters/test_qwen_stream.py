"""qwen's stream where it differs slightly from Claude's."""

import json

from stream_lines import parse_lines, summarize_lines

from shim.conversation.drivers.open_translation import create_standalone_child_stream
from shim.core.turn.outcome import ChildExit

CALL = {"type": "tool_use", "id": "c", "name": "run_shell_command", "input": {"command": "ls"}}
RESULT = {"type": "tool_result", "tool_use_id": "c", "content": "a b"}


def test_tool_result_with_its_call_as_parent_is_not_nested():
    """Older versions do so (qwen-rfc page, 1)."""
    events = [
        {"type": "assistant", "message": {"content": [CALL]}},
        {"type": "user", "parent_tool_use_id": "c", "message": {"content": [RESULT]}},
    ]
    translation = create_standalone_child_stream("qwen", stable_ids=True)
    output = translation.feed("".join(json.dumps(event) + "\n" for event in events).encode())[0]
    assert summarize_lines(parse_lines(output + translation.close(ChildExit(code=0))[0]))[1:3] == [
        "call:c Bash",
        "result:c a b",
    ]
