"""The protocol between the shim and its relay on another machine, which SSH starts there.

The relay reads one line of JSON from stdin, the request. Every request has a `kind`:

    sessions  all (true: ended sessions, too). The answer is a frame of the kind `sessions`: the
              `version` of the shim, and `sessions`, a list. More requests may follow.
    connect   session (a UUID). All further bytes are the frames of the session's host and of its
              client, unchanged in both directions.
    command   argv, cwd ("" for the home folder), environment (an object). The relay runs this
              command with all further bytes as stdin, and exits with its status. An element of argv
              is a text, or an object with the key `file`: the content of a file that the relay
              creates, and whose path the command gets. Contents with secrets are not visible in the
              list of processes.

If the relay refuses a request, it answers with the frame `bye`, whose `reason` is a sentence.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from shim.core.bridge.frames import FrameError, encode_frame, parse_frame
from shim.core.claude.argv.flags import Invocation, parse_argv
from shim.core.errors import FrontendError
from shim.core.reading.values import as_dict, as_list, canonicalize_uuid

# A request may contain the flags of a frontend, with settings and MCP servers as JSON.
MAX_REQUEST_BYTES = 1024 * 1024
# The commands that a relay runs: the first two words of `argv`.
RELAYED_COMMANDS = frozenset(
    (
        ("bridge", "answer"),
        ("bridge", "say"),
        ("bridge", "stop"),
        ("claude", "--bg"),
        ("claude", "--resume"),
        ("claude", "logs"),
        ("claude", "respawn"),
        ("claude", "rm"),
        ("claude", "stop"),
    )
)
START_COMMAND = ("claude", "--bg")
RESUME_COMMAND = ("claude", "--resume")
READING_COMMANDS = frozenset((("claude", "logs"),))
# The commands whose further arguments do not name sessions.
COMMANDS_WITH_ARGUMENTS = frozenset((("bridge", "answer"), ("bridge", "say"), RESUME_COMMAND))
# The fields of `claude --resume` that start another session, or that name files of the machine.
STARTING_FIELDS = (
    *("resume", "continue_last", "session_id", "fork_session", "background", "subcommand"),
    *("shim_config", "shim_record", "shim_log"),
)
START_REFUSAL = "you may not start sessions here; `fleet_start = true` in the config.toml of the machine allows it"
# The variables of a frontend that a command gets. They name the frontend, and its longest line.
RELAYED_VARIABLES = ("CLAUDE_CODE_ENTRYPOINT", "CLAUDE_AGENT_SDK_VERSION", "SHIM_MAX_LINE_BYTES")


class FileArgument(NamedTuple):
    """An argument that is the path of a file with this content."""

    content: str


RelayedArgv = Sequence[str | FileArgument]


class RelayRequest(NamedTuple):
    """A request to a relay. The module describes its fields."""

    kind: str
    includes_ended: bool = False
    session_id: str = ""
    argv: RelayedArgv = ()
    cwd: str = ""
    environment: Mapping[str, str] = {}


class RelayAccess(NamedTuple):
    """What a relay does for the other machine.

    is_read_only  only what reads: lists, logs, and clients with the role "watch"
    session_id    the UUID of the only session, or "" for all sessions
    may_start     whether new sessions may be started
    """

    is_read_only: bool = False
    session_id: str = ""
    may_start: bool = True


FULL_ACCESS = RelayAccess()
WATCH_OPTION, SESSION_OPTION, NO_START_OPTION = "--watch", "--session", "--no-start"


def build_access_options(access: RelayAccess) -> list[str]:
    """Return the options of `shim bridge relay` for this access."""
    options = []
    if access.is_read_only:
        options.append(WATCH_OPTION)
    if access.session_id:
        options += [SESSION_OPTION, access.session_id]
    if not access.may_start:
        options.append(NO_START_OPTION)
    return options


def parse_access_options(options: Sequence[str]) -> RelayAccess | None:
    """Parse the options of `build_access_options`. Return None for any others."""
    session_id = ""
    if SESSION_OPTION in options:
        session_id = "".join(options[options.index(SESSION_OPTION) + 1 :][:1])
    access = RelayAccess(
        is_read_only=WATCH_OPTION in options,
        session_id=session_id,
        may_start=NO_START_OPTION not in options,
    )
    is_valid = not session_id or canonicalize_uuid(session_id) == session_id
    return access if is_valid and build_access_options(access) == [*options] else None


def check_relay_access(request: RelayRequest, access: RelayAccess) -> None:
    """Raise FrameError with a sentence if the other machine may not send the request."""
    if request.kind == "connect":
        _check_session(request.session_id, access)
    if request.kind != "command":
        return
    command = tuple(request.argv[:2])
    if access.is_read_only and command not in READING_COMMANDS:
        raise FrameError("you may only watch sessions here")
    if command == START_COMMAND:
        if access.session_id or not access.may_start:
            raise FrameError(START_REFUSAL)
        return
    # Every other command names its session after the command.
    _check_session(str(request.argv[2]) if len(request.argv) > 2 else "", access)
    if access == FULL_ACCESS:
        return
    if command not in COMMANDS_WITH_ARGUMENTS and len(request.argv) > 3:
        raise FrameError(f"`{' '.join(map(str, command))}` accepts one session here")
    if command == RESUME_COMMAND:
        _check_resume_flags(request.argv[3:])


def _check_resume_flags(argv: RelayedArgv) -> None:
    """Raise FrameError if the flags of `claude --resume` would use another session, or start one.
    Raise FrontendError if they are not valid.
    """
    invocation = parse_argv([each if isinstance(each, str) else "FILE" for each in argv])
    for name in STARTING_FIELDS:
        if getattr(invocation, name) != Invocation._field_defaults[name]:
            raise FrameError(f"you may not start sessions here, so `{name}` is refused")


def _check_session(session_id: str, access: RelayAccess) -> None:
    if access.session_id and session_id != access.session_id:
        raise FrameError(f"you may only use the session {access.session_id}")
    if access != FULL_ACCESS and canonicalize_uuid(session_id) is None:
        raise FrameError(f"a session must be named by its UUID, not {session_id[:60]!r}")


def encode_sessions_request(*, includes_ended: bool) -> bytes:
    """Encode the request for a machine's sessions."""
    return encode_frame("sessions", all=includes_ended)


