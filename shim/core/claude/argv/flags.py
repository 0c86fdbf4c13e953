"""Parses Claude's command line into an Invocation (contract sections 1, 4, 10 and 11).

`Invocation` has a field for each row of `FLAGS`.
"""

from collections.abc import Sequence

from shim.core.dialects import DIALECTS, resolve_dialect
from shim.core.errors import CliArgumentError, FrontendError, format_spelling_suggestion
from shim.core.reading.typed import Any, NamedTuple
from shim.core.reading.values import validate_uuid

FlagPairs = tuple[tuple[str, str | None], ...]


class Invocation(NamedTuple):
    """The parsed options of a command line. The default of an option that was not passed is None,
    False or ().

    The fields are named after the rows of `FLAGS`.
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


# The flag for each field of Invocation, spelled as in Claude's help. The spelling also defines how
# the flag is parsed:
#   no value     a switch
#   <value>      always takes the next argument
#   [value]      takes the next argument unless it begins with a dash
#   <value...>   takes one argument like <value>, then all arguments until the next flag or `--`
# Error messages quote the spelling. Contract 10 does not describe the values of every flag. The
# others were taken from published help texts and option tables (2.1.26x to 2.1.29x). The shim's own
# flags are in the same table, so that an argument that Claude's parser takes as a value or as text
# never counts as a shim flag.
FLAGS = {
    "print_mode": "-p, --print",
    "output_format": "--output-format <format>",
    "input_format": "--input-format <format>",
    "verbose": "--verbose",
    "partial": "--include-partial-messages",
    "replay_user_messages": "--replay-user-messages",
    "model": "--model <model>",
    "fallback_model": "--fallback-model <model>",
    "session_id": "--session-id <uuid>",
    "resume": "-r, --resume [value]",
    "continue_last": "-c, --continue",
    "fork_session": "--fork-session",
    "resume_session_at": "--resume-session-at <uuid>",
    "resume_drops_turn": "--resume-drops-turn <uuid>",
    "no_session_persistence": "--no-session-persistence",
    "background": "--bg, --background",
    "name": "-n, --name <name>",
    "machine": "--machine <name>",
    "cwd": "--cwd <path>",
    "system_prompt": "--system-prompt <prompt>",
    "system_prompt_file": "--system-prompt-file <file>",
    "append_system_prompt": "--append-system-prompt <prompt>",
    "append_system_prompt_file": "--append-system-prompt-file <file>",
    "allowed_tools": "--allowedTools, --allowed-tools <tools...>",
    "disallowed_tools": "--disallowedTools, --disallowed-tools <tools...>",
    "tools": "--tools <tools...>",
    "permission_mode": "--permission-mode <mode>",
    "permission_prompts": "--permission-prompts <target>",
    "permission_prompt_tool": "--permission-prompt-tool <tool>",
    "skip_permissions": "--dangerously-skip-permissions",
    "allow_skip_permissions": "--allow-dangerously-skip-permissions",
    "restricted": "--restricted",
    "max_turns": "--max-turns <turns>",
    "max_budget_usd": "--max-budget-usd <amount>",
    "max_thinking_tokens": "--max-thinking-tokens <tokens>",
    "thinking": "--thinking <mode>",
    "effort": "--effort <level>",
    "add_dirs": "--add-dir <directories...>",
    "mcp_config": "--mcp-config <configs...>",
    "strict_mcp_config": "--strict-mcp-config",
    "settings": "--settings <file-or-json>",
    "setting_sources": "--setting-sources <sources>",
    "json_schema": "--json-schema <schema>",
    "version": "-v, --version",
    "help": "-h, --help",
    "shim_vendor": "--shim-vendor <name>",
    "shim_record": "--shim-record <path>",
    "shim_dialect": "--shim-dialect <name>",
    "shim_terminator": "--shim-terminator <name>",
    "shim_config": "--shim-config <file>",
    "shim_log": "--shim-log <level>",
    "shim_explain": "--shim-explain",
    # Claude's flags that have no field in Invocation. The parser needs them so that it does not
    # mistake their values for the prompt.
    "other_flags": """
        --advisor <model> | --agent <agent> | --agent-color <color> | --agent-id <id> | --agent-name <name>
        --agent-type <type> | --agents <json> | --allow-other-models | --append-subagent-system-prompt <prompt>
        --append-subagent-system-prompt-file <file> | --autocompact <window> | --await-initialize
        --ax-screen-reader | --bare | --betas <betas...> | --brief | --channels <servers...> | --chrome
        --client-data-url <url> | --cloud [value] | --correlation-id <id>
        --dangerously-load-development-channels <servers...> | --debug-file <path> | --debug-to-stderr | --desktop
        --disable-slash-commands | --enable-auth-status | --enable-auto-mode | --environment <id>
        --fast-mode <state> | --exclude-dynamic-system-prompt-sections | --file <specs...> | --forward-subagent-text
        --from-pr [value] | --host-auth-is-org-sign-in | --ide | --include-hook-events
        --include-unsupported-models | --init | --initialize-fields <fields> | --maintenance
        --managed-settings <settings> | --managed-settings-in-initialize | --messaging-socket-path <path>
        --metadata <pair> | --no-chrome | --parent-session-id <id> | --plan-mode-instructions <text>
        --plugin-dir-no-mcp <path> | --prefill <text> | --proactivity <level> | --plugin-dir <path>
        --plugin-url <url> | --project-config-root <path> | --prompt-suggestions [value]
        --remote-control, --rc [name] | --remote-control-session-name-prefix <prefix> | --reply-on-resume
        --safe-mode | --sdk-url <url> | --session-mirror | --system-prompt-snapshot <mode> | --task-budget <tokens>
        --team-name <name> | --teammate-mode <mode> | --teleport [session] | --thinking-display <display> | --tmux
        --workload <tag> | -d, --debug [filter] | -w, --worktree [name]
    """,
}

MAX_FLAG_CHARS = 60  # no known flag is longer; further characters are ignored and not printed
SHIM_FLAG_PREFIX = "--shim-"  # the prefix of the shim's own flags
# The allowed values of a field, in the order in which Claude's error lists them. The permission
# mode `default` is also accepted, although Claude's error does not list it (contract 10).
FLAG_CHOICES = {
    "output_format": ("text", "json", "stream-json"),
    "input_format": ("text", "stream-json"),
    "permission_mode": ("acceptEdits", "auto", "bypassPermissions", "manual", "dontAsk", "plan"),
    "shim_dialect": tuple(DIALECTS),
    "shim_terminator": ("auto", "message_stop", "dollar", "none"),
}

# Claude's subcommands. Without `-p`, they must not be taken for a prompt, because a prompt starts a
# vendor (contract F11b). Measured with 2.1.329 and 2.1.330. A name in SUBCOMMANDS is also
# recognized after other options. A name in FIRST_ARG_SUBCOMMANDS is only recognized as the first
# argument.
SUBCOMMANDS = frozenset((
    *("agents", "auth", "auto-mode", "bridge", "code", "doctor", "gateway", "import", "install", "mcp", "plugin"),
    *("plugins", "project", "purge", "rc", "remote", "remote-control", "self-hosted-runner", "setup-token", "sync"),
    *("ultrareview", "update", "upgrade"),
))  # fmt: skip
FIRST_ARG_SUBCOMMANDS = frozenset(("attach", "daemon", "kill", "logs", "respawn", "rm", "stop"))
# A subcommand of older Claude versions that programs still use. Without one of its actions, current
# versions treat the word as a prompt.
CONFIG_SUBCOMMAND = "config"
CONFIG_ACTIONS = frozenset(("add", "get", "list", "ls", "remove", "rm", "set", "unset"))
ALL_SUBCOMMANDS = SUBCOMMANDS | FIRST_ARG_SUBCOMMANDS | {CONFIG_SUBCOMMAND}


def parse_argv(argv: Sequence[str], *, dialect: str = "claude") -> Invocation:
    """Parse command-line arguments, without the program's name. `dialect` is the default dialect.

    Raise FrontendError with Claude's own error text (contract 11) if the real claude would refuse
    the arguments. An unknown flag (P5) and a missing `--verbose` (F2) are never errors.
    `--version`, `--help` and subcommands are accepted even if other arguments are invalid (P1).
    """
    parser = _ArgvParser()
    parser.parse(argv)
    prompt = parser.select_prompt()
    lists = {name: tuple(values) for name, values in parser.list_fields.items()}
    fields = parser.fields | lists
    if set(fields.get("tools", ())) == {"default"}:
        del fields["tools"]
    requested_id = fields.get("session_id")
    if requested_id is not None and not fields.get("background"):
        fields["session_id"] = validate_uuid(requested_id)
    resume = fields.get("resume")
    if resume is not None:
        fields["resume"] = validate_uuid(resume.strip()) or resume
    if not prompt:
        fields["swallowed_prompt"] = parser.swallowed_prompt
    invocation = Invocation(prompt, **fields)
    if (
        invocation.background
        and invocation.print_mode
        and not (invocation.version or invocation.subcommand)
    ):
        raise CliArgumentError(PRINT_BACKGROUND_CONFLICT)
    if not (invocation.version or invocation.help or invocation.subcommand):
        accepts_other_modes = resolve_dialect(invocation.shim_dialect or dialect).accepts_mode_names
        for error in parser.errors:
            if not (accepts_other_modes and isinstance(error, UnknownPermissionModeError)):
                raise error
            # The dialect accepts permission modes that Claude does not have (Yume's R15).
            invocation = invocation._replace(permission_mode=error.mode)
        _check_flag_combinations(invocation, requested_id)
    return invocation


def check_resume_flags(invocation: Invocation) -> None:
    """Raise FrontendError if the flags name a resume point but no session to resume.

    The host of a background session skips this check, because it adds `--resume` itself.
    """
    if invocation.resume_drops_turn is not None and invocation.resume_session_at is None:
        raise FrontendError("Error: --resume-drops-turn requires --resume-session-at")
    if invocation.resume_session_at is not None and invocation.resume is None:
        raise FrontendError("Error: --resume-session-at requires --resume")


def check_machine_flags(invocation: Invocation) -> None:
    """Raise FrontendError if `--machine` or `--cwd` is used without the flags that it needs."""
    if invocation.machine is not None and not invocation.background:
        raise FrontendError("Error: --machine requires --bg")
    if invocation.cwd is not None and invocation.machine is None:
        raise FrontendError("Error: --cwd requires --machine")


def split_tool_rules(text: str) -> list[str]:
    """Split a list of tool rules at commas and spaces, but not inside parentheses.

    `Bash(git log:*, git diff:*),Read` is split into two rules. An empty text has no rules.
    """
    # Parentheses may be nested if they are balanced. Otherwise the first `)` ends a rule, so that
    # an unmatched `(` breaks only one rule, and not every denied tool after it.
    is_balanced = text.count("(") == text.count(")")
    entries = []
    start = 0
    depth = 0
    for position, character in enumerate(text):
        if character == "(":
            if is_balanced:
                depth = depth + 1
            else:
                depth = 1
        elif character == ")":
            depth = max(depth - 1, 0)
        elif depth == 0 and (character == "," or character.isspace()):
            entries.append(text[start:position])
            start = position + 1
    entries.append(text[start:])
    return [entry for entry in entries if entry]


_MAX_DIGITS = 15  # enough for any number of turns or tokens; int() refuses more than 4,300 digits

_SWITCH, SINGLE_VALUE, _OPTIONAL, _MANY = range(4)


class Flag(NamedTuple):
    """A command-line flag: one entry of FLAGS."""

    field: str
    spelling: str
    names: tuple[str, ...]
    name: str  # the first long name
    arity: int


def _parse_flag(field: str, spelling: str) -> Flag:
    tokens = spelling.split()
    names = tuple(token.rstrip(",") for token in tokens if token[0] == "-")
    arity = {"<": SINGLE_VALUE, "[": _OPTIONAL}.get(tokens[-1][0], _SWITCH)
    if tokens[-1].endswith("...>"):
        arity = _MANY
    return Flag(field, spelling, names, next(name for name in names if name[1] == "-"), arity)


ALL_FLAGS = tuple(
    _parse_flag(field, spelling.strip())
    for field, spellings in FLAGS.items()
    for spelling in spellings.strip().replace("\n", "|").split("|")
)
FLAG_BY_NAME = {name: flag for flag in ALL_FLAGS for name in flag.names}
FLAG_BY_FIELD = {flag.field: flag for flag in ALL_FLAGS if flag.field != "other_flags"}


class UnknownPermissionModeError(FrontendError):
    mode = ""


class _ArgvParser:
    """Parses command-line arguments in one pass. Errors are collected instead of raised, because a
    later `--version` takes precedence (P1).
    """

    __slots__ = ("errors", "fields", "list_fields", "operands", "swallowed_prompt")

    def __init__(self) -> None:
        self.fields: dict[str, Any] = {}
        self.list_fields: dict[str, list[Any]] = {"other_flags": [], "unknown_flags": []}
        # Arguments that belong to no known flag. Each entry also has the index of the unknown flag
        # directly before the argument, or None.
        self.operands: list[tuple[str, int | None]] = []
        self.swallowed_prompt: tuple[str, str] | None = None
        self.errors: list[FrontendError] = []

    def parse(self, argv: Sequence[str]) -> None:
        remaining = list(reversed(argv))
        list_flag: tuple[str, Flag] | None = None
        unknown_index: int | None = None
        only_shim_flags = has_no_operand = True
        while remaining:
            argument = remaining.pop()
            if argument == "--":
                self.operands += [(operand, None) for operand in reversed(remaining)]
                return
            if not _is_flag_like(argument):
                if list_flag:
                    self._store_value(list_flag[1], argument)
                    self.swallowed_prompt = (list_flag[0], argument)
                elif (
                    has_no_operand
                    and unknown_index is None
                    and self._is_subcommand(argument, remaining, is_first=only_shim_flags)
                ):
                    self._store_subcommand(argument, remaining[::-1])
                    return
                else:
                    self.operands.append((argument, unknown_index))
                    has_no_operand = False
                    unknown_index = None
                continue
            name, flag, value = self._resolve_flag(argument)
            list_flag = unknown_index = None
            if flag is None or not flag.field.startswith("shim_"):
                only_shim_flags = False
            if flag is not None:
                if flag.arity == _MANY and value is None:
                    list_flag = (name, flag)
                try:
                    self._store_value(
                        flag, self._take_value(flag, remaining) if value is None else value
                    )
                except FrontendError as error:
                    self.errors.append(error)
            elif _has_space(name):
                if name.startswith("--") and name.split()[0] in FLAG_BY_NAME:
                    self.list_fields.setdefault("glued_flags", []).append(argument)
                self.operands.append((argument, None))
            elif name.startswith(SHIM_FLAG_PREFIX):
                self.errors.append(_build_unknown_option_error(name))
            else:
                unknown_index = None
                if value is None:
                    unknown_index = len(self.list_fields["unknown_flags"])
                self.list_fields["unknown_flags"].append((name, value))

    def select_prompt(self) -> str | None:
        """Return the prompt: the first operand that is not the value of an unknown flag.

        An operand directly after an unknown flag counts as the flag's value if there is another
        operand for the prompt.
        """
        unknown_flags = self.list_fields["unknown_flags"]
        prompt_text = None
        for position, (operand, unknown_index) in enumerate(self.operands, start=1):
            if unknown_index is not None and (
                prompt_text is not None or position < len(self.operands)
            ):
                unknown_flags[unknown_index] = (unknown_flags[unknown_index][0], operand)
            elif prompt_text is None:
                prompt_text = operand
        return prompt_text

    def _resolve_flag(self, argument: str) -> tuple[str, Flag | None, str | None]:
        """Split an argument into a flag and a value. Return the flag's name as typed, the known
        flag or None, and the value or None.
        """
        if argument in FLAG_BY_NAME:
            return argument, FLAG_BY_NAME[argument], None
        if argument.startswith("--"):
            name, equals, value = argument.partition("=")
            flag = FLAG_BY_NAME.get(name)
            return name, None if flag and flag.arity == _SWITCH else flag, value if equals else None
        # `-pc` is two switches, and `-rU` is a flag with its value. An argument with a space is
        # neither: it may be a Markdown list that begins with a dash.
        position = 1
        if _has_space(argument):
            position = len(argument)
        while flag := FLAG_BY_NAME.get("-" + argument[position : position + 1]):
            if flag.arity != _SWITCH or position == len(argument) - 1:
                return flag.name, flag, argument[position + 1 :] or None
            self._store_value(flag, None)
            position += 1
        return argument, None, None

    def _take_value(self, flag: Flag, remaining: list[str]) -> str | None:
        """Remove a flag's value from the remaining arguments and return the value. The rules are
        the same as in commander, the parser that Claude uses.
        """
        if flag.arity == _SWITCH or (
            flag.arity == _OPTIONAL and (not remaining or _is_flag_like(remaining[-1]))
        ):
            return None
        if not remaining:
            raise FrontendError(f"error: option '{flag.spelling}' argument missing")
        return remaining.pop()

    def _store_value(self, flag: Flag, value: str | None) -> None:
        if flag.field == "other_flags":
            self.list_fields["other_flags"].append((flag.name, value))
        elif flag.arity == _SWITCH:
            self.fields[flag.field] = True
        else:
            self._store_text(flag, value or "")

    def _store_text(self, flag: Flag, text: str) -> None:
        if flag.arity != _MANY:
            self.fields[flag.field] = _convert_value(flag, text)
            return
        values = [text]
        if flag.field.endswith("tools"):
            values = split_tool_rules(text)
        self.list_fields.setdefault(flag.field, []).extend(values)

    def _is_subcommand(self, argument: str, remaining: list[str], *, is_first: bool) -> bool:
        if argument == CONFIG_SUBCOMMAND:
            if not is_first:
                return False
            if not remaining:
                return False
            return remaining[-1] in CONFIG_ACTIONS
        if is_first and argument in FIRST_ARG_SUBCOMMANDS:
            return True
        if argument not in SUBCOMMANDS:
            return False
        return not self.fields.get("print_mode")

    def _store_subcommand(self, name: str, args: list[str]) -> None:
        options = args
        if "--" in args:
            options = args[: args.index("--")]
        asks_for_version = not {"-v", "--version"}.isdisjoint(options)
        self.fields |= {
            "subcommand": name,
            "subcommand_args": tuple(args),
            "version": asks_for_version,
        }


def _is_flag_like(argument: str) -> bool:
    """Return whether Claude's parser treats an argument as a flag. A single `-` does not count as a
    flag.
    """
    if len(argument) <= 1:
        return False
    return argument[0] == "-"


def _build_unknown_option_error(name: str) -> FrontendError:
    """Return the error for an unknown `--shim-` flag. Other unknown flags are accepted, because
    Claude has flags that the shim does not know.
    """
    shim_flags = [flag for flag in FLAG_BY_NAME if flag.startswith(SHIM_FLAG_PREFIX)]
    hint = f"the shim's options are {', '.join(shim_flags)}"
    return FrontendError(
        f"error: unknown option '{name}'{format_spelling_suggestion(name, shim_flags)}", hint
    )


def _has_space(name: str) -> bool:
    return name.split() != [name]


def _convert_value(flag: Flag, value: str) -> object:
    field = flag.field
    if (
        field in FLAG_CHOICES
        and value not in FLAG_CHOICES[field]
        and (field, value) != ("permission_mode", "default")
    ):
        extra_hint = ""
        if field == "permission_mode":
            extra_hint = " `default` is allowed too: the vendor's own mode"
        hint = (format_spelling_suggestion(value, FLAG_CHOICES[field], "") + extra_hint).strip()
        raise _build_invalid_value_error(
            flag, value, f"Allowed choices are {', '.join(FLAG_CHOICES[field])}.", hint
        )
    if field in ("max_turns", "max_thinking_tokens"):
        if not (value.isascii() and value.isdigit() and len(value) <= _MAX_DIGITS):
            raise _build_invalid_value_error(
                flag, value, "must be a number", "use a whole number, digits only"
            )
        count = int(value)
        if field == "max_turns" and count == 0:
            return None
        return count
    if field == "max_budget_usd" and not _parse_amount(value):
        raise _build_invalid_value_error(
            flag, value, "--max-budget-usd must be a positive number greater than 0"
        )
    if field == "max_budget_usd":
        return _parse_amount(value)
    return value


def _build_invalid_value_error(
    flag: Flag, value: str, reason: str, hint: str = ""
) -> FrontendError:
    text = f"error: option '{flag.spelling}' argument '{value}' is invalid. {reason}"
    if flag.field != "permission_mode":
        return FrontendError(text, hint)
    error = UnknownPermissionModeError(text, hint)
    error.mode = value
    return error


def _parse_amount(text: str) -> float:
    """Parse a positive, finite number. Return 0.0 for any other text."""
    try:
        amount = 0.0
        if "_" not in text:
            amount = float(text)
    except ValueError:
        return 0.0
    if 0 < amount < float("inf"):
        return amount
    return 0.0


# Claude's own error text. Claude also prints the text before its help (B7).
PRINT_BACKGROUND_CONFLICT = (
    "--bg and --print conflict: --print never starts the interactive session that `claude agents` attaches to, so the "
    "job would be unattachable. The prompt is the positional — drop --print: `claude --bg '<task>'`."
)


def _check_flag_combinations(invocation: Invocation, requested_id: str | None) -> None:
    """Raise FrontendError if valid flags are combined in an invalid way (contract F3, F6). The
    checks run in Claude's order.
    """
    if invocation.background:  # a background session has its own id and streams
        return
    resumes_session = invocation.resume is not None
    if not resumes_session:
        resumes_session = invocation.continue_last
    has_stream_input = invocation.input_format == "stream-json"
    has_stream_output = invocation.output_format == "stream-json"
    if requested_id is not None and resumes_session and not invocation.fork_session:
        raise FrontendError(
            "Error: --session-id with --continue or --resume also needs --fork-session."
        )
    if requested_id is not None and invocation.session_id is None:
        hint = "a UUID is 32 hexadecimal digits in groups of 8-4-4-4-12"
        raise FrontendError("Error: Invalid session ID. Must be a valid UUID.", hint)
    if has_stream_input and not has_stream_output:
        raise FrontendError("Error: --input-format=stream-json requires output-format=stream-json.")
    required_output = "--output-format=stream-json."
    if invocation.replay_user_messages and not has_stream_input:
        raise FrontendError(
            f"Error: --replay-user-messages requires both --input-format=stream-json and {required_output}"
        )
    if invocation.partial and not has_stream_output:
        raise FrontendError(
            f"Error: --include-partial-messages requires --print and {required_output}"
        )
