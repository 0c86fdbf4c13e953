"""An Invocation → the words of Claude's command line again: for a conversation that another process runs."""

from shim.core.claude.argv.invocation import Invocation
from shim.core.claude.argv.parse import FLAGS, parse
from shim.core.reading.typed import Any

BEGINNING = ("resume_session_at", "resume_drops_turn")  # where in its session a life begins: no later one does so
# What is not the conversation's own: who asks it what and in which form, which session it is, how our run of it is
# recorded and explained.
OF_THE_FRONTEND = frozenset((
    *("print_mode", "output_format", "input_format", "verbose", "partial", "replay_user_messages"),
    *("session_id", "resume", "continue_last", "fork_session", "permission_prompt_tool"),
    *BEGINNING,
    *("shim_terminator", "shim_explain", "version", "help", "background", "name"),
))  # fmt: skip

# What keeps a conversation from something, and holds in a copy of it too. A mode does where it is no wider than that
# of a conversation without flags.
FORBIDDING = (
    *("disallowed_tools", "tools", "restricted", "strict_mcp_config", "max_turns", "max_budget_usd"),
    *("settings", "setting_sources"),
)
FORBIDDING_OTHERS = (
    *("--agent", "--agents", "--bare", "--disable-slash-commands", "--managed-settings", "--safe-mode"),
    "--task-budget",
)
NARROW_MODES = ("plan", "dontAsk", "default", "manual")


def conversation_words(invocation: Invocation, without: frozenset[str] = OF_THE_FRONTEND) -> list[str]:
    """The words that mean the same conversation, without its prompt and without the fields `without`."""
    words: list[str] = []
    for field in FLAGS:
        if field != "other" and field not in without:
            words += _of_field(field, invocation.flag(field))
    for name, value in invocation.leftovers.other:
        words += _spelled(name, _OTHER[name], value)
    words += [name if value is None else f"{name}={value}" for name, value in invocation.leftovers.unknown]
    return words


def beginning_words(invocation: Invocation) -> list[str]:
    """The words that say up to which message of its session, or of the one that it is a copy of, a life goes on."""
    return [word for field in BEGINNING for word in _of_field(field, invocation.flag(field))]


def going_on_with(begun: Invocation, asked: Invocation) -> Invocation:
    """The next life of a session that has ended: the flags that it was begun with, and behind them those of now.

    A flag that is left out now takes nothing back: what the session was forbidden stays so.
    """
    saved = conversation_words(begun)
    both = parse([*saved, *conversation_words(asked)])
    lists = {field: both.flag(field) for field in FLAGS if field != "other" and isinstance(both.flag(field), tuple)}
    lists |= {"other": both.leftovers.other, "unknown": both.leftovers.unknown}
    # The last of the same words stays, so that what was said now is behind what was said before.
    once: dict[str, Any] = {field: tuple(dict.fromkeys(words[::-1]))[::-1] for field, words in lists.items()}
    if begun.rules.tools is not None and asked.rules.tools is not None:
        once["tools"] = tuple(tool for tool in asked.rules.tools if tool in begun.rules.tools)
    if asked.permissions.permission_mode is not None and not asked.permissions.skip_permissions:
        once["skip_permissions"] = False
    return both.with_flags(**once)._replace(prompt=asked.prompt, session=asked.session)


def forbidden(begun: Invocation) -> Invocation:
    """What the flags of a session forbid, without what they allow: for a copy of it."""
    kept: dict[str, Any] = {field: begun.flag(field) for field in FORBIDDING}
    if begun.permissions.permission_mode in NARROW_MODES and not begun.permissions.skip_permissions:
        kept["permission_mode"] = begun.permissions.permission_mode
    if begun.configuration.strict_mcp_config:
        kept["mcp_config"] = begun.configuration.mcp_config
    others = tuple(one for one in begun.leftovers.other if one[0] in FORBIDDING_OTHERS)
    return Invocation().with_flags(**kept, other=others)


def _of_field(field: str, value: object) -> list[str]:
    name, arity = _spelling(FLAGS[field])
    if value is None or value is False or (value == () and field != "tools"):
        return []
    if isinstance(value, tuple):  # no tool is not every tool
        return [f"{name}={one}" for one in value] or [f"{name}="]
    return _spelled(name, arity, None if value is True else str(value))


def _spelled(name: str, arity: str, value: str | None) -> list[str]:
    if value is None:
        return [name]
    return [name, value] if arity == "<" else [f"{name}={value}"]


def _spelling(flag: str) -> tuple[str, str]:
    """The first long name of a row, and what it takes: "<" one word, "[" maybe one, "..." many, "-" none."""
    words = flag.split()
    name = next(word.rstrip(",") for word in words if word.startswith("--"))
    return name, "..." if words[-1].endswith("...>") else words[-1][0]


_OTHER = dict(_spelling(flag) for flag in FLAGS["other"].replace("\n", "|").split("|") if flag.strip())
