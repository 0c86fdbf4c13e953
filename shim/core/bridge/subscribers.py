"""The clients of a hub, and the frames that the hub sends to them.

A new client first receives lines from the log. At the end of the log, the client becomes live and
receives new lines immediately. If a live client reads too slowly, it receives a gap frame and
continues with lines from the log.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import NamedTuple

from shim.core.bridge.client import ConnectedClient, QueuedFrames, encode_log_gap_frame
from shim.core.bridge.commands import DropClientCommand, ReadLogCommand, SessionHubCommand
from shim.core.bridge.frames import (
    FULL_REASON,
    ClientHello,
    LogCursor,
    encode_frame,
    encode_line_frame,
)
from shim.core.bridge.log import LogHistory, SessionLogEntry
from shim.core.bridge.partial_block import PartialContentBlock
from shim.core.bridge.prompts import PendingPrompt, PendingPrompts, PermissionPromptOutcome

MAX_BATCH_LINES = 256  # the maximum number of lines in one read of the log
MAX_BATCH_BYTES = 512 * 1024
# The maximum size of recent lines in memory. A client that is slightly behind receives these lines
# without a read of the log.
MAX_RECENT_BYTES = 1024 * 1024
MAX_CLIENTS = 256
HELLO_TIMEOUT_S = 10.0  # the time in which a new client must send its hello frame


class ConversationLineFrame(NamedTuple):
    """A frame with a complete or partial line of the conversation."""

    data: bytes
    number: int = 0  # 0 for a partial line
    ends_block: bool = False


class SessionSubscribers:
    """Stores a session's clients, its last lines, and the open content block.

    `last_number` is the number of the last line in the log.
    """

    def __init__(
        self, commands: list[SessionHubCommand], prompts: PendingPrompts, history: LogHistory
    ) -> None:
        self.clients: dict[int, ConnectedClient] = {}
        self.partial_block = PartialContentBlock()
        self.generation = history.generation
        self.last_number = history.last_number
        self._history = history
        self._commands = commands
        self._prompts = prompts
        self._ready_clients: dict[int, None] = {}
        self._recent_frames = deque[ConversationLineFrame]()  # complete lines
        self._recent_bytes = 0

    def __iter__(self) -> Iterator[ConnectedClient]:
        """Iterate over the clients that have sent their hello frame and were not dropped."""
        return (
            client for client in self.clients.values() if client.has_hello and not client.is_dropped
        )

    # -- clients -----------------------------------------------------------------------------------

    def add_client(self, client_number: int, now_s: float) -> ConnectedClient:
        """Add a client. If too many clients are connected, the new client is dropped
        immediately.
        """
        client = self.clients[client_number] = ConnectedClient(client_number, now_s)
        if len(self.clients) > MAX_CLIENTS:
            self.drop_client(client, f"{MAX_CLIENTS}{FULL_REASON}")
        return client

    def accept_hello(self, client: ConnectedClient, hello: ClientHello) -> None:
        """Store a client's hello frame and choose a name for the client."""
        client.name = self._choose_name(hello.client_name)
        client.hello = hello

    def _choose_name(self, requested_name: str) -> str:
        """Return a name that no other client has. The names of clients that have answered a prompt
        are not reused, because a client recognizes its own answers by its name.
        """
        used_names = {client.name for client in self.clients.values()}
        used_names |= self._prompts.answering_client_names
        name = requested_name
        suffix = 1
        while name in used_names:
            suffix += 1
            name = f"{requested_name}-{suffix}"
        return name

    def start_log_replay(self, client: ConnectedClient) -> None:
        """Start to send a new client the log lines that it has not received."""
        client.sync_position = self.last_number
        cursor = client.hello.cursor
        if not client.hello.wants_history:
            client.cursor = self.last_number
        elif cursor is not None and self._is_in_log(cursor):
            client.cursor = cursor.number
        elif cursor is not None:
            reason = "generation"
            if cursor.generation == self.generation:
                reason = "unknown"
            self.send_reply_frame(client, encode_log_gap_frame(1, self.last_number, reason))
        self.continue_log_replay(client)

    def _is_in_log(self, cursor: LogCursor) -> bool:
        """Return whether the log contains the line that a cursor points to.

        If the machine crashed, the log may have lost the last lines of an earlier generation. In
        this case, the next generation has used the same numbers for other lines.
        """
        if cursor.generation == self.generation:
            return 0 <= cursor.number <= self.last_number
        last_number = self._history.find_last_line_number(cursor.generation)
        if last_number is None:
            return False
        return 0 <= cursor.number <= last_number

    def drop_client(self, client: ConnectedClient, reason: str) -> None:
        """Send a `bye` frame to a client and close its connection. Further frames from the client
        are ignored.
        """
        if not client.is_dropped:
            client.is_dropped = True
            client.is_live = False
            client.queue_frames(QueuedFrames(encode_frame("bye", reason=reason), is_reply=True))
            self._ready_clients[client.number] = None
            self._commands.append(DropClientCommand(client.number, reason))

    def drop_clients_without_hello(self, now_s: float) -> None:
        """Drop the clients that have not sent a hello frame in time."""
        for client in list(self.clients.values()):
            if not client.has_hello and now_s - client.connected_at >= HELLO_TIMEOUT_S:
                self.drop_client(
                    client, f"no hello frame was received within {HELLO_TIMEOUT_S:.0f} s"
                )

    def remove_client(self, client_number: int) -> ConnectedClient | None:
        """Remove a client whose connection was closed."""
        self._ready_clients.pop(client_number, None)
        return self.clients.pop(client_number, None)

    # -- frames to send ----------------------------------------------------------------------------

    def send_reply_frame(self, client: ConnectedClient, data: bytes) -> None:
        """Send a reply to a frame from the client."""
        if client.is_dropped or not data:
            return
        client.queue_frames(QueuedFrames(data, is_reply=True))
        self._ready_clients[client.number] = None
        if client.has_too_many_replies:
            self.drop_client(client, "the client does not read the frames that are sent to it")

    def create_line_frame(self, at_ms: int, line: bytes) -> ConversationLineFrame:
        """Create the frame for a complete line. The line gets the next number."""
        self.last_number += 1
        data = encode_line_frame(self.last_number, self.generation, at_ms, line)
        return ConversationLineFrame(data, self.last_number)

    def send_lines(self, frames: Sequence[ConversationLineFrame]) -> None:
        """Send the conversation's lines to the live clients. Complete lines were already written to
        the log.
        """
        if not frames:
            return
        numbered_frames = [frame for frame in frames if frame.number]
        self._store_recent(numbered_frames)
        all_item = _join_frames(frames)
        numbered_item = _join_frames(numbered_frames)
        for client in self.clients.values():
            if not client.is_live:
                continue
            item = numbered_item
            if client.hello.wants_partial:
                item = all_item
            if client.skips_open_block:
                item = self._skip_open_block(client, frames)
            if not item.line_count:
                continue
            if self._prepare_push(client):
                client.queue_frames(item)
                if numbered_frames:
                    client.cursor = numbered_frames[-1].number

    def _prepare_push(self, client: ConnectedClient) -> bool:
        """Return whether a live client's queue has space. If it has none, let the client continue
        with lines from the log.
        """
        self._ready_clients[client.number] = None
        if not client.has_full_queue:
            return True
        client.drop_queued_frames(self.last_number)
        return False

    def _store_recent(self, frames: Sequence[ConversationLineFrame]) -> None:
        """Store recent lines in memory, and remove the oldest lines beyond the limit."""
        self._recent_frames.extend(frames)
        self._recent_bytes += sum(len(frame.data) for frame in frames)
        while self._recent_bytes > MAX_RECENT_BYTES:
            self._recent_bytes -= len(self._recent_frames.popleft().data)

    def _skip_open_block(
        self, client: ConnectedClient, frames: Sequence[ConversationLineFrame]
    ) -> QueuedFrames:
        """Return the lines to send to a client that cannot receive the open block's start. The rest
        of this block is left out.
        """
        visible_frames = list[ConversationLineFrame]()
        for frame in frames:
            if frame.number or not client.skips_open_block:
                visible_frames.append(frame)
            elif frame.ends_block:
                client.skips_open_block = False
        return _join_frames(visible_frames)

    def send_permission_prompt(self, prompt: PendingPrompt) -> None:
        """Send a new prompt to the live clients."""
        data = prompt.encoded_prompt_frame
        for client in self.clients.values():
            if client.is_live and client.has_all_prompts and self._prepare_push(client):
                client.queue_prompt_frame(prompt.prompt_id, data)

    def send_permission_prompt_outcome(self, outcome: PermissionPromptOutcome) -> None:
        """Send a prompt's outcome to the live clients that have received the prompt."""
        data = outcome.encoded_outcome_frame
        for client in self.clients.values():
            is_open = outcome.question in client.open_prompt_ids
            if client.is_live and is_open and self._prepare_push(client):
                client.queue_prompt_outcome_frame(outcome.question, data)

    def queue_state_update(self) -> None:
        """Schedule a state update for all clients. A client receives the update when its queue is
        empty.
        """
        for client in self:
            client.has_stale_state = True
            self._ready_clients[client.number] = None

    # -- frames to write ---------------------------------------------------------------------------

    def list_ready_clients(self) -> list[int]:
        """Return the numbers of clients that have frames to write."""
        return list(self._ready_clients)

    def take_outgoing_frames(self, client_number: int, max_bytes: int) -> bytes:
        """Remove and return the next frames from a client's queue, and refill the queue."""
        client = self.clients.get(client_number)
        if client is None:
            return b""
        data = client.take_queued_bytes(max_bytes)
        if client.has_hello and not client.is_dropped and not client.has_full_queue:
            if not client.is_live and client.read_position is None:
                self.continue_log_replay(client)
            elif client.is_live and not client.has_all_prompts:
                self._send_missed_prompts(client)
        if not client.queue:
            self._ready_clients.pop(client_number, None)
        return data

    def take_stale_state_flag(self, client_number: int) -> bool:
        """Return whether a client whose queue is empty must receive the current state, and clear
        the flag.
        """
        client = self.clients.get(client_number)
        if client is None or client.is_dropped or client.queue or not client.has_stale_state:
            return False
        client.has_stale_state = False
        return True

    # -- the log -----------------------------------------------------------------------------------

    def continue_log_replay(self, client: ConnectedClient) -> None:
        """Send the next log lines to a client. At the end of the log, the client becomes live."""
        if client.cursor >= self.last_number:
            self._finish_sync(client)
        elif self._recent_frames and client.cursor + 1 >= self._recent_frames[0].number:
            self._send_log_lines(client, self._select_recent_frames(client.cursor + 1))
        else:
            client.read_position = client.cursor
            self._commands.append(
                ReadLogCommand(client.number, client.cursor, MAX_BATCH_LINES, MAX_BATCH_BYTES)
            )

    def _select_recent_frames(self, first_number: int) -> list[ConversationLineFrame]:
        """Return a batch of recent lines from memory, starting with the line `first_number`."""
        start = first_number - self._recent_frames[0].number
        batch = list[ConversationLineFrame]()
        size_bytes = 0
        for frame in islice(self._recent_frames, start, start + MAX_BATCH_LINES):
            batch.append(frame)
            size_bytes += len(frame.data)
            if size_bytes >= MAX_BATCH_BYTES:
                break
        return batch

    def deliver_log_entries(
        self, client_number: int, after_number: int, entries: Sequence[SessionLogEntry]
    ) -> None:
        """Send the result of a `ReadLogCommand` to a client: the lines that follow line
        `after_number`. If `entries` is empty, the log no longer contains these lines.
        """
        client = self.clients.get(client_number)
        if client is None or client.read_position != after_number or client.is_dropped:
            return
        client.read_position = None
        frames = [
            ConversationLineFrame(encode_line_frame(*entry), entry.number) for entry in entries
        ]
        self._send_log_lines(client, frames)

    def _send_log_lines(
        self, client: ConnectedClient, frames: Sequence[ConversationLineFrame]
    ) -> None:
        """Send log lines to a client. If there are no lines, send a gap frame that ends with the
        last line's number.
        """
        chunks = list[bytes]()
        first_number = client.cursor + 1
        for frame in frames:
            if frame.number <= client.cursor or frame.number > self.last_number:
                continue
            if frame.number > client.cursor + 1:
                chunks.append(encode_log_gap_frame(client.cursor + 1, frame.number - 1, "lost"))
            chunks.append(frame.data)
            client.cursor = frame.number
            if frame.number == client.sync_position:
                client.queue_frames(QueuedFrames(b"".join(chunks), len(chunks), first_number))
                chunks = []
                first_number = frame.number + 1
                self._send_synced(client)
        if not frames:
            chunks.append(encode_log_gap_frame(client.cursor + 1, self.last_number, "lost"))
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
        if client.hello.wants_partial:
            client.skips_open_block = self.partial_block.has_open_block_without_start
            if block_frames := self.partial_block.frames_for_new_client:
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
        """Send a client the prompts and outcomes that it has missed, until its queue is full."""
        open_prompts = self._prompts.open
        self._ready_clients[client.number] = None
        for prompt_id in client.open_prompt_ids - open_prompts.keys():
            if client.has_full_queue:
                return
            outcome = self._prompts.find_outcome(prompt_id)
            if outcome is None:
                outcome = PermissionPromptOutcome(prompt_id, None, "cancelled")
            client.queue_prompt_outcome_frame(prompt_id, outcome.encoded_outcome_frame)
        for prompt_id, prompt in open_prompts.items():
            if prompt_id in client.open_prompt_ids:
                continue
            if client.has_full_queue:
                return
            client.queue_prompt_frame(prompt_id, prompt.encoded_prompt_frame)
        client.has_all_prompts = True


def _join_frames(frames: Sequence[ConversationLineFrame]) -> QueuedFrames:
    first_number = next((frame.number for frame in frames if frame.number), 0)
    return QueuedFrames(b"".join([frame.data for frame in frames]), len(frames), first_number)
