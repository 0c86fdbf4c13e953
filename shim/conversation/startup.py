"""Prepares a conversation, from the parsed command line to the start of the message loop.

`prepare_conversation` reads the settings and chooses the vendor. `plan_conversation` decides how
the conversation is run. If the plan allows it, the child process is started before anyio is
imported. Otherwise the frontend's first requests are answered first, and no child exists before the
first message.
"""

import os
from collections.abc import Callable, Mapping, Sequence

from shim.adapters import get_adapter
from shim.conversation.drivers.context import ConversationContext, resolve_vendor_model
from shim.conversation.drivers.launcher import ChildLauncher, LaunchPlan
from shim.conversation.plan import (
    ConversationPlan,
    ConversationPlanInput,
    PromptSource,
    RunMode,
    StdinInput,
    can_change_permission_mode,
    plan_conversation,
    resolve_requested_permission_mode,
    select_driver,
)
from shim.conversation.session_state import build_session_state, load_mcp_servers
from shim.conversation.vendor_list import (
    FallbackVendorList,
    ResolvedVendors,
    VendorSelection,
    report_skipped_vendors,
    select_vendors,
)
from shim.core.claude.argv.flags import Invocation
from shim.core.claude.argv.models import (
    CLAUDE_EFFORT_LEVELS,
    check_model_name,
    parse_effort_level,
)
from shim.core.dialects import DIALECTS
from shim.core.errors import (
    FrontendError,
    ShimError,
    UnsupportedPermissionModeError,
    VendorError,
)
from shim.core.policy.policy import BYPASS_MODE, PERMISSION_MODES
from shim.core.policy.settings import ClaudeSettings
from shim.core.reading.typed import TYPE_CHECKING, Any, NamedTuple
from shim.core.reading.values import escape_control_chars, validate_uuid, validate_vendor_session_id
from shim.io.ids import create_session_ids
from shim.io.prompt import load_system_prompt_files, read_prompt
from shim.io.stderr import LogFunction, open_log, warn
from shim.process.environment import MAX_DEPTH, get_working_directory, parse_shim_depth
from shim.state import config
from shim.state.claude_settings import (
    AGENTS_FLAG,
    apply_claude_settings,
    find_agent_folders,
    load_claude_settings,
)
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

# Set by the SDKs for `enable_file_checkpointing` and `enableFileCheckpointing`.
FILE_CHECKPOINTS_VARIABLE = "CLAUDE_CODE_ENABLE_SDK_FILE_CHECKPOINTING"
QUESTION_PREVIEW_VARIABLE = "CLAUDE_CODE_QUESTION_PREVIEW_FORMAT"
SANDBOX_VARIABLES = ("IS_SANDBOX", "CLAUDE_CODE_BUBBLEWRAP")


