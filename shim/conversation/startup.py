"""Prepares a conversation, from the parsed command line to the start of the message loop.

`prepare_conversation` reads the settings and chooses the vendor. `plan_conversation` decides how
the conversation is run. In one-shot mode, the child process is started before anyio is imported.
Otherwise the frontend's first requests are answered first, and no child exists before the first
message.
"""

import os
from collections.abc import Callable, Mapping, Sequence

from shim.adapters import VENDORS, get_adapter
from shim.conversation.drivers.context import ConversationContext, resolve_vendor_model
from shim.conversation.drivers.launcher import ChildLauncher, LaunchPlan
from shim.conversation.fallback.vendor_list import (
    REPLAY_VENDOR,
    FallbackVendorList,
    VendorChoice,
    choose_vendors,
)
from shim.conversation.invocation import (
    FILE_CHECKPOINTS_VARIABLE,
    QUESTION_PREVIEW_VARIABLE,
    apply_claude_settings,
    apply_yume_permission_mode,
    can_change_permission_mode,
    check_session_flags,
    choose_result_terminator_line,
    find_replay_path,
    find_requested_resume_point,
    has_session_store,
    resolve_requested_permission_mode,
    resolve_resumed_session,
    runs_unsandboxed_as_root,
    select_driver,
    validate_invocation,
    wants_file_checkpoints,
)
from shim.conversation.plan import (
    ConversationPlan,
    ConversationPlanInput,
    PromptSource,
    RunMode,
    StdinInput,
    plan_conversation,
)
from shim.conversation.session_state import build_session_state, load_mcp_servers
from shim.core.claude.argv.invocation import Invocation
from shim.core.claude.argv.models import parse_model_route
from shim.core.dialects import DIALECTS
from shim.core.errors import (
    NOTE_PASSED_OVER,
    FrontendError,
    ShimError,
    UnsupportedPermissionModeError,
    VendorError,
)
from shim.core.policy.policy import BYPASS_MODE
from shim.core.policy.settings import ClaudeSettings
from shim.core.reading.typed import TYPE_CHECKING, Any, NamedTuple
from shim.core.reading.values import validate_uuid
from shim.io.ids import create_session_ids
from shim.io.prompt import load_system_prompt_files, read_prompt
from shim.io.stderr import LogFunction, open_log, warn
from shim.process.environment import MAX_DEPTH, get_working_directory, parse_shim_depth
from shim.process.spawn import kill_child
from shim.state import config
from shim.state.claude_settings import AGENTS_FLAG, find_agent_folders, load_claude_settings
from shim.state.own_profiles import check_vendor_names_in_settings, register_user_profiles

if TYPE_CHECKING:
    from shim.conversation.fallback.chain import FallbackChain
    from shim.conversation.runner import ConversationTransport
    from shim.core.adapter.adapter import Adapter
    from shim.core.claude.agent_definitions import AgentDefinitions
    from shim.core.claude.output_writer import OutputWriter
    from shim.core.claude.resume_point import ResumePoint
    from shim.core.policy.policy import Policy
    from shim.io.signals import SignalRecorder
    from shim.process.spawn import ChildSpawnResult
    from shim.recording.recorder import RunRecorder
    from shim.recording.selection import RecordingSet
    from shim.state.store import StoredSession

# A session is stored at the end of a turn, at most this long after the turn's last message was
# written.
MAX_STORE_DELAY_S = 5.0


