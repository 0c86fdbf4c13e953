"""Processes the lines that the conversation writes to stdout."""

import math
from collections.abc import Mapping
from typing import Any

import orjson

from shim.core.bridge.client import ConnectedClient
from shim.core.bridge.commands import AppendLogRecordsCommand
from shim.core.bridge.frames import encode_partial_line_frame
from shim.core.bridge.hub import SessionHub
from shim.core.bridge.log import STDOUT_LETTER, SessionLogRecord
from shim.core.bridge.prompts import PROMPT_SUBTYPES, PendingPrompt, build_prompt_denial
from shim.core.bridge.requests import MODE_SUBTYPE, ControlRequest
from shim.core.bridge.subscribers import ConversationLineFrame
from shim.core.claude.permissions import TOO_MANY_PROMPTS_TEXT
from shim.core.reading.json_text import dump_json
from shim.core.reading.values import as_dict

CONTROL_TYPES = ("control_request", "control_response", "control_cancel_request")


def feed_conversation_stdout(hub: SessionHub, data: bytes) -> None:
    """Process bytes from the conversation's stdout, which contains Claude's stream-json lines.

    Consecutive lines are logged and sent to the clients together.
    """
    at_ms = hub.now_ms()
    frames = list[ConversationLineFrame]()
    records = list[SessionLogRecord]()
    for raw in hub.stdout_splitter.feed(data):
        if not raw:
            continue
        line, json_line = _parse_line(raw)
        kind = line.get("type")
        if kind in CONTROL_TYPES:
            _publish_lines(hub, frames, records)
            _handle_control_line(hub, str(kind), line, raw, at_ms)
        elif kind == "stream_event":
            partial_frame = encode_partial_line_frame(at_ms, json_line)
            ends_block = hub.subscribers.partial_block.add_partial_line(line, partial_frame)
            frames.append(ConversationLineFrame(partial_frame, 0, ends_block))
        elif kind != "keep_alive":
            if kind == "result" and hub.prompts.open:
                _publish_lines(hub, frames, records)
                hub.resolve_all_prompts(None, "ended")
            frame = hub.subscribers.create_line_frame(at_ms, json_line)
            frames.append(frame)
            records.append(SessionLogRecord(STDOUT_LETTER, at_ms, json_line, frame.number))
            _record_line(hub, line)
    _publish_lines(hub, frames, records)
    hub.report_metadata_changes()


def _parse_line(raw: bytes) -> tuple[Mapping[str, Any], bytes]:
    """Parse a line. Return the object and the line's JSON. A line that is not JSON is encoded as a
    JSON string.
    """
    try:
        line = orjson.loads(raw)
    except orjson.JSONDecodeError:
        return {}, dump_json(raw.decode("utf-8", "replace"))
    return as_dict(line), raw


def _publish_lines(
    hub: SessionHub, frames: list[ConversationLineFrame], records: list[SessionLogRecord]
) -> None:
    """Log the collected lines and send them to the clients. Clear both lists."""
    if records:
        hub.commands.append(AppendLogRecordsCommand(tuple(records)))
    hub.subscribers.send_lines(frames)
    records.clear()
    frames.clear()


# -- complete lines --------------------------------------------------------------------------------


def _record_line(hub: SessionHub, line: Mapping[str, Any]) -> None:
    kind = line.get("type")
    hub.subscribers.partial_block.clear_completed_block(line)
    if kind == "user" and line.get("isReplay") is True:
        _record_accepted_message(hub, line.get("uuid"))
    elif kind == "result":
        hub.turn_client_number = None
    elif kind == "system":
        _record_system_line(hub, line)
    hub.status.record_stream_json_line(line)


def _record_accepted_message(hub: SessionHub, uuid: object) -> None:
    """Record that the conversation has accepted a user message. The client that sent the turn's
    first message becomes the turn's client.
    """
    client_number = hub.remove_waiting_message(uuid)
    if hub.turn_client_number is None:
        hub.turn_client_number = client_number


