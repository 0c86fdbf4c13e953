"""One client of a hub: what waits to be written to it, how far it has come, and what it may do."""

from collections import deque
from typing import NamedTuple

from shim.core.bridge.frames import ClientHello, FrameRefusedError, encode_frame

MAX_QUEUED_LINES = 256  # that wait for a client; one who is further behind goes on from the log
MAX_QUEUED_BYTES = 2 * 1024 * 1024
# to frames of its own, which stand in no log; a client that does not read so many is a flood
MAX_QUEUED_REPLIES = 1024
MAX_REPLY_BYTES = 4 * 1024 * 1024


class QueuedFrames(NamedTuple):
    """Frames that are written as one.

    line_count     how many lines they have; 0 for other frames
    first_number   the number of their first whole line, 0 for none
    prompt_id      the id of the question that they ask (`is_prompt`) or settle
    is_reply       they are for this client alone, and are never left out
    sync_position  they are `synced` with this number
    """

    data: bytes
    line_count: int = 0
    first_number: int = 0
    prompt_id: str = ""
    is_prompt: bool = False
    is_reply: bool = False
    sync_position: int | None = None


class ConnectedClient:
    """`cursor` is the number of the last line that was queued, `sync_position` that of the last one
    before it came.

    `is_live`: it is told what is said as it is said; otherwise it reads the log. `read_position` is
    the number behind which a read was asked for. `open_prompt_ids` are the questions that it
    believes to be open; `has_all_prompts`: they are. `declines_prompts`: it answers none.
    `skips_open_block`: it came in the middle of a block whose beginning it cannot be told.
    `has_stale_state`: the state, or who drives, changed since it was told.
    """

    __slots__ = (
        "_queued_bytes",
        "_queued_line_count",
        "_queued_reply_bytes",
        "_queued_reply_count",
        "bad_frame_count",
        "connected_at",
        "cursor",
        "declines_prompts",
        "has_all_prompts",
        "has_stale_state",
        "hello",
        "is_dropped",
        "is_live",
        "name",
        "number",
        "open_prompt_ids",
        "queue",
        "read_position",
        "skips_open_block",
        "sync_position",
    )  # fmt: skip

    def __init__(self, number: int, connected_at: float) -> None:
        self.number = number
        self.connected_at = connected_at  # when it connected, on the clock that never goes back
        self.hello: ClientHello | None = None
        self.name = ""
        self.is_live = self.has_all_prompts = self.skips_open_block = self.has_stale_state = (
            self.is_dropped
        ) = self.declines_prompts = False
        self.cursor = 0
        self.sync_position: int | None = None
        self.read_position: int | None = None
        self.open_prompt_ids: set[str] = set()
        self.bad_frame_count = 0  # frames that could not be read
        self.queue: deque[QueuedFrames] = deque()
        self._queued_line_count = self._queued_bytes = self._queued_reply_count = (
            self._queued_reply_bytes
        ) = 0

    @property
    def can_control(self) -> bool:
        """Whether it may drive."""
        return self.hello is not None and self.hello.can_control

    @property
    def requested_client_name(self) -> str:
        """What it calls itself; `name` is that of no other client."""
        return "" if self.hello is None else self.hello.client_name

    def accepts_frame_kind(self, kind: str) -> bool:
        """Whether it understands an optional kind."""
        return self.hello is not None and kind in self.hello.optional_kinds

    @property
    def has_full_queue(self) -> bool:
        """Whether as much waits for it as may. What was said at once is never cut."""
        return self._queued_line_count >= MAX_QUEUED_LINES or self._queued_bytes >= MAX_QUEUED_BYTES

    @property
    def has_too_many_replies(self) -> bool:
        """Whether it asks and does not read the answers."""
        return (
            self._queued_reply_count > MAX_QUEUED_REPLIES
            or self._queued_reply_bytes > MAX_REPLY_BYTES
        )

    @property
    def queued_bytes(self) -> int:
        """The bytes that wait for it."""
        return self._queued_bytes + self._queued_reply_bytes

    def queue_frames(self, item: QueuedFrames) -> None:
        """Something to be written behind all that waits."""
        self.queue.append(item)
        self._count_item(item, 1)

    def _count_item(self, item: QueuedFrames, sign: int) -> None:
        if item.is_reply:
            self._queued_reply_count += sign
            self._queued_reply_bytes += sign * len(item.data)
        else:
            self._queued_line_count += sign * (item.line_count or 1)
            self._queued_bytes += sign * len(item.data)

    def queue_prompt_frame(self, prompt_id: str, data: bytes) -> None:
        """A question that is open."""
        self.open_prompt_ids.add(prompt_id)
        self.queue_frames(QueuedFrames(data, prompt_id=prompt_id, is_prompt=True))

    def queue_prompt_outcome_frame(self, prompt_id: str, data: bytes) -> None:
        """A question that it believes to be open is settled."""
        self.open_prompt_ids.discard(prompt_id)
        self.queue_frames(QueuedFrames(data, prompt_id=prompt_id))

    def drop_queued_frames(self, last_line_number: int) -> None:
        """Leave out what waits: it goes on from the log, which ends with number `last_line_number`."""
        dropped_items = [item for item in self.queue if not item.is_reply]
        for item in reversed(dropped_items):
            if item.is_prompt:
                self.open_prompt_ids.discard(item.prompt_id)
            elif item.prompt_id:
                self.open_prompt_ids.add(item.prompt_id)
            elif item.sync_position is not None:
                self.sync_position = item.sync_position
        first_lost = next((item.first_number for item in dropped_items if item.first_number), 0)
        self.queue = deque(item for item in self.queue if item.is_reply)
        self._queued_line_count = self._queued_bytes = 0
        self.cursor = first_lost - 1 if first_lost else self.cursor
        self.is_live = self.has_all_prompts = self.skips_open_block = False
        self.has_stale_state, self.read_position = True, None
        self.queue_frames(
            QueuedFrames(
                encode_frame(
                    "gap", **{"from": self.cursor + 1, "to": last_line_number, "reason": "slow"}
                )
            )
        )

    def take_queued_bytes(self, max_bytes: int) -> bytes:
        """The next frames, about `max_bytes` bytes; at least one."""
        queue = self.queue
        if len(queue) == 1:
            item = queue.popleft()
            self._count_item(item, -1)
            return item.data
        parts, size_bytes = list[bytes](), 0
        while queue and size_bytes < max_bytes:
            item = queue.popleft()
            self._count_item(item, -1)
            size_bytes += len(item.data)
            parts.append(item.data)
        return b"".join(parts)