class ConversationStartup(NamedTuple):
    """The data for planning and running a conversation, created by `prepare_conversation`."""

    invocation: Invocation  # with values from Claude's settings files applied
    settings: config.ShimSettings
    environment: Mapping[str, str]
    cwd: str
    log: LogFunction
    recorder: "RunRecorder | None"  # None if recording is off
    vendor_choice: VendorChoice
    vendor_list: FallbackVendorList
    adapter: "Adapter"  # the first vendor's adapter; the plan selects its driver
    mode: str  # the permission mode
    claude_settings: ClaudeSettings
    mcp_servers: Mapping[str, Any]  # the servers from the command line
    resumed_id: str | None
    resumed_session: "StoredSession | None"
    recordings: "RecordingSet | None"  # the recordings to replay instead of running a vendor
    launcher_class: type[ChildLauncher]
    display_name: str  # the frontend's session name, if it is not a UUID
    # Reads the start of stdin for a frontend that does not send messages in Claude's format.
    read_input: "Callable[[ConversationStartup], ConversationStartup] | None"
    stdin_input: StdinInput | None = None  # the input that was read by `read_input`
    # The message at which the session is resumed, if later messages are dropped.
    resume_point: "ResumePoint | None" = None

    def run(
        self, signals: "SignalRecorder", transport: "ConversationTransport | None" = None
    ) -> int:
        """Plan the conversation and run it. Return the exit status.

        `transport` replaces stdin and stdout.
        """
        startup = self
        if self.read_input is not None:
            startup = self.read_input(self)
        try:
            return startup.apply_resume_point()._run_plan(signals, transport)
        except ShimError as error:
            error.vendor = self.adapter.name
            error.failed_attempts = tuple(self.vendor_list.skipped_attempts)
            raise

    def plan_first_child_launch(self, *, allow_mode_change: bool = False) -> "PlannedChildLaunch":
        """Plan the conversation without running it, and return the planned launch of the first
        child.

        Raise ShimError if no turn can start. `allow_mode_change` accepts a permission mode that the
        vendor lacks, because the frontend can still change the mode before its first message.
        """
        startup = self.apply_resume_point()
        plan, launcher = startup._prepare_launcher(allow_mode_change=allow_mode_change)
        prompt = self.invocation.prompt
        if not prompt:
            prompt = "(the prompt)"
        return PlannedChildLaunch(
            plan, launcher, launcher.plan_child_launch(prompt, persistent=plan.persistent)
        )

    def apply_resume_point(self) -> "ConversationStartup":
        """Return the startup data with the message from `--resume-session-at`. Raise FrontendError
        if the session cannot be resumed at this message.

        If this machine only has the session's transcript, the vendor gets a new session.
        """
        if self.adapter.passthrough and not self.vendor_list.has_several:
            return self
        session = self.resumed_session
        if session is None:
            return self._adopt_transcript()
        if session.vendor != self.adapter.name:
            return self
        if self.invocation.resume_session_at is None:
            if not session.vendor_session or self._needs_rebuilt_history():
                return self._load_unstored_history(session)
            return self._adopt_newer_transcript(session)
        from shim.io.transcript import read_transcript_end

        transcript = read_transcript_end(self._find_resumed_transcript())
        point = find_requested_resume_point(self.invocation, self.adapter, transcript)
        if point is None:
            return self
        reason = f"{self.adapter.name} resumes the session at an earlier message"
        return self._replace(resume_point=point._replace(reason=reason))

    def _adopt_transcript(self) -> "ConversationStartup":
        """Return the startup data for resuming a session of which this machine only has the
        transcript.

        The SDKs write such a transcript from a session store before they resume a session of
        another machine.
        """
        session_id = validate_uuid(self.invocation.resume)
        if session_id is None or self.recordings is not None or self.vendor_list.has_several:
            return self
        from shim.core.claude.resume_point import find_end_of_history
        from shim.io.transcript import build_transcript_path, read_transcript_end
        from shim.state.store import StoredSession, can_store_sessions

        # Without a state folder, the id may be the vendor's own.
        if not can_store_sessions(self.environment):
            return self
        transcript = read_transcript_end(
            build_transcript_path(self.environment, self.cwd, session_id)
        )
        end = find_end_of_history(transcript)
        if end is None:
            return self
        point = find_requested_resume_point(self.invocation, self.adapter, transcript) or end
        reason = f"{self.adapter.name} does not have the session {session_id} on this machine"
        return self._rebuild_session(
            StoredSession(self.adapter.name, "", cwd=self.cwd), point, reason
        )

    def _needs_rebuilt_history(self) -> bool:
        """Return whether the vendor needs the transcript as text, because it would lose the session
        if it resumed the session itself.
        """
        if self.recordings is not None:
            return False
        environment = self._get_vendor_environment()
        choice = select_driver(self.adapter, self.invocation, self.settings, environment, self.cwd)
        return choice.adapter.session_traits.loses_sessions

    def _load_unstored_history(self, session: "StoredSession") -> "ConversationStartup":
        """Return the startup data with the history from the transcript, if the vendor has not
        stored the session or cannot resume it.

        Some vendors store a new session only after an answer. If the first turn failed after a
        session was resumed at an earlier message, only the transcript has the kept messages.
        """
        from shim.core.claude.resume_point import find_end_of_history
        from shim.core.claude.usage import NO_USAGE
        from shim.io.transcript import read_transcript_end

        transcript = read_transcript_end(self._find_resumed_transcript())
        end = find_end_of_history(transcript, needs_answer=True)
        if end is None:
            return self
        reason = f"{self.adapter.name} has not stored the session"
        if session.vendor_session:
            reason = f"{self.adapter.name} can lose a session that is resumed in a conversation"
            session = session._replace(vendor_session="", used=NO_USAGE)
        return self._rebuild_session(session, end, reason)

    def _adopt_newer_transcript(self, session: "StoredSession") -> "ConversationStartup":
        """Return the startup data with a new session of the vendor, if the transcript has messages
        that the vendor's session lacks.

        The SDKs write the transcript from their session store. It is newer if another machine has
        continued the session.
        """
        is_from_store = has_session_store(self.invocation)
        if not (is_from_store and session.vendor_session and session.updated):
            return self
        from shim.core.claude.resume_point import find_end_of_history
        from shim.core.claude.usage import NO_USAGE
        from shim.io.transcript import read_transcript_end

        end = find_end_of_history(read_transcript_end(self._find_resumed_transcript()))
        if end is None or end.written_at <= session.updated + MAX_STORE_DELAY_S:
            return self
        reason = (
            f"another machine has continued the session {self.resumed_id}, so {self.adapter.name} "
            "lacks its last messages"
        )
        return self._rebuild_session(
            session._replace(vendor_session="", used=NO_USAGE), end, reason
        )

    def _rebuild_session(
        self, session: "StoredSession", point: "ResumePoint", reason: str
    ) -> "ConversationStartup":
        """Return the startup data with a new session of the vendor. It begins with the kept
        messages.
        """
        return self._replace(resumed_session=session, resume_point=point._replace(reason=reason))

    def _run_plan(
        self, signals: "SignalRecorder", transport: "ConversationTransport | None"
    ) -> int:
        plan, launcher = self._prepare_launcher(keeps_session_id=transport is not None)
        self.log(
            "vendor chosen",
            level="debug",
            vendor=plan.adapter.name,
            place=self.vendor_choice.source,
            skipped=[attempt.to_json() for attempt in self.vendor_list.skipped_attempts],
        )
        chain = self._build_fallback_chain(plan, launcher)
        signals.raise_if_stopped()
        prompt = self._read_prompt(plan.prompt_source)
        signals.is_started = True
        first_child = None
        if plan.starts_child_first and _needs_child(launcher, prompt or ""):
            first_child = _start_first_child(plan, launcher, chain, prompt or "")
        try:
            # The message loop is imported while the child process starts.
            from shim.conversation.runner import ConversationRunner

            forked_transcript = ""
            if plan.keeps_transcript and self.invocation.fork_session:
                forked_transcript = self._find_resumed_transcript()
            runner = ConversationRunner(
                launcher,
                plan,
                signals,
                forked_transcript=forked_transcript,
                chain=chain,
                transport=transport,
            )
            source = None
            if self.stdin_input is not None:
                source = self.stdin_input.source
            return runner.run(prompt, source, first_child)
        except BaseException:
            if first_child is not None:
                kill_child(first_child.process)
            raise

    def _read_prompt(self, source: PromptSource) -> str | None:
        """Return the prompt. Return None if the prompts are messages on stdin."""
        match source:
            case PromptSource.MESSAGES:
                return None
            case PromptSource.ARGUMENT:
                return self.invocation.prompt
            case PromptSource.ARGUMENT_AND_STDIN:
                max_bytes = self.settings.max_inbound_bytes
                return read_prompt(self.invocation, 0, max_bytes, self.recorder)

    def _prepare_launcher(
        self, *, allow_mode_change: bool = False, keeps_session_id: bool = False
    ) -> tuple[ConversationPlan, ChildLauncher]:
        """Create the plan and the launcher for the child processes. Raise ShimError if no turn can
        start.
        """
        environment = self._get_vendor_environment()
        choice = select_driver(self.adapter, self.invocation, self.settings, environment, self.cwd)
        adapter = choice.adapter
        self._check_adapter(adapter)
        context = ConversationContext(
            adapter,
            self.invocation,
            self.settings,
            environment,
            self.cwd,
            self.log,
            self.recorder,
            is_translated=self.vendor_list.is_translated,
            claude_settings=self.claude_settings,
            resume_point=self.resume_point,
        )
        policy = context.build_policy()
        agents = self._load_agents(context)
        needs_relays = bool(agents) and adapter.abilities.accepts_mcp_servers
        other_names = self.vendor_list.remaining_names[1:]
        others = [get_adapter(name, without_passthrough=True) for name in other_names]
        plan = plan_conversation(
            ConversationPlanInput(
                (adapter, *others),
                choice.reason,
                self.invocation,
                self.settings,
                self.mode,
                policy.has_rules or needs_relays,
                self.vendor_list.is_translated,
                self.stdin_input,
                needs_relays,
                self._has_event_hooks(adapter),
            )
        )
        mode = self.mode
        if allow_mode_change and mode not in adapter.modes:
            mode = "default"
        launcher = self._create_launcher(
            context, plan, policy, agents, mode=mode, keeps_session_id=keeps_session_id
        )
        launcher.program.locate_program()
        return plan, launcher

    def _has_event_hooks(self, adapter: "Adapter") -> bool:
        """Return whether the shim runs hooks in Claude's settings files for events other than tool
        calls. A real claude runs its hooks itself.
        """
        if adapter.policy_support.has_native_rules:
            return False
        return bool(self.claude_settings.event_hooks)

    def _get_vendor_environment(self) -> Mapping[str, str]:
        """Return the environment variables for the first vendor."""
        if not self.vendor_list.has_several:
            return self.environment
        return self.vendor_list.build_environment(self.adapter.name)

    def _check_adapter(self, adapter: "Adapter") -> None:
        """Raise ShimError if the vendor lacks something that the frontend requests. Warn about
        flags that the vendor ignores.
        """
        invocation = self.invocation
        if not can_change_permission_mode(invocation):
            adapter.resolve_permission_mode_args(self.mode)
        if parse_shim_depth(self.environment) >= MAX_DEPTH:
            raise FrontendError(
                f"the shim started itself {MAX_DEPTH} times", hint="check SHIM_VENDOR"
            )
        if self.vendor_list.has_several or not adapter.passthrough:
            resumed_name = invocation.resume
            if not resumed_name:
                resumed_name = ""
            check_session_flags(
                invocation,
                adapter,
                self.resumed_session,
                self.environment,
                is_replay=self.recordings is not None and self.recordings.has_session(resumed_name),
            )
        model = resolve_vendor_model(invocation.model or "", adapter, self.settings)
        for warning in adapter.list_ignored_flags(invocation._replace(model=model)):
            warn(warning)
        if not adapter.passthrough:
            self._warn_about_environment(adapter)

    def _warn_about_environment(self, adapter: "Adapter") -> None:
        """Warn about variables that have no effect, and about root without a sandbox."""
        if wants_file_checkpoints(self.environment):
            warn(
                f"{FILE_CHECKPOINTS_VARIABLE} has no effect: {adapter.name} stores no checkpoints "
                "of files, so rewind_files is refused\n"
            )
        if self.environment.get(QUESTION_PREVIEW_VARIABLE):
            warn(
                f"{QUESTION_PREVIEW_VARIABLE} has no effect: questions of {adapter.name} have no "
                "previews\n"
            )
        if self._can_bypass_permissions() and runs_unsandboxed_as_root(self.environment):
            warn(
                f"warning: root may use the mode {BYPASS_MODE}. The real claude refuses this unless "
                "IS_SANDBOX=1 is set\n"
            )

    def _can_bypass_permissions(self) -> bool:
        """Return whether the session starts in the mode bypassPermissions or may change to it."""
        return self.mode == BYPASS_MODE or self.invocation.allow_skip_permissions

    def _load_agents(self, context: ConversationContext) -> "AgentDefinitions":
        """Load the subagents from Claude's files and from the command line. A real claude does that
        itself.
        """
        if context.adapter.passthrough and not context.is_translated:
            return {}
        folders = list(find_agent_folders(self.invocation, self.environment, self.cwd))
        if not folders and AGENTS_FLAG not in dict(self.invocation.other_flags):
            return {}
        from shim.state.claude_agents import load_agents

        return load_agents(self.invocation, self.environment, folders)

    def _create_launcher(
        self,
        context: ConversationContext,
        plan: ConversationPlan,
        policy: "Policy",
        agents: "AgentDefinitions",
        *,
        mode: str,
        keeps_session_id: bool,
    ) -> ChildLauncher:
        new_session_id, id_prefix = create_session_ids()
        invocation = self.invocation
        resumed_id = "" if invocation.fork_session else self.resumed_id
        session_id = invocation.session_id
        if not session_id:
            session_id = validate_uuid(resumed_id)
        if not session_id:
            session_id = new_session_id
        recordings = self.recordings
        name = ""
        if recordings is not None:
            name = recordings.requested_vendor
        state = build_session_state(
            context,
            plan,
            policy,
            mode=mode,
            session_id=session_id,
            name=name,
            servers=self.mcp_servers,
            agents=agents,
            vendor_list=self.vendor_list,
            keeps_session_id=keeps_session_id,
        )
        list_replayed_attempts = None
        if recordings is not None:
            list_replayed_attempts = recordings.get_failed_vendor_attempts
        return self.launcher_class(
            context,
            state=state,
            open_writer=lambda: self._open_writer(plan, id_prefix),
            stored_session=self.resumed_session,
            failed_attempts=tuple(self.vendor_list.skipped_attempts),
            list_replayed_attempts=list_replayed_attempts,
            mode_can_change=plan.run_mode in (RunMode.MESSAGES, RunMode.ANSWERS),
        )

    def _open_writer(self, plan: ConversationPlan, id_prefix: str) -> "OutputWriter":
        from shim.conversation.drivers.open_translation import create_output_writer

        return create_output_writer(
            self.settings.dialect,
            id_prefix,
            partial=self.invocation.partial,
            terminator=choose_result_terminator_line(self.invocation, self.settings.terminator),
            max_line_bytes=self.settings.max_line_bytes,
            display_name=self.display_name,
            has_history=plan.keeps_transcript,
        )

    def _build_fallback_chain(
        self, plan: ConversationPlan, launcher: ChildLauncher
    ) -> "FallbackChain | None":
        """Return the fallback chain: several vendors, or several drivers of one vendor. Return None
        if there is only one candidate.
        """
        if len(self.vendor_list.remaining_names) > 1:
            from shim.conversation.candidates import build_vendor_chain

            return build_vendor_chain(launcher, plan, self.vendor_list)
        if not self._can_change_driver(plan):
            return None
        from shim.conversation.candidates import build_driver_fallback_chain

        fallback_launcher = launcher.create_for_adapter(
            self.adapter, self.environment, stored_session=self.resumed_session
        )
        return build_driver_fallback_chain(launcher, fallback_launcher, plan)

    def _can_change_driver(self, plan: ConversationPlan) -> bool:
        """Return whether the one-way driver may replace the two-way driver if two-way mode fails.

        It may not if it would ask for fewer permissions or run more tool calls.
        """
        adapter = self.adapter
        if plan.adapter is adapter or not adapter.cli.has_two_way:
            return False
        if self.settings.get_vendor_settings(adapter.name).driver:
            return False
        if self.invocation.permission_prompt_tool == "stdio":
            return False
        if self.mode not in adapter.modes:
            return False
        return self.mode == BYPASS_MODE or not adapter.unattended

    def _find_resumed_transcript(self) -> str:
        """Return the path of the resumed session's transcript, or "" if there is none."""
        from shim.io.transcript import build_transcript_path

        if self.resumed_session is None:
            return ""
        return build_transcript_path(
            self.environment, self.resumed_session.cwd, self.resumed_id or ""
        )


