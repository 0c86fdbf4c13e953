"""The start and the end of a vendor's turns: builds the configuration of each turn, and stores the
turn's results.
"""

import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from shim.conversation.drivers.context import (
    AnswerSchema,
    ConversationContext,
    VendorSessionResumeState,
)
from shim.core.adapter.adapter import Adapter, LaunchRequest
from shim.core.adapter.child_stream import ChildStream
from shim.core.claude.control.session_reports import list_command_names, list_mcp_server_entries
from shim.core.claude.output_writer import OutputWriter
from shim.core.claude.session_state import SessionState, SessionUsage
from shim.core.reading.limits import StoreText
from shim.core.reading.lines import LineSplitter
from shim.core.reading.values import validate_uuid
from shim.core.turn.context import (
    NO_VENDOR_SESSION_USAGE,
    ConversationLimits,
    SessionConfig,
    TurnConfig,
    VendorInfo,
)
from shim.io.stderr import warn
from shim.process.environment import is_sdk_rejecting_unknown_messages
from shim.process.vendor_data_dir import open_vendor_data_dir
from shim.state import store
from shim.state.files import select_spill_file_opener

if TYPE_CHECKING:
    from shim.core.adapter.translator import Translator
    from shim.core.claude.argv.models import OfferedModel
    from shim.core.claude.offered_commands import OfferedCommand
    from shim.core.policy.evaluate import PolicyEvaluator
    from shim.core.policy.policy import Policy, UnsupportedRule
    from shim.core.turn.turn import Turn

    TranslatorFactory = Callable[[type[Translator]], Callable[..., Translator]]

FORWARD_SUBAGENT_TEXT = "--forward-subagent-text"


