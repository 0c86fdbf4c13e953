"""The loop of a conversation: messages in, turns out, until stdin ends, a signal comes or the
frontend leaves.

The message may come from the command line, or many may come through stdin. The driver decides
whether each gets a child of its own.
"""

from collections import deque
from typing import TYPE_CHECKING

import anyio
from anyio.abc import TaskGroup

from shim.conversation.drivers.driver import Driver
from shim.conversation.loop import LAST_WORDS_SECONDS, STATUS_OF_SIGNAL, Loop, said_of
from shim.core.adapter.pump import Pump
from shim.core.api_errors import Cause
from shim.core.claude.messages import Message
from shim.core.reading.lines import INBOUND_BYTES
from shim.io.raw_output import tell
from shim.io.stdout import FrontendGoneError, Output
from shim.process import strays

if TYPE_CHECKING:
    from shim.core.claude.control import Control
    from shim.core.claude.control.lines import States
    from shim.core.claude.control.wishes import Wish
    from shim.core.claude.hooks.callbacks import PromptRefusal
    from shim.io.stdin import Inbound
    from shim.recording.recorder import Recorder

# Of messages that wait for their turn. Beyond both limits the frontend's stdin is not read, and
# then neither an answer nor an interrupt is heard. A frontend that writes a few messages ahead
# never comes there.
QUEUE_MESSAGES = 64  # from here on their bytes count too
MOST_MESSAGES = 10_000
PROMPT_HOOK_SECONDS = 60.0  # the real claude waits for a hook as long; then the message is sent
# messages that wait for the next message may be as large as one message
MAX_CONTEXT_BYTES = INBOUND_BYTES


