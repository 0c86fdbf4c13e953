"""The shim's transcripts, read by the programs that read Claude's: the Python SDK and the real
claude itself.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from anthropic_server import AnthropicServer
from programs import install_program, install_python_package
from token_counters import read_output

from shim.conversation.drivers.open_translation import create_standalone_child_stream
from shim.core.claude.writer import CLAUDE_VERSION
from shim.io.transcript import Transcript

pytestmark = pytest.mark.e2e

FIXTURES = Path(__file__).resolve().parents[2] / "fixtures" / "qwen"
SESSION = "33333333-2222-4333-8444-555555555555"

# One object per line: the SDK's list of the sessions of a folder, then the messages of one of them.
READER = """
import json, sys
from claude_agent_sdk import get_session_messages, list_sessions
folder, session = sys.argv[1:]
for known in list_sessions(directory=folder):
    print(json.dumps(vars(known)))
for said in get_session_messages(session, directory=folder):
    print(json.dumps([said.type, said.uuid, said.session_id, said.message]))
"""


@pytest.fixture
def home_folder(tmp_path: Path) -> Path:
    folder = tmp_path / "home"
    folder.mkdir()
    return folder


@pytest.fixture(
    params=["work", "odd é~x_y.z+(1) 日本", "long/" + "/".join(["folder_of_a_project"] * 15)]
)
def work(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    folder = tmp_path / request.param
    folder.mkdir(parents=True)
    return folder


def write_turn(home_folder: Path, work: Path, prompt: str, case: str) -> list[Any]:
    """Write the transcript of a recorded turn, as the drop-in does. Return the messages of the
    frontend.
    """
    translation = create_standalone_child_stream(
        "qwen", include_partial_messages=True, session_id=SESSION
    )
    transcript = Transcript({"HOME": str(home_folder)}, str(work), CLAUDE_VERSION)
    transcript.write_prompt(prompt, str(uuid4()))
    transcript.open(SESSION)
    output = (
        translation.feed((FIXTURES / case / "vendor.ndjson").read_bytes())[0]
        + translation.close(None)[0]
    )
    transcript.write_lines(output)
    transcript.close()
    lines = [json.loads(line) for line in output.splitlines()]
    return [bare(line["message"]) for line in lines if line["type"] in ("assistant", "user")]


def bare(message: dict[str, Any]) -> dict[str, Any]:
    """Return a message without its usage, which a transcript has only on the first line of a
    message.
    """
    return {name: value for name, value in message.items() if name != "usage"}


def read(home_folder: Path, work: Path) -> tuple[dict[str, Any], list[Any]]:
    """Return the only session that the SDK lists, and its messages."""
    environment = {"HOME": str(home_folder), "PYTHONPATH": str(install_python_package("newest"))}
    lines = read_output(
        [sys.executable, "-c", READER, str(work), SESSION], home_folder, environment
    )
    session, *messages = (json.loads(line) for line in lines.splitlines())
    return session, messages


def test_sdk_lists_a_session_and_reads_its_messages_in_order(home_folder: Path, work: Path) -> None:
    first = write_turn(home_folder, work, "Read two files at once", "0.24.4-parallel")
    second = write_turn(home_folder, work, "And now edit", "0.24.4-edit")
    session, messages = read(home_folder, work)
    assert session["session_id"] == SESSION
    assert (session["first_prompt"], session["summary"]) == (
        "Read two files at once",
        "And now edit",
    )
    assert session["cwd"] == str(work)
    assert session["created_at"]
    expected = [
        {"role": "user", "content": "Read two files at once"}, *first,
        {"role": "user", "content": "And now edit"}, *second,
    ]  # fmt: skip
    assert [bare(message) for _, _, _, message in messages] == expected
    assert [kind for kind, _, _, _ in messages] == [message["role"] for message in expected]
    assert {session_id for _, _, session_id, _ in messages} == {SESSION}


def test_real_claude_and_the_shim_continue_the_same_transcript(
    home_folder: Path, tmp_path: Path
) -> None:
    work = tmp_path / "work"
    work.mkdir()
    ours = write_turn(home_folder, work, "Read two files at once", "0.24.4-parallel")
    with AnthropicServer() as model:
        environment = {
            "HOME": str(home_folder),
            "TMPDIR": str(tmp_path),
            "ANTHROPIC_BASE_URL": model.url.removesuffix("/v1"),
            "ANTHROPIC_API_KEY": "sk-dummy",
            "DISABLE_TELEMETRY": "1",
            "DISABLE_AUTOUPDATER": "1",
            "DISABLE_ERROR_REPORTING": "1",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        }
        claude = [
            str(install_program("claude").executable),
            "-p",
            "[[text]] go on",
            "--resume",
            SESSION,
        ]
        result = json.loads(read_output([*claude, "--output-format", "json"], work, environment))
    assert (result["session_id"], result["is_error"]) == (SESSION, False)
    write_turn(home_folder, work, "And now edit", "0.24.4-edit")
    session, messages = read(home_folder, work)
    contents = [message["content"] for _, _, _, message in messages]
    assert session["summary"] == "And now edit"
    assert contents[0] == "Read two files at once"
    assert contents[1 : len(ours) + 1] == [message["content"] for message in ours]
    assert contents.index("[[text]] go on") < contents.index("And now edit")
