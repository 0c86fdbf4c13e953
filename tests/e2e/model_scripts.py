"""The replies of a scripted model, which are the same for every API.

A run needs no key, no network and no luck. The last user message with a tag selects the script. The
rest of the line after the tag is the script's argument.

    [[text]]              a fixed reply
    [[think]]             the same after some reasoning
    [[read]] PATH         a call of the program's file reader, then a closing text after its result
    [[ponder]] PATH       the same after some reasoning
    [[write]] PATH        the same with a new file of one line
    [[edit]] PATH         the same with a word of that file (codex only)
    [[shell]] COMMAND     the same with the program's shell
    [[task]] SCRIPT       the same with a subagent, which gets its own script: `[[task]] [[shell]]
                          COMMAND`
    [[call]] NAME JSON    the same with the tool of this name, for MCP tools
    [[parallel]] A B      two files, read by two calls of one reply
    [[both]] A ;; B       two shell commands, by two calls of one reply
    [[ask]] QUESTION      a question for the person with two answers, red and blue
    [[unplan]] COMMAND    a plan that the model writes and approves itself, step by step, then the shell
    [[error]] STATUS      an HTTP error every time (401 without a status)
    [[once]] STATUS       an HTTP error the first time, the fixed reply afterwards
    [[slow]]              a word now and then for half a minute, so that there is something to
                          interrupt

A tool result that asks for the same call "with exactly this input" is followed once, as a model
would. Programs send more requests than those of the conversation (titles, memory, routing): a
request without a tag gets a short harmless text. Replies are streamed unless the request asks
otherwise. Text, reasoning and tool arguments are split into several chunks, as by real servers.
Every request is stored for assertions.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar, Self

REPLY = "Hello from the model: ünïcödé, \"quotes\" and\na second line."  # fmt: skip
REASONING = "First I look at the question, then at the answer: both are short."
REPLY_BEFORE_TOOL = "Let me look."
REPLY_AFTER_TOOL = "The tool has answered and I am done."
REPLY_TO_HIDDEN_REQUEST = "Noted."
WRITTEN = "one line, written by a tool\n"
EDITED = ("hello world", "HELLO world")  # a line of the existing file, before and after the edit
ERROR_STATUS = 401
ERROR_MESSAGES = {
    401: "Incorrect API key provided: dummy.",
    404: "The model `mock-1` does not exist or you do not have access to it.",
    429: "Rate limit reached for requests, a test says so.",
    500: "The server had an error while a test was watching.",
}
ERROR_MESSAGE = ERROR_MESSAGES[ERROR_STATUS]
RETRY_PREFIX = "with exactly this input: "
SLOW_WORD_COUNT = 150
SLOW_INTERVAL = 0.2
PIECE = 9  # characters per chunk; replies and tool arguments are longer

SCRIPTS = (
    "text|think|read|ponder|write|edit|shell|task|call|parallel|both|ask|unplan|error|once|slow"
)
TAG = re.compile(rf"\[\[({SCRIPTS})\]\] ?([^\n]*)")

Json = dict[str, Any]

# The first of these names that the request offers is called, because programs have different names. A
# parameter follows a dot if another program has a tool of the same name with other parameters.
_READERS: Sequence[tuple[str, Callable[[str], Json]]] = (
    ("read_file.path", lambda path: {"path": path}),
    ("read_file", lambda path: {"file_path": path}),
    ("read.filePath", lambda path: {"filePath": path}),
    ("read", lambda path: {"path": path}),
    ("Read.image_quality", lambda path: {"file_path": path}),
    ("Read.path", lambda path: {"path": path}),
    ("Read", lambda path: {"file_path": path}),
    ("exec_command", lambda path: {"cmd": f"cat {path}"}),
    ("view", lambda path: {"path": path}),
    ("ReadFile", lambda path: {"path": path}),
    ("read_files", lambda path: {"files": [{"path": path}]}),
)


def _build_droid_command(command: str) -> Json:
    """Return the arguments of droid's shell. Its model labels the risk of a command."""
    return {
        "summary": "x",
        "command": command,
        "timeout": 60,
        "riskLevel": "low",
        "riskLevelReason": "x",
    }


