"""Compiles the fields in a profile to Python expressions. A field is a path or an operator.

                                   HOW A FIELD IS WRITTEN

    "a.b[0].c"                       a path in the event. `[*]` is every item of a list. `a || b` is
                                     the first value that is not missing
    "$.id", "$index"                 in a rule with `foreach`: a path in the item, and its index
    "a.'x.y'"                        a key with a dot
    { const = V }                    the constant V
    { path = P, map = { a = "b" } }  the table's entry for the value. If there is no entry, `default`
                                     or a missing value
    { path = P, in = [ … ] }         true or false. `not_in` (false for a missing value), `regex`
                                     and `exists` are also true or false
    { path = P, ending = 'R' }       whether the pattern matches in the last 200 characters
    { path = P, parse = "json" }     the value that a JSON text encodes
    { path = P, capture = 'R' }      the text that the pattern's first group matches, or that the
                                     pattern matches if it has no group
    { path = P, strip = 'R' }        the text without the pattern's matches in the first and last
                                     4000 characters
    { path = P, unquote_shell = true }   the command inside `/bin/sh -lc '…'`
    { path = P, times = N }          the number multiplied by N
    { join = [ … ], sep = " " }      the joined texts. `join` may also be the path to a list
    { plus = [ … ] } { minus = [ … ] }   the sum or the difference of numbers, or of the items of
                                         lists. A difference is never below 0
    { any = [ … ] } { all = [ … ] } { not = X }   boolean operators
    { foreach = P, item = { k = X } }    a list with one object for each item (`$` in X)
    { object = { k = X } }           an object

A pattern R must not be slow on any text (`check/regex_cost.py`). A missing value is None, and every
operator accepts None.
"""

from collections.abc import Callable, Iterator
from typing import Any

from shim.profiles.check.config_node import MAX_ENDING_CHARS, MAX_SEARCHED_CHARS, ConfigNode
from shim.profiles.compile.function_builder import (
    ITEM_ROOT,
    EventPathRootVariable,
    FunctionBuilder,
    format_literal,
)
from shim.profiles.compile.paths import compile_event_path_expression
from shim.profiles.run.values import MAX_LIST_ITEMS, RULE_GLOBALS, LazyPattern

MAX_OPERATOR_DEPTH = 16  # nested operators in one field
MAX_INLINE_DEPTH = 4  # nested operators in one Python expression
MAX_FIELDS = 100  # fields in one object, or operands of one operator
# A regular expression without any of these characters only matches its own text.
_REGEX_SIGNS = frozenset(r".^$*+?{}[]\|()")
_BOOLEAN_OPERATORS = frozenset(("in", "not_in", "regex", "ending", "exists", "any", "all", "not"))

# An operator's compiler. Its last parameter is the nesting depth of the operator.
StandaloneCompiler = Callable[[ConfigNode, FunctionBuilder, int], str]
# A compiler whose last parameter is the Python expression for the value.
PathOperatorCompiler = Callable[[ConfigNode, FunctionBuilder, str], str]


def compile_field_expression(node: ConfigNode, builder: FunctionBuilder, depth: int = 0) -> str:
    """Return the Python expression for a field of a rule. Raise FrontendError for an invalid field."""
    if isinstance(node.value, str):
        return compile_event_path_expression(node, builder)
    if not isinstance(node.value, dict) or depth > MAX_OPERATOR_DEPTH:
        raise node.build_error(
            f"a path, or a table with an operator: {', '.join(sorted(_STANDALONE_OPERATORS) + sorted(_PATH_OPERATORS))}"
        )
    if depth % MAX_INLINE_DEPTH == 0 and depth:
        return _compile_separately(node, builder, depth)
    return _compile_operator(node, builder, depth)


def _compile_separately(node: ConfigNode, builder: FunctionBuilder, depth: int) -> str:
    """Compile a field to its own function, and return the expression that calls the function. A
    single expression is not possible, because Python limits the nesting of parentheses.
    """
    inner_builder = FunctionBuilder("engine, event, item, index")
    inner_builder.index = "index"
    item = "None"
    if builder.item is not None:
        inner_builder.item = ITEM_ROOT
        item = builder.item.name
    inner_builder.add_line(f"return {_compile_operator(node, inner_builder, depth)}")
    return (
        f"{builder.add_constant(inner_builder.compile_function('field', RULE_GLOBALS))}"
        f"(engine, event, {item}, {builder.index})"
    )


