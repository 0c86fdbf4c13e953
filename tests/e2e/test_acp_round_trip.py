"""An agent of the Agent Client Protocol, compared with the same agent started by the drop-in, which
the protocol's adapter for claude started.

The test compares what an editor shows for the same prompts: texts, thoughts, calls with their diffs
and locations, questions, ends. It ignores what each side adds itself: ids, titles, names of tools,
counts, commands.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from acp_clients import ACPS, Editor, Prompt
from frontend import DropInFrontend
from programs import install_program
from sandbox import Line
from vendor_setups import GEMINI, OPENCODE, Vendor

pytestmark = pytest.mark.e2e

AGENTS = {
    "gemini": (
        ("--acp", "--model", "mock-1"),
        "replace",
        ("file_path", "old_string", "new_string"),
    ),
    "opencode": (("acp",), "edit", ("filePath", "oldString", "newString")),
}
# As the drop-in configures it: it asks about each call and continues after a denial.
ASKING = {"permission": {"*": "ask"}, "experimental": {"continue_loop_on_deny": True}}


def prompts(vendor: Vendor, folder: Path) -> list[tuple[str, str]]:
    """Return the prompts, each with the answer to its permission requests."""
    _, tool, names = AGENTS[vendor.name]
    edit = dict(zip(names, (str(folder / "hello.txt"), "hello", "bye"), strict=True))
    return [
        ("[[think]] hi", ""),
        (f"[[read]] {folder / 'hello.txt'}", "allow_once"),
        (f"[[write]] {folder / 'new.txt'}", "allow_once"),
        (f"[[write]] {folder / 'other.txt'}", "reject_once"),
        (f"[[call]] {tool} {json.dumps(edit)}", "allow_once"),
        ("[[shell]] touch one", "allow_once"),
        ("[[shell]] python3 -c \"print('said'); open('two','w')\"", "allow_once"),
        ("[[shell]] touch three", "reject_once"),
    ]


def summarize_prompt(prompt: Prompt, choice: str) -> Line:
    """Return what an editor shows of a prompt, in a form that does not depend on the agent."""
    calls: dict[str, Line] = {}
    for tool_call in (
        *(request["toolCall"] for request in prompt.permission_requests),
        *prompt.calls.values(),
    ):
        call = calls.setdefault(tool_call["toolCallId"], {"content": []})
        call |= {key: value for key, value in tool_call.items() if value not in (None, "", [])}
        call["diffs"] = call.get("diffs") or [
            (diff["path"], _changes(diff)) for diff in _select_content(tool_call, "diff")
        ]
    return {
        "text": prompt.text,
        "thought": re.sub(r"\W", "", prompt.thought),
        "calls": [_call(call, choice) for call in calls.values()],
        "stop": prompt.stop_reason,
    }


def _call(call: Line, choice: str) -> Line:
    """Return a comparable call. For a rejected call an agent reports no end, and for a read-only
    call it may report no location.
    """
    failed = choice == "reject_once"
    texts = " ".join(block["content"].get("text", "") for block in _select_content(call, "content"))
    return {
        "kind": call["kind"],
        "ended": "rejected" if failed else call["status"],
        "diffs": call["diffs"],
        "output": not failed and "said" in texts,
    }


def _select_content(tool_call: Line, kind: str) -> list[Any]:
    return [block for block in tool_call.get("content") or [] if block["type"] == kind]


def _changes(diff: Line) -> list[str]:
    """Return the added words: one side may show the whole file and the other only the changed
    text.
    """
    old = (diff.get("oldText") or "").split()
    return [token for token in diff["newText"].split() if token not in old]


def directly(vendor: Vendor, frontend: DropInFrontend) -> Editor:
    """Start the agent itself, as an editor does."""
    environment = {
        name: value for name, value in frontend.environment.items() if not name.startswith("SHIM_")
    }
    if "OPENCODE_CONFIG_CONTENT" in environment:
        settings = json.loads(environment["OPENCODE_CONFIG_CONTENT"]) | ASKING
        environment["OPENCODE_CONFIG_CONTENT"] = json.dumps(settings)
    editor = Editor(
        [str(install_program(vendor.package).executable), *AGENTS[vendor.name][0]],
        frontend.folder,
        environment,
    )
    frontend.started.append(editor)
    return editor


@pytest.mark.parametrize(
    "vendor", [GEMINI, pytest.param(OPENCODE, marks=pytest.mark.full)], ids=str, indirect=True
)
def test_editor_shows_the_same_output_with_and_without_the_drop_in(
    frontend: DropInFrontend, vendor: Vendor, hello_file: Path
) -> None:
    before, summaries = hello_file.read_text(), []
    for editor in (directly(vendor, frontend), ACPS[-1].connect(frontend)):
        editor.open_session()
        cases = prompts(vendor, frontend.folder)
        summaries.append(
            [
                (text, summarize_prompt(editor.run_prompt(text, choice=choice), choice))
                for text, choice in cases
            ]
        )
        editor.close()
        hello_file.write_text(before)
        for made in ("new.txt", "one", "two"):
            (frontend.folder / made).unlink()
    assert summaries[1] == summaries[0]
