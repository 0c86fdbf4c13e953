"""The protocol of a tunnel, which carries the stdin, stdout, stderr and exit status of a relay between
a member and a machine.

A member opens a tunnel with a request, whose subject names the tunnel. It contains the JWT of the
member. The answer is the machine's first message in the tunnel. It contains the JWT of the machine
and a challenge, which is new for each tunnel. All further messages are sealed for this tunnel,
challenge, direction and number, so that they cannot be used again elsewhere. The machine starts the
relay after the first valid message.

A message is its number (8 bytes), and then the sealed kind (1 byte) and content. Each side may have
WINDOW_BYTES of data on the way. The receiver grants further bytes as it writes the data.

A missing or repeated message ends the tunnel. A forged message is ignored. The client opens another
tunnel after the end, and continues after the last line that it has received.
"""

from enum import IntEnum
from typing import NamedTuple

from shim.core.errors import ShimError
from shim.core.fleet.keys import KeyPair
from shim.core.fleet.sealing import open_sealed, seal

# The data that one side may send before the other has written any of it.
WINDOW_BYTES = 512 * 1024
# Data is granted in parts of this size, so that a grant is not sent for every message.
GRANT_BYTES = WINDOW_BYTES // 4
# Added to the size of each data message in the window, because short messages need memory, too.
MESSAGE_OVERHEAD_BYTES = 256
# The largest data of a message. A server accepts messages of 1 MiB, with their headers.
MAX_DATA_BYTES = 128 * 1024
MAX_REASON_CHARS = 1000
# Both sides send a message at least once in this time.
PING_INTERVAL_S = 2.0
# The other side is lost if it was silent for this long.
SILENCE_LIMIT_S = 8.0
TUNNEL_ID_BYTES = 16
CHALLENGE_BYTES = 16
NUMBER_BYTES = 8
TO_MACHINE, TO_MEMBER = "up", "down"


class MessageKind(IntEnum):
    """The kind of a message.

    STDIN, STDOUT, STDERR  data of this stream
    STDIN_END              stdin has ended
    EXIT                   the relay has ended: its status (1 byte), and a reason or nothing; or the
                           member has closed the tunnel
    GRANT                  the other side may send this many further bytes (4 bytes)
    PING                   nothing: the sender is still there
    """

    STDIN = 1
    STDIN_END = 2
    STDOUT = 3
    STDERR = 4
    EXIT = 5
    GRANT = 6
    PING = 7


DATA_KINDS = frozenset((MessageKind.STDIN, MessageKind.STDOUT, MessageKind.STDERR))
# The kinds that only one side sends.
STDIN_KINDS = frozenset((MessageKind.STDIN, MessageKind.STDIN_END))
OUTPUT_KINDS = frozenset((MessageKind.STDOUT, MessageKind.STDERR))


class TunnelError(ShimError):
    """Raised if messages of a tunnel are missing or repeated, or if the tunnel is refused."""


class TunnelMessage(NamedTuple):
    """A message that was received."""

    kind: MessageKind
    content: bytes = b""


class OpenAnswer(NamedTuple):
    """The answer to an open request.

    jwt        the JWT of the machine
    challenge  random hexadecimal digits, or "" if there is no tunnel
    refusal    the reason why there is no tunnel, or ""
    """

    jwt: str
    challenge: str = ""
    refusal: str = ""


def build_answer_context(subject: str) -> str:
    """Return the context of the answer to the request with a subject."""
    return f"{subject} answer"


class TunnelKeys(NamedTuple):
    """The keys of one end of a tunnel. The keys of the two directions differ, because a member with
    the role "watch" must not be able to seal commands.
    """

    sender: KeyPair
    receiver_public_key: str  # of the other side
    send_key: bytes
    receive_key: bytes


