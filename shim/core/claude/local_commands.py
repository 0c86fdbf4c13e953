"""Claude's commands that are answered without the model: /clear, /compact, /context and /cost.

The answers have the real claude's format. They contain only numbers that the vendor has reported.
"""

from collections.abc import Mapping

from shim.core.claude.messages import UserMessage, split_command_text
from shim.core.claude.offered_commands import LOCAL_COMMANDS
from shim.core.reading.typed import Any, NamedTuple

# The kinds of commands: the names of LOCAL_COMMANDS.
CLEAR = "clear"
COMPACT = "compact"
CONTEXT = "context"
USAGE = "usage"

# The kind of each command, by its name or alias.
COMMAND_KINDS = {
    name: command.name
    for command, aliases in LOCAL_COMMANDS.items()
    for name in (command.name, *aliases)
}

NOTHING_TO_COMPACT_TEXT = "There are no messages to compact"
NO_COMPACTION_TEXT = "{vendor} cannot compact its context on request"
COMPACTION_BLOCKED_TEXT = "Compaction blocked by PreCompact hook: {reason}"
DISABLED_TEXT = "/{name} is disabled by --disable-slash-commands"


class LocalCommand(NamedTuple):
    """A command of Claude that the shim answers.

    name       the name as the user typed it
    kind       CLEAR, COMPACT, CONTEXT or USAGE
    arguments  the text after the name
    """

    name: str
    kind: str
    arguments: str


def parse_local_command(message: UserMessage) -> LocalCommand | None:
    """Return the command in a message, or None for any other message.

    As in the real claude, the message must consist of a single text that begins with the command.
    """
    if not message.text.startswith("/"):
        return None
    content = message.raw_message.get("content")
    if isinstance(content, list) and len(content) != 1:
        return None
    name, arguments = split_command_text(message.text)
    if message.text[1:2].isspace() or name not in COMMAND_KINDS:
        return None
    return LocalCommand(name, COMMAND_KINDS[name], arguments)


def format_context_report(usage: Mapping[str, Any]) -> str:
    """Return the answer to /context. `usage` is the response to `get_context_usage`."""
    window_tokens = usage["rawMaxTokens"]
    rows = "\n".join(
        f"| {category['name']} | {_format_tokens(category['tokens'])} | "
        f"{100 * category['tokens'] / window_tokens:.1f}% |"
        for category in usage["categories"]
    )
    used = f"{_format_tokens(usage['totalTokens'])} / {_format_tokens(window_tokens)}"
    return (
        "## Context Usage\n\n"
        f"**Model:** {usage['model']}  \n"
        f"**Tokens:** {used} ({usage['percentage']}%)\n\n"
        "### Estimated usage by category\n\n"
        "| Category | Tokens | Percentage |\n"
        "|----------|--------|------------|\n"
        f"{rows}"
    )


def _format_tokens(count: int) -> str:
    """Return a token count as the real claude shortens it: 950, 3.1k, 1m."""
    for unit, size in (("m", 1_000_000), ("k", 1000)):
        if count >= size:
            return f"{count / size:.1f}".removesuffix(".0") + unit
    return str(count)