class ConversationStartup(NamedTuple):
    """The data for planning and running a conversation, created by `prepare_conversation`."""

    invocation: Invocation  # with values from Claude's settings files applied
    settings: config.ShimSettings
    environment: Mapping[str, str]
    cwd: str
    log: LogFunction
    recorder: "RunRecorder | None"  # None if recording is off
    resolved_vendors: ResolvedVendors
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
        """Return the startup data with the resumed session and its resume point. Raise FrontendError
        if the session cannot be resumed at the requested message.
        """
        if not (self.invocation.resume or self.invocation.continue_last):
            return self
        if self.adapter.passthrough and not self.vendor_list.has_several:
            return self
        from shim.conversation.resumed_history import ResumeRequest

        history = ResumeRequest(
            self.invocation,
            self.settings,
            self.adapter,
            self.environment,
            self._get_vendor_environment(),
            self.cwd,
            self.resumed_id or "",
            self.resumed_session,
            is_replay=self.recordings is not None,
            has_several_vendors=self.vendor_list.has_several,
        ).find_history()
        return self._replace(resumed_session=history.session, resume_point=history.point)

    def _run_plan(
        self, signals: "SignalRecorder", transport: "ConversationTransport | None"
    ) -> int:
        plan, launcher = self._prepare_launcher(keeps_session_id=transport is not None)
        self.log(
            "vendor chosen",
            level="debug",
            vendor=plan.adapter.name,
            place=self.resolved_vendors.source,
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
                from shim.conversation.resumed_history import find_resumed_transcript

                forked_transcript = find_resumed_transcript(
                    self.resumed_session, self.resumed_id or "", self.environment
                )
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
                launcher.discard_child(first_child)
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
            self._check_session_flags(adapter)
        model = resolve_vendor_model(invocation.model or "", adapter, self.settings)
        for warning in adapter.list_ignored_flags(invocation._replace(model=model)):
            warn(warning)
        if not adapter.passthrough:
            self._warn_about_environment(adapter)

    def _check_session_flags(self, adapter: "Adapter") -> None:
        """Raise FrontendError if the named session cannot be resumed or started."""
        invocation = self.invocation
        if not (invocation.resume or invocation.continue_last or invocation.session_id):
            return
        from shim.conversation.resumed_session import check_session_flags

        check_session_flags(
            invocation,
            adapter,
            self.resumed_session,
            self.environment,
            is_replay=self.recordings is not None
            and self.recordings.has_session(invocation.resume or ""),
        )

    def _warn_about_environment(self, adapter: "Adapter") -> None:
        """Warn about variables that have no effect, and about root without a sandbox."""
        if _wants_file_checkpoints(self.environment):
            warn(
                f"{FILE_CHECKPOINTS_VARIABLE} has no effect: {adapter.name} stores no checkpoints "
                "of files, so rewind_files is refused\n"
            )
        if self.environment.get(QUESTION_PREVIEW_VARIABLE):
            warn(
                f"{QUESTION_PREVIEW_VARIABLE} has no effect: questions of {adapter.name} have no "
                "previews\n"
            )
        if self._can_bypass_permissions() and _runs_unsandboxed_as_root(self.environment):
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
        from shim.conversation.drivers.open_translation import (
            choose_result_terminator_line,
            create_output_writer,
        )

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
    cwd = _get_existing_working_directory()
    if settings is None:
        settings = config.load_shim_settings(invocation, environment, installed)
    register_user_profiles(environment, invocation.shim_config)
    check_vendor_names_in_settings(settings)
    log = open_log(
        None if launcher_class.is_dry else settings.log,
        redact=settings.resolve_redaction_mode() != "none",
    )
    if DIALECTS[settings.dialect].is_flat:
        invocation = apply_yume_permission_mode(invocation)
    vendor_selection = select_vendors(invocation, installed, settings, cwd)
    vendor_list = vendor_selection.vendor_list
    claude_settings = ClaudeSettings()
    if vendor_list.has_several:
        invocation, claude_settings = _load_claude_settings(invocation, cwd)
    adapter = _select_adapter(vendor_selection, invocation, is_dry=launcher_class.is_dry)
    invocation = invocation._replace(
        model=vendor_list.select_vendor_model(
            adapter.name, vendor_selection.resolved_vendors.model
        ),
        partial=invocation.partial or DIALECTS[settings.dialect].streams_fragments,
    )
    if adapter.name in config.TWIN_VENDORS:
        adapter = _choose_installed_twin(
            adapter, vendor_list, settings, cwd, cache_only=launcher_class.uses_remembered_help
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
    report_skipped_vendors(vendor_list, recorder)
    return ConversationStartup(
        invocation,
        settings,
        environment,
        cwd,
        log,
        recorder,
        vendor_selection.resolved_vendors,
        vendor_list,
        adapter,
        mode,
        claude_settings,
        mcp_servers,
        vendor_selection.resumed_id,
        vendor_selection.resumed_session,
        vendor_selection.recordings,
        launcher_class,
        display_name,
        read_input,
    )


def _get_existing_working_directory() -> str:
    """Return the working directory. Raise FrontendError if it has been removed."""
    cwd = get_working_directory()
    if not cwd:
        raise FrontendError(
            "the working directory no longer exists", hint="run the command from another folder"
        )
    return cwd


def _choose_installed_twin(
    adapter: "Adapter",
    vendor_list: FallbackVendorList,
    settings: config.ShimSettings,
    cwd: str,
    *,
    cache_only: bool,
) -> "Adapter":
    """Return the adapter of the installed program, for a vendor in TWIN_VENDORS."""
    from shim.process.twin_vendors import choose_adapter_of_installed_cli

    return choose_adapter_of_installed_cli(
        adapter,
        settings.get_vendor_settings(adapter.name),
        os.environ,
        cwd,
        without_passthrough=vendor_list.is_translated,
        cache_only=cache_only,
    )


def _select_adapter(
    vendor_selection: VendorSelection, invocation: Invocation, *, is_dry: bool
) -> "Adapter":
    """Return the adapter of the first vendor that can start.

    The permission mode is not checked if the frontend can still change it. A dry run checks the mode
    of the command line.
    """
    mode = ""
    if is_dry or not can_change_permission_mode(invocation):
        mode = resolve_requested_permission_mode(invocation)
    return vendor_selection.select_adapter(invocation.prompt, mode)


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


def apply_yume_permission_mode(invocation: Invocation) -> Invocation:
    """Return the invocation with Yume's permission mode replaced by Claude's. An unknown mode
    becomes `default` (R15).
    """
    mode_name = invocation.permission_mode
    if mode_name in (None, "manual", *PERMISSION_MODES):
        return invocation
    from shim.core.yume.protocol import parse_yume_permission_mode

    mode, asks_frontend, is_known = parse_yume_permission_mode(mode_name)
    if not is_known:
        warn(
            f"unknown permission mode {escape_control_chars(str(mode_name)[:60])!r}; using "
            "default\n"
        )
    return invocation._replace(
        permission_mode=mode,
        permission_prompt_tool="stdio" if asks_frontend else invocation.permission_prompt_tool,
    )


def validate_invocation(invocation: Invocation) -> Invocation:
    """Return the invocation with a valid effort level. Raise FrontendError for a value that a
    vendor's program could mistake for a flag or a path.
    """
    model = invocation.model
    resume = invocation.resume
    if model:
        try:
            check_model_name(model)
        except ValueError as error:
            raise FrontendError(str(error)) from None
    if resume == "":
        raise FrontendError(
            "--resume needs a session id if a prompt is passed",
            hint="use --resume ID or --continue",
        )
    if resume and validate_vendor_session_id(resume) is None:
        raise FrontendError(
            f"the session id {resume[:60]!r} is neither a UUID nor a vendor's session id"
        )
    if (effort := invocation.effort) is not None:
        invocation = invocation._replace(effort=parse_effort_level(effort))
        if parse_effort_level(effort) is None:
            warn(
                f"--effort {escape_control_chars(effort[:40])!r} has no effect; the levels "
                f"are {', '.join(CLAUDE_EFFORT_LEVELS)}\n"
            )
    for directory in invocation.add_dirs:
        if directory.startswith("-"):
            raise FrontendError(f"--add-dir {directory[:60]!r} is not a directory")
    return invocation


def _wants_file_checkpoints(environment: Mapping[str, str]) -> bool:
    """Return whether the frontend wants to restore files with `rewind_files`."""
    return environment.get(FILE_CHECKPOINTS_VARIABLE, "").lower() not in ("", "0", "false")


def _runs_unsandboxed_as_root(environment: Mapping[str, str]) -> bool:
    """Return whether the real claude would refuse the mode bypassPermissions: it lets root use the
    mode only if one of these variables says that the machine is a sandbox.
    """
    return os.geteuid() == 0 and not any(environment.get(name) == "1" for name in SANDBOX_VARIABLES)
