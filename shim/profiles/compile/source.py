"""A Python function, written line by line out of a profile, then compiled.

A profile is data, and it may come from anybody. Nothing of it becomes code except as a `literal`
(its repr) or as a `constant` (a value under a name that we chose).
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

    An expression has no room for lines that read its objects first, so its variable is not
    `shared`.
    """

    def __init__(self, name: str, *, shared: bool = True) -> None:
        self.name = name
        self.shared = shared


EVENT = Subject("event")
ITEM = Subject("item")


class Block:
    """Lines that stand under a head; used with `with`. `head` is "" for a whole function.

    Objects that its lines go through are read at its beginning (`Function.object`), and values that
    several lines ask for (`Function.read_first`).
    """

    def __init__(self, function: "Function", head: str) -> None:
        self._function = function
        self._head = head
        self._outer: Block | None = None
        self.opening: list[str] = []
        self.lines: list[str] = []
        self.objects: dict[tuple[str, Keys], str] = {}
        # path → the name of a value that was read at the beginning
        self.values: dict[str, str] = {}

    def __enter__(self) -> None:
        self._outer = self._function.block_now
        self.objects, self.values = dict(self._outer.objects), dict(self._outer.values)
        self._function.block_now = self

    def __exit__(
        self, kind: type | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._outer is not None:
            self._outer.lines += [self._head, *("    " + line for line in self.whole())]
            self._function.block_now = self._outer

    def whole(self) -> list[str]:
        """All lines inside of it."""
        return [*self.opening, *self.lines] or ["pass"]


class Loop(Block):
    """Lines that are done for each of some items: `item`, at the place `index`."""

    def __init__(self, function: "Function", items: str) -> None:
        super().__init__(function, f"for index, item in enumerate({items}):")

    def __enter__(self) -> None:
        super().__enter__()
        self._function.item, self._function.index = ITEM, "index"

    def __exit__(
        self, kind: type | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._function.item, self._function.index = None, "0"
        super().__exit__(kind, error, trace)


class Function:
    """One function while it is written; `parameters` are those of its `def` line, with `event`
    among them.
    """

    def __init__(self, parameters: str) -> None:
        self._parameters = parameters
        self._constants: dict[str, Any] = {}
        self._variables = 0
        self.block_now = Block(self, "")
        self.item: Subject | None = None
        self.index = "0"

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
        """The name of the object under these keys; it is an empty object where there is none."""
        if not keys and subject is EVENT:
            return subject.name
        block = self.block_now
        known = block.objects.get((subject.name, keys))
        if known is None:
            value = (
                f"{self.object(subject, keys[:-1])}.get({literal(keys[-1])})"
                if keys
                else subject.name
            )
            known = block.objects[subject.name, keys] = self.variable()
            block.opening += [
                f"if ({known} := {value}).__class__ is not dict:",
                f"    {known} = NOTHING",
            ]
        return known

    def read_first(self, path: str, value: str) -> None:
        """Read the value of a path at the beginning of the block, because several lines there ask
        for it.
        """
        name = self.block_now.values[path] = self.variable()
        self.block_now.opening.append(f"{name} = {value}")

    def line(self, text: str) -> None:
        self.block_now.lines.append(text)

    def block(self, head: str) -> Block:
        """The lines inside of `with` stand under this one."""
        return Block(self, head)

    def loop(self, items: str) -> Loop:
        """The lines inside of `with` are done for each of these."""
        return Loop(self, items)

    def made(self, name: str, known: dict[str, Any]) -> Callable[..., Any]:
        """The function; `known` are the names of ours that its lines use."""
        lines = [
            f"def {name}({self._parameters}):",
            *("    " + line for line in self.block_now.whole()),
        ]
        namespace = known | self._constants
        exec(compile("\n".join(lines), f"<{name} of a profile>", "exec"), namespace)
        made: Callable[..., Any] = namespace[name]
        return made
