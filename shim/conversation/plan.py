"""The plan of a conversation: decided once from plain data, then run or explained."""

from enum import Enum, auto

from shim.adapters import FLAT_ADAPTERS
from shim.conversation.invocation import can_prompt_frontend
from shim.core.adapter.adapter import Adapter
from shim.core.claude.argv.invocation import Invocation
from shim.core.reading.typed import TYPE_CHECKING, NamedTuple
from shim.state.config import ONE_WAY, TWO_WAY, ShimSettings

if TYPE_CHECKING:
    from shim.io.stdin import Stdin

PASSTHROUGH_DRIVER = "pass-through"  # the name of this driver in `shim explain`


class RunMode(Enum):
    """How a conversation is run."""

    PASSTHROUGH = auto()  # the real claude reads the frontend's messages itself
    MESSAGES = auto()  # stdin carries messages and control frames
    ANSWERS = auto()  # the prompt is known; stdin carries control frames only
    RULES_ONLY = auto()  # no control frames; the rules answer permission requests
    ONE_SHOT = auto()  # no control frames, and the child cannot ask


class PromptSource(Enum):
    """The source of the prompt."""

    MESSAGES = auto()  # each message on stdin is a prompt
    ARGUMENT = auto()  # the command line; or stdin, if it was read already
    ARGUMENT_AND_STDIN = auto()  # the command line, then the text on stdin


class StdinInput(NamedTuple):
    """What stdin is used for, if its beginning was read before the plan is made (Yume)."""

    source: "Stdin | None" = None  # the rest of stdin, if it carries messages
    may_send_more: bool = False  # the frontend may send frames while its message is answered
    wants_answers: bool = False  # the child is kept for more messages, or for permission answers


class ConversationPlanInput(NamedTuple):
    """Everything that a plan depends on."""

    # The first adapter as `select_driver` returned it, then those of the vendors that may answer in
    # its place.
    adapters: tuple[Adapter, ...]
    reason: str  # why the first one is driven in this way; "" if it can be driven in one way only
    invocation: Invocation
    settings: ShimSettings
    mode: str  # the permission mode
    has_rules: bool  # a rule, a hook or --tools restricts or allows more than the mode does
    is_translated: bool  # no line of a real claude passes unchanged
    stdin_input: StdinInput | None = None


class ConversationPlan(NamedTuple):
    """How a conversation is run. `run` executes the plan, `explain` prints it."""

    run_mode: RunMode
    prompt_source: PromptSource
    adapter: Adapter  # the adapter of the first vendor
    persistent: bool  # one child of the first vendor serves the whole conversation
    starts_child_first: bool  # before the loop is imported
    asks_frontend: bool  # permission requests that no rule answers go to the frontend
    keeps_transcript: bool  # history lists find the session; a real claude writes its own
    reason: str  # why the first vendor is driven in this way; "" if it has one way only
    request: ConversationPlanInput  # for the vendors that may answer in place of the first one

    @property
    def driver_name(self) -> str:
        """The name of the first vendor's driver: pass-through, two-way or one-way."""
        if self.run_mode is RunMode.PASSTHROUGH:
            return PASSTHROUGH_DRIVER
        if self.persistent:
            return TWO_WAY
        return ONE_WAY


def plan_conversation(request: ConversationPlanInput) -> ConversationPlan:
    """Decide how a conversation is run."""
    adapter = request.adapters[0]
    run_mode = _choose_run_mode(request)
    starts_child_first = run_mode in (RunMode.PASSTHROUGH, RunMode.ONE_SHOT)
    if starts_child_first:
        persistent = run_mode is RunMode.PASSTHROUGH
    else:
        persistent = can_keep_child(adapter, request)
        # Without control frames nothing can change the child's flags, so it need not wait.
        starts_child_first = persistent and run_mode is RunMode.RULES_ONLY
    return ConversationPlan(
        run_mode,
        _choose_prompt_source(run_mode, request),
        adapter,
        persistent,
        starts_child_first,
        can_prompt_frontend(request.invocation),
        _keeps_transcript(request),
        request.reason,
        request,
    )


def can_keep_child(adapter: Adapter, request: ConversationPlanInput) -> bool:
    """Return whether one child of a vendor can serve the whole conversation."""
    if adapter.cli.always_keeps_child:
        return True
    driver = request.settings.get_vendor_settings(adapter.name).driver
    if not adapter.child_input_ref or driver == ONE_WAY:
        return False
    stdin_input = request.stdin_input
    if stdin_input is None or stdin_input.wants_answers or request.has_rules:
        return True
    # Only the permission requests of such a vendor keep its edits inside the folder.
    return request.mode == "acceptEdits" and adapter.needs_external_policy_check(request.mode)


def _choose_run_mode(request: ConversationPlanInput) -> RunMode:
    invocation = request.invocation
    stdin_input = request.stdin_input
    if invocation.input_format == "stream-json":
        if request.adapters[0].passthrough and not request.is_translated:
            return RunMode.PASSTHROUGH
        return RunMode.MESSAGES
    if stdin_input is not None and stdin_input.may_send_more:
        return RunMode.ANSWERS
    if not _needs_asking_child(request):
        return RunMode.ONE_SHOT
    # Stdin carries the answers only if the frontend can see the requests. Otherwise it is a part
    # of the prompt.
    if stdin_input is None and invocation.prompt and can_prompt_frontend(invocation):
        return RunMode.ANSWERS
    return RunMode.RULES_ONLY


def _needs_asking_child(request: ConversationPlanInput) -> bool:
    """Return whether the child has to ask before its calls run, and a vendor can be made to ask."""
    asks_frontend = request.invocation.permission_prompt_tool == "stdio"
    if not (asks_frontend or _needs_gate(request) or request.adapters[0].cli.always_keeps_child):
        return False
    return any(can_keep_child(adapter, request) for adapter in request.adapters)


def _needs_gate(request: ConversationPlanInput) -> bool:
    """Return whether calls have to be checked here before they run."""
    if request.has_rules:
        return True
    # Only a one-shot child can follow a schema itself. In acceptEdits such a child could edit files
    # anywhere.
    if request.invocation.json_schema is not None and request.mode != "acceptEdits":
        return False
    return any(adapter.needs_external_policy_check(request.mode) for adapter in request.adapters)


def _choose_prompt_source(run_mode: RunMode, request: ConversationPlanInput) -> PromptSource:
    if run_mode in (RunMode.PASSTHROUGH, RunMode.MESSAGES):
        return PromptSource.MESSAGES
    if run_mode is RunMode.ANSWERS or request.stdin_input is not None:
        return PromptSource.ARGUMENT
    return PromptSource.ARGUMENT_AND_STDIN


def _keeps_transcript(request: ConversationPlanInput) -> bool:
    is_stored = request.settings.transcripts and not request.invocation.no_session_persistence
    names = (adapter.name for adapter in request.adapters)
    if not is_stored:
        return False
    if request.adapters[0].passthrough:
        return False
    return FLAT_ADAPTERS.keys().isdisjoint(names)
