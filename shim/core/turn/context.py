"""A turn's inputs: its configuration, and the state of the conversation."""

from collections.abc import Callable, Mapping

from shim.core.claude.mcp_reports import McpServerReport
from shim.core.claude.offered_commands import CommandNames, OfferedCommand
from shim.core.claude.usage import (
    NO_USAGE,
    USAGE_KEYS,
    Usage,
    get_model_usage,
    parse_count_or_zero,
    parse_dollars,
    parse_usage,
)
from shim.core.errors import FailedVendorAttempt
from shim.core.policy.policy import MCP_PREFIX, normalize_mcp_name
from shim.core.reading.diagnostics import Diagnostics
from shim.core.reading.limits import StoreText
from shim.core.reading.typed import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    from shim.core.claude.argv.models import OfferedModel
    from shim.core.policy.evaluate import PolicyEvaluator
    from shim.core.policy.policy import UnsupportedRule

# A vendor's session id, and the session's total usage if the vendor reports it.
VendorSessionUsage = tuple[str | None, Usage]
NO_VENDOR_SESSION_USAGE: VendorSessionUsage = (None, NO_USAGE)
# The maximum length of a vendor's ids and names, which are stored and repeated in each line.
MAX_NAME_CHARS = 200
# The maximum number of stored call ids. A later call with a stored id gets a new id.
MAX_USED_IDS = 10_000
MAX_SERVER_STATUSES = 200  # the limit for MCP servers whose status is stored
MAX_SERVER_ERROR_CHARS = 500  # the maximum length of a server's error message


class UsageTotals(NamedTuple):
    """A turn's usage, and the session's totals so far: the cost in dollars, and the usage by model
    (contract 5.3). `context_window_by_model` has the sizes that the vendor reported, in tokens.
    """

    turn_usage: Usage
    session_cost_usd: float
    session_usage: Mapping[str, Usage]
    context_window_by_model: Mapping[str, int] = {}


