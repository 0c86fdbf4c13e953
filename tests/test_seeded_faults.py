"""Checks the list of seeded faults (`seeded_faults.py`)."""

import dataclasses
from contextlib import nullcontext
from types import SimpleNamespace

from seeded_faults import list_mismatches, read_faults, try_fault


def test_every_defect_edit_matches_the_code():
    """If code changes, its faults must be updated. A fault that does not fit tests nothing."""
    faults = read_faults()
    assert len(faults) >= 200
    assert list_mismatches(faults) == []


def test_defect_edit_that_does_not_match_the_code_is_reported():
    fault = read_faults()[0]
    moved = dataclasses.replace(
        fault, places=(dataclasses.replace(fault.places[0], old="what never stood there"),)
    )
    assert [message.startswith(f"{fault.name}: ") for message in list_mismatches([moved])] == [True]


def test_killed_test_run_has_the_outcome_killed():
    copy = SimpleNamespace(
        seed_faults=lambda fault: nullcontext(), run_tests=lambda paths: (-9, "")
    )
    assert try_fault(read_faults()[0], copy, 1).outcome == "killed"
