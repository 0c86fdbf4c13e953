"""Fresh ids and the time of day, as our lines have them. `uuid` is not imported: that costs 2 ms
before every child.
"""

import os
import time


def create_uuid() -> str:
    """A random UUID (RFC 9562, version 4)."""
    random_bytes = bytearray(os.urandom(16))
    random_bytes[6] = random_bytes[6] & 0x0F | 0x40
    random_bytes[8] = random_bytes[8] & 0x3F | 0x80
    text = random_bytes.hex()
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def create_session_ids() -> tuple[str, str]:
    """A session id, and the first 24 characters of the uuids of its lines."""
    return create_uuid(), create_uuid()[:24]


def format_now() -> str:
    """The time, as Claude writes it."""
    time_s = time.time()
    return (
        time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(time_s))
        + f".{int(time_s * 1000) % 1000:03d}Z"
    )
