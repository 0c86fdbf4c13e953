"""Runs the subagents that a frontend defines. Each run is a process of the drop-in with the same
vendor, the agent's prompt and the session's rules.
"""

import os
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence

import anyio
from anyio.abc import TaskGroup

from shim.conversation.drivers.driver import ConversationDriver
from shim.conversation.drivers.hook_runner import run_hook_command
from shim.conversation.drivers.launcher import ChildLauncher
from shim.core.claude.agent_run import AgentRun, AgentSession, build_agent_args
from shim.core.claude.agent_tool import AgentToolCall
from shim.core.claude.hooks.commands import HookCommandCall, HookCommandResult
from shim.core.claude.permissions import TURN_STOPPED_TEXT
from shim.core.errors import ShimError
from shim.core.policy.policy import SUBAGENT_TOOL
from shim.core.reading import MAX_LINE_BYTES
from shim.core.reading.lines import LineSplitter
from shim.io.ids import create_uuid
from shim.io.mcp.agent_server import AgentResult
from shim.process.child import Child
from shim.process.environment import (
    DEPTH_VARIABLE,
    SESSION_STATE_VARIABLES,
    parse_shim_depth,
)
from shim.process.spawn import ChildSpawnResult, kill_child, spawn_child
from shim.state.claude_agents import AGENT_RUN_VARIABLE

RECORD_VARIABLE = "SHIM_RECORD"
DROP_IN_ARGV = (sys.executable, "-I", "-m", "shim", "claude")
STDERR_TIMEOUT_S = 0.2  # for the remaining stderr, because another process may hold the pipe open
FLUSH_TIMEOUT_S = 1.0  # for cancelling prompts; the frontend may have stopped reading
MAX_STDERR_CHARS = 500  # of a failed run's stderr, in the result for the model


class AgentRunner:
    """Runs subagents in one conversation.

    `flush` writes queued control requests to the frontend.
    """

    def __init__(
        self,
        launcher: ChildLauncher,
        driver: ConversationDriver,
        flush: Callable[[], Awaitable[None]],
    ) -> None:
        self._launcher = launcher
        self._driver = driver
        self._flush = flush
        self._requests = launcher.session_state.open_agent_requests()

    async def run_agent(self, call: AgentToolCall) -> AgentResult:
        """Run a subagent until its end. A call that a rule or the frontend denies is not run."""
        driver = self._driver.active_child_driver
        decision = await driver.decide_tool_call(SUBAGENT_TOOL, call.tool_input)
        if not decision.allow:
            return AgentResult(decision.message or TURN_STOPPED_TEXT, is_error=True)
        session = self._build_session()
        changes = ChangeSignal()
        run = AgentRun(
            create_uuid(), call.agent.name, call.prompt, session, lambda: changes.event.set()
        )
        argv = [*DROP_IN_ARGV, *build_agent_args(call.agent, session)]
        context = self._launcher.context
        try:
            process = spawn_child(argv, self._build_environment(), context.cwd, opens_stdin=True)
        except ShimError as error:
            return AgentResult(f"The agent was not started: {error}", is_error=True)
        child = Child(ChildSpawnResult(process, b""))
        self._requests.runs.append(run)
        try:
            await self._drive_run(run, child, call, changes)
        except BaseException:
            kill_child(process)
            raise
        finally:
            self._requests.remove_run(run)
            with anyio.CancelScope(shield=True):
                await child.shut_down_idle_process()
            child.close()
            with anyio.move_on_after(FLUSH_TIMEOUT_S, shield=True):
                await self._flush()
        self._driver.active_child_driver.add_agent_usage(run.usage, run.cost_usd)
        return _build_result(run, child)

    def _build_session(self) -> AgentSession:
        state = self._launcher.session_state
        names = state.configured_servers.keys()
        return AgentSession(
            self._launcher.context.invocation,
            self._launcher.adapter.name,
            state.mode,
            state.requested_model,
            state.effort,
            state.answers_prompts,
            state.policy,
            state.raw_hooks,
            state.sdk_servers.names,
            (*names, *state.sdk_servers.names),
            {name: state.configured_servers[name] for name in state.initialize_server_names},
            state.options.session_id,
            state.options.find_transcript(),
            state.prompt_id,
            state.options.event_hooks,
        )

    def _build_environment(self) -> Mapping[str, str]:
        environment = {
            name: value
            for name, value in self._launcher.context.environment.items()
            if name not in SESSION_STATE_VARIABLES
        }
        # A second run cannot be recorded into the same file.
        if not os.path.isdir(environment.get(RECORD_VARIABLE, "")):
            environment.pop(RECORD_VARIABLE, None)
        depth = str(parse_shim_depth(environment) + 1)
        return environment | {DEPTH_VARIABLE: depth, AGENT_RUN_VARIABLE: "1"}

    async def _drive_run(
        self, run: AgentRun, child: Child, call: AgentToolCall, changes: "ChangeSignal"
    ) -> None:
        """Exchange lines with the run until its result, its exit or the end of the turn."""
        run.start()
        await self._driver.active_child_driver.write_agent_prompt(call.tool_input)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(child.drain_stderr)
            tasks.start_soon(self._read_run, run, child, call, tasks)
            while not run.has_ended:
                await child.write_stdin(run.take_lines())
                await changes.wait()
            tasks.cancel_scope.cancel()

    async def _read_run(
        self, run: AgentRun, child: Child, call: AgentToolCall, tasks: TaskGroup
    ) -> None:
        splitter = LineSplitter(MAX_LINE_BYTES)
        while chunk := await child.read_stdout():
            await self._accept_lines(run, call, splitter.feed(chunk))
            for hook_call in run.take_hook_calls():
                tasks.start_soon(self._run_hook_command, run, hook_call)
        with anyio.move_on_after(STDERR_TIMEOUT_S):
            await child.stderr_drained.wait()
        tasks.cancel_scope.cancel()

    async def _run_hook_command(self, run: AgentRun, call: HookCommandCall) -> None:
        """Run a hook command of the session's settings, and pass its answer to the run. The run
        does not wait for a command in the background.
        """
        launcher = self._launcher
        if call.hook.runs_in_background:
            run.accept_hook_result(call, HookCommandResult(0))
        result = await run_hook_command(
            call.hook, call.stdin, launcher.child_environment, launcher.context.cwd
        )
        if not call.hook.runs_in_background:
            run.accept_hook_result(call, result)

    async def _accept_lines(
        self, run: AgentRun, call: AgentToolCall, lines: Sequence[bytes]
    ) -> None:
        blocks = [block for line in lines for block in run.receive_line(line, self._requests)]
        driver = self._driver.active_child_driver
        await driver.write_agent_blocks(call.tool_input, blocks)
        await self._flush()


class ChangeSignal:
    """Wakes the task that waits for a change. Whoever makes a change sets `event`."""

    def __init__(self) -> None:
        self.event = anyio.Event()

    async def wait(self) -> None:
        """Wait for a change."""
        await self.event.wait()
        self.event = anyio.Event()


def _build_result(run: AgentRun, child: Child) -> AgentResult:
    """Return the run's last message. If the run exited without a result, append the end of its
    stderr.
    """
    text = run.result_text
    if not run.has_ended:
        stderr = child.stderr_tail.to_text().strip()
        text = f"{text}\n{stderr[-MAX_STDERR_CHARS:]}".strip()
    return AgentResult(text, run.is_error)
