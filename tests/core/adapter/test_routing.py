"""The model's name that says who answers."""

import pytest
from sweeps import each

from shim.core.adapter.routing import chosen, routed

VENDORS = ("qwen", "my-own")


@each(
    ("model", "named", "rest"),
    [
        ("qwen:m1", "qwen", "m1"),
        ("my-own:m1", "my-own", "m1"),
        ("qwen:", "qwen", None),
        ("qwen:a:b", "qwen", "a:b"),
        (":qwen:32b", None, "qwen:32b"),
        (":", None, None),
        ("nobody:32b", None, "nobody:32b"),
        ("QWEN:m1", None, "QWEN:m1"),
        ("qwen", None, "qwen"),
        ("", None, ""),
        (None, None, None),
    ],
)
def test_a_prefix_is_the_name_of_a_vendor_and_nothing_else(model, named, rest):
    assert routed(model, VENDORS) == (named, rest)


def test_a_conversation_goes_on_with_a_model_of_its_own_vendor():
    assert chosen("qwen:m1", "qwen", VENDORS) == chosen("m1", "qwen", VENDORS) == "m1"
    assert chosen(":my-own:m1", "qwen", VENDORS) == "my-own:m1"
    assert chosen("qwen:", "qwen", VENDORS) is None
    with pytest.raises(ValueError, match="this conversation is qwen's"):
        chosen("my-own:m1", "qwen", VENDORS)
