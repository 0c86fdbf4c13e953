"""The protocol between the shim and its relay on another machine, which SSH starts there.

The relay reads one line of JSON from stdin, the request. Every request has a `kind`:

    sessions  all (true: ended sessions, too). The answer is a frame of the kind `sessions`, whose
              `sessions` is a list. More requests may follow.
    connect   session (a UUID). All further bytes are the frames of the session's host and of its
              client, unchanged in both directions.
    command   argv, cwd ("" for the home folder), input (text for stdin). The relay runs the command
              and exits with its status.

If the relay refuses a request, it answers with the frame `bye`, whose `reason` is a sentence.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from shim.core.bridge.frames import FrameError, encode_frame, parse_frame
from shim.core.reading.values import as_list

# A request contains at most a prompt, which a person has typed or piped.
MAX_REQUEST_BYTES = 4 * 1024 * 1024
# The commands that a relay runs: the first two words of `argv`.
RELAYED_COMMANDS = frozenset(
    (
        ("bridge", "answer"),
        ("bridge", "say"),
        ("bridge", "stop"),
        ("bridge", "watch"),
        ("claude", "--bg"),
        ("claude", "logs"),
        ("claude", "respawn"),
        ("claude", "rm"),
        ("claude", "stop"),
    )
)


class RelayRequest(NamedTuple):
    """A request to a relay. The module describes its fields."""

    kind: str
    includes_ended: bool = False
    session_id: str = ""
    argv: Sequence[str] = ()
    cwd: str = ""
    input_text: str = ""


def encode_sessions_request(*, includes_ended: bool) -> bytes:
    """Encode the request for a machine's sessions."""
    return encode_frame("sessions", all=includes_ended)


def encode_connect_request(session_id: str) -> bytes:
    """Encode the request to connect to the host of a session, which is named by its UUID."""
    return encode_frame("connect", session=session_id)


def encode_command_request(argv: Sequence[str], cwd: str, input_text: str) -> bytes:
    """Encode the request to run a command of RELAYED_COMMANDS."""
    return encode_frame("command", argv=list(argv), cwd=cwd, input=input_text)


def parse_relay_request(raw: bytes) -> RelayRequest:
    """Parse a request. Raise FrameError with a sentence if the request is not allowed."""
    frame = parse_frame(raw)
    kind = frame["kind"]
    if kind == "sessions":
        return RelayRequest(kind, includes_ended=frame.get("all") is True)
    if kind == "connect":
        return RelayRequest(kind, session_id=_get_text(frame, "session"))
    if kind == "command":
        argv = tuple(str(argument) for argument in as_list(frame.get("argv")))
        if argv[:2] not in RELAYED_COMMANDS:
            raise FrameError(f"a relay does not run the command {' '.join(argv[:2])!r}")
        return RelayRequest(
            kind, argv=argv, cwd=_get_text(frame, "cwd"), input_text=_get_text(frame, "input")
        )
    raise FrameError(f"this version of the shim does not know the request {kind[:40]!r}")


def _get_text(frame: Mapping[str, Any], key: str) -> str:
    value = frame.get(key, "")
    if not isinstance(value, str):
        raise FrameError(f"`{key}` must be a string")
    return value
