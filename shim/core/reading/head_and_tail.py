"""The head and the tail of what is too long: usage texts put the reason first, stack traces last."""

HEAD_BYTES = 8 * 1024
TAIL_BYTES = 8 * 1024


def shorten_middle(text: str, most: int, gap: str) -> str:
    """`text` if it has at most `most` characters; else so many of them, half before the gap and
    half after it.
    """
    half = most // 2
    return text if len(text) <= most else text[:half] + gap + text[-half:]


class HeadTailBuffer:
    """Keeps the first and the last 8 KiB of what is added."""

    __slots__ = ("_head", "_tail", "omitted_bytes")

    def __init__(self) -> None:
        self._head = b""
        self._tail = b""
        self.omitted_bytes = 0

    def add(self, chunk: bytes) -> None:
        room = HEAD_BYTES - len(self._head)
        if room > 0:
            self._head += chunk[:room]
            chunk = chunk[room:]
        tail = self._tail + chunk
        self.omitted_bytes += max(0, len(tail) - TAIL_BYTES)
        self._tail = tail[-TAIL_BYTES:]

    def to_text(self) -> str:
        """What was kept, with a line that counts the bytes between."""
        gap = f"\n[{self.omitted_bytes} bytes left out]\n".encode() if self.omitted_bytes else b""
        return (self._head + gap + self._tail).decode("utf-8", "replace")
