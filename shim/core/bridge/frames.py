"""The frames between a session's host and its clients. In both directions, each line is one JSON
object (design page "bridge", Frames).

Every frame has a `kind`. Unknown keys are ignored. A client also ignores frames of an unknown kind.
Times are in milliseconds since 1970.

A client sends these kinds of frames. Every frame may have an `id`. A frame with a repeated id is not
processed again.

    hello      protocol, client (the client's name), role ("drive" or "watch"), after (a cursor or
               null), replay (false: no history), partial (false: no partial lines), knows (the
               optional kinds that the client understands)
    message    id, message ({"role": "user", "content": …}); an id that is a UUID becomes the uuid
               of the line
    answer     question (the id of the prompt), decision (the body of a can_use_tool response)
    interrupt  no fields
    model      model (a name, or null for the initial model)
    mode       mode (a permission mode)
    take       if_idle (true: the frame is refused if a turn is running and another client has
               control; a frontend that joins a session sends true). The client becomes the
               controller
    release    no fields: the client gives up control
    end        no fields: the session ends, and the answer is `bye`
    request    id, request (any other control request of Claude)
               optional
    reply      id (of an `ask`), response (the body of Claude's control_response)
               optional
    deaf       no fields: the client no longer answers prompts. If the controller sends this frame,
               prompts that only the controller may answer are denied
               optional

The host sends these kinds of frames.

    welcome    protocol, client (the name of the client in this session), session, id, name, vendor,
               cwd, model, mode, bypass (whether bypassPermissions may be chosen), pid, version,
               generation, number (of the last line), state (an object with the fields of `state`),
               driver, questions (the ids of the open prompts; each prompt follows as a frame when
               the client is in sync), settled (question, by and how of the last resolved prompt, or
               null), initialize, init, knows, differs (a sentence, if the client has another
               protocol version)
    line       number, generation, at, line. A line without `number` is partial. `line` is always
               the last key
    synced     number (of the last line before the client's hello). Sent once, after all lines up to
               this number
    gap        from, to (both included), reason ("generation", "unknown", "slow" or "lost")
    question   question (the id of the prompt), at, until (the time at which an unanswered prompt is
               denied; missing if it never is), request (the body of Claude's request)
    settled    question, by (the name of a client, or null), how (allow, deny, timeout, interrupt,
               cancelled, ended)
    state      state, status, waitingFor, needs, detail, model, mode
    driver     client (the name of the controller, or null)
    refused    id (or null), reason (see FrameRefusedError), text (a sentence), driver (if another
               client has control). An accepted message that still waits when the session ends is
               refused with the reason "ended"
    bye        reason
    accepted   id (of the client's frame, which was executed). Not sent for end, request and reply
               optional
    response   id, response (the body of Claude's control_response)
               optional
    ask        id, request (of a hook or an MCP server that this client has registered)
               optional
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import orjson

from shim.core.reading.json_text import dump_json
from shim.core.reading.values import as_dict, as_list, escape_control_chars, get_text

PROTOCOL_VERSION = 1
# The optional kinds of frames that this version understands.
OPTIONAL_KINDS = ("accepted", "request", "response", "ask", "reply", "deaf")
# The subtype of a `request` that a frontend sends when it joins. The conversation reloads Claude's
# settings files and answers with the session's settings. For the real claude, the host does this.
RELOAD_SETTINGS = "reload_settings"
BYPASS_REFUSED_TEXT = "bypassPermissions can be chosen only if the session was started with it"
DRIVE = "drive"
WATCH = "watch"
MAX_ID_CHARS = 200  # longer ids are refused, because recent ids are stored
MAX_NAME_CHARS = 64  # the maximum length of a client's name
LINE_KEY = b',"line":'
# The end of the reason in a `bye` frame if too many clients are connected. The number of clients
# precedes this text.
FULL_REASON = " clients are already connected"


class LogCursor(NamedTuple):
    """A position in a session log: the generation of the host, and the number of the last line that
    the client has received.
    """

    generation: int
    number: int


class ClientHello(NamedTuple):
    """A client's first frame."""

    protocol: int
    client_name: str
    can_control: bool
    cursor: LogCursor | None
    wants_history: bool = True
    wants_partial: bool = True
    optional_kinds: frozenset[str] = frozenset()


# The placeholder for clients that have not sent their hello frame.
NO_HELLO = ClientHello(0, "", can_control=False, cursor=None)


