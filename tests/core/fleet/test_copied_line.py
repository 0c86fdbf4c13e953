"""The copies of session lines: positions, signatures and gaps."""

from shim.core.bridge.frames import LogCursor
from shim.core.fleet.copied_line import (
    POSITION_HEADER,
    CopiedLine,
    CopyReader,
    format_position,
    parse_position,
    seal_line,
)
from shim.core.fleet.keys import KeyKind, KeyPair

KEY, NONCE = bytes(range(32)), bytes(24)
BUILD, MALLORY = (KeyPair(KeyKind.USER, bytes([number]) * 32) for number in (1, 2))
SUBJECT = "shim.home.build.log.x"


def build_line(number, text=b"{}"):
    return CopiedLine(1, number, 1_700_000_000_000, text)


def build_message(line, subject=SUBJECT, sender=BUILD):
    headers = {POSITION_HEADER: format_position(line)}
    return headers, seal_line(KEY, NONCE, line, subject, sender)


def create_reader(after_number=0):
    return CopyReader(KEY, SUBJECT, BUILD.public_key, after_number)


def test_lines_are_read_in_their_order():
    reader = create_reader()
    lines = [build_line(number, b"%d" % number) for number in (1, 2, 3)]
    assert [reader.read(*build_message(line)) for line in lines] == lines
    assert reader.last_number == 3


def test_missing_lines_are_reported_and_repeated_ones_ignored():
    reader = create_reader(after_number=2)
    assert reader.read(*build_message(build_line(2))) is None
    assert reader.read(*build_message(build_line(3))) == build_line(3)
    assert reader.missing_numbers is None
    assert reader.read(*build_message(build_line(7))) == build_line(7)
    assert reader.missing_numbers == (4, 6)
    assert reader.read(*build_message(build_line(5))) is None
    assert reader.read(*build_message(build_line(8))) == build_line(8)
    assert reader.missing_numbers is None


def test_forged_lines_are_ignored():
    headers, data = build_message(build_line(1))
    reader = create_reader()
    assert reader.read(*build_message(build_line(1), sender=MALLORY)) is None
    assert reader.read(*build_message(build_line(1), subject="shim.home.build.log.y")) is None
    assert reader.read({POSITION_HEADER: "1 2"}, data) is None
    assert reader.read({POSITION_HEADER: "2 1"}, data) is None
    assert reader.read(headers, data[:-1]) is None
    assert reader.read(None, data) is None
    assert reader.read(headers, data) == build_line(1)


def test_position_must_be_two_numbers():
    assert parse_position({POSITION_HEADER: "2 31"}) == LogCursor(2, 31)
    for text in ("", "2", "2 x", "-1 2", "2 3 4"):
        assert parse_position({POSITION_HEADER: text}) is None
