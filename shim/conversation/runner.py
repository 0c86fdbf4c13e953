"""The three ways in which a conversation is run: one message, many, or by a child that holds it
itself.

Neither the child of a single message nor the answer to a frontend's first questions waits for an
import: all that only the loop needs, such as anyio, is imported behind them.
"""

from collections.abc import Awaitable, Callable, Mapping
from contextlib import nullcontext

from shim.core.errors import UnsupportedPermissionModeError, VendorError
from shim.core.reading.typed import TYPE_CHECKING, Any, Protocol
from shim.io.ids import create_uuid, format_now
from shim.io.stderr import warn, write_available
from shim.process.spawn import kill_child

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager

    from anyio.abc import TaskGroup

    from shim.conversation.drivers.driver import ChildDriver
    from shim.conversation.drivers.launcher import ChildLauncher
    from shim.conversation.fallback.chain import FallbackCandidate, FallbackChain
    from shim.conversation.fallback.driver import FallbackDriver
    from shim.core.claude.argv.invocation import Invocation
    from shim.core.claude.control import ControlSession
    from shim.core.claude.control.session_lines import SessionStateReporter
    from shim.core.claude.permissions import PermissionDecision
    from shim.io.mcp.relay_server import McpRelayServer
    from shim.io.signals import SignalRecorder
    from shim.io.stdin import FrontendLineSource, Stdin
    from shim.io.stdout import FrontendLineSink, FrontendOutput
    from shim.io.transcript import Transcript
    from shim.process.spawn import ChildSpawnResult
    from shim.recording.recorder import RunRecorder


class Transport(Protocol):
    """What stands in the place of file descriptors 0 and 1: the frontends of a session that lives
    on its own.
    """

    @property
    def source(self) -> "FrontendLineSource":
        """What they say."""

    @property
    def stdout(self) -> "FrontendLineSink":
        """Who hears the conversation."""

    def serve_clients(self, stop: "Callable[[], None]") -> "AbstractAsyncContextManager[object]":
        """Serve the clients while the conversation runs. `stop` ends the conversation."""


