"""Runs a conversation in one of three ways: with a single message, with many messages, or by
passing stdin through to a real claude.

The frontend's first control requests are answered before anyio is imported.
"""

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from functools import partial

from shim.conversation.plan import RunMode, has_session_store
from shim.core.reading.typed import TYPE_CHECKING, Any, Protocol
from shim.io.ids import create_uuid, format_now
from shim.io.stderr import warn, write_available

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager

    from anyio.abc import TaskGroup

    from shim.conversation.drivers.driver import ChildDriver, ConversationDriver
    from shim.conversation.drivers.event_hook_runner import EventHookRunner
    from shim.conversation.drivers.launcher import ChildLauncher
    from shim.conversation.fallback.chain import FallbackChain
    from shim.conversation.loop import ConversationLoop
    from shim.conversation.plan import ConversationPlan
    from shim.core.claude.agent_definitions import AgentDefinitions
    from shim.core.claude.control import ControlSession
    from shim.core.claude.control.session_lines import SessionStateReporter
    from shim.io.mcp.relay_server import McpRelayServer
    from shim.io.signals import SignalRecorder
    from shim.io.stdin import FrontendLineSource, Stdin
    from shim.io.stdout import FrontendLineSink, FrontendOutput
    from shim.io.subagent_transcripts import SubagentTranscripts
    from shim.io.transcript import Transcript
    from shim.io.transcript_mirror import TranscriptMirror
    from shim.process.spawn import ChildSpawnResult
    from shim.recording.recorder import RunRecorder


class ConversationTransport(Protocol):
    """Connects the conversation to the clients of a background session, instead of stdin and
    stdout.
    """

    @property
    def source(self) -> "FrontendLineSource":
        """The source of lines from the clients."""

    @property
    def stdout(self) -> "FrontendLineSink":
        """The sink for lines to the clients."""

    def serve_clients(self, stop: "Callable[[], None]") -> "AbstractAsyncContextManager[object]":
        """Serve the clients while the conversation is running. Calling `stop` ends the
        conversation.
        """


