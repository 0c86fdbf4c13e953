"""Real programs with a wrapper that changes their `--version` output: only a known major version is
trusted.

The wrapped program is the tested one, so it would follow the rule. The test checks that the shim
does not rely on a program with another version.
"""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from frontend import DropInFrontend
from model_scripts import ScriptedServer
from permission_rows import MADE, TOUCH, build_deny_flags, build_mode_flags
from programs import find_pinned_version
from vendor_setups import (
    CLINE,
    CODEX,
    COPILOT,
    DROID,
    GEMINI,
    KIMI,
    KIMI_CODE,
    OPENCODE,
    PI,
    QWEN,
    VIBE,
    Vendor,
)

pytestmark = pytest.mark.e2e

VERSION_LINES = {
    "codex": "codex-cli {}",
    "copilot": "GitHub Copilot CLI {}.",
    "kimi": "kimi, version {}",
    "vibe": "vibe {}",
}
UNRECOGNISED = "a well-known agent, build seven"
NAMED_KIMI_CODE = replace(KIMI_CODE, name="kimi-code")  # the name `kimi` means two programs
LATER = (GEMINI, OPENCODE, COPILOT, PI, VIBE, KIMI, NAMED_KIMI_CODE, DROID, CLINE)
KEEP_NO_RULE = (KIMI, NAMED_KIMI_CODE, CLINE)  # in one-shot mode, in every version


def change_version(version: str, part: int) -> str:
    """Return the version with one of its numbers raised by one: 0 is the major number, 2 the patch."""
    numbers = [int(number) for number in version.split(".")]
    numbers[part] += 1
    return ".".join(map(str, numbers))


def wrap(frontend: DropInFrontend, line: str) -> None:
    """Replace the vendor's program by a wrapper that prints another version and otherwise runs the
    program.
    """
    real = frontend.environment["SHIM_BIN"]
    wrapper = Path(frontend.environment["HOME"]) / "wrapper"
    script = f'#!/bin/sh\n[ "$*" = --version ] && exec echo {shlex.quote(line)}\nexec {shlex.quote(real)} "$@"\n'
    wrapper.write_text(script)
    wrapper.chmod(0o755)
    frontend.environment = {**frontend.environment, "SHIM_BIN": str(wrapper)}


def line_of(vendor: Vendor, version: str) -> str:
    return VERSION_LINES.get(vendor.name, "{}").format(version)


def vendors() -> list[Any]:
    return [QWEN, CODEX, *[pytest.param(vendor, marks=pytest.mark.full) for vendor in LATER]]


@pytest.mark.parametrize("vendor", vendors(), ids=str, indirect=True)
@pytest.mark.parametrize(
    "flags",
    [build_deny_flags("Bash"), build_mode_flags("plan"), build_mode_flags("acceptEdits")],
    ids=["deny", "plan", "edits"],
)
@pytest.mark.parametrize("major", [True, False], ids=["next major", "unrecognised"])
def test_unknown_version_is_refused_with_a_permission_rule_or_mode(
    frontend: DropInFrontend,
    model: ScriptedServer,
    vendor: Vendor,
    major: bool,
    flags: tuple[str, ...],
) -> None:
    version = change_version(find_pinned_version(vendor.package), 0)
    wrap(frontend, line_of(vendor, version) if major else UNRECOGNISED)
    done = frontend.run_prompt(TOUCH, *flags)
    assert not (frontend.folder / MADE).exists() and not model.requests
    assert done.exit == 1 and done.result["shim"]["cause"] == "refused"
    # The vendor has no such mode in any version.
    if "does not support" not in done.result["errors"][0]:
        assert (version if major else UNRECOGNISED) in done.result["errors"][0]
        assert done.init["shim"]["unattended"] is True


@pytest.mark.parametrize("vendor", vendors(), ids=str, indirect=True)
def test_unknown_version_without_rules_runs_unattended(
    frontend: DropInFrontend, vendor: Vendor
) -> None:
    wrap(frontend, UNRECOGNISED)
    done = frontend.run_prompt("[[text]]")
    assert done.exit == 0 and done.init["shim"]["unattended"] is True


@pytest.mark.parametrize("vendor", vendors(), ids=str, indirect=True)
def test_next_patch_version_is_trusted(frontend: DropInFrontend, vendor: Vendor) -> None:
    version = change_version(find_pinned_version(vendor.package), 2)
    wrap(frontend, line_of(vendor, version))
    done = frontend.run_prompt(TOUCH, *build_deny_flags("Bash"))
    assert not (frontend.folder / MADE).exists()
    if done.result["shim"]["cause"] == "refused":
        assert vendor in KEEP_NO_RULE and version not in done.result["errors"][0]
