"""The strict reader reports every changed, missing or added byte at its place, and nothing in an
intact file.
"""

import hashlib
import itertools
import json
from collections.abc import Iterator

import sweeps
from cast_builder import HEADER, build_case_recording, build_recording, split_lines
from fixture_cases import Case, list_fixture_cases
from hypothesis import given
from hypothesis import strategies as st
from sweeps import choose_few_cases, loop_over_cases, loop_over_rows

from shim.core.cast.encoder import CHECKPOINT_LINES
from shim.core.cast.format import FORMAT_VERSION, MAX_LINE_BYTES
from shim.core.cast.verify import MAX_FINDINGS, RecordingVerifier

CHILD = {"child": 1, "turn": 1, "argv": ["pi"], "cwd": "/home/user/project"}
ENDED = {"child": 1, "code": 0, "signal": None}
# Every record code, in two sections between checkpoints and a part of a third, so that damage has
# data before and after it.
SMALL = build_recording(
    [
        (0.0, "i", b"hello\n"),
        (0.1, "s", CHILD),
        *((0.1 * number, "o", b'{"n":%d}\n' % number) for number in range(1, 66)),
        (7.0, "e", b"\xff\n"),
        (7.0, "O", '{"text":"grün"}\n'.encode()),
        (7.1, "o", b"unfinished"),
        (7.2, "n", {"kind": "repair"}),
        (7.3, "x", ENDED),
    ]
)

BETWEEN = 2 * (CHECKPOINT_LINES + 1)  # lines, if a checkpoint itself is damaged


def verify_data(data: bytes, size: int = 1 << 20) -> RecordingVerifier:
    """Return the verifier after a file that came in chunks of `size`."""
    verifier = RecordingVerifier()
    for at in range(0, len(data), size):
        verifier.feed(data[at : at + size])
    verifier.close()
    return verifier


def list_findings(data: bytes) -> list[tuple[int, int, str, str]]:
    """Return the findings without their texts."""
    return [finding[:4] for finding in verify_data(data).findings]


def cast_with(*lines: str) -> bytes:
    """Return a recording with an intact hash chain that contains these lines."""
    data = build_recording([], end=False) + "".join(f"{line}\n" for line in lines).encode()
    return data + b'["h","%s","end"]\n' % hashlib.sha256(data).hexdigest().encode()


@loop_over_cases(list_fixture_cases(), quick=choose_few_cases)
def test_intact_recording_has_no_findings(case: Case) -> None:
    data = build_case_recording(case)
    verifier = verify_data(data, 4099)
    assert verifier.findings == [] and verifier.is_intact and verifier.integrity_status == "intact"
    assert verifier.line_count == verifier.last_proved_line == len(split_lines(data))


def damaged_at(data: bytes, where: int) -> None:
    """Assert that a reported damage range contains the line of this byte."""
    line = data[:where].count(b"\n") + 1
    damage = [finding for finding in verify_data(data).findings if finding.severity == "damage"]
    near = [finding for finding in damage if finding.first <= line <= finding.last]
    assert near, f"byte {where}, in line {line}, and found is {damage}"
    assert min(finding.last - finding.first for finding in near) < BETWEEN


STEP = 3  # between the positions in `make test`


def places(size: int) -> range:
    """Return every third position, or every position with `--full`."""
    return range(0, size, 1 if sweeps.full else STEP)


def tries(size: int, others: bytes) -> Iterator[tuple[int, int]]:
    """Yield every position with every other byte in `make full`, and otherwise one byte per
    position.
    """
    if sweeps.full:
        return itertools.product(range(size), others)
    return zip(places(size), itertools.cycle(others), strict=False)


def test_changed_byte_is_located_between_checkpoints() -> None:
    for where, other in tries(len(SMALL), b"0\n x"):
        if SMALL[where] != other:
            damaged_at(SMALL[:where] + bytes([other]) + SMALL[where + 1 :], where)


def test_removed_byte_is_located_between_checkpoints() -> None:
    for where in places(len(SMALL)):
        damaged_at(SMALL[:where] + SMALL[where + 1 :], where)


