"""Applies environment variables and settings to the command line: permission mode, driver, replays,
resumed session.
"""

import os
from collections.abc import Mapping

from shim.core.adapter.adapter import Adapter
from shim.core.claude.argv.invocation import Invocation
from shim.core.claude.argv.models import (
    CLAUDE_EFFORT_LEVELS,
    REPLAY_PREFIX,
    check_model_name,
    parse_effort_level,
)
from shim.core.errors import (
    CliArgumentError,
    FrontendError,
    UnknownSessionError,
    UnsupportedPermissionModeError,
)
from shim.core.policy.policy import BYPASS_MODE, PERMISSION_MODES, resolve_permission_mode
from shim.core.policy.settings import ClaudeSettings
from shim.core.reading.diagnostics import escape_control_chars
from shim.core.reading.typed import TYPE_CHECKING, NamedTuple
from shim.core.reading.values import canonicalize_uuid, validate_vendor_session_id
from shim.io.stderr import warn
from shim.state.config import ONE_WAY, TWO_WAY, ShimSettings

if TYPE_CHECKING:
    from shim.core.claude.resume_point import ResumePoint
    from shim.state.store import StoredSession


MIRROR_FLAG = "--session-mirror"
REAL_CLAUDE = "claude"  # the name of the real claude's adapter
# Set by the SDKs for `enable_file_checkpointing` and `enableFileCheckpointing`.
FILE_CHECKPOINTS_VARIABLE = "CLAUDE_CODE_ENABLE_SDK_FILE_CHECKPOINTING"
QUESTION_PREVIEW_VARIABLE = "CLAUDE_CODE_QUESTION_PREVIEW_FORMAT"
SANDBOX_VARIABLES = ("IS_SANDBOX", "CLAUDE_CODE_BUBBLEWRAP")


class DriverChoice(NamedTuple):
    """A vendor's adapter with the selected driver, and the reason for the selection."""

    adapter: Adapter
    reason: str  # why this driver was selected; "" if the vendor has only one


def find_replay_path(invocation: Invocation, environment: Mapping[str, str]) -> str | None:
    """Return the path of the recordings to replay instead of running a vendor. Return None if
    neither a flag nor a variable requests a replay.

    A replay path in the environment takes precedence over the vendor of a resumed session or of a
    model name, so that no vendor runs.
    """
    vendor_name = invocation.shim_vendor
    if not vendor_name:
        vendor_name = environment.get("SHIM_VENDOR")
    if not vendor_name:
        vendor_name = ""
    if vendor_name.startswith(REPLAY_PREFIX):
        return vendor_name[len(REPLAY_PREFIX) :]
    return None


def choose_result_terminator_line(invocation: Invocation, terminator_setting: str) -> str:
    """Return which terminator line follows a result (contract S16b)."""
    if invocation.output_format != "stream-json":
        return "none"
    if terminator_setting != "auto":
        return terminator_setting
    is_sdk = os.environ.get("CLAUDE_CODE_ENTRYPOINT", "").startswith("sdk-")
    if invocation.print_mode and invocation.input_format == "text" and not is_sdk:
        return "message_stop"
    return "none"


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
    from shim.process.probe import find_unsupported_argument

    if missing_flag := find_unsupported_argument(adapter, vendor_settings, environment, cwd):
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


def apply_claude_settings(invocation: Invocation, claude_settings: ClaudeSettings) -> Invocation:
    """Apply the permission mode and the extra folders from Claude's settings files. Command-line
    flags take precedence.

    Raise UnsupportedPermissionModeError if a settings file forbids the requested mode.
    """
    for ignored_setting in claude_settings.unsupported_keys:
        warn(f"{ignored_setting} has no effect: only the real claude supports it\n")
    for hook in claude_settings.refused_event_hooks:
        warn(f"a {hook.event} hook in {hook.source} has no effect: {hook.refusal}\n")
    if (
        invocation.permission_mode is None
        and not invocation.skip_permissions
        and claude_settings.mode is not None
    ):
        invocation = invocation._replace(permission_mode=claude_settings.mode)
    if claude_settings.bypass_forbidden_by:
        if resolve_requested_permission_mode(invocation) == BYPASS_MODE:
            raise UnsupportedPermissionModeError(
                f"the permission mode {BYPASS_MODE} is forbidden by "
                f"{claude_settings.bypass_forbidden_by}",
                hint="use another mode, or exclude the file with --setting-sources",
            )
        invocation = invocation._replace(allow_skip_permissions=False)
    return invocation._replace(add_dirs=(*invocation.add_dirs, *claude_settings.directories))


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


