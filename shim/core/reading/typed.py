"""Provides names from `typing` without importing `typing`, for modules that are loaded before a
child process starts.

Importing `typing` would delay the child by 3 ms. A type checker sees the real `typing`. The
`NamedTuple` in this module does not use `collections.namedtuple`, which compiles a function for
each class. A turn loads about a hundred such classes. Each class takes 10 us, and would take 50 us
with `collections.namedtuple`. The other names are only used in annotations.
"""

TYPE_CHECKING = False

if TYPE_CHECKING:
    from typing import Any as Any
    from typing import NamedTuple as NamedTuple
    from typing import Protocol as Protocol
else:
    from collections import _tuplegetter

    def _collect_values(cls, fields, named_values):
        """Yield the values of the named fields, and the defaults of the other fields."""
        for field in fields:
            if field in named_values:
                yield named_values.pop(field)
            elif field in cls._field_defaults:
                yield cls._field_defaults[field]

    def _replace_fields(self, /, **changes):
        values = [
            changes.pop(field, value) for field, value in zip(self._fields, self, strict=True)
        ]
        if changes:
            raise ValueError(f"{type(self).__name__} has no fields {list(changes)}")
        return tuple.__new__(type(self), values)

    class _TupleMethods:
        __slots__ = ()

        def __new__(cls, /, *values, **named_values):
            if named_values or len(values) != len(cls._fields):
                values += tuple(_collect_values(cls, cls._fields[len(values) :], named_values))
                if named_values or len(values) != len(cls._fields):
                    raise TypeError(f"the fields of {cls.__name__} are {', '.join(cls._fields)}")
            return tuple.__new__(cls, values)

        def __repr__(self):
            fields = ", ".join([f"{name}={value!r}" for name, value in self._asdict().items()])
            return f"{type(self).__name__}({fields})"

        def __getnewargs__(self):
            return tuple(self)

        def _asdict(self):
            return dict(zip(self._fields, self, strict=True))

        _replace = _replace_fields

    class _NamedTupleMeta(type):
        """Creates a subclass of tuple from a class with annotated fields."""

        def __new__(cls, name, bases, namespace):
            if not bases:
                return super().__new__(cls, name, bases, namespace)
            # In Python 3.14, a class has a function that returns its annotations.
            annotate = namespace.get("__annotate_func__", lambda annotation_format: {})
            annotations = namespace.get("__annotations__")
            if not annotations:
                annotations = annotate(1)
            fields = tuple(annotations)
            getters = {field: _tuplegetter(index, None) for index, field in enumerate(fields)}
            tuple_class = type(name, (tuple,), dict(vars(_TupleMethods)) | namespace | getters)
            tuple_class._fields = tuple_class.__match_args__ = fields
            tuple_class._field_defaults = {
                field: namespace[field] for field in fields if field in namespace
            }
            return tuple_class

    class NamedTuple(metaclass=_NamedTupleMeta):
        """Like `typing.NamedTuple`."""

    class Any:
        """Like `typing.Any`, in annotations."""

    class Protocol:
        """Like `typing.Protocol`, in annotations."""
