"""The package is moved or upgraded under running hosts and a running server: their sessions
continue to their end.
"""

import compileall
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from box import CONVERSE, Running, format_ndjson
from gateway_harness import ask_at, stream_at
from session_hosts import TIMEOUT_S, Hosting

import shim
from shim.bridge import registry
from shim.bridge.gateway.tokens import GatewayTokenFile
from shim.bridge.log import RecordedSessionLog
from shim.conversation.preload import HOST_FOLDERS, LAZY_MODULES
from tests.conversation.test_conversation import user
from tests.conversation.test_persistent_driver import (
    ASKING,
    HELLO,
    INIT,
    answer,
    asks,
    calls,
    result,
    returns,
    says,
)

# SIGUSR1: write the names of all imported modules to a file.
DUMP = """
import os, signal, sys
def dump(*_):
    with open(f"{os.environ['MODULES']}.{os.getpid()}.new", "w") as file:
        file.write(" ".join(sorted(sys.modules)))
    os.rename(f"{os.environ['MODULES']}.{os.getpid()}.new", f"{os.environ['MODULES']}.{os.getpid()}")
if any(word in sys.orig_argv for word in ("shim.bridge.host", "serve", "claude")):
    signal.signal(signal.SIGUSR1, dump)
"""
FIRST = format_ndjson(INIT, says("Hello."), result("Hello."))
PROMPT = format_ndjson(INIT, calls(), asks())
ANSWERED = format_ndjson(returns("ok"), says("After."), result("After."))
SECOND = format_ndjson(INIT, says("Again."), result("Again."))


