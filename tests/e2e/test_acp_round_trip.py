"""An agent of the Agent Client Protocol, and the same agent below the drop-in below the protocol's
adapter for claude.

What an editor is shown of the same prompts is compared, prompt by prompt: words, thoughts, calls
with their diffs and places, questions, ends. Left out is what each side says by itself: ids,
titles, names of tools, counts, commands.
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
# As the drop-in drives it: asked about each call, and told to go on behind a denial.
ASKING = {"permission": {"*": "ask"}, "experimental": {"continue_loop_on_deny": True}}


def prompts(vendor: Vendor, folder: Path) -> list[tuple[str, str]]:
    """What is said, and how its questions are answered."""
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
    """What an editor shows of a prompt, in words that do not depend on who said it."""
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
    """Of a call that was rejected an agent says no end; of one that only reads it may say no place."""
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
    """The lines that are new: one side may show the whole file and the other the words that change."""
    old = (diff.get("oldText") or "").split()
    return [token for token in diff["newText"].split() if token not in old]


def directly(vendor: Vendor, frontend: DropInFrontend) -> Editor:
    """The agent itself, as an editor starts it."""
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
