"""Plans a conversation: its driver, where its prompts come from, and who answers permission prompts.

The plan is computed once, from plain data. It can be run, or printed by `shim explain`.
"""

from collections.abc import Mapping
from enum import Enum, auto

from shim.adapters import FLAT_ADAPTERS
from shim.core.adapter.adapter import Adapter
from shim.core.claude.argv.flags import Invocation
from shim.core.dialects import DIALECTS
from shim.core.errors import FrontendError
from shim.core.policy.policy import BYPASS_MODE, resolve_permission_mode
from shim.core.reading.typed import TYPE_CHECKING, NamedTuple
from shim.state.config import ONE_WAY, TWO_WAY, ShimSettings

if TYPE_CHECKING:
    from shim.io.stdin import Stdin

PASSTHROUGH_DRIVER = "pass-through"  # the name of this driver in `shim explain`
MIRROR_FLAG = "--session-mirror"


class RunMode(Enum):
    """The ways to run a conversation."""

    PASSTHROUGH = auto()  # the real claude reads the frontend's messages itself
    MESSAGES = auto()  # stdin carries messages and control frames
    ANSWERS = auto()  # the prompt is already known; stdin carries only control frames
    RULES_ONLY = auto()  # no control frames; the rules answer permission requests
    ONE_SHOT = auto()  # no control frames, and the child cannot ask


class PromptSource(Enum):
    """Where the prompt comes from."""

    MESSAGES = auto()  # each message on stdin is a prompt
    ARGUMENT = auto()  # the command line, or stdin if it was read already
    ARGUMENT_AND_STDIN = auto()  # the command line, then the text on stdin


class StdinInput(NamedTuple):
    """How stdin is used, if its beginning was read before planning (Yume)."""

    source: "Stdin | None" = None  # the remaining input, if stdin carries messages
    may_send_more: bool = False  # the frontend may send frames while a turn is running
    wants_answers: bool = False  # the child must accept more messages or permission answers


class ConversationPlanInput(NamedTuple):
    """All inputs for planning a conversation."""

    # The first vendor's adapter, as returned by `select_driver`, then the adapters of the fallback
    # vendors.
    adapters: tuple[Adapter, ...]
    reason: str  # why the first vendor's driver was selected; "" if it has only one
    invocation: Invocation
    settings: ShimSettings
    mode: str  # the permission mode
    has_rules: bool  # rules, hooks, --tools or subagents, which need a child that asks
    is_translated: bool  # all output is translated, even a real claude's
    stdin_input: StdinInput | None = None
    # The child starts relays to the shim, which exist only in the message loop.
    needs_relays: bool = False
    # Whether hooks in Claude's settings files run for events other than tool calls.
    has_event_hooks: bool = False


class ConversationPlan(NamedTuple):
    """The plan for running a conversation. `shim explain` prints the plan without running it."""

    run_mode: RunMode
    prompt_source: PromptSource
    adapter: Adapter  # the first configured vendor's adapter
    persistent: bool  # one child process of this vendor serves the whole conversation
    starts_child_first: bool  # the child starts before the message loop is imported
    asks_frontend: bool  # permission requests go to the frontend if no rule answers them
    keeps_transcript: bool  # the shim writes a transcript; a real claude writes its own
    answers_commands: bool  # the shim answers Claude's commands, such as /clear and /cost
    reason: str  # why the first vendor's driver was selected; "" if it has only one
    request: ConversationPlanInput  # the inputs, for planning the fallback vendors

    @property
    def driver_name(self) -> str:
        """The name of the first vendor's driver: pass-through, two-way or one-way."""
        if self.run_mode is RunMode.PASSTHROUGH:
            return PASSTHROUGH_DRIVER
        if self.persistent:
            return TWO_WAY
        return ONE_WAY