def _compile_operator(node: ConfigNode, builder: FunctionBuilder, depth: int) -> str:
    """Return the Python expression for a field that is a table with an operator."""
    standalone_keys = [key for key in node.value if key in _STANDALONE_OPERATORS]
    if len(standalone_keys) == 1:
        operator = standalone_keys[0]
        node.read_table((operator, *_EXTRA_KEYS.get(operator, ())))
        return _STANDALONE_OPERATORS[operator](node, builder, depth + 1)
    if standalone_keys or "path" not in node.value:
        raise node.build_error(
            f"a table with `path` and an operator, or with one of {', '.join(sorted(_STANDALONE_OPERATORS))}"
        )
    table = node.read_table(("path", "default", *_PATH_OPERATORS))
    value = compile_field_expression(node.get_child("path"), builder, depth + 1)
    for operator, compile_operator in _PATH_OPERATORS.items():
        if operator in table:
            value = compile_operator(node.get_child(operator), builder, value)
    if "default" in table:
        binding, bound_name = builder.bind_expression_to_variable(value)
        value = f"({bound_name} if {binding} is not None else {_compile_constant(table['default'], builder)})"
    return value


def list_field_path_nodes(node: ConfigNode) -> Iterator[ConfigNode]:
    """Yield every path in a rule's fields that starts at the event."""
    if isinstance(node.value, str):
        yield node
    elif isinstance(node.value, list):
        for index in range(len(node.value)):
            yield from list_field_path_nodes(node.get_child(index))
    elif isinstance(node.value, dict):
        for key in node.value:
            if key not in _KEYS_WITHOUT_PATHS:
                yield from list_field_path_nodes(node.get_child(key))


def compile_optional_field_expression(node: ConfigNode, builder: FunctionBuilder) -> str:
    """Return the Python expression for an optional field, or "None" if the field is missing."""
    if node:
        return compile_field_expression(node, builder)
    return "None"


def compile_boolean_field_expression(node: ConfigNode, builder: FunctionBuilder) -> str:
    """Return a Python expression for an optional field. The expression's value is True or False."""
    if not node:
        return "False"
    value = compile_field_expression(node, builder)
    if value in ("True", "False"):
        return value
    if isinstance(node.value, dict) and not _BOOLEAN_OPERATORS.isdisjoint(node.value):
        return value
    return f"bool({value})"


def read_literals(node: ConfigNode) -> list[Any]:
    """Return the list of literals to compare a value with. Raise FrontendError for a value that is
    not a literal.
    """
    if not isinstance(node.value, list) or any(
        isinstance(literal, dict | list) for literal in node.value
    ):
        raise node.build_error("a list of strings, numbers or booleans")
    return node.value


def compile_membership_test(value: str, literals: list[Any], builder: FunctionBuilder) -> str:
    """Return a Python expression that tests whether a value equals one of the literals."""
    if len(literals) == 1:
        (literal,) = literals
        if literal.__class__ is str:
            return f"({value} == {format_literal(literal)})"
        if literal.__class__ is bool:
            return f"({value} is {format_literal(literal)})"
        if literal.__class__ is int:
            binding, bound_name = builder.bind_expression_to_variable(value)
            return (
                f"({binding} == {format_literal(literal)} and {bound_name}.__class__ is not bool)"
            )
    elif all(item.__class__ is str for item in literals):
        binding, bound_name = builder.bind_expression_to_variable(value)
        return f"({binding}.__class__ is str and {bound_name} in {builder.add_constant(frozenset(literals))})"
    return f"is_one_of({value}, {builder.add_constant(tuple(literals))})"


def compile_pattern_test(node: ConfigNode, value: str, builder: FunctionBuilder) -> str:
    """Return a Python expression that tests whether a pattern matches in a text. A pattern without
    special characters is compiled to a string search.
    """
    pattern = node.read_regex()
    binding, bound_name = builder.bind_expression_to_variable(value)
    if _REGEX_SIGNS.isdisjoint(pattern.removeprefix("^")):
        test = f"{format_literal(pattern)} in {bound_name}[:{MAX_SEARCHED_CHARS}]"
        if pattern[0] == "^":
            test = f"{bound_name}.startswith({format_literal(pattern[1:])})"
    else:
        test = f"{builder.add_constant(LazyPattern(pattern))}.search({bound_name}, 0, {MAX_SEARCHED_CHARS}) is not None"
    return f"({binding}.__class__ is str and {test})"


