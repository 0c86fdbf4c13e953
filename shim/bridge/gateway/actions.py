"""The actions of the gateway's POST requests. Each action connects to a session's host, sends
frames, and waits for the answer.

No state is kept between requests, so the gateway may be restarted at any time.
"""

from collections.abc import Mapping
from typing import Any
from uuid import uuid4

import anyio

from shim.bridge.client import HostUnavailableError
from shim.bridge.decisions import build_decision_body
from shim.bridge.gateway.auth import HTTPError
from shim.bridge.gateway.hosts import LocalBackgroundSessionManager
from shim.bridge.gateway.step_renderer import escape_control_chars_in_json
from shim.bridge.gateway.streams import HostFrame, read_frames
from shim.core.errors import FrontendError
from shim.core.reading.values import canonicalize_uuid, get_text

ANSWER_TIMEOUT_S = 10.0  # a host usually answers within milliseconds
SESSION_ENDED_TEXT = "the session has ended"
TIMEOUT_TEXT = (
    "the session did not answer in time; check whether the action was done before you repeat it"
)
MAX_TEXT_CHARS = 500_000  # message text
MAX_NAME_CHARS = 200  # name of a model or mode, or id of a message or prompt
# The HTTP status for each reason why a host refuses a frame
# (`core.bridge.frames.FrameRefusedError`). All other reasons get status 400.
STATUS_BY_REASON = {
    "not-driver": 409,
    "not-owner": 409,
    "ended": 409,
    "watch-only": 403,
    "bypass": 403,
    "wider": 403,
    "unknown-question": 404,
    "too-many": 429,
}


async def send_action_frame_and_wait(
    hosts: LocalBackgroundSessionManager,
    session_id: str,
    frame: Mapping[str, Any],
    *,
    take_control: bool = False,
) -> dict[str, Any]:
    """Send a frame to a session's host, and wait until the host has handled it. Raise HTTPError if
    the host refuses the frame or does not answer.
    """
    request_id = get_text(frame, "id", str(uuid4()))
    try:
        with anyio.fail_after(ANSWER_TIMEOUT_S):
            async with hosts.connect_to_session(session_id, as_controller=True) as feed:
                if take_control:
                    await feed.send_frame({"kind": "take", "id": f"take-{request_id}"})
                await feed.send_frame({**frame, "id": request_id})
                async for reply in read_frames(feed):
                    result = _match_reply(reply, request_id, frame)
                    if result is not None:
                        return result
    except TimeoutError:
        raise HTTPError(504, TIMEOUT_TEXT) from None
    except HostUnavailableError:
        if frame["kind"] != "end":
            raise
    if frame["kind"] == "end":
        return {"ended": True}
    raise HTTPError(409, SESSION_ENDED_TEXT)


def _match_reply(
    reply: HostFrame, request_id: str, frame: Mapping[str, Any]
) -> dict[str, Any] | None:
    """Return the result if the host's frame answers our frame, else None."""
    fields = reply.fields
    if reply.kind == "accepted" and fields.get("id") == request_id:
        return {"id": request_id}
    if reply.kind == "bye" and frame["kind"] == "end":
        return {"ended": True}
    if reply.kind == "refused" and fields.get("id") in (request_id, f"take-{request_id}"):
        reason = str(fields.get("reason"))
        controller_field = {}
        if fields.get("driver"):
            controller_field = {"driver": escape_control_chars_in_json(fields["driver"])}
        raise HTTPError(
            STATUS_BY_REASON.get(reason, 400),
            escape_control_chars_in_json(get_text(fields, "text", reason)),
            reason=escape_control_chars_in_json(reason),
            **controller_field,
        )
    return None