def plan_conversation(request: ConversationPlanInput) -> ConversationPlan:
    """Create the plan for running a conversation."""
    adapter = request.adapters[0]
    run_mode = _choose_run_mode(request)
    starts_child_first = run_mode in (RunMode.PASSTHROUGH, RunMode.ONE_SHOT)
    if starts_child_first:
        persistent = run_mode is RunMode.PASSTHROUGH
    else:
        persistent = can_keep_child(adapter, request)
        # Without control frames nothing can change the child's flags, so the child can start now.
        is_alone = run_mode is RunMode.RULES_ONLY and not (
            request.needs_relays or request.has_event_hooks
        )
        starts_child_first = persistent and is_alone
    return ConversationPlan(
        run_mode,
        _choose_prompt_source(run_mode, request),
        adapter,
        persistent,
        starts_child_first,
        can_prompt_frontend(request.invocation),
        _keeps_transcript(request),
        _answers_commands(request),
        request.reason,
        request,
    )


def can_keep_child(adapter: Adapter, request: ConversationPlanInput) -> bool:
    """Return whether one child process of a vendor can serve the whole conversation."""
    if adapter.cli.always_keeps_child:
        return True
    driver = request.settings.get_vendor_settings(adapter.name).driver
    if not adapter.child_input_ref or driver == ONE_WAY:
        return False
    stdin_input = request.stdin_input
    if stdin_input is None or stdin_input.wants_answers:
        return True
    if request.has_rules or request.has_event_hooks:
        return True
    # In acceptEdits mode, some vendors edit files outside the folder unless the shim denies their
    # permission requests.
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
    if not (request.has_event_hooks or _needs_asking_child(request)):
        return RunMode.ONE_SHOT
    # Stdin carries answers only if the frontend can receive permission requests. Otherwise stdin is
    # part of the prompt.
    if stdin_input is None and invocation.prompt and can_prompt_frontend(invocation):
        return RunMode.ANSWERS
    return RunMode.RULES_ONLY


def _needs_asking_child(request: ConversationPlanInput) -> bool:
    """Return whether the child must ask for permission before tool calls, and a listed vendor
    supports that.
    """
    asks_frontend = request.invocation.permission_prompt_tool == "stdio"
    if not (asks_frontend or _needs_gate(request) or request.adapters[0].cli.always_keeps_child):
        return False
    return any(can_keep_child(adapter, request) for adapter in request.adapters)


def _needs_gate(request: ConversationPlanInput) -> bool:
    """Return whether the shim must check tool calls before they run."""
    if request.has_rules:
        return True
    # Only a one-shot child can enforce a JSON schema itself. In acceptEdits mode, a one-shot child
    # could edit files anywhere.
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


def _answers_commands(request: ConversationPlanInput) -> bool:
    """Return whether the shim answers Claude's commands. A real claude answers them itself, and
    Yume has commands of its own.
    """
    if DIALECTS[request.settings.dialect].is_flat:
        return False
    names = (adapter.name for adapter in request.adapters)
    return FLAT_ADAPTERS.keys().isdisjoint(names)


# -- the driver ------------------------------------------------------------------------------------


class DriverChoice(NamedTuple):
    """A vendor's adapter with the selected driver, and the reason for the selection."""

    adapter: Adapter
    reason: str  # why this driver was selected; "" if the vendor has only one


