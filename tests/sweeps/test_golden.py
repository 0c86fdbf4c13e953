"""The shim's output for every fixture, byte for byte."""

import pytest
from fixture_cases import FIXTURES, SEEDS, list_fixture_cases, translate_case
from passthrough_invariants import check_passed
from stream_invariants import check_turns
from stream_lines import parse_lines
from sweeps import loop_over_cases, loop_over_rows

CASES = list_fixture_cases()


@loop_over_cases(CASES)
def test_output_matches_the_golden_file(case):
    output, _ = translate_case(case)
    assert case.golden.exists(), (
        f"{case.name} has no claude.ndjson: run `make accept` and read what it wrote"
    )
    golden = case.golden.read_bytes()
    assert parse_lines(output) == parse_lines(golden), (
        f"{case.name} says something else: if it is better, run `make accept`"
    )
    assert output == golden


@loop_over_cases(CASES)
@pytest.mark.parametrize("partial", [False, True], ids=["whole", "partial"])
def test_output_fulfils_the_contract(case, partial):
    """S1, S4, S5, S6, S7, S9, S10, S11, S12, S13, S14, S16, S16c, S17, S19

    A golden alone would accept a broken stream.
    """
    output, _ = translate_case(case, partial)
    check_turns(output, partial, passthrough=case.passthrough)


@loop_over_cases(list_fixture_cases("claude"))
@pytest.mark.parametrize("partial", [False, True], ids=["whole", "partial"])
def test_claude_lines_are_passed_byte_for_byte(case, partial):
    output, _ = translate_case(case, partial)
    check_passed(case.data, output, partial)


@loop_over_rows("vendor", [*SEEDS, "claude"])
def test_every_vendor_has_a_reviewed_golden_file(vendor):
    """`read = true` in case.toml means that a person compared the golden with the vendor's page,
    line by line.
    """
    cases = [case for case in list_fixture_cases(vendor) if case.folder.parent.name == vendor]
    assert any(case.metadata.get("read") for case in cases), (
        f"no golden of {vendor} is marked `read = true`"
    )


def test_every_golden_file_has_vendor_input():
    stray = [
        path
        for path in FIXTURES.glob("*/*/claude.ndjson")
        if not (path.parent / "vendor.ndjson").exists()
    ]
    assert not stray, "goldens that nothing makes: `make accept` removes them"
