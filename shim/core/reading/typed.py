"""Names of `typing` for modules that are loaded before a child starts, without importing `typing`.

That import would delay the child by 3 ms. A type checker sees `typing` itself. At run time,
`NamedTuple` is built on `collections`, and the other names occur only in annotations.
"""

TYPE_CHECKING = False

if TYPE_CHECKING:
    from typing import Any as Any
    from typing import NamedTuple as NamedTuple
    from typing import Protocol as Protocol
else:
    from collections import namedtuple

    CLASS_BODY_NAMES = {
        "__module__",
        "__qualname__",
        "__annotations__",
        "__annotate_func__",
        "__classdictcell__",
    }

    class _NamedTupleMeta(type):
        """Makes a tuple with names of a class with annotated fields."""

        def __new__(cls, name, bases, namespace):
            if not bases:
                return super().__new__(cls, name, bases, namespace)
            # Python 3.14 asks a function for them
            annotate = namespace.get("__annotate_func__", lambda annotation_format: {})
            annotations = namespace.get("__annotations__") or annotate(1)
            defaults = [namespace[field] for field in annotations if field in namespace]
            tuple_class = namedtuple(
                name, annotations, defaults=defaults, module=namespace["__module__"]
            )
            for key, value in namespace.items():
                if key not in annotations and key not in CLASS_BODY_NAMES:
                    setattr(tuple_class, key, value)
            tuple_class.__annotations__ = annotations
            tuple_class.__qualname__ = namespace["__qualname__"]
            return tuple_class

    class NamedTuple(metaclass=_NamedTupleMeta):
        """As `typing.NamedTuple`."""

    class Any:
        """As `typing.Any`, in annotations."""

    class Protocol:
        """As `typing.Protocol`, in annotations."""
