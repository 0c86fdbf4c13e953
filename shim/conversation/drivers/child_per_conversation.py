"""A conversation with one child for all messages: they go through its stdin, and so do answers to
its questions.
"""

import contextlib
from collections.abc import Mapping
from typing import Any

import anyio
from anyio.abc import TaskGroup

from shim.conversation.drivers.launcher import Launcher
from shim.conversation.drivers.speaking import SpeakingDriver
from shim.core.adapter.commands import Ask, Command, Stage, TakeBack, TellChild
from shim.core.adapter.pump import Pump
from shim.core.claude.control import Control
from shim.core.claude.messages import Message
from shim.core.claude.permissions import CLOSED_STREAM, STOPPED, TURN_OVER, Decision, Permission
from shim.core.errors import ShimError
from shim.io.mcp.calls import DecidedCalls
from shim.io.stdout import FrontendGoneError, Output
from shim.process.child import Child

HOOK_SECONDS = 60.0  # for a frontend's hooks about a call, as the real one gives them
BEATS = 3  # questions for a sign of life within one heartbeat timeout: two answers may be lost
HOOKS, ANSWER = "hooks", "answer"  # what is waited for about a question
# that are skipped between two turns; what comes behind them is read as the next answer
LATE_CHUNKS = 256


class ChildPerConversation(SpeakingDriver):
    """A driver of one child for the whole conversation. A child that died is replaced, and its
    session goes on.
    """

    def __init__(
        self, launcher: Launcher, output: Output, control: Control, tasks: TaskGroup
    ) -> None:
        super().__init__(launcher, output, control, tasks)
        self._calls = DecidedCalls()
        self._serving = anyio.CancelScope()  # what is done for the child beside the turns
        # What is waited for about each question, by the vendor's own id: hooks that run, and the
        # frontend's answer.
        self._waits: dict[tuple[str, str], anyio.CancelScope] = {}

    async def turn(self, message: Message) -> None:
        """Say the message to the child, pump until its turn is over."""
        self._begin_turn()
        self._deadlines.begin()
        self._calls.end()
        if self._child is not None and (self._outdated or not self._speech.usable):
            await self._child.stop()
        if self._child is None or self._child.exit is not None or self.pump is None:
            if self._child is not None:
                await self._forget(self._child)
            try:
                child, pump = await self._begin(message)
            except Exception as error:
                await self._refuse(message, error)
                return
        else:
            try:  # a changed mode or rule may need a promise that does not hold for this version
                self.launcher.check_promises()
            except ShimError as error:
                await self._refuse(message, error)
                return
            child, pump = self._child, self.pump
            await self._skip_late(child, pump)
            pump.begin(self.launcher.turns.terms())
        self._listen(pump, message)
        # while the last child was being ended, or this one started
        if await self._end_interrupted(pump):
            await child.stop()
            await self._forget(child)
            return
        had_system_prompt = self.launcher.standing.prefixed
        await self._answer(child, pump, message)
        # the model may not have received the message and the system prompt in it
        if pump.turn.is_error:
            self.launcher.standing.prefixed = had_system_prompt
        self._put_back(self._untaken(pump))

    async def _answer(self, child: Child, pump: Pump, message: Message) -> None:
        """The turn of a message, from the prompt to the result."""
        self._speech.follow(self.launcher.session)
        prompt, fresh = self._worded(message), not self._heard
        over = await self._say(child, pump, prompt)
        silent = not (self._answering or self._interrupted or self._stalled or pump.decided)
        if silent and not (over or fresh):  # it was about to end when the message came
            await self._ended(child)  # it may only have closed its stdout
            await self._forget(child)
            if await self._end_interrupted(pump):
                return
            try:
                child, _ = await self._begin(message, pump)
            except ShimError as error:
                await self._fail(pump, error)
                return
            pump.anew(self.launcher.standing.tried)  # of what is played
            over = await self._say(child, pump, prompt)
        if over and not self._stalled and self._cut_short(pump):
            self._deadlines.again()
            over = await self._say(child, pump, prompt)
        if self._stalled:
            await child.stop()
        if await self._end(
            child, pump, over=over and not self._stalled
        ) or await self._end_interrupted(pump):
            return
        try:  # the stream was cut
            self.launcher.turns.again(pump)
            child, _ = await self._begin(message, pump)
        except ShimError as error:
            await self._fail(pump, error)
            return
        over = await self._say(child, pump, prompt)
        await self._end(child, pump, over=over and self._stage is Stage.SETTLED)

    async def _end(self, child: Child, pump: Pump, *, over: bool) -> bool:
        """End a turn, `over` or not; False where the same message has to be said to another child."""
        self._end_waits()
        if not over:
            ended = await self._close(child, pump)
            await self._forget(child)
            return ended
        if self._stage is Stage.SETTLED:
            # the vendor waits for no answer behind its turn
            for permission in self._questions.open_questions:
                await self._tell(
                    child, self._speech.decide(permission, Decision(False, interrupt=True))
                )
            await self._say_end(*pump.finish())
        else:  # ended by us, in the middle of the vendor's turn
            await child.stop(self.launcher.vendor.exit.interrupt)
            await self._forget(child)
        return True

    async def _skip_late(self, child: Child, pump: Pump) -> None:
        """Skip what the child said between turns: it answers no message, and its questions go
        nowhere.
        """
        for _ in range(LATE_CHUNKS):
            if not (chunk := child.read_ready()):
                break
            for command in pump.skip(chunk):
                match command:
                    case TellChild(line):
                        await self._tell(child, line)
                    case Ask(permission):
                        denied = Decision(False, message=permission.refusal)
                        await self._tell(child, self._speech.decide(permission, denied))

    async def _begin(self, message: Message, pump: Pump | None = None) -> tuple[Child, Pump]:
        """A new child for a message; `pump` when the turn that it answers has begun already."""
        started = self.launcher.start(message.text, listens=True)
        self._heard = self._outdated = False
        if self.launcher.relays is not None:
            self.launcher.relays.judge = self.judge
        self._deadlines.begin()
        if pump is not None:
            self._put_back(pump.steered)  # the next child knows nothing of them
        self._child = child = Child(started._replace(stdin=b""))
        self.pump = pump = pump or self.launcher.turns.pump(self.pump, self._speech.reader)
        self._serving = anyio.CancelScope()
        self._tasks.start_soon(self._serve, child, self._serving)
        self._tasks.start_soon(self._watch, child)
        await self._tell(child, self._speech.hello(self.launcher.request))
        return child, pump

    async def _serve(self, child: Child, serving: anyio.CancelScope) -> None:
        """Read its stderr, and ask it for signs of life."""
        with serving:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(child.drain)
                tasks.start_soon(self._feel, child)

    async def _feel(self, child: Child) -> None:
        """Ask a child for signs of life while it answers a message, if it has any."""
        beat = self._speech.heartbeat
        while self._child is child and beat():
            await anyio.sleep(self.launcher.timeouts["heartbeat_timeout"] / BEATS)
            if self._turning and self._told:
                self._speech.follow(self.launcher.session)
                await self._tell(child, beat())

    async def _forget(self, child: Child) -> None:
        """Let go of a child that has ended.

        Its stderr may be held by another process: reading it ends here, before the next child gets
        the same descriptor.
        """
        self._child = None
        self._serving.cancel()
        with anyio.CancelScope(shield=True):
            await child.drained.wait()
        self._let_go(child)

    # -- what the child says -----------------------------------------------------------------------

    async def _pump(self, child: Child, pump: Pump) -> bool:
        self._turning = True
        try:
            return await super()._pump(child, pump)
        finally:
            self._turning = False

    @property
    def _over(self) -> bool:
        return self._stage in (Stage.SETTLED, Stage.FINISHED)

    def _reach(self, stage: Stage) -> None:
        """A vendor that stays and may be done counts as done after a moment of silence."""
        if stage is Stage.PAUSED and not self._stalled:
            self._deadlines.rest(self.launcher.end_grace)
        else:
            self._deadlines.go_on()

    async def _rested(self, pump: Pump) -> bool:
        if anyio.current_time() >= self._deadlines.end or self._stage is not Stage.PAUSED:
            return False
        await self.give(*pump.rest())
        return True

    async def _carry_out(self, command: Command) -> None:
        child = self._child
        match command:
            case TellChild(line) if child is not None:
                await self._tell(child, line)
            case Ask(permission):
                await self._ask(permission)
            case TakeBack(request) if child is not None:
                await self._take_back(child, request)
            case _:
                await super()._carry_out(command)

    # -- its questions -----------------------------------------------------------------------------

    async def _ask(self, permission: Permission) -> None:
        # a question behind the result is put to nobody (contract S16b)
        if self._stage is Stage.FINISHED:
            permission = permission._replace(refusal=permission.refusal or TURN_OVER)
        elif self._interrupted:  # nor is one behind an interrupt
            await self.decide(permission, Decision(False, interrupt=True))
            return
        decision = self._allowed_before(permission) or self._judged_later(permission)
        if decision is None and not permission.refusal and self.launcher.policy.hooks:
            self._questions.hold(permission)
            self._tasks.start_soon(self._run_hooks, permission)
            return
        await self._put(permission, decision or self._questions.ask(permission))

    async def _run_hooks(self, permission: Permission) -> None:
        """Run the hooks of Claude's settings files about a call, and then put its question, if it
        still stands.
        """
        from shim.conversation.drivers.hook_runner import judged_by_hooks
        from shim.core.claude.hooks.commands import Told

        launcher, facts = self.launcher, self.launcher.facts
        told = Told(facts.rules.session_id, facts.transcript, facts.mode)
        call = permission.call, permission.tool, permission.arguments
        with anyio.CancelScope() as running:
            self._waits[HOOKS, permission.request] = running
            verdict = await judged_by_hooks(
                launcher.policy, *call, told, launcher.child_environment
            )
        if running.cancelled_caught:
            return
        self._waits.pop((HOOKS, permission.request), None)
        stands, decision = self._questions.judged(permission, verdict)
        with contextlib.suppress(FrontendGoneError):  # the turn finds out too
            if stands:
                await self._put(permission, decision)

    async def _put(self, permission: Permission, decision: Decision | None) -> None:
        """Write a question that was put to the frontend, or give the vendor the decision."""
        await self._output.lines(self._questions.take())
        self.launcher.setup.log(
            "asked", level="debug", tool=permission.tool, frontend=decision is None
        )
        if decision is not None:
            await self.decide(permission, decision)
        elif self._questions.holds(permission):
            self._tasks.start_soon(self._release, permission)
        else:
            self._tasks.start_soon(self._expire, permission)

    async def _release(self, permission: Permission) -> None:
        """Put a question without the hooks that have not answered in HOOK_SECONDS."""
        await anyio.sleep(HOOK_SECONDS)
        if self._questions.holds(permission):
            decision = self._questions.overdue(permission)
            with contextlib.suppress(FrontendGoneError):  # the turn finds out too
                await self._put(permission, decision)

    async def _expire(self, permission: Permission) -> None:
        """Answer a question ourselves if the frontend does not answer in time."""
        patience = min(self._questions.patience, self.launcher.timeouts["permission_timeout"])
        with anyio.CancelScope() as waiting:
            self._waits[ANSWER, permission.request] = waiting
            await anyio.sleep(patience)
        if waiting.cancelled_caught:
            return
        self._waits.pop((ANSWER, permission.request), None)
        decision = self._questions.expired(permission)
        if decision is not None:
            with contextlib.suppress(FrontendGoneError):  # the turn finds out too
                await self._output.lines(self._questions.take())
                await self.decide(permission, decision)

    async def _take_back(self, child: Child, request: str) -> None:
        """The frontend need not answer what the vendor does not want to know any more."""
        for permission in self._questions.open_questions:
            if permission.request == request and self._questions.expired(permission) is not None:
                await self._output.lines(self._questions.take())
                await self._tell(
                    child, self._speech.decide(permission, Decision(False, interrupt=True))
                )

    def _end_waits(self) -> None:
        """Nothing is asked any more: neither hooks nor answers are waited for."""
        for waiting in self._waits.values():
            waiting.cancel()
        self._waits.clear()
        self._calls.end()

    async def judge(self, tool: str, arguments: Mapping[str, Any]) -> Decision:
        """Decide about a call of a tool in the frontend's process, which is about to run: it is
        asked about as others.

        The vendor may have asked by itself; then it has its answer. An agent that asks without a
        word about the input is told yes, and the question is put here.
        """
        if self.pump is not None and self._turning:
            try:
                await self.give(*self.pump.write_arrived_call(tool, arguments))
            except FrontendGoneError:  # the turn notices it, too
                return Decision(False, message=CLOSED_STREAM)
        granted = self._calls.granted(tool, arguments)
        if granted is not None:
            return granted
        request, answer = self._calls.wait()
        call = self._find_open_call(tool, arguments) or request
        try:
            await self._ask(Permission(request, call, tool, arguments, tool, arguments))
            return await answer.decision()
        except (
            FrontendGoneError
        ):  # the turn finds out too; here it would end the relays of all calls
            return Decision(False, message=CLOSED_STREAM)
        finally:
            self._calls.forget(request)

    def _find_open_call(self, tool: str, arguments: Mapping[str, Any]) -> str | None:
        """Return the id of an open call of a tool, if possible of a call with these arguments, or
        None.
        """
        if self.pump is None:
            return None
        calls = [call for call in self.pump.turn.open.values() if call[1] == tool]
        for call_id, _, call_arguments in calls:
            if call_arguments == arguments:
                return call_id
        return calls[0][0] if calls else None

    def _judged_later(self, permission: Permission) -> Decision | None:
        """Yes to a question without an input, about a call that `judge` is to decide with it."""
        facts = self._questions.facts
        if (
            permission.refusal
            or permission.own_arguments
            or permission.tool not in facts.servers.tools
        ):
            return None
        if self._calls.waits(permission.request):
            return None
        return Decision(True) if facts.verdict(permission.tool, {}).decided == "ask" else None

    def _allowed_before(self, permission: Permission) -> Decision | None:
        """A call that is made again as the frontend changed it: allowed, once."""
        return (
            None
            if permission.refusal
            else self._calls.granted(permission.tool, permission.arguments)
        )

    async def decide(self, permission: Permission, decision: Decision) -> None:
        """The answer goes to the vendor; a refusal is also the Turn's business."""
        child, pump = self._child, self.pump
        if (waiting := self._waits.pop((ANSWER, permission.request), None)) is not None:
            waiting.cancel()
        if child is None or pump is None:
            return
        call = {"tool": permission.tool, "input": permission.arguments, "call": permission.call}
        self.launcher.setup.log(
            "decided", level="debug", **call, allowed=decision.allow, why=decision.message
        )
        try:
            answer = self._answer_to(permission, decision)
        except ValueError as error:  # the call has to be made again; then it was allowed already
            self._calls.grant(permission.tool, decision.changed or {}, Decision(True))
            decision = Decision(False, message=str(error))
            answer = self._speech.decide(permission, decision)
            pump.corrected(permission, decision.message)
        else:
            if not decision.allow:
                reason = STOPPED if decision.interrupt else decision.message
                # no answer is sent if the call would run in the frontend's process
                vendor_knows = bool(answer)
                announced = decision.announced
                await self.give(
                    *pump.refused(
                        permission, reason, announced=announced, vendor_knows=vendor_knows
                    )
                )
        if decision.interrupt:
            pump.interrupt()
        await self._tell(child, answer)
        self._deadlines.look_again(patient=self._patient)
        if decision.interrupt:
            await self.interrupt()

    def _answer_to(self, permission: Permission, decision: Decision) -> bytes:
        """What the vendor is told. A call in the frontend's process runs from here, with what was
        changed of it.
        """
        if self._calls.decide(permission.request, decision):
            return b""
        if (
            decision.allow
            and permission.own_arguments
            and permission.tool in self._questions.facts.servers.tools
        ):
            self._calls.grant(permission.tool, permission.arguments, decision)
            decision = decision._replace(changed=None)
        return self._speech.decide(permission, decision)

    # -- what the child is told --------------------------------------------------------------------

    async def _say(self, child: Child, pump: Pump, prompt: Message) -> bool:
        """Give the child the message of the turn, and pump the answer.

        `_told` is False while the child has not read all of it: an interrupt would not be read
        either.
        """
        self._answering = self._told = False
        await self._tell(child, self._speech.prompt(prompt))
        self._told = True
        return await self._pump(child, pump)

    async def interrupt(self) -> None:
        """Tell the vendor to stop; a child that does not obey in time is ended."""
        self._end_waits()
        if self._interrupted:
            return
        self._interrupted = True  # for a turn that has no child at this moment too
        if self.pump is None or self._child is None:
            return
        self.pump.interrupt()
        # it is still starting, or does not read: it hears nothing either
        if not (self._heard and self._told):
            await self._child.stop("SIGTERM")
            return
        await self._break_off(self._child)

    async def stop(self) -> None:
        """Close its stdin, and make sure of its end."""
        if (child := self._child) is not None:
            await child.dismiss()
            await self._forget(child)
        self._drop_files()
