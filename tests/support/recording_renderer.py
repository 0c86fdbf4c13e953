"""Renders recordings for tests, in a terminal or in a pipe."""

import io
import json
import re
import tempfile
from pathlib import Path
from typing import Any

from cast_builder import Moment, build_case_recording, build_recording
from fixture_cases import ROOT, find_case
from rich.console import Console
from story_builder import (
    INIT,
    build_assistant_line,
    build_delta,
    build_message_start,
    build_permission_answer,
    build_permission_request,
    build_result_line,
    build_stream_event,
    build_text_block,
    build_tool_result_line,
    build_tool_use,
    build_user_line,
)

from shim.story.terminal.show import draw_recording

GOLDENS = ROOT / "tests" / "golden" / "show"

# Together they show: an edit with its patch, a failure, parallel calls, subagents, background agents,
# retries, repairs, a todo list, and every kind of call.
CASES = (
    "claude/2.1.327-api-err529",
    "claude/2.1.327-denied-bash",
    "claude/2.1.327-tool-agent",
    "claude/2.1.327-tool-edit",
    "cursor/handmade-tool-zoo",
    "pi/1.5.2-bash-fail",
    "pi/1.5.2-edit-multi",
    "pi/1.5.2-parallel",
    "pi/1.5.2-think-tool",
    "pi/seed-auto-retry",
    "qwen/0.24.4-todo-enabled",
    "qwen/handmade-subagent-foreground",
    "torture/pi-noise-lines",
)
MARKDOWN = """# A heading

Some **bold** words and a [link](https://example.com/a?b).

```python
def greet(name: str) -> str:
    return name
```

- one
- two
"""


def encode_line(event: Any) -> bytes:
    """Encode an event as a line."""
    return json.dumps(event).encode() + b"\n"


def build_conversation_recording() -> bytes:
    """Build a conversation of two turns, with every kind of step that no fixture has."""
    argv = [
        "--output-format",
        "stream-json",
        "--input-format",
        "stream-json",
        "--include-partial-messages",
    ]
    thought = {
        "type": "thinking",
        "thinking": "First I look around.\nThen I do it.\n\nThen I am done.",
    }
    edit = {
        "file_path": "/repo/a.py",
        "old_string": "a = 1\nb = 2\n",
        "new_string": "a = 1\nb = 3\nc = 4\n",
    }
    compacted = {"type": "system", "subtype": "compact_boundary"} | {
        "compact_metadata": {"trigger": "auto", "pre_tokens": 150000}
    }
    interrupt = {"type": "control_request", "request_id": "i", "request": {"subtype": "interrupt"}}
    moments: list[tuple[float, str, Any]] = [
        (0.1, "i", build_user_line("make it better\nand quickly")),
        (0.3, "O", INIT | {"shim": {"vendor": "pi", "unattended": True}}),
        (1.0, "O", build_assistant_line(thought)),
        (1.2, "O", build_message_start()),
        (1.2, "O", build_delta(MARKDOWN[:40])),
        (2.4, "O", build_delta(MARKDOWN[40:])),
        (2.4, "O", build_assistant_line(build_text_block(MARKDOWN))),
        (2.4, "O", build_stream_event("content_block_stop")),
        (
            3.0,
            "O",
            build_assistant_line(
                build_tool_use(
                    "b",
                    command="for i in 1 2 3\ndo echo $i\ndone",
                    description="count",
                    timeout=5000,
                )
            ),
        ),
        (5.0, "O", build_tool_result_line("b", "\n".join(map(str, range(1, 31))))),
        (5.5, "O", build_assistant_line(build_tool_use("e", "Edit", **edit))),
        (5.6, "O", build_permission_request("q", "e", "Edit", **edit)),
        (7.1, "i", build_permission_answer("q", "allow")),
        (8.0, "O", build_tool_result_line("e", "The file has been updated")),
        (
            8.2,
            "O",
            build_assistant_line(
                build_tool_use("w", "Write", file_path="/repo/new.py", content="x = 1\ny = 2\n")
            ),
        ),
        (8.3, "O", build_permission_request("r", "w", "Write", file_path="/repo/new.py")),
        (9.0, "i", build_permission_answer("r", "deny")),
        (9.1, "O", build_tool_result_line("w", "the person said no", failed=True)),
        (9.2, "O", compacted),
        (9.3, "n", {"kind": "timeout", "seconds": 5}),
        (
            10.0,
            "O",
            build_result_line(
                0.12, num_turns=4, shim={"cause": "clean", "repairs": {"not_json": 2}}
            ),
        ),
        (70.0, "i", build_user_line("once more")),
        (
            70.5,
            "O",
            build_assistant_line(
                build_text_block("I will."), build_tool_use("s", command="sleep 100")
            ),
        ),
        (95.0, "i", interrupt),
        (
            95.2,
            "O",
            build_result_line(
                0.15,
                num_turns=2,
                is_error=True,
                subtype="error_during_execution",
                errors=["stopped"],
            ),
        ),
    ]
    lines: list[Moment] = [
        (at, letter, fact if letter == "n" else encode_line(fact)) for at, letter, fact in moments
    ]
    lines.insert(2, (0.2, "s", {"child": 1, "turn": 1, "argv": ["pi"], "cwd": "/repo"}))
    lines.insert(3, (0.25, "I", b"make it better\n"))
    lines.insert(4, (0.27, "o", b'{"type":"session","caf\xe9":1}\n'))
    lines.insert(5, (0.28, "e", b"a warning without an end"))
    lines.append((96.0, "x", {"child": 1, "code": 0, "signal": None}))
    return build_recording(lines, argv=argv, vendor_version="0.87.1")


def render_recording(
    cast: bytes | Path, *, terminal: bool = False, width: int = 100, **options: Any
) -> str:
    """Return the rendered recording, in a terminal or in a pipe."""
    console = Console(
        file=io.StringIO(), force_terminal=terminal, width=width, highlight=False, markup=False, emoji=False,
        color_system="standard" if terminal else None, _environ={},
    )  # fmt: skip
    if isinstance(cast, Path):
        draw_recording(str(cast), console, **options)
    else:
        with tempfile.NamedTemporaryFile(suffix=".cast") as file:
            file.write(cast)
            file.flush()
            draw_recording(file.name, console, **options)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def render_goldens() -> dict[str, str]:
    """Return name of a golden → the rendered recording in a pipe."""
    outputs = {
        name.replace("/", "-"): render_recording(build_case_recording(find_case(name)))
        for name in CASES
    }
    outputs["conversation"] = render_recording(build_conversation_recording())
    outputs["conversation-full"] = render_recording(
        build_conversation_recording(), full=True, thinking=True
    )
    outputs["conversation-raw"] = render_recording(build_conversation_recording(), raw=True)
    outputs["conversation-raw-160-columns"] = strip_styles(
        render_recording(build_conversation_recording(), terminal=True, width=160, raw=True)
    )
    return outputs


SGR = re.compile(r"\x1b\[[0-9;]*m")


def strip_styles(drawn: str) -> str:
    """Return the text of a terminal without its colors."""
    return "\n".join(line.rstrip() for line in SGR.sub("", drawn).split("\n"))