class Installation:
    """A copy of the package, a server and hosts that run it, and a vendor that asks before its
    first call.
    """

    def __init__(self, path: Path, box, package: Path) -> None:
        self.site = path / "site"
        self.package = self.site / "shim"
        shutil.copytree(package, self.package, copy_function=os.link)
        (self.site / "sitecustomize.py").write_text(DUMP, encoding="utf-8")
        self.modules = path / "modules"
        vendor = box.create_fake(
            HELLO, ["hear", "go"], ["out", FIRST], ["hear", "ask"], ["out", PROMPT], ["hear", "control_response"],
            ["out", ANSWERED], ["hear", "again"], ["out", SECOND], ["hear", "never"],
        )  # fmt: skip
        self.hosts = Hosting(
            path / "hosts",
            SHIM_VENDOR="qwen",
            SHIM_BIN=vendor,
            PYTHONPATH=str(self.site),
            MODULES=str(self.modules),
        )
        self.stderr = path / "stderr"
        self.server: subprocess.Popen[str] | None = None

    def serve(self):
        """Start the server."""
        with self.stderr.open("w") as stderr:
            self.server = subprocess.Popen(
                [sys.executable, "-P", "-m", "shim", "bridge", "serve", "--http", "0"],
                env=self.hosts.environment, stdout=subprocess.PIPE, stderr=stderr, text=True,
            )  # fmt: skip
        self.port = int(self.server.stdout.readline().strip().rstrip("/").rpartition(":")[2])
        self.token = GatewayTokenFile(self.hosts.environment).load_tokens().drive

    def move(self):
        """Move the package to another folder."""
        self.package.rename(self.site / "elsewhere")

    def upgrade(self):
        """Replace the package by another version."""
        for path in list(self.package.rglob("*")):
            if path.is_file():
                path.unlink()
        (self.package / "__init__.py").write_text('__version__ = "9.9.9"\n', encoding="utf-8")

    def close(self):
        """Stop the server and the hosts."""
        if self.server is not None and self.server.poll() is None:
            self.server.send_signal(signal.SIGINT)
            self.server.communicate(timeout=TIMEOUT_S)
        self.hosts.stop_hosts()

    def ask(self, method, path, body=None):
        body = {} if method == "POST" and body is None else body
        answered = ask_at(self.port, method, path, body, {"Authorization": f"Bearer {self.token}"})
        assert answered.status in (200, 201), answered
        return answered.json

    def begin(self):
        """Start a session that has answered its first message and has not asked yet. Return its
        id.
        """
        body = {"vendor": "qwen", "cwd": str(self.hosts.cwd), "prompt": "go"}
        session = self.ask("POST", "/sessions", body)["session"]
        self.hosts.wait_until(
            self.find_session(session), lambda now: now.metadata["state"] == "done"
        )
        return session

    def find_session(self, session):
        return registry.find_session(session, self.hosts.environment)

    def until(self, session, happened):
        deadline = time.monotonic() + TIMEOUT_S
        while not happened(now := self.ask("GET", f"/sessions/{session}")):
            assert time.monotonic() < deadline, now
            time.sleep(0.02)
        return now

    def question(self, session):
        with stream_at(self.port, f"/sessions/{session}/events", self.token) as events:
            return next(event.json["question"] for event in events if event.kind == "question")

    def play_to_the_end(self, session):
        """Use every function of a host and the server for a session, until it is stopped."""
        self.play(session)
        self.ask("POST", f"/sessions/{session}/stop")
        self.until(session, lambda now: not now["alive"])
        log = _log(registry.get_session_folder(session, self.hosts.environment))
        assert log.count(b'"type":"result"') == 3 and b"failed" not in log

    def play(self, session):
        """Ask and answer a permission request, and run another turn."""
        self.ask("POST", f"/sessions/{session}/messages", {"text": "ask"})
        self.ask(
            "POST",
            f"/sessions/{session}/answers",
            {"question": self.question(session), "behavior": "allow"},
        )
        self.until(session, lambda now: now["status"] == "idle")
        self.ask("POST", f"/sessions/{session}/messages", {"text": "again"})
        folder = registry.get_session_folder(session, self.hosts.environment)
        deadline = time.monotonic() + TIMEOUT_S
        while b"Again." not in (log := _log(folder)) or b'"result"' not in log:
            assert time.monotonic() < deadline, log
            time.sleep(0.02)
        self.until(session, lambda now: now["status"] == "idle")
        self.ask("GET", "/me")
        self.ask("GET", "/sessions")
        assert ask_at(self.port, "GET", "/", None, {}).status == 200
        with stream_at(self.port, f"/sessions/{session}/steps", self.token) as steps:
            assert any("Again." in str(step.data) for step in steps)

    def dump(self, pid):
        """Return the modules that a process has imported."""
        path = Path(f"{self.modules}.{pid}")
        path.unlink(missing_ok=True)
        os.kill(pid, signal.SIGUSR1)
        deadline = time.monotonic() + TIMEOUT_S
        while not path.exists():
            assert time.monotonic() < deadline
            time.sleep(0.01)
        return set(path.read_text().split())


def _log(folder):
    return b"\n".join(
        entry.line
        for entry in RecordedSessionLog(os.path.join(folder, registry.LOG_FOLDER), 1).read(
            0, 10_000
        )
    )


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    """Copy the package with its bytecode, because compiling would delay each process by seconds."""
    copy = tmp_path_factory.mktemp("package") / "shim"
    shutil.copytree(Path(shim.__file__).parent, copy)
    compileall.compile_dir(copy, quiet=2)  # missing or outdated files
    return copy


@pytest.fixture
def installation(tmp_path, box, package):
    made = Installation(tmp_path, box, package)
    try:
        yield made
    finally:
        made.close()


@pytest.mark.parametrize("sessions", [1, pytest.param(10, marks=pytest.mark.full)])
@pytest.mark.parametrize("how", ["moved or removed", "replaced by 9.9.9"])
def test_sessions_and_server_continue_after_the_package_is_moved_or_replaced(
    installation, how, sessions
):
    """While the package exists nothing is imported after the start. Without it no session is
    started.
    """
    moved = how == "moved or removed"
    installation.serve()
    if moved:
        _play_without_imports(installation)
    running = [installation.begin() for _ in range(sessions)]
    installation.move() if moved else installation.upgrade()
    hosts = [
        Path(
            registry.get_session_folder(session, installation.hosts.environment),
            registry.STDERR_FILE,
        )
        for session in running
    ]
    logs = [installation.stderr, *hosts]
    deadline = time.monotonic() + TIMEOUT_S
    while not all(log.read_text() for log in logs):
        assert time.monotonic() < deadline, logs
        time.sleep(0.02)
    for session in running:
        installation.play_to_the_end(session)
    if moved:
        _refuse_a_session(installation)
    installation.close()
    for log in logs:
        (line,) = log.read_text().splitlines()
        assert shim.__version__ in line and how in line


