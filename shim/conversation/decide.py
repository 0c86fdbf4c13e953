"""From an invocation to a running conversation: everything that is decided before the loop runs.

The child of a single message is started before anyio is imported: it gets going while we do. In a
conversation the frontend is answered first, and no child exists before its first message.
"""

import os
from collections.abc import Callable, Mapping, Sequence

from shim.adapters import FLAT_ADAPTERS, VENDORS, get_adapter
from shim.conversation.drivers.launcher import ChildLauncher, LaunchPlan, build_serving_vendor
from shim.conversation.drivers.setup import ConversationContext, resolve_vendor_model
from shim.conversation.fallback.choice import REPLAY_VENDOR, VendorChoice, choose_vendors
from shim.conversation.fallback.vendor_list import VendorList
from shim.conversation.invocation import (
    apply_claude_settings,
    apply_yume_mode,
    can_change_mode,
    can_prompt_frontend,
    check_resume_point,
    check_session,
    choose_terminator,
    find_replay_path,
    resolve_mode,
    resolve_resumed_session,
    select_driver,
    validate_invocation,
)
from shim.conversation.session_facts import build_session_state, load_mcp_servers
from shim.core.adapter.routing import parse_model_route
from shim.core.claude.argv.invocation import Invocation
from shim.core.dialects import DIALECTS
from shim.core.errors import NOTE_PASSED_OVER, FrontendError, ShimError
from shim.core.policy.policy import BYPASS_MODE
from shim.core.policy.sources import ClaudeSettings
from shim.core.reading.ids import check_uuid
from shim.core.reading.typed import TYPE_CHECKING, Any, NamedTuple
from shim.io.log import open_log
from shim.io.prompt import load_prompt_files, read_prompt
from shim.io.raw_output import warn
from shim.io.stamps import create_session_ids
from shim.process.environment import MAX_DEPTH, get_working_directory, parse_depth
from shim.process.version_check import find_installed_adapter
from shim.state import config
from shim.state.claude_settings import load_settings
from shim.state.own_vendors import check_vendor_names, register_profiles

if TYPE_CHECKING:
    from shim.conversation.fallback.candidates import Candidate, FallbackChain
    from shim.conversation.wire import ConversationRunner, Transport
    from shim.core.adapter.vendor import Adapter
    from shim.core.turn.terms import OutputWriter
    from shim.io.signals import SignalRecorder
    from shim.io.stdin import Stdin
    from shim.recording.choice import RecordingSet
    from shim.recording.recorder import RunRecorder


class StdinInput(NamedTuple):
    """What a frontend asks, once that was read from stdin.

    text     the only message, "" where messages come through `source`
    source   our stdin, of which something was read already
    talks    the frontend may say more while the message is answered
    listens  a child that stays is wanted, for more messages or for answers to its questions
    """

    text: str
    source: "Stdin | None" = None
    may_send_more: bool = False
    wants_answers: bool = False