def select_driver(
    adapter: Adapter,
    invocation: Invocation,
    settings: ShimSettings,
    environment: Mapping[str, str],
    cwd: str,
) -> DriverChoice:
    """Select the driver for a vendor, and return its adapter.

    The two-way driver, which can ask for permission, is used if the vendor has one and the frontend
    sends stream-json messages or can answer prompts. No program is started to find out: an
    installed version is assumed to support two-way mode unless its cached help text says otherwise.

    Raise FrontendError if the frontend wants permission prompts, but the installed version lacks
    two-way mode and would run tools without asking.
    """
    vendor_settings = settings.get_vendor_settings(adapter.name)
    can_ask = invocation.input_format == "stream-json" or can_prompt_frontend(invocation)
    # One-shot mode also uses the two-way driver if only this driver streams partial text, and if
    # the vendor runs the same tool calls with it.
    needs_partials = invocation.partial and not (adapter.abilities.can_stream or adapter.unattended)
    # Only a persistent child can compact its context on request.
    needs_compaction = _is_compaction_prompt(invocation.prompt)
    if not adapter.cli.has_two_way:
        if needs_compaction and adapter.child_input_ref:
            return DriverChoice(_keep_child(adapter), "")
        return DriverChoice(adapter, "")
    if vendor_settings.driver == ONE_WAY:
        return DriverChoice(adapter, f"[vendors.{adapter.name}] driver")
    if vendor_settings.driver == TWO_WAY:
        return DriverChoice(
            _keep_child(adapter.build_two_way()), f"[vendors.{adapter.name}] driver"
        )
    if not (can_ask or needs_partials or needs_compaction):
        return DriverChoice(
            adapter, "the frontend sends one message and accepts no permission prompts"
        )
    missing_flag = ""
    if adapter.cli.two_way_help_texts:
        from shim.process.probe import find_unsupported_argument

        missing_flag = find_unsupported_argument(adapter, vendor_settings, environment, cwd)
    if missing_flag:
        if (
            can_prompt_frontend(invocation)
            and adapter.unattended
            and resolve_requested_permission_mode(invocation) != BYPASS_MODE
        ):
            raise FrontendError(
                "the frontend wants permission prompts, but this version of "
                f"{adapter.name} does not support them: its --help does not list "
                f"{missing_flag}",
                hint=f'install a newer version; [vendors.{adapter.name}] driver = "one-way" '
                "lets the vendor run its tools without asking",
            )
        return DriverChoice(
            adapter,
            f"the installed version supports only one-way mode: its --help does not list {missing_flag}",
        )
    if can_ask:
        return DriverChoice(
            adapter.build_two_way(),
            "the frontend sends stream-json messages, or accepts permission prompts",
        )
    reason = "the frontend wants partial messages"
    if needs_compaction:
        reason = "the message is /compact"
    return DriverChoice(_keep_child(adapter.build_two_way()), reason)


def _is_compaction_prompt(prompt: str | None) -> bool:
    if prompt is None or not prompt.startswith("/"):
        return False
    from shim.core.claude.local_commands import COMPACT, parse_local_command
    from shim.core.claude.messages import UserMessage

    command = parse_local_command(UserMessage(prompt))
    return command is not None and command.kind == COMPACT


def _keep_child(adapter: Adapter) -> Adapter:
    return adapter.copy_with(cli=adapter.cli._replace(always_keeps_child=True))


# -- the command line ------------------------------------------------------------------------------


def resolve_requested_permission_mode(invocation: Invocation) -> str:
    return resolve_permission_mode(
        invocation.permission_mode,
        skips_permissions=invocation.skip_permissions,
    )


def can_change_permission_mode(invocation: Invocation) -> bool:
    """Return whether the frontend can still change the permission mode before its first message.

    For example, claude-agent-acp starts every session with `--permission-mode=auto`. The answer to
    `initialize` shows that the vendor lacks this mode, so claude-agent-acp sets `default`. If the
    frontend keeps an unsupported mode, the first turn is refused.
    """
    return invocation.input_format == "stream-json"


def can_prompt_frontend(invocation: Invocation) -> bool:
    """Return whether permission prompts can be sent to the frontend. This requires stream-json
    output.
    """
    if invocation.permission_prompt_tool != "stdio":
        return False
    return invocation.output_format == "stream-json"


def has_session_store(invocation: Invocation) -> bool:
    """Return whether the frontend has a session store, which it fills from the transcript."""
    return any(name == MIRROR_FLAG for name, _ in invocation.other_flags)