_TOOLS: dict[str, Sequence[tuple[str, Callable[[str], Json]]]] = {
    "read": _READERS,
    "ponder": _READERS,
    "parallel": _READERS,
    "write": (
        ("write_file.path", lambda path: {"path": path, "content": WRITTEN}),
        ("write_file", lambda path: {"file_path": path, "content": WRITTEN}),
        ("write.filePath", lambda path: {"filePath": path, "content": WRITTEN}),
        ("write", lambda path: {"path": path, "content": WRITTEN}),
        ("Create", lambda path: {"file_path": path, "content": WRITTEN}),
        ("Write.path", lambda path: {"path": path, "content": WRITTEN}),
        ("Write", lambda path: {"file_path": path, "content": WRITTEN}),
        (
            "exec_command",
            lambda path: {"cmd": _build_patch_command(f"Add File: {path}\n+{WRITTEN}")},
        ),
        ("create", lambda path: {"path": path, "file_text": WRITTEN}),
        ("WriteFile", lambda path: {"path": path, "content": WRITTEN}),
        ("editor", lambda path: {"path": path, "new_text": WRITTEN}),
    ),
    "edit": (
        (
            "exec_command",
            lambda path: {
                "cmd": _build_patch_command(
                    f"Update File: {path}\n@@\n-{EDITED[0]}\n+{EDITED[1]}\n"
                )
            },
        ),
    ),
    "shell": (
        ("bash.timeout_seconds", lambda command: {"command": command}),
        ("run_shell_command", lambda command: {"command": command}),
        (
            "bash.description",
            lambda command: {"command": command, "description": "What the test asked for"},
        ),
        ("bash", lambda command: {"command": command}),
        ("Execute", _build_droid_command),
        ("Bash.cwd", lambda command: {"command": command}),
        ("Bash", lambda command: {"command": command, "description": "What the test asked for"}),
        ("exec_command", lambda command: {"cmd": command}),
        (
            "bash.shellId",
            lambda command: {"command": command, "description": "What the test asked for"},
        ),
        ("Shell", lambda command: {"command": command}),
        ("run_commands", lambda command: {"commands": [command]}),
    ),
    "task": (
        ("invoke_agent", lambda script: {"agent_name": "generalist", "prompt": script}),
        (
            "task.subagent_type",
            lambda script: {"description": "x", "prompt": script, "subagent_type": "general"},
        ),
    ),
    "ask": (
        ("ask_user.choices", lambda question: {"question": question, "choices": ["red", "blue"]}),
        ("ask_user_question", lambda question: {"questions": [_build_question(question)]}),
        (
            "AskUserQuestion.background",
            lambda question: {"questions": [_remove_multi_select(_build_question(question))]},
        ),
        ("AskUserQuestion", lambda question: {"questions": [_build_question(question)]}),
        (
            "request_user_input",
            lambda question: {"questions": [{"id": "colour", **_build_question(question)}]},
        ),
    ),
    "call": (),
}
_TOOLS["both"] = _TOOLS["shell"]


PATCHING = ("apply_patch <<'PATCH'\n", "PATCH")  # surround a patch that is a command


def _build_question(question: str) -> Json:
    options = [
        {"label": label, "description": f"The colour is {label}."} for label in ("red", "blue")
    ]
    return {"question": question, "header": "Colour", "options": options, "multiSelect": False}


def _remove_multi_select(question: Json) -> Json:
    """Return the question without a field that Kimi Code rejects, because it has another name for
    it.
    """
    return {key: value for key, value in question.items() if key != "multiSelect"}


def _build_patch_command(change: str) -> str:
    """Build the command with which codex changes a file."""
    return f"*** Begin Patch\n*** {change}*** End Patch\n".join(PATCHING)


@dataclass(frozen=True)
class ScriptedCall:
    """A call of one of the program's tools."""

    id: str
    name: str
    tool_input: Json


@dataclass(frozen=True)
class ScriptedAnswer:
    """The model's reply to one request."""

    text: str
    reasoning: str = ""
    calls: tuple[ScriptedCall, ...] = ()
    slow: bool = False


@dataclass(frozen=True)
class Failure:
    """An error of the model's service instead of a reply."""

    status: int
    message: str


