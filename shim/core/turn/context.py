"""What a turn is given: the terms agreed before it, the conversation that outlives it, the pen that
writes.
"""

from collections.abc import Callable, Mapping

from shim.core.claude.usage import (
    NO_USAGE,
    USAGE_KEYS,
    Usage,
    get_model_usage,
    parse_dollars,
    parse_usage,
)
from shim.core.errors import FailedVendorAttempt
from shim.core.reading.diagnostics import Diagnostics
from shim.core.reading.limits import StoreText
from shim.core.reading.typed import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    from shim.core.policy.evaluate import PolicyEvaluator
    from shim.core.policy.rules import UnsupportedRule

# a vendor's session, and all that it used, where the vendor counts that
VendorSessionUsage = tuple[str | None, Usage]
NO_VENDOR_SESSION_USAGE: VendorSessionUsage = (None, NO_USAGE)
# of an id or a name that a vendor gives: they stand in every line of ours, and are remembered
MAX_NAME_CHARS = 200
MAX_USED_IDS = 10_000  # tool ids remembered in a conversation; an id that comes again is a new call


class UsageTotals(NamedTuple):
    """Usage of a turn, and cost in dollars and usage by model of the session so far (contract 5.3)."""

    turn_usage: Usage
    session_cost_usd: float
    session_usage: Mapping[str, Usage]


