"""Answers of a frontend's hooks have the effect of the real claude, or the session says that they do
not. `hook_table.py` prints the complete table.
"""

from __future__ import annotations

import pytest
from hook_table import CASES, HookCase, is_named, list_differences, observe_case
from vendor_setups import (
    CLAUDE_ITSELF,
    CODEX,
    COPILOT,
    GEMINI,
    KIMI_CODE,
    OPENCODE,
    PI,
    QWEN,
    Vendor,
)

pytestmark = pytest.mark.e2e
full = pytest.mark.full
# Rows with steps of the shim that no other test runs.
SELECTED_ROWS = (
    "UserPromptSubmit: decision: block",
    "PermissionRequest: allow, with a prompt",
    "PreCompact: decision: block",
    "SessionStart: additionalContext",
    "SubagentStop: decision: block",
)
# After this answer the real claude ends its process, and the shim waits for the next message.
ENDS_THE_PROCESS = "UserPromptSubmit: another event"


@pytest.mark.parametrize(
    "vendor",
    [
        QWEN,
        *(
            pytest.param(vendor, marks=full)
            for vendor in (PI, CODEX, GEMINI, OPENCODE, COPILOT, KIMI_CODE)
        ),
    ],
    ids=str,
)
@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, marks=() if str(case) in SELECTED_ROWS else full)
        for case in CASES
        if str(case) != ENDS_THE_PROCESS
    ],
    ids=str,
)
def test_answer_of_a_hook_has_the_effect_of_the_real_claude_or_is_named(
    case: HookCase, vendor: Vendor
) -> None:
    real = observe_case(CLAUDE_ITSELF, case)
    ours = observe_case(vendor, case)
    differences = list_differences(real, ours)
    assert not differences or is_named(case, ours), "\n".join([*differences, ours.stderr])
