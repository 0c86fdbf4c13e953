"""What a POST does to a session: it opens a connection of its own to the host, says its frames,
waits for the word.

Nothing is remembered from one request to the next: a gateway that was killed in between is not
missed.
"""

from collections.abc import Mapping
from typing import Any
from uuid import uuid4

import anyio

from shim.bridge.answering import build_answer_body
from shim.bridge.gateway.drawing import clean
from shim.bridge.gateway.gate import Refused
from shim.bridge.gateway.hosts import Hosts
from shim.bridge.gateway.streams import Frame, frames
from shim.bridge.link import HostGoneError
from shim.core.errors import FrontendError
from shim.core.reading.ids import parse_uuid

ANSWER_SECONDS = 10.0  # for a host's word; it says it in milliseconds
ENDED = "the session has ended"
LATE = "the session did not answer in time; look whether it was done before you repeat it"
TEXT_CHARACTERS = 500_000  # of a message
NAME_CHARACTERS = 200  # of a model or a mode, an id or a question
# A reason of a host's refusal (`core.bridge.frames.RefusedError`) → the status that says it; 400
# for all others.
STATUS = {
    "not-driver": 409,
    "not-owner": 409,
    "ended": 409,
    "watch-only": 403,
    "bypass": 403,
    "wider": 403,
    "unknown-question": 404,
    "too-many": 429,
}


async def act(
    hosts: Hosts, session: str, frame: Mapping[str, Any], *, take: bool = False
) -> dict[str, Any]:
    """Say a frame to the host of a session and wait until it is done. Refused says why it is not."""
    mark = str(frame.get("id") or uuid4())
    try:
        with anyio.fail_after(ANSWER_SECONDS):
            async with hosts.connect(session, drive=True, replay=False, partial=False) as feed:
                if take:
                    await feed.send({"kind": "take", "id": f"take-{mark}"})
                await feed.send({**frame, "id": mark})
                async for heard in frames(feed):
                    told = _settles(heard, mark, frame)
                    if told is not None:
                        return told
    except TimeoutError:
        raise Refused(504, LATE) from None
    except HostGoneError:
        if frame["kind"] != "end":
            raise
    if frame["kind"] == "end":
        return {"ended": True}
    raise Refused(409, ENDED)


def _settles(heard: Frame, mark: str, frame: Mapping[str, Any]) -> dict[str, Any] | None:
    """What a frame of the host says about ours; None if it is about something else."""
    said = heard.said
    if heard.kind == "accepted" and said.get("id") == mark:
        return {"id": mark}
    if heard.kind == "bye" and frame["kind"] == "end":
        return {"ended": True}
    if heard.kind == "refused" and said.get("id") in (mark, f"take-{mark}"):
        reason = str(said.get("reason"))
        driver = {"driver": clean(said["driver"])} if said.get("driver") else {}
        raise Refused(
            STATUS.get(reason, 400),
            clean(str(said.get("text") or reason)),
            reason=clean(reason),
            **driver,
        )
    return None


async def answer(
    hosts: Hosts, session: str, question: str, body: Mapping[str, Any]
) -> dict[str, Any]:
    """Answer a question, if it is still open. Refused with `by` and `how` where somebody was first."""
    behavior, mark = body.get("behavior"), str(uuid4())
    if behavior not in ("allow", "deny"):
        raise Refused(400, f"`behavior` is {clean(behavior)!r}, it must be allow or deny")
    try:
        with anyio.fail_after(ANSWER_SECONDS):
            async with hosts.connect(session, drive=True, replay=False, partial=False) as feed:
                me, cwd, sent, gone = "", "", False, False
                async for heard in frames(feed):
                    said, about = heard.said, heard.said.get("question") == question
                    if heard.kind == "welcome":
                        me, cwd = str(said.get("client")), str(said.get("cwd") or "")
                        gone = question not in said.get("questions", ())
                    asked = heard.kind == "question" and about
                    if not sent and (asked or gone):
                        # An answer to what is not open is said too: the host knows who settled it,
                        # and how.
                        decision = _decision(body, said["request"] if asked else {}, cwd)
                        await feed.send(
                            {
                                "kind": "answer",
                                "id": mark,
                                "question": question,
                                "decision": decision,
                            }
                        )
                        sent = True
                    if heard.kind == "settled" and about and (gone or said.get("by") != me):
                        how = {"by": clean(said.get("by")), "how": clean(said.get("how"))}
                        raise Refused(409, "somebody else was first", **how)
                    if (told := _settles(heard, mark, {"kind": "answer"})) is not None:
                        return told
    except TimeoutError:
        raise Refused(504, LATE) from None
    raise Refused(409, ENDED)


def _decision(body: Mapping[str, Any], request: Mapping[str, Any], cwd: str) -> dict[str, Any]:
    """The body of an answer to Claude's request. Refused for words that do not go together."""
    try:
        return build_answer_body(
            body["behavior"],
            request,
            cwd,
            message=text(body, "message", needed=False, most=TEXT_CHARACTERS),
            replacement_input=body.get("input"),
            always=read_flag(body, "always"),
        )
    except FrontendError as error:
        raise Refused(400, clean(str(error))) from None


def read_flag(body: Mapping[str, Any], key: str) -> bool:
    """Return a boolean of a request's body, False if it is missing. Raise Refused for another
    value.
    """
    value = body.get(key, False)
    if not isinstance(value, bool):
        raise Refused(400, f"`{key}` is {clean(value)!r}, it must be true or false")
    return value


def read_message_id(body: Mapping[str, Any]) -> str:
    """Return the id of a message, or "" if the body has none. Raise Refused for an id that is not a
    UUID.

    The message's line has the same id. So a message that is posted twice is accepted once, also
    after the session has ended and was resumed.
    """
    value = text(body, "id", needed=False)
    parsed = parse_uuid(value) if value else ""
    if parsed is None:
        raise Refused(400, f"`id` is {clean(value)!r}, it must be a UUID, or be left out")
    return parsed


def text(
    body: Mapping[str, Any], key: str, *, needed: bool = True, most: int = NAME_CHARACTERS
) -> str:
    """A text of a request's body. Refused says what is wrong with it."""
    value = body.get(key)
    if value is None and not needed:
        return ""
    if not isinstance(value, str) or (needed and not value.strip()):
        raise Refused(400, f"`{key}` must be a text")
    if len(value) > most:
        raise Refused(
            413 if most == TEXT_CHARACTERS else 400, f"`{key}` may have at most {most:,} characters"
        )
    if "\0" in value:
        raise Refused(400, f"`{key}` may have no NUL character")
    return value