def _start_first_child(
    plan: ConversationPlan, launcher: ChildLauncher, chain: "FallbackChain | None", prompt: str
) -> "ChildSpawnResult | None":
    """Start the first child process.

    Return None if the child cannot be started but the fallback chain has another candidate. The
    message loop tries that candidate.
    """
    try:
        return launcher.start_child(prompt, persistent=plan.persistent)
    except (VendorError, UnsupportedPermissionModeError):
        if chain is None:
            raise
        return None


def _needs_child(launcher: ChildLauncher, prompt: str) -> bool:
    """Return whether the message loop sends the prompt to a child as it is. It answers some
    commands itself, expands others, and refuses a model that does not exist.
    """
    state = launcher.session_state
    if state.unknown_model:
        return False
    if not prompt.startswith("/"):
        return True
    from shim.core.claude.messages import UserMessage

    message = UserMessage(prompt)
    if state.parse_local_command(message) is not None:
        return False
    return state.find_command_call(message) is None


class PlannedChildLaunch(NamedTuple):
    """A conversation's plan, its launcher, and the launch plan of its first child."""

    plan: ConversationPlan
    launcher: ChildLauncher
    launch: LaunchPlan


def prepare_conversation(
    invocation: Invocation,
    installed: Mapping[str, str],
    argv: Sequence[str] = (),
    *,
    display_name: str = "",
    read_input: "Callable[[ConversationStartup], ConversationStartup] | None" = None,
    launcher_class: type[ChildLauncher] = ChildLauncher,
    settings: config.ShimSettings | None = None,
) -> ConversationStartup:
    """Read the settings and choose the vendor. Raise ShimError if the conversation cannot start.

    `installed` are the options that `shim install` stored in the drop-in. `argv` are the
    command-line arguments for the recording. `settings` are loaded here unless the caller passes
    them.
    """
    environment = os.environ
    cwd = get_working_directory()
    if not cwd:
        raise FrontendError(
            "the working directory no longer exists", hint="run the command from another folder"
        )
    if settings is None:
        settings = config.load_shim_settings(invocation, environment, installed)
    register_user_profiles(environment, invocation.shim_config)
    check_vendor_names_in_settings(settings)
    log_setting = None
    if not launcher_class.is_dry:
        log_setting = settings.log
    log = open_log(
        log_setting,
        redact=settings.resolve_redaction_mode() != "none",
    )
    if DIALECTS[settings.dialect].is_flat:
        invocation = apply_yume_permission_mode(invocation)
    vendors = _choose_vendors(invocation, installed, settings, cwd)
    vendor_list = vendors.vendor_list
    claude_settings = ClaudeSettings()
    if vendor_list.has_several:
        invocation, claude_settings = _load_claude_settings(invocation, cwd)
    adapter = _select_adapter(vendors, invocation, can_wait=not launcher_class.is_dry)
    partial = invocation.partial
    if not partial:
        partial = DIALECTS[settings.dialect].streams_fragments
    invocation = invocation._replace(
        model=vendor_list.select_vendor_model(adapter.name, vendors.choice.model),
        partial=partial,
    )
    if adapter.name in config.TWIN_VENDORS:
        from shim.process.twin_vendors import choose_adapter_of_installed_cli

        adapter = choose_adapter_of_installed_cli(
            adapter,
            settings.get_vendor_settings(adapter.name),
            environment,
            cwd,
            without_passthrough=vendor_list.is_translated,
            cache_only=launcher_class.uses_remembered_help,
        )
    mcp_servers: Mapping[str, Any] = {}
    # A real claude reads its settings files itself.
    if vendor_list.is_translated or not adapter.passthrough:
        invocation = load_system_prompt_files(invocation)
        mcp_servers = load_mcp_servers(invocation, cwd)
    if not (vendor_list.has_several or adapter.passthrough):
        invocation, claude_settings = _load_claude_settings(invocation, cwd)
    mode = resolve_requested_permission_mode(invocation)
    invocation = validate_invocation(invocation)
    recorder = None
    if not launcher_class.is_dry:
        recorder = _open_recorder(invocation, installed, argv, settings, adapter, cwd)
    _report_skipped_vendors(vendor_list, recorder)
    return ConversationStartup(
        invocation,
        settings,
        environment,
        cwd,
        log,
        recorder,
        vendors.choice,
        vendor_list,
        adapter,
        mode,
        claude_settings,
        mcp_servers,
        vendors.resumed_id,
        vendors.resumed_session,
        vendors.recordings,
        launcher_class,
        display_name,
        read_input,
    )


