"""The hub of a session: what each client is told, and what the conversation is told."""

import json
from typing import Any

from shim.core.bridge.commands import Append, Read, Tell
from shim.core.bridge.hub import Hub, Session
from shim.core.bridge.log import Entry

SESSION = "aaaaaaaa-bbbb-4ccc-8ddd-eeeeeeeeeeee"


def hub() -> Hub:
    made = Hub(Session(SESSION), generation=1, number=0, mint=lambda: SESSION, wall=lambda: 5, clock=lambda: 0.0)
    made.joined(1)
    return made


def say(made: Hub, **said: Any) -> None:
    made.heard(1, json.dumps(said).encode())


def told(made: Hub) -> list[Any]:
    return [json.loads(line) for line in made.outgoing(1).splitlines()]


def test_a_line_is_logged_and_then_told_to_who_is_there():
    made = hub()
    say(made, kind="hello", protocol=1, client="terminal", role="watch")
    assert made.take() == [Read(1, 0, 256)]
    made.replayed(1, 0, [])
    assert [frame["kind"] for frame in told(made)] == ["welcome", "synced"]
    made.said(b'{"type":"assistant"}\n')
    (append,) = made.take()
    assert isinstance(append, Append)
    assert [(record.number, record.data) for record in append.records] == [(1, b'{"type":"assistant"}')]
    assert told(made) == [{"kind": "line", "number": 1, "generation": 1, "at": 5, "line": {"type": "assistant"}}]


def test_what_was_said_before_comes_from_the_log():
    made = hub()
    say(made, kind="hello", protocol=1, client="terminal", role="watch")
    made.replayed(1, 0, [Entry(1, 1, 4, b'{"type":"system"}')])
    made.replayed(1, 1, [])
    assert [frame["kind"] for frame in told(made)] == ["welcome", "line", "synced"]


def test_a_message_goes_to_the_conversation():
    made = hub()
    say(made, kind="message", id="m", message={"role": "user", "content": "hi"})
    (tell,) = made.take()
    assert isinstance(tell, Tell)
    assert json.loads(tell.line)["message"] == {"role": "user", "content": "hi"}
