"""The program of the demo vendor. It prints a short session with the pauses of a real model and its
tools.
"""

import json
import os
import sys
import time
import uuid
from collections.abc import Iterator
from typing import Any

TOKEN_PAUSE_S = 0.045  # between two words
REPLY_PAUSE_S = 0.35  # before a reply

FILE_NAME = "greet.py"
OLD_TEXT = 'def greet(name):\n    return "Hello " + name\n'
NEW_TEXT = 'def greet(name: str) -> str:\n    return f"Hello, {name}!"\n'


def generate_text_fragment_events(kind: str, text: str) -> Iterator[dict[str, Any]]:
    """Yield a text as streamed fragments of one word each."""
    for position, token in enumerate(text.split(" ")):
        yield {"type": kind, "text": f" {token}" if position else token}


def build_reply_event(output_tokens: int, reason: str) -> dict[str, Any]:
    usage = {
        "input_tokens": 1200 + output_tokens,
        "cache_read_input_tokens": 900,
        "output_tokens": output_tokens,
    }
    return {
        "type": "reply",
        "usage": {"cache_creation_input_tokens": 0} | usage,
        "reason": reason,
        "cost": 0.0021,
    }


def generate_demo_events(prompt: str, cwd: str, session_id: str) -> Iterator[dict[str, Any]]:
    """Yield the events of the demo session. No file is read or written."""
    path = os.path.join(cwd, FILE_NAME)
    yield {
        "type": "start",
        "session": session_id,
        "cwd": cwd,
        "model": "demo-1",
        "tools": ["Read", "Edit", "Bash"],
    }
    yield from generate_text_fragment_events(
        "thinking", f"The request is: {prompt[:200]!r}. I look at the file before I change it."
    )
    yield from generate_text_fragment_events("text", f"Let me look at `{FILE_NAME}` first.")
    yield {"type": "call", "id": "call_1", "name": "Read", "input": {"file_path": path}}
    yield build_reply_event(41, "tool_use")
    yield {"type": "result", "id": "call_1", "output": OLD_TEXT}
    yield from generate_text_fragment_events(
        "text", "It has no type hints and glues strings together; I change both."
    )
    edit = {"file_path": path, "old_string": OLD_TEXT, "new_string": NEW_TEXT}
    yield {"type": "call", "id": "call_2", "name": "Edit", "input": edit}
    yield build_reply_event(73, "tool_use")
    yield {
        "type": "result",
        "id": "call_2",
        "output": f"{FILE_NAME} was changed (demo: nothing was written)",
    }
    yield {
        "type": "call",
        "id": "call_3",
        "name": "Bash",
        "input": {"command": "python -m pytest -q"},
    }
    yield build_reply_event(22, "tool_use")
    yield {"type": "result", "id": "call_3", "output": "3 passed in 0.04s"}
    yield from generate_text_fragment_events(
        "text", "Done: `greet` is typed, uses an f-string, and the three tests pass."
    )
    yield build_reply_event(35, "end_turn")
    yield {"type": "end"}


def main() -> None:
    """Print the demo session with pauses, one event per line."""
    if len(sys.argv) > 1:
        session_id = sys.argv[1]
    else:
        session_id = str(uuid.uuid4())
    for event in generate_demo_events(sys.stdin.read().strip(), os.getcwd(), session_id):
        if event["type"] in ("thinking", "text"):
            time.sleep(TOKEN_PAUSE_S)
        elif event["type"] in ("result", "start"):
            time.sleep(REPLY_PAUSE_S)
        sys.stdout.write(json.dumps(event) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
