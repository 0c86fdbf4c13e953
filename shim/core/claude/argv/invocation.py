"""The parsed options of a command line."""

from shim.core.reading.typed import NamedTuple

FlagPairs = tuple[tuple[str, str | None], ...]


class Invocation(NamedTuple):
    """The parsed options of a command line. The default of an option that was not passed is None,
    False or ().

    The fields are named after the rows of `flags.FLAGS`.
    """

    # The first argument that does not belong to a flag. None and "" both mean that there is no
    # prompt. With stream-json input, the prompt is ignored (contract P7).
    prompt: str | None = None
    # Whether `-p` was passed. The shim always works as with `-p`, because SDKs never pass it (P3).
    print_mode: bool = False
    model: str | None = None
    fallback_model: str | None = None
    json_schema: str | None = None
    add_dirs: tuple[str, ...] = ()
    # stdin and stdout
    input_format: str = "text"
    output_format: str = "text"
    verbose: bool = False
    partial: bool = False
    replay_user_messages: bool = False
    # The session. With `background`, `session_id` may be any text and is ignored.
    session_id: str | None = None
    resume: str | None = None  # "" for the flag without a value; UUIDs are in canonical form
    continue_last: bool = False
    fork_session: bool = False
    resume_session_at: str | None = None  # the last message that the resumed session keeps
    resume_drops_turn: str | None = None
    no_session_persistence: bool = False
    background: bool = False  # start a background session
    name: str | None = None  # the display name of the session
    machine: str | None = None  # the machine on which the background session is started
    cwd: str | None = None  # the session's folder on that machine
    system_prompt: str | None = None
    system_prompt_file: str | None = None
    append_system_prompt: str | None = None
    append_system_prompt_file: str | None = None
    # tools and permissions
    tools: tuple[str, ...] | None = None  # None for all tools, () for none
    allowed_tools: tuple[str, ...] = ()
    disallowed_tools: tuple[str, ...] = ()
    permission_mode: str | None = None
    permission_prompts: str | None = None
    permission_prompt_tool: str | None = None
    skip_permissions: bool = False
    allow_skip_permissions: bool = False
    restricted: bool = False
    # limits of a turn
    max_turns: int | None = None  # None for no limit
    max_budget_usd: float | None = None
    max_thinking_tokens: int | None = None
    thinking: str | None = None
    effort: str | None = None
    # MCP servers and settings, each as JSON or as the path of a file
    mcp_config: tuple[str, ...] = ()
    strict_mcp_config: bool = False
    settings: str | None = None
    setting_sources: str | None = None
    # the shim's own flags
    shim_vendor: str | None = None
    shim_record: str | None = None
    shim_dialect: str | None = None
    shim_terminator: str | None = None
    shim_config: str | None = None
    shim_log: str | None = None
    shim_explain: bool | None = None
    version: bool = False
    help: bool = False
    subcommand: str | None = None
    subcommand_args: tuple[str, ...] = ()  # the arguments after the subcommand
    # Only set without a prompt: the last flag that takes several values, and its last argument. The
    # user may have meant that argument as the prompt (P6).
    swallowed_prompt: tuple[str, str] | None = None
    other_flags: FlagPairs = ()  # Claude's flags that have no field here, in argument order
    unknown_flags: FlagPairs = ()  # all other flags, in argument order
    # Single arguments that contain a known flag, a space and more text, such as "--tools Read".
    # They are treated as text.
    glued_flags: tuple[str, ...] = ()