class ConversationRunner:
    """One conversation to be run: by `first_candidate`, or by one of the candidates of `chain` that
    may answer in each other's place.

    `has_transcript`: history lists will find it. `transport` stands in the place of our stdin and
    stdout.
    """

    def __init__(
        self,
        first_candidate: "FallbackCandidate",
        invocation: "Invocation",
        signals: "SignalRecorder",
        *,
        has_transcript: bool,
        chain: "FallbackChain | None" = None,
        transport: Transport | None = None,
    ) -> None:
        self._first_candidate = first_candidate
        self._launcher = first_candidate.launcher
        self._chain = chain
        self._invocation = invocation
        self._signals = signals
        self._has_transcript = has_transcript
        self._transport = transport
        self._transcript: Transcript | None = None

    @property
    def has_permission_rules(self) -> bool:
        """Whether rules say more than the mode, so that a vendor which asks has to be asked by."""
        return self._launcher.policy.has_rules

    def run_one_shot(self, prompt: str) -> int:
        """One message. Its child starts first; then the loop is imported."""
        self._signals.is_started = True
        spawned = self._start_child(prompt)
        try:
            import anyio

            from shim.conversation.drivers.per_turn_driver import PerTurnDriver
            from shim.conversation.message_loop import MessageLoop
            from shim.core.claude.messages import UserMessage

            async def run_loop() -> int:
                output = self._open_output()
                first_driver = PerTurnDriver(self._launcher, output, first_child=spawned)
                driver = self._wrap_in_fallback(
                    first_driver, lambda candidate: PerTurnDriver(candidate.launcher, output)
                )
                recorder, states = self._launcher.recorder, self._create_states()
                loop = MessageLoop(
                    driver,
                    output,
                    first_message=UserMessage(prompt),
                    states=states,
                    recorder=recorder,
                )
                return await loop.run(self._signals.pending_signals)

            return anyio.run(run_loop)
        except BaseException:
            if spawned is not None:
                kill_child(spawned.process)
            raise
        finally:
            self._close_transcript()

    def run_conversation(
        self, prompt: str | None = None, *, can_answer: bool = True, source: "Stdin | None" = None
    ) -> int:
        """Many messages, or only `prompt` with questions in between; without `can_answer` the
        frontend cannot answer.

        `source` is our stdin when something of it was read already.
        """
        self._signals.is_started = True
        # nothing can change how it is started
        if prompt is not None and self._first_candidate.persistent and not can_answer:
            self._launcher.early_child = self._start_child(prompt, persistent=True)
        try:
            control = self._create_control()
            if not can_answer:
                control.close_input()
            elif self._transport is not None:
                return self._run_message_loop(control, prompt, self._transport.source)
            elif source is None:
                from shim.io.stdin import Stdin

                recorder = self._launcher.recorder
                source = Stdin(
                    max_bytes=self._launcher.context.settings.max_inbound_bytes, recorder=recorder
                )
                _answer_early_requests(control, source, recorder)
            return self._run_message_loop(control, prompt, source)
        except BaseException:
            if self._launcher.early_child is not None:
                kill_child(self._launcher.early_child.process)
            raise
        finally:
            self._close_transcript()

    def _run_message_loop(
        self, control: "ControlSession", prompt: str | None, source: "FrontendLineSource | None"
    ) -> int:
        import anyio

        from shim.conversation.drivers.per_turn_driver import PerTurnDriver
        from shim.conversation.drivers.persistent_driver import PersistentDriver
        from shim.conversation.message_loop import MessageLoop
        from shim.core.claude.messages import UserMessage

        first_message = None if prompt is None else UserMessage(prompt)

        async def run_loop() -> int:
            async with anyio.create_task_group() as tasks:
                output = self._open_output()
                self._launcher.relays = FrontendMcpRelays(self._launcher, output, control, tasks)

                def create_driver(candidate: "FallbackCandidate") -> "ChildDriver":
                    if candidate.persistent:
                        return PersistentDriver(candidate.launcher, output, control, tasks)
                    candidate.launcher.resume_state.mode_can_change = source is not None
                    return PerTurnDriver(candidate.launcher, output, control)

                driver = self._wrap_in_fallback(create_driver(self._first_candidate), create_driver)
                recorder = self._launcher.recorder
                loop = MessageLoop(
                    driver,
                    output,
                    first_message=first_message,
                    control=control,
                    source=source,
                    recorder=recorder,
                )
                async with (
                    nullcontext()
                    if self._transport is None
                    else self._transport.serve_clients(loop.stop)
                ):
                    status = await loop.run(self._signals.pending_signals)
                tasks.cancel_scope.cancel()
            return status

        return anyio.run(run_loop)

    def _start_child(self, prompt: str, *, persistent: bool = False) -> "ChildSpawnResult | None":
        """The first child; None if it cannot be started and another vendor may answer, which the
        loop asks then.
        """
        try:
            return self._launcher.start_child(prompt, persistent=persistent)
        except (VendorError, UnsupportedPermissionModeError):
            if self._chain is None:
                raise
            return None

    def _wrap_in_fallback(
        self, driver: "ChildDriver", create_driver: "Callable[[FallbackCandidate], ChildDriver]"
    ) -> "ChildDriver | FallbackDriver":
        """The driver of the one vendor, or of a list of vendors."""
        if self._chain is None:
            return driver
        from shim.conversation.fallback.driver import FallbackDriver

        return FallbackDriver(driver, self._chain, create_driver)

    def _create_control(self) -> "ControlSession":
        state, writer = self._launcher.session_state, self._launcher.writer
        if self._launcher.context.dialect.is_flat:
            from shim.core.yume.control import YumeControlSession
            from shim.core.yume.encoder import YumeEncoder

            assert isinstance(writer, YumeEncoder)
            return YumeControlSession(
                state, create_uuid, format_now, writer, never_asks=self._launcher.adapter.unattended
            )
        from shim.core.claude.control import ControlSession

        control = ControlSession(state, create_uuid, format_now)
        session = self._invocation.session
        if (
            self._has_transcript
            and (session.resume or session.continue_last)
            and not session.fork_session
        ):
            control.load_accepted_ids = self._load_answered_ids
        return control

    def _load_answered_ids(self) -> list[str]:
        """Return the ids of the messages that the resumed session has answered."""
        from shim.io.transcript import read_user_message_uuids

        return read_user_message_uuids(self._launcher.session_state.transcript_path)

    def _create_states(self) -> "SessionStateReporter | None":
        """What tells the state around one message. A real claude says its own."""
        state = self._launcher.session_state
        if (
            not state.options.state_events
            or self._launcher.adapter.passthrough
            or self._launcher.context.dialect.is_flat
        ):
            return None
        from shim.core.claude.control.session_lines import SessionStateReporter

        return SessionStateReporter(state, create_uuid)

    def run_passthrough(self) -> int:
        """A real claude holds the conversation itself."""
        self._signals.is_started = True
        spawned = self._launcher.start_child("", persistent=True)
        try:
            return self._run_passthrough_loop(spawned)
        except BaseException:
            kill_child(spawned.process)
            raise

    def _run_passthrough_loop(self, spawned: "ChildSpawnResult") -> int:
        import anyio

        from shim.conversation.passthrough import PassthroughLoop
        from shim.process.child import Child

        launcher, stderr_redactor = self._launcher, None
        if launcher.context.settings.resolve_redaction_mode() == "all":
            from shim.core.secrets.redactor import StreamRedactor

            stderr_redactor = StreamRedactor({})

        async def run_loop() -> int:
            child = Child(spawned._replace(stdin_bytes=b""))
            loop = PassthroughLoop(
                launcher, child, self._open_output(), self._open_source(), stderr_redactor
            )
            async with (
                nullcontext()
                if self._transport is None
                else self._transport.serve_clients(loop.stop)
            ):
                return await loop.run(self._signals.pending_signals)

        return anyio.run(run_loop)

    def _open_source(self) -> "FrontendLineSource":
        if self._transport is not None:
            return self._transport.source
        from shim.io.stdin import Stdin

        return Stdin(recorder=self._launcher.recorder)

    def _open_output(self) -> "FrontendOutput":
        from shim.core.claude.writer import CLAUDE_VERSION, StreamJsonWriter
        from shim.io.stdout import FrontendOutput, Stdout
        from shim.io.transcript import Transcript

        writer = self._launcher.writer
        if self._has_transcript:
            context, redact, history_writer = (
                self._launcher.context,
                None,
                writer.transcript_writer or writer,
            )
            if context.settings.resolve_redaction_mode() == "all":
                from shim.core.secrets.redactor import Redactor

                redact = Redactor().redact_value
            usage_counter = (
                history_writer.usage_counter
                if isinstance(history_writer, StreamJsonWriter)
                else None
            )
            self._transcript = Transcript(
                context.environment, context.cwd, CLAUDE_VERSION, redact, usage_counter
            )
            self._transcript.forked_from = self._launcher.forked_transcript
            self._launcher.session_state.transcript_path = self._transcript.build_path(
                self._launcher.session_state.options.session_id
            )
        invocation = self._invocation
        return FrontendOutput(
            invocation.streams.output_format,
            verbose=invocation.streams.verbose,
            stdout=Stdout(recorder=self._launcher.recorder)
            if self._transport is None
            else self._transport.stdout,
            transcript=self._transcript,
            history_writer=writer.transcript_writer,
        )

    def _close_transcript(self) -> None:
        if self._transcript is not None:
            self._transcript.close()


