"""The content of MCP results in the form of the real claude. Each form was measured."""

from __future__ import annotations

import base64

from sweeps import loop_over_rows

from shim.core.claude.tool_content import convert_mcp_blocks_to_claude, convert_mcp_result_to_claude

PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg=="
GIF = "R0lGODlhAQABAIAAAAAAAP///yH5BAEAAAAALAAAAAABAAEAAAIBRAA7"
WEBP = base64.b64encode(b"RIFF\x04\x00\x00\x00WEBP").decode()
TOOL = "mcp__srv__take"
IMAGE = {"type": "image", "data": PNG, "mimeType": "image/png"}
LINK = {"type": "resource_link", "uri": "file:///a", "name": "a"}
RESOURCE = {
    "type": "resource",
    "resource": {"uri": "file:///b", "mimeType": "text/plain", "text": "inner"},
}
AUDIO = {"type": "audio", "data": "AAAA", "mimeType": "audio/wav"}
NO_OUTPUT = f"({TOOL} completed with no output)"


def text(content: str, **more: object) -> dict[str, object]:
    return {"type": "text", "text": content, **more}


def image(data: str = PNG, media_type: str = "image/png") -> dict[str, object]:
    return {"type": "image", "source": {"type": "base64", "media_type": media_type, "data": data}}


def blob(data: str, **more: object) -> dict[str, object]:
    return {"type": "resource", "resource": {"uri": "file:///b.bin", "blob": data, **more}}


BLOCKS = {
    "text": (text("one"), text("one")),
    "text for a person": (
        text("one", annotations={"audience": ["user"]}, _meta={"x": 1}),
        text("one"),
    ),
    "image": (IMAGE, image()),
    "image of Claude's": (image(), image()),
    "image by its bytes": ({**IMAGE, "mimeType": "image/tiff"}, image()),
    "image without a type": ({"type": "image", "data": GIF}, image(GIF, "image/gif")),
    "image by snake case": (
        {"type": "image", "data": WEBP, "mime_type": "image/webp"},
        image(WEBP, "image/webp"),
    ),
    "image with a parameter": (
        {"type": "image", "data": "AAAA", "mimeType": "IMAGE/JPG; q=1"},
        image("AAAA", "image/jpeg"),
    ),
    "image in lines": ({**IMAGE, "data": f"{PNG[:20]}\r\n{PNG[20:]}"}, image()),
    "image without padding": ({**IMAGE, "data": PNG.rstrip("=")}, image()),
    "image as a data URL": ({**IMAGE, "data": f"data:image/png;base64,{PNG}"}, image()),
    "image that is a drawing": (
        {"type": "image", "data": "PHN2Zy8+", "mimeType": "image/svg+xml"},
        text("[Image from srv] Binary content (image/svg+xml, 6 bytes), not saved"),
    ),
    "image that is none": (
        {**IMAGE, "data": "!!!"},
        text("[Image could not be processed: its data is not base64]"),
    ),
    "empty image": (
        {**IMAGE, "data": ""},
        text("[Image could not be processed: Image file is empty (0 bytes)]"),
    ),
    "audio": (AUDIO, text("[Audio from srv] Binary content (audio/wav, 3 bytes), not saved")),
    "audio without a type": (
        {"type": "audio", "data": "AAAA"},
        text("[Audio from srv] Binary content (unknown type, 3 bytes), not saved"),
    ),
    "video": (
        {"type": "video", "data": "AAAA", "mimeType": "video/mp4"},
        text("[Video from srv] Binary content (video/mp4, 3 bytes), not saved"),
    ),
    "link": (LINK, text("[Resource link: a] file:///a")),
    "link with a description": (
        {**LINK, "title": "T", "description": "D"},
        text("[Resource link: a] file:///a (D)"),
    ),
    "link without a name": (
        {"type": "resource_link", "uri": "u:1"},
        text("[Resource link: u:1] u:1"),
    ),
    "resource": (RESOURCE, text("[Resource from srv at file:///b] inner")),
    "empty resource": (
        {"type": "resource", "resource": {"uri": "ui://x", "text": ""}},
        text("[Resource from srv at ui://x] "),
    ),
    "blob": (
        blob("AAECAw==", mimeType="application/pdf"),
        text(
            "[Resource from srv at file:///b.bin] Binary content (application/pdf, 4 bytes), not saved"
        ),
    ),
    "blob without a type": (
        blob("AAECAw=="),
        text(
            "[Resource from srv at file:///b.bin] Binary content (unknown type, 4 bytes), not saved"
        ),
    ),
    "unknown": ({"type": "chart", "of": 1}, text('{"type":"chart","of":1}')),
    "image without data": ({"type": "image", "uri": "u:1"}, text('{"type":"image","uri":"u:1"}')),
    "broken resource": (
        {"type": "resource", "resource": "x"},
        text('{"type":"resource","resource":"x"}'),
    ),
    "broken text": ({"type": "text", "text": 5}, text("5")),
}


