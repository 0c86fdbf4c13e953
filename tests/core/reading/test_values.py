"""Ids from outside: never a path, never a flag."""

import pytest
from sweeps import loop_over_rows

from shim.core.reading.values import (
    canonicalize_uuid,
    get_text,
    is_valid_vendor_name,
    validate_vendor_session_id,
)

UUID = "550e8400-e29b-41d4-a716-446655440000"
HOSTILE = [
    "",
    "..",
    "../../etc/passwd",
    "-rf",
    "--resume",
    "a/b",
    "a\\b",
    "a b",
    "a\nb",
    "a\x00b",
    "$(x)",
    "é",
    "\ud83d",
]


@pytest.mark.parametrize("value", [None, "", 0, 7, True, ["a"], {"a": "b"}])
def test_text_that_is_empty_or_not_a_string_is_replaced_by_the_default(value):
    assert get_text({"text": value}, "text") == ""
    assert get_text({"text": value}, "text", "unknown") == "unknown"


def test_text_is_returned_and_a_missing_text_is_replaced_by_the_default():
    assert get_text({"text": "a"}, "text", "unknown") == "a"
    assert get_text({}, "text") == ""
    assert get_text({}, "text", "unknown") == "unknown"


@pytest.mark.parametrize("text", [UUID, UUID.upper(), "01a1f86f-fad9-70b4-9add-b6081579d0c6"])
def test_uuid_is_converted_to_lower_case(text):
    """pi's ids are version 7, claude's version 4. Both are UUIDs."""
    assert canonicalize_uuid(text) == text.lower()


@loop_over_rows(
    "text",
    [
        *HOSTILE,
        UUID[:-1],
        UUID + "0",
        UUID.replace("-", ""),
        f"{{{UUID}}}",
        UUID.replace("5", "g"),
        f" {UUID}",
        UUID + "\n",
    ],
)
def test_invalid_uuid_is_rejected(text):
    assert canonicalize_uuid(text) is None


@pytest.mark.parametrize("text", [UUID, "ses_01:abc.def-9", "A", "9" * 128])
def test_valid_vendor_session_id_is_accepted(text):
    assert validate_vendor_session_id(text) == text


@loop_over_rows("text", [*HOSTILE, "x" * 129, ".hidden", ":x", "_x", None, 7, ["x"]])
def test_vendor_session_id_that_may_be_a_flag_or_path_is_rejected(text):
    assert validate_vendor_session_id(text) is None


@pytest.mark.parametrize("text", ["qwen", "a", "my-agent2", "a" * 32])
def test_plain_vendor_name_is_accepted(text):
    assert is_valid_vendor_name(text)


@loop_over_rows("text", [*HOSTILE, "Qwen", "2a", "a_b", "a.b", "a" * 33, "-a"])
def test_vendor_name_that_may_be_a_path_is_rejected(text):
    assert not is_valid_vendor_name(text)
