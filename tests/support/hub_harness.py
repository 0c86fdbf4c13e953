"""A hub with a log in memory and scripted clients: what a host does, without its sockets."""

import json
from collections.abc import Iterable, Sequence
from itertools import count
from typing import Any

from shim.core.bridge.commands import (
    AppendLogRecordsCommand,
    DropClientCommand,
    EndSessionCommand,
    ReadLogCommand,
    ReloadSettingsCommand,
    SessionHubCommand,
    UpdateSessionMetadataCommand,
    WriteStdinCommand,
)
from shim.core.bridge.conversation_lines import feed_conversation_stdout
from shim.core.bridge.frames import OPTIONAL_KINDS
from shim.core.bridge.handlers import on_client_frame, remove_client
from shim.core.bridge.hub import SessionHub
from shim.core.bridge.log import LogHistory, SessionLogEntry, SessionLogRecord
from shim.core.bridge.status import BackgroundSessionInfo

SESSION = "aaaaaaaa-bbbb-4ccc-8ddd-eeeeeeeeeeee"
Frame = dict[str, Any]


class MemoryLog:
    """The log of a session without a file. Lines before `first` have been dropped."""

    def __init__(self) -> None:
        self.entries: list[SessionLogEntry] = []
        self.records: list[SessionLogRecord] = []
        self.first = 1
        self.generation = 1

    @property
    def last(self) -> int:
        return self.entries[-1].number if self.entries else 0

    def list_first_numbers(self) -> dict[int, int]:
        """Return the number of the first line of each generation."""
        first_numbers: dict[int, int] = {}
        for entry in self.entries:
            first_numbers.setdefault(entry.generation, entry.number)
        return first_numbers

    def append(self, records: Sequence[SessionLogRecord]) -> None:
        self.records += records
        self.entries += [
            SessionLogEntry(each.number, self.generation, each.at_ms, each.data)
            for each in records
            if each.number
        ]

    def read(self, after: int, most: int, size: int) -> list[SessionLogEntry]:
        entries: list[SessionLogEntry] = []
        for entry in self.entries[max(after, self.first - 1) :]:
            if len(entries) >= most or sum(len(each.line) for each in entries) >= size:
                break
            entries.append(entry)
        return entries


