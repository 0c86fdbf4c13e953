"""The configuration and the session state for one vendor in a conversation, shared by its launcher
and its turns.
"""

import os
from collections.abc import Mapping

from shim.core.adapter.adapter import Adapter
from shim.core.adapter.versions import VersionCheck
from shim.core.claude.argv.flags import Invocation
from shim.core.claude.argv.models import OfferedModel, map_model_name
from shim.core.dialects import DIALECTS, StreamDialect
from shim.core.errors import FailedVendorAttempt
from shim.core.policy.policy import Policy, Workspace, parse_permission_rules
from shim.core.policy.settings import ClaudeSettings
from shim.core.reading.typed import TYPE_CHECKING, Any, NamedTuple, Protocol
from shim.core.reading.values import canonicalize_uuid
from shim.io.stderr import LogFunction
from shim.state.config import ShimSettings, VendorSettings

if TYPE_CHECKING:
    from collections.abc import Callable

    from shim.core.claude.resume_point import ResumePoint
    from shim.core.policy.policy import PermissionRule
    from shim.core.turn.context import JsonSchemaAnswer
    from shim.recording.recorder import RunRecorder
    from shim.state.spill import LargeTextFolder
    from shim.state.store import StoredSession


def resolve_vendor_model(model: str, adapter: Adapter, settings: ShimSettings) -> str | None:
    """Return the vendor's name for a model, using the model maps from the settings and from the
    vendor. None means the vendor's default model.
    """
    if adapter.passthrough:
        return model
    return map_model_name(model, _list_model_maps(adapter, settings))


def list_known_models(
    adapter: Adapter, settings: ShimSettings, environment: Mapping[str, str], cwd: str
) -> tuple[OfferedModel, ...]:
    """Return the known models that a user can choose, from the model maps, the vendor's list of its
    last session, and the cached answer of the vendor's program.
    """
    if adapter.passthrough:
        return ()
    from shim.state.stored_models import load_offered_models

    names = [name for model_map in _list_model_maps(adapter, settings) for name in model_map]
    stored_models = load_offered_models(adapter.name, environment)
    if adapter.cli.model_probe.args and not stored_models:
        from shim.process.probe import list_cached_models

        names += list_cached_models(
            adapter, settings.get_vendor_settings(adapter.name), environment, cwd
        )
    return (*map(OfferedModel, names), *stored_models)


def _list_model_maps(adapter: Adapter, settings: ShimSettings) -> "tuple[Mapping[str, str], ...]":
    return (
        settings.get_vendor_settings(adapter.name).models,
        settings.models,
        adapter.cli.model_names,
    )


class McpRelayProvider(Protocol):
    """Provides relays that connect a vendor to MCP servers in the frontend's process."""

    def build_server_configs(
        self, server_names: tuple[str, ...]
    ) -> Mapping[str, Mapping[str, Any]]:
        """Return the configurations of relay servers for a vendor to start. Raise OSError if relays
        are not possible.
        """


class ConversationContext(NamedTuple):
    """The configuration of one vendor for the whole conversation.

    environment      the drop-in's environment variables
    recorder         None if recording is off
    is_translated    all output is translated, even a real claude's
    claude_settings  the settings from Claude's settings files
    resume_point     the message at which the session is resumed, if later messages are dropped
    """

    adapter: Adapter
    invocation: Invocation
    settings: ShimSettings
    environment: Mapping[str, str]
    cwd: str
    log: LogFunction
    recorder: "RunRecorder | None" = None
    is_translated: bool = False
    claude_settings: ClaudeSettings = ClaudeSettings()
    resume_point: "ResumePoint | None" = None

    @property
    def vendor_settings(self) -> VendorSettings:
        return self.settings.get_vendor_settings(self.adapter.name)

    @property
    def dialect(self) -> StreamDialect:
        return DIALECTS[self.settings.dialect]

    def map_model_name(self, model: str) -> str | None:
        return resolve_vendor_model(model, self.adapter, self.settings)

    def build_policy(self) -> Policy:
        """Build the permission policy from the invocation and the settings."""
        invocation = self.invocation
        claude_settings = self.claude_settings
        return Policy(
            workspace=Workspace(
                self.cwd, self.environment.get("HOME", ""), invocation.add_dirs, _resolve_path
            ),
            only_tools=invocation.tools,
            deny=(
                *parse_permission_rules(invocation.disallowed_tools, source="--disallowedTools"),
                *parse_permission_rules(self.settings.deny, source="[tools] deny"),
                *claude_settings.deny,
            ),
            ask=claude_settings.ask,
            allow=(
                *parse_permission_rules(invocation.allowed_tools, source="--allowedTools"),
                *claude_settings.allow,
            ),
            hidden_tools=self.settings.hide,
            hooks=claude_settings.tool_call_hooks,
        )

    def list_removed_tools(self, policy: Policy) -> tuple[str, ...]:
        """Return the tools that must be removed from the vendor, by Claude's names."""
        if not policy.has_restrictions:
            return ()
        from shim.core.adapter.enforcement import list_removed_tools

        return list_removed_tools(self.adapter, policy)


