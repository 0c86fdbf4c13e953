"""The options and methods of the Claude Agent SDK for TypeScript: over a vendor, its user sees the
same as with the real claude, or the session names the difference.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import pytest
from option_table import CaseReport, compare_case, list_cases, list_uncovered_names, run_cases
from vendor_setups import CLAUDE_ITSELF, CODEX, GEMINI, OPENCODE, PI, QWEN, Vendor

pytestmark = pytest.mark.e2e

QUICK_CASES = (
    "allowedTools",
    "includePartialMessages",
    "extraArgs",
    "permissionPromptToolName",
    "allowDangerouslySkipPermissions",
    "resume",
)


@functools.cache
def run_with_real_claude(cases: Sequence[str]) -> dict[str, CaseReport]:
    return dict(run_cases(CLAUDE_ITSELF, cases))


def list_different_rows(vendor: Vendor, cases: Sequence[str]) -> list[str]:
    """Return the cases in which a vendor differs, and how."""
    real = run_with_real_claude(tuple(cases))
    rows = [compare_case(case, real[case], report) for case, report in run_cases(vendor, cases)]
    assert len(rows) == len(cases)
    return [f"{row.case}: {row.detail}" for row in rows if row.outcome == "different"]


def test_each_documented_option_and_method_has_a_case() -> None:
    assert list_uncovered_names() == []


def test_options_are_equal_or_named() -> None:
    assert list_different_rows(PI, QUICK_CASES) == []


@pytest.mark.full
@pytest.mark.parametrize("vendor", [QWEN, PI, CODEX, GEMINI, OPENCODE], ids=str)
def test_all_options_and_methods_are_equal_or_named(vendor: Vendor) -> None:
    assert list_different_rows(vendor, list_cases()) == []
