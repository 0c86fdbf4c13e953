"""Starts a conversation from a yume-cli command line.

A text prompt, from an argument or from stdin, gets a single answer. If stdin carries JSON frames,
the conversation lasts until stdin ends. The first line of stdin shows which format stdin has.
"""

import os
import stat
from collections.abc import Mapping, Sequence

from shim.adapters import VENDORS
from shim.conversation.plan import StdinInput
from shim.conversation.startup import ConversationStartup, prepare_conversation
from shim.conversation.vendor_list import find_replay_path
from shim.core.claude.argv.flags import Invocation
from shim.core.errors import CliArgumentError, FrontendError
from shim.core.reading.typed import TYPE_CHECKING
from shim.core.reading.values import (
    as_dict,
    canonicalize_uuid,
    escape_control_chars,
    validate_vendor_session_id,
)
from shim.core.yume.cli import YumeInvocation
from shim.core.yume.protocol import parse_yume_permission_mode
from shim.io.prompt import CHUNK_BYTES, LIMIT_HINT, NO_PROMPT_ERROR
from shim.io.stderr import warn
from shim.state import store
from shim.state.own_profiles import register_user_profiles

if TYPE_CHECKING:
    from shim.core.adapter.adapter import Adapter

# The namespace for UUIDs that are derived from Yume's session names (RFC 9562, version 5).
SESSION_NAMESPACE = "e7f0e0a6-7b59-4b63-9d0c-2f1b8f6f2a10"
FRAME_TYPES = (b"user", b"interrupt", b"set_permission_mode", b"tool_approval")


def create_yume_startup(
    yume_invocation: YumeInvocation,
    invocation: Invocation,
    installed_options: Mapping[str, str],
    argv: Sequence[str] = (),
) -> ConversationStartup:
    """Create the startup data for a yume-cli process. Raise FrontendError for arguments that cannot
    be run, which the caller reports as an error result.
    """
    # A replayed recording replaces every provider.
    if find_replay_path(Invocation(), os.environ) is not None:
        yume_invocation, invocation = (
            yume_invocation._replace(provider=""),
            invocation._replace(shim_vendor=None),
        )
    register_user_profiles(os.environ, invocation.shim_config)
    if yume_invocation.vendor_name and yume_invocation.vendor_name not in VENDORS:
        if yume_invocation.vendor_name == yume_invocation.provider:
            provider_text = yume_invocation.vendor_name
        else:
            provider_text = f"{yume_invocation.provider} ({yume_invocation.vendor_name})"
        raise FrontendError(
            f"unknown provider {provider_text[:80]}", hint=f"the providers are {', '.join(VENDORS)}"
        )
    if yume_invocation.cwd:
        try:
            os.chdir(yume_invocation.cwd)
        except OSError as error:
            raise FrontendError(
                f"cannot enter the folder {yume_invocation.cwd}: {error.strerror}"
            ) from None
    invocation, display_name = _resolve_session(yume_invocation, invocation)
    return prepare_conversation(
        apply_mode(yume_invocation, invocation),
        installed_options,
        argv,
        display_name=display_name,
        read_input=lambda startup: _read_input(startup, yume_invocation),
    )


def _resolve_session(call: YumeInvocation, invocation: Invocation) -> tuple[Invocation, str]:
    """Return the invocation with its session id, and Yume's name for the session.

    Yume sends the name of its tab with every turn. The name is "" if it is already a UUID.
    """
    name = call.resume
    if not name:
        name = call.session
    session_id = ""
    if name:
        session_id = derive_session_uuid(name)
    session = None
    if session_id:
        session = store.find_session(session_id, os.environ)
    if session is not None and call.history and call.vendor_name not in ("", session.vendor):
        warn(
            f"{call.vendor_name}: the session belongs to {session.vendor}; starting a new "
            f"one, {_HISTORY_NOT_READ}\n"
        )
        return invocation, ""
    if session is None and call.history:
        warn(
            f"{call.vendor_name or 'yume-cli'}: unknown session; starting a new one, "
            f"{_HISTORY_NOT_READ}\n"
        )
        name = call.session
        session_id = ""
        if name:
            session_id = derive_session_uuid(name)
    display_name = name
    if canonicalize_uuid(name) == name:
        display_name = ""
    if not (session is None and call.history) and (call.resume or session is not None):
        return invocation._replace(resume=session_id), display_name
    return invocation._replace(session_id=session_id or None), display_name


