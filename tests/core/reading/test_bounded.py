"""A dictionary that keeps the last keys."""

from shim.core.reading.bounded import BoundedDict


def test_a_further_key_takes_the_place_of_the_oldest():
    kept = BoundedDict[str, int](2)
    for number, key in enumerate(("a", "b", "a", "c")):
        kept[key] = number
    assert kept == {"b": 1, "c": 3}