class ConversationRunner:
    """Runs the plan for one conversation.

    launcher           starts the first vendor's children
    chain              the fallback candidates, if there are any
    forked_transcript  the path of the original session's transcript, for a fork
    transport          replaces stdin and stdout
    """

    def __init__(
        self,
        launcher: "ChildLauncher",
        plan: "ConversationPlan",
        signals: "SignalRecorder",
        *,
        forked_transcript: str = "",
        chain: "FallbackChain | None" = None,
        transport: ConversationTransport | None = None,
    ) -> None:
        self._launcher = launcher
        self._plan = plan
        self._signals = signals
        self._forked_transcript = forked_transcript
        self._chain = chain
        self._transport = transport
        self._transcript: Transcript | None = None

    def run(
        self,
        prompt: str | None,
        source: "Stdin | None" = None,
        first_child: "ChildSpawnResult | None" = None,
    ) -> int:
        """Run the conversation. Return the exit status.

        `prompt` is None if the prompts are messages on stdin. `source` is the reader of stdin, if
        part of stdin was read already.
        """
        try:
            match self._plan.run_mode:
                case RunMode.PASSTHROUGH:
                    return self._run_passthrough(first_child)
                case RunMode.ONE_SHOT:
                    return self._run_one_shot(prompt or "", first_child)
                case _:
                    return self._run_conversation(prompt, source, first_child)
        finally:
            if self._transcript is not None:
                self._transcript.close()

    def _run_one_shot(self, prompt: str, first_child: "ChildSpawnResult | None") -> int:
        """Answer a single message."""
        import anyio

        from shim.conversation.message_loop import MessageLoop
        from shim.core.claude.messages import UserMessage

        async def run_loop() -> int:
            output = self._open_output()
            loop = MessageLoop(
                self._create_driver(first_child, output),
                output,
                first_message=UserMessage(prompt),
                states=self._create_states(),
                recorder=self._launcher.recorder,
            )
            return await loop.run(self._signals.pending_signals)

        return anyio.run(run_loop)

    def _run_conversation(
        self,
        prompt: str | None,
        source: "FrontendLineSource | None",
        first_child: "ChildSpawnResult | None",
    ) -> int:
        """Answer the messages from stdin. If `prompt` is set, answer only this prompt, while stdin
        carries control frames.
        """
        control = self._create_control()
        launcher = self._launcher
        if self._plan.run_mode is RunMode.RULES_ONLY:
            control.close_input()
            source = None
        elif self._transport is not None:
            source = self._transport.source
        elif source is None:
            source = self._open_stdin(control)
        import anyio

        from shim.conversation.message_loop import MessageLoop
        from shim.core.claude.messages import UserMessage

        async def run_loop() -> int:
            async with anyio.create_task_group() as tasks:
                output = self._open_output()
                driver = self._create_driver(first_child, output, control, tasks)
                relays = FrontendMcpRelays(launcher, driver, output, control, tasks)
                launcher.attach_relays(relays)
                first_message = None
                if prompt is not None:
                    first_message = UserMessage(prompt)
                loop = MessageLoop(
                    driver,
                    output,
                    first_message=first_message,
                    control=control,
                    source=source,
                    recorder=launcher.recorder,
                )
                async with self._serve_clients(loop):
                    status = await loop.run(self._signals.pending_signals)
                tasks.cancel_scope.cancel()
            return status

        return anyio.run(run_loop)

    def _open_stdin(self, control: "ControlSession") -> "Stdin":
        """Open stdin, and answer the control requests that have already arrived."""
        from shim.io.stdin import Stdin

        recorder = self._launcher.recorder
        max_bytes = self._launcher.context.settings.max_inbound_bytes
        source = Stdin(max_bytes=max_bytes, recorder=recorder)
        _answer_early_requests(control, source, recorder)
        return source

    def _serve_clients(self, loop: "ConversationLoop") -> "AbstractAsyncContextManager[object]":
        """Serve the clients while the conversation is running. Do nothing without a transport."""
        if self._transport is None:
            return nullcontext()
        return self._transport.serve_clients(loop.stop)

    def _create_driver(
        self,
        first_child: "ChildSpawnResult | None",
        output: "FrontendOutput",
        control: "ControlSession | None" = None,
        tasks: "TaskGroup | None" = None,
    ) -> "ConversationDriver":
        """Create the driver for a single vendor, or for a fallback chain.

        `first_child` is a child that was already started for the first message. `control` is None
        in one-shot mode.
        """
        from shim.conversation.fallback.chain import FallbackCandidate
        from shim.core.adapter.child_stream import ChildStream

        create_stream: Callable[..., ChildStream] = ChildStream
        hook_commands = self._create_hook_runner(output, control, tasks)
        chain = self._chain
        if chain is not None:
            from shim.conversation.fallback.buffered_stream import (
                BufferedChildStream,
                FallbackOutputBuffer,
            )

            buffer = FallbackOutputBuffer(same_vendor=chain.same_vendor)
            create_stream = partial(BufferedChildStream, buffer)

        def create_driver(
            candidate: FallbackCandidate, first_child: "ChildSpawnResult | None" = None
        ) -> "ChildDriver":
            launcher = candidate.launcher
            if control is None or tasks is None or not candidate.persistent:
                from shim.conversation.drivers.per_turn_driver import PerTurnDriver

                return PerTurnDriver(
                    launcher,
                    output,
                    control,
                    create_stream,
                    first_child,
                    candidate.refusal_error,
                    hook_commands,
                )
            from shim.conversation.drivers.persistent_driver import PersistentDriver

            return PersistentDriver(
                launcher, output, control, tasks, create_stream, first_child, hook_commands
            )

        first_candidate = FallbackCandidate(self._launcher, self._plan.persistent)
        driver = create_driver(first_candidate, first_child)
        if chain is None:
            return driver
        from shim.conversation.fallback.driver import FallbackDriver

        return FallbackDriver(driver, chain, buffer, create_driver)

    def _create_hook_runner(
        self,
        output: "FrontendOutput",
        control: "ControlSession | None",
        tasks: "TaskGroup | None",
    ) -> "EventHookRunner | None":
        """Return the runner of the hooks in Claude's settings files, if there are any."""
        launcher = self._launcher
        if control is None or tasks is None or not launcher.session_state.options.event_hooks:
            return None
        from shim.conversation.drivers.event_hook_runner import EventHookRunner

        return EventHookRunner(
            control, output, tasks, launcher.child_environment, launcher.context.cwd
        )

    def _create_control(self) -> "ControlSession":
        state = self._launcher.session_state
        writer = self._launcher.writer
        if self._launcher.context.dialect.is_flat:
            from shim.core.yume.control import YumeControlSession
            from shim.core.yume.encoder import YumeEncoder

            assert isinstance(writer, YumeEncoder)
            return YumeControlSession(
                state, create_uuid, format_now, writer, never_asks=self._launcher.adapter.unattended
            )
        from shim.core.claude.control import ControlSession

        invocation = self._launcher.context.invocation
        load_ids = None
        if (
            self._plan.keeps_transcript
            and (invocation.resume or invocation.continue_last)
            and not invocation.fork_session
        ):
            load_ids = self._load_answered_ids
        return ControlSession(state, create_uuid, format_now, load_ids)

    def _load_answered_ids(self) -> list[str]:
        """Return the ids of the messages that were already answered in the resumed session."""
        from shim.io.transcript import read_user_message_uuids

        uuids = read_user_message_uuids(self._launcher.session_state.options.find_transcript())
        point = self._launcher.context.resume_point
        if point is None:
            return uuids
        return [uuid for uuid in uuids if uuid in point.history_uuids]

    def _create_states(self) -> "SessionStateReporter | None":
        """Return the reporter of session states for a run without control requests. Return None if
        no states are reported. A real claude reports its own states.
        """
        state = self._launcher.session_state
        if (
            not state.options.state_events
            or self._launcher.adapter.passthrough
            or self._launcher.context.dialect.is_flat
        ):
            return None
        from shim.core.claude.control.session_lines import SessionStateReporter

        return SessionStateReporter(state, create_uuid)

    def _run_passthrough(self, first_child: "ChildSpawnResult | None") -> int:
        """Run a conversation in pass-through mode, in which a real claude reads the frontend's
        messages itself.
        """
        assert first_child is not None
        import anyio

        from shim.conversation.passthrough import PassthroughLoop
        from shim.process.child import Child

        launcher = self._launcher
        stderr_redactor = None
        if launcher.context.settings.resolve_redaction_mode() == "all":
            from shim.core.secrets.redactor import StreamRedactor

            stderr_redactor = StreamRedactor({})

        async def run_loop() -> int:
            child = Child(first_child._replace(stdin_bytes=b""))
            loop = PassthroughLoop(
                launcher, child, self._open_output(), self._open_source(), stderr_redactor
            )
            async with self._serve_clients(loop):
                return await loop.run(self._signals.pending_signals)

        return anyio.run(run_loop)

    def _open_source(self) -> "FrontendLineSource":
        if self._transport is not None:
            return self._transport.source
        from shim.io.stdin import Stdin

        return Stdin(recorder=self._launcher.recorder)

    def _open_output(self) -> "FrontendOutput":
        from shim.io.stdout import FrontendOutput, Stdout

        subagent_transcripts = None
        if self._plan.keeps_transcript:
            self._transcript, subagent_transcripts = self._create_transcripts()
        invocation = self._launcher.context.invocation
        if self._transport is None:
            stdout: FrontendLineSink = Stdout(recorder=self._launcher.recorder)
        else:
            stdout = self._transport.stdout
        return FrontendOutput(
            invocation.output_format,
            verbose=invocation.verbose,
            stdout=stdout,
            transcript=self._transcript,
            history_writer=self._launcher.writer.transcript_writer,
            mirror=self._create_mirror(subagent_transcripts),
            subagent_transcripts=subagent_transcripts,
        )

    def _create_transcripts(self) -> "tuple[Transcript, SubagentTranscripts | None]":
        """Create the transcript of the session, and the transcripts of its subagents."""
        from shim.core.claude.writer import CLAUDE_VERSION, StreamJsonWriter
        from shim.io.subagent_transcripts import SubagentTranscripts
        from shim.io.transcript import Transcript

        context = self._launcher.context
        redact = None
        if context.settings.resolve_redaction_mode() == "all":
            from shim.core.secrets.redactor import Redactor

            redact = Redactor().redact_value
        writer = self._launcher.writer
        history_writer = writer.transcript_writer
        if not history_writer:
            history_writer = writer
        usage_counter = subagent_log = None
        if isinstance(history_writer, StreamJsonWriter):
            usage_counter = history_writer.usage_counter
            subagent_log = history_writer.subagent_log
        transcript = Transcript(
            context.environment,
            context.cwd,
            CLAUDE_VERSION,
            redact,
            usage_counter,
            forked_from=self._forked_transcript,
            resume_point=context.resume_point,
        )
        if subagent_log is None:
            return transcript, None
        mirrored = self._is_mirror_requested()
        return transcript, SubagentTranscripts(transcript, subagent_log, mirrored=mirrored)

    def _is_mirror_requested(self) -> bool:
        """Return whether the frontend has a session store that can be filled."""
        context = self._launcher.context
        invocation = context.invocation
        if invocation.output_format != "stream-json" or context.dialect.is_flat:
            return False
        # The clients of a background session have no session store.
        if self._transport is not None:
            return False
        return has_session_store(invocation)

    def _create_mirror(
        self, subagent_transcripts: "SubagentTranscripts | None"
    ) -> "TranscriptMirror | None":
        """Return the mirror of the transcripts, if the frontend has a session store."""
        from shim.io.transcript_mirror import TranscriptMirror

        # If there is no transcript, a warning was already printed when the session was prepared.
        if self._transcript is None or not self._is_mirror_requested():
            return None
        max_line_bytes = self._launcher.context.settings.max_line_bytes
        return TranscriptMirror(self._transcript, max_line_bytes, subagent_transcripts)


