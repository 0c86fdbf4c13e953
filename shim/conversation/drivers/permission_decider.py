"""Decides about the permission requests of a persistent child: by hooks, by rules, or by asking the
frontend.
"""

import contextlib
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING

import anyio
from anyio.abc import TaskGroup

from shim.conversation.drivers.call_decisions import ToolCallDecisions
from shim.core.claude.control import ControlSession
from shim.core.claude.hooks.callbacks import HOOK_TIMEOUT_S, HookEvent
from shim.core.claude.permissions import PermissionDecision, PermissionRequest
from shim.core.policy import PRE_TOOL_EVENT
from shim.io.stdout import FrontendDisconnectedError, FrontendOutput

if TYPE_CHECKING:
    from shim.conversation.drivers.driver import ChildDriver
    from shim.conversation.drivers.event_hook_runner import EventHookRunner
    from shim.core.claude.hooks.commands import HookCommandCall


class PermissionDecider:
    """Decides the permission requests of a driver's child, and limits how long hooks and prompts may
    take. The control session stores the undecided requests. `send_decision` of the driver sends a
    decision to the vendor.

    `call_decisions` are decisions about calls that the vendor has not made yet, and the calls of
    the frontend's own tools that wait for a decision.
    """

    def __init__(
        self,
        driver: "ChildDriver",
        send_decision: Callable[[PermissionRequest, PermissionDecision], Awaitable[None]],
        output: FrontendOutput,
        control: ControlSession,
        tasks: TaskGroup,
        hook_commands: "EventHookRunner | None",
    ) -> None:
        self.call_decisions = ToolCallDecisions()
        self._driver = driver
        self._send_decision = send_decision
        self._launcher = driver.launcher
        self._output = output
        self._control = control
        self._tasks = tasks
        self._hook_commands = hook_commands
        # The scopes of running hook commands and of open prompts, by the vendor's request id.
        self._hook_scopes: dict[str, anyio.CancelScope] = {}
        self._prompt_scopes: dict[str, anyio.CancelScope] = {}

    async def decide(self, request: PermissionRequest) -> None:
        """Decide a permission request from the vendor, now or later."""
        has_hook_commands = bool(self._launcher.policy.hooks)
        decision = self._find_early_decision(request)
        if decision is None:
            decision = self._control.decide_permission(request, has_hook_commands=has_hook_commands)
        if decision is None and has_hook_commands:
            self._start_task(self._run_hooks, request)
        else:
            await self._write_prompt_or_send_decision(request, decision)

    def _find_early_decision(self, request: PermissionRequest) -> PermissionDecision | None:
        """Return the decision about a request for which nothing is asked, or None.

        The vendor may repeat a call with arguments that were already allowed. A request without
        arguments is approved if `decide_tool_call` of the driver will make the real decision.
        """
        if request.refusal:
            return None
        decision = self.call_decisions.take_decision(request.tool, request.tool_input)
        if decision is not None:
            return decision
        state = self._launcher.session_state
        if request.vendor_input or not state.receives_calls_of(request.tool):
            return None
        if self.call_decisions.is_pending(request.request_id):
            return None
        if state.evaluate_tool_call(request.tool, {}).outcome == "ask":
            return PermissionDecision(True)
        return None

    def _start_task(self, work: Callable[..., Awaitable[None]], *args: object) -> None:
        """Start a task that ends if the frontend disconnects, which the turn also detects."""

        async def run_task() -> None:
            with contextlib.suppress(FrontendDisconnectedError):
                await work(*args)

        self._tasks.start_soon(run_task)

    async def _write_prompt_or_send_decision(
        self, request: PermissionRequest, decision: PermissionDecision | None
    ) -> None:
        """Write the permission prompt to the frontend, or send the decision to the vendor.

        `decision` is None while hooks or the frontend still have to decide.
        """
        await self._output.write_lines(self._control.take_output())
        waits_for_hooks = self._control.is_awaiting_hook_decisions(request)
        has_prompt = decision is None and not waits_for_hooks
        self._launcher.context.log("asked", level="debug", tool=request.tool, frontend=has_prompt)
        self.start_prompt_tasks()
        if decision is not None:
            await self._send_decision(request, decision)
        elif waits_for_hooks:
            self._start_task(self._skip_slow_hooks, request)

    # -- hooks -------------------------------------------------------------------------------------

    async def _run_hooks(self, request: PermissionRequest) -> None:
        """Run the hook commands from Claude's settings files for a tool call. If the permission
        request is still open, continue with the decision.
        """
        from shim.conversation.drivers.hook_runner import run_hooks

        launcher = self._launcher
        call = HookEvent(PRE_TOOL_EVENT, request.call_id, request.tool, request.tool_input)
        with anyio.CancelScope() as scope:
            self._hook_scopes[request.request_id] = scope
            hook_decision = await run_hooks(
                launcher.policy,
                call,
                self._control.hooks.build_context(),
                launcher.child_environment,
                partial(self._control.hooks.accept_result_before_call, call),
            )
        if scope.cancelled_caught:
            return
        self._hook_scopes.pop(request.request_id, None)
        is_open, decision = self._control.apply_hook_decision(request, hook_decision)
        if is_open:
            await self._write_prompt_or_send_decision(request, decision)

    async def _skip_slow_hooks(self, request: PermissionRequest) -> None:
        """Continue a permission request without the hooks that did not answer in time. The commands
        of PermissionRequest hooks have their own timeout.
        """
        await anyio.sleep(HOOK_TIMEOUT_S)
        while self._control.hooks.is_running_command(request.call_id):
            await anyio.sleep(HOOK_TIMEOUT_S)
        if self._control.is_awaiting_hook_decisions(request):
            decision = self._control.decide_permission_without_hooks(request)
            await self._write_prompt_or_send_decision(request, decision)

    async def _run_permission_hook(self, call: "HookCommandCall") -> None:
        """Run a command of a PermissionRequest hook, and execute its decision."""
        assert self._hook_commands is not None
        for action in await self._hook_commands.run_commands((call,)):
            await self._driver.execute_action(action)

    # -- the frontend's prompts --------------------------------------------------------------------

    def start_prompt_tasks(self) -> None:
        """Start the timeouts of new prompts, and the commands of PermissionRequest hooks, which run
        while a person can answer the prompt.
        """
        for request in self._control.take_requests_with_new_prompt():
            self._start_task(self._expire_prompt, request)
        for call in self._control.hooks.take_permission_calls():
            self._start_task(self._run_permission_hook, call)

    async def _expire_prompt(self, request: PermissionRequest) -> None:
        """Deny a permission request that the frontend does not answer in time."""
        timeout_s = min(
            self._control.prompt_timeout_s, self._launcher.timeouts["permission_timeout"]
        )
        with anyio.CancelScope() as scope:
            self._prompt_scopes[request.request_id] = scope
            await anyio.sleep(timeout_s)
        if scope.cancelled_caught:
            return
        self._prompt_scopes.pop(request.request_id, None)
        decision = self._control.expire_prompt(request)
        if decision is not None:
            await self._output.write_lines(self._control.take_output())
            await self._send_decision(request, decision)

    async def withdraw_request(self, request_id: str) -> PermissionRequest | None:
        """Cancel the prompt and the waits of a request that the vendor has withdrawn. Return the
        request, or None if it is already decided.
        """
        request = self._control.withdraw_request(request_id)
        if request is not None:
            self.stop_prompt_timeout(request)
            await self._output.write_lines(self._control.take_output())
        return request

    def stop_prompt_timeout(self, request: PermissionRequest) -> None:
        """Stop the timeout of a prompt, because the request is decided or withdrawn."""
        scope = self._prompt_scopes.pop(request.request_id, None)
        if scope is not None:
            scope.cancel()

    def cancel_waits(self) -> None:
        """Stop waiting for hooks and for the frontend's answers."""
        for scopes in (self._hook_scopes, self._prompt_scopes):
            for scope in scopes.values():
                scope.cancel()
            scopes.clear()
        self.call_decisions.finish_turn()