def encode_connect_request(session_id: str) -> bytes:
    """Encode the request to connect to the host of a session, which is named by its UUID."""
    return encode_frame("connect", session=session_id)


def encode_command_request(argv: RelayedArgv, cwd: str, environment: Mapping[str, str]) -> bytes:
    """Encode the request to run a command of RELAYED_COMMANDS, with RELAYED_VARIABLES of
    `environment`. Raise FrontendError if the request is too large.
    """
    variables = {name: environment[name] for name in RELAYED_VARIABLES if name in environment}
    encoded_argv = [
        {"file": argument.content} if isinstance(argument, FileArgument) else argument
        for argument in argv
    ]
    request = encode_frame("command", argv=encoded_argv, cwd=cwd, environment=variables)
    if len(request) > MAX_REQUEST_BYTES:
        raise FrontendError(
            f"the arguments are too long for another machine: {len(request):,} bytes, of at most "
            f"{MAX_REQUEST_BYTES:,}"
        )
    return request


def parse_relay_request(raw: bytes) -> RelayRequest:
    """Parse a request. Raise FrameError with a sentence if the request is not allowed."""
    frame = parse_frame(raw)
    kind = frame["kind"]
    if kind == "sessions":
        return RelayRequest(kind, includes_ended=frame.get("all") is True)
    if kind == "connect":
        return RelayRequest(kind, session_id=_get_text(frame, "session"))
    if kind == "command":
        argv = tuple(map(_parse_argument, as_list(frame.get("argv"))))
        if argv[:2] not in RELAYED_COMMANDS:
            command = " ".join(str(argument) for argument in argv[:2])
            raise FrameError(f"a relay does not run the command {command!r}")
        variables = as_dict(frame.get("environment"))
        environment = {
            name: str(variables[name]) for name in RELAYED_VARIABLES if name in variables
        }
        return RelayRequest(kind, argv=argv, cwd=_get_text(frame, "cwd"), environment=environment)
    raise FrameError(f"this version of the shim does not know the request {kind[:40]!r}")


def _parse_argument(value: object) -> str | FileArgument:
    if isinstance(value, dict):
        return FileArgument(_get_text(value, "file"))
    return str(value)


def _get_text(frame: Mapping[str, Any], key: str) -> str:
    value = frame.get(key, "")
    if not isinstance(value, str):
        raise FrameError(f"`{key}` must be a string")
    return value
