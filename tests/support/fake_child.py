"""A vendor's program for tests, which runs a plan step by step. `fake_child.py PLAN [ARGUMENTS…]`.

A plan is a list of steps, in JSON (`.json`) or as a Python literal. A step is a list with a name
and its values; the functions at the end of this module are the steps. A FIFO is a lifeline:
processes write names to it, and it ends when the last process that holds it has exited.
"""

# Importing `signal` and `json` takes ten milliseconds, and this program is started very often.
import _signal as signal
import os
import sys

LONGEST_SECONDS = 180  # after this time a forgotten child exits; no test waits longer

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
    """Read lines of stdin until one contains `expected`. At the end of stdin, exit like a child
    whose frontend has disconnected.
    """
    global _stdin
    while line := sys.stdin.buffer.readline():
        _stdin += line
        if expected in line.decode():
            return
    os._exit(0)


def serve() -> None:
    """Read up to a user message or to the end of stdin. Answer the control requests before it."""
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
    """Write the arguments, the environment, the working directory and the read input to a file."""
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
    """Write a text to the file in an argument `FLAG=PATH`."""
    (path,) = (arg.partition("=")[2] for arg in sys.argv[2:] if arg.startswith(f"{flag}="))
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)


def out(text: str) -> None:
    """Write to stdout without buffering. A lone surrogate represents a byte that is not UTF-8."""
    _write_all(1, text.encode(errors="surrogateescape"))


def complain(text: str) -> None:
    """Write to stderr without buffering."""
    _write_all(2, text.encode())


def fill(count: int, descriptor: int = 1) -> None:
    """Write this number of bytes of noise, in lines."""
    _write_all(descriptor, (b"n" * 99 + b"\n") * (count // 100))


def repeat(text: str, count: int, descriptor: int = 1) -> None:
    """Write a text many times, in pieces of the size of a pipe."""
    at_once = max(65536 // len(text), 1)
    for position in range(0, count, at_once):
        _write_all(descriptor, text.encode() * min(at_once, count - position))


def quote(before: str, after: str) -> None:
    """Write the input from stdin as a JSON string between two texts."""
    out(before + _import_json().dumps(_stdin.decode("utf-8", "replace")) + after)


def cat(path: str, at_once: int = 0) -> None:
    """Write the bytes of a file to stdout, at most `at_once` in each write if that is given."""
    with open(path, "rb") as file:
        while data := file.read(at_once or -1):
            _write_all(1, data)


def call_tool(server: str, tool: str, tool_input: dict[str, object], path: str) -> None:
    """Start the MCP server in `initialize`, call one of its tools, and write the answer to a file.
    The server may die.
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
    """Return the command of an MCP server from the file of `--mcp-config`, from `initialize`, or
    from `session/new`, which has variables as a list.
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
    """Wait until everything on stdout has been read."""
    import fcntl
    import select
    import termios

    waiting = bytearray(4)
    while fcntl.ioctl(1, termios.FIONREAD, waiting) == 0 and any(waiting):
        select.select([], [], [], 0.005)


def say(fifo: str, name: str) -> None:
    """Write a name and the process id to a lifeline, and hold the lifeline open."""
    if fifo not in _lifeline_descriptors:
        _lifeline_descriptors[fifo] = os.open(fifo, os.O_WRONLY)
    os.write(_lifeline_descriptors[fifo], f"{name} {os.getpid()}\n".encode())


def wait(fifo: str) -> None:
    """Wait until a byte comes from a FIFO."""
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


def spawn(fifo: str, new_session: bool) -> None:
    """Start a child that holds stdout, stderr and the lifeline and hangs. Continue when it has
    written to the lifeline.
    """
    ready, write_end = os.pipe()
    if os.fork() == 0:
        signal.alarm(LONGEST_SECONDS)
        if new_session:
            os.setsid()
        say(fifo, "grandchild")
        os.close(write_end)
        hang()
    os.close(write_end)
    os.read(ready, 1)


def wrap(path: str) -> None:
    """Act as a wrapper that an interrupt ends at once. Its own child writes a file when the wrapper
    has exited.
    """
    ready, write_end = os.pipe()
    alive, alive_write_end = os.pipe()  # ends when the wrapper exits
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
    """Start a child in its own session that holds stdout and stderr for this time, or until it is
    stopped.
    """
    if os.fork() == 0:
        os.setsid()
        signal.alarm(seconds)
        hang()


def daemon(fifo: str) -> None:
    """Start a daemon: a process in its own session whose parent has exited."""
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
    """Start an orphan that exits by itself."""
    if (parent := os.fork()) == 0:
        if os.fork() == 0:
            os._exit(0)
        os._exit(0)
    os.waitpid(parent, 0)


def hang() -> None:
    """Do nothing until a signal ends the process."""
    while True:
        signal.pause()


def die(name: str) -> None:
    """Send a signal to this process that ends it."""
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