class TurnLifecycle:
    """Configures one vendor's turns, and stores their results.

    `store_text` stores a text that is too large for an output line. `environment` contains the
    environment variables for the vendor's children.
    """

    def __init__(
        self,
        context: ConversationContext,
        state: SessionState,
        resume_state: VendorSessionResumeState,
        answer_schema: AnswerSchema,
        writer: OutputWriter,
        *,
        store_text: StoreText,
        environment: Mapping[str, str],
    ) -> None:
        self._context = context
        self._state = state
        self._resume_state = resume_state
        self._schema = answer_schema
        self._writer = writer
        self._store_text = store_text
        self._environment = environment
        # Whether the frontend's messages are echoed (contract C15).
        self.replays_user_messages = context.invocation.replay_user_messages
        # Whether a message is sent again if its answer was cut off (Yume's R11).
        self.retries_interrupted_streams = context.dialect.retries_broken_answers
        self._warned_turn: Turn | None = None  # the last turn with a report about secrets
        self._recorded_turn: Turn | None = None  # the last turn whose diagnostics were recorded

    # -- the start of a turn -----------------------------------------------------------------------

    def open_child_stream(
        self,
        previous_stream: ChildStream | None,
        wrap_translator: "TranslatorFactory | None" = None,
        create_stream: Callable[..., ChildStream] = ChildStream,
    ) -> ChildStream:
        """Return the stream for a new child. `previous_stream` is the stream of the previous child.

        `wrap_translator` takes the vendor's translator class and returns a factory for the child's
        translator.
        """
        context = self._context
        adapter = self._context.adapter
        # Without a session id the child starts a new session, which has no system prompt yet.
        if self._resume_state.vendor_session_id is None:
            self._resume_state.has_system_prompt = False
            self._resume_state.has_history = False
            if previous_stream is not None:
                previous_stream.turn.conversation.vendor_session_id = None
        max_inbound_bytes = context.settings.max_inbound_bytes
        translator = (
            adapter.translator_class
            if wrap_translator is None
            else wrap_translator(adapter.translator_class)
        )
        return create_stream(
            translator,
            self.build_turn_config(),
            self._writer,
            previous_stream,
            create_splitter=partial(
                LineSplitter, max_inbound_bytes, select_spill_file_opener(max_inbound_bytes)
            ),
            saves_late=adapter.session_traits.saves_late,
        )

    def build_turn_config(self) -> TurnConfig:
        """Build the configuration of the next turn."""
        context = self._context
        state = self._state
        resume_state = self._resume_state
        adapter = context.adapter
        started_at = time.monotonic()
        policy = context.build_policy() if state.policy is None else state.policy
        request = LaunchRequest(
            context.invocation,
            "",
            adapter.modes.get(state.mode, ()),
            state.mode,
            removed_tools=context.list_removed_tools(policy),
            persistent=resume_state.persistent,
            policy=policy,
        )
        model = self._choose_model()
        return TurnConfig(
            vendor=self._build_vendor_info(),
            session=self._build_session_config(policy),
            limits=self._build_limits(),
            model=model,
            requested_model=state.requested_model if state.requested_model != model else None,
            default_model="" if model else state.reported_model,
            cwd=context.cwd,
            tools=adapter.list_available_tools(request),
            mode=state.mode,
            redacts_secrets=context.settings.resolve_redaction_mode() == "all",
            asks_by_line=(lambda: state.answers_prompts) if context.dialect.asks_by_line else None,
            evaluator=_build_evaluator(adapter, request, resume_state),
            can_retry=self.retries_interrupted_streams,
            read_answer=self._schema.select_answer_parser(persistent=resume_state.persistent),
            data_dir=open_vendor_data_dir(adapter, self._environment),
            store_text=self._store_text,
            rejects_unknown_lines=is_sdk_rejecting_unknown_messages(context.environment),
            output_style=context.claude_settings.output_style,
            forwards_subagent_text=self._forwards_subagent_text(),
            failed_attempts=resume_state.failed_attempts,
            unsupported_rules=self._list_ignored_options(request),
            agents=tuple(agent.name for agent in state.usable_agents),
            has_rebuilt_history=resume_state.has_rebuilt_history,
            elapsed_ms=lambda: int((time.monotonic() - started_at) * 1000),
        )

    def _choose_model(self) -> str | None:
        """Return the model of the next turn, or None if the vendor chooses it."""
        state = self._state
        # No turn runs with an unknown model, but the lines of the refusal contain its name.
        if state.unknown_model:
            return state.unknown_model
        if not self._context.adapter.abilities.accepts_model:
            return None
        return state.model

    def _build_vendor_info(self) -> VendorInfo:
        adapter = self._context.adapter
        check = self._resume_state.version_check
        return VendorInfo(
            adapter.display_name,
            version=check.version if check.distrust or check.note else None,
            version_note=check.note,
            is_unattended=adapter.unattended or bool(check.distrust),
            unattended_reason=check.distrust,
            can_retract=adapter.abilities.can_repeat_reply or self.retries_interrupted_streams,
            has_claude_errors=adapter.passthrough,
            is_replay=bool(adapter.cli.replayed_vendor),
            trust_prompt=adapter.environment.trust_prompt_text,
            login_command=adapter.login_hint,
            clean_exit_codes=adapter.shutdown.clean_exit_codes,
        )

    def _build_session_config(self, policy: "Policy") -> SessionConfig:
        state = self._state
        vendor_session_usage = NO_VENDOR_SESSION_USAGE
        if self._resume_state.stored_session is not None:
            vendor_session_usage = self._resume_state.stored_session.vendor_session_usage
        return SessionConfig(
            state.options.session_id,
            requested_id=self._choose_session_id(),
            vendor_session_usage=vendor_session_usage,
            list_servers=lambda: (list_mcp_server_entries(state), state.list_sdk_mcp_tools()),
            list_server_names=lambda: self._list_server_names(policy),
            list_commands=lambda: list_command_names(state),
        )

    def _build_limits(self) -> ConversationLimits:
        """Return the limits that the shim applies, because the vendor does not."""
        adapter = self._context.adapter
        invocation = self._context.invocation
        vendor_counts_turns = (
            adapter.abilities.can_limit_turns and not self._resume_state.persistent
        )
        return ConversationLimits(
            max_turns=None if vendor_counts_turns else invocation.max_turns,
            requested_max_turns=invocation.max_turns,
            max_budget_usd=None if adapter.passthrough else invocation.max_budget_usd,
        )

    def _list_ignored_options(self, request: LaunchRequest) -> "tuple[UnsupportedRule, ...]":
        """Return the rules and options that have no effect with this vendor. `init` and the result
        report them.
        """
        context = self._context
        state = self._state
        persistent = self._resume_state.persistent
        return (
            *_list_unsupported_rules(
                context.adapter, request, context.claude_settings.unsupported_keys
            ),
            *_list_unsupported_agents(state),
            *state.ignored_options,
            *_list_unsupported_hooks(context.adapter, state, persistent=persistent),
            *state.ignored_command_fields,
        )

    def _forwards_subagent_text(self) -> bool:
        """Return whether the frontend wants text from subagents. Yume has no flag for this text and
        always receives it.
        """
        has_flag = any(
            name == FORWARD_SUBAGENT_TEXT for name, _ in self._context.invocation.other_flags
        )
        if has_flag:
            return True
        if self._state.forwards_subagent_text:
            return True
        return self._context.dialect.asks_by_line

    def _list_server_names(self, policy: "Policy") -> list[str]:
        """Return the names of MCP servers from the frontend's configuration, the rules and the
        vendor's own settings.
        """
        server_keys = self._context.adapter.environment.mcp_server_keys
        names = [
            *self._state.configured_servers,
            *self._state.sdk_servers.names,
            *policy.mcp_server_names_in_rules,
        ]
        if server_keys:
            from shim.process.vendor_servers import list_mcp_server_names

            names += list_mcp_server_names(
                server_keys, (self._context.cwd, self._environment.get("HOME", ""))
            )
        return names

    def _choose_session_id(self) -> str | None:
        """Return the session id that the frontend chose, or None. With None, the session id comes
        from the vendor's first event.
        """
        invocation = self._context.invocation
        resume_state = self._resume_state
        # If state events are enabled, the first line is written before the vendor's first event.
        if not self._context.adapter.passthrough and (
            invocation.input_format == "stream-json"
            or resume_state.forks_next
            or resume_state.stored_session is not None
            or self._state.options.state_events
        ):
            return self._state.options.session_id
        return invocation.session_id or validate_uuid(invocation.resume)

    # -- the end of a turn -------------------------------------------------------------------------

    def prepare_retry(self, stream: ChildStream) -> None:
        """Prepare to send the same message to a new child, which resumes the vendor's session if
        possible.
        """
        self.store_session(stream)
        if self._resume_state.vendor_session_id is None:
            stream.turn.conversation.vendor_session_id = None

    def store_session(self, stream: ChildStream) -> None:
        """Store the session data that the next child and a later `--resume` need. A real claude
        stores its own sessions.
        """
        turn = stream.turn
        if stream.is_turn_finished:
            if turn.assistant_message.number > 0 and not turn.is_error:
                self._resume_state.has_answered = True
            self._resume_state.failed_attempts = ()
            self._report_turn_end(stream)
        conversation = turn.conversation
        self._store_usage(turn)
        self._state.server_statuses = conversation.server_statuses
        self._store_offered_models(conversation.offered_models)
        self._store_offered_commands(conversation.offered_commands)
        if turn.config.model is None and turn.assistant_message.model != "unknown":
            self._state.reported_model = turn.assistant_message.model

        vendor_session = self._find_session_to_resume(turn)
        if vendor_session is None or conversation.session_id is None:
            return
        context = self._context
        resume_state = self._resume_state
        resume_state.vendor_session_id = vendor_session or None
        resume_state.forks_next = False
        if context.invocation.no_session_persistence:
            return
        created = 0.0
        if resume_state.stored_session:
            created = resume_state.stored_session.created
        session = store.StoredSession(
            context.adapter.name,
            vendor_session,
            context.cwd,
            turn.assistant_message.model,
            created,
            conversation.get_vendor_session_usage(vendor_session),
        )
        store.store_session(conversation.session_id, session, context.environment)

    def _report_turn_end(self, stream: ChildStream) -> None:
        """Log the end of a turn, and report its secrets and its diagnostics."""
        turn = stream.turn
        log_fields: dict[str, Any] = {
            "cause": turn.end_cause,
            "account": stream.diagnostics.build_report(),
        }
        self._context.log("turn ended", **log_fields, ms=turn.config.elapsed_ms())
        self._warn_about_secrets(stream)
        self.record_diagnostics(stream)

    def _store_usage(self, turn: "Turn") -> None:
        """Store the usage of the conversation, for reports to the frontend."""
        conversation = turn.conversation
        last_request: Mapping[str, int] = turn.assistant_message.last_usage
        if not any(last_request.values()):
            last_request = self._state.usage.last_request
        self._state.usage = SessionUsage(
            conversation.cost_usd,
            conversation.api_duration_ms,
            last_request,
            conversation.usage_by_model,
            conversation.context_tokens,
            conversation.context_window_tokens,
            conversation.context_window_by_model,
        )

    def _find_session_to_resume(self, turn: "Turn") -> str | None:
        """Return the id of the vendor's session, or the position in a replayed recording. Return ""
        if there is nothing to resume, and None if the shim does not store the session.
        """
        adapter = self._context.adapter
        resume_state = self._resume_state
        if adapter.cli.replay is not None and adapter.cli.replay.child_id:
            return adapter.cli.replay.child_id
        if adapter.passthrough and not self._context.is_translated:
            return None
        vendor_session = turn.conversation.vendor_session_id or None
        if vendor_session is None and turn.outcome_tracker.has_started:
            vendor_session = resume_state.assigned_id
        if vendor_session is None:
            return None
        if (
            adapter.session_traits.saves_late
            and not resume_state.vendor_session_id
            and not turn.assistant_message.usage_by_model
        ):
            # The first reply was cut off, so there is no vendor session to resume. The session is
            # stored anyway, because the frontend knows its id.
            return ""
        return vendor_session

    def _store_offered_models(self, models: "tuple[OfferedModel, ...]") -> None:
        """Store the models that the vendor has listed, for this and for later sessions."""
        if models == self._state.offered_models:
            return
        self._state.offered_models = models
        adapter = self._context.adapter
        if adapter.cli.replay is None:
            from shim.state.stored_models import store_offered_models

            store_offered_models(adapter.name, models, self._context.environment)

    def _store_offered_commands(self, commands: "tuple[OfferedCommand, ...]") -> None:
        """Store the commands that the vendor has offered, for this and for later sessions. An empty
        list is ignored, because it can mean that the vendor was not asked.
        """
        if not commands or commands == self._state.offered_commands:
            return
        self._state.offered_commands = commands
        context = self._context
        if context.adapter.cli.replay is None:
            from shim.state.stored_commands import store_offered_commands

            store_offered_commands(context.adapter.name, commands, context.environment, context.cwd)

    def store_empty_session(self, stream: ChildStream) -> None:
        """Store a new session before it has a vendor session, because the frontend knows its id."""
        context = self._context
        session_id = stream.turn.conversation.session_id
        if session_id is None or context.invocation.no_session_persistence:
            return
        model = stream.turn.assistant_message.model
        session = store.StoredSession(context.adapter.name, "", context.cwd, model)
        store.store_session(session_id, session, context.environment)

    def record_diagnostics(self, stream: ChildStream) -> None:
        """Record the repairs and unknown events of a turn. Later calls for the same turn do
        nothing.
        """
        if self._context.recorder is not None and stream.turn is not self._recorded_turn:
            self._recorded_turn = stream.turn
            self._context.recorder.record_diagnostics(stream.diagnostics)

    def _warn_about_secrets(self, stream: ChildStream) -> None:
        """Report on stderr how many secrets were redacted, once per turn, if the dialect allows
        such reports.
        """
        counts = stream.diagnostics.redactions
        if (
            counts
            and self._context.dialect.reports_secret_counts
            and stream.turn is not self._warned_turn
        ):
            from shim.core.secrets.redactor import describe_redactions

            self._warned_turn = stream.turn
            warn(f"{self._context.adapter.name}: {describe_redactions(counts)}\n")


