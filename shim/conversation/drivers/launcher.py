"""Starts the children of one vendor in a conversation: with its own flags, and the session that
goes on.
"""

import contextlib
import os
import sys
from collections.abc import Callable, Mapping
from functools import cache, cached_property

from shim.conversation.drivers.setup import AnswerSchema, Keeper, Relays, Setup, Standing
from shim.core.adapter.promises import (
    describe_broken_promise,
    find_promise,
    list_unpromised_modes,
    refuse_promise,
    withdraw_promises,
)
from shim.core.adapter.vendor import Files, Launch, Request, Servers, Vendor
from shim.core.adapter.versions import VersionCheck
from shim.core.claude.argv.invocation import Invocation
from shim.core.claude.argv.models import told_all
from shim.core.claude.facts import Serving
from shim.core.errors import FrontendError, ModeError, ShimError, Tried
from shim.core.policy.policy import BYPASS
from shim.core.policy.rules import EVERYTHING
from shim.core.reading.account import printable
from shim.core.reading.typed import TYPE_CHECKING, Any, NamedTuple
from shim.io.log import SILENT
from shim.io.raw_output import tell
from shim.process import strays
from shim.process.environment import child_environment, extra_arguments, launch_environment
from shim.process.find_program import check_programs, find_launcher, find_program, unheard
from shim.process.spawn import Started, spawn
from shim.process.version_check import check_installed_version
from shim.state.config import TIMEOUTS

if TYPE_CHECKING:
    from shim.conversation.drivers.turns import Turns
    from shim.core.claude.facts import Facts
    from shim.core.policy.policy import Policy
    from shim.core.turn.terms import Pen
    from shim.process.probe import Probe
    from shim.process.usage_file import ReportFile
    from shim.recording.recorder import Recorder
    from shim.state.attachments import Attachments
    from shim.state.store import Session

HOOK = (sys.executable, "-I", "-m", "shim.conversation.tool_hook")


class Program:
    """Where a vendor's program is, and which dialect it speaks; `environment` is that of its
    children.
    """

    def __init__(self, setup: Setup, environment: Mapping[str, str]) -> None:
        self._setup = setup
        self._environment = environment
        # the words in front of the program, which may run it on another machine
        self.launcher: list[str] = []
        self._found: list[str] = []
        self._variant: str | None = None
        self.remembered = False  # it is not started to be asked for its help
        self.probed_with: Probe | None = None

    def find(self) -> None:
        """Look for it, once. VendorError when it is not there, FrontendError for a mistake in the
        settings.
        """
        setup = self._setup
        if not self._found:
            self.launcher = find_launcher(setup.own.launcher, setup.environment, setup.cwd)
            if setup.vendor.program.bundled and (
                setup.vendor.program.plays or not setup.environment.get("SHIM_BIN")
            ):
                self._found = [sys.executable, "-I", "-m", setup.vendor.program.bundled]
            else:
                self._found = [find_program(setup.vendor, setup.own, setup.environment, setup.cwd)]

    @property
    def command(self) -> list[str]:
        """The words that start it, without its arguments."""
        return [*self.launcher, *self._found]

    def probed(self, request: Request) -> Request:
        """A request with what only the program itself can tell. FrontendError for a variant that it
        does not have.
        """
        vendor, probe = self._setup.vendor, cache(self.probe)
        if self._variant is None:
            self._variant = self._setup.own.variant
            if vendor.program.variants and self._variant not in ("auto", *vendor.program.variants):
                keys, allowed = (
                    ("vendors", vendor.name, "variant"),
                    ("auto", *vendor.program.variants),
                )
                raise self._setup.settings.mistake(keys, allowed, self._variant)
            if vendor.program.probe is not None and self._variant == "auto":
                self._variant = vendor.program.probe(probe().text())
        return request._replace(variant=self._variant, knows=lambda flag: probe().knows(flag))

    def check_version(self) -> VersionCheck:
        """Return what the installed version means for the promises of the vendor's profile."""
        setup = self._setup
        own, vendor = setup.own, setup.vendor
        command = [*self.launcher, self._found[0]]
        return check_installed_version(
            vendor,
            command,
            setup.environment,
            self._environment,
            trusted=own.trust_version
            or (bool(vendor.program.bundled) and not setup.environment.get("SHIM_BIN")),
            remembered=self.remembered,
        )

    def probe(self) -> "Probe":
        """What asks the program for its help."""
        from shim.process.probe import Probe

        command = [*self.launcher, self._found[0]]
        self.probed_with = Probe(
            command, self._setup.environment, self._environment, remembered=self.remembered
        )
        return self.probed_with


