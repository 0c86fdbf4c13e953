"""Builds sessions for tests of exports: with every kind of step, with hostile texts, and with many
steps.
"""

import json
import tempfile
from typing import Any

from cast_builder import Moment, build_recording

from shim.story.export.markdown import write_recording_export

SESSION = "11111111-2222-4333-8444-555555555555"
STREAMED = ("-p", "--input-format", "stream-json", "--output-format", "stream-json", "--verbose")


class SessionBuilder:
    """Builds a session line by line. `at` is its clock in seconds."""

    def __init__(self) -> None:
        self.at = 0.0
        self.moments: list[Moment] = []
        self._count = 0

    def advance_time(self, seconds: float) -> "SessionBuilder":
        """Advance the clock."""
        self.at += seconds
        return self

    def _add_record(self, letter: str, event: dict[str, Any]) -> "SessionBuilder":
        self.moments.append((self.at, letter, json.dumps(event).encode() + b"\n"))
        return self

    def add_line(self, kind: str, **fields: Any) -> "SessionBuilder":
        """Add a line of the drop-in."""
        return self._add_record("O", {"type": kind, "session_id": SESSION, **fields})

    def add_prompt(self, text: str) -> "SessionBuilder":
        """Add a user message."""
        return self._add_record("i", {"type": "user", "message": {"role": "user", "content": text}})

    def add_init(self, **fields: Any) -> "SessionBuilder":
        """Add the start of a turn."""
        defaults = {
            "cwd": "/home/user/project",
            "model": "sonnet",
            "tools": ["Read", "Edit"],
            "permissionMode": "default",
        }
        return self.add_line("system", subtype="init", **{**defaults, **fields})

    def add_message(self, *blocks: dict[str, Any], parent: str | None = None) -> "SessionBuilder":
        """Add a reply with complete blocks."""
        self._count += 1
        message = {
            "id": f"msg_{self._count}",
            "role": "assistant",
            "model": "sonnet",
            "content": list(blocks),
        }
        return self.add_line("assistant", message=message, parent_tool_use_id=parent)

    def add_text(self, text: str, parent: str | None = None) -> "SessionBuilder":
        """Add a text that was not streamed."""
        return self.add_message({"type": "text", "text": text}, parent=parent)

    def stream_text(self, text: str, kind: str = "text", seconds: float = 2.0) -> "SessionBuilder":
        """Stream a text word by word in this number of seconds."""
        self._count += 1
        self._add_stream_event(type="message_start", message={"id": f"msg_{self._count}"})
        tokens = text.split(" ")
        for number, token in enumerate(tokens):
            self.advance_time(seconds / len(tokens))
            fragment = token if number == 0 else f" {token}"
            self._add_stream_event(
                type="content_block_delta", delta={"type": f"{kind}_delta", kind: fragment}
            )
        self._add_stream_event(type="content_block_stop")
        return self._add_stream_event(type="message_stop")

    def _add_stream_event(self, **event: Any) -> "SessionBuilder":
        return self.add_line("stream_event", event=event, parent_tool_use_id=None)

    def add_call(self, name: str, tool_input: dict[str, Any], parent: str | None = None) -> str:
        """Start a call. Return its id."""
        self._count += 1
        call_id = f"toolu_{self._count}"
        self.add_message(
            {"type": "tool_use", "id": call_id, "name": name, "input": tool_input}, parent=parent
        )
        return call_id

    def add_tool_result(
        self,
        call: str,
        content: Any,
        parent: str | None = None,
        *,
        failed: bool = False,
        **extra: Any,
    ) -> "SessionBuilder":
        """Add the result of a call."""
        block = {"type": "tool_result", "tool_use_id": call, "content": content, "is_error": failed}
        return self.add_line(
            "user", message={"role": "user", "content": [block]}, parent_tool_use_id=parent, **extra
        )

    def add_permission_request(
        self,
        call: str,
        name: str,
        tool_input: dict[str, Any],
        seconds: float,
        answer: dict[str, Any],
    ) -> "SessionBuilder":
        """Add a permission request and its answer."""
        request = {
            "subtype": "can_use_tool",
            "tool_name": name,
            "tool_use_id": call,
            "input": tool_input,
        }
        self.add_line("control_request", request_id=f"ask_{call}", request=request).advance_time(
            seconds
        )
        response = {"subtype": "success", "request_id": f"ask_{call}", "response": answer}
        return self._add_record("i", {"type": "control_response", "response": response})

    def add_note(self, kind: str, **fields: Any) -> "SessionBuilder":
        """Add a note of the recorder."""
        self.moments.append((self.at, "n", {"kind": kind, **fields}))
        return self

    def add_result(self, text: str, **fields: Any) -> "SessionBuilder":
        """Add the result of a turn."""
        usage = {"input_tokens": 4210, "output_tokens": 812, "cache_read_input_tokens": 18200}
        defaults = {
            "subtype": "success",
            "is_error": False,
            "num_turns": 6,
            "duration_ms": round(1000 * self.at),
        }
        defaults |= {"total_cost_usd": 0.0413, "usage": usage, "permission_denials": []}
        return self.add_line("result", **{**defaults, "result": text, **fields})

    def build_recording(self, *, end: bool = True, **header: Any) -> bytes:
        """Build the recording of the session."""
        fields = {"argv": [*STREAMED], "vendor": "qwen", "vendor_version": "0.24.4", **header}
        return build_recording(self.moments, end=end, **fields)