def _record_system_line(hub: SessionHub, line: Mapping[str, Any]) -> None:
    if line.get("subtype") == "init":
        hub.init_line = line
        if isinstance(line.get("model"), str):
            hub.session = hub.session._replace(model=line["model"])
    mode = line.get("permissionMode")
    if isinstance(mode, str) and mode:
        hub.session = hub.session._replace(mode=mode)


# -- control lines ---------------------------------------------------------------------------------


def _handle_control_line(
    hub: SessionHub, kind: str, line: Mapping[str, Any], raw: bytes, at_ms: int
) -> None:
    request_id = str(line.get("request_id"))
    request = line.get("request")
    if kind == "control_response":
        _handle_response(hub, line.get("response"))
    elif kind == "control_cancel_request":
        hub.callbacks.cancel_callback(request_id)
        hub.resolve_prompt(request_id, None, "cancelled")
    elif not isinstance(request, dict):
        return
    elif request.get("subtype") in PROMPT_SUBTYPES:
        deadline_ms = _find_deadline(hub, at_ms)
        prompt = PendingPrompt(request_id, request, at_ms, hub.clock(), deadline_ms)
        _open_prompt(hub, prompt, raw)
    else:
        hub.forward_callback(hub.callbacks.route_callback(request_id, request))


def _find_deadline(hub: SessionHub, at_ms: int) -> int | None:
    """Return the time at which a prompt that was opened at `at_ms` is denied. Return None if the
    prompt has no timeout.

    Both times are in milliseconds since 1970.
    """
    timeout_s = hub.session.prompt_timeout_s
    if math.isfinite(timeout_s):
        return at_ms + round(1000 * timeout_s)
    return None


def _open_prompt(hub: SessionHub, prompt: PendingPrompt, raw: bytes) -> None:
    if prompt.prompt_id in hub.prompts.open:
        return
    if not hub.prompts.add(prompt):
        body = build_prompt_denial(prompt, TOO_MANY_PROMPTS_TEXT)
        hub.send_control_response(prompt.prompt_id, {"subtype": "success", "response": body})
        return
    hub.append_log_record(STDOUT_LETTER, raw)
    hub.subscribers.send_permission_prompt(prompt)
    hub.report_metadata_changes()
    hub.deny_unanswerable_prompts()


def _handle_response(hub: SessionHub, response: object) -> None:
    """Process the response to a control request from the hub or a client."""
    if not isinstance(response, dict):
        return
    request = hub.control_requests.pop_answered_request(response)
    if request is None:
        return
    if response.get("subtype") == "success":
        _apply_response(hub, request.subtype, response.get("response"))
    elif request.change is not None:
        hub.callbacks.restore_hooks(request.change)
    if request.client is not None:
        _answer_client(hub, request.client, request, response)


def _apply_response(hub: SessionHub, subtype: str, response: object) -> None:
    """Update the session with the data in a response to a control request."""
    body = as_dict(response)
    if subtype == "initialize":
        hub.initialize_response = body
    elif subtype == "set_model":
        hub.session = hub.session._replace(model=body.get("model"))
        hub.subscribers.queue_state_update()
    elif subtype == MODE_SUBTYPE and isinstance(body.get("mode"), str):
        hub.session = hub.session._replace(mode=body["mode"])
        hub.subscribers.queue_state_update()
    elif subtype == "cancel_async_message" and body.get("cancelled") is True:
        hub.remove_waiting_message(body.get("message_uuid"))


def _answer_client(
    hub: SessionHub,
    client: ConnectedClient,
    request: ControlRequest,
    response: Mapping[str, Any],
) -> None:
    """Answer the client's frame that resulted in a control request."""
    if request.wants_body:
        body = {**response, "request_id": request.request_id}
        hub.send_frame_answer(client, request.request_id, "response", response=body)
    elif response.get("subtype") == "success":
        hub.send_accepted_frame(client, request.request_id)
    else:
        error = str(response.get("error"))
        hub.refuse_frame(client, request.request_id, "failed", error)
