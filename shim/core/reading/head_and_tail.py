"""Keeps the beginning and the end of a text that is too long. A usage text has the reason for an
error at its beginning, and a stack trace has it at its end.
"""

HEAD_BYTES = 8 * 1024
TAIL_BYTES = 8 * 1024


def shorten_middle(text: str, max_chars: int, separator: str) -> str:
    """Return `text` if it has at most `max_chars` characters. Otherwise return its beginning and
    its end with `separator` between them.
    """
    half = max_chars // 2
    if len(text) <= max_chars:
        return text
    return text[:half] + separator + text[-half:]


class HeadTailBuffer:
    """Keeps the first and the last 8 KiB of the bytes that are added."""

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
        """Return the kept bytes as text. If bytes were omitted, a line between the two parts
        reports their number.
        """
        omission_note = b""
        if self.omitted_bytes:
            omission_note = f"\n[{self.omitted_bytes} bytes left out]\n".encode()
        return (self._head + omission_note + self._tail).decode("utf-8", "replace")