ANSWER = """The slow part was the **query per row**. I did three things:

1. Load all authors *once*, before the loop
2. Keep them in a `dict` by id
   - its size is bounded by the page
   - nothing is cached between requests
3. Add a test that counts the queries

| rows | before | after |
| --- | --- | --- |
| 10 | 31 ms | 12 ms |
| 1,000 | 2.9 s | 41 ms |

```python
authors = {author.id: author for author in load_authors(page)}
for post in page:
    post.author = authors[post.author_id]
```

See [the guide](https://example.org/guide?q=1#part) for why. ![a chart](https://example.org/chart.png)
"""

OLD = """    for post in posts:
        post.author = db.author(post.author_id)
"""
NEW = """    authors = {author.id: author for author in db.authors(posts)}
    for post in posts:
        post.author = authors[post.author_id]
"""
BEFORE = f"import db\n\n\ndef page(posts):\n{OLD}    return posts\n"


def build_full_session() -> SessionBuilder:
    """Build a session with every kind of step."""
    script = SessionBuilder().add_prompt(
        "Make the list of posts faster.\n\nIt takes three seconds with 1,000 rows."
    )
    script.advance_time(0.2).add_init().advance_time(0.8)
    script.stream_text(
        "They load an author for each row. Let me look at the code first, then measure.",
        "thinking",
        1.4,
    )
    script.stream_text("I'll look at where the time goes.", seconds=0.6)
    read = script.add_call("Read", {"file_path": "/home/user/project/posts.py"})
    grep = script.add_call("Grep", {"pattern": "db\\.author", "path": "/home/user/project"})
    script.advance_time(0.3).add_tool_result(
        read, "\n".join(f"{n}\t{line}" for n, line in enumerate(BEFORE.split("\n"), 1))
    )
    script.advance_time(0.4).add_tool_result(
        grep, "posts.py:6:        post.author = db.author(post.author_id)"
    ).advance_time(2.1)
    bash = script.add_call(
        "Bash",
        {"command": "python -m pytest -q tests/test_posts.py", "description": "Run the tests"},
    )
    script.add_permission_request(
        bash,
        "Bash",
        {"command": "python -m pytest -q tests/test_posts.py"},
        6.5,
        {"behavior": "allow"},
    )
    script.advance_time(3.2).add_tool_result(
        bash,
        "\n".join(f"tests/test_posts.py::test_{n} PASSED" for n in range(60))
        + "\n60 passed in 2.91s",
    )
    script.advance_time(1.5)
    edit = {"file_path": "/home/user/project/posts.py", "old_string": OLD, "new_string": NEW}
    call = script.add_call("Edit", edit)
    script.advance_time(0.1).add_tool_result(
        call, "The file was updated.", tool_use_result={"originalFile": BEFORE}
    ).advance_time(1.0)
    agent = script.add_call(
        "Task",
        {"description": "Find other slow pages", "prompt": "Look for more queries in loops."},
    )
    script.advance_time(0.5).add_text("I look through the views.", agent)
    inner = script.add_call("Bash", {"command": "grep -rn 'db\\.' views | wc -l"}, agent)
    script.advance_time(0.7).add_tool_result(inner, "14", agent).advance_time(1.2).add_text(
        "Nothing else: the other *14 calls* are outside of loops.", agent
    )
    script.advance_time(0.2).add_tool_result(
        agent, [{"type": "text", "text": "No other slow pages."}]
    ).advance_time(0.9)
    push = script.add_call("Bash", {"command": "git push --force"})
    script.add_permission_request(
        push,
        "Bash",
        {"command": "git push --force"},
        3.0,
        {"behavior": "deny", "message": "not to main"},
    )
    script.add_tool_result(push, "The user denied this: not to main", failed=True).advance_time(1.1)
    failing = script.add_call("Bash", {"command": "make lint"})
    script.advance_time(0.8).add_tool_result(
        failing,
        "posts.py:5:80: E501 line too long (83 > 79)\nmake: *** [lint] Error 1",
        failed=True,
    )
    script.add_note(
        "repair", repair="glued_line", line=41, sample='{"type":"text"}{"type":"text"}'
    ).advance_time(1.0)
    script.stream_text(ANSWER, seconds=4.0)
    script.add_result(ANSWER, shim={"repairs": {"glued_line": 1}}).advance_time(45.0)
    script.add_prompt("Thanks! Now write a changelog entry.").advance_time(1.2).add_init()
    write = script.add_call(
        "Write",
        {
            "file_path": "/home/user/project/CHANGES.md",
            "content": "# 1.4\n\n- The list of posts is faster.\n",
        },
    )
    script.advance_time(0.2).add_tool_result(write, "The file was created.").advance_time(0.9)
    script.add_line(
        "assistant",
        error="rate_limit",
        message={
            "id": "e",
            "model": "<synthetic>",
            "content": [{"type": "text", "text": "API Error: 429 rate limited"}],
        },
    )
    failed = {
        "subtype": "error_during_execution",
        "is_error": True,
        "errors": ["API Error: 429 rate limited"],
    }
    return script.add_result("", **failed, shim={"cause": "api_error"}, num_turns=2)