def find_literal_prefix(regex: str) -> str:
    """Return a literal prefix of every match of a regular expression. Return "" if the prefix is
    not easy to determine.
    """
    has_choice = "|" in regex.replace("\\\\", "").replace("\\|", "")
    prefix = ""
    letters = iter("" if has_choice else regex)
    for letter in letters:
        if letter == "\\":
            letter = next(letters, "a")
            if letter.isalnum():
                break
        elif letter in _REGEX_SIGNS:
            if letter in "*?{":
                return prefix[:-1]
            return prefix
        prefix += letter
    return prefix


def _compile_constant(value: Any, builder: FunctionBuilder) -> str:
    if value is None or value.__class__ in (str, int, bool):
        return format_literal(value)
    return builder.add_constant(value)


# The keys in rules and fields whose values contain no event paths.
_KEYS_WITHOUT_PATHS = frozenset(
    (
        *(
            "match",
            "item_match",
            "foreach",
            "item",
            "once",
            "emit",
            "mode",
            "cause",
            "note",
            "const",
            "sep",
            "map",
        ),
        *("default", "in", "not_in", "regex", "ending", "parse", "capture", "strip"),
    )
)

# -- operators without `path` ----------------------------------------------------------------------


def _compile_parts(node: ConfigNode, builder: FunctionBuilder, depth: int) -> list[str]:
    parts = [
        compile_field_expression(part_node, builder, depth)
        for part_node in node.read_items(MAX_FIELDS)
    ]
    if not parts:
        raise node.build_error("a list of fields")
    return parts


def _create_call_compiler(key: str, template: str, separator: str = ", ") -> StandaloneCompiler:
    """Return the compiler for the operator `key`. The operator becomes a function call with all
    operands.
    """
    return lambda node, builder, depth: template.format(
        separator.join(_compile_parts(node.get_child(key), builder, depth))
    )


def _compile_join(node: ConfigNode, builder: FunctionBuilder, depth: int) -> str:
    join_node = node.get_child("join")
    separator = ""
    if node.get_child("sep"):
        separator = node.get_child("sep").value
    if not isinstance(separator, str):
        raise node.get_child("sep").build_error("a string")
    if not isinstance(join_node.value, list):
        return f"join_list({compile_field_expression(join_node, builder, depth)}, {format_literal(separator)})"
    parts = [
        f"str({part})" if part == builder.index else part
        for part in _compile_parts(join_node, builder, depth)
    ]
    return f"join_values({format_literal(separator)}, {', '.join(parts)})"


def compile_field_expressions(
    node: ConfigNode, builder: FunctionBuilder, depth: int = 0
) -> dict[str, str]:
    if len(node.read_table()) > MAX_FIELDS:
        raise node.build_error(
            f"a table with at most {MAX_FIELDS} fields", f"a table with {len(node.value)} fields"
        )
    return {
        key: compile_field_expression(node.get_child(key), builder, depth)
        for key in node.read_table()
    }


def _compile_object(node: ConfigNode, builder: FunctionBuilder, depth: int) -> str:
    """Return the Python expression for an object. Missing fields are omitted."""
    fields = compile_field_expressions(node, builder, depth)
    if len(fields) == 1:
        ((key, value),) = fields.items()
        binding, bound_name = builder.bind_expression_to_variable(value)
        return f"({{{format_literal(key)}: {bound_name}}} if {binding} is not None else {{}})"
    return f"remove_none_fields({{{', '.join(f'{format_literal(key)}: {value}' for key, value in fields.items())}}})"


def _compile_foreach(node: ConfigNode, builder: FunctionBuilder, depth: int) -> str:
    items_binding, items_name = builder.bind_expression_to_variable(
        compile_field_expression(node.get_child("foreach"), builder, depth)
    )
    outer_item = builder.item
    builder.item = EventPathRootVariable(builder.create_variable(), can_preload=False)
    item_node = node.get_child("item")
    item_name = builder.item.name
    if isinstance(item_node.value, dict):
        item_value = _compile_object(item_node, builder, depth)
    else:
        item_value = compile_field_expression(item_node, builder, depth)
    builder.item = outer_item
    return (
        f"([{item_value} for {item_name} in {items_name}[:{MAX_LIST_ITEMS}]] "
        f"if {items_binding}.__class__ is list else {items_name})"
    )


