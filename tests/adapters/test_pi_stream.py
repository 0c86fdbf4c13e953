"""What pi says a tool returned, in Claude's words."""

from sweeps import loop_over_rows

from shim.adapters.pi_stream import convert_result_content

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
def test_texts_are_one_text_with_a_line_each_and_images_stay(blocks, expected):
    assert convert_result_content(blocks) == expected
