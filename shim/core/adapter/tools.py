"""Maps a vendor's tools and their arguments to Claude's.

Each vendor has a table with a `ToolMapping` for each of its tools. A tool that is missing from the
table keeps its name and arguments. Most entries only rename keys. The few entries that combine
arguments use one of the functions at the end of this module.
"""

from collections.abc import Callable, Mapping
from posixpath import normpath
from types import MappingProxyType

from shim.core.reading.typed import Any

Arguments = dict[str, Any]
_NO_ENTRIES: Mapping[str, Any] = MappingProxyType({})
ArgumentReshaper = Callable[[Arguments], tuple[str, Arguments]]


class ToolMapping:
    """The mapping for one of a vendor's tools: Claude's `name`, and how the arguments are
    converted.

    rename        Claude's key for each of the vendor's keys; other keys stay unchanged. If several
                  keys of a call get the same name and have different values, the value is a list of
                  these values
    only_renamed  drop every key that is not in `rename` (for vendors that print internal data)
    drop          the vendor's keys that Claude's tool does not have
    convert       by Claude's key: a function that converts the value
    extra         arguments that are always added
    reshape       a function that converts all renamed arguments at once, and may change the tool's
                  name
    """

    __slots__ = (
        "affected_keys",
        "convert",
        "drop",
        "extra",
        "name",
        "only_renamed",
        "rename",
        "reshape",
    )

    def __init__(
        self,
        name: str,
        rename: Mapping[str, str] = _NO_ENTRIES,
        *,
        only_renamed: bool = False,
        drop: tuple[str, ...] = (),
        convert: Mapping[str, Callable[[Any], Any]] = _NO_ENTRIES,
        extra: Mapping[str, Any] = _NO_ENTRIES,
        reshape: ArgumentReshaper | None = None,
    ) -> None:
        self.name = name
        self.rename = rename
        self.only_renamed = only_renamed
        self.drop = frozenset(drop)
        self.convert = convert
        self.extra = extra
        self.reshape = reshape
        # None means that every tool call is converted. Otherwise a call without any of these keys
        # is passed on unchanged, without a copy. Most calls are of this kind.
        if only_renamed or extra or reshape:
            self.affected_keys = None
        else:
            self.affected_keys = frozenset((*self.rename, *drop, *self.convert))

    def translate_arguments(self, arguments: Arguments) -> tuple[str, Arguments]:
        """Return Claude's name and arguments for a tool call. `arguments` is not changed."""
        rename = self.rename
        drop = self.drop
        if self.only_renamed:
            claude_arguments = {
                rename[key]: value for key, value in arguments.items() if key in rename
            }
        else:
            claude_arguments = {
                rename.get(key, key): value for key, value in arguments.items() if key not in drop
            }
        if len(claude_arguments) < len(arguments):
            claude_arguments |= self._collect_repeated_keys(arguments)
        for key, convert in self.convert.items():
            if claude_arguments.get(key) is not None:
                claude_arguments[key] = convert(claude_arguments[key])
        if self.extra:
            claude_arguments.update(self.extra)
        if self.reshape:
            return self.reshape(claude_arguments)
        return (self.name, claude_arguments)

    def _collect_repeated_keys(self, arguments: Arguments) -> Arguments:
        """Find the arguments for which a tool call has several keys with different values. Return
        each of these arguments with a list of its values.

        The version of the vendor's tool determines which key the tool reads. A list is neither a
        path nor a command, so no rule or mode is applied to only one of the values. The user sees
        all values in the prompt.
        """
        values_by_key: dict[str, list[Any]] = {}
        for key, value in arguments.items():
            if key not in self.drop and (key in self.rename or not self.only_renamed):
                values = values_by_key.setdefault(self.rename.get(key, key), [])
                if value not in values:
                    values.append(value)
        return {key: values for key, values in values_by_key.items() if len(values) > 1}


Tools = Mapping[str, ToolMapping]


def translate_tool_call(tools: Tools, name: str, arguments: object) -> tuple[str, Arguments]:
    """Return Claude's name and arguments for a vendor's tool call. For every tool, arguments that
    are not an object become `{"raw": …}`.
    """
    tool = tools.get(name)
    if not isinstance(arguments, dict):
        if arguments is not None:
            return name if tool is None else tool.name, {"raw": arguments}
        arguments = {}
    if tool is None:
        return name, arguments
    if tool.affected_keys is not None and tool.affected_keys.isdisjoint(arguments):
        return tool.name, arguments
    return tool.translate_arguments(arguments)


def list_claude_names(tools: Tools, names: object) -> list[str]:
    """Return Claude's names for a vendor's tool names, in order and without duplicates."""
    if not isinstance(names, list | tuple):
        return []
    claude_names: dict[str, None] = {}
    for name in names:
        if isinstance(name, str):
            tool = tools.get(name)
            claude_names[name if tool is None else tool.name] = None
    return list(claude_names)


def list_vendor_tool_names(tools: Tools, names: tuple[str, ...]) -> list[str]:
    """Return the vendor's names for Claude's tool `names`, for use in the vendor's own filter
    flags. Unknown names are left out.
    """
    return [vendor_name for vendor_name, tool in tools.items() if tool.name in names]