class VendorSessionResumeState:
    """The state that is needed to resume a vendor's session with a new child process.

    stored_session     the stored session that the conversation resumes, or None
    vendor_session_id  the vendor's own session id; None until it is known
    rewind_target      the vendor's id of the last turn to keep in the session; "" to keep all
    has_rebuilt_history  the vendor starts a new session, and receives the kept messages as text
    assigned_id        the session id that the shim assigned; the vendor may never report it
    forks_next         the next child forks the session
    has_started        a child was started
    persistent         the last child stays running and reads messages from its stdin
    has_system_prompt  the session has received the system prompts, before its first message
    has_history        the session has received the kept messages of the resumed session
    has_answered       a message was answered
    prompted_tools     the tools for which the last child asks for permission before they run
    restricting_rules  the restricting rules when the last child was started
    launch_mode        the permission mode when the last child was started
    mode_file          the file from which the shim's hook reads the permission mode, or ""
    failed_attempts    the vendors that failed before this one, reported in the next turn
    vendor_model       the last model that was set for a child; None if the default was always used
    version_check      whether the guarantees of the vendor's profile hold for the installed version
    """

    def __init__(
        self,
        context: ConversationContext,
        stored_session: "StoredSession | None",
        failed_attempts: tuple[FailedVendorAttempt, ...] = (),
        rewind_target: str = "",
    ) -> None:
        invocation = context.invocation
        self.stored_session = stored_session
        if stored_session:
            self.vendor_session_id = stored_session.vendor_session or None
        else:
            self.vendor_session_id = invocation.resume
        self.rewind_target = rewind_target
        self.has_rebuilt_history = context.resume_point is not None and not rewind_target
        if self.has_rebuilt_history:
            self.vendor_session_id = None
        self.assigned_id: str | None = None
        # If the last messages of a session are dropped, the vendor must fork the session.
        self.forks_next = invocation.fork_session or context.resume_point is not None
        self.has_started = self.persistent = self.has_answered = False
        self.has_system_prompt = self.has_history = False
        self.failed_attempts = failed_attempts
        self.prompted_tools: frozenset[str] = frozenset()
        self.restricting_rules: tuple[PermissionRule, ...] = ()
        self.launch_mode = self.mode_file = ""
        self.vendor_model: str | None = None
        self.version_check = VersionCheck()

    def start_new_session(self) -> None:
        """Let the next child start a new session of the vendor."""
        self.stored_session = self.vendor_session_id = self.assigned_id = None
        self.forks_next = self.has_started = self.has_system_prompt = self.has_answered = False
        self.has_history = self.has_rebuilt_history = False
        self.rewind_target = ""

    def start_rebuilt_session(self) -> None:
        """Let the next child start a new session of the vendor, which receives the earlier messages
        as text.
        """
        self.vendor_session_id = self.assigned_id = None
        self.has_system_prompt = self.has_history = self.has_answered = False
        self.has_rebuilt_history = True

    def assign_session_id(
        self, invocation: Invocation, adapter: Adapter, new_session_id: str
    ) -> Invocation:
        """Return the invocation with the session id for the next child: the frontend's id, or
        `new_session_id`.

        An id is assigned only once. The vendor may have stored a session under the id without
        reporting it.
        """
        invocation = invocation._replace(fork_session=self.forks_next)
        # With --continue, a real claude chooses the session itself.
        vendor_chooses = adapter.passthrough and invocation.continue_last
        # A vendor that uses the shim's id does not create an id of its own.
        uses_our_id = (
            self.persistent or adapter.session_traits.uses_shim_id
        ) and not vendor_chooses
        if self.has_started:
            invocation = invocation._replace(session_id=None)
        elif uses_our_id and not (
            self.vendor_session_id or invocation.session_id or self.forks_next
        ):
            invocation = invocation._replace(session_id=new_session_id)
        # Vendors compare ids case-sensitively.
        if not adapter.passthrough and invocation.session_id:
            session_id: str | None = canonicalize_uuid(invocation.session_id)
            if not session_id:
                session_id = invocation.session_id
            if self.forks_next and session_id == canonicalize_uuid(invocation.resume):
                # The vendor already has a session with this id, so it must choose a new id for the
                # fork.
                session_id = None
            invocation = invocation._replace(session_id=session_id)
        if adapter.session_traits.uses_shim_id:
            if invocation.session_id:
                self.assigned_id = invocation.session_id
            elif not self.vendor_session_id:
                self.assigned_id = None
        return invocation


