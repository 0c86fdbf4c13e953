"""Checks the conformance of any claude-compatible command: runs it as frontends do, and applies the
rules of the contract to its output.

The command gets the user's environment with an unchanged HOME, and runs in temporary folders. At
most MAX_RUNS processes are started, and at most MAX_PARALLEL_RUNS of them run at the same time.
"""

import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence

import anyio

from shim.commands.conform import cli_rules as both_doors
from shim.commands.conform import control_rules, partial_rules, session_rules, stream_rules
from shim.commands.conform.observations import (
    BOTH,
    ConformanceRule,
    ConformanceRuleResult,
    ObservedCommandRuns,
    evaluate_conformance_rule,
)
from shim.commands.conform.process import ClaudeProcess, CommandRun, run_command_with_script
from shim.commands.conform.scenarios import (
    SCENARIOS,
    ConformanceOptions,
    Frontend,
    Scenario,
    Script,
    run_version_help_and_auth_commands,
)
from shim.core.errors import CommandUsageError, VendorError

MAX_RUNS = 48  # more runs than all scenarios need; the limit stops a faulty scenario
MAX_PARALLEL_RUNS = 4  # an agent may need a few hundred megabytes of memory
# Without this limit, checking a command that never answers would take an hour.
MAX_HUNG_RUNS = 3
DEFAULT_TIMEOUT_S = 60.0  # for a single answer, as in the SDKs

RULE_SETS = tuple(
    chapter.RULES
    for chapter in (both_doors, stream_rules, partial_rules, control_rules, session_rules)
)
RULES: tuple[ConformanceRule, ...] = tuple(
    sorted(
        (rule for book in RULE_SETS for rule in book.rules),
        key=lambda rule: (
            "PSCRF1".index(rule.id[0]),
            int("0" + "".join(filter(str.isdigit, rule.id[1:]))),
            rule.id,
        ),
    )
)

# Variables by which a frontend identifies itself.
# They are removed, because an agent that runs this check may have set them.
REMOVED_VARIABLES = (
    "CLAUDECODE",
    "CLAUDE_CODE_ENTRYPOINT",
    "CLAUDE_AGENT_SDK_VERSION",
    "CLAUDE_CODE_SDK_READS_SESSION_STATE",
)
SDK_VARIABLES = {"CLAUDE_CODE_ENTRYPOINT": "sdk-py", "CLAUDE_CODE_SDK_READS_SESSION_STATE": "1"}


def run_and_evaluate_conformance_rules(
    command: Sequence[str],
    environment: Mapping[str, str],
    cwd: str,
    options: ConformanceOptions,
    timeout_s: float = DEFAULT_TIMEOUT_S,
) -> list[ConformanceRuleResult]:
    """Run the command and return the result of every rule. Raise ShimError if the command cannot be
    started.
    """
    observations = anyio.run(
        _collect_observations,
        resolve_command_paths(command, environment, cwd),
        dict(environment),
        options,
        timeout_s,
    )
    return [
        evaluate_conformance_rule(rule, observations)
        for rule in RULES
        if options.drop_in or rule.scope == BOTH
    ]


def resolve_command_paths(
    command: Sequence[str], environment: Mapping[str, str], cwd: str
) -> list[str]:
    """Make the paths of the program and of file arguments absolute, so that the command can be
    started in another folder. Return the command.

    The program is looked up on PATH, as a shell does. Raise ShimError if the program is not found.
    """
    if not command:
        raise CommandUsageError(
            "the command to check is missing", hint="for example: `shim conform -- claude`"
        )
    program = (
        command[0]
        if os.sep in command[0]
        else shutil.which(command[0], path=environment.get("PATH"))
    )
    if program is None:
        raise VendorError(
            f"{command[0]} could not be started: it was not found on PATH",
            hint="install it, or use its path",
        )
    files = [
        os.path.join(cwd, argument) if os.path.isfile(os.path.join(cwd, argument)) else argument
        for argument in command[1:]
    ]
    return [os.path.join(cwd, program), *files]


class _RunPool:
    """Runs the command for all scenarios, with limits. The runs of a scenario share a folder."""

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        options: ConformanceOptions,
        timeout_s: float,
        root_folder: str,
    ) -> None:
        self.options = options
        self.observations = ObservedCommandRuns()
        self._command = command
        self._environment = environment
        self._timeout_s = timeout_s
        self._root_folder = root_folder
        self._run_limiter = anyio.CapacityLimiter(MAX_PARALLEL_RUNS)
        self._hung_count = 0

    async def play_scenario(self, scenario: Scenario) -> None:
        """Execute all runs of a scenario in a folder of its own."""
        await scenario(
            _PooledScenarioRunner(self, os.path.join(self._root_folder, scenario.__name__))
        )

    async def run_command(
        self, folder: str, run: CommandRun, script: Script, has_stdin: bool
    ) -> None:
        """Run the command once, unless a limit has been reached."""
        if self._hung_count >= MAX_HUNG_RUNS:
            self.observations.skip_reasons[run.name] = (
                f"not run: {self._hung_count} earlier runs hung"
            )
            return
        if len(self.observations.runs) >= MAX_RUNS:
            self.observations.skip_reasons[run.name] = (
                f"not run: the limit of {MAX_RUNS} runs was reached"
            )
            return
        async with self._run_limiter:
            self.observations.runs[run.name] = run
            os.makedirs(folder, exist_ok=True)
            environment = {
                name: value
                for name, value in self._environment.items()
                if name not in REMOVED_VARIABLES
            }
            environment |= {"PWD": folder} | (SDK_VARIABLES if run.frontend == "sdk" else {})
            await run_command_with_script(
                run,
                self._command,
                environment,
                folder,
                script,
                self._timeout_s,
                has_stdin=has_stdin,
            )
            if run.timed_out_on or run.is_flooded:
                self._hung_count += 1


class _PooledScenarioRunner:
    def __init__(self, pool: _RunPool, folder: str) -> None:
        self.options = pool.options
        self._pool = pool
        self._folder = folder

    async def run_command(
        self,
        name: str,
        frontend: Frontend,
        *argv: str,
        script: Script | None = None,
        has_stdin: bool = True,
    ) -> CommandRun:
        """Run the command once, if the run's frontend is selected."""
        run = CommandRun(name, frontend, argv)
        if self.options.is_frontend_enabled(frontend):
            await self._pool.run_command(self._folder, run, script or _close_stdin, has_stdin)
        else:
            self._pool.observations.skip_reasons[name] = "excluded by --frontend"
        return run


async def _close_stdin(claude_process: ClaudeProcess) -> None:
    claude_process.close_stdin()


async def _collect_observations(
    command: Sequence[str],
    environment: Mapping[str, str],
    options: ConformanceOptions,
    timeout_s: float,
) -> ObservedCommandRuns:
    with tempfile.TemporaryDirectory(prefix="shim-conform-", ignore_cleanup_errors=True) as folder:
        pool = _RunPool(command, environment, options, timeout_s, os.path.realpath(folder))
        await pool.play_scenario(run_version_help_and_auth_commands)
        async with anyio.create_task_group() as tasks:
            for scenario in SCENARIOS:
                tasks.start_soon(pool.play_scenario, scenario)
        return pool.observations
