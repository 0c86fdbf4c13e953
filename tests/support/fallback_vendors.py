"""Vendors for fallback lists: the same small profile under several names, and the output of such a
program.
"""

from pathlib import Path
from typing import Any

from box import Box, format_ndjson
from stream_lines import Line

PROFILE = """
schema = 1
id = "NAME"

[launch]
command = ["NAME"]
argv = [
  { when = "permission_args" },
  { when = "model", args = ["--model", "{model}"] },
  { when = "resume", args = ["--resume", "{resume}"] },
  { when = "prompt_argument", args = ["{prompt}"] },
]
prompt = { via = "arg" }

[launch.permission_args]
default = []
bypassPermissions = ["--all"]

[stream]
text = "final"
usage = "request"

[[event]]
match = { type = "hello" }
emit = "session"
session_id = "id"
model = "model"
tools = "tools"

[[event]]
match = { type = "say" }
emit = "text"
text = "text"

[[event]]
match = { type = "think" }
emit = "thinking"
text = "text"

[[event]]
match = { type = "run" }
emit = "tool_use"
id = "id"
name = "name"
input = "with"

[[event]]
match = { type = "ran" }
emit = "tool_result"
id = "id"
content = "out"

[[event]]
match = { type = "wait" }
emit = "retry"
attempt = "attempt"
max = "of"
text = "for"

[[event]]
match = { type = "bye" }
emit = "result"
is_error = "failed"
error = "why"

[tools.shell]
name = "Bash"
args = { command = "cmd" }
"""


def build_hello(session_id: str, **more: Any) -> Line:
    """Build the first event with the session and other fields."""
    return {"type": "hello", "id": session_id, **more}


def build_text_event(text: str) -> Line:
    return {"type": "say", "text": text}


BYE = {"type": "bye"}


def build_failure(why: str) -> Line:
    """Build the end of a failed turn."""
    return {"type": "bye", "failed": True, "why": why}


def format_stream(name: str) -> str:
    """Return the complete stream of the vendor `name`."""
    return format_ndjson(
        build_hello(f"{name}-1", model=f"{name}-model", tools=["shell"]),
        build_text_event(f"I am {name}."),
        BYE,
    )


UNAUTHORIZED = build_failure("401 Unauthorized: invalid API key")
LIMITED = build_failure("429 Too Many Requests: rate limit exceeded")


class Several:
    """The vendors ant, bee and cow of a box, listed in this order in its settings."""

    names = ("ant", "bee", "cow")

    def __init__(self, box: Box, *names: str) -> None:
        self.box = box
        for name in self.names:
            self._build_profile_path(name).parent.mkdir(parents=True, exist_ok=True)
            self._build_profile_path(name).write_text(
                PROFILE.replace("NAME", name), encoding="utf-8"
            )
        self.write_settings(*names)

    def write_settings(self, *names: str, more: str = "") -> None:
        """Write settings with the list and other lines."""
        self.box.write_settings(f"vendor = {list(names or self.names)}\n{more}")

    def _build_profile_path(self, name: str) -> Path:
        return self.box.config.parent / "vendors" / f"{name}.toml"

    def set_unattended(self, name: str) -> None:
        """Declare that this vendor runs its tools without asking."""
        text = self._build_profile_path(name).read_text(encoding="utf-8")
        self._build_profile_path(name).write_text("unattended = true\n" + text, encoding="utf-8")

    def set_output(self, name: str, *events: Line, code: int = 0, stderr: str = "") -> None:
        """Set what a vendor's program does at each start. Its last start is recorded."""
        self.box.create_fake(
            ["record", str(self.build_record_path(name))],
            ["out", format_ndjson(*events)],
            ["complain", stderr],
            ["leave", code],
            name=name,
        )

    def set_answers(self, *names: str) -> None:
        """Let these vendors answer."""
        for name in names:
            self.box.create_fake(
                ["record", str(self.build_record_path(name))],
                ["out", format_stream(name)],
                name=name,
            )

    def build_record_path(self, name: str) -> Any:
        """Return the path of the file that records how a vendor was started."""
        return self.box.path / f"{name}.json"
