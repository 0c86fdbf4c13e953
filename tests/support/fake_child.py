"""A vendor's program for tests: does what a plan says, step by step. `fake_child.py PLAN
[ARGUMENTS…]`.

A plan is a list of steps, in JSON (`.json`) or as Python writes it. A step is a list of a name and
its values; the functions at the end are the steps. A FIFO is a lifeline: words come through it, and
it ends when the last process that holds it has ended.
"""

# `signal` and `json` cost an import of ten milliseconds, and this is started very often
import _signal as signal
import os
import sys

LONGEST_SECONDS = 180  # no test waits longer; a forgotten child ends by itself

_lifeline_descriptors: dict[str, int] = {}
_stdin = b""


def main() -> None:
    """Run the plan."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.alarm(LONGEST_SECONDS)
    with open(sys.argv[1], encoding="utf-8") as file:
        plan = _import_json().load(file) if sys.argv[1].endswith(".json") else eval(file.read())
    for name, *values in plan:
        STEPS[name](*values)
    sys.stdout.flush()


def read() -> None:
    """Read stdin to its end."""
    global _stdin
    _stdin += sys.stdin.buffer.read()


def hear(expected: str) -> None:
    """Read lines of stdin until one has `expected`; at its end, exit as a child does that was hung
    up on.
    """
    global _stdin
    while line := sys.stdin.buffer.readline():
        _stdin += line
        if expected in line.decode():
            return
    os._exit(0)


def serve() -> None:
    """Read up to a user's message, or to the end of stdin; what a frontend asks before it gets an
    answer.
    """
    if "--input-format" not in sys.argv:
        read()
        return
    while line := sys.stdin.buffer.readline():
        event = _import_json().loads(line)
        if event["type"] == "user":
            return
        if event["type"] == "control_request":
            answer = {
                "subtype": "success",
                "request_id": event["request_id"],
                "response": {"commands": []},
            }
            out(_import_json().dumps({"type": "control_response", "response": answer}) + "\n")


def record(path: str) -> None:
    """Write the arguments, the environment, the working directory and what was read to a file."""
    fields = {
        "arguments": sys.argv[2:],
        "environment": dict(os.environ),
        "cwd": os.getcwd(),
        "stdin": _stdin.decode("utf-8", "replace"),
        "pid": os.getpid(),
        "group": os.getpgrp(),
    }
    with open(path + ".tmp", "w", encoding="utf-8") as file:
        _import_json().dump(fields, file)
    os.replace(path + ".tmp", path)


def put(flag: str, text: str) -> None:
    """Write a text to the file that an argument `FLAG=PATH` names."""
    (path,) = (arg.partition("=")[2] for arg in sys.argv[2:] if arg.startswith(f"{flag}="))
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)


def out(text: str) -> None:
    """Write to stdout, at once; a lone surrogate stands for a byte that is not UTF-8."""
    _write_all(1, text.encode(errors="surrogateescape"))


def complain(text: str) -> None:
    """Write to stderr, at once."""
    _write_all(2, text.encode())


def fill(count: int, descriptor: int = 1) -> None:
    """Write so many bytes of noise, in lines."""
    _write_all(descriptor, (b"n" * 99 + b"\n") * (count // 100))


def repeat(text: str, count: int, descriptor: int = 1) -> None:
    """Write a text many times, in pieces of a pipe's size."""
    at_once = max(65536 // len(text), 1)
    for position in range(0, count, at_once):
        _write_all(descriptor, text.encode() * min(at_once, count - position))


def quote(before: str, after: str) -> None:
    """Write what was read from stdin as a JSON string between two texts."""
    out(before + _import_json().dumps(_stdin.decode("utf-8", "replace")) + after)


def cat(path: str, at_once: int = 0) -> None:
    """Write a file's bytes to stdout; `at_once` in each write, if that is given."""
    with open(path, "rb") as file:
        while data := file.read(at_once or -1):
            _write_all(1, data)


def call_tool(server: str, tool: str, tool_input: dict[str, object], path: str) -> None:
    """Start the MCP server that `initialize` named, call a tool of it, and write the answer to a
    file; it may die.
    """
    import subprocess

    server_config = _find_server(server)
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(
        [server_config["command"], *server_config["args"]],
        env={**os.environ, **server_config["env"]},
        **pipes,
    ) as process:  # type: ignore[call-overload]
        call = {
            "jsonrpc": "2.0",
            "id": 1,
            "method": "tools/call",
            "params": {"name": tool, "arguments": tool_input},
        }
        process.stdin.write(_import_json().dumps(call).encode() + b"\n")
        process.stdin.flush()
        answer = process.stdout.readline()
    with open(path, "wb") as file:
        file.write(answer)


def _find_server(name: str) -> dict[str, object]:
    """Return the command of an MCP server: of the file of `--mcp-config`, of `initialize`, or of
    `session/new`, which has variables as a list.
    """
    for argument in sys.argv[2:]:
        if argument.startswith("--mcp-config="):
            with open(argument.partition("=")[2], encoding="utf-8") as file:
                return dict(_import_json().load(file)["mcpServers"][name])
    for line in _stdin.splitlines():
        message = _import_json().loads(line)
        if message.get("type") == "control_request":
            return dict(message["request"]["mcpServers"][name])
        if message.get("method") == "session/new":
            server = next(each for each in message["params"]["mcpServers"] if each["name"] == name)
            return {**server, "env": {each["name"]: each["value"] for each in server["env"]}}
    raise LookupError(name)


def drained() -> None:
    """Wait until all that was written to stdout was read."""
    import fcntl
    import select
    import termios

    waiting = bytearray(4)
    while fcntl.ioctl(1, termios.FIONREAD, waiting) == 0 and any(waiting):
        select.select([], [], [], 0.005)


def say(fifo: str, name: str) -> None:
    """Write a word and our pid to a lifeline, and hold it."""
    if fifo not in _lifeline_descriptors:
        _lifeline_descriptors[fifo] = os.open(fifo, os.O_WRONLY)
    os.write(_lifeline_descriptors[fifo], f"{name} {os.getpid()}\n".encode())


def wait(fifo: str) -> None:
    """Pause until a byte comes out of a FIFO."""
    with open(fifo, "rb", buffering=0) as file:
        file.read(1)


def ignore(*names: str) -> None:
    """Ignore signals."""
    for name in names:
        signal.signal(getattr(signal, name), signal.SIG_IGN)


def exit_on(name: str, code: int) -> None:
    """Exit with a code when a signal comes."""
    signal.signal(getattr(signal, name), lambda number, frame: os._exit(code))


def out_on(name: str, text: str, code: int) -> None:
    """Write to stdout when a signal comes, then exit with a code."""

    def write_and_exit(number: int, frame: object) -> None:
        _write_all(1, text.encode())
        os._exit(code)

    signal.signal(getattr(signal, name), write_and_exit)


def close(*descriptors: int) -> None:
    """Close descriptors."""
    for descriptor in descriptors:
        os.close(descriptor)


def spawn(fifo: str, own_session: bool) -> None:
    """Start a grandchild that holds stdout, stderr and the lifeline and hangs; go on when it says
    that it is there.
    """
    ready, write_end = os.pipe()
    if os.fork() == 0:
        signal.alarm(LONGEST_SECONDS)
        if own_session:
            os.setsid()
        say(fifo, "grandchild")
        os.close(write_end)
        hang()
    os.close(write_end)
    os.read(ready, 1)


def wrap(path: str) -> None:
    """Be a wrapper that an interrupt ends at once; the program behind it writes a file when that
    has happened.
    """
    ready, write_end = os.pipe()
    alive, alive_write_end = os.pipe()  # at its end when the wrapper is
    if os.fork() == 0:
        signal.alarm(LONGEST_SECONDS)
        signal.signal(signal.SIGINT, lambda number, frame: None)
        for descriptor in (1, 2, alive_write_end):
            os.close(descriptor)
        os.write(write_end, b".")
        os.read(alive, 1)
        with open(path, "w", encoding="utf-8") as file:
            file.write("saved")
        os._exit(0)
    os.read(ready, 1)


def hold(seconds: int) -> None:
    """Leave a grandchild with a session of its own that holds stdout and stderr for so long, or
    until it is ended.
    """
    if os.fork() == 0:
        os.setsid()
        signal.alarm(seconds)
        hang()


def daemon(fifo: str) -> None:
    """Leave a process behind that belongs to nobody: a session of its own, and a parent that has
    ended.
    """
    ready, write_end = os.pipe()
    if (parent := os.fork()) == 0:
        os.setsid()
        if os.fork() == 0:
            signal.alarm(LONGEST_SECONDS)
            say(fifo, "daemon")
            for descriptor in (0, 1, 2, write_end):
                os.close(descriptor)
            hang()
        os._exit(0)
    os.waitpid(parent, 0)
    os.close(write_end)
    os.read(ready, 1)


def orphan() -> None:
    """Leave a process behind that belongs to nobody and ends by itself."""
    if (parent := os.fork()) == 0:
        if os.fork() == 0:
            os._exit(0)
        os._exit(0)
    os.waitpid(parent, 0)


def hang() -> None:
    """Do nothing until a signal ends us."""
    while True:
        signal.pause()


def die(name: str) -> None:
    """End by a signal."""
    os.kill(os.getpid(), getattr(signal, name))
    hang()


def leave(code: int) -> None:
    """Exit with a code."""
    os._exit(code)


def _import_json():
    import json

    return json


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


_DOES = (
    *(read, hear, serve, record, put, out, complain, fill, repeat, quote, cat, drained, call_tool),
    *(
        say,
        wait,
        ignore,
        exit_on,
        out_on,
        close,
        spawn,
        wrap,
        hold,
        daemon,
        orphan,
        hang,
        die,
        leave,
    ),
)
STEPS = {step.__name__: step for step in _DOES}

if __name__ == "__main__":
    main()
