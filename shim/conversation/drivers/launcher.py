"""Starts one vendor's child processes in a conversation, with the vendor's flags and session."""

import contextlib
import os
import sys
from collections.abc import Callable, Mapping
from functools import cached_property

from shim.conversation.drivers.context import (
    AnswerSchema,
    ConversationContext,
    McpRelayProvider,
    SpillStore,
    VendorSessionResumeState,
)
from shim.conversation.drivers.vendor_program import VendorProgram
from shim.core.adapter.adapter import (
    Adapter,
    LaunchRequest,
    LaunchSpec,
    McpServers,
    TurnReportAndAttachmentFiles,
)
from shim.core.claude.argv.models import map_model_names
from shim.core.errors import FailedVendorAttempt, FrontendError, UnsupportedPermissionModeError
from shim.core.policy.policy import ANY_TOOL
from shim.core.reading.typed import TYPE_CHECKING, NamedTuple
from shim.core.reading.values import escape_control_chars
from shim.io.ids import create_uuid
from shim.io.stderr import SILENT_LOG, warn
from shim.process.environment import (
    build_child_environment,
    build_launch_environment,
    parse_extra_args,
)
from shim.process.find_program import (
    check_project_autostart_programs,
    explain_possible_policy_bypass,
)
from shim.process.spawn import (
    ChildSpawnResult,
    become_subreaper,
    kill_child,
    remove_files,
    spawn_child,
)
from shim.state.config import DEFAULT_TIMEOUTS_S

if TYPE_CHECKING:
    from shim.conversation.drivers.turn_lifecycle import TurnLifecycle
    from shim.core.claude.output_writer import OutputWriter
    from shim.core.claude.resume_point import ResumePoint
    from shim.core.claude.session_state import SessionState
    from shim.core.policy.policy import Policy
    from shim.core.reading.head_and_tail import HeadTailBuffer
    from shim.io.record_sinks import ChildRecordSink
    from shim.process.report_file import RunReportFile
    from shim.state.attachments import AttachmentStore
    from shim.state.store import StoredSession

HOOK_ARGV = (sys.executable, "-I", "-m", "shim.conversation.tool_hook")


class LaunchPlan(NamedTuple):
    """A planned child process: its command, its environment variables, and the files it needs."""

    argv: list[str]
    environment: dict[str, str]
    launch: LaunchSpec
    request: LaunchRequest


