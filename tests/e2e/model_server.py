"""A model behind OpenAI's chat-completions interface that says what the prompt asks it to say.

The real vendor programs talk to it over loopback, so a run needs no key, no network and no luck. The last
user message that carries a tag chooses the script; what follows the tag on its line is the script's argument:

    [[text]]              a fixed reply
    [[read]] PATH         a call of the vendor's file reader, then a closing text once its result came back
    [[shell]] COMMAND     the same with the vendor's shell
    [[error]]             HTTP 401 with OpenAI's error object, which no client retries
    [[slow]]              a word now and then for half a minute, so that there is something to interrupt

Programs ask for more than the conversation (titles, memory, routing): a request without a tag gets a short
harmless text. Replies are streamed unless the request says otherwise, and both text and tool arguments are
split over several chunks, as real servers do. Every request is kept for assertions.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

MODEL = "mock-1"
REPLY = "Hello from the model: ünïcödé, \"quotes\" and\na second line."  # fmt: skip
REPLY_AFTER_TOOL = "The tool has answered and I am done."
REPLY_TO_HIDDEN_REQUEST = "Noted."
ERROR_STATUS = 401
ERROR_MESSAGE = "Incorrect API key provided: dummy."
# 20 of the 120 were cached: OpenAI counts them in, Claude (and pi) count them out.
USAGE = {
    "prompt_tokens": 120,
    "completion_tokens": 30,
    "total_tokens": 150,
    "prompt_tokens_details": {"cached_tokens": 20},
}
SLOW_WORDS = 150
SLOW_INTERVAL = 0.2
PIECE = 9  # characters per chunk: small enough that a reply and a tool's arguments are both split

# The first name that the request offers is the one called: programs differ, and say so in their request.
TOOLS = {
    "read": (("read_file", "file_path"), ("read", "path")),
    "shell": (("run_shell_command", "command"), ("bash", "command")),
}
TAG = re.compile(r"\[\[(text|read|shell|error|slow)\]\] ?([^\n]*)")


@dataclass
class Request:
    """One request as it came in, and how its reply ended."""

    body: dict[str, Any]
    script: str  # "hidden" when the conversation carries no tag
    argument: str
    after_tool: bool
    client_left: threading.Event = field(default_factory=threading.Event)

    @property
    def messages(self) -> list[dict[str, Any]]:
        return self.body.get("messages") or []


def read_request(body: dict[str, Any]) -> Request:
    """Which script the conversation asks for, and whether its tool has answered already."""
    after_tool = False
    for message in reversed(body.get("messages") or []):
        if message.get("role") == "tool":
            after_tool = True
        elif message.get("role") == "user":
            tags = TAG.findall(text_of(message))
            if tags:
                script, argument = tags[-1]
                return Request(body, script, argument.strip(), after_tool)
    return Request(body, "hidden", "", after_tool)


def text_of(message: dict[str, Any]) -> str:
    """The text of a message whose content may be a string or a list of parts."""
    content = message.get("content")
    if isinstance(content, str):
        return content
    return "\n".join(part.get("text") or "" for part in content or [] if isinstance(part, dict))


def pieces(text: str) -> list[str]:
    return [text[start : start + PIECE] for start in range(0, len(text), PIECE)]


def tool_call(request: Request, number: int) -> dict[str, Any]:
    """The call the script makes, in the words of the tools this request offers."""
    offered = {tool.get("function", {}).get("name") for tool in request.body.get("tools") or []}
    name, parameter = next((tool for tool in TOOLS[request.script] if tool[0] in offered), TOOLS[request.script][0])
    arguments = json.dumps({parameter: request.argument})
    return {"id": f"call_{number}", "type": "function", "function": {"name": name, "arguments": arguments}}


class ModelServer:
    """Serves on a free loopback port from `start` to `stop`; also a context manager."""

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self.stopping = threading.Event()
        self._lock = threading.Lock()
        server = self
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"model": server}))
        self._http.daemon_threads = True
        self._thread = threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.05})

    @property
    def url(self) -> str:
        """The base address a client is configured with."""
        return f"http://127.0.0.1:{self._http.server_address[1]}/v1"

    def remember(self, request: Request) -> int:
        """Keeps the request and returns its number, from 1."""
        with self._lock:
            self.requests.append(request)
            return len(self.requests)

    def asked(self, script: str) -> list[Request]:
        """The requests of one script, in order of arrival."""
        with self._lock:
            return [request for request in self.requests if request.script == script]

    def __enter__(self) -> ModelServer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stopping.set()
        self._http.shutdown()
        self._thread.join()
        self._http.server_close()


class _Handler(BaseHTTPRequestHandler):
    model: ModelServer
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 -- the base class's name
        """Quiet: a test's output is for its failures."""

    def do_GET(self) -> None:
        self._json(200, {"object": "list", "data": [{"id": MODEL, "object": "model", "owned_by": "tests"}]})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)))
        request = read_request(body)
        number = self.model.remember(request)
        if request.script == "error":
            error = {
                "message": ERROR_MESSAGE,
                "type": "invalid_request_error",
                "param": None,
                "code": "invalid_api_key",
            }
            self._json(ERROR_STATUS, {"error": error})
        elif body.get("stream"):
            self._stream(request, number)
        else:
            self._whole(request, number)

    def _reply(self, request: Request, number: int) -> tuple[str, dict[str, Any] | None]:
        """Text and tool call of a reply that is not slow."""
        if request.script in TOOLS and not request.after_tool:
            return "Let me look.", tool_call(request, number)
        texts = {"hidden": REPLY_TO_HIDDEN_REQUEST, "text": REPLY}
        return texts.get(request.script, REPLY_AFTER_TOOL), None

    def _whole(self, request: Request, number: int) -> None:
        text, call = self._reply(request, number)
        message = {"role": "assistant", "content": text, **({"tool_calls": [call]} if call else {})}
        choice = {"index": 0, "message": message, "finish_reason": "tool_calls" if call else "stop"}
        self._json(200, {**self._frame(number, "chat.completion"), "choices": [choice], "usage": USAGE})

    def _stream(self, request: Request, number: int) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        frame = self._frame(number, "chat.completion.chunk")
        try:
            for delta, finish_reason in self._deltas(request, number):
                choice = {"index": 0, "delta": delta, "finish_reason": finish_reason}
                self._event(json.dumps({**frame, "choices": [choice]}))
            self._event(json.dumps({**frame, "choices": [], "usage": USAGE}))
            self._event("[DONE]")
            self.wfile.write(b"0\r\n\r\n")
        except ConnectionError:
            self.close_connection = True
            request.client_left.set()

    def _deltas(self, request: Request, number: int) -> Iterator[tuple[dict[str, Any], str | None]]:
        yield {"role": "assistant", "content": ""}, None
        if request.script == "slow":
            for word in range(SLOW_WORDS):
                yield {"content": f"word{word} "}, None
                if self.model.stopping.wait(SLOW_INTERVAL):
                    return
            yield {}, "stop"
            return
        text, call = self._reply(request, number)
        for piece in pieces(text):
            yield {"content": piece}, None
        if call is None:
            yield {}, "stop"
            return
        function = call["function"]
        opening = {"index": 0, "id": call["id"], "type": "function"}
        yield {"tool_calls": [{**opening, "function": {"name": function["name"], "arguments": ""}}]}, None
        for piece in pieces(function["arguments"]):
            yield {"tool_calls": [{"index": 0, "function": {"arguments": piece}}]}, None
        yield {}, "tool_calls"

    def _frame(self, number: int, kind: str) -> dict[str, Any]:
        return {"id": f"chatcmpl-{number}", "object": kind, "created": 1_700_000_000, "model": MODEL}

    def _event(self, data: str) -> None:
        payload = f"data: {data}\n\n".encode()
        self.wfile.write(b"%x\r\n%s\r\n" % (len(payload), payload))

    def _json(self, status: int, value: object) -> None:
        payload = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(payload)))
        self.end_headers()
        self.wfile.write(payload)
