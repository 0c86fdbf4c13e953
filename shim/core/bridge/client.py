"""The state of a client that is connected to a session, and the clients' roles."""

from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

from shim.core.bridge.frames import NO_HELLO, ClientHello, FrameRefusedError, encode_frame

# The maximum number of lines and bytes in a client's queue. If a slow client's queue is full, the
# client receives the next lines from the log.
MAX_QUEUED_LINES = 256
MAX_QUEUED_BYTES = 2 * 1024 * 1024
# The maximum number and size of unread replies to a client's own frames. Replies are not in the
# log, so a client with more unread replies is dropped.
MAX_QUEUED_REPLIES = 1024
MAX_REPLY_BYTES = 4 * 1024 * 1024


class QueuedFrames(NamedTuple):
    """Frames in a client's queue that are written together."""

    data: bytes
    line_count: int = 0  # 0 for frames that are not lines
    first_number: int = 0  # the number of the first complete line, or 0
    prompt_id: str = ""  # the prompt that the frame opens or resolves
    is_prompt: bool = False  # True if the frame opens the prompt, False if it resolves the prompt
    is_reply: bool = False  # a reply to the client's own frame; replies are never dropped
    sync_position: int | None = None  # the line number in a `synced` frame


@dataclass(slots=True, eq=False)
class ConnectedClient:
    """A connected client: its position in the session log, its queue of frames, and the state that
    the client has received.
    """

    number: int
    connected_at: float  # in seconds, from the hub's clock
    hello: ClientHello = NO_HELLO
    name: str = ""  # unique; `hello.client_name` is the requested name
    declines_prompts: bool = False  # the client does not answer prompts
    bad_frame_count: int = 0
    is_dropped: bool = False
    is_live: bool = False  # new lines are sent to the client immediately, not from the log
    cursor: int = 0  # the number of the last queued line
    read_position: int | None = None  # the log is being read for the client from after this line
    sync_position: int | None = None  # the last line before the hello; None once `synced` is queued
    skips_open_block: bool = False  # the open block is skipped, because its start is not stored
    has_stale_state: bool = False  # the client must still receive the new state or controller
    open_prompt_ids: set[str] = field(default_factory=set)  # open prompts that the client received
    has_all_prompts: bool = False  # whether the client has received all open prompts
    queue: deque[QueuedFrames] = field(default_factory=deque)
    _queued_line_count: int = 0
    _queued_bytes: int = 0
    _queued_reply_count: int = 0
    _queued_reply_bytes: int = 0

    @property
    def has_hello(self) -> bool:
        """Whether the client has sent its hello frame."""
        return self.hello is not NO_HELLO

    @property
    def has_full_queue(self) -> bool:
        """Whether the client's queue accepts no more lines or prompts. The queue can exceed its
        limits, because frames that belong together are not split.
        """
        if self._queued_line_count >= MAX_QUEUED_LINES:
            return True
        return self._queued_bytes >= MAX_QUEUED_BYTES

    @property
    def has_too_many_replies(self) -> bool:
        """Whether the client sends frames without reading the replies."""
        if self._queued_reply_count > MAX_QUEUED_REPLIES:
            return True
        return self._queued_reply_bytes > MAX_REPLY_BYTES

    def queue_frames(self, item: QueuedFrames) -> None:
        self.queue.append(item)
        self._count_item(item, 1)

    def _count_item(self, item: QueuedFrames, sign: int) -> None:
        if item.is_reply:
            self._queued_reply_count += sign
            self._queued_reply_bytes += sign * len(item.data)
        else:
            self._queued_line_count += sign * max(item.line_count, 1)
            self._queued_bytes += sign * len(item.data)

    def queue_prompt_frame(self, prompt_id: str, data: bytes) -> None:
        """Queue a frame with an open prompt."""
        self.open_prompt_ids.add(prompt_id)
        self.queue_frames(QueuedFrames(data, prompt_id=prompt_id, is_prompt=True))

    def queue_prompt_outcome_frame(self, prompt_id: str, data: bytes) -> None:
        """Queue a frame with a prompt's outcome. The client has already received the prompt."""
        self.open_prompt_ids.discard(prompt_id)
        self.queue_frames(QueuedFrames(data, prompt_id=prompt_id))

    def drop_queued_frames(self, last_line_number: int) -> None:
        """Drop all queued frames except replies, and queue a gap frame. The client continues with
        lines from the log, which ends at `last_line_number`.
        """
        dropped_items = [item for item in self.queue if not item.is_reply]
        for item in reversed(dropped_items):
            if item.is_prompt:
                self.open_prompt_ids.discard(item.prompt_id)
            elif item.prompt_id:
                self.open_prompt_ids.add(item.prompt_id)
            elif item.sync_position is not None:
                self.sync_position = item.sync_position
        line_numbers = [item.first_number for item in dropped_items if item.first_number]
        if line_numbers:
            self.cursor = line_numbers[0] - 1
        self.queue = deque(item for item in self.queue if item.is_reply)
        self._queued_line_count = self._queued_bytes = 0
        self.is_live = self.has_all_prompts = self.skips_open_block = False
        self.has_stale_state = True
        self.read_position = None
        self.queue_frames(
            QueuedFrames(encode_log_gap_frame(self.cursor + 1, last_line_number, "slow"))
        )

    def take_queued_bytes(self, max_bytes: int) -> bytes:
        """Remove and return the next queued frames: at least one frame, and about `max_bytes`
        bytes.
        """
        parts = list[bytes]()
        size_bytes = 0
        while self.queue and size_bytes < max_bytes:
            item = self.queue.popleft()
            self._count_item(item, -1)
            size_bytes += len(item.data)
            parts.append(item.data)
        return b"".join(parts)


