"""The model prefix that selects the vendor."""

import pytest
from sweeps import loop_over_rows

from shim.core.claude.argv.models import parse_model_route, resolve_model_name

VENDORS = ("qwen", "my-own")


@loop_over_rows(
    ("model", "vendor_name", "model_name"),
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
def test_model_route_accepts_only_vendor_names_as_a_prefix(model, vendor_name, model_name):
    assert parse_model_route(model, VENDORS) == (vendor_name, model_name)


def test_model_of_another_vendor_is_rejected_in_a_conversation():
    assert (
        resolve_model_name("qwen:m1", "qwen", VENDORS)
        == resolve_model_name("m1", "qwen", VENDORS)
        == "m1"
    )
    assert resolve_model_name(":my-own:m1", "qwen", VENDORS) == "my-own:m1"
    assert resolve_model_name("qwen:", "qwen", VENDORS) is None
    with pytest.raises(ValueError, match="this conversation belongs to qwen"):
        resolve_model_name("my-own:m1", "qwen", VENDORS)
