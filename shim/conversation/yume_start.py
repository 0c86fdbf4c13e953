"""From a command line of yume-cli to a running conversation.

With a prompt, in argv or as text on stdin, it answers once; with frames on stdin it stays until stdin ends. Which of
them stdin is shows in its first line.
"""

import os
import stat
from collections.abc import Mapping, Sequence

from shim.channels.prompt import CHUNK_BYTES, LARGER, NO_PROMPT
from shim.channels.raw_output import tell
from shim.conversation.decide import Start
from shim.conversation.invocation import played
from shim.core.claude.argv import Invocation
from shim.core.claude.messages import Message
from shim.core.errors import ArgumentError, FrontendError
from shim.core.ids import parse_uuid, vendor_id
from shim.core.reading.account import printable
from shim.core.reading.typed import TYPE_CHECKING
from shim.core.yume.argv import Call
from shim.core.yume.words import yume_mode
from shim.state import store
from shim.state.own_vendors import learn
from shim.vendors import VENDORS

if TYPE_CHECKING:
    from shim.channels.signals import Signals
    from shim.channels.stdin import Source
    from shim.conversation.wire import Run
    from shim.core.vendor.vendor import Vendor

# A session that Yume calls by a name that is no UUID has the UUID of that name (RFC 9562, version 5) with us.
NAMESPACE = "e7f0e0a6-7b59-4b63-9d0c-2f1b8f6f2a10"
FRAMES = (b"user", b"interrupt", b"set_permission_mode", b"tool_approval")


class YumeStart(Start):
    """One process of yume-cli. FrontendError for what cannot be run, which the caller turns into a result."""

    def __init__(
        self, call: Call, invocation: Invocation, installed: Mapping[str, str], arguments: Sequence[str] = ()
    ) -> None:
        if played(Invocation(), os.environ) is not None:  # whoever the provider is, nobody is asked
            call, invocation = call._replace(provider=""), invocation._replace(shim_vendor=None)
        learn(os.environ, invocation.shim_config)
        if call.vendor and call.vendor not in VENDORS:
            named = call.vendor if call.vendor == call.provider else f"{call.provider} ({call.vendor})"
            raise FrontendError(f"the provider {named[:80]} is not there", hint=f"there are: {', '.join(VENDORS)}")
        if call.cwd:
            try:
                os.chdir(call.cwd)
            except OSError as error:
                raise FrontendError(f"the folder {call.cwd} cannot be entered: {error.strerror}") from None
        self._shown = ""
        invocation = self._in_session(call, invocation)
        super().__init__(_in_mode(call, invocation), installed, arguments)
        self._asks = self.invocation.permission_prompt_tool == "stdio"
        self._stays = self._heard = False
        self._text = call.prompt
        self._source: Source | None = None
        self._api_base = call.api_base

    def _in_session(self, call: Call, invocation: Invocation) -> Invocation:
        """The invocation with the session that it means: Yume gives its tab's id with every turn."""
        name = call.resume or call.session
        identity = known_as(name) if name else ""
        session = store.look_up(identity, os.environ) if identity else None
        if session is not None and call.history and call.vendor not in ("", session.vendor):
            tell(f"{call.vendor}: the session was {session.vendor}'s; a new one begins, {_UNREAD}\n")
            return invocation
        if session is None and call.history:
            tell(f"{call.vendor or 'yume-cli'}: the session is not known here; a new one begins, {_UNREAD}\n")
            name = call.session
            identity = known_as(name) if name else ""
        elif call.resume or session is not None:
            self._shown = "" if parse_uuid(name) else name
            return invocation._replace(resume=identity)
        self._shown = "" if parse_uuid(name) else name
        return invocation._replace(session_id=identity or None)

    def _reach(self, base: str) -> None:
        """Another address of the model's API, for a vendor that reads one from its environment."""
        if not self.vendor.api_base:
            tell(f"{self.vendor.name}: --api-base is not passed on; set the address in its own configuration\n")
        elif not base.startswith(("http://", "https://")):
            raise FrontendError(f"--api-base is {base[:80]!r}, it must be an http or https address")
        else:
            self.environment = {**self.environment, self.vendor.api_base: base}

    def run(self, signals: "Signals") -> int:
        """Hear what is asked, then run it; the exit status."""
        if self._api_base:
            self._reach(self._api_base)
        if not self._text:
            self._hear()
        return super().run(signals)

    def _hear(self) -> None:
        """The first line of stdin, or all of it when that is no frame."""
        from shim.channels.stdin import Source

        data, most = b"", self.settings.max_inbound_bytes
        frames = False
        while chunk := os.read(0, CHUNK_BYTES):
            if self.recorder is not None:
                self.recorder.stream("i", chunk)
            data += chunk
            if len(data) > most:
                raise FrontendError(f"the prompt on stdin is larger than {most} bytes", hint=LARGER)
            if b"\n" in data.lstrip() and (frames := _is_frame(data)):
                break
        if not (frames or _is_frame(data)):
            self._text = data.decode("utf-8", "replace").strip()
            if not self._text:
                raise ArgumentError(NO_PROMPT.replace("using --print", "starting"))
            self._asks, self._heard = False, True  # stdin was the prompt: nobody is there to be asked
            return
        self._stays = True
        self._source = Source(limit=most, recorder=self.recorder)
        self._source.heard = list(self._source.lines.feed(data))
        self.invocation = self.invocation._replace(input_format="stream-json")

    def _serve(self, run: "Run") -> int:
        if self._stays:
            return run.conversation(source=self._source)
        if self._heard or not _may_speak():  # then the child need not wait for what reads frames
            return run.one_message(self._text)
        return run.conversation(Message(self._text))

    def _listens(self, vendor: "Vendor") -> bool:
        """A child that stays is needed for many messages, and for questions."""
        return super()._listens(vendor) and (self._stays or self._asks)


_UNREAD = "and --history-file is not read: no vendor takes another's history"


def _in_mode(call: Call, invocation: Invocation) -> Invocation:
    """The invocation with the mode that Yume's name means, also where Claude has a mode of that name (`auto`)."""
    if not call.mode:
        return invocation
    mode, asks, known = yume_mode(call.mode)
    if not known:
        tell(printable(f"{call.vendor or 'yume-cli'}: the permission mode {call.mode[:60]!r} is not known: default\n"))
    return invocation._replace(permission_mode=mode, permission_prompt_tool="stdio" if asks else None)


def known_as(name: str) -> str:
    """The UUID of a session's name."""
    found = parse_uuid(name)
    if found is not None:
        return found
    if vendor_id(name) is None:
        raise FrontendError(f"the session id {name[:60]!r} has characters that no session id has")
    from uuid import UUID, uuid5

    return str(uuid5(UUID(NAMESPACE), name))


def _may_speak() -> bool:
    """Whether a frame may come through stdin: it is a pipe, a socket or a terminal."""
    mode = os.fstat(0).st_mode
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or os.isatty(0)


def _is_frame(data: bytes) -> bool:
    """Whether the first line that is not blank is a frame."""
    line = data.lstrip().partition(b"\n")[0].strip()
    if not line.startswith(b"{"):
        return line == b"$"
    from shim.core.claude.control import read_line

    frame = read_line(line)
    kind = frame.get("type") if isinstance(frame, dict) else None
    return isinstance(kind, str) and kind.encode("utf-8", "replace") in FRAMES