class Play:
    """A hub with its log and the stdin of the conversation. `run_commands` executes pending
    commands, and `read_frames` returns what a client receives.
    """

    def __init__(
        self, log: MemoryLog | None = None, message_ids: Iterable[str] = (), **fields: Any
    ) -> None:
        self.log = log or MemoryLog()
        self.seconds = 0.0
        self.stdin: list[Frame] = []
        self.status_fields: Frame = {}
        self.ended_by: list[str] = []
        self.dropped: dict[int, str] = {}
        self._ids = (f"{number:08x}-0000-4000-8000-000000000000" for number in count(1))
        self.hub = SessionHub(
            BackgroundSessionInfo(SESSION, **fields),
            LogHistory(
                self.log.generation, self.log.last, self.log.list_first_numbers(), message_ids
            ),
            create_id=lambda: next(self._ids),
            now_ms=lambda: int(self.seconds * 1000),
            clock=lambda: self.seconds,
        )

    def run_commands(self) -> None:
        """Execute the commands, and those that result from them."""
        while commands := self.hub.take_commands():
            for command in commands:
                self._run_command(command)

    def _run_command(self, command: SessionHubCommand) -> None:
        if isinstance(command, AppendLogRecordsCommand):
            self.log.append(command.records)
        elif isinstance(command, WriteStdinCommand):
            assert command.line.endswith(b"\n")
            self.stdin.append(json.loads(command.line))
        elif isinstance(command, ReadLogCommand):
            self.hub.subscribers.deliver_log_entries(
                command.client_number,
                command.after_number,
                self.log.read(command.after_number, command.max_lines, command.max_bytes),
            )
        elif isinstance(command, DropClientCommand):
            self.dropped[command.client_number] = command.reason
        elif isinstance(command, UpdateSessionMetadataCommand):
            self.status_fields = dict(command.metadata)
        elif isinstance(command, EndSessionCommand):
            self.ended_by.append(command.client_name)
        elif isinstance(command, ReloadSettingsCommand):
            self.hub.send_settings(command.client_number, command.request_id, "settings")

    def join_client(self, number: int, role: str = "drive", /, **keys: Any) -> list[Frame]:
        """Connect a client that sends `hello`. Return the frames that it receives."""
        self.hub.add_client(number)
        hello = {
            "protocol": 1,
            "client": f"c{number}",
            "role": role,
            "knows": list(OPTIONAL_KINDS),
            **keys,
        }
        self.send_frame(number, "hello", **hello)
        return self.read_frames(number)

    def count_queued_bytes(self, number: int) -> int:
        """Return the number of bytes that wait for a client."""
        client = self.hub.subscribers.clients[number]
        return client._queued_bytes + client._queued_reply_bytes

    def remove_client(self, number: int) -> None:
        """Close the connection of a client."""
        remove_client(self.hub, number)
        self.run_commands()

    def send_frame(self, client: int, kind: str, /, **keys: Any) -> None:
        """Send a frame of a client."""
        on_client_frame(self.hub, client, json.dumps({"kind": kind, **keys}).encode())
        self.run_commands()

    def exchange_frames(self, client: int, kind: str, /, **keys: Any) -> list[Frame]:
        """Send a frame of a client. Return the frames that it receives."""
        self.send_frame(client, kind, **keys)
        return self.read_frames(client)

    def read_frames(self, client: int) -> list[Frame]:
        """Return all frames that wait for a client."""
        data = b""
        self.run_commands()
        while client in self.hub.list_ready_clients():
            data += self.hub.take_outgoing_frames(client)
            self.run_commands()
        return [json.loads(line) for line in data.splitlines()]

    def feed_stdout(self, *lines: Frame) -> None:
        """Print lines of the conversation."""
        encoded = [json.dumps(line, separators=(",", ":")).encode() + b"\n" for line in lines]
        feed_conversation_stdout(self.hub, b"".join(encoded))
        self.run_commands()

    def finish_turn(self, text: str = "done", **result: Any) -> None:
        """Echo and answer all waiting messages."""
        for line in self.stdin:
            if line["type"] == "user":
                self.feed_stdout({**line, "isReplay": True})
        self.stdin = [line for line in self.stdin if line["type"] != "user"]
        self.feed_stdout(
            {"type": "result", "subtype": "success", "is_error": False, "result": text, **result}
        )

    def ask_permission(self, request_id: str, tool: str = "Write", **tool_input: Any) -> None:
        """Let the conversation request permission for a call."""
        request = {
            "subtype": "can_use_tool",
            "tool_name": tool,
            "input": tool_input,
            "tool_use_id": f"call-{request_id}",
        }
        self.feed_stdout({"type": "control_request", "request_id": request_id, "request": request})

    def take_responses(self) -> list[Frame]:
        """Remove and return the bodies of the control responses to the conversation."""
        responses = [line["response"] for line in self.stdin if line["type"] == "control_response"]
        self.stdin = [line for line in self.stdin if line["type"] != "control_response"]
        return responses

    def take_requests(self) -> list[Frame]:
        """Remove and return the control requests to the conversation."""
        requests = [line for line in self.stdin if line["type"] == "control_request"]
        self.stdin = [line for line in self.stdin if line["type"] != "control_request"]
        return requests

    def answer_request(self, body: Frame | None = None, **response: Any) -> None:
        """Let the conversation answer the oldest control request."""
        (first, *_) = [line for line in self.stdin if line["type"] == "control_request"]
        self.stdin.remove(first)
        payload = {"subtype": "success", "request_id": first["request_id"], **response}
        self.feed_stdout(
            {
                "type": "control_response",
                "response": payload if body is None else {**payload, "response": body},
            }
        )


def list_kinds(frames: Sequence[Frame]) -> list[str]:
    return [frame["kind"] for frame in frames]


def select_frames(frames: Sequence[Frame], kind: str) -> list[Frame]:
    """Return the frames of a kind, without the field `kind`."""
    return [
        {key: item for key, item in frame.items() if key != "kind"}
        for frame in frames
        if frame["kind"] == kind
    ]


def list_line_numbers(frames: Sequence[Frame]) -> list[int]:
    """Return the numbers of the complete lines."""
    return [frame["number"] for frame in frames if frame["kind"] == "line" and "number" in frame]


def build_user_message(text: str = "hi") -> Frame:
    return {"role": "user", "content": text}


ALLOW: Frame = {"behavior": "allow"}
DENY: Frame = {"behavior": "deny", "message": "no"}
