"""The head and the tail of stderr."""

from shim.core.reading.head_and_tail import HEAD_BYTES, TAIL_BYTES, HeadTailBuffer


def fill_buffer(*chunks):
    tail = HeadTailBuffer()
    for chunk in chunks:
        tail.add(chunk)
    return tail


def test_short_stderr_is_returned_unchanged():
    assert fill_buffer(b"Error: ", b"no key\n").to_text() == "Error: no key\n"


def test_stderr_at_the_limit_is_returned_unchanged():
    data = bytes(range(32, 127)) * 400
    data = data[: HEAD_BYTES + TAIL_BYTES]
    assert fill_buffer(data).to_text() == data.decode()


def test_long_stderr_is_reduced_to_head_and_tail_with_a_byte_count():
    data = b"reason\n" + b"x" * 1_000_000 + b"\ntrace"
    text = fill_buffer(
        *(data[start : start + 4096] for start in range(0, len(data), 4096))
    ).to_text()
    assert text.startswith("reason\n") and text.endswith("\ntrace")
    assert f"[{len(data) - HEAD_BYTES - TAIL_BYTES} bytes left out]" in text
    assert len(text) < HEAD_BYTES + TAIL_BYTES + 100


def test_chunk_boundaries_do_not_change_the_text():
    data = bytes(i % 256 for i in range(50_000))
    expected = fill_buffer(data).to_text()
    assert (
        fill_buffer(*(data[start : start + 7] for start in range(0, len(data), 7))).to_text()
        == expected
    )


def test_invalid_utf8_bytes_are_replaced():
    assert fill_buffer(b"caf\xe9").to_text() == "caf\ufffd"