def build_vendor_arguments(
    tools: Tools,
    name: str,
    vendor_arguments: Mapping[str, Any],
    claude_arguments: Mapping[str, Any],
) -> Arguments | None:
    """Return a vendor's arguments for a tool call whose arguments the frontend has changed. Return
    None if the tool table cannot express the change.

    `vendor_arguments` are the original arguments from the vendor's call. `claude_arguments` are the
    changed arguments from the frontend. The result must translate back to `claude_arguments`
    exactly.
    """
    tool = tools.get(name)
    if tool is None:
        return dict(claude_arguments)
    previous_arguments = translate_tool_call(tools, name, vendor_arguments)[1]
    result = dict(vendor_arguments)
    for key in {*previous_arguments, *claude_arguments}:
        if previous_arguments.get(key, _MISSING) == claude_arguments.get(key, _MISSING):
            continue
        vendor_keys = [
            vendor_key for vendor_key, claude_key in tool.rename.items() if claude_key == key
        ]
        vendor_key = next(
            (candidate for candidate in vendor_keys if candidate in vendor_arguments),
            vendor_keys[0] if vendor_keys and key not in vendor_arguments else key,
        )
        result.pop(vendor_key, None)
        if key in claude_arguments:
            convert = tool.convert.get(key)
            if convert:
                convert_back = _INVERSE_CONVERSIONS.get(convert)
            else:
                convert_back = _keep_value
            if convert_back is None:
                return None
            result[vendor_key] = convert_back(claude_arguments[key])
    if translate_tool_call(tools, name, result) == (tool.name, dict(claude_arguments)):
        return result
    return None


def _keep_value(value: Any) -> Any:
    return value


_MISSING = object()


def resolve_argument_paths(arguments: Arguments, cwd: str) -> Arguments:
    """Return the arguments with relative paths resolved against `cwd`, because Claude's file tools
    take absolute paths.
    """
    if not cwd.startswith("/"):
        return arguments
    for key in ("file_path", "path"):
        path = arguments.get(key)
        if isinstance(path, str) and path and path[0] not in "/~\\" and path[1:2] != ":":
            arguments = arguments | {key: normpath(f"{cwd}/{path}")}
    return arguments


# -- functions for tables --------------------------------------------------------------------------


def convert_seconds_to_ms(seconds: Any) -> Any:
    """Convert a timeout from seconds, which most vendors use, to milliseconds, which Claude's Bash
    tool uses.
    """
    if isinstance(seconds, int | float):
        return int(seconds * 1000)
    return seconds


def convert_zero_based_read_offset(offset: Any) -> Any:
    """Convert a line offset that counts from 0, as in qwen, to one that counts from 1, as in
    Claude's Read tool.
    """
    if isinstance(offset, int):
        return offset + 1
    return offset


def build_edit_list_converter(
    old_key: str, new_key: str, replace_all_key: str = ""
) -> ArgumentReshaper:
    """Return a function that converts a list of edits to Claude's Edit tool (for one edit) or
    MultiEdit tool (for several).

    `old_key`, `new_key` and `replace_all_key` are the keys in the vendor's edits.
    """

    def reshape(arguments: Arguments) -> tuple[str, Arguments]:
        items = arguments.pop("edits", None)
        if items is None:
            items = [arguments]
            arguments = {
                key: arguments[key]
                for key in arguments
                if key not in (old_key, new_key, replace_all_key)
            }
        if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
            return "Edit", arguments | {"edits": items}
        claude_edits = [_convert_edit(item, old_key, new_key, replace_all_key) for item in items]
        if len(claude_edits) == 1:
            return "Edit", arguments | claude_edits[0]
        return "MultiEdit", arguments | {"edits": claude_edits}

    return reshape


def _convert_edit(item: Arguments, old_key: str, new_key: str, every_key: str) -> Arguments:
    edit = {"old_string": item.get(old_key, ""), "new_string": item.get(new_key, "")}
    if every_key and item.get(every_key):
        edit["replace_all"] = True
    return edit


def convert_to_claude_todos(items: Any) -> Any:
    """Return a todo list in Claude's format: each item has content, status and activeForm."""
    if not isinstance(items, list):
        return items
    claude_todos = []
    for item in items:
        if not isinstance(item, dict):
            return items
        content = item.get("content", "")
        status = str(item.get("status", "pending")).removeprefix("TODO_STATUS_").lower()
        claude_todos.append(
            {"content": content, "status": status, "activeForm": item.get("activeForm", content)}
        )
    return claude_todos


# The conversion functions in tool tables, each with the function that converts a value back to the
# vendor's form.
_INVERSE_CONVERSIONS: Mapping[Callable[[Any], Any], Callable[[Any], Any]] = {
    convert_seconds_to_ms: lambda value: value / 1000 if isinstance(value, int | float) else value,
    convert_zero_based_read_offset: lambda line: line - 1 if isinstance(line, int) else line,
}
