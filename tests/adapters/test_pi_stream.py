"""pi's tool results, in Claude's terms."""

from sweeps import loop_over_rows

from shim.adapters.pi_stream import convert_tool_result_content

IMAGE = {"type": "image", "mimeType": "image/png", "data": "AAAA"}


def text(text):
    return {"type": "text", "text": text}


@loop_over_rows(
    ("blocks", "expected"),
    [
        ([text("one")], "one"),
        ([text("one"), text("two")], "one\ntwo"),
        ([text("one"), IMAGE], [text("one"), IMAGE]),
        ("one", "one"),
        (None, ""),
    ],
)
def test_text_blocks_are_joined_by_newlines_and_images_are_preserved(blocks, expected):
    assert convert_tool_result_content(blocks) == expected