def export_full_session() -> bytes:
    """Return the content of the golden in `fixtures/exports`."""
    chunks: list[bytes] = []
    with tempfile.NamedTemporaryFile(suffix=".cast") as file:
        file.write(build_full_session().build_recording())
        file.flush()
        write_recording_export(file.name, chunks.append, redact=True)
    return b"".join(chunks)


def build_long_session(calls: int = 500) -> SessionBuilder:
    """Build a session with four events for each call: thinking, text, the call and its result
    (2,000 for 500 calls).
    """
    script = SessionBuilder().add_prompt("Read everything.").advance_time(0.1).add_init()
    for number in range(calls):
        script.advance_time(0.5).add_message(
            {
                "type": "thinking",
                "thinking": f"Now file {number}. " + "Let me think about it. " * 20,
            }
        )
        script.advance_time(0.5).add_text(
            f"File **{number}** has `{number}` lines.\n\n- one\n- two\n\n"
            + "A sentence about it. " * 12
        )
        if number % 5 == 0:
            old = "\n".join(f"line {line} of {number}" for line in range(30))
            edit = script.add_call(
                "Edit",
                {
                    "file_path": f"/project/{number}.py",
                    "old_string": old,
                    "new_string": old.replace("2", "two"),
                },
            )
            script.advance_time(0.2).add_tool_result(edit, "updated")
        else:
            read = script.add_call("Read", {"file_path": f"/project/{number}.py"})
            output = "\n".join(
                f"{line}\tvalue_{line} = compute({number}, {line})" for line in range(400)
            )
            script.advance_time(0.3).add_tool_result(read, output)
    return script.advance_time(1.0).add_result("Read.")
