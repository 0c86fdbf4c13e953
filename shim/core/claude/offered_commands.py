"""The commands that a vendor or the shim itself offers to frontends."""

from collections.abc import Mapping

from shim.core.reading.typed import Any, NamedTuple
from shim.core.reading.values import as_dict, as_list, get_text

# The limits for a vendor's list, which is stored and repeated in each `init` line.
MAX_OFFERED_COMMANDS = 500
MAX_NAME_CHARS = 100
MAX_TEXT_CHARS = 1000


class OfferedCommand(NamedTuple):
    """A command that a message may begin with."""

    name: str
    description: str = ""
    argument_hint: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return the command's entry in the answer to `initialize`."""
        return {
            "name": self.name,
            "description": self.description,
            "argumentHint": self.argument_hint,
        }


class CommandNames(NamedTuple):
    """The names of commands for `init`.

    listed  the shim's own commands and Claude's command files
    skills  the skills among the files
    vendor  the commands that the vendor offered before this turn
    """

    listed: tuple[str, ...] = ()
    skills: tuple[str, ...] = ()
    vendor: tuple[str, ...] = ()


# The commands that the shim answers, with their aliases. The real claude has the same aliases.
LOCAL_COMMANDS: Mapping[OfferedCommand, tuple[str, ...]] = {
    OfferedCommand("clear", "Start a new session with an empty context"): ("reset", "new"),
    OfferedCommand("compact", "Summarize the conversation to free context", "[instructions]"): (),
    OfferedCommand("context", "Show the size of the context"): (),
    OfferedCommand("usage", "Show the cost and the usage of the session"): ("cost",),
}


def describe_local_commands() -> list[dict[str, Any]]:
    """Return the entries of the shim's own commands in the answer to `initialize`."""
    entries = []
    for command, aliases in LOCAL_COMMANDS.items():
        entry = command.to_json()
        if aliases:
            entry["aliases"] = list(aliases)
        entries.append(entry | {"builtin": True})
    return entries


def parse_offered_commands(entries: object) -> tuple[OfferedCommand, ...]:
    """Parse a vendor's list of commands, which are names or objects. Entries without a usable name
    are left out.
    """
    commands: dict[str, OfferedCommand] = {}
    for entry in as_list(entries)[:MAX_OFFERED_COMMANDS]:
        fields = as_dict(entry)
        if isinstance(entry, str):
            fields = {"name": entry}
        name = get_text(fields, "name")
        if not name or len(name) > MAX_NAME_CHARS:
            continue
        hint = get_text(as_dict(fields.get("input")), "hint")
        commands[name] = OfferedCommand(
            name,
            get_text(fields, "description")[:MAX_TEXT_CHARS],
            get_text(fields, "argument_hint", hint)[:MAX_TEXT_CHARS],
        )
    return tuple(commands.values())
