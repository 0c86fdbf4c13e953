"""Sessions for the tests of exports: casts with one of everything, with hostile words, and with
very many steps.
"""

import json
import tempfile
from typing import Any

from casting import Moment, build_recording

from shim.story.export.markdown import export

SESSION = "11111111-2222-4333-8444-555555555555"
STREAMED = ("-p", "--input-format", "stream-json", "--output-format", "stream-json", "--verbose")


class Script:
    """A session that is written line by line; `at` is its clock, in seconds."""

    def __init__(self) -> None:
        self.at = 0.0
        self.moments: list[Moment] = []
        self._count = 0

    def wait(self, seconds: float) -> "Script":
        """Time passes."""
        self.at += seconds
        return self

    def _line(self, letter: str, event: dict[str, Any]) -> "Script":
        self.moments.append((self.at, letter, json.dumps(event).encode() + b"\n"))
        return self

    def says(self, kind: str, **fields: Any) -> "Script":
        """A line of ours."""
        return self._line("O", {"type": kind, "session_id": SESSION, **fields})

    def prompt(self, text: str) -> "Script":
        """A user's message."""
        return self._line("i", {"type": "user", "message": {"role": "user", "content": text}})

    def init(self, **fields: Any) -> "Script":
        """The beginning of a turn."""
        facts = {
            "cwd": "/home/user/project",
            "model": "sonnet",
            "tools": ["Read", "Edit"],
            "permissionMode": "default",
        }
        return self.says("system", subtype="init", **{**facts, **fields})

    def message(self, *blocks: dict[str, Any], parent: str | None = None) -> "Script":
        """A reply in whole blocks."""
        self._count += 1
        message = {
            "id": f"msg_{self._count}",
            "role": "assistant",
            "model": "sonnet",
            "content": list(blocks),
        }
        return self.says("assistant", message=message, parent_tool_use_id=parent)

    def text(self, text: str, parent: str | None = None) -> "Script":
        """A text that was not streamed."""
        return self.message({"type": "text", "text": text}, parent=parent)

    def streams(self, text: str, kind: str = "text", seconds: float = 2.0) -> "Script":
        """A text that grows, word by word, in so many seconds."""
        self._count += 1
        self._event(type="message_start", message={"id": f"msg_{self._count}"})
        words = text.split(" ")
        for number, word in enumerate(words):
            self.wait(seconds / len(words))
            fragment = word if number == 0 else f" {word}"
            self._event(type="content_block_delta", delta={"type": f"{kind}_delta", kind: fragment})
        self._event(type="content_block_stop")
        return self._event(type="message_stop")

    def _event(self, **event: Any) -> "Script":
        return self.says("stream_event", event=event, parent_tool_use_id=None)

    def call(self, name: str, arguments: dict[str, Any], parent: str | None = None) -> str:
        """A call begins; its id."""
        self._count += 1
        identity = f"toolu_{self._count}"
        self.message(
            {"type": "tool_use", "id": identity, "name": name, "input": arguments}, parent=parent
        )
        return identity

    def result_of(
        self,
        call: str,
        content: Any,
        parent: str | None = None,
        *,
        failed: bool = False,
        **extra: Any,
    ) -> "Script":
        """What a call returned."""
        block = {"type": "tool_result", "tool_use_id": call, "content": content, "is_error": failed}
        return self.says(
            "user", message={"role": "user", "content": [block]}, parent_tool_use_id=parent, **extra
        )

    def asks(
        self,
        call: str,
        name: str,
        arguments: dict[str, Any],
        seconds: float,
        answer: dict[str, Any],
    ) -> "Script":
        """A permission question and its answer."""
        request = {
            "subtype": "can_use_tool",
            "tool_name": name,
            "tool_use_id": call,
            "input": arguments,
        }
        self.says("control_request", request_id=f"ask_{call}", request=request).wait(seconds)
        response = {"subtype": "success", "request_id": f"ask_{call}", "response": answer}
        return self._line("i", {"type": "control_response", "response": response})

    def note(self, kind: str, **facts: Any) -> "Script":
        """A note of the recorder's."""
        self.moments.append((self.at, "n", {"kind": kind, **facts}))
        return self

    def result(self, text: str, **fields: Any) -> "Script":
        """The end of a turn."""
        usage = {"input_tokens": 4210, "output_tokens": 812, "cache_read_input_tokens": 18200}
        facts = {
            "subtype": "success",
            "is_error": False,
            "num_turns": 6,
            "duration_ms": round(1000 * self.at),
        }
        facts |= {"total_cost_usd": 0.0413, "usage": usage, "permission_denials": []}
        return self.says("result", **{**facts, "result": text, **fields})

    def cast(self, *, end: bool = True, **header: Any) -> bytes:
        """The whole as a cast."""
        facts = {"argv": [*STREAMED], "vendor": "qwen", "vendor_version": "0.24.4", **header}
        return build_recording(self.moments, end=end, **facts)


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


