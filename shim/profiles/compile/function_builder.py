"""A Python function, written line by line out of a profile, then compiled.

A profile is data, and it may come from anybody. Nothing of it becomes code except by
`format_literal` (its repr) or by `add_constant` (a value under a name that we chose).
"""

from collections.abc import Callable
from types import TracebackType
from typing import Any, NamedTuple

ObjectKeys = tuple[str, ...]


def format_literal(value: str | bool | int | None) -> str:
    """A value as Python writes it, in ASCII."""
    return ascii(value)


class EventPathRootVariable:
    """What paths begin at: `event`, `item` inside of a loop, or a variable inside of an expression.

    An expression has no room for lines that read its objects first, so its variable is not
    `can_preload`.
    """

    def __init__(self, name: str, *, can_preload: bool = True) -> None:
        self.name = name
        self.can_preload = can_preload


EVENT_ROOT = EventPathRootVariable("event")
ITEM_ROOT = EventPathRootVariable("item")


class CodeBlock:
    """Lines that stand under a head; used with `with`. `header` is "" for a whole function.

    Objects that its lines go through are read at its beginning (`FunctionBuilder.preload_object`),
    and values that several lines ask for (`FunctionBuilder.preload_value`).
    """

    def __init__(self, builder: "FunctionBuilder", header: str) -> None:
        self._builder = builder
        self._header = header
        self._outer: CodeBlock | None = None
        self.opening_lines: list[str] = []
        self.lines: list[str] = []
        self.object_names: dict[tuple[str, ObjectKeys], str] = {}
        # path → the name of a value that was read at the beginning
        self.value_names: dict[str, str] = {}

    def __enter__(self) -> None:
        self._outer = self._builder.current_block
        self.object_names, self.value_names = (
            dict(self._outer.object_names),
            dict(self._outer.value_names),
        )
        self._builder.current_block = self

    def __exit__(
        self, error_type: type | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._outer is not None:
            self._outer.lines += [self._header, *("    " + line for line in self.collect_lines())]
            self._builder.current_block = self._outer

    def collect_lines(self) -> list[str]:
        """All lines inside of it."""
        return [*self.opening_lines, *self.lines] or ["pass"]


class LoopBlock(CodeBlock):
    """Lines that are done for each of some items: `item`, at the place `index`."""

    def __init__(self, builder: "FunctionBuilder", items: str) -> None:
        super().__init__(builder, f"for index, item in enumerate({items}):")

    def __enter__(self) -> None:
        super().__enter__()
        self._builder.item = ITEM_ROOT
        self._builder.index = "index"

    def __exit__(
        self, error_type: type | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._builder.item = None
        self._builder.index = "0"
        super().__exit__(error_type, error, traceback)


class SourceLoader(NamedTuple):
    """The source of a compiled function, for `linecache`."""

    source: str

    def get_source(self, _name: str) -> str:
        return self.source


class FunctionBuilder:
    """One function while it is written; `parameters` are those of its `def` line, with `event`
    among them.
    """

    def __init__(self, parameters: str) -> None:
        self._parameters = parameters
        self._constants: dict[str, Any] = {}
        self._variable_count = 0
        self.current_block = CodeBlock(self, "")
        self.item: EventPathRootVariable | None = None
        self.index = "0"

    def add_constant(self, value: Any) -> str:
        """The name of a value of the profile's."""
        name = f"k{len(self._constants)}"
        self._constants[name] = value
        return name

    def create_variable(self) -> str:
        """A name that nothing else in the function has."""
        self._variable_count += 1
        return f"v{self._variable_count}"

    def bind_expression_to_variable(self, value_expression: str) -> tuple[str, str]:
        """An expression to read first, and the name under which it can be read again."""
        if value_expression.isidentifier():
            return value_expression, value_expression
        name = self.create_variable()
        return f"({name} := {value_expression})", name

    def assign_object_at_block_start(self, root: EventPathRootVariable, keys: ObjectKeys) -> str:
        """The name of the object under these keys; it is an empty object where there is none."""
        if not keys and root is EVENT_ROOT:
            return root.name
        block = self.current_block
        name = block.object_names.get((root.name, keys))
        if name is None:
            if keys:
                value = f"{self.assign_object_at_block_start(root, keys[:-1])}.get({format_literal(keys[-1])})"
            else:
                value = root.name
            name = block.object_names[root.name, keys] = self.create_variable()
            block.opening_lines += [
                f"if ({name} := {value}).__class__ is not dict:",
                f"    {name} = NOTHING",
            ]
        return name

    def assign_path_value_at_block_start(self, path: str, value_expression: str) -> None:
        """Read the value of a path at the beginning of the block, because several lines there ask
        for it.
        """
        name = self.current_block.value_names[path] = self.create_variable()
        self.current_block.opening_lines.append(f"{name} = {value_expression}")

    def add_line(self, text: str) -> None:
        self.current_block.lines.append(text)

    def open_block(self, header: str) -> CodeBlock:
        """The lines inside of `with` stand under this one."""
        return CodeBlock(self, header)

    def open_loop(self, items_expression: str) -> LoopBlock:
        """The lines inside of `with` are done for each of these."""
        return LoopBlock(self, items_expression)

    def compile_function(self, name: str, global_names: dict[str, Any]) -> Callable[..., Any]:
        """Return the function. `global_names` are the names of ours that its lines use.

        A traceback shows its lines: `linecache` asks the loader in its globals for the source.
        """
        lines = [
            f"def {name}({self._parameters}):",
            *("    " + line for line in self.current_block.collect_lines()),
        ]
        source = "\n".join(lines)
        # The hash tells functions of the same name apart. `linecache` skips names in `<…>`.
        filename = f"{name} of a profile {hash(source):x}"
        namespace = dict(
            global_names | self._constants, __name__=name, __loader__=SourceLoader(source)
        )
        exec(compile(source, filename, "exec"), namespace)
        compiled: Callable[..., Any] = namespace[name]
        return compiled
