"""Bytes into lines."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shim.lines import LineSplitter


def all_lines(*chunks: bytes, limit: int = 1000) -> tuple[list[bytes], int]:
    """The lines of all chunks, and how many were skipped."""
    splitter = LineSplitter(limit)
    found = [line for chunk in chunks for line in splitter.feed(chunk)]
    found += splitter.close()
    return found, splitter.skipped


def test_lines_come_without_their_newline():
    assert all_lines(b"a\nb\n") == ([b"a", b"b"], 0)


def test_a_line_may_come_in_many_chunks():
    assert all_lines(b"a", b"b", b"c\nd", b"e\n") == ([b"abc", b"de"], 0)


def test_the_last_line_needs_no_newline():
    assert all_lines(b"a\nlast") == ([b"a", b"last"], 0)


def test_empty_lines_are_lines_and_an_empty_chunk_is_none():
    assert all_lines(b"\n\na\n", b"", b"\n") == ([b"", b"", b"a", b""], 0)


def test_nothing_gives_nothing():
    assert all_lines() == ([], 0)


def test_only_lf_ends_a_line():
    """U+2028, U+0085, CR, VT and FF are part of a line: `splitlines` would cut there (hostile-input 4)."""
    line = "a\u2028b\x85c\rd\x0be\x0cf".encode()
    assert all_lines(line + b"\n") == ([line], 0)


@pytest.mark.parametrize("chunk_bytes", [1, 3, 1000])
def test_a_line_over_the_limit_is_skipped_and_counted_and_the_next_one_is_read(chunk_bytes):
    data = b"before\n" + b"x" * 2000 + b"\nafter\n"
    chunks = [data[start : start + chunk_bytes] for start in range(0, len(data), chunk_bytes)]
    assert all_lines(*chunks, limit=100) == ([b"before", b"after"], 1)


def test_a_line_over_the_limit_at_the_end_is_counted():
    assert all_lines(b"a\n", b"x" * 101, limit=100) == ([b"a"], 1)


def test_a_line_of_exactly_the_limit_is_kept():
    assert all_lines(b"x" * 50, b"x" * 50, b"\n", limit=100) == ([b"x" * 100], 0)


def test_an_endless_line_is_not_kept_in_memory():
    """Threats: endless lines."""
    splitter = LineSplitter(100)
    for _ in range(1000):
        splitter.feed(b"x" * 50)
    assert sum(map(len, splitter._parts)) <= 100


def test_a_closed_splitter_has_nothing_left():
    splitter = LineSplitter()
    splitter.feed(b"rest")
    assert list(splitter.close()) == [b"rest"]
    assert list(splitter.close()) == []


@settings(derandomize=True, deadline=None, database=None, max_examples=200)
@given(st.lists(st.binary(max_size=6).map(lambda data: data.replace(b"a", b"\n")), max_size=12))
def test_any_chunks_give_the_lines_of_the_whole(chunks):
    whole = b"".join(chunks)
    expected = whole.split(b"\n")
    if not expected[-1]:
        expected.pop()
    assert all_lines(*chunks) == (expected, 0)