class MessageLoop(Loop):
    """A conversation from its first message to its end.

    `first` is the message of the command line; without a `source` of others it is the only one.
    `control` answers the frontend's requests; where there are none, `states` says when the turn
    runs.
    """

    def __init__(
        self,
        driver: Driver,
        output: Output,
        *,
        first: Message | None = None,
        control: "Control | None" = None,
        states: "States | None" = None,
        source: "Inbound | None" = None,
        recorder: "Recorder | None" = None,
    ) -> None:
        super().__init__(output, recorder)
        self._driver = driver
        self._control = control
        self._told = control or states
        self._source = source
        self._messages = deque[Message]() if control is None else control.messages
        if first is not None:
            self._messages.append(first)
        self._once = first is not None
        self._listening = source is not None
        self._running = False
        self._number = 0  # of the turn that runs, or ran last
        self._taking = False  # a message was taken whose turn has not begun
        self._context = deque[Message]()  # messages that are sent together with the next message
        self._asking_hooks = False  # UserPromptSubmit hooks have not answered yet
        self._stopped_early = False  # an interrupt came before they answered

    async def _work(self, tasks: TaskGroup) -> int:
        """Run the turns, then make sure that the child is gone, whatever ended them; our exit
        status.
        """
        if self._source is not None:
            tasks.start_soon(self._beside, self._read, self._source)
        try:
            with self._working:
                await self._turns()
            if self._fault is not None:
                raise self._fault
        except FrontendGoneError:
            self._gone = True
        except Exception as error:
            await self._failed(error)
            await self._driver.stop()
            return 1
        if self._stopped_by is not None:
            self._driver.terminate()
            await self._last_words(f"the turn was stopped by {self._stopped_by}", "signal")
        await self._driver.stop()
        if self._control is not None:
            # a conversation is over for good; one message may leave a server running
            strays.end_orphans()
        if self._stopped_by is not None:
            return STATUS_OF_SIGNAL[self._stopped_by]
        if self._control is not None and self._control.has_read_nothing:
            return 1
        failed = self._driver.pump is not None and self._driver.pump.failed
        return 1 if failed and not self._ending and not self._gone else 0

    async def _turns(self) -> None:
        while (message := await self._next()) is not None:
            self._running = True
            if self._recorder is not None:
                self._recorder.turn += 1
            await self._control_lines()
            self._output.asked(message)
            self._taking = False
            self._tell_news()
            await self._answer(message)
            self._running = False
            if self._told is not None:
                self._told.end()
                await self._control_lines()
            if self._driver.pump is not None:
                self._record_result(self._driver.pump)
                await self._output.end(self._driver.pump.turn)

    async def _answer(self, message: Message) -> None:
        """Run the turn of a message, unless a hook refuses the message or it is only context for
        the next one.
        """
        refusal = await self._ask_prompt_hooks()
        if self._ending or self._stopped_early:  # there was no turn to interrupt yet
            await self._driver.never_begin(message)
        elif refusal is not None:
            await self._driver.settle_unsent(message, refusal.text, refusal.build_notice())
            if refusal.is_kept:
                self._keep_as_context(message)
        elif not message.query:
            await self._driver.settle_unsent(message)
            self._keep_as_context(message)
        elif self._driver.pump is not None and self._driver.pump.is_over_budget:
            await self._driver.settle_unsent(message)  # its result says that the budget is spent
        else:
            message = message.after(self._context)
            self._context.clear()
            await self._driver.turn(message)
            self._driver.reap()

    async def _ask_prompt_hooks(self) -> "PromptRefusal | None":
        """Wait until the frontend's UserPromptSubmit hooks have answered. Return the first refusal,
        or None.
        """
        self._stopped_early = False
        control = self._control
        if control is None or not control.is_asking_prompt_hooks:
            return None
        self._asking_hooks = True
        with anyio.move_on_after(PROMPT_HOOK_SECONDS):
            while control.is_asking_prompt_hooks and not (self._ending or self._stopped_early):
                await self._news.wait()
        self._asking_hooks = False
        return control.take_prompt_refusal()

    def _keep_as_context(self, message: Message) -> None:
        """Keep a message until the next message is sent. Beyond a bound the oldest are dropped."""
        self._context.append(message)
        dropped = 0
        while (
            sum(kept.size for kept in self._context) > MAX_CONTEXT_BYTES and len(self._context) > 1
        ):
            self._context.popleft()
            dropped += 1
        if dropped:
            tell(
                f"dropped the {dropped} oldest messages with `shouldQuery: false`: all of them together were larger "
                f"than {MAX_CONTEXT_BYTES} bytes\n"
            )

    def _record_result(self, pump: Pump) -> None:
        """Record how the turn ended. A real claude's own result is in what it printed."""
        result = pump.turn.result
        if self._recorder is not None and result is not None and result.line:
            self._recorder.result(result.line)

    async def _next(self) -> Message | None:
        """Wait for the next message; None when there will be none."""
        while not self._ending and not (self._once and self._driver.pump is not None):
            if self._messages:
                message = self._messages.popleft()
                self._number += 1
                self._taking = True
                if self._told is not None:
                    self._told.begin(message.text)
                self._tell_news()
                return message
            if not self._listening:
                return None
            await self._news.wait()
        return None

    # -- the frontend's lines ----------------------------------------------------------------------

    async def _read(self, source: "Inbound") -> None:
        """Read stdin to its end, beside the turns."""
        control, lines = self._control, source.lines
        assert control is not None
        await self._control_lines()  # what was not taken before the loop ran
        for raw in source.heard:
            await self._hear(control, raw)
        while chunk := await source.read():
            for raw in lines.feed(chunk):
                await self._hear(control, raw)
        for raw in lines.close():
            await self._hear(control, raw)
        if lines.skipped:
            tell(f"skipped {lines.skipped} lines of stdin that were too long (max_inbound_bytes)\n")
        await self._obey(control.closed())
        self._listening = False
        self._tell_news()

    async def _hear(self, control: "Control", raw: bytes) -> None:
        """Do what a line says, in its order."""
        await self._obey(control.receive(raw))
        await self._driver.steer()
        await self._in_order(control)

    async def _obey(self, wishes: "list[Wish]") -> None:
        """Do what a line asked for, once its answer was written. A wish about one turn is never
        done to the next.
        """
        from shim.core.claude.control.wishes import Chosen, Decided, Forbidden, Interrupt

        number = self._number
        await self._control_lines()
        for wish in wishes:
            if isinstance(wish, Interrupt | Decided | Forbidden) and not (
                self._running and number == self._number
            ):
                continue
            if isinstance(wish, Interrupt) and self._asking_hooks:
                self._stopped_early = True
            elif isinstance(wish, Interrupt):
                await self._driver.interrupt()
            elif isinstance(wish, Decided):
                await self._driver.decide(wish.permission, wish.decision)
            elif isinstance(wish, Forbidden):
                await self._driver.forbid(wish.call, wish.reason)
            elif isinstance(wish, Chosen):
                await self._driver.change(wish)
        self._tell_news()

    async def _in_order(self, control: "Control") -> None:
        """Wait until the turn of the last message has begun, if it can begin, and until the queue
        has room.
        """
        while self._taking or (control.messages and not control.running) or self._full(control):
            await self._news.wait()

    def _full(self, control: "Control") -> bool:
        if len(control.messages) < QUEUE_MESSAGES:
            return False
        most = INBOUND_BYTES if self._source is None else self._source.limit
        return (
            sum(message.size for message in control.messages) >= most
            or len(control.messages) >= MOST_MESSAGES
        )

    async def _control_lines(self) -> None:
        if self._told is None:
            return
        for complaint in self._told.complaints:
            tell(complaint)
        self._told.complaints.clear()
        if data := self._told.take():
            await self._output.lines(data)

    # -- ends --------------------------------------------------------------------------------------

    async def _failed(self, error: Exception) -> None:
        """A mistake of ours: the frontend still gets its one result."""
        try:
            await self._last_words(said_of(error), "internal")
        except Exception as another:
            tell(f"the shim failed: {another!r}\n")

    async def _last_words(self, reason: str, cause: Cause) -> None:
        """End the turn that runs with an error result, if it has none and stdout takes the lines in
        time.
        """
        pump, said = self._driver.pump, b""
        if pump is None or not self._running:
            return
        if not pump.finished:
            pump.stop(reason, cause)
            said, _ = pump.close(None)
            self._record_result(pump)
            if self._control is not None:
                self._control.withdraw()
                said = self._control.take() + said
        if self._told is not None:
            self._told.end()
        with anyio.move_on_after(LAST_WORDS_SECONDS):
            try:
                await self._output.lines(said)
                await self._control_lines()
                await self._output.end(pump.turn)
            except FrontendGoneError:
                pass

    def _interrupt(self, tasks: TaskGroup) -> None:
        self._tell_news()
        tasks.start_soon(self._driver.interrupt)
