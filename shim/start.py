"""From an invocation to a running child: everything that is decided before the loop runs.

The child is started before anyio is imported: it gets going while we do.
"""

import os
import subprocess
import sys
import time
from collections.abc import Mapping
from typing import Protocol

from shim import config, store
from shim.argv import Invocation
from shim.environment import DEPTH_LIMIT, child_environment, depth
from shim.errors import FrontendError, ShimError
from shim.events import TERMINATORS, ClaudePen
from shim.ids import parse_uuid, vendor_id
from shim.log import open_log
from shim.policy import Policy, permission_mode
from shim.probe import Probe
from shim.programs import find_program, found_on_path
from shim.prompt import read_file_option, read_prompt
from shim.terms import Terms
from shim.translate import fresh_identity
from shim.translation import Translation
from shim.vendor import Launch, Request
from shim.vendors import VENDORS, find


class Pending(Protocol):
    """The signals that came while the child was starting."""

    pending: list[int]
    started: bool


def terminator(invocation: Invocation, setting: str) -> str:
    """Which terminator stands behind a result (surface page, Terminator; contract S16b)."""
    if invocation.output_format != "stream-json":
        return "none"
    if setting != "auto":
        return setting
    sdk = os.environ.get("CLAUDE_CODE_ENTRYPOINT", "").startswith("sdk-")
    return "message_stop" if invocation.print_mode and invocation.input_format == "text" and not sdk else "none"


def working_directory() -> str:
    """Where we are, "" when that was removed."""
    try:
        return os.getcwd()
    except OSError:
        return ""


