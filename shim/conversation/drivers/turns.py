"""The turns of one vendor in a conversation: on which terms each begins, and what is remembered
when it has ended.
"""

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from shim.conversation.drivers.setup import AnswerSchema, ConversationContext, ResumeState
from shim.core.adapter.pump import ChildStream
from shim.core.adapter.translation import StreamTranslation
from shim.core.adapter.vendor import Adapter, LaunchRequest
from shim.core.claude.facts import SessionState
from shim.core.reading.ids import check_uuid
from shim.core.reading.limits import StoreText
from shim.core.turn.terms import (
    NO_THREAD_USAGE,
    ConversationLimits,
    OutputWriter,
    SessionConfig,
    TurnConfig,
    VendorInfo,
)
from shim.io.raw_output import warn
from shim.process.environment import is_strict_sdk
from shim.process.vendor_home import open_data_dir
from shim.state import store
from shim.state.files import select_line_buffer

if TYPE_CHECKING:
    from shim.core.adapter.translator import Translator
    from shim.core.policy.judge import PolicyEvaluator
    from shim.core.policy.policy import Policy
    from shim.core.policy.rules import UnsupportedRule
    from shim.core.turn.turn import Turn

    TranslatorFactory = Callable[[type[Translator]], Callable[..., Translator]]

FORWARD_SUBAGENT_TEXT = "--forward-subagent-text"