class ConversationState:
    """Conversation state that is kept between turns: the session id, the call ids in use, and the
    total cost and usage.

    `vendor_session_usage` is the vendor session's total usage at the end of the last turn.
    `thread_usage` is the initial value of `vendor_session_usage`. `context_window_tokens` is the
    size of the current model's context, and `context_tokens` is the number of tokens in it. Both
    are 0 until the vendor reports them. `offered_models` and `offered_commands` are the lists that
    the vendor has reported.
    """

    __slots__ = (
        "api_duration_ms",
        "context_tokens",
        "context_window_by_model",
        "context_window_tokens",
        "cost_usd",
        "last_suffix",
        "offered_commands",
        "offered_models",
        "older_ids",
        "server_statuses",
        "session_id",
        "usage_by_model",
        "used_ids",
        "vendor_session_id",
        "vendor_session_usage",
    )

    def __init__(self, thread_usage: VendorSessionUsage = NO_VENDOR_SESSION_USAGE) -> None:
        self.session_id: str | None = None
        self.vendor_session_id: str | None = None
        self.used_ids: set[str] = set()
        self.older_ids: set[str] = set()
        self.last_suffix = 1
        self.cost_usd = 0.0
        self.usage_by_model: dict[str, Usage] = {}
        self.api_duration_ms = 0
        self.context_tokens = 0
        self.context_window_tokens = 0
        self.context_window_by_model: dict[str, int] = {}
        self.offered_models: tuple[OfferedModel, ...] = ()
        self.offered_commands: tuple[OfferedCommand, ...] = ()
        self.server_statuses: dict[str, McpServerReport] = {}
        self.vendor_session_usage = thread_usage

    def start_new_session(self) -> None:
        """Continue in a new session, which has no usage yet. Call ids stay reserved."""
        self.session_id = self.vendor_session_id = None
        self.cost_usd = 0.0
        self.usage_by_model = {}
        self.api_duration_ms = self.context_tokens = 0
        self.vendor_session_usage = NO_VENDOR_SESSION_USAGE

    def get_vendor_session_usage(self, vendor_session_id: str) -> Usage:
        """Return the stored usage of a vendor session. Return no usage if another session's usage
        is stored.
        """
        if self.vendor_session_usage[0] == vendor_session_id:
            return self.vendor_session_usage[1]
        return NO_USAGE

    def add_turn_usage(
        self,
        fields: Mapping[str, Any],
        usage_by_model: dict[str, Usage],
        cost_usd: float,
        model: str,
    ) -> UsageTotals:
        """Add a turn's usage and cost to the session's totals. `usage_by_model` and `cost_usd`
        (dollars) are the sums over the turn's replies.

        If the vendor reports usage or a cost for the whole turn in `fields`, these numbers replace
        the sums.
        """
        vendor_usage = parse_usage(fields.get("usage"))
        if any(vendor_usage.values()) and not usage_by_model:
            usage_by_model[model or "unknown"] = vendor_usage
        turn_usage = Usage(vendor_usage)
        for model_name, model_usage in usage_by_model.items():
            session_usage = get_model_usage(self.usage_by_model, model_name)
            for token_kind in USAGE_KEYS:
                session_usage[token_kind] += model_usage[token_kind]
                if not any(vendor_usage.values()):
                    turn_usage[token_kind] += model_usage[token_kind]
        vendor_cost = fields.get("cost")
        if vendor_cost is None:
            self.cost_usd += cost_usd
        else:
            self.cost_usd += parse_dollars(vendor_cost)
        self.api_duration_ms += parse_count_or_zero(fields.get("api_ms"))
        if self.context_window_tokens and model in self.usage_by_model:
            self.context_window_by_model[model] = self.context_window_tokens
        return UsageTotals(
            turn_usage, self.cost_usd, self.usage_by_model, self.context_window_by_model
        )

    def record_server_status(self, name: str, status: str, error: str = "") -> None:
        """Record the status of an MCP server. The server's name is spelled as in tool names."""
        name = normalize_mcp_name(name[:MAX_NAME_CHARS])
        if name in self.server_statuses or len(self.server_statuses) < MAX_SERVER_STATUSES:
            self.server_statuses[name] = McpServerReport(status, error[:MAX_SERVER_ERROR_CHARS])

    def record_connected_server(self, tool: str) -> None:
        """Record that the MCP server of a tool is connected, because a call of the tool succeeded."""
        if tool.startswith(MCP_PREFIX):
            server, separator, _ = tool.removeprefix(MCP_PREFIX).partition("__")
            if separator:
                self.record_server_status(server, "connected")

    def reserve_call_id(self, call_id: str, diagnostics: Diagnostics) -> str:
        """Return the id to write for a tool call: the call's own id, or a new id if the
        conversation has already used that id.
        """
        used_ids = self.used_ids
        size = len(self.used_ids)
        used_ids.add(call_id)
        if len(used_ids) == size or call_id in self.older_ids:
            diagnostics.record("reused_tool_id", call_id)
            call_id = self.create_unused_call_id(call_id)
            used_ids.add(call_id)
        if size > MAX_USED_IDS // 2:
            self.clear_old_call_ids()
        return call_id

    def clear_old_call_ids(self) -> None:
        """Remove the older half of the stored call ids."""
        self.older_ids, self.used_ids = self.used_ids, set()

    def create_unused_call_id(self, call_id: str) -> str:
        """Return a new, unique id for a tool call whose own id was already used."""
        while True:
            self.last_suffix += 1
            suffix = f"~{self.last_suffix}"
            if not self.has_used_call_id(
                new_id := call_id[: MAX_NAME_CHARS - len(suffix)] + suffix
            ):
                return new_id

    def has_used_call_id(self, call_id: str) -> bool:
        if call_id in self.used_ids:
            return True
        return call_id in self.older_ids


class VendorDataReader(Protocol):
    """Reads files in the vendor's own data folder (`shim.process.vendor_data_dir`)."""

    def find_file(self, folder: str, suffix: str) -> str | None:
        """Return the path of a file in `folder` whose name ends with `suffix`, or None."""

    def read_tail(self, path: str, min_offset: int = 0) -> tuple[int, bytes]:
        """Read a file from `min_offset` to its end. If that part is too long, only its end is read.
        Return the content and the offset at which it begins.
        """


class JsonSchemaAnswer(NamedTuple):
    """A structured answer for `--json-schema`. `value` is the answer. If the answer does not match
    the schema, `problem` is the reason.
    """

    value: dict[str, Any] | None = None
    problem: str = ""


class TurnCommand(NamedTuple):
    """The command of Claude that a turn answers.

    name           the command's name as the user typed it; "" if the message is not a command
    tokens_before  the size of the context before the compaction that the command requests; None if
                   the command requests no compaction
    """

    name: str = ""
    tokens_before: int | None = None


