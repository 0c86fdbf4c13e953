"""Keeps the head and the tail of a text that is too long. The reason is at the head of a usage
text, and at the tail of a stack trace.
"""

HEAD_BYTES = 8 * 1024
TAIL_BYTES = 8 * 1024


def shorten_middle(text: str, max_chars: int, separator: str) -> str:
    """Return `text` if it has at most `max_chars` characters. Otherwise return its head and tail
    with `separator` between them.
    """
    half = max_chars // 2
    if len(text) <= max_chars:
        return text
    return text[:half] + separator + text[-half:]


class HeadTailBuffer:
    """Keeps the first and the last 8 KiB of the added bytes."""

    __slots__ = ("_head", "_tail", "omitted_bytes")

    def __init__(self) -> None:
        self._head = b""
        self._tail = b""
        self.omitted_bytes = 0

    def add(self, chunk: bytes) -> None:
        free_bytes = HEAD_BYTES - len(self._head)
        if free_bytes > 0:
            self._head += chunk[:free_bytes]
            chunk = chunk[free_bytes:]
        tail = self._tail + chunk
        self.omitted_bytes += max(0, len(tail) - TAIL_BYTES)
        self._tail = tail[-TAIL_BYTES:]

    def to_text(self) -> str:
        """Return the kept bytes as text. A line between head and tail contains the number of
        omitted bytes.
        """
        omission_note = b""
        if self.omitted_bytes:
            omission_note = f"\n[{self.omitted_bytes} bytes left out]\n".encode()
        return (self._head + omission_note + self._tail).decode("utf-8", "replace")