class FrontendMcpRelays:
    """Relays to the MCP servers of the frontend's process; their socket is opened with the first."""

    def __init__(
        self,
        launcher: "ChildLauncher",
        output: "FrontendOutput",
        control: "ControlSession",
        tasks: "TaskGroup",
    ) -> None:
        self._state = launcher.session_state
        self._timeout_s = launcher.timeouts["tool_timeout"]
        self._output = output
        self._control = control
        self._tasks = tasks
        self._server: McpRelayServer | None = None
        self.decide_call: Callable[[str, Mapping[str, Any]], Awaitable[PermissionDecision]] = (
            self._decide_by_rules
        )

    def build_server_configs(
        self, server_names: tuple[str, ...]
    ) -> "Mapping[str, Mapping[str, Any]]":
        if self._server is None:
            from shim.core.claude.sdk_servers import SdkMcpServerRegistry
            from shim.io.mcp.relay_server import McpRelayServer

            assert isinstance(self._state.sdk_servers, SdkMcpServerRegistry)
            server = McpRelayServer(
                self._state.sdk_servers,
                self._flush_control,
                lambda *call: self.decide_call(*call),
                self._timeout_s,
            )
            entries = server.build_server_configs(server_names)
            self._tasks.start_soon(server.serve)
            self._server = server
            return entries
        return self._server.build_server_configs(server_names)

    async def _decide_by_rules(
        self, tool: str, tool_input: "Mapping[str, Any]"
    ) -> "PermissionDecision":
        """The decision where the vendor runs a child a turn, which nobody is asked by."""
        from shim.core.claude.permissions import NOT_GRANTED_TEXT, PermissionDecision

        allowed = self._state.evaluate_tool_call(tool, tool_input).outcome == "allow"
        return PermissionDecision(
            allowed, message="" if allowed else NOT_GRANTED_TEXT.format(tool=tool)
        )

    async def _flush_control(self) -> None:
        from shim.io.stdout import FrontendDisconnectedError

        if data := self._control.take_output():
            try:
                await self._output.write_lines(data)
            except FrontendDisconnectedError:
                pass  # the loop finds out too


def _answer_early_requests(
    control: "ControlSession", source: "Stdin", recorder: "RunRecorder | None"
) -> None:
    """What a frontend asks before its first message is answered before anyio is imported (contract
    C1).
    """
    lines = source.read_available_lines()
    while lines and b'"control_request"' in lines[0]:
        control.receive_line(lines.pop(0))
    for complaint in control.warnings:
        warn(complaint)
    control.warnings.clear()
    data = control.take_output()
    try:
        unwritten = write_available(1, data)
    except OSError:
        return  # the loop sees the same error, and ends
    control.put_back_output(unwritten)
    if recorder is not None:
        recorder.record_stream("O", data[: len(data) - len(unwritten)])