class Plan(NamedTuple):
    """A child that can be started: its command, its environment, and what else its vendor wants of
    the start.
    """

    command: list[str]
    environment: dict[str, str]
    launch: Launch
    request: Request


class Launcher:
    """One vendor in one conversation. `facts` are what the frontend may change in the middle of it.

    `known` is the stored session that goes on. `refusal` is why no turn can begin: the first
    `start` raises it. `played` gives the vendors that were asked before, where a recording is
    played. `dry`: it starts nothing, so neither a log nor a recording is begun for it.
    """

    dry = False
    # no program is asked for its version or its help: what it answered before counts
    remembers_only = False

    def __init__(
        self,
        setup: Setup,
        *,
        facts: "Facts",
        pen: "Callable[[], Pen]",
        known: "Session | None" = None,
    ) -> None:
        vendor, settings = setup.vendor, setup.settings
        self.setup = setup
        self.facts = facts
        self.timeouts = {
            name: settings.timeout(name, vendor.name, vendor.timeouts) for name in TIMEOUTS
        }
        self.standing = Standing(setup, known)
        self.refusal: ShimError | None = None
        self.forked_transcript = ""  # path of the transcript of the session that was forked
        self.played: Callable[[], tuple[Tried, ...]] | None = None
        # a child that was started before the loop, for its first message
        self.ahead: Started | None = None
        self.request = Request(setup.invocation, "")  # that the last child was started for
        self.report: ReportFile | None = None  # of the child that was started last
        self.relays: Relays | None = None  # what gives relays to the frontend's own MCP servers
        self._open_pen = pen
        facts.unkept.append(self.unkept)
        self.child_environment = child_environment(vendor, setup.own, setup.environment)
        self.program = Program(setup, self.child_environment)
        self._schema = AnswerSchema(setup)
        self.keep: Callable[..., str | None] = Keeper(setup, facts.rules.session_id)

    def another(
        self, vendor: Vendor, environment: Mapping[str, str], known: "Session | None" = None
    ) -> "Launcher":
        """What starts another vendor in the same conversation; no session of this one's goes on in
        it but `known`.
        """
        setup = self.setup._replace(vendor=vendor, environment=environment, flat=True)
        made = Launcher(setup, facts=self.facts, pen=lambda: self.pen, known=known)
        made.relays = self.relays
        return made

    # -- what holds for the whole conversation -----------------------------------------------------

    @property
    def vendor(self) -> Vendor:
        """Whose children are started."""
        return self.setup.vendor

    @property
    def recorder(self) -> "Recorder | None":
        return self.setup.recorder

    @property
    def end_grace(self) -> float:
        """The seconds that a child gets to go once its turn is done."""
        return self.setup.settings.end_grace

    @cached_property
    def pen(self) -> "Pen":
        """The pen of the conversation, opened when it is first asked for: a child is started
        without it.
        """
        return self._open_pen()

    @cached_property
    def turns(self) -> "Turns":
        """The turns of the vendor; a child is started without them."""
        from shim.conversation.drivers.turns import Turns

        parts = self.setup, self.facts, self.standing, self._schema, self.pen
        return Turns(*parts, keep=self.keep, environment=self.child_environment)

    # -- a child -----------------------------------------------------------------------------------

    def find(self) -> None:
        """Look for the program, once. VendorError when it is not there, FrontendError for a mistake
        in the settings.
        """
        self.program.find()

    @property
    def session(self) -> str:
        """The vendor's own id of the session that goes on, "" while it has none."""
        return self.standing.resume or ""

    def asked(self, prompt: str) -> str:
        """The prompt, with the request for JSON behind it where the answer is read here.

        Under a rule about reading, the prompt itself makes the vendor read nothing.
        System prompts stand before the first one for a child that has no other place for them; a
        command stays one.
        """
        standing = self.standing
        if (
            self.vendor.sessions.prefixes
            and standing.listens
            and not standing.prefixed
            and not prompt.startswith("/")
        ):
            standing.prefixed = True
            prompt = self._request(prompt).with_system_prompt()
        if any(rule.tool in ("Read", EVERYTHING) for rule in self.policy.narrowing):
            prompt = self.vendor.enforcement.plain(prompt)
        return self._schema.asked(prompt, listens=standing.listens)

    def start(self, prompt: str, *, listens: bool = False) -> Started:
        """Start a child, or give the one that runs ahead. VendorError or FrontendError when that
        cannot be.
        """
        if self.ahead is not None:
            ahead, self.ahead = self.ahead, None
            return ahead
        try:
            return self._start(self.plan(prompt, listens=listens))
        except BaseException:
            if self.report is not None:
                self.report.remove()
            if self.standing.mode_file:
                from shim.state.files import remove

                remove(self.standing.mode_file)
                with contextlib.suppress(OSError):  # other files of the session stay
                    os.rmdir(os.path.dirname(self.standing.mode_file))
                self.standing.mode_file = ""
            raise

    def plan(self, prompt: str, *, listens: bool = False) -> Plan:
        """The child that answers a prompt. VendorError or FrontendError where none can."""
        standing = self.standing
        standing.listens = listens
        if self.refusal is not None:
            raise self.refusal
        if self.setup.dialect.asks_by_line and self.facts.prompts:
            self.vendor.wait_for_answers()
        self.find()
        if standing.answered and not (standing.resume and self.vendor.abilities.resumes):
            raise FrontendError(
                f"{self.vendor.name} keeps no session, so it can answer only one message",
                hint="start a new conversation, or choose a vendor that can resume (`shim vendors`)",
            )
        self.vendor.mode_arguments(self.facts.mode)  # before a program is started for its version
        self.check_version()
        request = self._request(prompt)
        self._check(request)
        standing.asked, standing.mode = (
            self.vendor.enforcement.asks(request),
            request.permission_mode,
        )
        standing.narrowing = self.policy.narrowing
        request = self.program.probed(request)
        launch, setup = self.vendor.launch(request), self.setup
        added = (*setup.own.args, *extra_arguments(setup.environment))
        environment = launch_environment(self.child_environment, launch, setup.own)
        check_programs(self.vendor, request, environment, setup.cwd)
        return Plan(
            [*self.program.command, *launch.arguments, *added], environment, launch, request
        )

    def _start(self, plan: Plan) -> Started:
        setup, vendor = self.setup, self.vendor
        command, environment, launch, request = plan
        self.request = request
        if self.played is not None:
            self.standing.tried = self.played()
            self.facts.serving = self.facts.serving._replace(vendor=vendor.shown)
        feed = self.standing.listens or launch.pipe or bool(launch.stdin)
        strays.adopt()  # before the child can leave an orphan to somebody else
        process = spawn(command, environment, setup.cwd, feed=feed, files=launch.files)
        self.standing.started = True
        self.standing.told = request.invocation.model or self.standing.told
        setup.log("child started", vendor=vendor.name, program=command[0], arguments=len(command))
        if setup.log is not SILENT:
            from shim.core.secrets.redactor import redact_argv

            settings = {"cwd": setup.cwd, "mode": self.facts.mode, "stays": self.standing.listens}
            setup.log(
                "command",
                level="debug",
                argv=redact_argv(command),
                **settings,
                session=self.standing.resume,
            )
        track = (
            None
            if setup.recorder is None
            else setup.recorder.child(command, setup.cwd, vendor.shown)
        )
        tail = None
        if setup.settings.redaction() == "all":
            from shim.core.secrets.redactor import RedactedTail

            tail = RedactedTail()
        return Started(process, launch.stdin, tail, track, launch.files, vendor.exit.grace)

    def _request(self, prompt: str) -> Request:
        facts, standing, invocation = self.facts, self.standing, self.setup.invocation
        policy = self.policy
        # A session that goes on keeps the last model that it was told, with most vendors.
        back = facts.known_model if standing.told and standing.resume else None
        invocation = invocation.with_flags(
            model=facts.model or back,
            effort=facts.effort,
            fallback_model=told_all(invocation.fallback_model, self.setup.told),
            system_prompt=facts.system_prompt or invocation.system.system_prompt,
            append_system_prompt=facts.append_system_prompt
            or invocation.system.append_system_prompt,
        )
        return Request(
            servers=self._servers(),
            invocation=standing.name(invocation, self.vendor, facts.rules.session_id),
            prompt=prompt if standing.listens else self.asked(prompt),
            mode=self.vendor.mode_arguments(facts.mode),
            permission_mode=facts.mode,
            resume=standing.resume,
            trust=self.setup.own.trust,
            removed=self.setup.removed(policy),
            listens=standing.listens,
            policy=policy,
            judge=HOOK,
            session=facts.rules.session_id
            if invocation.session.session_id or standing.resume
            else "",
            transcript=facts.transcript,
            mode_file=self._mode_file(),
            environment={**self.child_environment, **self.setup.own.env},
            keep=self.keep,
            files=Files(self.report_folder(), self._attach if self._attaches else None),
            unheard=unheard(
                self.vendor,
                self.program.launcher,
                (self.setup.cwd, self.child_environment.get("HOME", "")),
            ),
        )

    @cached_property
    def attachments(self) -> "Attachments":
        """The files of the message that is answered."""
        from shim.state.attachments import Attachments

        environment = {**self.child_environment, **self.setup.own.env}
        return Attachments(self.vendor.surroundings.attachments, environment)

    @property
    def _attaches(self) -> bool:
        """Whether the vendor reads files of ours: not where it may be on another machine."""
        return bool(self.vendor.surroundings.attachments) and not self.program.launcher

    def _attach(self, data: str, suffix: str) -> str | None:
        return self.attachments.keep(data, suffix)

    def _servers(self) -> Servers:
        """The MCP servers that the vendor is told of; those of `initialize` came through stdin, for
        their secrets.
        """
        known, later = self.facts.given_servers, self.facts.later_servers
        private = {name: server for name, server in known.items() if name in later}
        return Servers(
            {name: known[name] for name in known if name not in later},
            {**private, **self._relays()},
        )

    def _relays(self) -> "Mapping[str, Mapping[str, Any]]":
        """What the vendor starts to reach the MCP servers of the frontend's process, where it can
        reach them.
        """
        facts, names = self.facts, self.facts.servers.names
        if not names or self.relays is None or not self.vendor.abilities.servers:
            return {}
        try:
            if not self.vendor.abilities.commands:
                raise OSError(f"{self.vendor.name} takes no MCP server that is a command")
            if self.program.launcher:
                raise OSError(
                    f"{self.vendor.name} is started by {self.program.launcher[0]}, maybe on another machine"
                )
            relays, facts.unreachable = self.relays.entries(names), ""
        except OSError as error:
            relays, facts.unreachable = {}, str(error)
            tell(f"no effect: the MCP servers of type sdk ({', '.join(names)}): {error}\n")
        return relays

    def _mode_file(self) -> str:
        """The file that tells our hook the permission mode, if a hook of ours may need it."""
        standing = self.standing
        if standing.mode_file:
            self.tell_mode()
        elif standing.changes and self.vendor.enforcement.hooked:
            standing.mode_file = self.keep(self.facts.mode, ".mode") or ""
        return standing.mode_file

    def tell_mode(self) -> None:
        """Tell our hook the permission mode of now. A hook that finds no mode refuses every call."""
        path = self.standing.mode_file
        if not path:
            return
        from shim.state.files import remove, replace, write_all

        try:
            replace(path, lambda file: write_all(file, self.facts.mode.encode()))
        except OSError:
            remove(path)

    @property
    def policy(self) -> "Policy":
        """The rules, with those that a person gave in this conversation."""
        return self.setup.policy() if self.facts.policy is None else self.facts.policy

    def check_version(self) -> None:
        """Check the version of the installed program, which may have been updated since the last
        child.
        """
        standing, facts = self.standing, self.facts
        known, standing.version = standing.version, self.program.check_version()
        distrust = standing.version.distrust
        if distrust:
            modes = list_unpromised_modes(tuple(self.vendor.modes), prompts=facts.prompts)
            facts.serving = facts.serving._replace(unattended=True, modes=modes)
        if distrust and distrust != known.distrust and not self.dry:
            tell(f"{printable(distrust)}; it may run tools without asking (unattended)\n")

    def _check(self, request: Request) -> None:
        """ModeError for rules that the vendor would not keep before a call runs."""
        if self.standing.version.distrust:
            self.check_promises()
        if self.policy.narrows:
            from shim.core.adapter.binding import check

            check(self.vendor, self.policy, request, late=self.setup.own.late_denials)

    def check_promises(self, policy: "Policy | None" = None) -> None:
        """Raise ModeError if a turn needs a promise that does not hold for the installed version.

        `policy` replaces the current rules.
        """
        facts, check = self.facts, self.standing.version
        if not check.distrust:
            return
        hooks = facts.hooks is not None and facts.hooks.can_deny_calls
        promise = find_promise(
            self.vendor,
            self.policy if policy is None else policy,
            facts.mode,
            prompts=facts.prompts,
            hooks=hooks,
            late=self.setup.own.late_denials,
        )
        if promise:
            raise refuse_promise(self.vendor, promise, check)

    def report_broken_promise(self, tool: str) -> None:
        """Record that the installed version ran a denied call of `tool`, so that it is not trusted
        any more.
        """
        from shim.state.broken_promises import BrokenPromise, record_broken_promise

        standing = self.standing
        version = standing.version.version
        reason = describe_broken_promise(self.vendor, version, tool)
        if standing.version.distrust == reason:
            return
        record_broken_promise(
            BrokenPromise(self.vendor.name, version or "", tool), self.setup.environment
        )
        standing.version = withdraw_promises(standing.version, reason)
        tell(f"{printable(reason)}\n")

    def unkept(self, policy: "Policy") -> str:
        """Why the vendor would not keep other rules in this conversation; "" if it would."""
        try:
            self.check_promises(policy)
        except ModeError as error:
            return str(error)
        from shim.core.adapter.binding import unkept

        listens = self.standing.listens or self.facts.serving.asks
        return unkept(
            self.vendor,
            policy,
            self.request._replace(permission_mode=self.facts.mode, listens=listens),
        )

    def report_folder(self) -> str | None:
        """Where the child may write about its run: not where it may be on another machine."""
        if self.vendor.surroundings.report is None or self.program.launcher:
            return None
        from shim.process.usage_file import ReportFile

        self.report = ReportFile(
            self.vendor.surroundings.report,
            self.setup.environment,
            self.facts.rules.session_id,
            self.recorder,
        )
        return self.report.folder


def serving(vendor: Vendor, *, name: str = "", listens: bool) -> Serving:
    """What a frontend may know of a vendor. `listens`: one child of it stays for the conversation."""
    widest = Request(Invocation(), "", permission_mode=BYPASS, listens=listens)
    return Serving(
        name or vendor.shown,
        tuple(vendor.modes),
        asks=listens,
        always=listens and bool(vendor.enforcement.asks(widest)),
        unattended=vendor.unattended,
        takes_effort=vendor.abilities.takes_effort,
        asks_all=bool(vendor.program.plays) or vendor.enforcement.own,
        servers=vendor.abilities.servers,
        auto_mode=vendor.abilities.auto_mode and "auto" in vendor.modes,
    )