async def answer_permission_prompt(
    hosts: LocalBackgroundSessionManager, session_id: str, prompt_id: str, body: Mapping[str, Any]
) -> dict[str, Any]:
    """Answer a permission prompt. If another client answered it before, raise HTTPError with that
    client's name (`by`) and answer (`how`).
    """
    behavior = body.get("behavior")
    request_id = str(uuid4())
    if behavior not in ("allow", "deny"):
        raise HTTPError(
            400,
            f"`behavior` is {escape_control_chars_in_json(behavior)!r}; it must be allow or deny",
        )
    try:
        with anyio.fail_after(ANSWER_TIMEOUT_S):
            async with hosts.connect_to_session(session_id, as_controller=True) as feed:
                client_name = ""
                cwd = ""
                is_sent = False
                is_closed = False
                async for reply in read_frames(feed):
                    fields = reply.fields
                    is_same_prompt = reply.fields.get("question") == prompt_id
                    if reply.kind == "welcome":
                        client_name = str(fields.get("client"))
                        cwd = get_text(fields, "cwd")
                        is_closed = prompt_id not in fields.get("questions", ())
                    is_open = reply.kind == "question" and is_same_prompt
                    if not is_sent and (is_open or is_closed):
                        # An answer is sent even if the prompt is closed.
                        # The host then reports which client resolved the prompt, and how.
                        decision = _build_decision(body, fields["request"] if is_open else {}, cwd)
                        await feed.send_frame(
                            {
                                "kind": "answer",
                                "id": request_id,
                                "question": prompt_id,
                                "decision": decision,
                            }
                        )
                        is_sent = True
                    if (
                        reply.kind == "settled"
                        and is_same_prompt
                        and (is_closed or fields.get("by") != client_name)
                    ):
                        resolution = {
                            "by": escape_control_chars_in_json(fields.get("by")),
                            "how": escape_control_chars_in_json(fields.get("how")),
                        }
                        raise HTTPError(409, "another client answered first", **resolution)
                    if (result := _match_reply(reply, request_id, {"kind": "answer"})) is not None:
                        return result
    except TimeoutError:
        raise HTTPError(504, TIMEOUT_TEXT) from None
    raise HTTPError(409, SESSION_ENDED_TEXT)


def _build_decision(
    body: Mapping[str, Any], request: Mapping[str, Any], cwd: str
) -> dict[str, Any]:
    """Return the answer to a permission request, built from the body of the HTTP request. Raise
    HTTPError if a field is invalid.
    """
    try:
        return build_decision_body(
            body["behavior"],
            request,
            cwd,
            message=read_text_field(body, "message", is_required=False, max_chars=MAX_TEXT_CHARS),
            replacement_input=body.get("input"),
            always=read_boolean_field(body, "always"),
        )
    except FrontendError as error:
        raise HTTPError(400, escape_control_chars_in_json(str(error))) from None


def read_boolean_field(body: Mapping[str, Any], key: str) -> bool:
    """Return a boolean field of a request's body, or False if it is missing. Raise HTTPError if the
    value is not a boolean.
    """
    value = body.get(key, False)
    if not isinstance(value, bool):
        raise HTTPError(
            400, f"`{key}` is {escape_control_chars_in_json(value)!r}; it must be true or false"
        )
    return value


def read_message_id(body: Mapping[str, Any]) -> str:
    """Return a message's id from a request's body, or "" if it is missing. Raise HTTPError if the
    id is not a UUID.

    The message's line in the log gets the same id. The session therefore accepts a message only
    once, even if the message is posted again after the session has ended and was resumed.
    """
    value = read_text_field(body, "id", is_required=False)
    if value:
        message_id = canonicalize_uuid(value)
    else:
        message_id = ""
    if message_id is None:
        raise HTTPError(
            400,
            f"`id` is {escape_control_chars_in_json(value)!r}; it must be a UUID, or be left out",
        )
    return message_id


def read_text_field(
    body: Mapping[str, Any], key: str, *, is_required: bool = True, max_chars: int = MAX_NAME_CHARS
) -> str:
    """Return a text field of a request's body, or "" if an optional field is missing. Raise
    HTTPError for an invalid value.
    """
    value = body.get(key)
    if value is None and not is_required:
        return ""
    if not isinstance(value, str) or (is_required and not value.strip()):
        raise HTTPError(400, f"`{key}` must be a string")
    if len(value) > max_chars:
        status = 400
        if max_chars == MAX_TEXT_CHARS:
            status = 413
        raise HTTPError(
            status,
            f"`{key}` may have at most {max_chars:,} characters",
        )
    if "\0" in value:
        raise HTTPError(400, f"`{key}` must not contain a NUL character")
    return value
