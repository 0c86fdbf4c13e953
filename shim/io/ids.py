"""Creates ids and formats the current time. The `uuid` module is not used, because its import would
delay every child by 2 ms.
"""

import os
import time


def create_uuid() -> str:
    """Create a random UUID (RFC 9562, version 4)."""
    random_bytes = bytearray(os.urandom(16))
    random_bytes[6] = random_bytes[6] & 0x0F | 0x40
    random_bytes[8] = random_bytes[8] & 0x3F | 0x80
    text = random_bytes.hex()
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def create_session_ids() -> tuple[str, str]:
    """Create a session id, and the first 24 characters for the UUIDs of the session's lines."""
    return create_uuid(), create_uuid()[:24]


def format_now() -> str:
    """Return the current time in Claude's format."""
    time_s = time.time()
    return (
        time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(time_s))
        + f".{int(time_s * 1000) % 1000:03d}Z"
    )