class ConversationState:
    """What outlives a turn: one session id, the tool ids used, cost and usage so far.

    `thread_usage` is what the vendor's own session had used when its last turn had ended.
    """

    __slots__ = (
        "cost_usd",
        "last_suffix",
        "older_ids",
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
        self.vendor_session_usage = thread_usage

    def get_vendor_session_usage(self, vendor_session_id: str) -> Usage:
        """What a session of the vendor's had used, if it is the one that is known."""
        return (
            self.vendor_session_usage[1]
            if self.vendor_session_usage[0] == vendor_session_id
            else NO_USAGE
        )

    def add_turn_usage(
        self,
        fields: Mapping[str, Any],
        usage_by_model: dict[str, Usage],
        cost_usd: float,
        model: str,
    ) -> UsageTotals:
        """Add what a turn used; `usage_by_model` by model and `cost_usd` in dollars are those of
        its replies.

        A usage or a cost that the vendor stated for the whole turn, in `fields`, beats what the
        replies add up to.
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
        self.cost_usd += cost_usd if vendor_cost is None else parse_dollars(vendor_cost)
        return UsageTotals(turn_usage, self.cost_usd, self.usage_by_model)

    def reserve_call_id(self, call_id: str, diagnostics: Diagnostics) -> str:
        """The id under which a call is said: its own, or a minted one when that was used before."""
        used_ids, size = self.used_ids, len(self.used_ids)
        used_ids.add(call_id)
        if len(used_ids) == size or call_id in self.older_ids:
            diagnostics.record("reused_tool_id", call_id)
            call_id = self.create_unused_call_id(call_id)
            used_ids.add(call_id)
        if size > MAX_USED_IDS // 2:
            self.clear_old_call_ids()
        return call_id

    def clear_old_call_ids(self) -> None:
        """Forget the older half of the tool ids."""
        self.older_ids, self.used_ids = self.used_ids, set()

    def create_unused_call_id(self, call_id: str) -> str:
        """Another id for a call whose own was used before; never the same one, whatever is
        forgotten.
        """
        while True:
            self.last_suffix += 1
            suffix = f"~{self.last_suffix}"
            if not self.has_used_call_id(
                new_id := call_id[: MAX_NAME_CHARS - len(suffix)] + suffix
            ):
                return new_id

    def has_used_call_id(self, call_id: str) -> bool:
        return call_id in self.used_ids or call_id in self.older_ids


class VendorDataReader(Protocol):
    """The folder in which the vendor keeps its own records: `shim.process.vendor_data_dir`, with
    its bounds.
    """

    def find_file(self, folder: str, suffix: str) -> str | None:
        """The path in it of a file of `folder` whose name ends so."""

    def read_tail(self, path: str, min_offset: int = 0) -> tuple[int, bytes]:
        """What a file in it has behind `min_offset`, the end of it at least, and where that begins."""


class JsonSchemaAnswer(NamedTuple):
    """An answer read by `--json-schema`: its `value`, or the `problem` why it is none."""

    value: dict[str, Any] | None = None
    problem: str = ""


class VendorInfo(NamedTuple):
    """What the turn knows of its vendor.

    version_note       remark about that version, such as "newer than tested"
    is_unattended      the vendor never asks before it runs a tool
    unattended_reason  why it counts as unattended although its profile promises that it asks; ""
                       otherwise
    can_retract        it may take a reply back; if not, less need be remembered
    has_claude_errors  its errors are in Claude's words already
    is_replay          nothing runs, a recording is played
    trust_prompt       what its stderr says when its trust gate is closed
    login_command      how a person logs in with it
    clean_exit_codes   exit codes that do not contradict its own "done"
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
    """The session that the turn belongs to.

    new_id             its id, where neither the frontend nor the vendor has one
    requested_id       the frontend's choice
    thread_usage       what the session that goes on had used
    list_servers       gives its MCP servers and their tools, as far as they are known here
    list_server_names  returns the names of all configured MCP servers, including those of the
                       vendor's own settings
    """

    new_id: str
    requested_id: str | None = None
    vendor_session_usage: VendorSessionUsage = NO_VENDOR_SESSION_USAGE
    list_servers: Callable[[], tuple[list[dict[str, Any]], list[str]]] = lambda: ([], [])
    list_server_names: Callable[[], list[str]] = list


class ConversationLimits(NamedTuple):
    """How long the turn may go on.

    max_turns            the limit that is counted here; None where the vendor counts for itself
    requested_max_turns  the limit, whoever counts
    max_budget_usd       dollars that the session may cost
    """

    max_turns: int | None = None
    requested_max_turns: int | None = None
    max_budget_usd: float | None = None


class TurnConfig(NamedTuple):
    """What is agreed before a turn begins.

    model                   that the vendor was told
    requested_model         what the frontend asked for, where the vendor was told something else
    default_model           its own default, as far as it is known; `init` says it while the vendor
                            says nothing
    tools                   that `init` lists where the vendor lists none
    can_retry               a stream that broke off may be asked for again: what was said is
                            remembered to the end
    read_answer             makes the structured answer that the vendor does not give
    redacts_secrets         no secret is said
    asks_by_line            whether a call's own line, its input as it is, asks the frontend
    data_dir                what the vendor writes down beside its stream; None in a replay, where
                            nothing runs
    store_text              stores a text that is too large for a line, and says where
    output_style            name of the output style in Claude's settings; "" if none is set
    rejects_unknown_lines   the frontend ends on a line of a kind that it does not know
    forwards_subagent_text  whether texts and thoughts of nested agents are emitted; their calls
                            always are
    failed_attempts         the vendors that were asked before this one, in their order
    unsupported_rules       rules that allow, and keys of settings, which have no effect
    elapsed_ms              milliseconds since the turn began
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
    elapsed_ms: Callable[[], int] = lambda: 0


class OutputWriter(Protocol):
    """Collects whole lines; `take_bytes` hands over their bytes. `transcript_writer` has them in
    Claude's, where those are kept.

    With `writes_partial_messages` the Turn says fragments as they come. Texts and tools are kept
    below `max_bytes` bytes by the Turn, all else is cut by the pen. `last_result_line` is the line
    of the last result, `last_call_bytes` the size of the last call as it was said.
    """

    writes_partial_messages: bool
    max_bytes: int
    last_result_line: bytes
    last_call_bytes: int

    @property
    def has_result_terminator_line(self) -> bool:
        """Whether a terminator follows each result."""

    @property
    def transcript_writer(self) -> "OutputWriter | None":
        """The pen that keeps Claude's lines beside another dialect's."""

    def take_bytes(self) -> bytes:
        """All bytes written since the last call: whole lines."""

    def discard_turn(self) -> None:
        """Forget the turn that has begun: none of its lines was given to the frontend."""

    def compact_buffered_lines(self) -> None:
        """Make what was written smaller in memory, where many long lines are."""

    def create_uuid(self) -> str:
        """A fresh uuid, for something that is not a line (a synthetic id)."""

    def create_message_id(self) -> str:
        """A minted message id, for a nested agent's reply."""

    def set_session_id(self, session_id: str) -> None:
        """The session that further lines belong to."""

    def set_current_message(self, message_id: str, model: str, usage: Usage) -> None:
        """The reply that a passed line opened."""

    def set_block_index(self, index: int) -> None:
        """The block that a passed line opened."""

    def write_passthrough_line(self, line: bytes) -> None:
        """A line that is in the dialect already, without its LF."""

    def write_vendor_result_line(self, line: bytes) -> None:
        """A result that is; its terminator comes later."""

    def count_prompt_chars(self, prompt: str) -> None:
        """The message that the turn answers."""

    def write_init_message(self, session_id: str, fields: Mapping[str, Any]) -> None:
        """The first line of a turn."""

    def write_session_id_change(self, session_id: str) -> None:
        """The session goes on under another id."""

    def write_system_message(self, subtype: str, fields: Mapping[str, Any]) -> None:
        """A line beside the conversation."""

    def write_result(self, fields: Mapping[str, Any]) -> None:
        """The result, then the terminator if this stream has one."""

    def write_result_terminator_line(self) -> None:
        """The terminator that a passed result still owes."""

    def start_message(self, model: str, usage: Usage) -> None:
        """A new reply."""

    def set_message_usage(self, usage: Usage) -> None:
        """The usage that the reply has from here on."""

    def start_block(self, kind: str) -> None:
        """A streamed block of `text` or `thinking` opens."""

    def write_block_delta(self, text_json: bytes) -> None:
        """A fragment of the open block, already dumped."""

    def write_block(self, kind: str, text_json: bytes, is_aborted: bool = False) -> None:
        """The open block is complete, its content dumped as a whole; with `writes_partial_messages`
        it was said in fragments.
        """

    def write_complete_block(self, block_kind: str, text_json: bytes) -> None:
        """A whole block that was never streamed, its content already dumped."""

    def end_block(self) -> None:
        """The block that a passed line opened is over."""

    def write_tool_call(
        self, call_id: str, name: str, tool_input: Mapping[str, Any]
    ) -> Mapping[str, Any] | None:
        """A whole call. Gives back other arguments where these had to be cut."""

    def end_message(self, stop_reason: str | None, usage: Usage) -> None:
        """The reply is over."""

    def add_usage(self, usage: Usage) -> None:
        """The last reply, or the next one where there was none, used so much; often known only
        behind its end.
        """

    def write_tool_result(
        self,
        call_id: str,
        name: str,
        tool_input: Mapping[str, Any],
        content: object,
        is_error: bool,
    ) -> None:
        """A call's result; identity, name and arguments are the call's."""

    def write_user_text(self, text: str) -> None:
        """What is said for the user (the interrupt's line)."""

    def echo_user_message(
        self, message: Mapping[str, Any], message_id: str | None, timestamp: str
    ) -> None:
        """The user's own message, said again."""

    def write_synthetic_message(self, text: str) -> None:
        """A line of ours to the user, not of the model's."""

    def write_api_error(
        self, text: str, error: str, status: int | None, error_type: str | None = None
    ) -> None:
        """A failed request to the model's API, before its result."""

    def write_subagent_message(
        self, parent_call_id: str | None, role: str, message: Mapping[str, Any]
    ) -> None:
        """A whole line of a nested agent; `parent_call_id` is the id of the call that runs it."""
