"""Claude's commands and skills in Markdown files: the drop-in lists and expands them over every
vendor as the real claude does.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from frontend import DropInFrontend
from model_scripts import REPLY, ScriptedServer, join_message_text
from programs import install_program
from sandbox import TURN_SECONDS, Line, wait_until
from test_acp import FrontendConversation
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

MADE = "made.txt"
FILES = {
    "work/.claude/commands/args.md": "---\ndescription: With arguments\n"
    "argument-hint: [file] [level]\n---\n[[text]] all=<$ARGUMENTS> second=<$1> third=<$2>\n",
    "work/.claude/commands/front/comp.md": "[[text]] in a folder\n",
    "work/.claude/commands/lines.md": "[[text]] here: !`pwd`\n",
    "work/.claude/commands/forbidden.md": f"[[text]] !`touch {MADE}`\n",
    "work/.claude/commands/reference.md": "[[text]] see @hello.txt\n",
    "work/.claude/skills/sk/SKILL.md": "---\nname: sk\ndescription: A skill\n---\n[[text]] skill\n",
    "home/.claude/commands/mine.md": "[[text]] of the user\n",
}
ENTRIES = [
    ("sk", "A skill (project)", ""),
    ("args", "With arguments (project)", "[file] [level]"),
    ("forbidden", f"[[text]] !`touch {MADE}` (project)", ""),
    ("front:comp", "[[text]] in a folder (project)", ""),
    ("lines", "[[text]] here: !`pwd` (project)", ""),
    ("mine", "[[text]] of the user (user)", ""),
    ("reference", "[[text]] see @hello.txt (project)", ""),
]
NAMES = [name for name, _, _ in ENTRIES]
of_all = pytest.mark.parametrize(
    "vendor",
    [
        CLAUDE_ITSELF,
        PI,
        GEMINI,
        *(
            pytest.param(vendor, marks=pytest.mark.full)
            for vendor in (QWEN, CODEX, OPENCODE, COPILOT, KIMI_CODE)
        ),
    ],
    indirect=True,
    ids=str,
)


@pytest.fixture
def files(frontend: DropInFrontend, vendor: Vendor) -> Path:
    """Write the command files. Return the working directory."""
    if vendor is CLAUDE_ITSELF:
        frontend.claude = install_program(vendor.package).executable
    roots = {"work": frontend.folder, "home": Path(frontend.environment["HOME"])}
    for name, text in FILES.items():
        root, _, path = name.partition("/")
        file = roots[root] / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return frontend.folder


def send(conversation: FrontendConversation, text: str) -> Line:
    conversation.send(text)
    return conversation.until("result")


def join_last_request(model: ScriptedServer) -> str:
    """Return the text of all messages in the last request to the model."""
    (*_, request) = model.list_requests("text")
    return "".join(map(join_message_text, request.messages))


@of_all
def test_commands_are_listed_and_expanded_in_a_conversation(
    frontend: DropInFrontend, model: ScriptedServer, files: Path
) -> None:
    conversation = FrontendConversation(frontend, "-p")
    conversation.order(subtype="initialize")
    commands = conversation.until("control_response")["response"]["response"]["commands"]
    entries = [(entry["name"], entry["description"], entry["argumentHint"]) for entry in commands]
    assert entries[: len(ENTRIES)] == ENTRIES

    def list_received_text(text: str) -> str:
        """Send a message. Return the text of all messages that the model received."""
        assert send(conversation, text)["result"] == REPLY
        return join_last_request(model)

    text = list_received_text("/args one 'two words'")
    assert "[[text]] all=<one 'two words'> second=<two words> third=<$2>" in text
    assert (
        "<command-message>args</command-message>\n<command-name>/args</command-name>\n"
        "<command-args>one 'two words'</command-args>\n" in text
    )
    assert "[[text]] in a folder\n\n\nARGUMENTS: x" in list_received_text("/front:comp x")
    assert f"[[text]] here: {files}" in list_received_text("/lines")
    text = list_received_text("/sk")
    assert f"for this skill: {files}/.claude/skills/sk\n\n[[text]] skill" in text
    assert "[[text]] of the user" in list_received_text("/mine")
    assert "hello world" in list_received_text("/reference")

    request_count = len(model.list_requests("text"))
    refusal = send(conversation, "/forbidden")
    assert (refusal["subtype"], refusal["is_error"], refusal["num_turns"]) == ("success", False, 0)
    assert f"touch {MADE}" in refusal["result"]
    assert not (files / MADE).exists()
    assert len(model.list_requests("text")) == request_count
    init = next(line for line in conversation.lines if line.get("subtype") == "init")
    assert init["slash_commands"][: len(NAMES)] == NAMES
    assert init["skills"][:1] == ["sk"]


@of_all
def test_command_of_a_print_run_is_expanded(
    frontend: DropInFrontend, model: ScriptedServer, files: Path
) -> None:
    run = frontend.run_prompt("/args one two", "--setting-sources", "project")
    assert run.result["result"] == REPLY
    assert "[[text]] all=<one two> second=<two> third=<$2>" in join_last_request(model)
    assert run.init["slash_commands"][:2] == ["sk", "args"]
    assert "mine" not in run.init["slash_commands"]


@pytest.mark.parametrize("vendor", [CLAUDE_ITSELF, PI], indirect=True, ids=str)
def test_interrupt_ends_the_shell_code_of_a_command(frontend: DropInFrontend, files: Path) -> None:
    (files / ".claude/commands/slow.md").write_text(
        f"[[text]] !`touch started; sleep 5; touch {MADE}`\n"
    )
    frontend.environment = {**frontend.environment, "IS_SANDBOX": "1"}
    conversation = FrontendConversation(frontend, "-p", "--permission-mode", "bypassPermissions")
    conversation.send("/slow")
    wait_until((files / "started").exists, TURN_SECONDS)
    conversation.order(subtype="interrupt")
    result = conversation.until("result")
    assert (result["subtype"], result["num_turns"]) == ("success", 0)
    assert "interrupted" in result["result"]
    assert send(conversation, "[[text]] next")["result"] == REPLY
    assert not (files / MADE).exists()


@pytest.mark.parametrize(
    ("vendor", "command"),
    [
        (GEMINI, "init"),
        pytest.param(QWEN, "init", marks=pytest.mark.full),
        pytest.param(OPENCODE, "review", marks=pytest.mark.full),
        pytest.param(COPILOT, "cwd", marks=pytest.mark.full),
        pytest.param(KIMI_CODE, "status", marks=pytest.mark.full),
    ],
    indirect=["vendor"],
    ids=str,
)
def test_commands_and_models_of_the_vendor_are_listed_from_its_last_session(
    frontend: DropInFrontend, vendor: Vendor, command: str
) -> None:
    lists = []
    model_counts = []
    for _ in range(2):
        conversation = FrontendConversation(frontend, "-p")
        conversation.order(subtype="initialize")
        response = conversation.until("control_response")["response"]["response"]
        lists.append([entry["name"] for entry in response["commands"]])
        model_counts.append(len(response["models"]))
        assert send(conversation, "[[text]] go")["result"] == REPLY
        conversation.process.close_stdin()
        conversation.process.read_to_end()
    assert lists[0] == ["clear", "compact", "context", "usage"]
    assert lists[1][:4] == lists[0] and command in lists[1]
    if vendor in (GEMINI, OPENCODE):
        assert model_counts[0] < model_counts[1]
    inits = [line for line in conversation.lines if line.get("subtype") == "init"]
    assert command in inits[-1]["slash_commands"]