def can_prompt_frontend(invocation: Invocation) -> bool:
    """Return whether permission prompts can be sent to the frontend. This requires stream-json
    output.
    """
    if invocation.permission_prompt_tool != "stdio":
        return False
    return invocation.output_format == "stream-json"


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


def resolve_resumed_session(
    invocation: Invocation, vendor_name: str | None, cwd: str, environment: Mapping[str, str]
) -> "tuple[str | None, StoredSession | None]":
    """Return the id and the stored data of the session to resume: the named session, or the last
    session in this folder.

    `vendor_name` restricts the last session to one vendor, if the frontend named one.
    """
    session_name = invocation.resume
    if not (session_name or invocation.continue_last):
        return None, None
    from shim.state import store

    if session_name:
        session = store.find_session(session_name, environment)
        if session is None:
            return session_name, None
        return session.shown or session_name, session
    last_session = store.find_last_session(cwd, environment, vendor_name)
    if last_session is None:
        return None, None
    session_id, session = last_session
    return session.shown or session_id, session


def check_session_flags(
    invocation: Invocation,
    adapter: Adapter,
    stored_session: "StoredSession | None",
    environment: Mapping[str, str],
    *,
    is_replay: bool,
) -> None:
    """Check the session id of a new or resumed session (contract F6, F7).

    `stored_session` is the resumed session. `is_replay` tells whether the session comes from a
    replayed recording. Raise FrontendError if the session belongs to another vendor,
    UnknownSessionError if the session to resume does not exist, and CliArgumentError if the id of a
    new session is already in use.
    """
    if stored_session and stored_session.vendor != adapter.name:
        raise FrontendError(
            f"this session belongs to {stored_session.vendor}; {adapter.name} cannot resume it",
            hint="start a new session, or resume this one without choosing a vendor",
        )
    if invocation.resume and is_replay:
        return
    if (stored_session or invocation.resume) and not adapter.abilities.can_resume:
        raise FrontendError(f"{adapter.name} cannot resume a session", hint="start a new session")
    if not (invocation.resume or invocation.session_id):
        return
    from shim.state import store

    if invocation.resume and stored_session is None and store.can_store_sessions(environment):
        raise UnknownSessionError(invocation.resume)
    if _is_fork_with_same_id(invocation):
        return
    if invocation.session_id and store.find_session(invocation.session_id, environment):
        raise CliArgumentError(f"Error: Session ID {invocation.session_id} is already in use.")


def _is_fork_with_same_id(invocation: Invocation) -> bool:
    """Return whether a fork is to use the original session's id. From then on, the id belongs to
    the fork.
    """
    session_id = canonicalize_uuid(invocation.session_id)
    if not invocation.fork_session:
        return False
    return session_id == canonicalize_uuid(invocation.resume)


def find_requested_resume_point(
    invocation: Invocation, adapter: Adapter, transcript: bytes
) -> "ResumePoint | None":
    """Return the message at which the session is resumed. Return None if it is the last one.

    `transcript` is the transcript of the session. Raise UnknownMessageError or ResumeRejectedError
    as `find_resume_point` does, and FrontendError if the shim cannot drop the later messages.
    """
    if invocation.resume_session_at is None:
        return None
    from shim.core.claude.resume_point import find_resume_point

    if not transcript:
        raise FrontendError(
            "--resume-session-at is refused: the session has no transcript, so the shim "
            "cannot find the message",
            hint="resume without this option, and set transcripts = true in config.toml",
        )
    point = find_resume_point(
        transcript, invocation.resume_session_at, invocation.resume_drops_turn
    )
    # The lines of a recording are fixed, and a real claude's own transcript has other message ids.
    if point is not None and (adapter.cli.replay is not None or adapter.name == REAL_CLAUDE):
        raise FrontendError(
            f"--resume-session-at is refused: other messages follow this message, and the shim "
            f"cannot drop messages of {adapter.name}",
            hint="resume without this option, or start a new session",
        )
    return point


def has_session_store(invocation: Invocation) -> bool:
    """Return whether the frontend has a session store, which it fills from the transcript."""
    return any(name == MIRROR_FLAG for name, _ in invocation.other_flags)


def wants_file_checkpoints(environment: Mapping[str, str]) -> bool:
    """Return whether the frontend wants to restore files with `rewind_files`."""
    return environment.get(FILE_CHECKPOINTS_VARIABLE, "").lower() not in ("", "0", "false")


def runs_unsandboxed_as_root(environment: Mapping[str, str]) -> bool:
    """Return whether the real claude would refuse the mode bypassPermissions: it lets root use the
    mode only if one of these variables says that the machine is a sandbox.
    """
    return os.geteuid() == 0 and not any(environment.get(name) == "1" for name in SANDBOX_VARIABLES)