@dataclass
class ModelRequest:
    """One received request, and how its reply ended."""

    body: Json
    offered: Sequence[str]  # the names of its tools
    script: str  # "hidden" if the conversation has no tag
    argument: str
    tool_result: str | None  # the last tool result
    client_left: threading.Event = field(default_factory=threading.Event)

    @property
    def messages(self) -> list[Json]:
        return self.body.get("messages") or []

    @property
    def model(self) -> str:
        """The requested model."""
        return str(self.body.get("model"))

    @property
    def effort(self) -> str | None:
        """The requested effort, from its own key or from `reasoning` (Responses API)."""
        reasoning = self.body.get("reasoning")
        level = (
            reasoning.get("effort")
            if isinstance(reasoning, dict)
            else self.body.get("reasoning_effort")
        )
        return level if isinstance(level, str) else None


def join_message_text(message: Json) -> str:
    """Return the text of a message whose content is a string or a list of parts."""
    content = message.get("content")
    if isinstance(content, str):
        return content
    return "\n".join(part.get("text") or "" for part in content or [] if isinstance(part, dict))


def split_text(text: str) -> list[str]:
    return [text[start : start + PIECE] for start in range(0, len(text), PIECE)]


class ScriptedServer:
    """Serves on a free loopback port within a context. Each API has a subclass."""

    handler: ClassVar[type[ScriptedHandler]]

    def __init__(self) -> None:
        self.requests: list[ModelRequest] = []
        self.stopping = threading.Event()
        self._lock = threading.Lock()
        handler = type("Handler", (self.handler,), {"model": self})
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._http.daemon_threads = True
        self._thread = threading.Thread(
            target=self._http.serve_forever, kwargs={"poll_interval": 0.05}
        )

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self._http.server_address[1]}"

    @property
    def url(self) -> str:
        """The base address for the configuration of a client."""
        return self.address

    def list_requests(self, script: str) -> list[ModelRequest]:
        """Return the requests of one script, in order of arrival."""
        with self._lock:
            return [request for request in self.requests if request.script == script]

    def answer_request(
        self, body: Json, offered: Sequence[str]
    ) -> tuple[int, ModelRequest, ScriptedAnswer | Failure]:
        """Store the request. Return its number from 1, the request, and its answer."""
        request = self._parse_request(body, offered)
        with self._lock:
            earlier = sum(earlier_request.script == "once" for earlier_request in self.requests)
            self.requests.append(request)
            number = len(self.requests)
        if request.script == "error" or (request.script == "once" and not earlier):
            status = int(request.argument) if request.argument.isdigit() else ERROR_STATUS
            return number, request, Failure(status, ERROR_MESSAGES[status])
        return number, request, self._choose_answer(request, number)

    def _parse_request(self, body: Json, offered: Sequence[str]) -> ModelRequest:
        """Return the request with the script that it selects and the last tool result.

        A request without tools does not belong to the conversation: programs request a title with
        the same text.
        """
        tool_result: str | None = None
        if not offered:
            return ModelRequest(body, offered, "hidden", "", tool_result)
        for message in reversed(body.get("messages") or []):
            tool_result = self.find_tool_result(message) if tool_result is None else tool_result
            if message.get("role") != "user":
                continue
            tags = TAG.findall(join_message_text(message))
            if tags:
                script, argument = tags[-1]
                return ModelRequest(body, offered, script, argument.strip(), tool_result)
        return ModelRequest(body, offered, "hidden", "", tool_result)

    def find_tool_result(self, message: Json) -> str | None:
        """Return the tool result in a message of the conversation, or None."""
        raise NotImplementedError

    def _choose_answer(self, request: ModelRequest, number: int) -> ScriptedAnswer:
        if request.script == "slow":
            return ScriptedAnswer("", slow=True)
        if request.script in _TOOLS:
            calls = tuple(_build_calls(request, number))
            reasoning = REASONING if request.script == "ponder" else ""
            return (
                ScriptedAnswer(REPLY_BEFORE_TOOL, reasoning, calls)
                if calls
                else ScriptedAnswer(REPLY_AFTER_TOOL)
            )
        if request.script == "unplan":
            step = sum(len(message.get("results") or ()) for message in request.messages)
            return ScriptedAnswer(
                REPLY_BEFORE_TOOL, calls=_build_plan_exit_calls(request)[step : step + 1]
            )
        if request.script == "hidden":
            return ScriptedAnswer(REPLY_TO_HIDDEN_REQUEST)
        return ScriptedAnswer(REPLY, REASONING if request.script == "think" else "")

    def stream_slow_text(self) -> Iterator[str]:
        """Yield a slow reply. It ends early when the server stops."""
        for number in range(SLOW_WORD_COUNT):
            yield f"word{number} "
            if self.stopping.wait(SLOW_INTERVAL):
                return

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stopping.set()
        self._http.shutdown()
        self._thread.join()
        self._http.server_close()


