"""The program of the demo vendor. It plays a small session, with the pauses of a model and its
tools.
"""

import json
import os
import sys
import time
import uuid
from collections.abc import Iterator
from typing import Any

PAUSE = 0.045  # between two words
THOUGHT = 0.35  # before a reply

FILE = "greet.py"
BEFORE = 'def greet(name):\n    return "Hello " + name\n'
AFTER = 'def greet(name: str) -> str:\n    return f"Hello, {name}!"\n'


def words(kind: str, text: str) -> Iterator[dict[str, Any]]:
    """A text as fragments, a word each."""
    for position, word in enumerate(text.split(" ")):
        yield {"type": kind, "text": f" {word}" if position else word}


def reply(tokens: int, reason: str) -> dict[str, Any]:
    usage = {"input_tokens": 1200 + tokens, "cache_read_input_tokens": 900, "output_tokens": tokens}
    return {
        "type": "reply",
        "usage": {"cache_creation_input_tokens": 0} | usage,
        "reason": reason,
        "cost": 0.0021,
    }


def session(prompt: str, cwd: str, identity: str) -> Iterator[dict[str, Any]]:
    """The events of the session. Nothing is read from the disk or written to it."""
    path = os.path.join(cwd, FILE)
    yield {
        "type": "start",
        "session": identity,
        "cwd": cwd,
        "model": "demo-1",
        "tools": ["Read", "Edit", "Bash"],
    }
    yield from words(
        "thinking", f"The request is: {prompt[:200]!r}. I look at the file before I change it."
    )
    yield from words("text", f"Let me look at `{FILE}` first.")
    yield {"type": "call", "id": "call_1", "name": "Read", "input": {"file_path": path}}
    yield reply(41, "tool_use")
    yield {"type": "result", "id": "call_1", "output": BEFORE}
    yield from words("text", "It has no type hints and glues strings together; I change both.")
    edit = {"file_path": path, "old_string": BEFORE, "new_string": AFTER}
    yield {"type": "call", "id": "call_2", "name": "Edit", "input": edit}
    yield reply(73, "tool_use")
    yield {
        "type": "result",
        "id": "call_2",
        "output": f"{FILE} was changed (demo: nothing was written)",
    }
    yield {
        "type": "call",
        "id": "call_3",
        "name": "Bash",
        "input": {"command": "python -m pytest -q"},
    }
    yield reply(22, "tool_use")
    yield {"type": "result", "id": "call_3", "output": "3 passed in 0.04s"}
    yield from words("text", "Done: `greet` is typed, uses an f-string, and the three tests pass.")
    yield reply(35, "end_turn")
    yield {"type": "end"}


def main() -> None:
    """Print the session, one event a line, with pauses."""
    identity = sys.argv[1] if len(sys.argv) > 1 else str(uuid.uuid4())
    for event in session(sys.stdin.read().strip(), os.getcwd(), identity):
        if event["type"] in ("thinking", "text"):
            time.sleep(PAUSE)
        elif event["type"] in ("result", "start"):
            time.sleep(THOUGHT)
        sys.stdout.write(json.dumps(event) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