def _read_input(startup: ConversationStartup, call: YumeInvocation) -> ConversationStartup:
    """Return the startup data with the prompt, from the command line or from the start of stdin."""
    if call.api_base:
        startup = startup._replace(
            environment=_apply_api_base(call.api_base, startup.adapter, startup.environment)
        )
    asks_frontend = startup.invocation.permission_prompt_tool == "stdio"
    if call.prompt:
        return startup._replace(
            stdin_input=StdinInput(may_send_more=_can_receive_frames(), wants_answers=asks_frontend)
        )
    data, has_frames = _read_first_line(startup)
    if not has_frames:
        text = data.decode("utf-8", "replace").strip()
        if not text:
            raise CliArgumentError(NO_PROMPT_ERROR.replace("using --print", "starting"))
        # Stdin contained the prompt, so it cannot carry answers.
        invocation = startup.invocation._replace(prompt=text)
        return startup._replace(invocation=invocation, stdin_input=StdinInput())
    from shim.io.stdin import Stdin

    source = Stdin(
        max_bytes=startup.settings.max_inbound_bytes, recorder=startup.recorder, received=data
    )
    return startup._replace(
        invocation=startup.invocation._replace(input_format="stream-json"),
        stdin_input=StdinInput(source, may_send_more=True, wants_answers=True),
    )


def _apply_api_base(
    api_base: str, adapter: "Adapter", environment: Mapping[str, str]
) -> Mapping[str, str]:
    """Return the environment with a different base URL for the model API, for vendors that support
    one.
    """
    if not adapter.environment.api_base_variable:
        warn(
            f"{adapter.name}: --api-base is ignored; set the address in the vendor's "
            "configuration\n"
        )
        return environment
    if not api_base.startswith(("http://", "https://")):
        raise FrontendError(f"--api-base is {api_base[:80]!r}; it must be an http or https address")
    return {**environment, adapter.environment.api_base_variable: api_base}


def _read_first_line(startup: ConversationStartup) -> tuple[bytes, bool]:
    """Return the start of stdin and True if stdin carries JSON frames, or else all of stdin and
    False.
    """
    data = b""
    max_bytes = startup.settings.max_inbound_bytes
    while chunk := os.read(0, CHUNK_BYTES):
        if startup.recorder is not None:
            startup.recorder.record_stream("i", chunk)
        data += chunk
        if len(data) > max_bytes:
            raise FrontendError(
                f"the prompt on stdin is larger than {max_bytes} bytes", hint=LIMIT_HINT
            )
        if b"\n" in data.lstrip() and _is_frame(data):
            return data, True
    return data, _is_frame(data)


_HISTORY_NOT_READ = "and --history-file is ignored: no vendor can read another vendor's history"


def apply_mode(call: YumeInvocation, invocation: Invocation) -> Invocation:
    """Return the invocation with the permission mode from Yume's command line. The name has Yume's
    meaning, even if Claude has a mode with the same name (`auto`).
    """
    if not call.mode:
        return invocation
    mode, asks_frontend, is_known = parse_yume_permission_mode(call.mode)
    if not is_known:
        warn(
            escape_control_chars(
                f"{call.vendor_name or 'yume-cli'}: unknown permission mode "
                f"{call.mode[:60]!r}; using default\n"
            )
        )
    permission_prompt_tool = None
    if asks_frontend:
        permission_prompt_tool = "stdio"
    return invocation._replace(permission_mode=mode, permission_prompt_tool=permission_prompt_tool)


def derive_session_uuid(name: str) -> str:
    """Derive a session UUID from a session name. Raise FrontendError if the name contains invalid
    characters.
    """
    uuid = canonicalize_uuid(name)
    if uuid is not None:
        return uuid
    if validate_vendor_session_id(name) is None:
        raise FrontendError(f"the session id {name[:60]!r} has invalid characters")
    from uuid import UUID, uuid5

    return str(uuid5(UUID(SESSION_NAMESPACE), name))


def _can_receive_frames() -> bool:
    """Return whether stdin can carry JSON frames, because it is a pipe, a socket or a terminal."""
    mode = os.fstat(0).st_mode
    if stat.S_ISFIFO(mode):
        return True
    if stat.S_ISSOCK(mode):
        return True
    return os.isatty(0)


def _is_frame(data: bytes) -> bool:
    """Return whether the first non-blank line is a JSON frame."""
    line = data.lstrip().partition(b"\n")[0].strip()
    if not line.startswith(b"{"):
        return line == b"$"
    from shim.core.claude.messages import parse_json_line

    kind = as_dict(parse_json_line(line)).get("type")
    if not isinstance(kind, str):
        return False
    return kind.encode("utf-8", "replace") in FRAME_TYPES
