"""Conformance of any claude-like command: real processes, held as frontends hold them, judged by
the contract.

The user's environment is passed on and HOME is not changed; the command works in temporary folders.
At most MOST_RUNS processes are started, AT_ONCE of them at a time, each bounded (process).
"""

import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence

import anyio

from shim.commands.conform import control, partial, sessions, stream
from shim.commands.conform import doors as both_doors
from shim.commands.conform.process import Run, Wire, hold
from shim.commands.conform.runs import CHAINS, Chain, Frontend, Options, Script, doors
from shim.commands.conform.seen import BOTH, Finding, Rule, Seen, judge
from shim.core.errors import FrontendError, VendorError

MOST_RUNS = 48  # more than all chains need; bounds a chain that goes wrong
AT_ONCE = 4  # an agent takes a few hundred megabytes, and mostly waits for its model
# hanging runs: with more of them, a command that never answers would keep us for an hour
GIVE_UP_AFTER = 3
PATIENCE = 60.0  # for one answer; the SDKs wait as long for theirs

BOOKS = tuple(chapter.BOOK for chapter in (both_doors, stream, partial, control, sessions))
RULES: tuple[Rule, ...] = tuple(
    sorted(
        (rule for book in BOOKS for rule in book.rules),
        key=lambda rule: (
            "PSCRF1".index(rule.id[0]),
            int("0" + "".join(filter(str.isdigit, rule.id[1:]))),
            rule.id,
        ),
    )
)

# Variables in which a frontend names itself. Those of an agent that runs us are removed.
OUTER = (
    "CLAUDECODE",
    "CLAUDE_CODE_ENTRYPOINT",
    "CLAUDE_AGENT_SDK_VERSION",
    "CLAUDE_CODE_SDK_READS_SESSION_STATE",
)
OF_AN_SDK = {"CLAUDE_CODE_ENTRYPOINT": "sdk-py", "CLAUDE_CODE_SDK_READS_SESSION_STATE": "1"}


def conform(
    command: Sequence[str],
    environment: Mapping[str, str],
    cwd: str,
    options: Options,
    patience: float = PATIENCE,
) -> list[Finding]:
    """Judge every rule. ShimError if the command cannot be started."""
    seen = anyio.run(_see, whole(command, environment, cwd), dict(environment), options, patience)
    return [judge(rule, seen) for rule in RULES if options.drop_in or rule.applies == BOTH]


def whole(command: Sequence[str], environment: Mapping[str, str], cwd: str) -> list[str]:
    """The command as it can be started from another folder: its program and its files by absolute
    paths.

    The user typed the program, so it is searched where a shell searches.
    """
    if not command:
        raise FrontendError("no command was given", hint="shim conform -- claude")
    program = (
        command[0]
        if os.sep in command[0]
        else shutil.which(command[0], path=environment.get("PATH"))
    )
    if program is None:
        raise VendorError(
            f"{command[0]} could not be started: there is no such program on PATH",
            hint="install it, or name it by its path",
        )
    files = [
        os.path.join(cwd, word) if os.path.isfile(os.path.join(cwd, word)) else word
        for word in command[1:]
    ]
    return [os.path.join(cwd, program), *files]


class _Bench:
    """Makes runs. The runs of a chain work in `folder`."""

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        options: Options,
        patience: float,
        folder: str,
    ) -> None:
        self.options = options
        self.seen = Seen()
        self._command = command
        self._environment = environment
        self._patience = patience
        self._root = folder
        self._places = anyio.CapacityLimiter(AT_ONCE)
        self._hung = 0

    async def play(self, chain: Chain) -> None:
        """Make the runs of a chain, in a folder of its own."""
        await chain(_Chained(self, os.path.join(self._root, chain.__name__)))

    async def hold(self, folder: str, run: Run, script: Script, feed: bool) -> None:
        """Make one run, unless the bound is reached."""
        if self._hung >= GIVE_UP_AFTER:
            self.seen.left_out[run.name] = f"not tried: {self._hung} runs before it hung"
            return
        if len(self.seen.runs) >= MOST_RUNS:
            self.seen.left_out[run.name] = f"not tried: {MOST_RUNS} runs were enough"
            return
        async with self._places:
            self.seen.runs[run.name] = run
            os.makedirs(folder, exist_ok=True)
            environment = {
                name: value for name, value in self._environment.items() if name not in OUTER
            }
            environment |= {"PWD": folder} | (OF_AN_SDK if run.frontend == "sdk" else {})
            await hold(run, self._command, environment, folder, script, self._patience, feed=feed)
            self._hung += bool(run.stuck or run.flooded)


class _Chained:
    def __init__(self, bench: _Bench, folder: str) -> None:
        self.options = bench.options
        self._bench = bench
        self._folder = folder

    async def hold(
        self,
        name: str,
        frontend: Frontend,
        *argv: str,
        script: Script | None = None,
        feed: bool = True,
    ) -> Run:
        """Make a run, if its kind is wanted."""
        run = Run(name, frontend, argv)
        if self.options.wants(frontend):
            await self._bench.hold(self._folder, run, script or _nothing, feed)
        else:
            self._bench.seen.left_out[name] = "left out by --frontend"
        return run


async def _nothing(wire: Wire) -> None:
    wire.close()


async def _see(
    command: Sequence[str], environment: Mapping[str, str], options: Options, patience: float
) -> Seen:
    with tempfile.TemporaryDirectory(prefix="shim-conform-", ignore_cleanup_errors=True) as folder:
        bench = _Bench(command, environment, options, patience, os.path.realpath(folder))
        await bench.play(doors)
        async with anyio.create_task_group() as tasks:
            for chain in CHAINS:
                tasks.start_soon(bench.play, chain)
        return bench.seen
