"""The clients of a hub: what is said to all of them, at each one's own pace.

A client reads the log until it has come to its end; from then on it is told what is said as it is
said. One that reads too slowly goes back to the log, and is told so.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import NamedTuple

from shim.core.bridge.client import ConnectedClient, QueuedFrames
from shim.core.bridge.commands import DropClient, ReadLog, SessionHubCommand
from shim.core.bridge.frames import (
    FULL_REASON,
    ClientHello,
    LogCursor,
    encode_frame,
    encode_line_frame,
)
from shim.core.bridge.log import SessionLogEntry
from shim.core.bridge.partial_block import PartialContentBlock
from shim.core.bridge.prompts import PendingPrompt, PendingPrompts, PromptOutcome

MAX_BATCH_LINES = 256  # that are read from the log at once for a client
MAX_BATCH_BYTES = 512 * 1024
# of the last lines, kept for those who fall behind a little: many of them cost no reading
MAX_RECENT_BYTES = 1024 * 1024
MAX_CLIENTS = 256  # at once; more are no persons
HELLO_TIMEOUT_S = 10.0  # that a client has for its first frame


class LineFrame(NamedTuple):
    """The frame of a line: its number (0 for a partial one), and whether it ends a block."""

    data: bytes
    number: int = 0
    ends_block: bool = False


class SessionSubscribers:
    """`last_number` is that of the last line in the log. `encode_state` gives the frames of what is
    true now: state and driver.
    """

    def __init__(
        self,
        commands: list[SessionHubCommand],
        prompts: PendingPrompts,
        generation: int,
        last_number: int,
        encode_state: Callable[[], bytes],
    ) -> None:
        self.clients: dict[int, ConnectedClient] = {}
        self.partial_block = PartialContentBlock()
        self.generation = generation
        self.last_number = last_number
        self._inherited_number = last_number  # number of the last line of the former generations
        self._commands = commands
        self._prompts = prompts
        self._encode_state = encode_state
        self._ready_clients: dict[int, None] = {}
        self._recent_frames = deque[LineFrame]()  # whole lines
        self._recent_bytes = 0

    def __iter__(self) -> Iterator[ConnectedClient]:
        """Those who have said hello."""
        return (
            client
            for client in self.clients.values()
            if client.hello is not None and not client.is_dropped
        )

    # -- coming and going --------------------------------------------------------------------------

    def add_client(self, client_number: int, now_s: float) -> ConnectedClient:
        client = self.clients[client_number] = ConnectedClient(client_number, now_s)
        if len(self.clients) > MAX_CLIENTS:
            self.drop_client(client, f"{MAX_CLIENTS}{FULL_REASON}")
        return client

    def accept_hello(self, client: ConnectedClient, hello: ClientHello) -> None:
        """A client has said hello."""
        client.name = self._choose_name(hello.client_name)
        client.hello = hello

    def start_log_replay(self, client: ConnectedClient) -> None:
        """A client was welcomed: it is told what it has not seen."""
        assert client.hello is not None
        client.sync_position, cursor = self.last_number, client.hello.cursor
        if not client.hello.wants_history:
            client.cursor = self.last_number
        elif cursor is not None and self._is_in_log(cursor):
            client.cursor = cursor.number
        elif cursor is not None:
            reason = "unknown" if cursor.generation == self.generation else "generation"
            self.send_reply_frame(
                client, encode_frame("gap", **{"from": 1, "to": self.last_number, "reason": reason})
            )
        self.continue_log_replay(client)

    def _is_in_log(self, cursor: LogCursor) -> bool:
        """Return whether the log contains the line of a cursor.

        The log may have lost the last lines of a former generation in a crash of the machine. This
        generation has used the numbers of these lines again.
        """
        if cursor.generation == self.generation:
            return 0 <= cursor.number <= self.last_number
        return (
            0 < cursor.generation < self.generation and 0 <= cursor.number <= self._inherited_number
        )

    def _choose_name(self, requested_name: str) -> str:
        """A name that nobody has, and that nobody had who settled a question: a client knows its
        own answer by it.
        """
        used_names = {
            client.name for client in self.clients.values()
        } | self._prompts.answering_client_names
        suffix = next(
            suffix
            for suffix in range(1, len(used_names) + 2)
            if self._format_name(requested_name, suffix) not in used_names
        )
        return self._format_name(requested_name, suffix)

    @staticmethod
    def _format_name(requested_name: str, suffix: int) -> str:
        return requested_name if suffix == 1 else f"{requested_name}-{suffix}"

    def drop_client(self, client: ConnectedClient, reason: str) -> None:
        """Nothing more is told to a client or heard of it."""
        if not client.is_dropped:
            client.is_dropped, client.is_live = True, False
            client.queue_frames(QueuedFrames(encode_frame("bye", reason=reason), is_reply=True))
            self._ready_clients[client.number] = None
            self._commands.append(DropClient(client.number, reason))

    def drop_clients_without_hello(self, now_s: float) -> None:
        """Drop those who have not said hello in time."""
        for client in list(self.clients.values()):
            if client.hello is None and now_s - client.connected_at >= HELLO_TIMEOUT_S:
                self.drop_client(client, f"no hello came in {HELLO_TIMEOUT_S:.0f} s")

    def remove_client(self, client_number: int) -> ConnectedClient | None:
        self._ready_clients.pop(client_number, None)
        return self.clients.pop(client_number, None)

    # -- what is said ------------------------------------------------------------------------------

    def send_reply_frame(self, client: ConnectedClient, data: bytes) -> None:
        """An answer to a client's own frame."""
        if client.is_dropped or not data:
            return
        client.queue_frames(QueuedFrames(data, is_reply=True))
        self._ready_clients[client.number] = None
        if client.has_too_many_replies:
            self.drop_client(client, "it does not read what it is answered")

    def send_lines(self, frames: Sequence[LineFrame]) -> None:
        """Lines of the conversation, the numbered ones in the log already; `last_number` counts
        them.
        """
        if not frames:
            return
        numbered_frames = [frame for frame in frames if frame.number]
        self._store_recent(numbered_frames)
        all_item, numbered_item = _join_frames(frames), _join_frames(numbered_frames)
        last_number = numbered_frames[-1].number if numbered_frames else 0
        for client in self.clients.values():
            if not client.is_live:
                continue
            item = all_item if client.hello is None or client.hello.wants_partial else numbered_item
            if client.skips_open_block:
                item = self._filter_block(client, frames)
            if item.line_count:
                if client.has_full_queue:
                    client.drop_queued_frames(self.last_number)
                else:
                    client.queue_frames(item)
                    client.cursor = last_number or client.cursor
                self._ready_clients[client.number] = None

    def _store_recent(self, frames: Sequence[LineFrame]) -> None:
        """Keep the last lines."""
        self._recent_frames.extend(frames)
        self._recent_bytes += sum(len(frame.data) for frame in frames)
        while self._recent_bytes > MAX_RECENT_BYTES:
            self._recent_bytes -= len(self._recent_frames.popleft().data)

    def _filter_block(self, client: ConnectedClient, frames: Sequence[LineFrame]) -> QueuedFrames:
        """Lines without the rest of a block whose beginning a client was not told."""
        visible_frames = list[LineFrame]()
        for frame in frames:
            if frame.number or not client.skips_open_block:
                visible_frames.append(frame)
            elif frame.ends_block:
                client.skips_open_block = False
        return _join_frames(visible_frames)

    def send_prompt(self, prompt: PendingPrompt) -> None:
        """Put a question to everybody."""
        data = prompt.frame
        for client in self.clients.values():
            if client.is_live and client.has_all_prompts:
                if client.has_full_queue:
                    client.drop_queued_frames(self.last_number)
                else:
                    client.queue_prompt_frame(prompt.prompt_id, data)
                self._ready_clients[client.number] = None

    def send_prompt_outcome(self, outcome: PromptOutcome) -> None:
        """Tell everybody who believes a question to be open."""
        data = outcome.frame
        for client in self.clients.values():
            if client.is_live and outcome.question in client.open_prompt_ids:
                if client.has_full_queue:
                    client.drop_queued_frames(self.last_number)
                else:
                    client.queue_prompt_outcome_frame(outcome.question, data)
                self._ready_clients[client.number] = None

    def queue_state_update(self) -> None:
        """The state, or who drives, is another one."""
        for client in self:
            client.has_stale_state = True
            self._ready_clients[client.number] = None

    # -- what is written ---------------------------------------------------------------------------

    def list_ready_clients(self) -> list[int]:
        return list(self._ready_clients)

    def take_outgoing_frames(self, client_number: int, max_bytes: int) -> bytes:
        client = self.clients.get(client_number)
        if client is None:
            return b""
        data = client.take_queued_bytes(max_bytes)
        if client.hello is not None and not client.is_dropped and not client.has_full_queue:
            if not client.is_live and client.read_position is None:
                self.continue_log_replay(client)
            elif client.is_live and not client.has_all_prompts:
                self._send_missed_prompts(client)
            if client.has_stale_state and not client.queue:
                client.has_stale_state = False
                data += self._encode_state()
        if not client.queue:
            self._ready_clients.pop(client_number, None)
        return data

    def continue_log_replay(self, client: ConnectedClient) -> None:
        """A client that is not in sync goes on with the log, or has come to its end."""
        if client.cursor >= self.last_number:
            self._finish_sync(client)
        elif self._recent_frames and client.cursor + 1 >= self._recent_frames[0].number:
            start, size_bytes, batch = (
                client.cursor + 1 - self._recent_frames[0].number,
                0,
                list[LineFrame](),
            )
            for frame in islice(self._recent_frames, start, start + MAX_BATCH_LINES):
                batch.append(frame)
                size_bytes += len(frame.data)
                if size_bytes >= MAX_BATCH_BYTES:
                    break
            self._send_log_lines(client, batch)
        else:
            client.read_position = client.cursor
            self._commands.append(
                ReadLog(client.number, client.cursor, MAX_BATCH_LINES, MAX_BATCH_BYTES)
            )

    def deliver_log_entries(
        self, client_number: int, after_number: int, entries: Sequence[SessionLogEntry]
    ) -> None:
        """What a read behind `after_number` has found."""
        client = self.clients.get(client_number)
        if client is None or client.read_position != after_number or client.is_dropped:
            return
        client.read_position = None
        self._send_log_lines(
            client, [LineFrame(encode_line_frame(*entry), entry.number) for entry in entries]
        )

    def _send_log_lines(self, client: ConnectedClient, frames: Sequence[LineFrame]) -> None:
        """Tell a client lines of the log; without any, all that it has not seen is lost."""
        chunks, first_number = list[bytes](), client.cursor + 1
        for frame in frames:
            if frame.number <= client.cursor or frame.number > self.last_number:
                continue
            if frame.number > client.cursor + 1:
                chunks.append(_encode_lost_gap(client.cursor + 1, frame.number - 1))
            chunks.append(frame.data)
            client.cursor = frame.number
            if frame.number == client.sync_position:
                client.queue_frames(QueuedFrames(b"".join(chunks), len(chunks), first_number))
                chunks, first_number = [], frame.number + 1
                self._send_synced(client)
        if not frames:
            chunks.append(_encode_lost_gap(client.cursor + 1, self.last_number))
            client.cursor = self.last_number
        if chunks:
            client.queue_frames(QueuedFrames(b"".join(chunks), len(chunks), first_number))
        self._ready_clients[client.number] = None
        if client.cursor >= self.last_number:
            self._finish_sync(client)
        elif not client.has_full_queue:
            self.continue_log_replay(client)

    def _finish_sync(self, client: ConnectedClient) -> None:
        client.is_live = True
        self._send_synced(client)
        if client.hello is not None and client.hello.wants_partial:
            client.skips_open_block = self.partial_block.has_lost_start
            if block_frames := self.partial_block.frames:
                client.queue_frames(QueuedFrames(block_frames, 1))
        self._send_missed_prompts(client)

    def _send_synced(self, client: ConnectedClient) -> None:
        if client.sync_position is not None:
            client.queue_frames(
                QueuedFrames(
                    encode_frame("synced", number=client.sync_position),
                    sync_position=client.sync_position,
                )
            )
            client.sync_position = None

    def _send_missed_prompts(self, client: ConnectedClient) -> None:
        """Tell a client what it does not know of the questions, as far as there is room."""
        missed_prompts = [
            (prompt_id, False) for prompt_id in client.open_prompt_ids - self._prompts.open.keys()
        ]
        missed_prompts += [
            (prompt_id, True)
            for prompt_id in self._prompts.open
            if prompt_id not in client.open_prompt_ids
        ]
        for prompt_id, is_open in missed_prompts:
            if client.has_full_queue:
                break
            if is_open:
                client.queue_prompt_frame(prompt_id, self._prompts.open[prompt_id].frame)
            else:
                outcome = self._prompts.find_outcome(prompt_id) or PromptOutcome(
                    prompt_id, None, "cancelled"
                )
                client.queue_prompt_outcome_frame(prompt_id, outcome.frame)
        else:
            client.has_all_prompts = True
        self._ready_clients[client.number] = None


def _join_frames(frames: Sequence[LineFrame]) -> QueuedFrames:
    first_number = next((frame.number for frame in frames if frame.number), 0)
    return QueuedFrames(b"".join([frame.data for frame in frames]), len(frames), first_number)


def _encode_lost_gap(first_number: int, last_number: int) -> bytes:
    return encode_frame("gap", **{"from": first_number, "to": last_number, "reason": "lost"})