class TunnelEndpoint:
    """Seals, numbers and checks the messages of one end of a tunnel, and counts the data that may be
    sent.
    """

    def __init__(self, keys: TunnelKeys, tunnel: str, challenge: str, direction: str) -> None:
        self._keys = keys
        self._context = f"{tunnel} {challenge}"
        self._send_direction = direction
        self._receive_direction = TO_MEMBER if direction == TO_MACHINE else TO_MACHINE
        # The kinds that the other side must not send: those that only this side sends, and those of
        # streams that have ended.
        self._refused_kinds = STDIN_KINDS if direction == TO_MACHINE else OUTPUT_KINDS
        self._sent_count = 0
        self._received_count = 0
        self._ungranted_bytes = 0  # written here, and not yet granted to the other side
        self._receivable_bytes = WINDOW_BYTES
        self._sendable_bytes = WINDOW_BYTES

    def get_max_data_bytes(self) -> int:
        """Return how long the data of the next message may be. It is 0 if the other side must grant
        further bytes first.
        """
        return max(0, min(MAX_DATA_BYTES, self._sendable_bytes - MESSAGE_OVERHEAD_BYTES))

    def seal_message(self, kind: MessageKind, content: bytes, nonce: bytes) -> bytes:
        """Return the next message. Data must not be longer than `get_max_data_bytes`."""
        if kind in DATA_KINDS:
            assert len(content) <= self.get_max_data_bytes()
            self._sendable_bytes -= len(content) + MESSAGE_OVERHEAD_BYTES
        number = self._sent_count
        self._sent_count += 1
        context = self._build_context(self._send_direction, number)
        sealed = seal(
            self._keys.send_key, nonce, bytes((kind,)) + content, context, self._keys.sender
        )
        return number.to_bytes(NUMBER_BYTES, "big") + sealed

    def open_message(self, data: bytes) -> TunnelMessage:
        """Return the content of the next message. Raise SealError if the other side has not sealed it
        for this tunnel, and TunnelError if it is not the next one.
        """
        number = int.from_bytes(data[:NUMBER_BYTES], "big")
        context = self._build_context(self._receive_direction, number)
        payload = open_sealed(
            self._keys.receive_key, data[NUMBER_BYTES:], context, self._keys.receiver_public_key
        )
        if number < self._received_count:
            raise TunnelError(f"the message {number} of a tunnel has arrived twice")
        if number > self._received_count:
            raise TunnelError(
                f"the message {self._received_count} of a tunnel is missing; {number} has arrived"
            )
        self._received_count += 1
        return self._parse_message(payload)

    def _parse_message(self, payload: bytes) -> TunnelMessage:
        try:
            kind = MessageKind(payload[0])
        except (IndexError, ValueError):
            # A newer version may send further kinds.
            return TunnelMessage(MessageKind.PING)
        content = payload[1:]
        if kind in self._refused_kinds:
            raise TunnelError("the other side of a tunnel has sent data after its end")
        if kind is MessageKind.GRANT:
            self._sendable_bytes += int.from_bytes(content, "big")
            if self._sendable_bytes > WINDOW_BYTES:
                raise TunnelError("the other side of a tunnel has granted too much data")
        elif kind in DATA_KINDS:
            self._receivable_bytes -= len(content) + MESSAGE_OVERHEAD_BYTES
            if self._receivable_bytes < 0:
                raise TunnelError("the other side of a tunnel has sent more data than granted")
        elif kind is MessageKind.STDIN_END:
            self._refused_kinds |= STDIN_KINDS
        elif kind is MessageKind.EXIT:
            self._refused_kinds = DATA_KINDS | {MessageKind.STDIN_END, MessageKind.EXIT}
        return TunnelMessage(kind, content)

    def count_written(self, message: TunnelMessage) -> bytes:
        """Count a received message whose data was written. Return the content of the GRANT message
        that must be sent now, or b"".
        """
        if message.kind not in DATA_KINDS:
            return b""
        self._ungranted_bytes += len(message.content) + MESSAGE_OVERHEAD_BYTES
        if self._ungranted_bytes < GRANT_BYTES:
            return b""
        granted_bytes = self._ungranted_bytes
        self._ungranted_bytes = 0
        self._receivable_bytes += granted_bytes
        return granted_bytes.to_bytes(4, "big")

    def _build_context(self, direction: str, number: int) -> str:
        return f"{self._context} {direction} {number}"


def encode_exit(status: int, reason: str) -> bytes:
    """Return the content of an EXIT message."""
    return bytes((status & 0xFF,)) + reason[:MAX_REASON_CHARS].encode()


def decode_exit(content: bytes) -> tuple[int, str]:
    """Return the status and the reason of an EXIT message."""
    return (content or b"\xff")[0], content[1:].decode("utf-8", "replace")
