"""A Python function, written line by line out of a profile, then compiled.

A profile is data, and it may come from anybody. Nothing of it becomes code except as a `literal` (its repr) or as a
`constant` (a value under a name that we chose).
"""

from collections.abc import Callable
from types import TracebackType
from typing import Any

Keys = tuple[str, ...]


def literal(value: str | bool | int | None) -> str:
    """A value as Python writes it, in ASCII."""
    return ascii(value)


class Subject:
    """What paths begin at: `event`, `item` inside of a loop, or a variable inside of an expression.

    `opening` are the lines that read its objects. They stand in front of all lines that use these objects. An
    expression has no room for lines, so its variable is not `shared`.
    """

    def __init__(self, name: str, *, shared: bool = True) -> None:
        self.name = name
        self.shared = shared
        self.objects: dict[Keys, str] = {}
        self.opening: list[str] = []


class Function:
    """One function while it is written; `parameters` are those of its `def` line."""

    def __init__(self, parameters: str) -> None:
        self._parameters = parameters
        self._constants: dict[str, Any] = {}
        self._variables = 0
        self._lines: list[str] = []
        self._depth = 0
        self.event = Subject("event")
        self.item: Subject | None = None
        self.index = "0"

    # -- what profiles say ----------------------------------------------------------------------------------------

    def constant(self, value: Any) -> str:
        """The name of a value of the profile's."""
        name = f"k{len(self._constants)}"
        self._constants[name] = value
        return name

    def variable(self) -> str:
        """A name that nothing else in the function has."""
        self._variables += 1
        return f"v{self._variables}"

    def held(self, value: str) -> tuple[str, str]:
        """An expression to read first, and the name under which it can be read again."""
        if value.isidentifier():
            return value, value
        name = self.variable()
        return f"({name} := {value})", name

    def object(self, subject: Subject, keys: Keys) -> str:
        """The name of the object under these keys; it is an empty one where there is none."""
        if not keys and subject is self.event:
            return subject.name
        known = subject.objects.get(keys)
        if known is None:
            value = f"{self.object(subject, keys[:-1])}.get({literal(keys[-1])})" if keys else subject.name
            known = subject.objects[keys] = self.variable()
            subject.opening += [f"if ({known} := {value}).__class__ is not dict:", f"    {known} = NOTHING"]
        return known

    # -- lines ----------------------------------------------------------------------------------------------------

    def line(self, text: str) -> None:
        """One line, at the present depth."""
        self._lines.append("    " * self._depth + text)

    def first(self, value: str) -> str:
        """The name of a value that is read at the beginning of the function, because several conditions ask for it."""
        name = self.variable()
        self.event.opening.append(f"{name} = {value}")
        return name

    def block(self, head: str) -> "_Block":
        """The lines inside of `with` stand under this one."""
        return _Block(self, head)

    def loop(self, items: str) -> "_Loop":
        """The lines inside of `with` are done for each of `items`, which is `item` there, at the place `index`."""
        return _Loop(self, items)

    # -- the end --------------------------------------------------------------------------------------------------

    def made(self, name: str, known: dict[str, Any]) -> Callable[..., Any]:
        """The function; `known` are the names of ours that its lines use."""
        lines = [f"def {name}({self._parameters}):"]
        lines += ["    " + line for line in (*self.event.opening, *self._lines)]
        namespace = known | self._constants
        exec(compile("\n".join([*lines, "    pass"]), f"<{name} of a profile>", "exec"), namespace)
        made: Callable[..., Any] = namespace[name]
        return made


class _Block:
    def __init__(self, function: Function, head: str) -> None:
        self._function = function
        self._head = head

    def __enter__(self) -> None:
        self._function.line(self._head)
        self._function._depth += 1
        self._before = len(self._function._lines)

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if len(self._function._lines) == self._before:
            self._function.line("pass")
        self._function._depth -= 1


class _Loop:
    def __init__(self, function: Function, items: str) -> None:
        self._block = _Block(function, f"for index, item in enumerate({items}):")
        self._function = function

    def __enter__(self) -> None:
        self._block.__enter__()
        self._function.item, self._function.index = Subject("item"), "index"

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        function, item = self._function, self._function.item
        if item is not None:
            space = "    " * function._depth
            function._lines[self._block._before : self._block._before] = [space + line for line in item.opening]
        function.item, function.index = None, "0"
        self._block.__exit__(kind, error, trace)