class ConversationStartup:
    """One conversation, from its invocation.

    `shown` is the frontend's own name for the session, where that is no UUID. `hear` reads from
    stdin what is asked, for a frontend that does not ask as Claude's do.
    """

    def __init__(
        self,
        invocation: Invocation,
        installed: Mapping[str, str],
        arguments: Sequence[str] = (),
        *,
        display_name: str = "",
        read_input: "Callable[[ConversationStartup], StdinInput] | None" = None,
        launcher_class: type[ChildLauncher] = ChildLauncher,
        settings: "config.Settings | None" = None,
    ) -> None:
        """`arguments` are the words that the invocation was read from, for the recording of the
        run.

        `settings` where they were read already.
        """
        self._launcher_class = launcher_class
        self._display_name = display_name
        self._read_input = read_input
        self._stdin_input: StdinInput | None = None
        self._has_rules = False  # rules restrict more than the mode, so the child should ask
        self.recorder: RunRecorder | None = None
        self.environment: Mapping[str, str] = os.environ
        self.cwd = get_working_directory()
        if not self.cwd:
            raise FrontendError(
                "the working directory does not exist any more", hint="start from another one"
            )
        self.settings = settings or config.load_config(invocation, self.environment, installed)
        register_profiles(self.environment, invocation.shim_flags.shim_config)
        check_vendor_names(self.settings)
        self.log = open_log(
            None if launcher_class.is_dry else self.settings.log,
            redact=self.settings.resolve_redaction() != "none",
        )
        flat = DIALECTS[self.settings.dialect].is_flat
        if flat:
            invocation = apply_yume_mode(invocation)
        self.recordings: RecordingSet | None = None
        self._replay_path = find_replay_path(invocation, self.environment)
        vendor = invocation.shim_flags.shim_vendor if self._replay_path is None else REPLAY_VENDOR
        self.resumed_id, self.resumed_session = resolve_resumed_session(
            invocation, vendor, self.cwd, self.environment
        )
        self.vendor_choice = self._choose_vendors(invocation, installed)
        self.vendor_list = VendorList(
            self.vendor_choice.names,
            self.settings,
            self.environment,
            cwd=self.cwd,
            is_flat=flat,
            needs_prompts=flat and invocation.permissions.permission_prompt_tool == "stdio",
        )
        self.claude_settings = ClaudeSettings()
        if self.vendor_list.has_several:
            invocation = self._apply_settings(invocation)
        self.adapter = (
            self.vendor_list.select_first(
                ""
                if can_change_mode(invocation) and not launcher_class.is_dry
                else resolve_mode(invocation)
            )
            if self._replay_path is None
            else self._create_replay_adapter(self._replay_path, invocation)
        )
        named = self.adapter.name
        self.adapter = self._find_installed_adapter(self.adapter, self.environment)
        partial = invocation.streams.partial or DIALECTS[self.settings.dialect].streams_fragments
        invocation = invocation.with_flags(
            model=self.vendor_list.select_model(named, self.vendor_choice.model), partial=partial
        )
        self._mcp_servers: Mapping[str, Any] = {}
        # a real claude reads its files itself
        if self.vendor_list.is_translated or not self.adapter.passthrough:
            invocation = load_prompt_files(invocation)
            self._mcp_servers = load_mcp_servers(invocation, self.cwd)
        if not (self.vendor_list.has_several or self.adapter.passthrough):
            invocation = self._apply_settings(invocation)
        self.mode = resolve_mode(invocation)
        self.invocation = validate_invocation(invocation)
        path = config.resolve_record_path(invocation, self.environment, installed, self.settings)
        if path and not launcher_class.is_dry:
            from shim.process.probe import find_cached_version
            from shim.recording.open_recorder import open_recorder

            self.recorder = open_recorder(
                path,
                self.adapter.display_name,
                self.settings,
                vendor_version=find_cached_version(
                    self.adapter,
                    self.settings.get_vendor_settings(self.adapter.name),
                    self.environment,
                    self.cwd,
                ),
                argv=arguments,
                environment=self.environment,
                cwd=self.cwd,
            )
        for one in self.vendor_list.skipped_attempts:
            warn(f"{one.vendor} cannot answer ({one.cause}): {one.reason}\n")
            if self.recorder is not None:
                self.recorder.record_note(NOTE_PASSED_OVER, started=False, **one.to_json())

    def _apply_settings(self, invocation: Invocation) -> Invocation:
        """The invocation under Claude's settings files; a real claude reads them itself."""
        self.claude_settings = load_settings(invocation, self.environment, self.cwd)
        return apply_claude_settings(invocation, self.claude_settings)

    def _create_replay_adapter(self, path: str, invocation: Invocation) -> "Adapter":
        from shim.recording.choice import RecordingSet

        self.recordings = RecordingSet(path, self.cwd, self.environment)
        place = (
            self.resumed_session.vendor_session
            if self.resumed_session and self.resumed_session.vendor == REPLAY_VENDOR
            else ""
        )
        return self.recordings.create_adapter(
            invocation.prompt, place, flat=self.vendor_list.is_translated
        )

    def _choose_vendors(self, invocation: Invocation, installed: Mapping[str, str]) -> VendorChoice:
        """The vendors that are meant, and the model for them."""
        if self._replay_path is not None:
            place = "--shim-vendor" if invocation.shim_flags.shim_vendor else "SHIM_VENDOR"
            return VendorChoice(
                (REPLAY_VENDOR,), parse_model_route(invocation.model, VENDORS).model, place
            )
        session = self.resumed_session.vendor if self.resumed_session else None
        return choose_vendors(
            invocation,
            installed,
            self.environment,
            self.settings.vendor,
            session_vendor=session,
            cwd=self.cwd,
        )

    def run(self, signals: "SignalRecorder", ends: "Transport | None" = None) -> int:
        """Start the child, then the loop; the exit status. `ends` stand in the place of our stdin
        and stdout.
        """
        if self._read_input is not None:
            self._stdin_input = asked = self._read_input(self)
            if asked.source is not None:
                self.invocation = self.invocation.with_flags(input_format="stream-json")
        try:
            return self._run_conversation(signals, ends)
        except ShimError as error:
            error.vendor, error.failed_attempts = (
                self.adapter.name,
                tuple(self.vendor_list.skipped_attempts),
            )
            raise

    def plan_first_child(
        self, *, allow_mode_change: bool = False
    ) -> "tuple[ChildLauncher, LaunchPlan]":
        """Return the launcher of the first child and what would start it. Raise ShimError if no
        turn can begin.

        With `allow_mode_change`, a mode that the vendor lacks is accepted: the frontend can choose
        another mode before its first message.
        """
        launcher, streams = (
            self._prepare_launcher(),
            self.invocation.streams.input_format == "stream-json",
        )
        stays = (
            self._can_keep_child(self.adapter)
            if streams or self._needs_asking_child(launcher.policy.has_rules)
            else False
        )
        passes = streams and self.adapter.passthrough and not self.vendor_list.is_translated
        if allow_mode_change and self.mode not in self.adapter.modes:
            launcher.state.mode = "default"
        return launcher, launcher.plan_child(
            self.invocation.prompt or "(the prompt)", persistent=stays or passes
        )

    def _prepare_launcher(self) -> ChildLauncher:
        """What starts the children, once it is certain that there may be one."""
        self.adapter = self._select_driver_adapter(self.adapter)
        if not can_change_mode(self.invocation):
            self.adapter.resolve_mode_arguments(self.mode)
        if parse_depth(self.environment) >= MAX_DEPTH:
            raise FrontendError(
                f"the shim was started inside itself {MAX_DEPTH} times", hint="check SHIM_VENDOR"
            )
        if self.vendor_list.has_several or not self.adapter.passthrough:
            replayed = self.recordings is not None and self.recordings.has_session(
                self.invocation.session.resume or ""
            )
            check_session(
                self.invocation.session,
                self.adapter,
                self.resumed_session,
                self.environment,
                is_replay=replayed,
            )
            check_resume_point(self.invocation.session, self.adapter, self._load_resumed_uuids)
        model = resolve_vendor_model(self.invocation.model or "", self.adapter, self.settings)
        for warning in self.adapter.list_ignored_flags(self.invocation.with_flags(model=model)):
            warn(warning)
        launcher = self._create_launcher(*create_session_ids())
        launcher.find_program()
        return launcher

    def _load_resumed_uuids(self) -> list[str]:
        """Return the message ids of the resumed session, or [] if it has no transcript."""
        from shim.io.transcript import read_message_uuids

        return read_message_uuids(self._find_resumed_transcript())

    def _find_resumed_transcript(self) -> str:
        """Return the path of the resumed session's transcript, or ""."""
        from shim.io.transcript import Transcript

        if self.resumed_session is None:
            return ""
        return Transcript(self.environment, self.resumed_session.cwd, "").build_path(
            self.resumed_id or ""
        )

    def _run_conversation(self, signals: "SignalRecorder", ends: "Transport | None") -> int:
        launcher, skipped = (
            self._prepare_launcher(),
            [one.to_json() for one in self.vendor_list.skipped_attempts],
        )
        self.log(
            "vendor chosen",
            level="debug",
            vendor=self.adapter.name,
            place=self.vendor_choice.source,
            skipped=skipped,
        )
        from shim.conversation.fallback.candidates import Candidate
        from shim.conversation.wire import ConversationRunner

        first = Candidate(launcher, self._can_keep_child(self.adapter))
        launcher.resume_state.failed_attempts = tuple(self.vendor_list.skipped_attempts)
        candidates = self._build_fallback_chain(first)
        run = ConversationRunner(
            first,
            self.invocation,
            signals,
            has_transcript=self._needs_transcript(),
            chain=candidates,
            transport=ends,
        )
        signals.raise_if_stopped()
        return self._start_run_mode(run)

    def _find_installed_adapter(
        self, vendor: "Adapter", environment: Mapping[str, str]
    ) -> "Adapter":
        """Return the vendor whose program is installed, if two vendors have programs of the same
        name.
        """
        settings = self.settings.get_vendor_settings(vendor.name)
        flat = self.vendor_list.is_translated
        remembered = self._launcher_class.uses_remembered_help
        return find_installed_adapter(
            vendor, settings, environment, self.cwd, flat=flat, cache_only=remembered
        )

    def _select_driver_adapter(
        self, vendor: "Adapter", environment: Mapping[str, str] | None = None
    ) -> "Adapter":
        return select_driver(
            vendor, self.invocation, self.settings, environment or self.environment, self.cwd
        ).adapter

    def _build_fallback_chain(self, first: "Candidate") -> "FallbackChain | None":
        """The vendors that may answer in each other's place, where there are several, or the ways
        of the one.
        """
        if len(self.vendor_list.remaining_names) == 1:
            return self._build_driver_chain(first)
        from shim.conversation.fallback.candidates import FallbackChain

        made, facts = {self.vendor_list.remaining_names[0]: first}, first.launcher.state

        def prepare(name: str) -> "Candidate":
            candidate = made.get(name) or self._create_candidate(name, first.launcher)
            made[name], vendor = candidate, candidate.launcher.adapter
            facts.switch_vendor(build_serving_vendor(vendor, persistent=candidate.persistent))
            return candidate

        return FallbackChain(
            self.vendor_list.remaining_names, self.vendor_list.skipped_attempts, prepare
        )

    def _build_driver_chain(self, first: "Candidate") -> "FallbackChain | None":
        """Both ways of a vendor that is driven so that it asks, unless the other one asks less, or
        lets more run.
        """
        name = self.adapter.name
        if (
            name not in VENDORS
            or self._asks_frontend
            or self.settings.get_vendor_settings(name).driver
            or self.adapter.cli.build_two_way
        ):
            return None
        vendor = get_adapter(name, flat=self.vendor_list.is_translated)
        wider = vendor.unattended and self.mode != BYPASS_MODE
        if vendor.cli.build_two_way is None or self.mode not in vendor.modes or wider:
            return None
        from shim.conversation.fallback.ways import build_driver_chain

        launcher = first.launcher.create_for_adapter(
            vendor, self.environment, stored_session=self.resumed_session
        )
        return build_driver_chain(first, launcher, persistent=self._can_keep_child(vendor))

    def _create_candidate(self, name: str, first: ChildLauncher) -> "Candidate":
        """The candidate of another vendor. A mistake in its settings is told by its first turn."""
        from shim.conversation.fallback.candidates import Candidate

        environment = self.vendor_list.build_environment(name)
        vendor = self._select_driver_adapter(
            self._find_installed_adapter(get_adapter(name, flat=True), environment),
            environment=environment,
        )
        launcher = first.create_for_adapter(vendor, self.vendor_list.build_environment(name))
        try:
            self.vendor_list.require_prompts(vendor)
            return Candidate(launcher, self._can_keep_child(vendor))
        except FrontendError as error:
            launcher.refusal_error = error
            return Candidate(launcher, persistent=False)

    def _start_run_mode(self, run: "ConversationRunner") -> int:
        """The way in which the frontend asks: one message or many."""
        if self._stdin_input is not None:
            return self._run_stdin_input(run, self._stdin_input)
        if self.invocation.streams.input_format == "stream-json":
            if self.adapter.passthrough and not self.vendor_list.is_translated:
                return run.pass_through()
            return run.run_conversation()
        if self._needs_asking_child(run.has_rules):
            # stdin carries the answers if the frontend can see the prompts; otherwise it is a part
            # of the message
            answers = bool(self.invocation.prompt) and can_prompt_frontend(self.invocation)
            message = self.invocation.prompt if answers else self._read_prompt()
            return run.run_conversation(message, can_answer=answers)
        return run.run_one_shot(self._read_prompt())

    @property
    def _asks_frontend(self) -> bool:
        """Whether the frontend wants to be asked, through stdin and stdout."""
        return self.invocation.permissions.permission_prompt_tool == "stdio"

    def _needs_asking_child(self, ruled: bool) -> bool:
        """Whether a single message needs a child that asks: to ask the frontend, or to be judged by
        the rules.
        """
        names = self.vendor_list.remaining_names[1:] if self.vendor_list.has_several else ()
        vendors = [self.adapter, *(get_adapter(name, flat=True) for name in names)]
        # only a child of one message keeps to a schema itself, but its edits would leave the folder
        by_schema = self.invocation.json_schema is not None and self.mode != "acceptEdits"
        judged = ruled or (
            not by_schema and any(vendor.needs_gate(self.mode) for vendor in vendors)
        )
        return (self._asks_frontend or judged or self.adapter.cli.always_keeps_child) and any(
            map(self._can_keep_child, vendors)
        )

    def _run_stdin_input(self, run: "ConversationRunner", asked: StdinInput) -> int:
        if not (
            asked.source or asked.may_send_more
        ):  # then the child need not wait for what reads frames
            if self._needs_asking_child(run.has_rules):
                return run.run_conversation(asked.text, can_answer=False)
            return run.run_one_shot(asked.text)
        return run.run_conversation(
            None if asked.source is not None else asked.text, source=asked.source
        )

    def _read_prompt(self) -> str:
        return read_prompt(self.invocation, 0, self.settings.max_inbound_bytes, self.recorder)

    def _create_launcher(self, fresh: str, identity: str) -> ChildLauncher:
        vendor, resumed = (
            self.adapter,
            "" if self.invocation.session.fork_session else self.resumed_id,
        )
        name = vendor.display_name if self.recordings is None else self.recordings.requested_vendor
        setup = ConversationContext(
            vendor,
            self.invocation,
            self.settings,
            self.environment
            if not self.vendor_list.has_several
            else self.vendor_list.build_environment(vendor.name),
            self.cwd,
            self.log,
            self.recorder,
            is_translated=self.vendor_list.is_translated,
            claude_settings=self.claude_settings,
        )
        self._has_rules = setup.build_policy().has_rules
        facts = build_session_state(
            self.invocation,
            build_serving_vendor(vendor, name=name, persistent=self._can_keep_child(vendor)),
            self.settings,
            session_id=self.invocation.session.session_id or check_uuid(resumed or "") or fresh,
            cwd=self.cwd,
            environment=self.environment,
            mode=self.mode,
            servers=self._mcp_servers,
            find_adapter=self._find_serving_adapter,
            build_environment=self.vendor_list.build_environment,
        )
        launcher = self._launcher_class(
            setup,
            state=facts,
            open_writer=lambda: self._open_writer(identity),
            stored_session=self.resumed_session,
        )
        if self.recordings is not None:
            launcher.list_replayed_attempts = self.recordings.get_failed_attempts
        facts.policy = setup.build_policy()
        if self.invocation.session.fork_session and self._needs_transcript():
            launcher.forked_transcript = self._find_resumed_transcript()
        facts.output_style = self.claude_settings.output_style or facts.output_style
        # a hook is told the path, also of the first child
        if self.claude_settings.hooks and self._needs_transcript():
            from shim.io.transcript import Transcript

            facts.transcript_path = Transcript(self.environment, self.cwd, "").build_path(
                facts.options.session_id
            )
        return launcher

    def _find_serving_adapter(self, name: str) -> "Adapter":
        return (
            self.adapter
            if name == self.adapter.display_name or name not in VENDORS
            else get_adapter(name, flat=True)
        )

    def _open_writer(self, identity: str) -> "OutputWriter":
        from shim.conversation.drivers.open_translation import open_writer

        return open_writer(
            self.settings.dialect,
            identity,
            partial=self.invocation.streams.partial,
            terminator=choose_terminator(self.invocation, self.settings.terminator),
            max_line_bytes=self.settings.max_line_bytes,
            display_name=self._display_name,
            has_history=self._needs_transcript(),
        )

    def _can_keep_child(self, vendor: "Adapter") -> bool:
        """Whether one child serves the conversation: the vendor can, and the settings do not say
        otherwise.
        """
        driver = self.settings.get_vendor_settings(vendor.name).driver or config.TWO_WAY
        # only its questions keep them in the folder
        edits = self.mode == "acceptEdits" and vendor.needs_gate(self.mode)
        wanted = (
            self._stdin_input is None or self._stdin_input.wants_answers or edits or self._has_rules
        )
        return vendor.cli.always_keeps_child or (
            wanted and bool(vendor.child_input_ref) and driver == config.TWO_WAY
        )

    def _needs_transcript(self) -> bool:
        """Whether history lists are to find the session; a real claude writes its own."""
        kept = self.settings.transcripts and not self.invocation.session.no_session_persistence
        return (
            kept
            and not self.adapter.passthrough
            and FLAT_ADAPTERS.keys().isdisjoint(self.vendor_list.remaining_names)
        )