def test_added_byte_is_located_between_checkpoints() -> None:
    for where, other in tries(len(SMALL) + 1, b"0\n "):
        # The replacement may be the original byte.
        is_same_byte = SMALL[where : where + 1] == bytes([other])
        damaged_at(SMALL[:where] + bytes([other]) + SMALL[where:], where + is_same_byte)


def test_swapped_bytes_are_located_between_checkpoints() -> None:
    for where in places(len(SMALL) - 1):
        first_byte, other = SMALL[where], SMALL[where + 1]
        if first_byte != other:
            damaged_at(SMALL[:where] + bytes([other, first_byte]) + SMALL[where + 2 :], where)


@given(st.integers(0, 10_000), st.binary(min_size=1, max_size=8), st.integers(0, 200))
def test_any_replaced_range_is_detected(where: int, new: bytes, size: int) -> None:
    where %= len(SMALL)
    changed = SMALL[:where] + new + SMALL[where + size :]
    if changed != SMALL:
        assert not verify_data(changed).is_intact


@given(st.permutations(split_lines(SMALL)))
def test_reordered_lines_are_detected(lines: list[bytes]) -> None:
    changed = b"".join(lines)
    assert verify_data(changed).is_intact == (changed == SMALL)


def test_recording_truncated_at_any_byte_is_reported_as_cut_off() -> None:
    for size in places(len(SMALL)):
        verifier = verify_data(SMALL[:size])
        assert verifier.is_truncated and verifier.integrity_status == "cut off", size
        (finding,) = (finding for finding in verifier.findings if finding.severity == "damage")
        assert finding.kind == "cut" and finding.first <= finding.last
        assert finding.last == max(
            SMALL[:size].count(b"\n") + (not SMALL[:size].endswith(b"\n") and size > 0), 1
        )


def test_truncation_finding_names_the_unproved_lines() -> None:
    lines = split_lines(SMALL)
    (finding,) = verify_data(b"".join(lines[:70])).findings
    assert (finding.first, finding.last) == (66, 70)
    assert (
        finding.text
        == "cut off after line 70: the last checkpoint is missing, and lines 66 to 70 are not verified"
    )
    (finding,) = verify_data(b"".join(lines[:65])).findings
    assert finding.text.endswith("all earlier lines are verified")


def test_lines_after_the_first_damage_are_not_proved() -> None:
    lines = split_lines(
        build_recording([(0.0, "s", CHILD), (0.0, "o", b"x\n" * 200), (0.1, "x", ENDED)])
    )
    lines[80] = lines[80].replace(b"x", b"y")
    verifier = verify_data(b"".join(lines))
    (finding,) = verifier.findings
    assert (finding.first, finding.last, finding.kind) == (66, 130, "changed")
    assert "nothing after it can be verified" in finding.text
    assert verifier.last_proved_line == 65 and not verifier.is_truncated


def test_findings_do_not_depend_on_the_chunk_size() -> None:
    damaged = SMALL.replace(b'{\\"n\\":7}', b"oops")
    for size in (1, 7, 100):
        assert verify_data(damaged, size).findings == verify_data(damaged).findings != []


@loop_over_rows(
    ("line", "severity", "kind"),
    [
        ("{broken", "damage", "not_json"),
        ("7", "damage", "no_record"),
        ('{"a":1}', "damage", "no_record"),
        ('[0.1,"n"]', "damage", "no_record"),
        ('[0.1,7,"x"]', "damage", "no_record"),
        ('[0.1,"i",7]', "damage", "no_record"),
        ('[0.1,"n","text"]', "damage", "no_record"),
        ('[-0.1,"i","x"]', "damage", "time"),
        ('["soon","i","x"]', "damage", "time"),
        ('[true,"i","x"]', "damage", "time"),
        ('[9000000,"i","x"]', "note", "time"),
        ('[0.1,"ib","?"]', "damage", "base64"),
        ('[0.1,"q","?"]', "note", "unknown_code"),
        ('[0.1,"ix","?"]', "note", "unknown_code"),
        ('[0.1,"","?"]', "note", "unknown_code"),
        ('[0.1,"i","x","y"]', "note", "more"),
        ("# a comment", "note", "comment"),
        ("", "note", "comment"),
        ('[0.1,"o","x"]', "damage", "order"),
        ('[0.1,"x",{"child":1,"code":0,"signal":null}]', "damage", "order"),
        ('[0.1,"s",{"child":"one"}]', "damage", "no_record"),
    ],
)
def test_malformed_line_is_reported_with_severity_and_kind(
    line: str, severity: str, kind: str
) -> None:
    data = cast_with('[0,"i","before"]', line)
    assert (3, 3, severity, kind) in list_findings(data)
    assert verify_data(data).is_intact == (severity == "note")


