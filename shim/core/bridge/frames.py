"""The frames between a host and its clients: one JSON object a line, both ways (design page "bridge",
Frames).

A frame has its `kind`; unknown keys are ignored, and so is an unknown kind of the host's. Times are
milliseconds since 1970. What a frame of each kind has:

From a client (every one may have an `id`; the same id twice is one frame):

    hello      protocol, client (its name), role ("drive" or "watch"), after (a cursor or null),
               replay (false: no history), partial (false: no partial lines), knows (the optional
               kinds that it understands)
    message    id, message ({"role": "user", "content": …}); an id that is a UUID becomes that of
               the line
    answer     question, decision (the body of an answer to can_use_tool)
    interrupt  nothing
    model      model (a name, or null for the first one)
    mode       mode (a permission mode)
    take       if_idle (true: the frame is refused if a turn runs and another client has control; a
               frontend that joins sends this); this client has control from now on
    release    nothing: nobody drives
    end        nothing: the session ends; the answer is `bye`
    request    id, request (any other control request of Claude's)
               optional
    reply      id (of an `ask`), response (the body of Claude's control_response)
               optional
    deaf       nothing: this client answers no question (any more); one that only it could answer,
               because it drives and nobody else may, is denied
               optional

From the host:

    welcome    protocol, client (this client's name here), session, id, name, vendor, cwd, model,
               mode, bypass (whether bypassPermissions may be chosen), pid, version, generation,
               number (of the last line), state (an object as in `state`), driver, questions (the
               ids of those that are open; each follows as a frame when the client is in sync),
               settled (question, by, how of the last question that was settled, or null),
               initialize, init, knows, differs (only where the client's protocol is another one: a
               sentence)
    line       number, generation, at, line; without `number` it is a partial line. `line` is always
               the last key
    synced     number: what was said before the client came is told. Once
    gap        from, to (numbers, both told), reason ("generation", "unknown", "slow" or "lost")
    question   question (its id), at, until (when it is denied if nobody answers; left out if it
               never is), request (the body of Claude's request)
    settled    question, by (a client's name, or null), how (allow, deny, timeout, interrupt,
               cancelled, ended)
    state      state, status, waitingFor, needs, detail (background page, section 3), model, mode
    driver     client (its name, or null)
    refused    id (or null), reason (a word of Reason), text (a sentence), driver (where another one
               drives). A message that was accepted and still waits when the session ends is refused
               so, with the reason "ended"
    bye        reason
    accepted   id: what the frame asked for was done (said to all kinds but end, request, reply)
               optional
    response   id, response (the body of Claude's control_response)
               optional
    ask        id, request (a hook's or a server's, which this client brought)
               optional
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import orjson

from shim.core.reading.diagnostics import escape_control_chars
from shim.core.reading.json_text import dump_json
from shim.core.reading.values import as_dict, as_list

PROTOCOL_VERSION = 1
# The optional kinds that this version understands.
OPTIONAL_KINDS = ("accepted", "request", "response", "ask", "reply", "deaf")
# The subtype of a `request` of a frontend that joins: the conversation, or the host of a real claude,
# reads Claude's settings files again, and answers with what the session applies.
RELOAD_SETTINGS = "reload_settings"
BYPASS_REFUSED_TEXT = "bypassPermissions can be chosen only if the session began with it"
DRIVE = "drive"
WATCH = "watch"
MAX_ID_CHARS = 200  # of an id; a longer one is refused, because the last ids are kept
MAX_NAME_CHARS = 64  # of a client's name
LINE_KEY = b',"line":'
# how the reason of a `bye` ends that lets nobody else in, behind how many
FULL_REASON = " clients are connected already"


class LogCursor(NamedTuple):
    """A place in a session's log: a life of its host, and the number of the last line that was
    seen.
    """

    generation: int
    number: int


class ClientHello(NamedTuple):
    """What a client says of itself."""

    protocol: int
    client_name: str
    can_control: bool
    cursor: LogCursor | None
    wants_history: bool = True
    wants_partial: bool = True
    optional_kinds: frozenset[str] = frozenset()


# The hello of a client that has not sent one yet.
NO_HELLO = ClientHello(0, "", can_control=False, cursor=None)


class FrameError(ValueError):
    """A frame that cannot be read. `str(error)` says what was found and what is allowed."""


class FrameRefusedError(Exception):
    """A frame that is not obeyed. `reason` is a word for programs, `str(error)` a sentence for
    persons.

    bad-frame     it cannot be read, or stands where it has no place
    bad-decision  an answer that cannot be given
    watch-only    the client said that it watches
    not-driver    another client drives; the frame has its name as `driver`
    not-owner     only who drives, or drove last, answers here (`bridge_answers`)
    unknown-question  no question of this session
    bypass        the session did not begin with bypassPermissions
    wider         settings that could let more run than the session lets
    too-many      so many wait already
    failed        the conversation refused it, in its own words
    ended         the session is over
    unknown-kind  a kind that this host does not know
    """

    def __init__(self, reason: str, text: str) -> None:
        super().__init__(text)
        self.reason = reason


def encode_frame(kind: str, **fields: object) -> bytes:
    """One frame, with its newline."""
    return dump_json({"kind": kind, **fields}) + b"\n"


def encode_line_frame(number: int, generation: int, at_ms: int, line: bytes) -> bytes:
    """The frame of a whole line, which is copied as it is."""
    return b'{"kind":"line","number":%d,"generation":%d,"at":%d,"line":%b}\n' % (
        number,
        generation,
        at_ms,
        line,
    )


def encode_partial_line_frame(at_ms: int, line: bytes) -> bytes:
    """The frame of a partial line."""
    return b'{"kind":"line","at":%d,"line":%b}\n' % (at_ms, line)


def extract_stream_json_line(raw: bytes) -> bytes:
    """Claude's own line out of a `line` frame, byte for byte; b"" if there is none."""
    start = raw.find(LINE_KEY)
    end = raw.rfind(b"}")
    if 0 <= start < end:
        return raw[start + len(LINE_KEY) : end]
    return b""


