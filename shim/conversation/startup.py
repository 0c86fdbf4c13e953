"""From an invocation to a running conversation: everything that is decided before the loop runs.

The child of a single message is started before anyio is imported: it gets going while we do. In a
conversation the frontend is answered first, and no child exists before its first message.
"""

import os
from collections.abc import Callable, Mapping, Sequence

from shim.adapters import FLAT_ADAPTERS, VENDORS, get_adapter
from shim.conversation.drivers.context import ConversationContext, resolve_vendor_model
from shim.conversation.drivers.launcher import ChildLauncher, LaunchPlan, build_frontend_vendor_info
from shim.conversation.fallback.vendor_choice import REPLAY_VENDOR, VendorChoice, choose_vendors
from shim.conversation.fallback.vendor_list import FallbackVendorList
from shim.conversation.invocation import (
    apply_claude_settings,
    apply_yume_permission_mode,
    can_change_permission_mode,
    can_prompt_frontend,
    check_session_flags,
    choose_stream_terminator,
    find_replay_path,
    require_resume_at_last_message,
    resolve_requested_permission_mode,
    resolve_resumed_session,
    select_driver,
    validate_invocation,
)
from shim.conversation.session_state import build_session_state, load_mcp_servers
from shim.core.adapter.routing import parse_model_route
from shim.core.claude.argv.invocation import Invocation
from shim.core.dialects import DIALECTS
from shim.core.errors import NOTE_PASSED_OVER, FrontendError, ShimError
from shim.core.policy.policy import BYPASS_MODE
from shim.core.policy.settings import ClaudeSettings
from shim.core.reading.ids import validate_uuid
from shim.core.reading.typed import TYPE_CHECKING, Any, NamedTuple
from shim.io.ids import create_session_ids
from shim.io.log import open_log
from shim.io.prompt import load_system_prompt_files, read_prompt
from shim.io.stderr import warn
from shim.process.environment import MAX_DEPTH, get_working_directory, parse_shim_depth
from shim.process.version_check import find_installed_adapter
from shim.state import config
from shim.state.claude_settings import load_claude_settings
from shim.state.own_profiles import check_vendor_names, register_user_profiles

if TYPE_CHECKING:
    from shim.conversation.fallback.chain import FallbackCandidate, FallbackChain
    from shim.conversation.runner import ConversationRunner, Transport
    from shim.core.adapter.adapter import Adapter
    from shim.core.turn.context import OutputWriter
    from shim.io.signals import SignalRecorder
    from shim.io.stdin import Stdin
    from shim.recording.recorder import RunRecorder
    from shim.recording.selection import RecordingSet


class StdinInput(NamedTuple):
    """What a frontend asks, once that was read from stdin.

    text           the only message, "" where messages come through `source`
    source         our stdin, of which something was read already
    may_send_more  the frontend may say more while the message is answered
    wants_answers  a child that stays is wanted, for more messages or for answers to its questions
    """

    text: str
    source: "Stdin | None" = None
    may_send_more: bool = False
    wants_answers: bool = False


