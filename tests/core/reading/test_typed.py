"""The shim's `NamedTuple`, which replaces the one of `typing` because its import would delay a
child.
"""

import copy
import inspect
import typing

import pytest

from shim.core.reading import typed


def tuples(maker):
    """Return the same class, created by each `NamedTuple`."""

    class Point(maker):
        """A point."""

        x: int
        y: int = 2
        name: "str | None" = None

        @property
        def total(self) -> int:
            return self.x + self.y

        def move(self, by: int) -> "Point":
            """Return a moved point."""
            return self._replace(x=self.x + by)

    return Point


@pytest.fixture
def pair():
    return tuples(typed.NamedTuple), tuples(typing.NamedTuple)


def test_named_tuple_behaves_like_typing_named_tuple(pair):
    for point_class in pair:
        point = point_class(1)
        assert point == (1, 2, None) == tuple(point) and isinstance(point, tuple)
        assert (point.x, point.y, point.total, point.move(by=3).x) == (1, 2, 3, 4)
        assert point._asdict() == {"x": 1, "y": 2, "name": None}
        assert repr(point) == "Point(x=1, y=2, name=None)" and copy.copy(point) == point
        assert point_class(1, name="a", y=3) == point_class(x=1, y=3, name="a") == (1, 3, "a")
        for values, named_values in (
            ((), {}),
            ((1, 2, "a", 4), {}),
            ((1,), {"z": 1}),
            ((1,), {"x": 1}),
        ):
            with pytest.raises(TypeError):
                point_class(*values, **named_values)
        with pytest.raises(ValueError, match="z"):
            point._replace(z=1)
        with pytest.raises(AttributeError):
            point.x = 2


def test_named_tuple_may_have_no_fields():
    class Nothing(typed.NamedTuple):
        """A tuple without fields."""

    assert Nothing() == () and Nothing._fields == ()


@pytest.mark.parametrize(
    "name",
    [
        "__name__",
        "__qualname__",
        "__module__",
        "__doc__",
        "_fields",
        "_field_defaults",
        "__bases__",
    ],
)
def test_named_tuple_attributes_match_those_of_typing_named_tuple(pair, name):
    ours, theirs = (getattr(point_class, name) for point_class in pair)
    assert ours == theirs


def test_named_tuple_preserves_field_annotations(pair):
    ours, _ = pair
    assert list(inspect.get_annotations(ours)) == ["x", "y", "name"]
    assert inspect.get_annotations(ours)["x"] is int
