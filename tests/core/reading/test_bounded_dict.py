"""A dictionary that keeps its last keys."""

from shim.core.reading.bounded_dict import BoundedDict


def test_new_key_replaces_the_oldest_key():
    bounded = BoundedDict[str, int](2)
    for number, key in enumerate(("a", "b", "a", "c")):
        bounded[key] = number
    assert bounded == {"b": 1, "c": 3}
