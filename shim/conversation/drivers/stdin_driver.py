"""The part of a persistent driver that writes to its child while a turn runs: messages, changed
settings and interrupts.
"""

from collections.abc import Callable
from enum import Enum, auto
from typing import TYPE_CHECKING

import anyio
from anyio.abc import TaskGroup

from shim.conversation.drivers.driver import ChildDriver
from shim.conversation.drivers.launcher import ChildLauncher
from shim.core.adapter.child_stream import ChildStream
from shim.core.adapter.commands import StreamCommands
from shim.core.adapter.request import ChildInput
from shim.core.claude.control import ControlSession
from shim.core.claude.control.actions import SettingChanged
from shim.core.claude.hooks.callbacks import HookEvent
from shim.core.claude.messages import PRIORITY_LATER, PRIORITY_NOW, BlockKinds, UserMessage
from shim.io.stdout import FrontendOutput
from shim.process.child import Child

if TYPE_CHECKING:
    from shim.conversation.drivers.turn_lifecycle import TranslatorFactory

INTERRUPT_TIMEOUT_S = 1.5  # for a child to interrupt its turn; then the child is ended
# for a child to read a line; a child that does not read it is ended
WRITE_TIMEOUT_S = 60.0


class TurnPhase(Enum):
    """What the driver does for the turn."""

    IDLE = auto()
    SENDING = auto()  # the child has not read the whole message
    READING = auto()


class OpenStdinDriver(ChildDriver):
    """A driver whose child reads its stdin until it exits."""

    def __init__(
        self,
        launcher: ChildLauncher,
        output: FrontendOutput,
        control: ControlSession,
        tasks: TaskGroup,
        create_stream: Callable[..., ChildStream] = ChildStream,
    ) -> None:
        super().__init__(launcher, output, control, create_stream)
        assert launcher.adapter.child_input_ref
        self._child_input: ChildInput = launcher.adapter.create_child_input()
        self._tasks: TaskGroup = tasks
        self._phase = TurnPhase.IDLE
        self._needs_restart = False  # the child cannot apply a setting that has changed

    @property
    def _control_session(self) -> ControlSession:
        assert self._control is not None
        return self._control

    def _encode_prompt(self, message: UserMessage) -> UserMessage:
        """Return the message with the text that the vendor receives."""
        return message.replace_text(self.launcher.build_vendor_prompt(message.text))

    def _get_translator_factory(self) -> "TranslatorFactory":
        return self._child_input.create_translator_factory

    def _list_accepted_kinds(self) -> BlockKinds:
        return self._child_input.accepted_block_kinds

    async def write_output_and_run_commands(self, lines: bytes, commands: StreamCommands) -> None:
        user_messages = (
            () if self.stream is None else self.stream.turn.user_messages.take_answered_messages()
        )
        for message in user_messages:
            self._output.write_prompt_to_transcript(message)
            self._control_session.send_hook_callbacks(
                HookEvent("UserPromptSubmit"), prompt=message.text
            )
            await self._output.write_lines(self._control_session.take_output())
        await super().write_output_and_run_commands(lines, commands)
        await self.send_steering_messages()

    async def send_steering_messages(self) -> None:
        """Send queued messages into the turn while one of its tool calls runs. Otherwise they wait
        for turns of their own.
        """
        messages = self._control_session.queued_messages
        while (
            message := next(
                (
                    queued
                    for queued in messages
                    if queued.priority not in (PRIORITY_NOW, PRIORITY_LATER)
                ),
                None,
            )
        ) is not None:
            child, stream, is_stopped = self._child, self.stream, self._interrupted or self._stalled
            if not message.needs_reply:
                # this message and all later messages wait for the next turn
                return
            if (
                is_stopped
                or child is None
                or stream is None
                or self._phase is not TurnPhase.READING
                or not stream.can_accept_steering_message
            ):
                return
            line = self._child_input.encode_steering_message(self._encode_prompt(message))
            if line is None:
                return
            messages.remove(message)
            stream.turn.add_steering_message(message)
            await self._write_to_child(child, line)

    def _list_unread_messages(self, stream: ChildStream) -> list[UserMessage]:
        """Return the messages that were sent into the turn and that it does not answer.

        A vendor may accept a message while it is interrupted, and then drop it. The real claude
        sends such a message in the next turn.
        """
        count = max(
            self._child_input.pop_undelivered_message_count(),
            stream.turn.user_messages.unanswered_steering_message_count if self._interrupted else 0,
        )
        return stream.turn.user_messages.steering_messages[-count:] if count else []

    def _requeue_messages(self, messages: list[UserMessage]) -> None:
        """Put messages that were sent into the turn back at the head of the queue."""
        self._control_session.queued_messages.extendleft(reversed(messages))

    async def _write_to_child(self, child: Child, lines: bytes) -> None:
        """Write to the child's stdin. A child that does not read in time is ended, which ends its
        turn.
        """
        with anyio.move_on_after(WRITE_TIMEOUT_S) as timeout_scope:
            await child.write_stdin(lines)
        if timeout_scope.cancelled_caught:
            await child.stop("SIGTERM")

    async def _interrupt_child(self, child: Child) -> None:
        self._deadlines.shorten_exit_deadline(INTERRUPT_TIMEOUT_S)
        self._child_input.set_vendor_session_id(self.launcher.vendor_session_id)
        await self._write_to_child(child, self._child_input.encode_interrupt())

    def _needs_restart_for_rules(self) -> bool:
        from shim.core.adapter.enforcement import needs_restart_for_rules

        resume_state = self.launcher.resume_state
        return needs_restart_for_rules(
            self.launcher.adapter,
            resume_state.restricting_rules,
            self.launcher.policy.restricting_rules,
            resume_state.prompted_tools,
        )

    async def apply_setting_change(self, change: SettingChanged) -> None:
        """Send a changed setting to the running child, or restart the child before its next
        message.
        """
        adapter, (name, value), needs_restart = self.launcher.adapter, change, False
        # A vendor that needs our policy check in only one of the two modes is launched differently.
        if name == "mode":
            mode = str(value)
            needs_restart = adapter.needs_external_policy_check(
                mode
            ) != adapter.needs_external_policy_check(self.launcher.resume_state.launch_mode)
            # With rules, how a vendor is launched depends on the mode.
            line = (
                None
                if self.launcher.policy.has_rules and adapter.policy_support.has_wider_modes
                else self._child_input.encode_permission_mode_change(mode)
            )
        elif name == "rules":
            # The child has the rules of its start, and asks about what the others restrict.
            line, needs_restart = b"", self._needs_restart_for_rules()
        elif name == "servers":  # a child receives its MCP servers only when it starts
            line, needs_restart = b"", True
        else:
            line = (
                self._child_input.encode_model_change(value)
                if name == "model"
                else self._child_input.encode_effort_change(value)
            )
        if self._child is not None:
            self._needs_restart = self._needs_restart or line is None or needs_restart
            await self._write_to_child(self._child, line or b"")
