"""The host of one session: the conversation loop of the drop-in, with a hub in the place of stdin and stdout.

A process of its own (`start.py` begins it). Its lock and its listening socket come from whoever started it, its
environment too. It ends by itself when nobody was there for long, by a signal, or when a client says so.
"""

import os
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any

import anyio

from shim import __version__
from shim.bridge import registry, sockets
from shim.bridge.cast_log import CastLog
from shim.bridge.door import Door
from shim.bridge.ends import HubSource, HubStdout
from shim.bridge.hub_runner import HubRunner
from shim.bridge.start import STDERR_BYTES, Wanted
from shim.channels import early_signals
from shim.channels.raw_output import tell
from shim.channels.signals import Signals
from shim.channels.stamps import fresh_uuid
from shim.conversation.decide import Start
from shim.core.bridge.frames import DRIVE, PROTOCOL, frame
from shim.core.bridge.hub import Hub
from shim.core.bridge.session import Session
from shim.core.claude.argv.invocation import Invocation
from shim.core.claude.argv.parse import parse
from shim.core.errors import ShimError
from shim.core.policy.policy import BYPASS
from shim.state import store

TICK_SECONDS = 1.0  # between two looks at the time
STARTER = 0  # the number of the client that says the first message; those of the socket begin at 1
LOG = "log"
STOPPED, IDLE, OVER = "stopped", "idle", "ended"
SHOWN_ENDS = {"SIGTERM": 143, "SIGHUP": 129}
PENDING = 1000  # connections that are told why a host could not begin