class ChildLauncher:
    """Starts one vendor's child processes in a conversation.

    state                   the session state, which the frontend may change at any time
    stored_session          the stored session to resume
    failed_attempts         the vendors that failed before this one
    list_replayed_attempts  returns the failed vendors of a replayed recording
    mode_can_change         the permission mode may change while a message is answered
    is_dry                  nothing is started, and no log or recording is opened
    """

    is_dry = False
    # If set, no program is started to ask for its version or help. Only cached answers are used.
    uses_remembered_help = False

    def __init__(
        self,
        context: ConversationContext,
        *,
        state: "SessionState",
        open_writer: "Callable[[], OutputWriter]",
        stored_session: "StoredSession | None" = None,
        failed_attempts: tuple[FailedVendorAttempt, ...] = (),
        list_replayed_attempts: "Callable[[], tuple[FailedVendorAttempt, ...]] | None" = None,
        mode_can_change: bool = False,
    ) -> None:
        adapter = context.adapter
        settings = context.settings
        self.context = context
        self.adapter = adapter  # the adapter for the vendor's children
        self.recorder = context.recorder
        self.exit_timeout_s = settings.end_grace  # the time for a child to exit after its turn
        self.session_state = state
        self.timeouts = {
            name: settings.resolve_timeout_s(name, adapter.name, adapter.timeouts_s)
            for name in DEFAULT_TIMEOUTS_S
        }
        self.child_environment = build_child_environment(
            adapter, context.vendor_settings, context.environment
        )
        self.resume_state = VendorSessionResumeState(
            context, stored_session, failed_attempts, self._find_rewind_target(stored_session)
        )
        self._list_replayed_attempts = list_replayed_attempts
        self._mode_can_change = mode_can_change
        # The launch request of the last started child.
        self.last_request = LaunchRequest(context.invocation, "")
        self.report_file: RunReportFile | None = None  # the last started child's report
        self._relays: McpRelayProvider | None = None
        self._turn_lifecycle: TurnLifecycle | None = None
        self._open_writer = open_writer
        state.enforcement_checks.append(self.explain_unenforceable_rules)
        self.program = VendorProgram(
            context, self.child_environment, uses_remembered_help=self.uses_remembered_help
        )
        self._answer_schema = AnswerSchema(context)
        self._new_vendor_session_id = state.options.session_id  # for a new session of the vendor
        self.store_text: Callable[..., str | None] = SpillStore(context, state.options.session_id)

    def create_for_adapter(
        self,
        adapter: Adapter,
        environment: Mapping[str, str],
        stored_session: "StoredSession | None" = None,
    ) -> "ChildLauncher":
        """Return a launcher for another vendor in the same conversation. It resumes only
        `stored_session`.
        """
        context = self.context._replace(
            adapter=adapter, environment=environment, is_translated=True
        )
        launcher = type(self)(
            context,
            state=self.session_state,
            open_writer=lambda: self.writer,
            stored_session=stored_session,
            mode_can_change=self._mode_can_change,
        )
        if self._relays is not None:
            launcher.attach_relays(self._relays)
        return launcher

    def attach_relays(self, relays: McpRelayProvider) -> None:
        """Connect the children that start from now on to the MCP servers in the frontend's
        process.
        """
        self._relays = relays

    def start_new_session(self) -> None:
        """Continue the conversation in a new session, which has no history. No child may be
        running.
        """
        state = self.session_state
        self._new_vendor_session_id = create_uuid()
        session_id = self._new_vendor_session_id
        if state.options.keeps_session_id:
            session_id = state.options.session_id
        state.start_new_session(session_id)
        invocation = self.context.invocation._replace(
            resume=None, continue_last=False, fork_session=False, session_id=None
        )
        self.context = self.context._replace(invocation=invocation, resume_point=None)
        self.resume_state.start_new_session()
        self._turn_lifecycle = None  # the old one was created with the old invocation

    # -- objects for the whole conversation --------------------------------------------------------

    @cached_property
    def writer(self) -> "OutputWriter":
        """The output writer of the conversation. It is created on first use, so that its modules do
        not delay the first child.
        """
        return self._open_writer()

    @property
    def turn_lifecycle(self) -> "TurnLifecycle":
        """The lifecycle of the vendor's turns. It is created on first use, so that its modules do
        not delay the first child.
        """
        if self._turn_lifecycle is None:
            from shim.conversation.drivers.turn_lifecycle import TurnLifecycle

            self._turn_lifecycle = TurnLifecycle(
                self.context,
                self.session_state,
                self.resume_state,
                self._answer_schema,
                self.writer,
                store_text=self.store_text,
                environment=self.child_environment,
            )
        return self._turn_lifecycle

    # -- child processes ---------------------------------------------------------------------------

    @property
    def vendor_session_id(self) -> str:
        """The vendor's own session id, or "" if it is not known."""
        return self.resume_state.vendor_session_id or ""

    def build_vendor_prompt(self, user_prompt: str) -> str:
        """Build the prompt for the vendor from the user's prompt.

        If the child cannot receive system prompts in another way, they are put before the first
        prompt, but never before a slash command. If a rule restricts reading, the prompt is escaped
        so that it cannot make the vendor read a file. If the answer is validated here, an
        instruction to answer with JSON is appended.
        """
        resume_state = self.resume_state
        if (
            self.adapter.session_traits.prefixes_system_prompt
            and resume_state.persistent
            and not resume_state.has_system_prompt
            and not user_prompt.startswith("/")
        ):
            resume_state.has_system_prompt = True
            user_prompt = self._build_request(user_prompt).build_full_prompt()
        user_prompt = self._add_history(user_prompt)
        if any(rule.tool in ("Read", ANY_TOOL) for rule in self.policy.restricting_rules):
            user_prompt = self.adapter.escape_prompt(user_prompt)
        return self._answer_schema.add_json_schema_instruction(
            user_prompt, persistent=resume_state.persistent
        )

    def _find_rewind_target(self, stored_session: "StoredSession | None") -> str:
        """Return the vendor's id of the last turn that is kept, or "" if the vendor cannot drop the
        later turns itself.
        """
        point = self.context.resume_point
        if point is None or stored_session is None or not stored_session.vendor_session:
            return ""
        from shim.process.vendor_data_dir import open_vendor_data_dir

        data_dir = open_vendor_data_dir(self.adapter, self.child_environment)
        if data_dir is None:
            return ""
        return self.adapter.find_rewind_target(point, stored_session.vendor_session, data_dir)

    def _add_history(self, prompt: str) -> str:
        """Put the kept messages of a resumed session before the prompt, if the vendor's session
        does not contain them.
        """
        resume_state = self.resume_state
        point = self.context.resume_point
        has_history = resume_state.vendor_session_id is not None
        if resume_state.persistent:
            has_history = resume_state.has_history
        if point is None or has_history or not resume_state.has_rebuilt_history:
            return prompt
        if not (self.is_dry or resume_state.has_history):
            _warn_about_rebuilt_history(point)
        resume_state.has_history = True
        return f"{point.history}\n\n{prompt}"

    def rebuild_lost_session(self) -> bool:
        """Let the next child start a new session with the history of the transcript, if the vendor
        would lose the session that an earlier child of this conversation has used. Return whether
        the session is rebuilt. Without a transcript, the vendor resumes the session itself.
        """
        resume_state = self.resume_state
        if not self.adapter.session_traits.loses_sessions or self.adapter.cli.replayed_vendor:
            return False
        path = self.session_state.options.find_transcript()
        if not (path and resume_state.has_started and resume_state.vendor_session_id):
            return False
        from shim.core.claude.resume_point import find_end_of_earlier_turns
        from shim.io.transcript import read_transcript_end

        point = find_end_of_earlier_turns(read_transcript_end(path))
        if point is None:
            return False
        reason = f"{self.adapter.name} can lose a session that a new process resumes"
        self.context = self.context._replace(resume_point=point._replace(reason=reason))
        resume_state.start_rebuilt_session()
        return True

    def start_child(self, prompt: str, *, persistent: bool = False) -> ChildSpawnResult:
        """Start a child process. Raise VendorError or FrontendError if that fails."""
        try:
            return self._spawn_child(self.plan_child_launch(prompt, persistent=persistent))
        except BaseException:
            self._remove_files_of_child()
            raise

    def discard_child(self, spawned: ChildSpawnResult) -> None:
        """Kill a child for which no turn could be started, and remove its files."""
        kill_child(spawned.process)
        remove_files(spawned.temporary_paths)
        self._remove_files_of_child()

    def _remove_files_of_child(self) -> None:
        """Remove the file of the run report and the file of the permission mode."""
        if self.report_file is not None:
            self.report_file.remove()
        mode_file = self.resume_state.mode_file
        if not mode_file:
            return
        from shim.state.files import remove_file

        remove_file(mode_file)
        with contextlib.suppress(OSError):  # the folder may contain other files of the session
            os.rmdir(os.path.dirname(mode_file))
        self.resume_state.mode_file = ""

    def plan_child_launch(self, prompt: str, *, persistent: bool = False) -> LaunchPlan:
        """Plan the child process for a prompt. Raise VendorError or FrontendError if no child can
        be started.
        """
        resume_state = self.resume_state
        resume_state.persistent = persistent
        if self.context.dialect.asks_by_line and self.session_state.answers_prompts:
            self.adapter.require_permission_prompts()
        self.program.locate_program()
        if resume_state.has_answered and not (
            resume_state.vendor_session_id and self.adapter.abilities.can_resume
        ):
            raise FrontendError(
                f"{self.adapter.name} does not store sessions, so it can answer only one message",
                hint="start a new conversation, or choose a vendor that can resume (`shim vendors`)",
            )
        # Check the permission mode first, before a program is started to ask for its version.
        self.adapter.resolve_permission_mode_args(self.session_state.mode)
        self.check_version()
        request = self._build_request(prompt)
        self._check_request(request)
        resume_state.prompted_tools = self.adapter.list_prompted_tools(request)
        resume_state.launch_mode = request.permission_mode
        resume_state.restricting_rules = self.policy.restricting_rules
        request = self.program.add_program_details_to_request(request)
        launch = (self.adapter.cli.replay or self.adapter).build_launch(request)
        context = self.context
        extra_args = (*context.vendor_settings.args, *parse_extra_args(context.environment))
        environment = build_launch_environment(
            self.child_environment, launch, context.vendor_settings
        )
        check_project_autostart_programs(self.adapter, request, environment, context.cwd)
        return LaunchPlan(
            [*self.program.argv, *launch.arguments, *extra_args], environment, launch, request
        )

    def _spawn_child(self, plan: LaunchPlan) -> ChildSpawnResult:
        adapter = self.adapter
        command, environment, launch, request = plan
        self.last_request = request
        if self._list_replayed_attempts is not None:
            self.resume_state.failed_attempts = self._list_replayed_attempts()
            self.session_state.vendor = self.session_state.vendor._replace(
                display_name=adapter.display_name
            )
        opens_stdin = self.resume_state.persistent or launch.needs_stdin_pipe or launch.stdin != b""
        become_subreaper()  # orphans of the child must be adopted by this process
        process = spawn_child(
            command,
            environment,
            self.context.cwd,
            opens_stdin=opens_stdin,
            temporary_paths=launch.temporary_files,
        )
        self.resume_state.has_started = True
        if request.invocation.model:
            self.resume_state.vendor_model = request.invocation.model
        self._log_child_start(command)
        return ChildSpawnResult(
            process,
            launch.stdin,
            self._create_stderr_tail(),
            self._record_child_start(command),
            launch.temporary_files,
            adapter.shutdown.grace_s,
        )

    def _log_child_start(self, command: list[str]) -> None:
        context = self.context
        context.log(
            "child started", vendor=self.adapter.name, program=command[0], arguments=len(command)
        )
        if context.log is SILENT_LOG:
            return
        from shim.core.secrets.redactor import redact_argv

        context.log(
            "command",
            level="debug",
            argv=redact_argv(command),
            cwd=context.cwd,
            mode=self.session_state.mode,
            stays=self.resume_state.persistent,
            session=self.resume_state.vendor_session_id,
        )

    def _record_child_start(self, command: list[str]) -> "ChildRecordSink | None":
        """Record the child's start. Return the recorder for its input and output, or None if
        recording is off.
        """
        recorder = self.context.recorder
        if recorder is None:
            return None
        return recorder.record_child_start(command, self.context.cwd, self.adapter.display_name)

    def _create_stderr_tail(self) -> "HeadTailBuffer | None":
        """Return a buffer that redacts stderr, or None if stderr is not redacted."""
        if self.context.settings.resolve_redaction_mode() != "all":
            return None
        from shim.core.secrets.redactor import RedactedHeadTailBuffer

        return RedactedHeadTailBuffer()

    def _build_request(self, prompt: str) -> LaunchRequest:
        state = self.session_state
        resume_state = self.resume_state
        invocation = self.context.invocation
        policy = self.policy
        # When a session is resumed, most vendors keep using the model that was set last.
        resumed_model = None
        if resume_state.vendor_model and resume_state.vendor_session_id:
            resumed_model = state.reported_model
        model = state.model
        if not model:
            model = resumed_model
        system_prompt = state.system_prompt
        if not system_prompt:
            system_prompt = invocation.system_prompt
        append_system_prompt = state.append_system_prompt
        if not append_system_prompt:
            append_system_prompt = invocation.append_system_prompt
        invocation = invocation._replace(
            model=model,
            effort=state.effort,
            fallback_model=map_model_names(invocation.fallback_model, self.context.map_model_name),
            system_prompt=system_prompt,
            append_system_prompt=append_system_prompt,
        )
        session_id = ""
        if invocation.session_id or resume_state.vendor_session_id:
            session_id = state.options.session_id
        store_attachment = None
        if self._can_attach:
            store_attachment = self._store_attachment
        return LaunchRequest(
            mcp_servers=self._build_servers(),
            invocation=resume_state.assign_session_id(
                invocation, self.adapter, self._new_vendor_session_id
            ),
            prompt=prompt if resume_state.persistent else self.build_vendor_prompt(prompt),
            mode_arguments=self.adapter.resolve_permission_mode_args(state.mode),
            permission_mode=state.mode,
            resume_id=resume_state.vendor_session_id,
            rewind_target=resume_state.rewind_target if resume_state.forks_next else "",
            opens_trust_prompt=self.context.vendor_settings.trust,
            removed_tools=self.context.list_removed_tools(policy),
            persistent=resume_state.persistent,
            policy=policy,
            hook_argv=HOOK_ARGV,
            hooks_may_allow=state.hooks_may_allow,
            session_id=session_id,
            transcript_path=state.options.find_transcript() if policy.hooks else "",
            mode_file=self._ensure_mode_file(),
            environment={**self.child_environment, **self.context.vendor_settings.env},
            store_text=self.store_text,
            files=TurnReportAndAttachmentFiles(
                self.prepare_vendor_run_report_folder(),
                store_attachment,
            ),
            policy_bypass=explain_possible_policy_bypass(
                self.adapter,
                self.program.command_prefix,
                (self.context.cwd, self.child_environment.get("HOME", "")),
            ),
        )

    @cached_property
    def attachments(self) -> "AttachmentStore":
        """The store for the attachments of the current message."""
        from shim.state.attachments import AttachmentStore

        environment = {**self.child_environment, **self.context.vendor_settings.env}
        return AttachmentStore(self.adapter.environment.attachment_dirs, environment)

    @property
    def _can_attach(self) -> bool:
        """Return whether the vendor can read attachment files. With a command prefix, the vendor
        may run on another machine, where the files do not exist.
        """
        if not self.adapter.environment.attachment_dirs:
            return False
        return not self.program.command_prefix

    def _store_attachment(self, data: str, suffix: str) -> str | None:
        return self.attachments.store_file(data, suffix)

    def _build_servers(self) -> McpServers:
        """Return the MCP servers for the vendor."""
        state = self.session_state
        if not (state.configured_servers or state.sdk_servers.names or state.usable_agents):
            return McpServers()
        from shim.conversation.drivers.launch_servers import build_mcp_servers

        return build_mcp_servers(
            state, self.policy, self.adapter, self._relays, self.program.command_prefix
        )

    def _ensure_mode_file(self) -> str:
        """Return the path of the file from which the shim's hook reads the permission mode. Return
        "" if no hook needs the file.
        """
        resume_state = self.resume_state
        if resume_state.mode_file:
            self.write_permission_mode_file()
        elif (
            self._mode_can_change
            and not resume_state.persistent
            and self.adapter.policy_support.has_hook
        ):
            resume_state.mode_file = self.store_text(self.session_state.mode, ".mode") or ""
        return resume_state.mode_file

    def write_permission_mode_file(self) -> None:
        """Write the current permission mode to the file for the shim's hook. If the file is
        missing, the hook denies every tool call.
        """
        path = self.resume_state.mode_file
        if not path:
            return
        from shim.state.files import remove_file, replace_file, write_all

        try:
            replace_file(path, lambda file: write_all(file, self.session_state.mode.encode()))
        except OSError:
            remove_file(path)

    @property
    def policy(self) -> "Policy":
        """The permission policy, including rules that were added during this conversation."""
        if self.session_state.policy is None:
            return self.context.build_policy()
        return self.session_state.policy

    def check_version(self) -> None:
        """Check the version of the installed program, which may have been updated since the last
        child was started.
        """
        resume_state = self.resume_state
        state = self.session_state
        previous_check = resume_state.version_check
        resume_state.version_check = self.program.check_version()
        distrust = resume_state.version_check.distrust
        if distrust:
            from shim.core.adapter.untrusted_versions import list_modes_for_untrusted_version

            modes = list_modes_for_untrusted_version(
                tuple(self.adapter.modes), can_ask_permission=state.answers_prompts
            )
            state.vendor = state.vendor._replace(never_asks=True, modes=modes)
        if distrust and distrust != previous_check.distrust and not self.is_dry:
            warn(
                f"{escape_control_chars(distrust)}; the vendor may run tools without asking (unattended)\n"
            )

    def _check_request(self, request: LaunchRequest) -> None:
        """Raise UnsupportedPermissionModeError if the vendor cannot enforce a rule before a tool
        call runs.
        """
        if self.resume_state.version_check.distrust:
            self.check_version_enforces_permissions()
        if self.policy.has_restrictions:
            from shim.core.adapter.enforcement import check_policy_enforcement

            check_policy_enforcement(
                self.adapter,
                self.policy,
                request,
                late_denials=self.context.vendor_settings.late_denials,
            )

    def check_version_enforces_permissions(self, policy: "Policy | None" = None) -> None:
        """Raise UnsupportedPermissionModeError if a turn needs a guarantee that does not hold for
        the installed version.

        `policy` replaces the current policy for this check.
        """
        state = self.session_state
        version_check = self.resume_state.version_check
        if not version_check.distrust:
            return
        from shim.core.adapter.untrusted_versions import (
            build_untrusted_version_error,
            describe_required_vendor_guarantee,
        )

        has_hooks = state.hooks is not None and state.hooks.can_deny_calls
        promise = describe_required_vendor_guarantee(
            self.adapter,
            self.policy if policy is None else policy,
            state.mode,
            prompts=state.answers_prompts,
            hooks=has_hooks,
            late_denials=self.context.vendor_settings.late_denials,
        )
        if promise:
            raise build_untrusted_version_error(self.adapter, promise, version_check)

    def report_executed_denied_tool(self, tool: str) -> None:
        """Mark the installed version as untrusted, because it ran a denied call to `tool`."""
        from shim.core.adapter.untrusted_versions import (
            describe_executed_denied_call,
            mark_version_distrusted,
        )
        from shim.state.stored_versions import ExecutedDeniedCall, record_executed_denied_call

        resume_state = self.resume_state
        version = resume_state.version_check.version
        reason = describe_executed_denied_call(self.adapter, version, tool)
        if resume_state.version_check.distrust == reason:
            return
        record_executed_denied_call(
            ExecutedDeniedCall(self.adapter.name, version or "", tool), self.context.environment
        )
        resume_state.version_check = mark_version_distrusted(resume_state.version_check, reason)
        warn(f"{escape_control_chars(reason)}\n")

    def explain_unenforceable_rules(self, policy: "Policy") -> str:
        """Return why the vendor cannot enforce a different policy in this conversation. Return ""
        if it can.
        """
        try:
            self.check_version_enforces_permissions(policy)
        except UnsupportedPermissionModeError as error:
            return str(error)
        from shim.core.adapter.enforcement import explain_unenforceable_policy

        persistent = self.resume_state.persistent
        if not persistent:
            persistent = self.session_state.vendor.asks_permissions
        return explain_unenforceable_policy(
            self.adapter,
            policy,
            self.last_request._replace(
                permission_mode=self.session_state.mode, persistent=persistent
            ),
        )

    def prepare_vendor_run_report_folder(self) -> str | None:
        """Create the folder for the child's run report, and return its path. Return None if there
        is no report, or if the child may run on another machine.
        """
        if self.adapter.environment.run_report is None or self.program.command_prefix:
            return None
        from shim.process.report_file import RunReportFile

        self.report_file = RunReportFile(
            self.adapter.environment.run_report,
            self.context.environment,
            self.session_state.options.session_id,
            self.recorder,
        )
        return self.report_file.folder


def _warn_about_rebuilt_history(point: "ResumePoint") -> None:
    """Warn that the vendor receives the kept messages as text."""
    warn(
        f"{point.reason}: a new session of the vendor is started, and the kept messages are sent as text "
        "before the next message\n"
    )
    if point.omitted_count:
        warn(
            f"the text leaves out the {point.omitted_count} oldest messages, because it would be too "
            "long\n"
        )
