"""`make newest` without a registry: the comparison, and a smoke test of a program whose pinned
version is the newest one.
"""

from __future__ import annotations

import newest_versions
import pytest
from newest_versions import VersionReport, check_vendor, compare_flags, list_checks
from programs import find_pinned_version
from vendor_setups import PI

pytestmark = pytest.mark.e2e

BEFORE = "usage: tool [-p PROMPT]\n  --yolo          run everything\n  --output-format FORMAT\n"


@pytest.mark.parametrize(
    ("after", "change"),
    [
        (BEFORE, None),
        (BEFORE.replace("run everything", "run all, as a well-known tool"), None),
        (BEFORE.replace("--yolo", "--approve"), "gone --yolo; new --approve"),
        (BEFORE + "  --add-dir DIR\n", "new --add-dir"),
        ("", "gone --output-format --yolo -p"),
    ],
)
def test_help_pages_are_compared_by_flags(after: str, change: str | None) -> None:
    assert compare_flags(BEFORE, after) == change


def test_failed_step_is_reported_and_later_steps_run() -> None:
    def fail() -> None:
        raise AssertionError("exited with code 3\nand more")

    report = VersionReport("tool", "1.0", "1.1")
    assert not report.run_step("turn", fail) and report.run_step("help", lambda: "new --x")
    assert report.format().splitlines() == [
        "tool: 1.0 -> 1.1: 1 step failed",
        "  changed  help: new --x",
        "  FAILED   turn: AssertionError: exited with code 3",
    ]


def test_every_vendor_and_client_has_a_check() -> None:
    assert {"qwen", "codex", "claude", "droid", "ccusage", "newest", "acp-newest"} <= set(
        list_checks()
    )


def test_pinned_version_is_reported_as_pinned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(newest_versions, "find_newest", find_pinned_version)
    report = check_vendor(PI)
    assert report.format() == f"pi: {find_pinned_version(PI.package)}: as pinned"