class VendorInfo(NamedTuple):
    """The vendor's properties that a turn depends on.

    version_note       a note about the vendor's version, such as "newer than tested"
    is_unattended      the vendor never asks before it runs a tool
    unattended_reason  why the vendor counts as unattended although its profile states that it
                       asks, or ""
    can_retract        the vendor may send a reply again after the reply was cut off. The turn then
                       stores the text that was already written, so that it is not repeated
    has_claude_errors  the vendor's errors already have Claude's texts
    is_replay          a recording is replayed, and no vendor is running
    trust_prompt       the text on stderr if the vendor does not trust the folder
    login_command      the command that a person runs to log in
    clean_exit_codes   exit codes that are allowed after a successful turn
    """

    name: str
    version: str | None = None
    version_note: str = ""
    is_unattended: bool = False
    unattended_reason: str = ""
    can_retract: bool = True
    has_claude_errors: bool = False
    is_replay: bool = False
    trust_prompt: str = ""
    login_command: str = ""
    clean_exit_codes: frozenset[int] = frozenset({0})


class SessionConfig(NamedTuple):
    """The session that a turn belongs to.

    new_id                the session id if neither the frontend nor the vendor has chosen one
    requested_id          the session id that the frontend chose
    vendor_session_usage  the total usage of the vendor session that is resumed
    list_servers          returns the session's MCP servers and their tools, as far as the shim
                          knows them
    list_server_names     returns the names of all configured MCP servers, including servers from
                          the vendor's own settings
    list_commands         returns the names of the commands that the shim knows
    """

    new_id: str
    requested_id: str | None = None
    vendor_session_usage: VendorSessionUsage = NO_VENDOR_SESSION_USAGE
    list_servers: Callable[[], tuple[list[dict[str, Any]], list[str]]] = lambda: ([], [])
    list_server_names: Callable[[], list[str]] = list
    list_commands: Callable[[], CommandNames] = CommandNames


class ConversationLimits(NamedTuple):
    """Limits that apply to a conversation.

    max_turns            the turn limit that the shim enforces; None if the vendor enforces it
    requested_max_turns  the turn limit that was requested, enforced by either side
    max_budget_usd       the session's maximum cost in dollars
    """

    max_turns: int | None = None
    requested_max_turns: int | None = None
    max_budget_usd: float | None = None


class TurnConfig(NamedTuple):
    """A turn's configuration.

    model                   the model that was passed to the vendor
    requested_model         the model that the frontend requested, if it is a different one
    default_model           the vendor's default model, if known; `init` contains this name until
                            the vendor reports a model
    tools                   the tools to list in `init` if the vendor reports none
    can_retry               an interrupted stream may be requested again, so the text that was
                            written is stored until the end of the turn
    read_answer             builds the structured answer if the vendor does not provide one
    redacts_secrets         secrets are removed from the output
    asks_by_line            returns whether the line with a tool call also serves as the
                            permission prompt, so that its input is not changed
    data_dir                the vendor's own data; None in a replay, in which no vendor is running
    store_text              stores a text that is too long for a line, and returns its location
    output_style            the name of the output style in Claude's settings, or ""
    rejects_unknown_lines   the frontend fails on lines of an unknown kind
    forwards_subagent_text  the text and thinking of subagents are written; their tool calls are
                            always written
    failed_attempts         the vendors that were tried before this one, in order
    unsupported_rules       allow rules, settings and subagents that have no effect
    agents                  the names of the subagents from the frontend and from Claude's files
    has_rebuilt_history     the vendor receives the history of the resumed session as text
    elapsed_ms              returns the milliseconds since the turn started
    """

    vendor: VendorInfo
    session: SessionConfig
    limits: ConversationLimits = ConversationLimits()
    model: str | None = None
    requested_model: str | None = None
    default_model: str = ""
    cwd: str = ""
    tools: tuple[str, ...] = ()
    mode: str = "default"
    evaluator: "PolicyEvaluator | None" = None
    can_retry: bool = False
    read_answer: Callable[[str], JsonSchemaAnswer] | None = None
    redacts_secrets: bool = False
    asks_by_line: Callable[[], bool] | None = None
    data_dir: VendorDataReader | None = None
    store_text: StoreText | None = None
    rejects_unknown_lines: bool = False
    output_style: str = ""
    forwards_subagent_text: bool = True
    failed_attempts: tuple[FailedVendorAttempt, ...] = ()
    unsupported_rules: "tuple[UnsupportedRule, ...]" = ()
    agents: tuple[str, ...] = ()
    has_rebuilt_history: bool = False
    elapsed_ms: Callable[[], int] = lambda: 0
