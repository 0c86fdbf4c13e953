"""User messages: a text, or blocks (contract C14)."""

import pytest

from shim.core.claude.messages import Message, read_message


def read(content, **event):
    return read_message({"message": {"role": "user", "content": content}, **event}, "now")


def test_a_text_is_the_whole_message():
    message = read("hi", uuid="u1")
    assert (message.text, message.uuid, message.timestamp, message.left_out) == ("hi", "u1", "now", {})
    assert message.notice("pi") == ""


def test_texts_and_documents_of_text_are_joined():
    blocks = [
        {"type": "text", "text": "one"},
        {"type": "document", "source": {"type": "text", "data": "two"}},
        {"type": "text", "text": "three"},
    ]
    assert read(blocks).text == "one\ntwo\nthree"


def test_what_has_no_text_is_counted_and_said_in_one_line():
    image = {"type": "image", "source": {"type": "base64", "data": "AAAA"}}
    paper = {"type": "document", "source": {"type": "base64", "data": "AAAA"}}
    message = read([image, image, paper, {"type": "text", "text": "look"}, "odd", {"type": "text"}])
    assert message.text == "look"
    assert message.left_out == {"image": 2, "document": 1, "unknown block": 1, "text": 1}
    notice = message.notice("pi")
    assert "2 images and 1 document" in notice and "pi can only be given text" in notice and "\n" not in notice


@pytest.mark.parametrize(
    ("event", "words"),
    [
        ({}, "got 'undefined'"),
        ({"message": "hi"}, "got 'undefined'"),
        ({"message": {"role": "assistant", "content": "x"}}, "got 'assistant'"),
        ({"message": {"role": "user"}}, "content"),
    ],
)
def test_what_is_no_message_of_a_user_is_refused(event, words):
    """C13"""
    with pytest.raises(ValueError, match=words):
        read_message(event, "now")


def test_a_uuid_that_is_no_text_is_none():
    assert read("hi", uuid=7).uuid is None
    assert Message("hi").uuid is None
