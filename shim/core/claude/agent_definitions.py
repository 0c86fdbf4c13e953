"""The definitions of subagents: from a frontend's `initialize` request, from `--agents`, and from
the Markdown files in Claude's `agents` folders.
"""

from collections.abc import Iterable, Mapping

from shim.core.claude.markdown_header import parse_markdown_file
from shim.core.reading.typed import Any, NamedTuple

INHERITED_MODEL = "inherit"  # the session's own model
# The limits for the texts in a definition. The real claude has no limits, but larger texts do not
# fit into a model's context.
MAX_PROMPT_CHARS = 1_000_000
MAX_DESCRIPTION_CHARS = 100_000
MAX_AGENTS = 1000  # the limit for one source; its further definitions are ignored


class AgentDefinition(NamedTuple):
    """A subagent that the user or the frontend has defined.

    tools             Claude's names for the only tools that the agent may use; None for all tools
    disallowed_tools  rules for the tools that the agent may not use
    model             the model's name, or None for the session's model
    source            where the definition comes from; used in messages
    """

    name: str
    description: str
    prompt: str
    tools: tuple[str, ...] | None = None
    disallowed_tools: tuple[str, ...] = ()
    model: str | None = None
    max_turns: int | None = None
    source: str = ""

    def to_json(self) -> dict[str, str]:
        """Return the agent's entry in the answer to `initialize`."""
        entry = {"name": self.name, "description": self.description}
        if self.model is not None:
            entry["model"] = self.model
        return entry


AgentDefinitions = Mapping[str, AgentDefinition]


def merge_agents(*sources: AgentDefinitions) -> dict[str, AgentDefinition]:
    """Return the definitions of all sources, sorted by name as in the real claude. If two sources
    define the same name, the later definition is used.
    """
    agents: dict[str, AgentDefinition] = {}
    for source in sources:
        agents |= source
    return {name: agents[name] for name in sort_agent_names(agents)}


def sort_agent_names(names: Iterable[str]) -> list[str]:
    return sorted(set(names), key=lambda name: (name.lower(), name))


def parse_agent_definitions(value: object, source: str) -> dict[str, AgentDefinition]:
    """Parse a JSON object with a definition for each agent's name.

    Raise ValueError with one line for each invalid value. As in the real claude, one invalid value
    makes all definitions invalid.
    """
    if not isinstance(value, dict):
        raise ValueError(f"Invalid input: expected record, received {_name_type(value)}")
    problems: list[str] = []
    agents = {}
    for name, fields in [*value.items()][:MAX_AGENTS]:
        if not isinstance(fields, dict):
            problems.append(
                f"{name}: Invalid input: expected object, received {_name_type(fields)}"
            )
            continue
        problems += _list_problems(name, fields)
        if not problems:
            agents[name] = _build_definition(name, fields, fields["prompt"], source)
    if problems:
        raise ValueError("\n".join(problems))
    return agents


def _list_problems(name: str, fields: Mapping[str, Any]) -> list[str]:
    """Return a line for each field of a definition that has a wrong type."""
    expected_types: tuple[tuple[str, type, str], ...] = (
        ("description", str, "string"),
        ("tools", list, "array"),
        ("disallowedTools", list, "array"),
        ("prompt", str, "string"),
        ("model", str, "string"),
    )
    problems = []
    for key, expected_type, type_name in expected_types:
        is_required = key in ("description", "prompt")
        if not is_required and key not in fields:
            continue
        value = fields.get(key)
        if isinstance(value, expected_type):
            continue
        received = _name_type(value) if key in fields else "undefined"
        problems.append(f"{name}.{key}: Invalid input: expected {type_name}, received {received}")
    return problems


def _name_type(value: object) -> str:
    """Return the name of a value's type in JavaScript."""
    if value is None:
        return "null"
    names = {bool: "boolean", int: "number", float: "number", str: "string", list: "array"}
    return names.get(type(value), "object")


def parse_agent_file(text: str, source: str) -> AgentDefinition | None:
    """Parse a Markdown file with a header. Return None if the header has no name or no description."""
    fields, body = parse_markdown_file(text)
    name = fields.get("name")
    description = fields.get("description")
    if not (isinstance(name, str) and name and isinstance(description, str) and description):
        return None
    return _build_definition(name, fields, body.strip(), source)


def _build_definition(
    name: str, fields: Mapping[str, Any], prompt: str, source: str
) -> AgentDefinition:
    tools = _parse_tools(fields.get("tools"))
    if tools is not None and "*" in tools:
        tools = None
    model = fields.get("model")
    max_turns = fields.get("maxTurns")
    return AgentDefinition(
        name,
        fields["description"][:MAX_DESCRIPTION_CHARS],
        prompt[:MAX_PROMPT_CHARS],
        tools,
        _parse_tools(fields.get("disallowedTools")) or (),
        model if isinstance(model, str) and model else None,
        _parse_count(max_turns),
        source,
    )


def _parse_tools(value: object) -> tuple[str, ...] | None:
    """Return the tool rules in a list or in a text with commas. Return None for anything else."""
    if isinstance(value, str):
        from shim.core.claude.argv.flags import split_tool_rules

        return tuple(split_tool_rules(value))
    if not isinstance(value, list):
        return None
    return tuple(rule for rule in value if isinstance(rule, str) and rule)


def _parse_count(value: object) -> int | None:
    if isinstance(value, str) and value.isdecimal():
        value = int(value[:9])
    if isinstance(value, int) and not isinstance(value, bool) and value > 0:
        return value
    return None