class ConversationStartup:
    """One conversation, from its invocation.

    `display_name` is the frontend's own name for the session, where that is no UUID. `read_input`
    reads from stdin what is asked, for a frontend that does not ask as Claude's do.
    """

    def __init__(
        self,
        invocation: Invocation,
        installed: Mapping[str, str],
        argv: Sequence[str] = (),
        *,
        display_name: str = "",
        read_input: "Callable[[ConversationStartup], StdinInput] | None" = None,
        launcher_class: type[ChildLauncher] = ChildLauncher,
        settings: "config.ShimSettings | None" = None,
    ) -> None:
        """`argv` are the words that the invocation was read from, for the recording of the
        run.

        `settings` where they were read already.
        """
        self._launcher_class = launcher_class
        self._display_name = display_name
        self._read_input = read_input
        self._stdin_input: StdinInput | None = None
        self._has_rules = False  # rules restrict more than the mode, so the child should ask
        self.recorder: RunRecorder | None = None
        self.environment: Mapping[str, str] = os.environ
        self.cwd = get_working_directory()
        if not self.cwd:
            raise FrontendError(
                "the working directory does not exist any more", hint="start from another one"
            )
        self.settings = settings or config.load_shim_settings(
            invocation, self.environment, installed
        )
        register_user_profiles(self.environment, invocation.shim_flags.shim_config)
        check_vendor_names(self.settings)
        self.log = open_log(
            None if launcher_class.is_dry else self.settings.log,
            redact=self.settings.resolve_redaction_mode() != "none",
        )
        flat = DIALECTS[self.settings.dialect].is_flat
        if flat:
            invocation = apply_yume_permission_mode(invocation)
        self.recordings: RecordingSet | None = None
        self._replay_path = find_replay_path(invocation, self.environment)
        adapter = invocation.shim_flags.shim_vendor if self._replay_path is None else REPLAY_VENDOR
        self.resumed_id, self.resumed_session = resolve_resumed_session(
            invocation, adapter, self.cwd, self.environment
        )
        self.vendor_choice = self._choose_vendors(invocation, installed)
        self.vendor_list = FallbackVendorList(
            self.vendor_choice.names,
            self.settings,
            self.environment,
            cwd=self.cwd,
            is_flat=flat,
            needs_prompts=flat and invocation.permissions.permission_prompt_tool == "stdio",
        )
        self.claude_settings = ClaudeSettings()
        if self.vendor_list.has_several:
            invocation = self._apply_settings(invocation)
        self.adapter = (
            self.vendor_list.select_first_usable_adapter(
                ""
                if can_change_permission_mode(invocation) and not launcher_class.is_dry
                else resolve_requested_permission_mode(invocation)
            )
            if self._replay_path is None
            else self._create_replay_adapter(self._replay_path, invocation)
        )
        vendor_name = self.adapter.name
        self.adapter = self._find_installed_adapter(self.adapter, self.environment)
        partial = invocation.streams.partial or DIALECTS[self.settings.dialect].streams_fragments
        invocation = invocation.with_flags(
            model=self.vendor_list.select_vendor_model(vendor_name, self.vendor_choice.model),
            partial=partial,
        )
        self._mcp_servers: Mapping[str, Any] = {}
        # a real claude reads its files itself
        if self.vendor_list.is_translated or not self.adapter.passthrough:
            invocation = load_system_prompt_files(invocation)
            self._mcp_servers = load_mcp_servers(invocation, self.cwd)
        if not (self.vendor_list.has_several or self.adapter.passthrough):
            invocation = self._apply_settings(invocation)
        self.mode = resolve_requested_permission_mode(invocation)
        self.invocation = validate_invocation(invocation)
        path = config.resolve_recording_path(invocation, self.environment, installed, self.settings)
        if path and not launcher_class.is_dry:
            from shim.process.probe import find_cached_version
            from shim.recording.open_recorder import open_recorder

            self.recorder = open_recorder(
                path,
                self.adapter.display_name,
                self.settings,
                vendor_version=find_cached_version(
                    self.adapter,
                    self.settings.get_vendor_settings(self.adapter.name),
                    self.environment,
                    self.cwd,
                ),
                argv=argv,
                environment=self.environment,
                cwd=self.cwd,
            )
        for attempt in self.vendor_list.skipped_attempts:
            warn(f"{attempt.vendor} cannot answer ({attempt.cause}): {attempt.reason}\n")
            if self.recorder is not None:
                self.recorder.record_run_event(NOTE_PASSED_OVER, started=False, **attempt.to_json())

    def _apply_settings(self, invocation: Invocation) -> Invocation:
        """The invocation under Claude's settings files; a real claude reads them itself."""
        self.claude_settings = load_claude_settings(invocation, self.environment, self.cwd)
        return apply_claude_settings(invocation, self.claude_settings)

    def _create_replay_adapter(self, path: str, invocation: Invocation) -> "Adapter":
        from shim.recording.selection import RecordingSet

        self.recordings = RecordingSet(path, self.cwd, self.environment)
        vendor_session = (
            self.resumed_session.vendor_session
            if self.resumed_session and self.resumed_session.vendor == REPLAY_VENDOR
            else ""
        )
        return self.recordings.create_replay_adapter(
            invocation.prompt, vendor_session, without_passthrough=self.vendor_list.is_translated
        )

    def _choose_vendors(self, invocation: Invocation, installed: Mapping[str, str]) -> VendorChoice:
        """The vendors that are meant, and the model for them."""
        if self._replay_path is not None:
            source = "--shim-vendor" if invocation.shim_flags.shim_vendor else "SHIM_VENDOR"
            return VendorChoice(
                (REPLAY_VENDOR,), parse_model_route(invocation.model, VENDORS).model, source
            )
        session = self.resumed_session.vendor if self.resumed_session else None
        return choose_vendors(
            invocation,
            installed,
            self.environment,
            self.settings.vendor,
            session_vendor=session,
            cwd=self.cwd,
        )

    def run(self, signals: "SignalRecorder", transport: "Transport | None" = None) -> int:
        """Start the child, then the loop; the exit status. `transport` stand in the place of our
        stdin and stdout.
        """
        if self._read_input is not None:
            self._stdin_input = stdin_input = self._read_input(self)
            if stdin_input.source is not None:
                self.invocation = self.invocation.with_flags(input_format="stream-json")
        try:
            return self._run_conversation(signals, transport)
        except ShimError as error:
            error.vendor, error.failed_attempts = (
                self.adapter.name,
                tuple(self.vendor_list.skipped_attempts),
            )
            raise

    def plan_first_child_launch(
        self, *, allow_mode_change: bool = False
    ) -> "tuple[ChildLauncher, LaunchPlan]":
        """Return the launcher of the first child and what would start it. Raise ShimError if no
        turn can begin.

        With `allow_mode_change`, a mode that the vendor lacks is accepted: the frontend can choose
        another mode before its first message.
        """
        launcher, reads_messages = (
            self._prepare_launcher(),
            self.invocation.streams.input_format == "stream-json",
        )
        persistent = (
            self._can_keep_child(self.adapter)
            if reads_messages or self._needs_asking_child(launcher.policy.has_rules)
            else False
        )
        is_passthrough = (
            reads_messages and self.adapter.passthrough and not self.vendor_list.is_translated
        )
        if allow_mode_change and self.mode not in self.adapter.modes:
            launcher.session_state.mode = "default"
        return launcher, launcher.plan_child_launch(
            self.invocation.prompt or "(the prompt)", persistent=persistent or is_passthrough
        )

    def _prepare_launcher(self) -> ChildLauncher:
        """What starts the children, once it is certain that there may be one."""
        self.adapter = self._select_driver_adapter(self.adapter)
        if not can_change_permission_mode(self.invocation):
            self.adapter.resolve_permission_mode_args(self.mode)
        if parse_shim_depth(self.environment) >= MAX_DEPTH:
            raise FrontendError(
                f"the shim was started inside itself {MAX_DEPTH} times", hint="check SHIM_VENDOR"
            )
        if self.vendor_list.has_several or not self.adapter.passthrough:
            is_replay = self.recordings is not None and self.recordings.has_session(
                self.invocation.session.resume or ""
            )
            check_session_flags(
                self.invocation.session,
                self.adapter,
                self.resumed_session,
                self.environment,
                is_replay=is_replay,
            )
            require_resume_at_last_message(
                self.invocation.session, self.adapter, self._load_resumed_uuids
            )
        model = resolve_vendor_model(self.invocation.model or "", self.adapter, self.settings)
        for warning in self.adapter.list_ignored_flags(self.invocation.with_flags(model=model)):
            warn(warning)
        launcher = self._create_launcher(*create_session_ids())
        launcher.locate_program()
        return launcher

    def _load_resumed_uuids(self) -> list[str]:
        """Return the message ids of the resumed session, or [] if it has no transcript."""
        from shim.io.transcript import read_message_uuids

        return read_message_uuids(self._find_resumed_transcript())

    def _find_resumed_transcript(self) -> str:
        """Return the path of the resumed session's transcript, or ""."""
        from shim.io.transcript import Transcript

        if self.resumed_session is None:
            return ""
        return Transcript(self.environment, self.resumed_session.cwd, "").build_path(
            self.resumed_id or ""
        )

    def _run_conversation(self, signals: "SignalRecorder", transport: "Transport | None") -> int:
        launcher, skipped_attempts = (
            self._prepare_launcher(),
            [attempt.to_json() for attempt in self.vendor_list.skipped_attempts],
        )
        self.log(
            "vendor chosen",
            level="debug",
            vendor=self.adapter.name,
            place=self.vendor_choice.source,
            skipped=skipped_attempts,
        )
        from shim.conversation.fallback.chain import FallbackCandidate
        from shim.conversation.runner import ConversationRunner

        first = FallbackCandidate(launcher, self._can_keep_child(self.adapter))
        launcher.resume_state.failed_attempts = tuple(self.vendor_list.skipped_attempts)
        chain = self._build_fallback_chain(first)
        runner = ConversationRunner(
            first,
            self.invocation,
            signals,
            has_transcript=self._needs_transcript(),
            chain=chain,
            transport=transport,
        )
        signals.raise_if_stopped()
        return self._start_run_mode(runner)

    def _find_installed_adapter(
        self, adapter: "Adapter", environment: Mapping[str, str]
    ) -> "Adapter":
        """Return the vendor whose program is installed, if two vendors have programs of the same
        name.
        """
        settings = self.settings.get_vendor_settings(adapter.name)
        flat = self.vendor_list.is_translated
        remembered_only = self._launcher_class.uses_remembered_help
        return find_installed_adapter(
            adapter, settings, environment, self.cwd, flat=flat, cache_only=remembered_only
        )

    def _select_driver_adapter(
        self, adapter: "Adapter", environment: Mapping[str, str] | None = None
    ) -> "Adapter":
        return select_driver(
            adapter, self.invocation, self.settings, environment or self.environment, self.cwd
        ).adapter

    def _build_fallback_chain(self, first: "FallbackCandidate") -> "FallbackChain | None":
        """The vendors that may answer in each other's place, where there are several, or the ways
        of the one.
        """
        if len(self.vendor_list.remaining_names) == 1:
            return self._build_driver_chain(first)
        from shim.conversation.fallback.chain import FallbackChain

        candidates, state = (
            {self.vendor_list.remaining_names[0]: first},
            first.launcher.session_state,
        )

        def prepare_candidate(vendor_name: str) -> "FallbackCandidate":
            candidate = candidates.get(vendor_name) or self._create_candidate(
                vendor_name, first.launcher
            )
            candidates[vendor_name], adapter = candidate, candidate.launcher.adapter
            state.switch_vendor(
                build_frontend_vendor_info(adapter, persistent=candidate.persistent)
            )
            return candidate

        return FallbackChain(
            self.vendor_list.remaining_names, self.vendor_list.skipped_attempts, prepare_candidate
        )

    def _build_driver_chain(self, first: "FallbackCandidate") -> "FallbackChain | None":
        """Both ways of a vendor that is driven so that it asks, unless the other one asks less, or
        lets more run.
        """
        vendor_name = self.adapter.name
        if (
            vendor_name not in VENDORS
            or self._asks_frontend
            or self.settings.get_vendor_settings(vendor_name).driver
            or self.adapter.cli.build_two_way
        ):
            return None
        adapter = get_adapter(vendor_name, without_passthrough=self.vendor_list.is_translated)
        runs_more = adapter.unattended and self.mode != BYPASS_MODE
        if adapter.cli.build_two_way is None or self.mode not in adapter.modes or runs_more:
            return None
        from shim.conversation.fallback.driver_chain import build_driver_fallback_chain

        launcher = first.launcher.create_for_adapter(
            adapter, self.environment, stored_session=self.resumed_session
        )
        return build_driver_fallback_chain(
            first, launcher, persistent=self._can_keep_child(adapter)
        )

    def _create_candidate(
        self, vendor_name: str, first_launcher: ChildLauncher
    ) -> "FallbackCandidate":
        """The candidate of another vendor. A mistake in its settings is told by its first turn."""
        from shim.conversation.fallback.chain import FallbackCandidate

        environment = self.vendor_list.build_environment(vendor_name)
        adapter = self._select_driver_adapter(
            self._find_installed_adapter(
                get_adapter(vendor_name, without_passthrough=True), environment
            ),
            environment=environment,
        )
        launcher = first_launcher.create_for_adapter(
            adapter, self.vendor_list.build_environment(vendor_name)
        )
        try:
            self.vendor_list.require_permission_prompts(adapter)
            return FallbackCandidate(launcher, self._can_keep_child(adapter))
        except FrontendError as error:
            launcher.refusal_error = error
            return FallbackCandidate(launcher, persistent=False)

    def _start_run_mode(self, runner: "ConversationRunner") -> int:
        """The way in which the frontend asks: one message or many."""
        if self._stdin_input is not None:
            return self._run_stdin_input(runner, self._stdin_input)
        if self.invocation.streams.input_format == "stream-json":
            if self.adapter.passthrough and not self.vendor_list.is_translated:
                return runner.run_passthrough()
            return runner.run_conversation()
        if self._needs_asking_child(runner.has_permission_rules):
            # stdin carries the answers if the frontend can see the prompts; otherwise it is a part
            # of the message
            can_answer = bool(self.invocation.prompt) and can_prompt_frontend(self.invocation)
            message = self.invocation.prompt if can_answer else self._read_prompt()
            return runner.run_conversation(message, can_answer=can_answer)
        return runner.run_one_shot(self._read_prompt())

    @property
    def _asks_frontend(self) -> bool:
        """Whether the frontend wants to be asked, through stdin and stdout."""
        return self.invocation.permissions.permission_prompt_tool == "stdio"

    def _needs_asking_child(self, has_rules: bool) -> bool:
        """Whether a single message needs a child that asks: to ask the frontend, or to be judged by
        the rules.
        """
        names = self.vendor_list.remaining_names[1:] if self.vendor_list.has_several else ()
        vendors = [self.adapter, *(get_adapter(name, without_passthrough=True) for name in names)]
        # only a child of one message keeps to a schema itself, but its edits would leave the folder
        uses_schema = self.invocation.json_schema is not None and self.mode != "acceptEdits"
        needs_gate = has_rules or (
            not uses_schema
            and any(adapter.needs_external_policy_check(self.mode) for adapter in vendors)
        )
        return (self._asks_frontend or needs_gate or self.adapter.cli.always_keeps_child) and any(
            map(self._can_keep_child, vendors)
        )

    def _run_stdin_input(self, runner: "ConversationRunner", stdin_input: StdinInput) -> int:
        if not (stdin_input.source or stdin_input.may_send_more):
            # then the child need not wait for what reads frames
            if self._needs_asking_child(runner.has_permission_rules):
                return runner.run_conversation(stdin_input.text, can_answer=False)
            return runner.run_one_shot(stdin_input.text)
        return runner.run_conversation(
            None if stdin_input.source is not None else stdin_input.text, source=stdin_input.source
        )

    def _read_prompt(self) -> str:
        return read_prompt(self.invocation, 0, self.settings.max_inbound_bytes, self.recorder)

    def _create_launcher(self, new_session_id: str, id_prefix: str) -> ChildLauncher:
        adapter, resumed_id = (
            self.adapter,
            "" if self.invocation.session.fork_session else self.resumed_id,
        )
        name = adapter.display_name if self.recordings is None else self.recordings.requested_vendor
        context = ConversationContext(
            adapter,
            self.invocation,
            self.settings,
            self.environment
            if not self.vendor_list.has_several
            else self.vendor_list.build_environment(adapter.name),
            self.cwd,
            self.log,
            self.recorder,
            is_translated=self.vendor_list.is_translated,
            claude_settings=self.claude_settings,
        )
        self._has_rules = context.build_policy().has_rules
        state = build_session_state(
            self.invocation,
            build_frontend_vendor_info(
                adapter, name=name, persistent=self._can_keep_child(adapter)
            ),
            self.settings,
            session_id=self.invocation.session.session_id
            or validate_uuid(resumed_id or "")
            or new_session_id,
            cwd=self.cwd,
            environment=self.environment,
            mode=self.mode,
            servers=self._mcp_servers,
            find_adapter=self._find_serving_adapter,
            build_environment=self.vendor_list.build_environment,
        )
        launcher = self._launcher_class(
            context,
            state=state,
            open_writer=lambda: self._open_writer(id_prefix),
            stored_session=self.resumed_session,
        )
        if self.recordings is not None:
            launcher.list_replayed_attempts = self.recordings.get_failed_vendor_attempts
        state.policy = context.build_policy()
        if self.invocation.session.fork_session and self._needs_transcript():
            launcher.forked_transcript = self._find_resumed_transcript()
        state.output_style = self.claude_settings.output_style or state.output_style
        # a hook is told the path, also of the first child
        if self.claude_settings.hooks and self._needs_transcript():
            from shim.io.transcript import Transcript

            state.transcript_path = Transcript(self.environment, self.cwd, "").build_path(
                state.options.session_id
            )
        return launcher

    def _find_serving_adapter(self, vendor_name: str) -> "Adapter":
        return (
            self.adapter
            if vendor_name == self.adapter.display_name or vendor_name not in VENDORS
            else get_adapter(vendor_name, without_passthrough=True)
        )

    def _open_writer(self, id_prefix: str) -> "OutputWriter":
        from shim.conversation.drivers.open_translation import create_output_writer

        return create_output_writer(
            self.settings.dialect,
            id_prefix,
            partial=self.invocation.streams.partial,
            terminator=choose_stream_terminator(self.invocation, self.settings.terminator),
            max_line_bytes=self.settings.max_line_bytes,
            display_name=self._display_name,
            has_history=self._needs_transcript(),
        )

    def _can_keep_child(self, adapter: "Adapter") -> bool:
        """Whether one child serves the conversation: the vendor can, and the settings do not say
        otherwise.
        """
        driver_setting = self.settings.get_vendor_settings(adapter.name).driver or config.TWO_WAY
        # only its questions keep them in the folder
        gates_edits = self.mode == "acceptEdits" and adapter.needs_external_policy_check(self.mode)
        wants_child = (
            self._stdin_input is None
            or self._stdin_input.wants_answers
            or gates_edits
            or self._has_rules
        )
        return adapter.cli.always_keeps_child or (
            wants_child and bool(adapter.child_input_ref) and driver_setting == config.TWO_WAY
        )

    def _needs_transcript(self) -> bool:
        """Whether history lists are to find the session; a real claude writes its own."""
        is_stored = self.settings.transcripts and not self.invocation.session.no_session_persistence
        return (
            is_stored
            and not self.adapter.passthrough
            and FLAT_ADAPTERS.keys().isdisjoint(self.vendor_list.remaining_names)
        )
