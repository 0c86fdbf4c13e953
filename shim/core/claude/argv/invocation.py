"""What one command line asks for. A flag that was not given leaves None, False or ().

The fields have the names of the table of flags (`parse.FLAGS`); those that belong together stand in
a group.
"""

from shim.core.reading.typed import Any, NamedTuple

FlagPairs = tuple[tuple[str, str | None], ...]


class StreamFormatFlags(NamedTuple):
    """What is read from stdin, and what is printed on stdout."""

    input_format: str = "text"
    output_format: str = "text"
    verbose: bool = False
    partial: bool = False
    replay_user_messages: bool = False


class SessionFlags(NamedTuple):
    """Which session the turn belongs to. `resume` is "" without a value, and canonical if it is a
    UUID.

    `background` lets the session live on its own; then `session_id` is any text, which is ignored.
    `name` is what people call the session. `resume_session_at` and `resume_drops_turn` name the
    message up to which it goes on.
    """

    session_id: str | None = None
    resume: str | None = None
    continue_last: bool = False
    fork_session: bool = False
    resume_session_at: str | None = None
    resume_drops_turn: str | None = None
    no_session_persistence: bool = False
    background: bool = False
    name: str | None = None


class SystemPromptFlags(NamedTuple):
    """What the model is told before the conversation: in place of the vendor's own text, or behind
    it.
    """

    system_prompt: str | None = None
    system_prompt_file: str | None = None
    append_system_prompt: str | None = None
    append_system_prompt_file: str | None = None


class ToolFlags(NamedTuple):
    """Which tools there are, and which of their calls run unasked or never. `tools` is None for
    all, () for none.
    """

    tools: tuple[str, ...] | None = None
    allowed_tools: tuple[str, ...] = ()
    disallowed_tools: tuple[str, ...] = ()


class PermissionFlags(NamedTuple):
    """The permission mode, and who is asked."""

    permission_mode: str | None = None
    permission_prompts: str | None = None
    permission_prompt_tool: str | None = None
    skip_permissions: bool = False
    allow_skip_permissions: bool = False
    restricted: bool = False


class TurnLimits(NamedTuple):
    """How much a turn may take. `max_turns` is None for no limit."""

    max_turns: int | None = None
    max_budget_usd: float | None = None
    max_thinking_tokens: int | None = None
    thinking: str | None = None
    effort: str | None = None


class McpAndSettingsFlags(NamedTuple):
    """MCP servers and settings, each as JSON or the path of a file."""

    mcp_config: tuple[str, ...] = ()
    strict_mcp_config: bool = False
    settings: str | None = None
    setting_sources: str | None = None


class ShimFlags(NamedTuple):
    """The flags of the shim itself."""

    shim_vendor: str | None = None
    shim_record: str | None = None
    shim_dialect: str | None = None
    shim_terminator: str | None = None
    shim_config: str | None = None
    shim_log: str | None = None
    shim_explain: bool | None = None


class UnrecognizedFlags(NamedTuple):
    """What no field has a place for.

    swallowed   (flag, word) when there is no prompt, and a flag that takes many words may have
                taken it (P6)
    other       Claude's flags without a field, as (flag, value) in their order
    unknown     all other flags, likewise
    glued       arguments with a known flag, a space and more text, such as "--tools Read"; they are
                treated as text
    """

    swallowed: tuple[str, str] | None = None
    other: FlagPairs = ()
    unknown: FlagPairs = ()
    glued: tuple[str, ...] = ()


class Invocation(NamedTuple):
    """One command line.

    prompt            the first word that belongs to no flag; None and "" are both no prompt, and
                      with stream-json
                      input it has no meaning (contract P7)
    print_mode        `-p` was given; without it we print all the same, the SDKs never pass it (P3)
    subcommand_args   the words behind the subcommand, as they came
    """

    prompt: str | None = None
    print_mode: bool = False
    model: str | None = None
    fallback_model: str | None = None
    json_schema: str | None = None
    add_dirs: tuple[str, ...] = ()
    streams: StreamFormatFlags = StreamFormatFlags()
    session: SessionFlags = SessionFlags()
    system: SystemPromptFlags = SystemPromptFlags()
    rules: ToolFlags = ToolFlags()
    permissions: PermissionFlags = PermissionFlags()
    limits: TurnLimits = TurnLimits()
    configuration: McpAndSettingsFlags = McpAndSettingsFlags()
    shim_flags: ShimFlags = ShimFlags()
    version: bool = False
    help: bool = False
    subcommand: str | None = None
    subcommand_args: tuple[str, ...] = ()
    other_flags: UnrecognizedFlags = UnrecognizedFlags()

    def get_flag_value(self, field: str) -> Any:
        """The value of a field of this name, here or in a group."""
        group = _GROUP_OF_FIELD.get(field)
        return getattr(self if group is None else getattr(self, group), field)

    def with_flags(self, **flags: Any) -> "Invocation":
        """The same command line with other values of these fields. ValueError for a name that no
        field has.
        """
        fields: dict[str, Any] = {}
        for field, value in flags.items():
            group = _GROUP_OF_FIELD.get(field)
            if group is None:
                fields[field] = value
            else:
                fields[group] = fields.get(group, getattr(self, group))._replace(**{field: value})
        return self._replace(**fields)


_GROUP_OF_FIELD = {
    field: name
    for name, group in Invocation()._asdict().items()
    for field in getattr(group, "_fields", ())
}