class Facts:
    """The facts of a life, kept in `host.json`. Where they cannot be kept, the session goes on."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self.known = registry.read_facts(folder) or {}

    def change(self, facts: Mapping[str, Any]) -> None:
        """Keep other values of some facts, if any is another one."""
        if any(self.known.get(key) != value for key, value in facts.items()):
            self.known = {**self.known, **facts}
            with suppress(OSError):
                registry.write_facts(self._folder, self.known)

    def end(self, state: str, detail: str | None = None) -> None:
        """The life is over. `state` is for a session that was at work; a finished one stays as it was."""
        working = self.known.get("state") in registry.UNDER_WAY
        said = {"state": state} if working else {}
        if detail is not None:
            said = {"state": "failed", "detail": detail}
        self.change({"status": None, "waitingFor": None, "needs": None, "driver": None, "pid": None, **said})


class Host:
    """One life of a session: its hub between the conversation and the socket. It has the ends of a conversation."""

    def __init__(self, folder: str, facts: Facts, start: Start, wanted: Wanted, listening: socket.socket) -> None:
        settings, recorder = start.settings, start.recorder
        known, session = facts.known, os.path.basename(folder)
        generation = known["generation"]
        self.source = HubSource(settings.max_inbound_bytes, recorder)
        self.stdout = HubStdout(self._said, recorder)
        self.why = OVER
        self._facts = facts
        self._prompt = wanted.prompt
        self._idle_seconds = settings.bridge.idle
        self._used = time.monotonic()
        began, clock = time.time() - time.monotonic(), time.monotonic
        self._log = CastLog(
            os.path.join(folder, LOG), generation, {"vendor": start.vendor.shown, "cwd": start.cwd, "session": session}
        )
        permissions = start.invocation.permissions
        hub = Hub(
            Session(
                session,
                vendor=start.vendor.shown,
                name=known.get("name") or "",
                cwd=start.cwd,
                model=start.invocation.model,
                mode=start.mode,
                pid=os.getpid(),
                version=__version__,
                bypass=permissions.skip_permissions or permissions.allow_skip_permissions or start.mode == BYPASS,
                answers=settings.bridge.answers,
                question_seconds=settings.timeout("permission_timeout", start.vendor.name, start.vendor.timeouts),
                frame_bytes=settings.max_inbound_bytes,
            ),
            generation=generation,
            number=self._log.last,
            mint=fresh_uuid,
            wall=lambda: round((began + clock()) * 1000),  # a clock that jumps moves nothing that was said
            clock=clock,
        )
        self.runner = HubRunner(hub, self._log, tell=self.source.put, changed=facts.change, end=self._end)
        self._door = Door(listening, self.runner, self.source)
        facts.change({"pid": os.getpid(), "vendor": start.vendor.shown, "cwd": start.cwd, "version": __version__})

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        """Clients come and go while the conversation runs; at its end they are told."""
        runner = self.runner
        async with anyio.create_task_group() as tasks:
            for work in (self._door.serve, runner.rounds, self._tick):
                tasks.start_soon(work)
            runner.hub.open()
            runner.settle()
            self._ask_first()
            try:
                yield
            finally:
                with anyio.CancelScope(shield=True):
                    await runner.finish(runner.reason or self.why)
                    self._log.close()
                tasks.cancel_scope.cancel()

    def _said(self, data: bytes) -> str:
        return self.runner.said(data)

    def _ask_first(self) -> None:
        """The first message is one like any other: of a client that has gone at once."""
        if self._prompt is None:
            return
        hub = self.runner.hub
        hub.joined(STARTER)
        hub.heard(STARTER, frame("hello", protocol=PROTOCOL, client="start", role=DRIVE, replay=False).rstrip())
        hub.heard(STARTER, frame("message", id=fresh_uuid(), message=self._prompt).rstrip())
        hub.left(STARTER)
        self.runner.settle()

    def _end(self, by: str) -> None:
        """A client ends the session: what runs is stopped as by a signal."""
        self.why = STOPPED
        os.kill(os.getpid(), signal.SIGTERM)

    async def _tick(self) -> None:
        """Look at the time: for the hub, for our stderr, and whether anybody needs us."""
        while True:
            await anyio.sleep(TICK_SECONDS)
            self.runner.hub.tick()
            self.runner.settle()
            _bound_stderr()
            if self.runner.hub.clients or self.runner.hub.running:
                self._used = time.monotonic()
            elif time.monotonic() - self._used >= self._idle_seconds:
                self.why = IDLE
                self.source.close()


def main(arguments: list[str]) -> int:
    """Run one life: `FOLDER LOCK SOCKET`, the last two are descriptors. The exit status."""
    folder, lock, listening = arguments[0], int(arguments[1]), socket.socket(fileno=int(arguments[2]))
    for descriptor in (lock, listening.fileno()):
        os.set_inheritable(descriptor, False)
    early_signals.listen()
    facts, signals = Facts(folder), Signals()
    status, host, recorder = 1, None, None
    try:
        signals.listen()
        wanted = _wanted(folder)
        os.chdir(wanted.cwd)
        start = Start(_invocation(folder, facts, wanted), wanted.installed, wanted.arguments)
        recorder = start.recorder
        host = Host(folder, facts, start, wanted, listening)
        signals.check()
        status = start.run(signals, host)
        failed = host.stdout.reason or (f"exit status {status}" if status not in SHOWN_ENDS.values() and status else "")
        facts.end("failed" if failed else STOPPED, host.stdout.reason or None)
    except Exception as error:
        signals.started = True
        hint = f" ({error.hint})" if isinstance(error, ShimError) and error.hint else ""
        reason = f"{error}{hint}" if isinstance(error, ShimError | OSError) else f"the shim failed: {error!r}"
        tell(f"{reason}\n")
        _refuse(listening, reason)
        facts.end("failed", reason)
    finally:
        sockets.remove(folder)
        listening.close()
        if recorder is not None:
            signals.listen_again()
            recorder.close(lambda: True)
    return status


def _wanted(folder: str) -> Wanted:
    known = registry.read_start(folder) or {}
    return Wanted(**{key: value for key, value in known.items() if key in Wanted._fields})


def _invocation(folder: str, facts: Facts, wanted: Wanted) -> Invocation:
    """The command line of this life: stream-json both ways, all that a client may want, and the session."""
    os.environ["CLAUDE_CODE_EMIT_SESSION_STATE_EVENTS"] = "1"  # the hub tells by them what waits
    session = os.path.basename(folder)
    invocation = parse(wanted.arguments, dialect="claude")
    asks = {"permission_prompt_tool": "stdio"} if wanted.asks else {}
    if wanted.resumes and _goes_on(folder, session, facts):
        of = {"resume": session, "session_id": None, "fork_session": False}
    elif wanted.forked:
        of = {"resume": wanted.forked, "fork_session": True, "session_id": session}
    else:
        of = {"resume": None, "session_id": session, "fork_session": False}
    return invocation.with_flags(
        prompt=None,
        print_mode=True,
        input_format="stream-json",
        output_format="stream-json",
        verbose=True,
        partial=True,
        replay_user_messages=True,
        continue_last=False,
        shim_dialect="claude",
        shim_terminator="none",
        **of,
        **asks,
    )


def _goes_on(folder: str, session: str, facts: Facts) -> bool:
    """Whether the vendor has the session: a life that ended before its first turn left none."""
    if facts.known["generation"] == 1 or store.look_up(session, os.environ) is not None:
        return True
    logs = os.path.join(folder, LOG)
    return facts.known["vendor"] == "claude" and os.path.isdir(logs) and bool(os.listdir(logs))


def _refuse(listening: socket.socket, reason: str) -> None:
    """Tell those who wait at the socket why there is no session."""
    listening.setblocking(False)
    with suppress(OSError):
        for _ in range(PENDING):
            link, _ = listening.accept()
            with link, suppress(OSError):
                link.setblocking(False)
                link.send(frame("bye", reason=reason))


def _bound_stderr() -> None:
    with suppress(OSError):
        if os.fstat(2).st_size > STDERR_BYTES:
            os.ftruncate(2, 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
