"""A conversation that runs in a host process. The frontend sees the same output as from a local
run.

A frontend that resumes a session whose host is running joins that session. With `bridge = true` or
SHIM_BRIDGE=1, every conversation starts a host. If no host can be started, the conversation runs
locally, without the bridge.
"""

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from shim.bridge import registry
from shim.bridge.attach.local_services import split_sdk_mcp_servers
from shim.bridge.launch import SessionRunningError, SessionSpec, build_resume_invocation, start_host
from shim.bridge.registry import SessionRecord
from shim.conversation.drivers.dry_launcher import DryRunLauncher
from shim.conversation.plan import can_change_permission_mode, can_prompt_frontend
from shim.conversation.resumed_session import resolve_resumed_session
from shim.conversation.startup import (
    ConversationStartup,
    apply_yume_permission_mode,
    prepare_conversation,
)
from shim.conversation.vendor_list import find_replay_path
from shim.core.claude.argv.flags import Invocation
from shim.core.claude.argv.merge import build_conversation_args, build_resume_point_args
from shim.core.dialects import DIALECTS
from shim.core.errors import FailedVendorAttempt, FrontendError, ShimError, SystemResourceError
from shim.core.reading.json_text import dump_json
from shim.core.reading.values import canonicalize_uuid
from shim.io.ids import create_uuid
from shim.io.prompt import read_prompt
from shim.io.stderr import warn
from shim.process.environment import get_working_directory
from shim.state.config import ShimSettings

if TYPE_CHECKING:
    from shim.io.signals import SignalRecorder
    from shim.io.stdin import Stdin
    from shim.recording.recorder import RunRecorder

MAX_JOIN_ATTEMPTS = 3  # another client may start or end the session between two attempts
JOIN_FAILED_ERROR = (
    "cannot join the session {session}: other clients started and stopped it during every attempt"
)
CANNOT_JOIN_ERROR = (
    "the session {id} runs in the background, and a frontend that sends Yume frames cannot join it"
)
NO_BRIDGE_WARNING = "the conversation runs without the bridge: {why}\n"


def plan_background_conversation(
    invocation: Invocation,
    settings: ShimSettings,
    installed_options: Mapping[str, str],
    args: Sequence[str],
    display_name: str = "",
) -> "BackgroundConversation | None":
    """Return the conversation if a host must run it, or None if this process must run it.

    Raise FrontendError if the session cannot be joined. `display_name` is Yume's name for the
    session.
    """
    environment = os.environ
    cwd = get_working_directory()
    if find_replay_path(invocation, environment) is not None:
        # A replay does not start a vendor, but a host always does.
        return None
    dialect = DIALECTS[settings.dialect]
    session_id = ""
    if not invocation.fork_session:
        resumed_id, _ = resolve_resumed_session(
            invocation, invocation.shim_vendor, cwd, environment
        )
        session_id = canonicalize_uuid(resumed_id) or ""
    session = None
    if session_id:
        session = registry.find_session(session_id, environment)
    if session is not None and session.is_running:
        if dialect.is_flat:
            invocation = _prepare_flat_join(invocation, session)
        vendor = invocation.shim_vendor
        if vendor and session.metadata["vendor"] not in ("", vendor):
            raise FrontendError(
                f"this session belongs to {session.metadata['vendor']}; {vendor} cannot resume it",
                hint="start a new session, or resume this one without choosing a vendor",
            )
        return BackgroundConversation(
            invocation,
            settings,
            installed_options,
            args,
            session_id=session_id,
            running_session=session,
            display_name=display_name,
        )
    if not settings.bridge.enabled:
        return None
    if invocation.no_session_persistence:  # a host stores the output of its session
        return None
    if reason := _explain_no_bridge(invocation, dialect.is_flat):
        warn(NO_BRIDGE_WARNING.format(why=reason))
        return None
    return BackgroundConversation(
        invocation, settings, installed_options, args, session_id=session_id
    )


def is_background_session_running(session_id: str) -> bool:
    """Return whether a host of the session is running."""
    return registry.is_session_running(session_id, os.environ)


