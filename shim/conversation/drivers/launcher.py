"""Starts the children of one conversation: each with the vendor's own flags, the right session, the right terms."""

import sys
import time
from collections.abc import Callable, Mapping
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any

from shim.channels.log import Log
from shim.channels.raw_output import tell
from shim.core.claude.argv import Invocation
from shim.core.claude.policy import Policy
from shim.core.dialects import DIALECTS
from shim.core.errors import FrontendError, ShimError, Tried
from shim.core.ids import parse_uuid
from shim.core.vendor.vendor import Launch, Request, Vendor
from shim.process.environment import child_environment, extra_arguments, launch_environment, old_sdk
from shim.process.find_program import find_launcher, find_program, unheard
from shim.process.spawn import Started, spawn
from shim.state.config import TIMEOUTS, Settings

if TYPE_CHECKING:
    from shim.core.claude.facts import Facts
    from shim.core.turn.terms import Pen, Structured, Terms
    from shim.core.turn.turn import Turn
    from shim.core.vendor.pump import Pump
    from shim.core.vendor.translation import Translation
    from shim.process.probe import Probe
    from shim.process.usage_file import ReportFile
    from shim.recording.recorder import Recorder
    from shim.state.spill import Spill
    from shim.state.store import Session


class Launcher:
    """One vendor in one conversation. `facts` are what the frontend may change in the middle of it.

    `known` is the stored session that goes on. `flat`: no line of a real claude passes as it is.
    `tried` are the vendors that were asked before this one, of which the next turn tells; `refusal` is why none can
    begin, which the first `start` raises.
    """

    def __init__(
        self,
        vendor: Vendor,
        invocation: Invocation,
        settings: Settings,
        environment: Mapping[str, str],
        *,
        cwd: str,
        facts: "Facts",
        pen: Callable[[], "Pen"],
        known: "Session | None",
        log: Log,
        recorder: "Recorder | None" = None,
        flat: bool = False,
    ) -> None:
        self.vendor = vendor
        self.recorder = recorder
        self.settings = settings
        self.end_grace = settings.end_grace
        self.retries = DIALECTS[settings.dialect].retries
        self._asks_by_line = settings.dialect == "yume"
        self.timeouts = {name: settings.timeout(name, vendor.name, vendor.timeouts) for name in TIMEOUTS}
        self.echo = invocation.replay_user_messages
        self.facts = facts
        self._invocation = self._first_invocation = invocation
        self.environment = environment
        self.cwd = cwd
        self._open_pen = pen
        self._known = known
        self._log = log
        self._resume = (known.vendor_session or None) if known else invocation.resume
        self._own = settings.of(vendor.name)
        self._passes = vendor.passthrough and not flat  # its sessions are its own
        self._child_environment = child_environment(vendor, self._own, environment)
        self._launcher: list[str] = []
        self._program: list[str] = []  # found before the first child is started
        self.tried: tuple[Tried, ...] = ()
        self.refusal: ShimError | None = None
        self.make_pump: Callable[..., Pump] | None = None  # another than the usual pump
        self.played: Callable[[], tuple[Tried, ...]] | None = None  # who was asked before, in what is played
        self._variant: str | None = None
        self._answered = False
        self._given: str | None = None  # the id of a session that began under ours, and may not say so
        self._told: Turn | None = None  # the last turn whose secrets were counted on stderr
        self._noted: Turn | None = None  # the last turn whose account was recorded
        self._started = False
        self._listens = False
        self._prefixed = False
        self._spill: Spill | None = None
        self.report: ReportFile | None = None  # of the child that was started last
        self._schema_reader: Callable[[str], Structured] | None = None
        if invocation.json_schema is not None:
            self._read_schema(invocation.json_schema)

    @cached_property
    def pen(self) -> "Pen":
        """The pen of the conversation, opened when it is first asked for: a child is started without it."""
        return self._open_pen()

    def _read_schema(self, schema: str) -> None:
        """`--json-schema`, before anything runs: a wrong one is refused for every vendor (contract 11)."""
        from shim.conversation.drivers import structured

        invocation, vendor = self._invocation, self.vendor
        talks = invocation.input_format == "stream-json" or invocation.permission_prompt_tool == "stdio"
        if vendor.structures and not (talks and vendor.speaks):
            structured.parsed(schema)
        else:
            self._schema_reader = structured.reader(schema)

    @property
    def _read(self) -> "Callable[[str], Structured] | None":
        """What reads the answer; None where the vendor gives it by itself, as no vendor does in a conversation."""
        return self._schema_reader if self._listens or not self.vendor.structures else None

    def asked(self, prompt: str) -> str:
        """The prompt, with the request for JSON behind it where we read the answer.

        System prompts stand before the first one for a child that has no other place for them; a command stays one.
        """
        if self.vendor.prefixes and self._listens and not self._prefixed and not prompt.startswith("/"):
            self._prefixed = True
            prompt = self._request(prompt).with_system_prompt()
        if self._read is None:
            return prompt
        from shim.conversation.drivers import structured

        return structured.instruct(prompt, self._invocation.json_schema or "")

    def find(self) -> None:
        """Look for the program, once. VendorError when it is not there, FrontendError for a mistake in the settings."""
        if not self._program:
            self._launcher = find_launcher(self._own.launcher, self.environment, self.cwd)
            self._program = self._find()

    def _find(self) -> list[str]:
        if self.vendor.bundled and (self.vendor.plays or not self.environment.get("SHIM_BIN")):
            return [sys.executable, "-I", "-m", self.vendor.bundled]
        return [find_program(self.vendor, self._own, self.environment, self.cwd)]

    def another(self, vendor: Vendor, environment: Mapping[str, str]) -> "Launcher":
        """What starts another vendor in the same conversation; no session of this one's goes on in it."""
        return Launcher(
            vendor,
            self._first_invocation,
            self.settings,
            environment,
            cwd=self.cwd,
            facts=self.facts,
            pen=lambda: self.pen,
            known=None,
            log=self._log,
            recorder=self.recorder,
            flat=True,
        )

    # -- a child ------------------------------------------------------------------------------------------

    def start(self, prompt: str, *, listens: bool = False) -> Started:
        """Start a child. VendorError or FrontendError when that cannot be."""
        self._listens = listens
        if self.refusal is not None:
            raise self.refusal
        if self._asks_by_line and self.facts.prompts:
            self.vendor.wait_for_answers()
        self.find()
        if self._answered and not (self._resume and self.vendor.resumes):
            raise FrontendError(
                f"{self.vendor.name} has no session to go on with, so it can answer one message and no more",
                hint="start a new conversation, or choose a vendor that can resume (`shim vendors`)",
            )
        try:
            return self._start(self.vendor.launch(self._probed(self._request(prompt))), listens)
        except BaseException:
            if self.report is not None:
                self.report.remove()
            raise

    def _start(self, launch: Launch, listens: bool) -> Started:
        if self.played is not None:
            self.tried, self.facts.vendor = self.played(), self.vendor.shown
        own = self._own
        added = (*own.args, *extra_arguments(self.environment))
        command = [*self._launcher, *self._program, *launch.arguments, *added]
        environment = launch_environment(self._child_environment, launch, own)
        feed = listens or launch.pipe or bool(launch.stdin)
        process = spawn(command, environment, self.cwd, feed=feed, files=launch.files)
        self._started = True
        self._log("child started", vendor=self.vendor.name, program=command[0], arguments=len(command))
        track = None if self.recorder is None else self.recorder.child(command, self.cwd, self.vendor.shown)
        from shim.state.redaction import of_tail

        return Started(process, launch.stdin, of_tail(self.settings), track, launch.files, self.vendor.grace)

    @property
    def session(self) -> str:
        """The vendor's own id of the session that goes on, "" while it has none."""
        return self._resume or ""

    def again(self, translation: "Translation") -> None:
        """The next child answers the same message: in the vendor's session, if there is one to go on with."""
        self.remember(translation)
        if self._resume is None:
            translation.turn.conversation.vendor_session = None

    def _request(self, prompt: str) -> Request:
        facts = self.facts
        invocation = self._invocation._replace(
            model=facts.model,
            system_prompt=facts.system_prompt or self._invocation.system_prompt,
            append_system_prompt=facts.append_system_prompt or self._invocation.append_system_prompt,
        )
        named = self._listens or self.vendor.given_id  # its id is ours then: one less to tell apart
        if self._started:  # an id is given once: what began under it may be there, though it never said so
            invocation = invocation._replace(session_id=None)
        elif named and not (self._resume or invocation.session_id or invocation.fork_session):
            invocation = invocation._replace(session_id=facts.session_id)
        if self.vendor.given_id:
            self._given = invocation.session_id or (self._given if self._resume else None)
        return Request(
            invocation=invocation,
            prompt=prompt if self._listens else self.asked(prompt),
            mode=self.vendor.mode_arguments(facts.mode),
            permission_mode=facts.mode,
            resume=self._resume,
            trust=self._own.trust,
            removed=self._removed(),
            listens=self._listens,
            keep=self._keep,
            report_folder=self._report_folder(),
            unheard=unheard(self.vendor, self._launcher),
        )

    def _report_folder(self) -> str | None:
        """Where the child may write about its run: not where it may be on another machine."""
        if self.vendor.report is None or self._launcher:
            return None
        from shim.process.usage_file import ReportFile

        self.report = ReportFile(self.vendor.report, self.environment, self.facts.session_id, self.recorder)
        return self.report.folder

    def _probed(self, request: Request) -> Request:
        probe = cache(self._probe)
        if self._variant is None:
            self._variant = self._own.variant
            if self.vendor.variants and self._variant not in ("auto", *self.vendor.variants):
                allowed = ", ".join(("auto", *self.vendor.variants))
                name = self.vendor.name
                raise FrontendError(f"vendors.{name}.variant is {self._variant!r}, it must be one of {allowed}")
            if self.vendor.probe is not None and self._variant == "auto":
                self._variant = probe().variant(self.vendor.probe)
        return request._replace(variant=self._variant, knows=lambda flag: probe().knows(flag))

    def _probe(self) -> "Probe":
        from shim.process.probe import Probe

        return Probe([*self._launcher, self._program[0]], self.environment, self._child_environment)

    def _removed(self) -> tuple[str, ...]:
        """Claude's names of the tools that are denied as a whole."""
        return tuple(sorted(self.policy().denied))

    def policy(self) -> Policy:
        """The rules of the invocation and of the settings."""
        return Policy(
            only=self._invocation.tools,
            denied=(*self._invocation.disallowed_tools, *self.settings.deny),
            hidden=self.settings.hide,
            allowed=self._invocation.allowed_tools,
        )

    # -- a turn -------------------------------------------------------------------------------------------

    def pump(self, previous: "Pump | None") -> "Pump":
        """The pump of a new child; `previous` is that of the child before it."""
        from shim.core.vendor.pump import Pump
        from shim.core.vendor.translation import Translation
        from shim.state.files import aside_for

        before = None if previous is None else previous.turn
        if self._resume is None:  # it begins a session of its own, which was told nothing yet
            self._prefixed = False
            if before is not None:
                before.conversation.vendor_session = None
        inbound = self.settings.max_inbound_bytes
        translation = Translation(
            self.vendor.translator, self.terms(), self.pen, before, inbound=inbound, aside=aside_for(inbound)
        )
        known = {} if previous is None else {"known": previous.known}
        return (self.make_pump or Pump)(translation, saves_late=self.vendor.saves_late, **known)

    def terms(self) -> "Terms":
        """What is agreed for the turn that begins now."""
        from shim.core.turn.terms import NO_THREAD, Terms
        from shim.process.vendor_home import home_of

        vendor, facts, invocation = self.vendor, self.facts, self._invocation
        began = time.monotonic()
        request = Request(invocation, "", vendor.modes.get(facts.mode, ()), facts.mode, removed=self._removed())
        counts = vendor.limits_turns and not self._listens
        return Terms(
            vendor=vendor.shown,
            replays=bool(vendor.plays),
            fresh_id=facts.session_id,
            session_id=self._session_id(),
            model=facts.model if vendor.takes_model else None,
            cwd=self.cwd,
            tools=vendor.available(request),
            mode=facts.mode,
            unattended=vendor.unattended,
            max_turns=None if counts else invocation.max_turns,
            turns_asked=invocation.max_turns,
            budget=None if vendor.passthrough else invocation.max_budget_usd,
            redact=self.settings.redaction() == "all",
            questions=(lambda: facts.prompts) if self._asks_by_line else None,
            policy=self.policy() or None,
            retracts=vendor.retracts or self.retries,
            retries=self.retries,
            worded=vendor.passthrough,
            gate=vendor.gate,
            login=vendor.login,
            read=self._read,
            home=home_of(vendor, self._child_environment),
            keep=self._keep,
            thread=NO_THREAD if self._known is None else self._known.thread,
            old_reader=old_sdk(self.environment),
            clean_exits=vendor.clean_exits,
            tried=self.tried,
            clock=lambda: int((time.monotonic() - began) * 1000),
        )

    def _keep(self, text: str) -> str | None:
        """A text that is too large for a line, or for an argument, goes to a file."""
        try:
            from shim.state.spill import Spill

            self._spill = self._spill or Spill(self.environment, self.facts.session_id)
            path = self._spill.keep(text)
            if self.recorder is not None:
                self.recorder.note("spill", path=path, characters=len(text))
            return path
        except Exception:  # on a full disk not even an import is certain, and a copy must not cost the original
            return None

    def _session_id(self) -> str | None:
        """The id that the frontend chose; None leaves the choice to the vendor's first event."""
        invocation, facts = self._invocation, self.facts
        if self.vendor.passthrough:
            return invocation.session_id or parse_uuid(invocation.resume or "")
        if invocation.input_format == "stream-json" or invocation.fork_session or self._known is not None:
            return facts.session_id
        return invocation.session_id or parse_uuid(invocation.resume or "")

    def remember(self, translation: "Translation") -> None:
        """What the next child, and a later `--resume`, need to know. A real claude keeps its own sessions."""
        turn = translation.turn
        conversation = turn.conversation
        if translation.finished:
            self._answered = self._answered or (turn.replies > 0 and not turn.is_error)
            self.tried = ()
            facts: dict[str, Any] = {"cause": turn.cause, "account": translation.account.report()}
            self._log("turn ended", **facts)
            self._tell_redacted(translation)
            self.note_account(translation)
        self.facts.known_model, self.facts.cost = turn.model, conversation.cost
        place = self.vendor.place() if self.vendor.place is not None else None
        own = place or conversation.vendor_session or (self._given if translation.turn.began else None)
        if (self._passes and not place) or conversation.session_id is None or own is None:
            return
        if not place and self.vendor.saves_late and not self._resume and not turn.usage:
            own = ""  # the first reply was cut: there is nothing to go on with, but the id is the frontend's
        self._resume = own or None
        self._invocation = self._invocation._replace(fork_session=False)
        if self._invocation.no_session_persistence:
            return
        created = self._known.created if self._known else 0.0
        from shim.state import store

        session = store.Session(self.vendor.name, own, self.cwd, turn.model, created, conversation.used(own))
        store.remember(conversation.session_id, session, self.environment)

    def note_account(self, translation: "Translation") -> None:
        """Record once for a turn what was mended in it, and what nobody understood."""
        if self.recorder is not None and translation.turn is not self._noted:
            self._noted = translation.turn
            self.recorder.account(translation.account)

    def _tell_redacted(self, translation: "Translation") -> None:
        """Say once for a turn how many secrets were left out, where a person reads our stderr."""
        counts = translation.account.redacted
        if counts and self.settings.dialect == "yume" and translation.turn is not self._told:
            from shim.core.secrets.redactor import summary

            self._told = translation.turn
            tell(f"{self.vendor.name}: {summary(counts)}\n")