def everything() -> Script:
    """A session with one of everything."""
    script = Script().prompt(
        "Make the list of posts faster.\n\nIt takes three seconds with 1,000 rows."
    )
    script.wait(0.2).init().wait(0.8)
    script.streams(
        "They load an author for each row. Let me look at the code first, then measure.",
        "thinking",
        1.4,
    )
    script.streams("I'll look at where the time goes.", seconds=0.6)
    read = script.call("Read", {"file_path": "/home/user/project/posts.py"})
    grep = script.call("Grep", {"pattern": "db\\.author", "path": "/home/user/project"})
    script.wait(0.3).result_of(
        read, "\n".join(f"{n}\t{line}" for n, line in enumerate(BEFORE.split("\n"), 1))
    )
    script.wait(0.4).result_of(
        grep, "posts.py:6:        post.author = db.author(post.author_id)"
    ).wait(2.1)
    bash = script.call(
        "Bash",
        {"command": "python -m pytest -q tests/test_posts.py", "description": "Run the tests"},
    )
    script.asks(
        bash,
        "Bash",
        {"command": "python -m pytest -q tests/test_posts.py"},
        6.5,
        {"behavior": "allow"},
    )
    script.wait(3.2).result_of(
        bash,
        "\n".join(f"tests/test_posts.py::test_{n} PASSED" for n in range(60))
        + "\n60 passed in 2.91s",
    )
    script.wait(1.5)
    edit = {"file_path": "/home/user/project/posts.py", "old_string": OLD, "new_string": NEW}
    call = script.call("Edit", edit)
    script.wait(0.1).result_of(
        call, "The file was updated.", tool_use_result={"originalFile": BEFORE}
    ).wait(1.0)
    agent = script.call(
        "Task",
        {"description": "Find other slow pages", "prompt": "Look for more queries in loops."},
    )
    script.wait(0.5).text("I look through the views.", agent)
    inner = script.call("Bash", {"command": "grep -rn 'db\\.' views | wc -l"}, agent)
    script.wait(0.7).result_of(inner, "14", agent).wait(1.2).text(
        "Nothing else: the other *14 calls* are outside of loops.", agent
    )
    script.wait(0.2).result_of(agent, [{"type": "text", "text": "No other slow pages."}]).wait(0.9)
    push = script.call("Bash", {"command": "git push --force"})
    script.asks(
        push,
        "Bash",
        {"command": "git push --force"},
        3.0,
        {"behavior": "deny", "message": "not to main"},
    )
    script.result_of(push, "The user denied this: not to main", failed=True).wait(1.1)
    failing = script.call("Bash", {"command": "make lint"})
    script.wait(0.8).result_of(
        failing,
        "posts.py:5:80: E501 line too long (83 > 79)\nmake: *** [lint] Error 1",
        failed=True,
    )
    script.note(
        "repair", repair="glued_line", line=41, sample='{"type":"text"}{"type":"text"}'
    ).wait(1.0)
    script.streams(ANSWER, seconds=4.0)
    script.result(ANSWER, shim={"repairs": {"glued_line": 1}}).wait(45.0)
    script.prompt("Thanks! Now write a changelog entry.").wait(1.2).init()
    write = script.call(
        "Write",
        {
            "file_path": "/home/user/project/CHANGES.md",
            "content": "# 1.4\n\n- The list of posts is faster.\n",
        },
    )
    script.wait(0.2).result_of(write, "The file was created.").wait(0.9)
    script.says(
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
    return script.result("", **failed, shim={"cause": "api_error"}, num_turns=2)


def markdown_of_everything() -> bytes:
    """What the golden in `fixtures/exports` holds."""
    said: list[bytes] = []
    with tempfile.NamedTemporaryFile(suffix=".cast") as file:
        file.write(everything().cast())
        file.flush()
        export(file.name, said.append, redact=True)
    return b"".join(said)


def long(calls: int = 500) -> Script:
    """A session of four events for each call: thinking, text, a call and its result (2,000 for
    500).
    """
    script = Script().prompt("Read everything.").wait(0.1).init()
    for number in range(calls):
        script.wait(0.5).message(
            {
                "type": "thinking",
                "thinking": f"Now file {number}. " + "Let me think about it. " * 20,
            }
        )
        script.wait(0.5).text(
            f"File **{number}** has `{number}` lines.\n\n- one\n- two\n\n"
            + "A sentence about it. " * 12
        )
        if number % 5 == 0:
            old = "\n".join(f"line {line} of {number}" for line in range(30))
            edit = script.call(
                "Edit",
                {
                    "file_path": f"/project/{number}.py",
                    "old_string": old,
                    "new_string": old.replace("2", "two"),
                },
            )
            script.wait(0.2).result_of(edit, "updated")
        else:
            read = script.call("Read", {"file_path": f"/project/{number}.py"})
            output = "\n".join(
                f"{line}\tvalue_{line} = compute({number}, {line})" for line in range(400)
            )
            script.wait(0.3).result_of(read, output)
    return script.wait(1.0).result("Read.")
