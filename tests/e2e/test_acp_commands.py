"""Claude's commands in an editor that uses the Agent Client Protocol: the adapter lists the command
files of the project, they are expanded, and a compaction is reported.
"""

from __future__ import annotations

import pytest
from acp_clients import ACPS, Editor, read_update_kind
from clis import BARE, Cli
from model_scripts import ScriptedServer, join_message_text
from sandbox import Line, Sandbox
from vendor_setups import CODEX, GEMINI, OPENCODE, QWEN

pytestmark = pytest.mark.e2e

FILES = {
    "sum": "---\ndescription: The sum\n---\n\n[[text]] three plus four\n",
    "greet": "---\ndescription: A greeting\nargument-hint: name\n---\n\n[[text]] greet <$ARGUMENTS>\n",
}
COMMANDS_UPDATE = "available_commands_update"
# gemini cannot compact on request, and qwen refuses to compact two short turns.
CANNOT_COMPACT = (GEMINI, QWEN)


@pytest.fixture
def cli(request: pytest.FixtureRequest) -> Cli:
    cli: Cli = request.param
    return cli


@pytest.mark.parametrize(
    "cli",
    [
        BARE,
        Cli(CODEX),
        *(pytest.param(Cli(vendor), marks=pytest.mark.full) for vendor in (QWEN, GEMINI, OPENCODE)),
    ],
    ids=str,
    indirect=True,
)
def test_editor_lists_and_runs_commands(
    cli: Cli, sandbox: Sandbox, service: ScriptedServer
) -> None:
    folder = sandbox.folder / ".claude" / "commands"
    folder.mkdir(parents=True)
    for name, text in FILES.items():
        (folder / f"{name}.md").write_text(text)
    editor = ACPS[-1].connect(sandbox)
    editor.open_session()
    commands = {command["name"]: command for command in read_commands(editor)}
    assert commands["sum"] == {
        "name": "sum",
        "description": "The sum (project)",
        "input": None,
    }
    assert commands["greet"]["input"] == {"hint": "name"}
    assert commands["compact"]["input"] is not None

    editor.run_prompt("/sum")
    assert "three plus four" in read_last_request(service)
    editor.run_prompt("/greet a plum")
    assert "greet <a plum>" in read_last_request(service)
    if cli.vendor not in CANNOT_COMPACT:
        (call,) = editor.run_prompt("/compact").calls.values()
        assert call["title"].startswith("Compact") and call["status"] == "completed"
    editor.shut_down()


def read_commands(editor: Editor) -> list[Line]:
    """Return the listed commands. They may come before a response that was awaited."""
    updates = [
        line["params"]["update"]
        for line in editor.lines
        if read_update_kind(line) == COMMANDS_UPDATE
    ]
    if not updates:
        updates = [editor.await_update(COMMANDS_UPDATE)]
    commands: list[Line] = updates[0]["availableCommands"]
    return commands


def read_last_request(service: ScriptedServer) -> str:
    """Return the text of all messages in the last request of the conversation."""
    (*_, request) = service.list_requests("text")
    return "".join(map(join_message_text, request.messages))