class FrameError(ValueError):
    """Raised if a frame cannot be parsed. `str(error)` is a sentence about the allowed format."""


class FrameRefusedError(Exception):
    """Raised if a frame is refused. `reason` is a keyword for programs, and `str(error)` is a
    sentence for a person.

        bad-frame     the frame cannot be parsed, or is not allowed at this point
        bad-decision  the answer to a prompt is invalid
        watch-only    the client has the role "watch"
        not-driver    another client has control; the `driver` member of the frame is its name
        not-owner     only the controller or the last controller may answer prompts (`bridge_answers`)
        unknown-question  the session has no prompt with this id
        bypass        the session was not started with bypassPermissions
        wider         the settings could allow more than the session allows
        too-many      too many messages or requests are waiting
        failed        the conversation refused the request; the text is from the conversation
        ended         the session has ended
        unknown-kind  the host does not support this kind of frame
    """

    def __init__(self, reason: str, text: str) -> None:
        super().__init__(text)
        self.reason = reason


def encode_frame(kind: str, **fields: object) -> bytes:
    """Encode a frame as a line of JSON."""
    return dump_json({"kind": kind, **fields}) + b"\n"


def encode_line_frame(number: int, generation: int, at_ms: int, line: bytes) -> bytes:
    """Encode a `line` frame with a complete line, which is copied unchanged."""
    return b'{"kind":"line","number":%d,"generation":%d,"at":%d,"line":%b}\n' % (
        number,
        generation,
        at_ms,
        line,
    )


def encode_partial_line_frame(at_ms: int, line: bytes) -> bytes:
    """Encode a `line` frame with a partial line."""
    return b'{"kind":"line","at":%d,"line":%b}\n' % (at_ms, line)


def extract_stream_json_line(raw: bytes) -> bytes:
    """Return the bytes of Claude's line inside a `line` frame, or b"" if the frame has no line."""
    start = raw.find(LINE_KEY)
    end = raw.rfind(b"}")
    if 0 <= start < end:
        return raw[start + len(LINE_KEY) : end]
    return b""


def parse_frame(raw: bytes) -> dict[str, Any]:
    """Parse a frame, which is an object with a `kind`. Raise FrameError if the frame is invalid."""
    try:
        frame = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise FrameError(f"a frame must be one line of JSON ({error})") from None
    if not isinstance(frame, dict):
        raise FrameError("a frame must be a JSON object")
    if not isinstance(frame.get("kind"), str):
        raise FrameError("a frame must have a `kind` that is a string")
    return frame


def parse_request_id(frame: Mapping[str, Any]) -> str:
    """Return a frame's id, or "" if the id is missing. Raise FrameError if the id is invalid."""
    request_id = frame.get("id")
    if request_id is None:
        return ""
    if not isinstance(request_id, str) or not 0 < len(request_id) <= MAX_ID_CHARS:
        raise FrameError(f"an id must be a string of 1 to {MAX_ID_CHARS} characters")
    return request_id


def parse_hello(frame: Mapping[str, Any]) -> ClientHello:
    """Parse a client's hello frame. Raise FrameError if a field is invalid.

    An invalid cursor does not raise an error. In this case, the client receives a gap frame,
    followed by the complete log.
    """
    protocol = frame.get("protocol")
    role = frame.get("role")
    raw_kinds = frame.get("knows")
    if protocol.__class__ is not int or protocol < 1:
        raise FrameError("a hello frame must have `protocol`, a number of at least 1")
    if role not in (DRIVE, WATCH):
        raise FrameError(f'a hello frame must have `role`, "{DRIVE}" or "{WATCH}"')
    name = get_text(frame, "client", "client")[:MAX_NAME_CHARS]
    kinds = (kind for kind in as_list(raw_kinds) if isinstance(kind, str))
    return ClientHello(
        protocol,
        escape_control_chars(name)[:MAX_NAME_CHARS],
        role == DRIVE,
        _parse_cursor(frame.get("after")),
        frame.get("replay") is not False,
        frame.get("partial") is not False,
        frozenset(kinds) & frozenset(OPTIONAL_KINDS),
    )


def _parse_cursor(value: object) -> LogCursor | None:
    if value is None:
        return None
    fields = as_dict(value)
    generation = fields.get("generation")
    number = fields.get("number")
    if generation.__class__ is not int or number.__class__ is not int:
        return LogCursor(0, 0)
    return LogCursor(generation, number)