class TurnLifecycle:
    """`keep` stores a text that is too large for a line; `environment` is that of the vendor's
    children.
    """

    def __init__(
        self,
        setup: ConversationContext,
        facts: SessionState,
        standing: ResumeState,
        schema: AnswerSchema,
        pen: OutputWriter,
        *,
        store_text: StoreText,
        environment: Mapping[str, str],
    ) -> None:
        self._context = setup
        self._state = facts
        self._resume_state = standing
        self._schema = schema
        self._writer = pen
        self._store_text = store_text
        self._environment = environment
        self.create_stream: Callable[..., ChildStream] = ChildStream
        self._warned_turn: Turn | None = None  # the last turn whose secrets were counted on stderr
        self._recorded_turn: Turn | None = None  # the last turn whose account was recorded

    @property
    def replays_messages(self) -> bool:
        """Whether a message of the frontend's is said back (contract C15)."""
        return self._context.invocation.streams.replay_user_messages

    @property
    def retries_cut_streams(self) -> bool:
        """Whether a stream that broke off is asked for once more (Yume's R11)."""
        return self._context.dialect.retries_broken_answers

    # -- a turn begins -----------------------------------------------------------------------------

    def open_stream(
        self, previous: ChildStream | None, reader: "TranslatorFactory | None" = None
    ) -> ChildStream:
        """The pump of a new child; `previous` is that of the child before it.

        `reader` makes of the vendor's translator who reads the child's lines.
        """
        setup, vendor = self._context, self._context.adapter
        before = None if previous is None else previous.turn
        # the child begins a session of its own, which was told nothing yet
        if self._resume_state.vendor_session_id is None:
            self._resume_state.has_system_prompt = False
            if before is not None:
                before.conversation.vendor_session_id = None
        inbound = setup.settings.max_inbound_bytes
        translator = vendor.translator_class if reader is None else reader(vendor.translator_class)
        translation = StreamTranslation(
            translator,
            self.build_turn_config(),
            self._writer,
            before,
            max_line_bytes=inbound,
            open_aside_file=select_line_buffer(inbound),
        )
        known = {} if previous is None else {"known": previous.resume_info}
        return self.create_stream(translation, saves_late=vendor.session_traits.saves_late, **known)

    def build_turn_config(self) -> TurnConfig:
        """What is agreed for the turn that begins now."""
        setup, facts, standing = self._context, self._state, self._resume_state
        vendor, invocation, began = setup.adapter, setup.invocation, time.monotonic()
        policy = setup.build_policy() if facts.policy is None else facts.policy
        removed = setup.list_removed_tools(policy)
        request = LaunchRequest(
            invocation,
            "",
            vendor.modes.get(facts.mode, ()),
            facts.mode,
            removed_tools=removed,
            persistent=standing.persistent,
            policy=policy,
        )
        model = facts.model if vendor.abilities.accepts_model else None
        counts = vendor.abilities.can_limit_turns and not standing.persistent
        return TurnConfig(
            vendor=VendorInfo(
                vendor.display_name,
                version=standing.version_check.version
                if standing.version_check.distrust or standing.version_check.note
                else None,
                version_note=standing.version_check.note,
                is_unattended=vendor.unattended or bool(standing.version_check.distrust),
                unattended_reason=standing.version_check.distrust,
                can_retract=vendor.abilities.can_repeat_reply or self.retries_cut_streams,
                has_claude_errors=vendor.passthrough,
                is_replay=bool(vendor.cli.replayed_vendor),
                trust_prompt=vendor.environment.trust_prompt_text,
                login_command=vendor.login_hint,
                clean_exit_codes=vendor.shutdown.clean_exit_codes,
            ),
            session=SessionConfig(
                facts.options.session_id,
                requested_id=self._choose_session_id(),
                thread_usage=NO_THREAD_USAGE
                if standing.stored_session is None
                else standing.stored_session.thread,
                list_servers=lambda: (facts.describe_mcp_servers(), facts.list_sdk_tools()),
                list_server_names=lambda: self._list_server_names(policy),
            ),
            limits=ConversationLimits(
                max_turns=None if counts else invocation.limits.max_turns,
                requested_max_turns=invocation.limits.max_turns,
                max_budget_usd=None if vendor.passthrough else invocation.limits.max_budget_usd,
            ),
            model=model,
            requested_model=None if facts.requested_model == model else facts.requested_model,
            default_model="" if model else facts.reported_model,
            cwd=setup.cwd,
            tools=vendor.list_available_tools(request),
            mode=facts.mode,
            redacts_secrets=setup.settings.resolve_redaction() == "all",
            asks_by_line=(lambda: facts.answers_prompts) if setup.dialect.asks_by_line else None,
            evaluator=_build_evaluator(vendor, request, standing),
            can_retry=self.retries_cut_streams,
            read_answer=self._schema.select_parser(persistent=standing.persistent),
            data_dir=open_data_dir(vendor, self._environment),
            store_text=self._store_text,
            rejects_unknown_lines=is_strict_sdk(setup.environment),
            output_style=setup.claude_settings.output_style,
            forwards_subagent_text=self._forwards_subagent_text(),
            failed_attempts=standing.failed_attempts,
            unsupported_rules=_list_unsupported_rules(
                vendor, request, setup.claude_settings.unsupported_keys
            ),
            elapsed_ms=lambda: int((time.monotonic() - began) * 1000),
        )

    def _forwards_subagent_text(self) -> bool:
        """Return whether the frontend wants texts of subagents. Yume has no flag for them and
        always gets them.
        """
        has_flag = any(
            name == FORWARD_SUBAGENT_TEXT for name, _ in self._context.invocation.other_flags.other
        )
        return has_flag or self._state.forwards_subagent_text or self._context.dialect.asks_by_line

    def _list_server_names(self, policy: "Policy") -> list[str]:
        """Return the names of MCP servers in the frontend's configuration, the rules and the
        vendor's settings.
        """
        files = self._context.adapter.environment.mcp_server_keys
        names = [
            *self._state.configured_servers,
            *self._state.sdk_servers.names,
            *policy.server_names,
        ]
        if files:
            from shim.process.vendor_servers import list_server_names

            names += list_server_names(
                files, (self._context.cwd, self._environment.get("HOME", ""))
            )
        return names

    def _choose_session_id(self) -> str | None:
        """The id that the frontend chose; None leaves the choice to the vendor's first event."""
        invocation, standing = self._context.invocation, self._resume_state
        ours = (
            invocation.streams.input_format == "stream-json"
            or standing.forks_next
            or standing.stored_session is not None
        )
        # whose first line is said before the vendor's first event
        ours = ours or bool(self._state.options.state_events)
        if ours and not self._context.adapter.passthrough:
            return self._state.options.session_id
        return invocation.session.session_id or check_uuid(invocation.session.resume or "")

    # -- a turn has ended --------------------------------------------------------------------------

    def prepare_retry(self, pump: ChildStream) -> None:
        """The next child answers the same message: in the vendor's session, if it can be resumed."""
        self.store_session(pump)
        if self._resume_state.vendor_session_id is None:
            pump.turn.conversation.vendor_session_id = None

    def store_session(self, pump: ChildStream) -> None:
        """What the next child, and a later `--resume`, need to know. A real claude keeps its own
        sessions.
        """
        setup, standing, turn = self._context, self._resume_state, pump.turn
        vendor, conversation = setup.adapter, turn.conversation
        if pump.is_finished:
            standing.has_answered = standing.has_answered or (
                turn.message_count > 0 and not turn.is_error
            )
            standing.failed_attempts = ()
            facts: dict[str, Any] = {
                "cause": turn.cause,
                "account": pump.translation.diagnostics.build_report(),
            }
            setup.log("turn ended", **facts, ms=turn.config.elapsed_ms())
            self._warn_about_secrets(pump)
            self.record_diagnostics(pump)
        self._state.cost_usd = conversation.cost_usd
        self._state.context_tokens = (
            sum(turn.assistant_message.last_usage.values()) or self._state.context_tokens
        )
        if turn.turn_start.config.model is None and turn.model != "unknown":
            self._state.reported_model = turn.model
        place = (
            vendor.cli.read_replay_position()
            if vendor.cli.read_replay_position is not None
            else None
        )
        own = (
            place
            or conversation.vendor_session_id
            or (standing.assigned_id if turn.has_started else None)
        )
        keeps_itself = vendor.passthrough and not setup.is_translated
        if (keeps_itself and not place) or conversation.session_id is None or own is None:
            return
        if (
            not place
            and vendor.session_traits.saves_late
            and not standing.vendor_session_id
            and not turn.usage_by_model
        ):
            # the first reply was cut: there is nothing to resume, but the id is the frontend's
            own = ""
        standing.vendor_session_id, standing.forks_next = own or None, False
        if setup.invocation.session.no_session_persistence:
            return
        created = standing.stored_session.created if standing.stored_session else 0.0
        session = store.StoredSession(
            vendor.name, own, setup.cwd, turn.model, created, conversation.get_thread_usage(own)
        )
        store.store_session(conversation.session_id, session, setup.environment)

    def record_diagnostics(self, pump: ChildStream) -> None:
        """Record once for a turn what was mended in it, and what was not understood."""
        if self._context.recorder is not None and pump.turn is not self._recorded_turn:
            self._recorded_turn = pump.turn
            self._context.recorder.record_diagnostics(pump.translation.diagnostics)

    def _warn_about_secrets(self, pump: ChildStream) -> None:
        """Say once for a turn how many secrets were left out, where a person reads our stderr."""
        counts = pump.translation.diagnostics.redactions
        if (
            counts
            and self._context.dialect.reports_secret_counts
            and pump.turn is not self._warned_turn
        ):
            from shim.core.secrets.redactor import describe_redactions

            self._warned_turn = pump.turn
            warn(f"{self._context.adapter.name}: {describe_redactions(counts)}\n")