class _VendorSelection(NamedTuple):
    """The vendors of a conversation, and the data that determined the choice."""

    choice: VendorChoice
    vendor_list: FallbackVendorList
    resumed_id: str | None
    resumed_session: "StoredSession | None"
    recordings: "RecordingSet | None"


def _choose_vendors(
    invocation: Invocation, installed: Mapping[str, str], settings: config.ShimSettings, cwd: str
) -> _VendorSelection:
    """Choose the vendors of a conversation. A resumed session is limited to one vendor, and a
    replay replaces all vendors.
    """
    environment = os.environ
    shim_vendor = invocation.shim_vendor
    recordings = None
    if (replay_path := find_replay_path(invocation, environment)) is not None:
        from shim.recording.selection import RecordingSet

        recordings = RecordingSet(replay_path, cwd, environment)
    if recordings is None:
        vendor_name = shim_vendor
    else:
        vendor_name = REPLAY_VENDOR
    resumed_id, resumed_session = resolve_resumed_session(invocation, vendor_name, cwd, environment)
    if recordings is None:
        session_vendor = None
        if resumed_session:
            session_vendor = resumed_session.vendor
        choice = choose_vendors(
            invocation,
            installed,
            environment,
            settings.vendor,
            session_vendor=session_vendor,
            cwd=cwd,
        )
    else:
        model = parse_model_route(invocation.model, VENDORS).model
        source = "SHIM_VENDOR"
        if shim_vendor:
            source = "--shim-vendor"
        choice = VendorChoice((REPLAY_VENDOR,), model, source)
    is_flat = DIALECTS[settings.dialect].is_flat
    vendor_list = FallbackVendorList(
        choice.names,
        settings,
        environment,
        cwd=cwd,
        is_flat=is_flat,
        needs_prompts=is_flat and invocation.permission_prompt_tool == "stdio",
    )
    return _VendorSelection(choice, vendor_list, resumed_id, resumed_session, recordings)


