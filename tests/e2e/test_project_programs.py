"""Programs in a cloned repository that a vendor would start there do not run without permission."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from frontend import DropInFrontend
from model_scripts import REPLY, ScriptedServer
from permission_rows import BYPASS
from vendor_setups import OPENCODE, PI, PI_CUMULATIVE, Vendor

pytestmark = pytest.mark.e2e
MADE = "made"
MAKES = 'import { writeFileSync } from "node:fs"; writeFileSync(process.env.HOME + "/made", "x");\n'
PLUGIN = f"{MAKES}export const Made = async () => ({{}})\n"
SERVER = {"type": "local", "command": ["sh", "-c", "touch $HOME/made; sleep 1"], "enabled": True}
CASES = {
    "plugin": (OPENCODE, ".opencode/plugin/x.ts", PLUGIN),
    "tool": (
        OPENCODE,
        ".opencode/tool/x.ts",
        MAKES + 'export default {description: "x", args: {}, execute() {}}\n',
    ),
    "server": (OPENCODE, "opencode.json", json.dumps({"mcp": {"m": SERVER}})),
    "extension": (
        PI_CUMULATIVE,
        ".pi/extensions/x.ts",
        f"{MAKES}export default function (pi) {{}}\n",
    ),
    "guarded": (PI, ".pi/extensions/x.ts", f"{MAKES}export default function (pi) {{}}\n"),
}
PLAN = ("--permission-mode", "plan")
FIRST = ("plugin", "extension")  # of the short run
CELLS = [
    pytest.param(
        CASES[name][0],
        name,
        flags,
        id=f"{name}-{kind}",
        marks=[pytest.mark.full] * (name not in FIRST or kind != "bypass"),
    )
    for name in CASES
    for kind, flags in (("default", ()), ("bypass", BYPASS), ("plan", PLAN))
]


def bring(frontend: DropInFrontend, name: str) -> Path:
    """Write a case's file into the folder. Return the file that its program would create."""
    _, relative_path, text = CASES[name]
    path = frontend.folder / relative_path
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return Path(frontend.environment["HOME"]) / MADE


@pytest.mark.parametrize(("vendor", "name", "flags"), CELLS, indirect=["vendor"])
def test_program_in_the_working_directory_is_not_started(
    frontend: DropInFrontend,
    model: ScriptedServer,
    vendor: Vendor,
    name: str,
    flags: tuple[str, ...],
) -> None:
    made = bring(frontend, name)
    run = frontend.run_prompt("[[text]] hi", *flags)
    assert not made.exists()
    if run.exit == 0:
        assert run.texts == [REPLY]
    else:
        assert CASES[name][1].rpartition("/")[0] in run.result["errors"][0] and model.requests == []


@pytest.mark.full
@pytest.mark.parametrize("vendor", [OPENCODE, PI_CUMULATIVE], indirect=True, ids=str)
def test_program_in_a_trusted_folder_is_started(frontend: DropInFrontend, vendor: Vendor) -> None:
    made = bring(frontend, "plugin" if vendor is OPENCODE else "extension")
    config = Path(frontend.environment["HOME"]) / ".config" / "shim" / "config.toml"
    config.parent.mkdir(parents=True, exist_ok=True)
    config.write_text(f"[vendors.{vendor.name}]\ntrust = true\n")
    assert frontend.run_prompt("[[text]] hi").texts == [REPLY]
    assert made.exists()