def _prepare_flat_join(invocation: Invocation, session: SessionRecord) -> Invocation:
    """Return the command line for a frontend that uses Yume's dialect and joins a session.

    Such a frontend sends a single message and cannot answer permission prompts. Raise FrontendError
    if it sends several messages.
    """
    if invocation.input_format == "stream-json":
        raise FrontendError(
            CANNOT_JOIN_ERROR.format(id=session.short_id),
            hint="pass the message with --prompt, or stop the session with `claude stop "
            f"{session.short_id}`",
        )
    invocation = apply_yume_permission_mode(invocation)
    return invocation._replace(partial=True, permission_prompt_tool=None)


def _explain_no_bridge(invocation: Invocation, is_flat: bool) -> str:
    """Return the reason why a conversation cannot run in a host, or "" if it can."""
    if is_flat:
        return "the output format does not support background sessions"
    if invocation.resume and canonicalize_uuid(invocation.resume) is None:
        return "the session id is not a UUID"
    return ""


class BackgroundConversation:
    """One frontend's conversation in a host process, which is already running or is started
    for it.
    """

    def __init__(
        self,
        invocation: Invocation,
        settings: ShimSettings,
        installed_options: Mapping[str, str],
        args: Sequence[str],
        *,
        session_id: str,
        running_session: SessionRecord | None = None,
        display_name: str = "",
    ) -> None:
        self._invocation = invocation
        self._settings = settings
        self._installed_options = installed_options
        self._args = args
        self._session_id = session_id
        self.running_session = running_session
        self._display_name = display_name
        self._startup: ConversationStartup | None = None

    @property
    def recorder(self) -> "RunRecorder | None":
        """The recorder for a run without the bridge. A host records its own output."""
        if self._startup is None:
            return None
        return self._startup.recorder

    def run(self, signals: "SignalRecorder") -> int:
        """Run the conversation. Return the exit status.

        Raise ShimError if the conversation cannot be started. The error names the vendor, as in a
        local run.
        """
        try:
            return self._run_joined(signals)
        except ShimError as error:
            if not error.vendor:
                error.vendor, error.failed_attempts = self._find_vendor()
            raise

    def _find_vendor(self) -> tuple[str, tuple[FailedVendorAttempt, ...]]:
        """Return the vendor that a local run would use, and the failed attempts with the vendors
        before it in the fallback list.
        """
        if self.running_session is not None:
            return str(self.running_session.metadata["vendor"]), ()
        try:
            startup = self._prepare_dry_run(self._invocation)
        except ShimError:  # no vendor can be determined
            return "", ()
        return startup.adapter.name, tuple(startup.vendor_list.skipped_attempts)

    def _run_joined(self, signals: "SignalRecorder") -> int:
        prompt, source = self._read_prompt()
        if prompt is not None:  # stdin can only be read once
            self._invocation = self._invocation._replace(prompt=prompt)
        signals.raise_if_stopped()
        try:
            for _ in range(MAX_JOIN_ATTEMPTS):
                session = self.running_session or self._start_host()
                # Imported only after the host process was started, so that both processes import
                # their modules at the same time.
                from shim.bridge.attach.host_joiner import (
                    BackgroundSessionAttacher,
                    SessionHostEndedError,
                )

                joiner = BackgroundSessionAttacher(
                    session,
                    self._invocation,
                    self._settings,
                    owns_host=self.running_session is None,
                    display_name=self._display_name,
                )
                try:
                    return joiner.join_and_run_conversation(signals, prompt, source)
                except SessionHostEndedError:
                    self.running_session = None
                    if not self._settings.bridge.enabled:
                        return self._run_locally(signals, "")
            raise SystemResourceError(
                JOIN_FAILED_ERROR.format(session=self._session_id),
                hint="send the message again when the turn has ended",
            )
        except _NoHostError as error:
            return self._run_locally(signals, str(error))

    def _read_prompt(self) -> "tuple[str | None, Stdin | None]":
        """Return the message of a one-shot run, and the stdin that contains further messages or
        answers. Each of them may be None.
        """
        from shim.io.stdin import Stdin

        invocation = self._invocation
        max_bytes = self._settings.max_inbound_bytes
        if invocation.input_format == "stream-json":
            return None, Stdin(max_bytes=max_bytes)
        if DIALECTS[self._settings.dialect].is_flat and invocation.prompt:
            return invocation.prompt, None
        if can_prompt_frontend(invocation) and invocation.prompt:
            return invocation.prompt, Stdin(max_bytes=max_bytes)
        return read_prompt(invocation, 0, max_bytes), None

    def _run_locally(self, signals: "SignalRecorder", reason: str) -> int:
        if reason:
            warn(NO_BRIDGE_WARNING.format(why=reason))
        self._startup = prepare_conversation(
            self._invocation,
            self._installed_options,
            self._args,
            display_name=self._display_name,
            settings=self._settings,
        )
        return self._startup.run(signals)

    def _start_host(self) -> SessionRecord:
        """Start a host and return its session. If another client has just started the session's
        host, return that session.

        Raise ShimError if the conversation cannot be started at all.
        """
        environment = os.environ
        invocation, forked_id = self._apply_original_session()
        session_id = self._session_id or invocation.session_id or create_uuid()
        startup, can_ask = self._plan_start(invocation)
        spec = SessionSpec(
            build_conversation_args(_remove_sdk_servers(invocation, startup.cwd)),
            self._installed_options,
            startup.cwd,
            startup.adapter.display_name,
            asks=can_ask,
            forked=forked_id,
            resumes=bool(self._session_id),
            beginning=build_resume_point_args(invocation),
        )
        try:
            return start_host(spec, environment, session_id)
        except SessionRunningError:
            running_session = registry.find_session(session_id, environment)
            if running_session is None:
                raise
            self._session_id = session_id
            self.running_session = running_session
            return running_session
        except FrontendError as error:
            self._invocation = invocation  # its restrictions also apply without a host
            raise _NoHostError("; ".join(filter(None, (str(error), error.hint)))) from None

    def _apply_original_session(self) -> tuple[Invocation, str]:
        """Return the invocation with the arguments of the resumed session, and the id of the session
        to copy, or "" for none.
        """
        environment = os.environ
        cwd = get_working_directory()
        invocation = self._invocation
        forked_id = ""
        original_id = self._session_id
        if invocation.fork_session:
            resumed_id, _ = resolve_resumed_session(
                invocation, invocation.shim_vendor, cwd, environment
            )
            forked_id = canonicalize_uuid(resumed_id) or ""
            original_id = forked_id
        record = registry.find_session(original_id, environment)
        if record is not None:
            invocation = build_resume_invocation(record, cwd, invocation, is_copy=bool(forked_id))
        return invocation, forked_id

    def plan_host(self) -> ConversationStartup:
        """Return the plan of the host that this conversation starts. Start no process. Raise the
        same ShimError as a local run.
        """
        invocation, _ = self._apply_original_session()
        startup, _ = self._plan_start(invocation)
        return startup

    def _plan_start(self, invocation: Invocation) -> tuple[ConversationStartup, bool]:
        """Return the plan for the host's conversation, and whether the conversation prompts for
        permission. Raise the same ShimError as a local run.

        This method starts no process.
        """
        streams = invocation._replace(
            input_format="stream-json",
            output_format="stream-json",
            verbose=True,
            permission_prompt_tool="stdio",
        )
        try:
            return self._plan_dry_run(streams), True
        except FrontendError:  # perhaps the vendor cannot prompt for permission
            prompt_tool = self._invocation.permission_prompt_tool
            return self._plan_dry_run(streams._replace(permission_prompt_tool=prompt_tool)), False

    def _plan_dry_run(self, invocation: Invocation) -> ConversationStartup:
        startup = self._prepare_dry_run(invocation)
        startup.plan_first_child_launch(
            allow_mode_change=can_change_permission_mode(self._invocation)
        )
        return startup

    def _prepare_dry_run(self, invocation: Invocation) -> ConversationStartup:
        return prepare_conversation(
            invocation, self._installed_options, self._args, launcher_class=DryRunLauncher
        )


def _remove_sdk_servers(invocation: Invocation, cwd: str) -> Invocation:
    """Return the host's invocation, without the MCP servers that run in the frontend's process.

    The frontend's `initialize` request adds these servers, and they are removed when the frontend
    disconnects.
    """
    sdk_names, other_servers = split_sdk_mcp_servers(invocation, cwd)
    if not sdk_names:
        return invocation
    return invocation._replace(
        mcp_config=(dump_json({"mcpServers": other_servers}).decode(),) if other_servers else ()
    )


class _NoHostError(Exception):
    """Raised if no host can be started. A local run of the conversation is still possible."""