def parse_frame(raw: bytes) -> dict[str, Any]:
    """A frame as an object with a `kind`. FrameError says what is wrong with it."""
    try:
        frame = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise FrameError(f"a frame is one line of JSON, and this is none ({error})") from None
    if not isinstance(frame, dict):
        raise FrameError("a frame is an object of JSON")
    if not isinstance(frame.get("kind"), str):
        raise FrameError("a frame has its kind as a text")
    return frame


def parse_request_id(frame: Mapping[str, Any]) -> str:
    """The id of a frame, "" for none."""
    request_id = frame.get("id")
    if request_id is None:
        return ""
    if not isinstance(request_id, str) or not 0 < len(request_id) <= MAX_ID_CHARS:
        raise FrameError(f"an id is a text of 1 to {MAX_ID_CHARS} characters")
    return request_id


def parse_hello(frame: Mapping[str, Any]) -> ClientHello:
    """A client's first frame. A cursor that cannot be read is one that is not there: the whole log
    is said again.
    """
    protocol = frame.get("protocol")
    role = frame.get("role")
    raw_kinds = frame.get("knows")
    if protocol.__class__ is not int or protocol < 1:
        raise FrameError("hello has `protocol`, a number from 1")
    if role not in (DRIVE, WATCH):
        raise FrameError(f'hello has `role`, "{DRIVE}" or "{WATCH}"')
    name = escape_control_chars(str(frame.get("client") or "client")[:MAX_NAME_CHARS])[
        :MAX_NAME_CHARS
    ]
    kinds = (kind for kind in as_list(raw_kinds) if isinstance(kind, str))
    return ClientHello(
        protocol,
        name,
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