class Start:
    """One turn, from its invocation."""

    def __init__(self, invocation: Invocation, installed: Mapping[str, str]) -> None:
        self.environment = os.environ
        self.cwd = working_directory()
        if not self.cwd:
            raise FrontendError("the working directory does not exist any more", hint="start from another one")
        self.settings = config.load(invocation, self.environment)
        self.log = open_log(self.settings.log)
        if self.settings.dialect != "claude":
            raise FrontendError(f"the dialect {self.settings.dialect} is not supported yet", hint="leave it at claude")
        if invocation.input_format == "stream-json":
            raise FrontendError("--input-format=stream-json is not supported yet", hint="pass the prompt as text")
        self.resumed = store.look_up(invocation.resume or "", self.environment)
        name, model = self._vendor_name(invocation, installed)
        self.vendor = find(name)
        self.invocation = checked(read_file_option(invocation._replace(model=model)))
        self.mode = permission_mode(invocation.permission_mode, skip=invocation.skip_permissions)

    def _vendor_name(self, invocation: Invocation, installed: Mapping[str, str]) -> tuple[str, str | None]:
        """Who runs the turn, first that says (surface page), and the model without its routing prefix."""
        model = invocation.model
        prefix, colon, rest = (model or "").partition(":")
        routed = None
        if colon and prefix == "":
            model = rest
        elif colon and prefix in VENDORS:
            routed, model = prefix, rest or None
        sayings = (
            invocation.shim_vendor,
            self.resumed.vendor if self.resumed else None,
            routed,
            self.environment.get("SHIM_VENDOR"),
            installed.get("vendor"),
            next(iter(self.settings.vendor), None),
        )
        named = next((name for name in sayings if name), None)
        if named:
            return named, model
        found = found_on_path({name: find(name) for name in VENDORS}, self.environment, self.cwd)
        listed = ", ".join(f"{name} ({path})" for name, path in found.items()) or "none of those it knows"
        raise FrontendError(
            "no vendor was chosen",
            hint=f"set SHIM_VENDOR, `vendor` in {config.config_directory(self.environment)}/config.toml, "
            f"or --shim-vendor; found on PATH: {listed}",
        )

    def run(self, signals: Pending) -> int:
        """Start the child, then the loop; the exit status."""
        try:
            return self._run(signals)
        except ShimError as error:
            error.vendor = self.vendor.name
            raise

    def _run(self, signals: Pending) -> int:
        mode_arguments = self.vendor.mode_arguments(self.mode)
        if depth(self.environment) >= DEPTH_LIMIT:
            raise FrontendError(f"the shim was started inside itself {DEPTH_LIMIT} times", hint="check SHIM_VENDOR")
        if self.resumed and self.resumed.vendor != self.vendor.name:
            raise FrontendError(
                f"this session was made by {self.resumed.vendor} and cannot go on with {self.vendor.name}",
                hint="start a new session, or leave the choice of vendor to the session",
            )
        own = self.settings.of(self.vendor.name)
        environment = child_environment(self.vendor, own, self.environment)
        program = self._program()
        request = Request(
            invocation=self.invocation,
            prompt=read_prompt(self.invocation),
            mode=mode_arguments,
            resume=self.resumed.vendor_session if self.resumed else self.invocation.resume,
            trust=own.trust,
            removed=self._removed(),
        )
        request = self._probed(request, [*own.launcher, program[0]], environment)
        launch = self.vendor.launch(request)
        extra = self.environment.get("SHIM_ARGS")
        command = [*own.launcher, *program, *launch.arguments, *own.args, *(_split(extra) if extra else ())]
        return self._loop(command, environment | dict(launch.environment) | dict(own.env), launch, signals)

    def _program(self) -> list[str]:
        if self.vendor.bundled and not self.environment.get("SHIM_BIN"):
            return [sys.executable, "-I", "-m", self.vendor.bundled]
        return [find_program(self.vendor, self.settings.of(self.vendor.name), self.environment, self.cwd)]

    def _probed(self, request: Request, command: list[str], environment: Mapping[str, str]) -> Request:
        probe = Probe(command, self.environment, environment)
        variant = self.settings.of(self.vendor.name).variant
        if self.vendor.variants and variant not in ("auto", *self.vendor.variants):
            allowed = ", ".join(("auto", *self.vendor.variants))
            raise FrontendError(f"vendors.{self.vendor.name}.variant is {variant!r}, it must be one of {allowed}")
        if self.vendor.probe is not None and variant == "auto":
            variant = probe.variant(self.vendor.probe)
        return request._replace(variant=variant, knows=probe.knows)

    def _removed(self) -> tuple[str, ...]:
        """Claude's names of the tools that are denied as a whole."""
        return tuple(sorted(self._policy().denied))

    def _policy(self) -> Policy:
        return Policy(
            only=self.invocation.tools,
            denied=(*self.invocation.disallowed_tools, *self.settings.deny),
            hidden=self.settings.hide,
        )

    def _terms(self, fresh: str) -> Terms:
        invocation, vendor = self.invocation, self.vendor
        resumed = parse_uuid(invocation.resume or "") if not invocation.fork_session else None
        began = time.monotonic()
        return Terms(
            vendor=vendor.name,
            fresh_id=fresh,
            session_id=invocation.session_id or resumed or (fresh if invocation.fork_session else None),
            model=invocation.model,
            cwd=self.cwd,
            tools=vendor.available(Request(invocation, "", self.vendor.modes[self.mode], removed=self._removed())),
            mode=self.mode,
            unattended=vendor.unattended,
            max_turns=None if vendor.limits_turns else invocation.max_turns,
            policy=self._policy() or None,
            retracts=vendor.retracts,
            gate=vendor.gate,
            clean_exits=vendor.clean_exits,
            clock=lambda: int((time.monotonic() - began) * 1000),
        )

    def _loop(self, command: list[str], environment: Mapping[str, str], launch: Launch, signals: Pending) -> int:
        from shim import child as children

        signals.started = True
        process = children.spawn(command, environment, self.cwd, feed=bool(launch.stdin))
        try:
            return self._with_child(process, command, launch, signals)
        except BaseException:
            children.abandon(process)
            raise

    def _with_child(
        self, process: "subprocess.Popen[bytes]", command: list[str], launch: Launch, signals: Pending
    ) -> int:
        from shim import child as children

        self.log("child started", vendor=self.vendor.name, program=command[0], arguments=len(command))
        fresh, identity = fresh_identity()
        invocation = self.invocation
        ending = TERMINATORS[terminator(invocation, self.settings.terminator)]
        pen = ClaudePen(identity, partial=invocation.partial, terminator=ending)
        translation = Translation(self.vendor.translator, self._terms(fresh), pen)
        import anyio

        from shim.session import Session
        from shim.sinks import Output, Stdout

        output = Output(invocation.output_format, verbose=invocation.verbose, stdout=Stdout())

        async def turn() -> int:
            child = children.Child(process, launch.stdin)
            session = Session(
                translation, child, output, interrupt=self.vendor.interrupt, end_grace=self.settings.end_grace
            )
            return await session.run(signals.pending)

        status = anyio.run(turn)
        self.log("turn ended", status=status, cause=translation.turn.cause, account=translation.account.report())
        self._remember(translation)
        return status

    def _remember(self, translation: Translation) -> None:
        """What a later `--resume` needs to know. A real claude keeps its own sessions."""
        conversation, turn = translation.turn.conversation, translation.turn
        if self.vendor.passthrough or conversation.session_id is None or conversation.vendor_session is None:
            return
        created = self.resumed.created if self.resumed else 0.0
        session = store.Session(self.vendor.name, conversation.vendor_session, self.cwd, turn.model, created)
        store.remember(conversation.session_id, session, self.environment)


def checked(invocation: Invocation) -> Invocation:
    """The invocation, when nothing in it could be taken for a flag or a path by a vendor (threats: frontend)."""
    model, resume = invocation.model, invocation.resume
    if model and not _model_name(model):
        raise FrontendError(f"the model name {model[:60]!r} has characters that no model name has")
    if resume == "":
        raise FrontendError(
            "--resume needs a session id when the prompt is given", hint="use --resume ID or --continue"
        )
    if resume and vendor_id(resume) is None:
        raise FrontendError(f"the session id {resume[:60]!r} is neither a UUID nor an id of a vendor")
    for directory in invocation.add_dirs:
        if directory.startswith("-"):
            raise FrontendError(f"--add-dir {directory[:60]!r} is not a directory")
    return invocation


_MODEL = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._:/@+-[]=, ")
MODEL_CHARACTERS = 200


def _model_name(name: str) -> bool:
    return len(name) <= MODEL_CHARACTERS and name[0].isalnum() and _MODEL.issuperset(name)


def _split(text: str) -> list[str]:
    import shlex

    try:
        return shlex.split(text)
    except ValueError as error:
        raise FrontendError(f"SHIM_ARGS cannot be split as a shell would: {error}") from None
