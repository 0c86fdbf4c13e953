"""User messages: a text or blocks (contract C14)."""

import pytest
from sweeps import loop_over_rows

from shim.core.claude.messages import (
    ALL_KINDS,
    MAX_FILE_BYTES,
    MessageBlock,
    UserMessage,
    parse_user_message,
)

PNG = {"type": "base64", "media_type": "image/png", "data": "AAAA"}
IMAGE = {"type": "image", "source": PNG}
PAPER = {"type": "document", "source": PNG | {"media_type": "application/pdf"}, "title": "paper"}
PICTURES = frozenset({"image"})


def read(content, **event):
    return parse_user_message({"message": {"role": "user", "content": content}, **event}, "now")


def image(**source):
    return {"type": "image", "source": PNG | source}


def test_text_message_has_no_blocks():
    message = read("hi", uuid="u1")
    assert (message.text, message.blocks, message.uuid, message.timestamp) == (
        "hi",
        (),
        "u1",
        "now",
    )
    assert message.describe_omitted_blocks("pi") == ""


def test_text_blocks_and_text_documents_are_joined():
    blocks = [
        {"type": "text", "text": "one"},
        {"type": "document", "source": {"type": "text", "data": "two"}},
        {"type": "text", "text": "three"},
    ]
    assert read(blocks).text == "one\ntwo\nthree"
    assert read(blocks).select_blocks(ALL_KINDS) == (MessageBlock("text", "one\ntwo\nthree"),)


def test_omitted_blocks_are_counted_in_a_single_line():
    message = read(
        [IMAGE, image(data="?"), PAPER, {"type": "text", "text": "look"}, "odd", {"type": "text"}]
    )
    assert message.text == "look" and message.select_blocks(frozenset()) == (
        MessageBlock("text", "look"),
    )
    kinds = "2 images and 1 document and 1 unknown block and 1 text"
    assert (
        message.describe_omitted_blocks("pi")
        == f"[{kinds} left out of this message: pi only accepts text]"
    )


def test_blocks_preserve_their_order_and_claude_format():
    blocks = [{"type": "text", "text": "this"}, IMAGE, {"type": "text", "text": "and this"}, PAPER]
    message = read(blocks)
    assert [part.to_json() for part in message.select_blocks(ALL_KINDS)] == blocks
    assert message.describe_omitted_blocks("pi", ALL_KINDS) == ""
    assert message.text == "this\nand this"


def test_only_omitted_kinds_are_described():
    message = read([IMAGE, PAPER, {"type": "text", "text": "look"}])
    assert [part.kind for part in message.select_blocks(PICTURES)] == ["image", "text"]
    assert (
        message.describe_omitted_blocks("pi", PICTURES)
        == "[1 document left out of this message: pi only accepts text and images]"
    )


def test_url_block_is_sent_only_to_a_vendor_that_accepts_urls():
    message = read([{"type": "image", "source": {"type": "url", "url": "https://a/b.png"}}])
    assert (
        message.describe_omitted_blocks("pi", ALL_KINDS) == ""
        and message.select_blocks(ALL_KINDS)[0].url == "https://a/b.png"
    )
    expected_notice = "[1 image left out of this message: pi does not accept files by URL]"
    assert message.describe_omitted_blocks(
        "pi", PICTURES
    ) == expected_notice and message.select_blocks(PICTURES) == (MessageBlock("text", ""),)


@loop_over_rows(
    ("block", "reason"),
    [
        (image(data="not base64"), "the data is not base64"),
        (image(data="AAA"), "the data is not base64"),
        (image(data="ÄÄÄÄ"), "the data is not base64"),
        (image(data=7), "the block has no base64 data"),
        (image(data=""), "the block has no base64 data"),
        (image(type="file"), "the block has no base64 data"),
        ({"type": "image"}, "the block has no base64 data"),
        (image(media_type="image/x-\n" + "y" * 99), "the media type is 'image/x-\\nyy"),
        (image(media_type=["image/png"]), "expected image/png, image/jpeg, image/gif, image/webp"),
        (image(data="AAAA" * (MAX_FILE_BYTES // 3 + 1)), f"the limit is {MAX_FILE_BYTES:,}"),
    ],
)
def test_invalid_file_block_is_omitted_with_its_reason(block, reason):
    message = read([IMAGE, block, {"type": "text", "text": "look"}])
    assert [part.kind for part in message.select_blocks(ALL_KINDS)] == ["image", "text"]
    notice = message.describe_omitted_blocks("pi", ALL_KINDS)
    assert notice.startswith("[1 image left out of this message: ") and reason in notice
    assert "\n" not in notice and len(notice) < 250


def test_each_omission_reason_has_a_separate_line():
    notice = read(
        [image(data="?"), image(type="file"), image(data="?"), PAPER]
    ).describe_omitted_blocks("pi", PICTURES)
    assert [line.partition(" left")[0] for line in notice.splitlines()] == [
        "[2 images",
        "[1 image",
        "[1 document",
    ]


def test_added_text_is_placed_around_the_blocks():
    message = read([{"type": "text", "text": "one"}, IMAGE, {"type": "text", "text": "two"}])
    worded = message.replace_text("System.\n\none\ntwo\n\nAnswer in JSON.")
    assert [part.text or part.kind for part in worded.select_blocks(PICTURES)] == [
        "System.\n\n", "one", "image", "two", "\n\nAnswer in JSON.",
    ]  # fmt: skip
    assert (
        worded.text == "System.\n\none\ntwo\n\nAnswer in JSON."
        and message.replace_text(message.text) == message
    )


def test_replaced_text_is_placed_before_the_blocks():
    message = read([{"type": "text", "text": "see @file"}, IMAGE])
    assert [
        part.text or part.kind
        for part in message.replace_text("see \\@file").select_blocks(PICTURES)
    ] == [
        "see \\@file",
        "image",
    ]
    assert [
        part.text or part.kind
        for part in read([IMAGE]).replace_text("System.").select_blocks(PICTURES)
    ] == [
        "System.",
        "image",
    ]
    assert UserMessage("a").replace_text("b") == UserMessage("b")


@pytest.mark.parametrize(
    ("event", "reason"),
    [
        ({}, "got 'undefined'"),
        ({"message": "hi"}, "got 'undefined'"),
        ({"message": {"role": "assistant", "content": "x"}}, "got 'assistant'"),
        ({"message": {"role": "user"}}, "content"),
    ],
)
def test_invalid_user_message_is_rejected(event, reason):
    """C13"""
    with pytest.raises(ValueError, match=reason):
        parse_user_message(event, "now")


def test_non_string_uuid_is_ignored():
    assert read("hi", uuid=7).uuid is None
    assert UserMessage("hi").uuid is None
