"""Splitting of bytes into lines."""

from io import BytesIO

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shim.core.reading import lines
from shim.core.reading.lines import LineSplitter, OpenSpillFile


def all_lines(
    *chunks: bytes, limit: int = 1000, aside: OpenSpillFile | None = None
) -> tuple[list[bytes], int]:
    """Return the lines of all chunks, and the number of skipped lines."""
    splitter = LineSplitter(limit, aside)
    complete_lines = [line for chunk in chunks for line in splitter.feed(chunk)]
    complete_lines += splitter.close()
    return complete_lines, splitter.skipped_lines


def test_lines_are_returned_without_their_newline():
    assert all_lines(b"a\nb\n") == ([b"a", b"b"], 0)


def test_line_may_span_many_chunks():
    assert all_lines(b"a", b"b", b"c\nd", b"e\n") == ([b"abc", b"de"], 0)


def test_last_line_needs_no_newline():
    assert all_lines(b"a\nlast") == ([b"a", b"last"], 0)


def test_empty_lines_are_returned_and_empty_chunks_are_ignored():
    assert all_lines(b"\n\na\n", b"", b"\n") == ([b"", b"", b"a", b""], 0)


def test_empty_input_returns_no_lines():
    assert all_lines() == ([], 0)


def test_only_lf_ends_a_line():
    """U+2028, U+0085, CR, VT and FF are part of a line: `splitlines` would split there
    (hostile-input 4).
    """
    line = "a\u2028b\x85c\rd\x0be\x0cf".encode()
    assert all_lines(line + b"\n") == ([line], 0)


@pytest.mark.parametrize("chunk_bytes", [1, 3, 1000])
def test_line_above_the_limit_is_skipped_and_the_next_line_is_returned(chunk_bytes):
    data = b"before\n" + b"x" * 2000 + b"\nafter\n"
    chunks = [data[start : start + chunk_bytes] for start in range(0, len(data), chunk_bytes)]
    assert all_lines(*chunks, limit=100) == ([b"before", b"after"], 1)


def test_last_line_above_the_limit_is_counted():
    assert all_lines(b"a\n", b"x" * 101, limit=100) == ([b"a"], 1)


def test_line_above_the_limit_within_a_single_chunk_is_skipped():
    assert all_lines(b"a\n" + b"x" * 101 + b"\n" + b"x" * 100 + b"\n" + b"y" * 101, limit=100) == (
        [b"a", b"x" * 100],
        2,
    )


@pytest.mark.parametrize("chunk_bytes", [1, 7, 5000])
def test_head_of_a_skipped_line_is_stored(chunk_bytes):
    data = b"a line that begins like this" + b"x" * 5000 + b"\n"
    splitter = LineSplitter(1000)
    for start in range(0, len(data), chunk_bytes):
        splitter.feed(data[start : start + chunk_bytes])
    assert splitter.skipped_line_head == data[: lines.MAX_HEAD_BYTES]


def test_line_of_exactly_the_limit_is_returned():
    assert all_lines(b"x" * 50, b"x" * 50, b"\n", limit=100) == ([b"x" * 100], 0)


def test_endless_line_is_not_stored_in_memory():
    """Threat: a line without an end."""
    splitter = LineSplitter(100)
    for _ in range(1000):
        splitter.feed(b"x" * 50)
    assert sum(map(len, splitter._parts)) <= 100


def test_closed_splitter_returns_no_lines():
    splitter = LineSplitter()
    splitter.feed(b"rest")
    assert list(splitter.close()) == [b"rest"]
    assert list(splitter.close()) == []


@settings(derandomize=True, deadline=None, database=None, max_examples=200)
@given(st.lists(st.binary(max_size=6).map(lambda data: data.replace(b"a", b"\n")), max_size=12))
def test_lines_do_not_depend_on_chunk_boundaries(chunks):
    full_data = b"".join(chunks)
    expected = full_data.split(b"\n")
    if not expected[-1]:
        expected.pop()
    assert all_lines(*chunks) == (expected, 0)


# -- long lines are stored in a file ---------------------------------------------------------------


class Disk(BytesIO):
    """A file with limited space that takes at most 7 bytes at a time."""

    max_bytes = 1000

    def write(self, data):
        count = min(len(data), 7, self.max_bytes - self.tell())
        if count <= 0:
            raise OSError("no space left")
        return super().write(data[:count])


@pytest.fixture
def small_memory_limit(monkeypatch):
    monkeypatch.setattr(lines, "MAX_MEMORY_BYTES", 20)


@pytest.mark.parametrize("max_bytes", [1000, 50, 21, 0])
@pytest.mark.parametrize("chunk_bytes", [1, 10, 64])
def test_spilled_line_is_complete_even_if_the_spill_file_is_full(
    small_memory_limit, monkeypatch, max_bytes, chunk_bytes
):
    monkeypatch.setattr(Disk, "max_bytes", max_bytes)
    data = b"a\n" + bytes(range(65, 91)) * 10 + b"\nb\n" + b"y" * 60 + b"\nlast"
    chunks = [data[start : start + chunk_bytes] for start in range(0, len(data), chunk_bytes)]
    assert all_lines(*chunks, aside=Disk) == (data.split(b"\n"), 0)


def test_line_stays_in_memory_if_the_spill_file_cannot_be_opened(small_memory_limit):
    def none() -> Disk:
        raise OSError("read-only")

    assert all_lines(b"x" * 30, b"y" * 30, b"\n", aside=none) == ([b"x" * 30 + b"y" * 30], 0)


def test_spilled_line_is_not_stored_in_memory(small_memory_limit):
    splitter = LineSplitter(100_000, BytesIO)
    for _ in range(1000):
        splitter.feed(b"x" * 50)
    assert sum(map(len, splitter._parts)) <= 20


def test_spilled_line_above_the_limit_is_skipped_and_its_head_is_stored(small_memory_limit):
    splitter = LineSplitter(100, BytesIO)
    for chunk in (b"it begins ", b"like this ", b"x" * 50, b"x" * 50, b"x" * 50 + b"\nnext\n"):
        complete_lines = splitter.feed(chunk)
    assert (complete_lines, splitter.skipped_lines) == ([b"next"], 1)
    assert splitter.skipped_line_head.startswith(b"it begins like this xxx")
    assert splitter._spill_file is None


def test_unreadable_spill_file_skips_only_its_line(small_memory_limit):
    class Broken(BytesIO):
        def read(self, *_):
            raise OSError("input/output error")

    assert all_lines(b"x" * 60, b"\nnext\n", aside=Broken) == ([b"next"], 1)


def test_single_byte_chunks_are_spilled_in_a_single_write(monkeypatch):
    monkeypatch.setattr(lines, "MAX_MEMORY_BYTES", 100)
    written = []

    class WriteSizeRecorder(BytesIO):
        def write(self, data):
            written.append(len(data))
            return super().write(data)

    complete_lines, _ = all_lines(*[b"x"] * 150, b"\n", aside=WriteSizeRecorder)
    assert complete_lines == [b"x" * 150]
    assert written[0] == 101