class AnswerSchema:
    """The JSON schema from `--json-schema`. Either the vendor enforces the schema, or the prompt
    asks for JSON and the answer is validated here.

    Raise CliArgumentError for an invalid schema before anything runs (contract 11).
    """

    def __init__(self, context: ConversationContext) -> None:
        self._schema = context.invocation.json_schema
        self._adapter = context.adapter
        self._parse_answer: Callable[[str], JsonSchemaAnswer] | None = None
        if self._schema is None:
            return
        from shim.conversation.drivers import answer_schema

        if self._adapter.abilities.accepts_json_schema and not self._adapter.child_input_ref:
            answer_schema.parse_json_schema(self._schema)
        else:
            self._parse_answer = answer_schema.build_answer_parser(self._schema)

    def select_answer_parser(
        self, *, persistent: bool
    ) -> "Callable[[str], JsonSchemaAnswer] | None":
        """Return the function that parses the answer, or None if the vendor enforces the schema
        itself. No vendor enforces a schema in a conversation with a persistent child.
        """
        if persistent or not self._adapter.abilities.accepts_json_schema:
            return self._parse_answer
        return None

    def add_json_schema_instruction(self, prompt: str, *, persistent: bool) -> str:
        """Return the prompt. If the answer is validated here, append an instruction to answer with
        JSON.
        """
        if self._schema is None or self.select_answer_parser(persistent=persistent) is None:
            return prompt
        from shim.conversation.drivers import answer_schema

        return answer_schema.add_schema_instruction(prompt, self._schema)


class SpillStore:
    """Stores texts that are too large for a line or an argument as files of the session."""

    def __init__(self, context: ConversationContext, session_id: str) -> None:
        self._context = context
        self._session_id = session_id
        self._spill: LargeTextFolder | None = None

    def __call__(self, text: str, suffix: str = ".txt") -> str | None:
        """Store a text. Return the path of the file, or None if the file cannot be written. Never
        raise an error.
        """
        try:
            from shim.state.spill import LargeTextFolder

            if self._spill is None:
                self._spill = LargeTextFolder(self._context.environment, self._session_id)
            path = self._spill.store_text(text, suffix)
            if self._context.recorder is not None:
                self._context.recorder.record_run_event("spill", path=path, characters=len(text))
            return path
        except Exception:  # even the import may fail on a full disk
            return None


def _resolve_path(path: str) -> str:
    """Return a path with symbolic links resolved. Return it unchanged if the links cannot be
    resolved.
    """
    try:
        return os.path.realpath(path)
    except (OSError, ValueError):
        return path