class ClientRoles:
    """Who may do what: one client drives, the others watch.

    `controller` is the client that drives. `owner_answers`: only who drives, or drove last, may
    answer questions.
    """

    def __init__(self, *, owner_answers: bool) -> None:
        self.controller: ConnectedClient | None = None
        self._owner_answers = owner_answers
        self._last_controller: ConnectedClient | None = None

    @property
    def controller_name(self) -> str | None:
        """The name of the client that drives."""
        return None if self.controller is None else self.controller.name

    def check_control_role(self, client: ConnectedClient) -> None:
        """FrameRefusedError for a client that only watches."""
        if not client.can_control:
            raise FrameRefusedError(
                "watch-only", 'this client said hello with the role "watch"; connect with "drive"'
            )

    def check_controller(self, client: ConnectedClient) -> None:
        """FrameRefusedError for who may not drive now: a watcher, or one beside the driver."""
        self.check_control_role(client)
        if self.controller is not None and self.controller is not client:
            raise FrameRefusedError(
                "not-driver",
                f"{self.controller.name} drives this session; `take` drives instead of it",
            )

    def check_can_answer_prompts(self, client: ConnectedClient) -> None:
        """FrameRefusedError for who may not answer a question."""
        self.check_control_role(client)
        if self._owner_answers and client is not (
            self._last_controller if self.controller is None else self.controller
        ):
            raise FrameRefusedError(
                "not-owner",
                "only who drives this session answers here (bridge_answers); `take` drives",
            )

    def can_answer_prompts(self, client: ConnectedClient) -> bool:
        """Whether it may answer a question, and can."""
        try:
            self.check_can_answer_prompts(client)
        except FrameRefusedError:
            return False
        return not client.declines_prompts

    def set_controller(self, client: ConnectedClient | None) -> bool:
        """Another client drives, or nobody; whether that is a change."""
        if client is self.controller:
            return False
        self._last_controller = client or self.controller
        self.controller = client
        return True