def _find_tool(kind: str, offered: Sequence[str]) -> tuple[str, Callable[[str], Json]]:
    """Return the program's tool of a kind, and the function that builds its input."""
    tools = _TOOLS[kind] or _READERS
    # If the request does not offer the tool, the script calls it all the same, by the name that the
    # program uses. All tables list the programs in the same order.
    program = next((index for index, reader in enumerate(_READERS) if reader[0] in offered), 1)
    name, build_input = next(
        (tool for tool in tools if tool[0] in offered), tools[min(program, len(tools) - 1)]
    )
    return name.partition(".")[0], build_input


def build_tool_call(kind: str, argument: str, offered: Sequence[str], call_id: str) -> ScriptedCall:
    """Build a call of the program's tool of this kind, such as "shell"."""
    name, build_input = _find_tool(kind, offered)
    return ScriptedCall(call_id, name, build_input(argument))


def _build_calls(request: ModelRequest, number: int) -> Iterator[ScriptedCall]:
    """Build the calls of the script for the tools that the request offers. There are none after
    they have results.
    """
    called, build_input = _find_tool(request.script, request.offered)
    if request.tool_result is not None:
        _, separator, call_json = request.tool_result.partition(RETRY_PREFIX)
        if separator:
            yield ScriptedCall(
                f"call_{number}", called, json.JSONDecoder().raw_decode(call_json)[0]
            )
        return
    if request.script == "call":
        called, _, input_json = request.argument.partition(" ")
        yield ScriptedCall(f"call_{number}_0", called, json.loads(input_json or "{}"))
        return
    between = {"parallel": None, "both": ";;"}
    values = (
        request.argument.split(between[request.script])
        if request.script in between
        else [request.argument]
    )
    for position, value in enumerate(values):
        yield ScriptedCall(f"call_{number}_{position}", called, build_input(value.strip()))


def _build_plan_exit_calls(request: ModelRequest) -> tuple[ScriptedCall, ...]:
    """Build the calls of gemini's tools, one per reply, that leave a mode in which no person is
    asked.
    """
    calls: Sequence[tuple[str, Json]] = (
        ("enter_plan_mode", {}),
        ("write_file", {"file_path": "plan.md", "content": "# A plan\n"}),
        ("exit_plan_mode", {"plan_filename": "plan.md"}),
        ("run_shell_command", {"command": request.argument}),
    )
    return tuple(
        ScriptedCall(f"call_{index}", name, tool_input)
        for index, (name, tool_input) in enumerate(calls)
    )


class ScriptedHandler(BaseHTTPRequestHandler):
    """The HTTP methods that every API needs: complete JSON, and events in chunks."""

    model: ScriptedServer
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 -- the base class's name
        """Log nothing, because the output of a test is for its failures."""

    def do_HEAD(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def do_GET(self) -> None:
        self.answer_get()

    def do_POST(self) -> None:
        raw = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        value = json.loads(raw) if raw else {}
        self.answer_post(value if isinstance(value, dict) else {})

    def answer_get(self) -> None:
        """Answer a request without a body."""
        raise NotImplementedError

    def answer_post(self, body: Json) -> None:
        """Answer a request with a body."""
        raise NotImplementedError

    def send_json(self, status: int, value: object) -> None:
        payload = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(payload)))
        self.end_headers()
        self.wfile.write(payload)

    def send_events(self, request: ModelRequest, events: Iterator[tuple[str, str]]) -> None:
        """Send server-sent events, each with its name (or none) and its data, until the client has
        disconnected.
        """
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        try:
            for name, data in events:
                payload = f"event: {name}\ndata: {data}\n\n" if name else f"data: {data}\n\n"
                encoded = payload.encode()
                self.wfile.write(b"%x\r\n%s\r\n" % (len(encoded), encoded))
            self.wfile.write(b"0\r\n\r\n")
        except ConnectionError:
            self.close_connection = True
            request.client_left.set()