# -- operators on the value at a path --------------------------------------------------------------


def _compile_map(node: ConfigNode, builder: FunctionBuilder, value: str) -> str:
    (binding, bound_name), table = (
        builder.bind_expression_to_variable(value),
        builder.add_constant(dict(node.read_table())),
    )
    return (
        f"({table}.get({bound_name}) if {binding}.__class__ is str "
        f"else find_boolean_or_integer_entry({bound_name}, {table}))"
    )


def _compile_not_in(node: ConfigNode, builder: FunctionBuilder, value: str) -> str:
    binding, bound_name = builder.bind_expression_to_variable(value)
    return f"({binding} is not None and not {compile_membership_test(bound_name, read_literals(node), builder)})"


def _compile_ending(node: ConfigNode, builder: FunctionBuilder, value: str) -> str:
    pattern, (binding, bound_name) = node.read_regex(), builder.bind_expression_to_variable(value)
    ending_binding, ending_name = builder.bind_expression_to_variable(
        f"{bound_name}[-{MAX_ENDING_CHARS}:]"
    )
    # Testing for the literal prefix is cheaper than a regex search. If the prefix is missing, as in
    # nearly all texts, no search is needed.
    prefix_test = f"{format_literal(find_literal_prefix(pattern))} in {ending_binding}"
    search = f"{builder.add_constant(LazyPattern(pattern))}.search({ending_name}) is not None"
    return f"({binding}.__class__ is str and {prefix_test} and {search})"


def _compile_exists(node: ConfigNode, builder: FunctionBuilder, value: str) -> str:
    return f"({value} {'is not' if node.read_bool() else 'is'} None)"


def _compile_parse(node: ConfigNode, builder: FunctionBuilder, value: str) -> str:
    node.read_choice(("json",))
    binding, bound_name = builder.bind_expression_to_variable(value)
    return f"(parse_json_text({bound_name}, engine.turn.diagnostics) if {binding}.__class__ is str else {bound_name})"


def _create_pattern_compiler(function_name: str) -> PathOperatorCompiler:
    """Return the compiler for an operator that calls `function_name` with the value and a pattern."""
    return lambda node, builder, value: (
        f"{function_name}({value}, {builder.add_constant(LazyPattern(node.read_regex()))})"
    )


def _compile_unquote(node: ConfigNode, builder: FunctionBuilder, value: str) -> str:
    if not node.read_bool():
        raise node.build_error("true")
    return f"unwrap_shell_command({value})"


def _compile_times(node: ConfigNode, builder: FunctionBuilder, value: str) -> str:
    return f"multiply_if_number({value}, {builder.add_constant(node.read_number(0, 1e9))})"


_STANDALONE_OPERATORS: dict[str, StandaloneCompiler] = {
    "const": lambda node, builder, depth: _compile_constant(node.value["const"], builder),
    "join": _compile_join,
    "plus": _create_call_compiler("plus", "add_numbers({})"),
    "minus": _create_call_compiler("minus", "subtract_numbers({})"),
    "any": _create_call_compiler("any", "bool({})", " or "),
    "all": _create_call_compiler("all", "bool({})", " and "),
    "not": lambda node, builder, depth: (
        f"(not {compile_field_expression(node.get_child('not'), builder, depth)})"
    ),
    "foreach": _compile_foreach,
    "object": lambda node, builder, depth: _compile_object(
        node.get_child("object"), builder, depth
    ),
}
_EXTRA_KEYS = {"join": ("sep",), "foreach": ("item",)}
# The order of operators in one table: operators that change the value precede those that test it.
_PATH_OPERATORS: dict[str, PathOperatorCompiler] = {
    "unquote_shell": _compile_unquote,
    "strip": _create_pattern_compiler("strip_ends"),
    "capture": _create_pattern_compiler("capture_text"),
    "parse": _compile_parse,
    "times": _compile_times,
    "map": _compile_map,
    "in": lambda node, builder, value: compile_membership_test(value, read_literals(node), builder),
    "not_in": _compile_not_in,
    "regex": lambda node, builder, value: compile_pattern_test(node, value, builder),
    "ending": _compile_ending,
    "exists": _compile_exists,
}
