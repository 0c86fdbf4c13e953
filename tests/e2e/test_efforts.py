"""Claude's `--effort` in each vendor's arguments, as the vendor's model receives it."""

from __future__ import annotations

from typing import Any

import pytest
from frontend import DropInFrontend
from model_scripts import ScriptedServer
from test_model_names import StreamConversation
from vendor_setups import CODEX, COPILOT, OPENCODE, PI, QWEN, Vendor

pytestmark = pytest.mark.e2e


def cells(*vendors: Vendor) -> list[Any]:
    """Return the vendors as cells. Only the first one is in the short run."""
    return [
        pytest.param(vendor, id=vendor.name, marks=pytest.mark.full if number else ())
        for number, vendor in enumerate(vendors)
    ]


@pytest.mark.parametrize("vendor", cells(PI, CODEX, OPENCODE, COPILOT), indirect=True)
@pytest.mark.parametrize("effort", ["low", "high"])
def test_effort_flag_reaches_the_model(
    frontend: DropInFrontend, model: ScriptedServer, vendor: Vendor, effort: str
) -> None:
    run = frontend.run_prompt("[[text]] hi", "--effort", effort)
    assert run.exit == 0 and not run.result["is_error"], run.result
    assert {request.effort for request in model.list_requests("text")} == {effort}


@pytest.mark.parametrize("vendor", cells(QWEN, OPENCODE, PI, CODEX), indirect=True)
def test_effort_change_applies_from_the_next_message(
    frontend: DropInFrontend, model: ScriptedServer, vendor: Vendor
) -> None:
    conversation = StreamConversation(frontend, "--effort", "low")
    assert conversation.order(subtype="initialize")["models"][0]["supportsEffort"] is True
    conversation.say("[[text]] hi")
    assert model.list_requests("text")[-1].effort == "low"
    for effort, expected in (("high", "high"), ("nonsense", "high"), ("medium", "medium")):
        conversation.order(subtype="apply_flag_settings", settings={"effortLevel": effort})
        assert conversation.order(subtype="get_settings")["applied"]["effort"] == expected
        conversation.say("[[text]] and again")
        assert model.list_requests("text")[-1].effort == expected, effort