def _list_unsupported_rules(
    vendor: Adapter, request: LaunchRequest, unheeded: tuple[str, ...]
) -> "tuple[UnsupportedRule, ...]":
    """What of the rules and settings has no effect; nothing is loaded where there are none."""
    policy = request.policy
    if policy is None or not (policy.allow or unheeded):
        return ()
    from shim.core.adapter.allowances import list_unsupported_rules

    return list_unsupported_rules(vendor, policy, request, unheeded)


def _build_evaluator(
    vendor: Adapter, request: LaunchRequest, standing: ResumeState
) -> "PolicyEvaluator | None":
    """Return the judge of calls that the vendor makes without asking, or None if no rule restricts
    them.

    A vendor whose promises do not hold is not expected to deny a forbidden call itself.
    """
    policy = request.policy
    if not policy:
        return None
    from shim.core.policy.judge import PolicyEvaluator

    bound = vendor.policy_support
    questions = request.persistent or bound.has_native_rules
    if standing.version_check.distrust:
        return PolicyEvaluator(policy, can_ask=questions)
    return PolicyEvaluator(
        policy,
        can_ask=questions,
        is_sent_to_vendor=bound.accepts_rule,
        announces_first=bound.emits_call_before_hook,
        prompted_tools=standing.prompted_tools,
    )