def encode_log_gap_frame(first_line_number: int, last_line_number: int, reason: str) -> bytes:
    return encode_frame(
        "gap", **{"from": first_line_number, "to": last_line_number, "reason": reason}
    )


class ClientRoles:
    """Stores which client controls a session. If `owner_answers` is set, only the current
    controller may answer prompts, or the last controller if no client has control.
    """

    def __init__(self, *, owner_answers: bool) -> None:
        self.controller: ConnectedClient | None = None
        self._owner_answers = owner_answers
        # the client that controls the session, or the last client that controlled it
        self._last_controller: ConnectedClient | None = None

    @property
    def controller_name(self) -> str | None:
        """The controller's name, or None if no client has control."""
        if self.controller is None:
            return None
        return self.controller.name

    def check_control_role(self, client: ConnectedClient) -> None:
        """Raise FrameRefusedError if the client has the role "watch"."""
        if not client.hello.can_control:
            raise FrameRefusedError(
                "watch-only",
                'this client is read-only (role "watch"); connect with the role "drive"',
            )

    def check_can_control(self, client: ConnectedClient) -> None:
        """Raise FrameRefusedError if the client has the role "watch", or if another client has
        control.
        """
        self.check_control_role(client)
        if self.controller is not None and self.controller is not client:
            raise FrameRefusedError(
                "not-driver",
                f"{self.controller.name} has control of this session; `take` takes control",
            )

    def check_can_answer_prompts(self, client: ConnectedClient) -> None:
        """Raise FrameRefusedError if the client must not answer prompts."""
        self.check_control_role(client)
        if self._owner_answers and client is not self._last_controller:
            raise FrameRefusedError(
                "not-owner",
                "only the controller of this session may answer here (bridge_answers); "
                "`take` takes control",
            )

    def can_answer_prompts(self, client: ConnectedClient) -> bool:
        """Return whether the client is allowed to answer prompts and has not declined them."""
        try:
            self.check_can_answer_prompts(client)
        except FrameRefusedError:
            return False
        return not client.declines_prompts

    def set_controller(self, client: ConnectedClient | None) -> bool:
        """Set the client that controls the session. Return whether the controller has changed."""
        if client is self.controller:
            return False
        self.controller = client
        if client is not None:
            self._last_controller = client
        return True
