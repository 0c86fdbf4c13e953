"""The drop-in `claude`: an invocation becomes a vendor's child, and the child's words become Claude's.

The child is started before anyio is imported: it gets going while we do.
"""

import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence

from shim import argv, config
from shim.account import printable
from shim.argv import Invocation
from shim.config import Settings
from shim.environment import DEPTH_LIMIT, child_environment, depth
from shim.errors import FrontendError, ShimError, VendorError
from shim.events import CLAUDE_VERSION, TERMINATORS, ClaudePen
from shim.ids import parse_uuid, vendor_id
from shim.policy import Policy, permission_mode, split_rule
from shim.probe import Probe
from shim.programs import find_program, found_on_path
from shim.prompt import read_prompt
from shim.terms import Terms
from shim.translate import fresh_identity, write_all
from shim.translation import Translation
from shim.translator import Translator
from shim.vendor import Launch, Request
from shim.vendors import VENDORS, find

NOT_FOUND_STATUS = 127  # with text output only; frontends that read JSON get a result and 1 (surface page)


def main(arguments: Sequence[str], installed: Mapping[str, str]) -> int:
    """Run `claude ARGUMENTS`; `installed` is what `shim install` baked in. The exit status."""
    pending: list[int] = []
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, lambda caught, _: pending.append(caught))
    try:
        invocation = argv.parse(arguments)
    except FrontendError as error:
        complain(error)
        return 1
    if invocation.version:
        write_all(1, f"{CLAUDE_VERSION} (Claude Code)\n".encode())
        return 0
    if invocation.help or invocation.subcommand:
        from shim.subcommands import answer

        return answer(invocation)
    try:
        return Start(invocation, installed).run(pending)
    except ShimError as error:
        complain(error)
        return refuse(invocation, error)


def complain(error: ShimError) -> None:
    """A sentence and a hint, on stderr."""
    hint = f"\nhint: {error.hint}" if error.hint else ""
    write_all(2, printable(f"{error}{hint}\n").encode())


def refuse(invocation: Invocation, error: ShimError) -> int:
    """A turn that cannot start still ends in a result that says why, where the output format has one."""
    if invocation.output_format == "text":
        return NOT_FOUND_STATUS if isinstance(error, VendorError) else 1
    fresh, identity = fresh_identity()
    terms = Terms(
        vendor=error.vendor or "none",
        fresh_id=fresh,
        session_id=invocation.session_id or parse_uuid(invocation.resume or ""),
        model=invocation.model,
        cwd=os.getcwd(),
    )
    translation = Translation(Translator, terms, ClaudePen(identity, terminator=terminator(invocation, Settings())))
    translation.turn.failed(str(error), kind="not_found" if isinstance(error, VendorError) else "refused", api=False)
    lines = translation.close(None)
    if invocation.output_format == "json":
        array = b"[" + lines.rstrip(b"\n").replace(b"\n", b",") + b"]"
        lines = array if invocation.verbose else translation.pen.last_result
    try:
        write_all(1, lines)
    except OSError:
        pass
    return 1


def terminator(invocation: Invocation, settings: Settings) -> bytes:
    """The bytes behind a result (surface page, Terminator; contract S16b)."""
    if invocation.output_format != "stream-json":
        return b""
    if settings.terminator != "auto":
        return TERMINATORS[settings.terminator]
    sdk = os.environ.get("CLAUDE_CODE_ENTRYPOINT", "").startswith("sdk-")
    wanted = invocation.print_mode and invocation.input_format == "text" and not sdk
    return TERMINATORS["message_stop" if wanted else "none"]


class Start:
    """Everything that is decided before the loop runs."""

    def __init__(self, invocation: Invocation, installed: Mapping[str, str]) -> None:
        self.environment = os.environ
        self.cwd = os.getcwd()
        self.settings = config.load(invocation, self.environment)
        if invocation.input_format == "stream-json":
            raise FrontendError("--input-format=stream-json is not supported yet", hint="pass the prompt as text")
        name, model = self._vendor_name(invocation, installed)
        self.vendor = find(name)
        self.invocation = checked(invocation._replace(model=model))
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
        named = invocation.shim_vendor or routed or next(iter(self.settings.vendor), None) or installed.get("vendor")
        if named:
            return named, model
        found = found_on_path({name: find(name) for name in VENDORS}, self.environment, self.cwd)
        listed = ", ".join(f"{name} ({path})" for name, path in found.items()) or "none of those it knows"
        raise FrontendError(
            "no vendor was chosen",
            hint=f"set SHIM_VENDOR, `vendor` in {config.config_directory(self.environment)}/config.toml, "
            f"or --shim-vendor; found on PATH: {listed}",
        )

    def run(self, pending: list[int]) -> int:
        """Start the child, then the loop."""
        try:
            return self._run(pending)
        except ShimError as error:
            error.vendor = self.vendor.name
            raise

    def _run(self, pending: list[int]) -> int:
        mode_arguments = self.vendor.mode_arguments(self.mode)
        if depth(self.environment) >= DEPTH_LIMIT:
            raise FrontendError(f"the shim was started inside itself {DEPTH_LIMIT} times", hint="check SHIM_VENDOR")
        prompt = read_prompt(self.invocation)
        own = self.settings.of(self.vendor.name)
        environment = child_environment(self.vendor, own, self.environment)
        program = self._program()
        request = Request(
            invocation=self.invocation,
            prompt=prompt,
            mode=mode_arguments,
            trust=own.trust,
            removed=self._removed(),
        )
        request = self._probed(request, [*own.launcher, program[0]], environment)
        launch = self.vendor.launch(request)
        extra = self.environment.get("SHIM_ARGS")
        command = [*own.launcher, *program, *launch.arguments, *own.args, *(_split(extra) if extra else ())]
        return self._loop(command, environment | dict(launch.environment) | dict(own.env), launch, pending)

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
        rules = map(split_rule, (*self.invocation.disallowed_tools, *self.settings.deny))
        return tuple(name for name, specifier in rules if specifier is None)

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
            session_id=invocation.session_id or resumed,
            model=invocation.model,
            cwd=self.cwd,
            tools=vendor.available(Request(invocation, "", self.vendor.modes[self.mode], removed=self._removed())),
            mode=self.mode,
            unattended=vendor.unattended,
            max_turns=None if vendor.limits_turns else invocation.max_turns,
            policy=self._policy() or None,
            clean_exits=vendor.clean_exits,
            clock=lambda: int((time.monotonic() - began) * 1000),
        )

    def _loop(self, command: list[str], environment: Mapping[str, str], launch: Launch, pending: list[int]) -> int:
        from shim import child as children

        process = children.spawn(command, environment, self.cwd, feed=bool(launch.stdin))
        fresh, identity = fresh_identity()
        pen = ClaudePen(
            identity, partial=self.invocation.partial, terminator=terminator(self.invocation, self.settings)
        )
        translation = Translation(self.vendor.translator, self._terms(fresh), pen)
        import anyio

        from shim.session import Session
        from shim.sinks import Output, Stdout

        output = Output(self.invocation.output_format, verbose=self.invocation.verbose, stdout=Stdout())

        async def turn() -> int:
            child = children.Child(process, launch.stdin)
            session = Session(
                translation, child, output, interrupt=self.vendor.interrupt, end_grace=self.settings.end_grace
            )
            return await session.run(pending)

        return anyio.run(turn)


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
