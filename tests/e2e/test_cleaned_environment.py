"""A frontend that passes on only HOME, PATH, ANTHROPIC_* and CLAUDE_*, as
ai-sdk-provider-claude-code does.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from frontend import DropInFrontend, check_contract
from sandbox import MARK
from vendor_setups import PI

pytestmark = pytest.mark.e2e

PASSED_ON = ("HOME", "PATH", MARK)


@pytest.mark.parametrize("vendor", [PI], ids=str, indirect=True)
def test_turn_succeeds_with_only_the_variables_passed_on_by_the_frontend(
    frontend: DropInFrontend,
) -> None:
    vendor_variables = {
        name: text for name, text in frontend.environment.items() if name.startswith("PI_")
    }
    settings = Path(frontend.environment["HOME"]) / "elsewhere.toml"
    program = frontend.environment["SHIM_BIN"]
    settings.write_text(f"[vendors.pi]\nbin = {json.dumps(program)}\n[vendors.pi.env]\n"
                        + "".join(f"{name} = {json.dumps(text)}\n"
                                  for name, text in vendor_variables.items()))  # fmt: skip
    cleaned = {name: frontend.environment[name] for name in PASSED_ON}
    cleaned |= {
        "CLAUDE_SHIM_CONFIG": str(settings),
        "CLAUDE_SHIM_STATE": frontend.environment["SHIM_STATE"],
    }
    run = replace(frontend, environment=cleaned).run_prompt("[[text]] hi")
    check_contract(run)
    assert not run.result["is_error"], run.result