@loop_over_rows(("mcp_block", "expected"), BLOCKS.values())
def test_mcp_block_is_converted_to_a_claude_block(mcp_block, expected):
    assert convert_mcp_blocks_to_claude([mcp_block], TOOL) == [expected]


def test_image_blob_is_written_after_its_heading():
    heading = text("[Resource from srv at file:///b.bin] ")
    assert convert_mcp_blocks_to_claude([blob(PNG, mimeType="image/jpeg")], TOOL) == [
        heading,
        image(),
    ]


def test_builtin_tool_content_has_no_server_name():
    assert convert_mcp_blocks_to_claude([AUDIO, RESOURCE], "Read") == [
        text("[Audio] Binary content (audio/wav, 3 bytes), not saved"),
        text("[Resource at file:///b] inner"),
    ]


STRUCTURED = {"a": 1, "b": "ü"}
STRUCTURED_JSON = '{"a":1,"b":"ü"}'
RESULTS = {
    "texts": ({"content": [text("one"), text("two")]}, [text("one"), text("two")]),
    "one of two texts is empty": ({"content": [text(""), text("two")]}, [text(""), text("two")]),
    "nothing": ({"content": [], "structured_content": None}, NO_OUTPUT),
    "white space": ({"content": [text(""), text("  \n")], "_meta": {"k": 1}}, NO_OUTPUT),
    "structured": ({"content": [], "structuredContent": STRUCTURED}, STRUCTURED_JSON),
    "structured in snake case": (
        {"content": [], "structured_content": STRUCTURED},
        STRUCTURED_JSON,
    ),
    "structured alone": ({"structuredContent": {}}, "{}"),
    "structured and text": (
        {"content": [text("t")], "structuredContent": STRUCTURED},
        STRUCTURED_JSON,
    ),
    "structured and image": (
        {"content": [text("t"), IMAGE], "structuredContent": STRUCTURED},
        [image(), text(STRUCTURED_JSON)],
    ),
    "blocks alone": ([IMAGE, LINK], [image(), text("[Resource link: a] file:///a")]),
    "no blocks": ([], NO_OUTPUT),
    "a text": ("plain", [text("plain")]),
    "an empty text": ("", NO_OUTPUT),
}


@loop_over_rows(("mcp_result", "expected"), RESULTS.values())
def test_mcp_result_is_converted_to_claude_content(mcp_result, expected):
    assert convert_mcp_result_to_claude(mcp_result, TOOL) == expected


FAILURES = {
    "texts": ([text("kaboom"), text("second\n")], "kaboom\nsecond"),
    "text and image": ([text("kaboom"), IMAGE], "kaboom"),
    "image": ([IMAGE], "Unknown error"),
    "nothing": ([], "Unknown error"),
    "link": ([LINK], "[Resource link: a] file:///a"),
}


@loop_over_rows(("content", "expected"), FAILURES.values())
def test_failed_call_returns_its_texts(content, expected):
    result = {"content": content, "structuredContent": STRUCTURED, "isError": True}
    assert convert_mcp_result_to_claude(result, TOOL, is_error=True) == expected


@loop_over_rows(
    "result",
    [
        {"content": "a file"},
        {"content": [], "path": "/a"},
        {"content": None},
        {},
        [{"name": "a"}],
        [],
        None,
        5,
    ],
)
def test_non_mcp_result_is_not_changed(result):
    assert convert_mcp_result_to_claude(result, "Read") == result
