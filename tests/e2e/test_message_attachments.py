"""Images and documents in a message: the model of a real program receives them unchanged."""

from __future__ import annotations

import base64
import json
import struct
import zlib
from pathlib import Path
from typing import Any

import pytest
from frontend import DropInFrontend
from model_scripts import REPLY, ScriptedServer
from test_acp import ASKING, FrontendConversation
from vendor_setups import CODEX, COPILOT, GEMINI, KIMI, OPENCODE, PI, QWEN

pytestmark = pytest.mark.e2e


def picture(side: int = 8) -> str:
    """Return a red square as a PNG in base64 that every program can decode."""
    head, rows = (
        struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0),
        (b"\0" + b"\xff\0\0" * side) * side,
    )
    chunks = ((b"IHDR", head), (b"IDAT", zlib.compress(rows)), (b"IEND", b""))
    encoded_chunks = (
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
        for name, data in chunks
    )
    return base64.b64encode(b"\x89PNG\r\n\x1a\n" + b"".join(encoded_chunks)).decode()


PICTURE = picture()
PAPER = base64.b64encode(
    b"%PDF-1.4\n1 0 obj<</Type/Catalog>>endobj\ntrailer<</Root 1 0 R>>\n%%EOF"
).decode()
takers = pytest.mark.parametrize(
    "vendor", [GEMINI, pytest.param(OPENCODE, marks=pytest.mark.full)], ids=str, indirect=True
)


def part(kind: str, media_type: str, data: str) -> dict[str, Any]:
    return {"type": kind, "source": {"type": "base64", "media_type": media_type, "data": data}}


def say(conversation: FrontendConversation, *content: dict[str, Any] | str) -> None:
    blocks = [{"type": "text", "text": item} if isinstance(item, str) else item for item in content]
    conversation.process.send({"type": "user", "message": {"role": "user", "content": blocks}})


def notices(conversation: FrontendConversation) -> list[str]:
    """Return the notices of the drop-in itself."""
    messages = [line["message"] for line in conversation.lines if line["type"] == "assistant"]
    return [
        message["content"][0]["text"]
        for message in messages
        if message.get("model") == "<synthetic>"
    ]


@takers
def test_model_receives_an_image_and_a_document(
    frontend: DropInFrontend, model: ScriptedServer
) -> None:
    conversation = FrontendConversation(frontend, *ASKING)
    say(
        conversation,
        "[[text]] see",
        part("image", "image/png", PICTURE),
        part("document", "application/pdf", PAPER),
    )
    assert conversation.until("result")["result"] == REPLY
    (request,) = model.list_requests("text")
    body = json.dumps(request.body)
    assert PICTURE in body and PAPER in body
    assert notices(conversation) == []


@pytest.mark.full
@pytest.mark.parametrize("vendor", [PI, CODEX, KIMI], ids=str, indirect=True)
def test_image_only_vendor_omits_documents_with_a_notice(
    frontend: DropInFrontend, model: ScriptedServer
) -> None:
    conversation = FrontendConversation(frontend, *ASKING)
    say(
        conversation,
        "[[text]] see",
        part("image", "image/png", PICTURE),
        part("document", "application/pdf", PAPER),
    )
    assert conversation.until("result")["result"] == REPLY
    (request,) = model.list_requests("text")
    assert PICTURE in json.dumps(request.body)
    (notice,) = notices(conversation)
    assert notice.startswith("[1 document left out of this message: ")


@pytest.mark.full
@pytest.mark.parametrize("vendor", [COPILOT], ids=str, indirect=True)
def test_copilot_receives_a_document_as_a_tagged_file(
    frontend: DropInFrontend, model: ScriptedServer
) -> None:
    conversation = FrontendConversation(frontend, *ASKING)
    say(
        conversation,
        "[[text]] see",
        part("image", "image/png", PICTURE),
        part("document", "application/pdf", PAPER),
    )
    assert conversation.until("result")["result"] == REPLY
    (request,) = model.list_requests("text")
    body = json.dumps(request.body)
    assert PICTURE in body and "<tagged_files>" in body and ".pdf" in body
    assert notices(conversation) == []


@pytest.mark.full
@pytest.mark.parametrize("vendor", [OPENCODE], ids=str, indirect=True)
def test_image_in_a_tool_result_is_passed_to_the_frontend(
    frontend: DropInFrontend,
) -> None:
    file = Path(frontend.folder) / "red.png"
    file.write_bytes(base64.b64decode(PICTURE))
    conversation = FrontendConversation(frontend, "--permission-mode", "bypassPermissions")
    say(conversation, f"[[read]] {file}")
    conversation.until("result")
    ((content, failed),) = conversation.results()
    source = {"type": "base64", "data": PICTURE, "media_type": "image/png"}
    assert not failed
    assert [block for block in content if block["type"] == "image"] == [
        {"type": "image", "source": source}
    ]


@pytest.mark.parametrize("vendor", [QWEN], ids=str, indirect=True)
def test_image_is_sent_by_path_and_its_file_is_removed(
    frontend: DropInFrontend, model: ScriptedServer
) -> None:
    # A model that accepts images.
    frontend.environment = {**frontend.environment, "OPENAI_MODEL": "gpt-5"}
    conversation = FrontendConversation(frontend, *ASKING)
    say(
        conversation,
        "[[text]] see",
        part("image", "image/png", PICTURE),
        part("document", "application/pdf", PAPER),
    )
    assert conversation.until("result")["result"] == REPLY
    (request,) = model.list_requests("text")
    assert json.dumps(request.body).count(PICTURE) == 1
    assert notices(conversation) == [
        "[1 document left out of this message: qwen only accepts text and images]"
    ]
    say(conversation, "[[text]] and again")
    conversation.until("result")
    tmp_folder = Path(frontend.environment["HOME"]) / ".qwen" / "tmp"
    assert not [path for path in tmp_folder.iterdir() if path.name.startswith("claude-shim")]


@takers
def test_invalid_images_are_omitted_with_a_notice_and_valid_images_are_sent(
    frontend: DropInFrontend, model: ScriptedServer
) -> None:
    conversation = FrontendConversation(frontend, *ASKING)
    broken = part("image", "image/png", "no base64"), part("image", "image/tiff", PICTURE)
    say(conversation, "[[text]] see", *broken, part("image", "image/png", PICTURE))
    assert conversation.until("result")["result"] == REPLY
    (request,) = model.list_requests("text")
    assert json.dumps(request.body).count(PICTURE) == 1
    (notice,) = notices(conversation)
    assert [line.partition(": ")[2][:8] for line in notice.splitlines()] == ["the data", "the medi"]