class FrontendMcpRelays:
    """Relays a vendor's requests to MCP servers in the frontend's process. The relay socket is
    opened when the first servers are configured.
    """

    def __init__(
        self,
        launcher: "ChildLauncher",
        driver: "ConversationDriver",
        output: "FrontendOutput",
        control: "ControlSession",
        tasks: "TaskGroup",
    ) -> None:
        self._launcher = launcher
        self._state = launcher.session_state
        self._driver = driver
        self._timeout_s = launcher.timeouts["tool_timeout"]
        self._output = output
        self._control = control
        self._tasks = tasks
        self._server: McpRelayServer | None = None

    def build_server_configs(
        self, server_names: tuple[str, ...]
    ) -> "Mapping[str, Mapping[str, Any]]":
        if self._server is None:
            from shim.conversation.agent_runner import AgentRunner
            from shim.core.claude.sdk_servers import SdkMcpServerRegistry
            from shim.io.mcp.agent_server import AgentToolServer
            from shim.io.mcp.relay_server import McpRelayServer

            self._state.add_sdk_mcp_servers(())
            assert isinstance(self._state.sdk_servers, SdkMcpServerRegistry)
            runner_arguments = self._launcher, self._driver, self._flush_control
            server = McpRelayServer(
                self._state.sdk_servers,
                self._flush_control,
                lambda *call: self._driver.active_child_driver.decide_tool_call(*call),
                self._timeout_s,
                AgentToolServer(self._list_agents, AgentRunner(*runner_arguments).run_agent),
            )
            entries = server.build_server_configs(server_names)
            self._tasks.start_soon(server.serve)
            self._server = server
            return entries
        return self._server.build_server_configs(server_names)

    def _list_agents(self) -> "AgentDefinitions":
        return {agent.name: agent for agent in self._state.usable_agents}

    async def _flush_control(self) -> None:
        from shim.io.stdout import FrontendDisconnectedError

        if data := self._control.take_output():
            try:
                await self._output.write_lines(data)
            except FrontendDisconnectedError:
                pass  # the loop also detects the disconnect


def _answer_early_requests(
    control: "ControlSession", source: "Stdin", recorder: "RunRecorder | None"
) -> None:
    """Answer the control requests that arrive before the frontend's first message. anyio is not
    imported for this (contract C1).
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
        return  # the loop gets the same error, and ends
    control.put_back_output(unwritten)
    if recorder is not None:
        recorder.record_stream("O", data[: len(data) - len(unwritten)])
