"""Compares the flags and settings files of a frontend with the flags and settings files of the
session that the frontend joins.
"""

from collections.abc import Mapping
from typing import NamedTuple

from shim.bridge.attach.local_services import split_sdk_mcp_servers
from shim.bridge.launch import read_start_invocation
from shim.bridge.registry import SessionRecord
from shim.conversation.plan import resolve_requested_permission_mode
from shim.core.bridge.join_table import (
    has_comparable_settings,
    list_flag_differences,
    list_ignored_flags,
    list_stricter_settings,
)
from shim.core.claude.argv.flags import Invocation
from shim.core.claude.argv.paths import resolve_invocation_paths, resolve_rule_paths
from shim.core.errors import FrontendError
from shim.core.policy.settings import ClaudeSettings, rank_permission_mode
from shim.core.reading.json_text import dump_json
from shim.process.environment import get_working_directory
from shim.state.claude_settings import load_claude_settings

DEFAULT_MODE = "default"  # used if neither a flag nor a settings file names a mode
REFUSED_JOIN_ERROR = (
    "this frontend cannot join the background session {id}, because a running session cannot be "
    "restricted further: {difference}"
)
REFUSED_JOIN_HINT = (
    "add --fork-session to continue in a copy with these flags, or end the session with "
    "`claude stop {id}` first"
)


class JoinRequest(NamedTuple):
    """The permission mode and model that a frontend requests when it joins a session."""

    mode: str  # the permission mode from its flags or settings files; "" for none
    model: str  # the model from its flags; "" for none
    ignored_flags: list[str]


def check_join(
    invocation: Invocation,
    session: SessionRecord,
    session_settings: ClaudeSettings | None,
    session_mode: str,
    environment: Mapping[str, str],
) -> JoinRequest:
    """Return the mode and model that a frontend requests from the session that it joins. Raise
    FrontendError if the frontend forbids something that the session allows, or if one of the
    frontend's files cannot be read.

    `session_settings` are the values from Claude's settings files that the session applies. The
    value is None if the session runs a real claude whose host has an older version that does not
    report them; the files are then read here. Relative paths are resolved against the folder of
    their own command line.
    """
    cwd = get_working_directory()
    session_cwd = str(session.metadata["cwd"])
    start = read_start_invocation(session)
    if session_settings is None:
        session_settings = load_claude_settings(start, environment, session_cwd)
    start = resolve_invocation_paths(start, session_cwd, cwd)
    frontend = resolve_invocation_paths(invocation, cwd, session_cwd)
    if (frontend.mcp_config or frontend.strict_mcp_config) and (
        frontend.mcp_config != start.mcp_config
    ):
        frontend = _inline_servers(frontend, cwd)
        start = _inline_session_servers(start)
    settings = _resolve_paths(
        load_claude_settings(frontend, environment, session_cwd), cwd, session_cwd
    )
    session_settings = _resolve_paths(session_settings, session_cwd, cwd)
    differences = [
        *list_flag_differences(frontend, start),
        *list_stricter_settings(frontend, settings, start, session_settings),
    ]
    if differences:
        raise build_join_error(session, differences[0])
    mode = ""
    if frontend.permission_mode is not None or frontend.skip_permissions:
        # The mode is always requested, because another client may change it at any time.
        mode = resolve_requested_permission_mode(frontend)
    elif settings.mode or has_comparable_settings(frontend, start):
        mode = _choose_settings_mode(settings, session_settings, session_mode)
    return JoinRequest(mode, frontend.model or "", list_ignored_flags(frontend, start))


def build_join_error(session: SessionRecord, difference: str) -> FrontendError:
    """Return the error for a frontend that cannot join. The error names the difference and a
    solution.
    """
    return FrontendError(
        REFUSED_JOIN_ERROR.format(id=session.short_id, difference=difference),
        hint=REFUSED_JOIN_HINT.format(id=session.short_id),
    )


def _resolve_paths(settings: ClaudeSettings, source: str, target: str) -> ClaudeSettings:
    deny, ask, allow = (
        resolve_rule_paths(rules, source, target)
        for rules in (settings.deny, settings.ask, settings.allow)
    )
    return settings._replace(deny=deny, ask=ask, allow=allow)


def _inline_servers(invocation: Invocation, cwd: str) -> Invocation:
    """Return the command line with its MCP servers as JSON. Servers that run in the frontend's
    process are omitted, because the frontend's `initialize` request adds them.

    The flag is kept even if no servers are left, because a missing flag is not compared.
    """
    _, servers = split_sdk_mcp_servers(invocation, cwd)
    return invocation._replace(mcp_config=(dump_json({"mcpServers": servers}).decode(),))


def _inline_session_servers(start: Invocation) -> Invocation:
    """Return the session's command line with its MCP servers as JSON. If the files of the servers
    can no longer be read, the command line is returned unchanged.
    """
    try:
        return _inline_servers(start, "")
    except FrontendError:
        return start


def _choose_settings_mode(
    settings: ClaudeSettings, session_settings: ClaudeSettings, session_mode: str
) -> str:
    """Return the permission mode that the frontend's settings files request, or "" to keep the
    session's mode.

    The settings request a mode only if it is more restrictive than the session's current mode, and
    differs from the mode in which the session started. The session may have changed its mode since
    its start.
    """
    mode = settings.mode or DEFAULT_MODE
    started_mode = session_settings.mode or DEFAULT_MODE
    is_stricter = rank_permission_mode(mode) < rank_permission_mode(session_mode)
    if mode != started_mode and is_stricter:
        return mode
    return ""