def test_unfinished_child_and_line_are_reported_as_notes() -> None:
    lines = '[0,"s",{"child":1}]', '[0.1,"O-","x"]'
    assert list_findings(cast_with(*lines)) == [
        (2, 4, "note", "order"),
        (3, 4, "note", "unfinished"),
    ]


def test_overlapping_children_are_reported() -> None:
    assert (2, 3, "damage", "order") in list_findings(
        cast_with('[0,"s",{"child":1}]', '[0,"s",{"child":2}]')
    )


def test_child_output_after_its_exit_is_reported() -> None:
    lines = '[0,"s",{"child":1}]', '[0,"x",{"child":1}]', '[0,"e","late"]'
    (finding,) = verify_data(cast_with(*lines)).findings
    assert finding.text == "a record of e after the end of its child"


@loop_over_rows("key", ["started", "shim", "vendor", "argv", "cwd", "env", "redact", "platform"])
def test_missing_header_key_is_a_note_and_wrong_type_is_damage(
    key: str,
) -> None:
    without = {name: value for name, value in HEADER.items() if name != key}
    for header, severity in ((without, "note"), ({**HEADER, key: 7}, "damage")):
        head = json.dumps({"shimcast": FORMAT_VERSION, **header}).encode() + b"\n"
        assert (1, 1, severity, "header") in list_findings(head)


def test_file_that_is_not_a_recording_has_a_single_finding() -> None:
    assert list_findings(b"hello\n" * 1000) == [(1, 1, "damage", "no_cast")]
    assert (
        list_findings(
            b'["h","e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855","end"]\n'
        )[0][3]
        == "no_cast"
    )


def test_later_format_version_is_reported_as_unreadable() -> None:
    ((_, _, severity, kind),) = list_findings(SMALL.replace(b'{"shimcast":1', b'{"shimcast":2'))
    assert (severity, kind) == ("damage", "no_cast")
    assert (
        verify_data(SMALL.replace(b'{"shimcast":1', b'{"shimcast":2')).integrity_status
        == "unreadable"
    )


def test_hash_chain_is_valid_for_malformed_lines_but_not_after_edits() -> None:
    assert verify_data(SMALL).has_valid_hash_chain and verify_data(SMALL[:-9]).has_valid_hash_chain
    assert verify_data(cast_with("{broken")).has_valid_hash_chain, (
        "the chain holds, whatever it holds"
    )
    assert (
        not verify_data(SMALL + b"more").has_valid_hash_chain
        and not verify_data(SMALL.replace(b"hello", b"jello")).has_valid_hash_chain
    )


def test_line_above_the_size_limit_is_reported() -> None:
    data = cast_with('[0.1,"n",{}]', f'[0.1,"i","{"x" * MAX_LINE_BYTES}"]')
    for size in (1 << 16, len(data)):
        assert [finding[:4] for finding in verify_data(data, size).findings] == [
            (3, 3, "damage", "too_long")
        ]


def test_number_of_stored_findings_is_limited_and_the_rest_counted() -> None:
    verifier = verify_data(cast_with(*["{", "#"] * (MAX_FINDINGS + 50)) + b"more\n")
    assert len(verifier.findings) <= 2 * MAX_FINDINGS + 3
    assert verifier.omitted_findings == 100
    assert verifier.findings[-1].kind == "behind"


def test_finding_text_is_short_and_printable() -> None:
    hostile = "\x1b]52;c;eA==\x07[red]\u202e" + "x" * 1000
    data = cast_with(
        json.dumps([0.1, hostile, ""], ensure_ascii=False), f"{{{hostile}", '[0.1,"q\\u001b[2J",1]'
    )
    for finding in verify_data(data).findings:
        assert len(finding.text) < 200 and finding.text.isprintable()
