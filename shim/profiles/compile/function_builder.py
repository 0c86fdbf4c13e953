"""Builds the source code of a Python function from a profile, line by line, and compiles it.

A profile is untrusted data. A value from a profile only becomes code through `format_literal` (as
its repr) or `add_constant` (as a constant whose name the builder chooses).
"""

from collections.abc import Callable
from types import TracebackType
from typing import Any, NamedTuple

ObjectKeys = tuple[str, ...]


def format_literal(value: str | bool | int | None) -> str:
    """Return a value as a Python literal in ASCII."""
    return ascii(value)


class EventPathRootVariable:
    """The variable at which a path starts: `event`, the loop variable `item`, or a variable within
    an expression.

    `can_preload` is false for a variable within an expression, such as the variable of a
    comprehension. No statement can run between the iterations of a comprehension, so objects along
    the path cannot be assigned to variables in advance.
    """

    def __init__(self, name: str, *, can_preload: bool = True) -> None:
        self.name = name
        self.can_preload = can_preload


EVENT_ROOT = EventPathRootVariable("event")
ITEM_ROOT = EventPathRootVariable("item")


class CodeBlock:
    """An indented block of code after a header line. A CodeBlock is used with `with`. `header` is
    "" for a complete function.

    Variables are assigned at the start of the block for two purposes: for objects that several
    paths share (`FunctionBuilder.assign_object_at_block_start`), and for values that several lines
    read (`FunctionBuilder.assign_path_value_at_block_start`).
    """

    def __init__(self, builder: "FunctionBuilder", header: str) -> None:
        self._builder = builder
        self._header = header
        self._outer: CodeBlock | None = None
        self.opening_lines: list[str] = []
        self.lines: list[str] = []
        self.object_names: dict[tuple[str, ObjectKeys], str] = {}
        # Path → the variable that holds its value from the start of the block.
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
        """Return all lines of the block, or `pass` if it is empty."""
        return [*self.opening_lines, *self.lines] or ["pass"]


class LoopBlock(CodeBlock):
    """A block of code that runs for each item of a list. Its loop variables are `item` and `index`."""

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
    """Provides the source of a compiled function to `linecache`."""

    source: str

    def get_source(self, _name: str) -> str:
        return self.source


class FunctionBuilder:
    """Builds the code of one function. `parameters` is the parameter list of its `def` line, and
    includes `event`.
    """

    def __init__(self, parameters: str) -> None:
        self._parameters = parameters
        self._constants: dict[str, Any] = {}
        self._variable_count = 0
        self.current_block = CodeBlock(self, "")
        self.item: EventPathRootVariable | None = None
        self.index = "0"

    def add_constant(self, value: Any) -> str:
        """Add a constant with this value, and return the constant's name."""
        name = f"k{len(self._constants)}"
        self._constants[name] = value
        return name

    def create_variable(self) -> str:
        """Return a variable name that is unique in the function."""
        self._variable_count += 1
        return f"v{self._variable_count}"

    def bind_expression_to_variable(self, value_expression: str) -> tuple[str, str]:
        """Return an expression that assigns a value to a variable, and the variable's name. The
        code must evaluate the expression before it reads the variable.
        """
        if value_expression.isidentifier():
            return value_expression, value_expression
        name = self.create_variable()
        return f"({name} := {value_expression})", name

    def assign_object_at_block_start(self, root: EventPathRootVariable, keys: ObjectKeys) -> str:
        """Assign the object at these keys to a variable at the start of the block, and return the
        variable's name. If the event has no object there, the variable holds an empty object.
        """
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
        """Assign the value at a path to a variable at the start of the block, because several lines
        read the value.
        """
        name = self.current_block.value_names[path] = self.create_variable()
        self.current_block.opening_lines.append(f"{name} = {value_expression}")

    def add_line(self, text: str) -> None:
        self.current_block.lines.append(text)

    def open_block(self, header: str) -> CodeBlock:
        """Return a block with this header line, for use with `with`. Lines that are added within
        `with` go into the block.
        """
        return CodeBlock(self, header)

    def open_loop(self, items_expression: str) -> LoopBlock:
        """Return a block that runs for each item of a list."""
        return LoopBlock(self, items_expression)

    def compile_function(self, name: str, global_names: dict[str, Any]) -> Callable[..., Any]:
        """Return the compiled function. `global_names` has the shim's functions and constants that
        the code uses.

        A traceback shows the function's source lines, because `linecache` reads them from the
        loader in the function's globals.
        """
        lines = [
            f"def {name}({self._parameters}):",
            *("    " + line for line in self.current_block.collect_lines()),
        ]
        source = "\n".join(lines)
        # The hash distinguishes functions with the same name. `linecache` skips file names in `<…>`.
        filename = f"{name} of a profile {hash(source):x}"
        namespace = dict(
            global_names | self._constants, __name__=name, __loader__=SourceLoader(source)
        )
        exec(compile(source, filename, "exec"), namespace)
        compiled: Callable[..., Any] = namespace[name]
        return compiled