def _list_unsupported_rules(
    adapter: Adapter, request: LaunchRequest, ignored_settings: Mapping[str, str]
) -> "tuple[UnsupportedRule, ...]":
    """Return the rules and settings that have no effect for this vendor. Without rules, nothing is
    imported.
    """
    policy = request.policy
    if policy is None or not (policy.allow or ignored_settings):
        return ()
    from shim.core.adapter.enforcement import list_unsupported_rules

    return list_unsupported_rules(adapter, policy, request, ignored_settings)


def _list_unsupported_agents(state: SessionState) -> "tuple[UnsupportedRule, ...]":
    """Return one entry for each source of subagents if the vendor cannot run them."""
    if not (state.agents and state.vendor.agents_error):
        return ()
    from shim.core.policy.policy import UnsupportedRule

    sources = dict.fromkeys(agent.source for agent in state.agents.values())
    return tuple(UnsupportedRule("agents", source, state.vendor.agents_error) for source in sources)


def _list_unsupported_hooks(
    adapter: Adapter, state: SessionState, *, persistent: bool
) -> "tuple[UnsupportedRule, ...]":
    """Return one entry for each event whose hooks in the frontend or in a settings file have a
    smaller effect than with the real claude.
    """
    events = [event for event, groups in state.raw_hooks.items() if groups]
    settings = state.claude_settings
    if not (events or settings.hooks) or state.vendor.runs_settings_hooks:
        return ()
    from shim.core.claude.hooks.unsupported import (
        HookSupport,
        list_unsupported_callbacks,
        list_unsupported_settings_hooks,
    )

    # A turn that a hook has ended early may have started no child.
    if state.vendor.asks_permissions and adapter.child_input_ref:
        persistent = True
    child_input = adapter.create_child_input() if persistent else None
    support = HookSupport(
        adapter.display_name,
        is_persistent=persistent,
        accepts_steering=child_input is not None and child_input.accepts_steering,
        asks_permissions=state.vendor.asks_permissions,
        changes_input=child_input is not None and child_input.changes_call_input,
        passes_reasons=child_input is not None,
        denies_calls=state.asks_permissions,
        runs_agents=not state.vendor.agents_error,
    )
    return (
        *list_unsupported_callbacks(events, support),
        *list_unsupported_settings_hooks(settings, support),
    )


def _build_evaluator(
    adapter: Adapter, request: LaunchRequest, resume_state: VendorSessionResumeState
) -> "PolicyEvaluator | None":
    """Return the evaluator for tool calls that the vendor runs without asking. Return None if no
    rules apply.

    If the installed version is not trusted, the vendor is not expected to deny forbidden calls
    itself.
    """
    policy = request.policy
    if not policy:
        return None
    from shim.core.policy.evaluate import PolicyEvaluator

    policy_support = adapter.policy_support
    can_ask = request.persistent
    if not can_ask:
        can_ask = policy_support.has_native_rules
    if resume_state.version_check.distrust:
        return PolicyEvaluator(policy, can_ask=can_ask)
    return PolicyEvaluator(
        policy,
        can_ask=can_ask,
        is_sent_to_vendor=adapter.accepts_rule,
        announces_first=policy_support.emits_call_before_hook,
        prompted_tools=resume_state.prompted_tools,
    )
