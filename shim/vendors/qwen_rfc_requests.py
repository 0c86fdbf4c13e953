"""All that the Qwen RFC lets a caller say to its program, as the objects of its lines (qwen-rfc page, 2.3 to 2.5).

Pure builders: no number, no session and no answer is invented here. A key that the texts call optional is left out
where there is nothing to say.
"""

from collections.abc import Mapping, Sequence
from typing import Any

Message = dict[str, Any]

NEW_SESSION = "_new"  # in place of the id of a session: begin one
MARK = "########"  # between the session and the number of the turn in a prompt's id

# Commands that are groups: their second word is part of the command's path, not of its arguments (the program's own
# documentation of its built-in commands; the RFC shows `chat list`).
GROUPS: Mapping[str, frozenset[str]] = {
    "agents": frozenset(("create", "manage")),
    "chat": frozenset(("delete", "list", "resume", "save", "share")),
    "directory": frozenset(("add", "show")),
    "extensions": frozenset(("list", "update")),
    "mcp": frozenset(("auth", "desc", "list", "nodesc", "refresh", "schema")),
    "memory": frozenset(("add", "refresh", "show")),
    "stats": frozenset(("model", "tools")),
    "tools": frozenset(("desc", "nodesc")),
}


def prompt_id(session: str, number: int | str) -> str:
    """The id of a prompt: the session's id and the number of its turn; hints call theirs `preview`."""
    return f"{session}{MARK}{number}"


def text_part(text: str) -> Message:
    """A part of an input that is text."""
    return {"type": "text", "text": text}


def slash(text: str) -> Message | None:
    """A text such as `/chat list` as the command that it is; None for one that is none (a path, prose)."""
    word, _, rest = text[1:].partition(" ") if text.startswith("/") else ("", "", "")
    if not word.isascii() or not word.replace("-", "").replace("_", "").replace(":", "").isalnum():
        return None
    path, arguments = [word], rest.strip()
    second, _, more = arguments.partition(" ")
    if second in GROUPS.get(word, ()):
        path, arguments = [word, second], more.strip()
    return {"kind": "slash", "path": path, "args": arguments}


def chat_request(
    parts: Sequence[Message],
    *,
    session: str = NEW_SESSION,
    prompt: str | None = None,
    model: str | None = None,
    origin: str = "user",
    command: Message | None = None,
    options: Mapping[str, Any] | None = None,
    tool_call_id: str | None = None,
    continuation: bool | None = None,
    tool_request: Mapping[str, Any] | None = None,
) -> Message:
    """A Qwen Chat Request.

    `origin` is user, tool_response or system; `options` override for this request only (`temperature`,
    `tool_overrides`, …); `continuation` goes on without a new message; `tool_request` is the program's own
    description of a call that somebody else runs.
    """
    request: Message = {"session_id": session}
    if prompt is not None:
        request["prompt_id"] = prompt
    if model is not None:
        request["model"] = model
    request["input"] = {"origin": origin, "parts": list(parts), "command": command}
    request["options"] = dict(options or {})
    if tool_call_id is not None:
        request["tool_call_id"] = tool_call_id
    if continuation is not None:
        request["continuation"] = continuation
    if tool_request is not None:
        request["tool_request"] = dict(tool_request)
    return request


def user_message(text: str, *, session: str, prompt: str | None, model: str | None) -> Message:
    """A message of the user's; one that is a command is declared as one, so that nobody has to read its text."""
    command = slash(text)
    part = text_part(text if command is None else "")
    return chat_request([part], session=session, prompt=prompt, model=model, command=command)


def tool_response(parts: Sequence[Message], tool_call_id: str, *, session: str, prompt: str) -> Message:
    """What a tool returned that ran outside; `prompt` is the id of the prompt whose call it was."""
    return chat_request(parts, session=session, prompt=prompt, origin="tool_response", tool_call_id=tool_call_id)


def debugging_request(text: str, model: str) -> Message:
    """The form of the RFC's debugging examples: OpenAI's own."""
    return {"model": model, "messages": [{"role": "user", "content": text}]}


def command_hint_request(text: str, cursor: int, *, session: str, trigger: str = "slash", cwd: str = "") -> Message:
    """What could follow what is being typed; `trigger` is slash or at."""
    return {
        "type": "command_hint_request",
        "session_id": session,
        "prompt_id": prompt_id(session, "preview"),
        "trigger": trigger,
        "text": text,
        "cursor": cursor,
        "context": {"cwd": cwd, "selected_text": ""},
    }


def command_hint_cancel(session: str) -> Message:
    """The answer to the last hint request is not wanted any more."""
    return {"type": "command_hint_cancel", "session_id": session, "prompt_id": prompt_id(session, "preview")}


def heartbeat_request(session: str) -> Message:
    """Ask for a sign of life; before the session has an id, without it."""
    return {"type": "heartbeat_request", **({"session_id": session} if session else {})}


def cancel(session: str, prompt: str | None) -> Message:
    """Stop the prompt that runs, as the escape key does; the only reason that there is."""
    request: Message = {"type": "control/cancel"}
    if session:
        request["session_id"] = session
    if prompt is not None:
        request["prompt_id"] = prompt
    return request | {"reason": "escape"}


def approve(request: str, message: str = "") -> Message:
    """A call may run."""
    return _answer(request, {"behavior": "approve", "message": message})


def deny(request: str, message: str) -> Message:
    """A call may not run. The RFC shows the word for yes only; this is the one for no in Claude's protocol."""
    return _answer(request, {"behavior": "deny", "message": message})


def mcp_response(request: str, response: Mapping[str, Any]) -> Message:
    """What an MCP server of the caller's answered, a whole JSON-RPC message."""
    return _answer(request, {"mcp_response": dict(response)})


def failure(request: str, message: str, *, retryable: bool = False) -> Message:
    """A control request cannot be answered: the program denies what it was about."""
    error = {"message": message, "retryable": retryable}
    return {"type": "control_response", "request_id": request, "response": {"subtype": "error", "error": error}}


def _answer(request: str, result: Message) -> Message:
    return {"type": "control_response", "request_id": request, "response": {"subtype": "success", "result": result}}