def _select_adapter(
    vendors: _VendorSelection, invocation: Invocation, *, can_wait: bool
) -> "Adapter":
    """Return the first vendor that can start, or the adapter that replays recordings.

    With `can_wait`, the permission mode is not checked, because the frontend can still change it.
    """
    if vendors.recordings is None:
        mode = ""
        if not (can_wait and can_change_permission_mode(invocation)):
            mode = resolve_requested_permission_mode(invocation)
        return vendors.vendor_list.select_first_usable_adapter(mode)
    session = vendors.resumed_session
    vendor_session = ""
    if session is not None and session.vendor == REPLAY_VENDOR:
        vendor_session = session.vendor_session
    return vendors.recordings.create_replay_adapter(
        invocation.prompt, vendor_session, without_passthrough=vendors.vendor_list.is_translated
    )


def _load_claude_settings(invocation: Invocation, cwd: str) -> tuple[Invocation, ClaudeSettings]:
    """Load Claude's settings files and apply them to the invocation."""
    claude_settings = load_claude_settings(invocation, os.environ, cwd)
    return apply_claude_settings(invocation, claude_settings), claude_settings


def _open_recorder(
    invocation: Invocation,
    installed: Mapping[str, str],
    argv: Sequence[str],
    settings: config.ShimSettings,
    adapter: "Adapter",
    cwd: str,
) -> "RunRecorder | None":
    """Open the recorder for the run. Return None if recording is off."""
    environment = os.environ
    path = config.resolve_recording_path(invocation, environment, installed, settings)
    if not path:
        return None
    from shim.process.probe import find_cached_version
    from shim.recording.open_recorder import open_recorder

    vendor_settings = settings.get_vendor_settings(adapter.name)
    return open_recorder(
        path,
        adapter.display_name,
        settings,
        vendor_version=find_cached_version(adapter, vendor_settings, environment, cwd),
        argv=argv,
        environment=environment,
        cwd=cwd,
    )


def _report_skipped_vendors(
    vendor_list: FallbackVendorList, recorder: "RunRecorder | None"
) -> None:
    """Warn about listed vendors that cannot start."""
    if not vendor_list.skipped_attempts:
        return
    from shim.core.api_errors import describe_cause

    for attempt in vendor_list.skipped_attempts:
        warn(
            f"{attempt.vendor} cannot answer ({describe_cause(attempt.cause)}): {attempt.reason}\n"
        )
        if recorder is not None:
            recorder.record_run_event(NOTE_PASSED_OVER, started=False, **attempt.to_json())