def _play_without_imports(installation):
    before = [installation.dump(installation.server.pid)]
    session = installation.begin()
    pids = [installation.server.pid, installation.find_session(session).metadata["pid"]]
    before.append(installation.dump(pids[1]))
    installation.play(session)
    installation.ask("POST", f"/sessions/{session}/interrupt")
    after = [installation.dump(pid) for pid in pids]
    assert [sorted(now - then) for now, then in zip(after, before, strict=True)] == [[], []]
    assert installation.stderr.read_text() == ""


def _refuse_a_session(installation):
    before = installation.ask("GET", "/sessions")["sessions"]
    body = {"vendor": "qwen", "cwd": str(installation.hosts.cwd), "prompt": "go"}
    headers = {"Authorization": f"Bearer {installation.token}"}
    refused = ask_at(installation.port, "POST", "/sessions", body, headers)
    assert refused.status == 409 and "was moved or removed" in refused.json["error"]
    assert len(installation.ask("GET", "/sessions")["sessions"]) == len(before)


# Like `claude`, but it does not wait before it imports the rest.
SOON = """
import shim.conversation.loop as loop
loop.PRELOAD_DELAY_S = 0.0
from shim.__main__ import main
main()
"""


def test_foreground_conversation_continues_after_the_package_is_moved(installation):
    args = ["claude", *CONVERSE, *ASKING]
    command = [sys.executable, "-P", "-c", SOON, *args]
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command,
        env=installation.hosts.environment,
        cwd=installation.hosts.cwd,
        stdin=pipe,
        stdout=pipe,
    ) as process:
        running = Running(process)
        running.send_lines(user("go"))
        running.read_until(b'"type":"result"')
        running.send_lines(user("ask"))
        question = running.read_line_containing(b'"subtype":"can_use_tool"')
        deadline = time.monotonic() + TIMEOUT_S
        while not {"shim.bridge.stop", "shim.process.descendants", "uuid"} <= installation.dump(
            process.pid
        ):
            assert time.monotonic() < deadline
        installation.move()
        running.send_lines(
            answer(question["request_id"], behavior="allow", updatedInput={"command": "touch x"})
        )
        running.read_until(b"After.")
        running.send_lines(user("again"))
        running.read_until(b"Again.")
        done = running.end_input()
    results = [line["result"] for line in done.lines if line["type"] == "result"]
    assert (done.status, results) == (0, ["Hello.", "After.", "Again."])


def test_every_lazy_import_of_a_host_is_preloaded():
    assert _lazy_imports() <= {*LAZY_MODULES, *_LOADED_OTHERWISE}


# Imported with a host's own modules, or only by a process that needs them from its start.
_LOADED_OTHERWISE = {
    "anyio",
    "importlib",
    "re",
    "structlog",
    "jsonschema",
    "jsonschema_specifications",
    "subprocess",
}


INDENTED_IMPORT = re.compile(r"^ +(import|from) ", re.MULTILINE)


def _lazy_imports():
    import ast

    names = set()
    for folder in HOST_FOLDERS:
        for path in (Path(shim.__file__).parent / folder).rglob("*.py"):
            source = path.read_text(encoding="utf-8")
            if not INDENTED_IMPORT.search(source):
                continue
            for function in ast.walk(ast.parse(source)):
                if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                    names |= set(_list_imports(function, ast))
    return {name for name in names if name.partition(".")[0] != "shim"}


def _list_imports(function, ast):
    for node in ast.walk(function):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module
