"""A conversation's settings that a frontend can query and change: the model, the permission mode,
the permission rules and the MCP servers.
"""

from collections.abc import Callable, Iterable, Mapping

from shim.core.claude.argv.models import (
    OfferedModel,
    is_claude_model,
    is_impossible_claude_model,
)
from shim.core.errors import FrontendError
from shim.core.policy import PERMISSION_EVENT
from shim.core.policy.policy import (
    AGENT_TOOL,
    ANSWER_SOURCE,
    BYPASS_MODE,
    FLAGS_SOURCE,
    PERMISSION_MODES,
    SUBAGENT_TOOL,
    PermissionRule,
    Policy,
    PolicyDecision,
    parse_permission_rules,
)
from shim.core.policy.settings import ClaudeSettings, SettingsSource
from shim.core.reading.typed import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from shim.core.claude.agent_definitions import AgentDefinition, AgentDefinitions
    from shim.core.claude.agent_run import AgentRequests
    from shim.core.claude.command_files import CommandCall, CommandFiles
    from shim.core.claude.hooks.answers import HookDecision
    from shim.core.claude.hooks.callbacks import HookCallbacks
    from shim.core.claude.local_commands import LocalCommand
    from shim.core.claude.mcp_reports import McpServerReport
    from shim.core.claude.messages import UserMessage
    from shim.core.claude.offered_commands import OfferedCommand
    from shim.core.claude.permissions import PermissionRuleChange, WorkingDirectoryChange
    from shim.core.claude.sdk_servers import SdkMcpServerRegistry
    from shim.core.claude.usage import Usage
    from shim.core.policy.policy import UnsupportedRule
    from shim.core.policy.settings_hooks import SettingsHook

MODE_NAMES = tuple(sorted(PERMISSION_MODES))


class SessionOptions(NamedTuple):
    """Session options that never change while the session runs.

    keeps_session_id whether the id stays the same if the conversation continues in a new session:
                     the clients of a background session know only this id
    answers_commands whether the shim answers Claude's commands, such as /clear
    has_commands     whether `--disable-slash-commands` is missing
    pid              the shim's process id
    allows_bypass    whether the session may change to the mode bypassPermissions
    state_events     "", "visible" or "host" (contract 5.13)
    echoes_messages  whether the frontend's messages are echoed (C15)
    max_line_bytes   the maximum length of an output line; longer prompts are not sent
    validate_model   returns a model name without its vendor prefix; raises ValueError if the model
                     must not be passed to the vendor
    map_model        returns the vendor's name for a validated model; None means the vendor's
                     default model
    list_models      returns the models that the current vendor offers, as far as they are known
    elapsed_ms       returns the milliseconds since the session started
    output_style     the output style in Claude's settings, which only the real claude applies
    find_transcript  returns the path of the session's transcript, or "" if there is none
    start_trigger    how the session started: "startup", "resume" or "fork"
    shows_hook_events  whether the frontend receives a line for each run of a hook command
    event_hooks      the hooks in Claude's settings files that run in this session, except those
                     before a tool call
    claude_settings  Claude's settings when the session started
    load_settings    reloads Claude's settings files; raises FrontendError or OSError
    load_setting_sources  loads the content of Claude's settings files; raises FrontendError or
                     OSError
    read_file        reads at most the given number of bytes of a regular file; raises OSError
    load_commands    reads Claude's command files and skills
    load_vendor_commands  returns the commands that the current vendor offered in its last session
    """

    session_id: str
    cwd: str = ""
    pid: int = 0
    allows_bypass: bool = False
    state_events: str = ""
    echoes_messages: bool = False
    max_line_bytes: int = 1_000_000
    validate_model: Callable[[str], str | None] = lambda model: model
    map_model: Callable[[str], str | None] = lambda model: model
    list_models: Callable[[], Iterable[OfferedModel]] = tuple
    elapsed_ms: Callable[[], int] = int
    output_style: str = "default"
    find_transcript: Callable[[], str] = str
    claude_settings: ClaudeSettings = ClaudeSettings()
    load_settings: Callable[[], ClaudeSettings] = ClaudeSettings
    load_setting_sources: Callable[[], Iterable[SettingsSource]] = tuple
    read_file: Callable[[str, int], bytes] | None = None
    keeps_session_id: bool = False
    answers_commands: bool = False
    has_commands: bool = True
    load_commands: "Callable[[], CommandFiles]" = tuple
    load_vendor_commands: Callable[[], tuple["OfferedCommand", ...]] = tuple
    start_trigger: str = "startup"
    shows_hook_events: bool = False
    event_hooks: "tuple[SettingsHook, ...]" = ()


class VendorCapabilities(NamedTuple):
    """The capabilities of the session's current vendor.

    modes                the permission modes that the vendor supports
    asks_permissions     the vendor asks for permission before it runs a tool
    asks_in_bypass_mode  the vendor asks even in the mode bypassPermissions
    never_asks           the vendor runs its tools and never asks
    accepts_effort       the vendor accepts an effort level
    asks_for_all         only rules can answer the vendor's requests, because the vendor has already
                         applied Claude's permission mode and rules; also set for a replay
    accepts_mcp_servers  the vendor accepts MCP servers
    has_auto_mode        the vendor's models can decide which calls may run (the mode auto)
    agents_error         why the vendor cannot run the subagents that a frontend defines, or ""
    runs_settings_hooks  the vendor itself runs the hooks in Claude's settings files, or nothing may
                         run them
    """

    display_name: str
    modes: tuple[str, ...] = MODE_NAMES
    asks_permissions: bool = False
    asks_in_bypass_mode: bool = False
    never_asks: bool = False
    accepts_effort: bool = False
    asks_for_all: bool = False
    accepts_mcp_servers: bool = False
    has_auto_mode: bool = False
    agents_error: str = ""
    runs_settings_hooks: bool = False


class SessionUsage(NamedTuple):
    """What a session has used so far.

    api_duration_ms          the time of requests to the model, as far as the vendor reports it
    last_request             the usage of the last request to the model
    by_model                 the usage by model
    context_tokens           the tokens in the context; 0 means that the vendor does not count them
    context_window_tokens    the size of the current model's context; 0 means that the vendor has
                             not reported it
    context_window_by_model  the sizes that the vendor has reported
    """

    cost_usd: float = 0.0
    api_duration_ms: int = 0
    last_request: Mapping[str, int] = {}
    by_model: Mapping[str, "Usage"] = {}
    context_tokens: int = 0
    context_window_tokens: int = 0
    context_window_by_model: Mapping[str, int] = {}


class EmptySdkMcpServerRegistry(tuple[()]):
    """A registry for frontends that have no MCP servers in their process.

    Most frontends have none, and this class avoids the import of `sdk_servers`.
    """

    __slots__ = ()

    def deliver_server_message(self, server: object, message: object) -> bool:
        return False

    def take_control_request_lines(self) -> list[bytes]:
        return []

    def accept_frontend_response(self, request_id: str, response: Mapping[str, Any]) -> bool:
        return False

    def register_servers(self, names: Iterable[object]) -> None: ...

    @property
    def names(self) -> tuple[str, ...]:
        return ()

    @property
    def tool_names(self) -> list[str]:
        return []

    def initialize_servers(self) -> None: ...

    def unregister_servers(self, names: Iterable[str]) -> None: ...

    def close(self) -> None: ...


class SessionState:
    """The session state that control requests read and change. The conversation reads the state
    when a turn starts.

        answers_prompts          whether the frontend answers permission prompts
        requested_model          the model that the frontend requested, by the frontend's name for it
        model                    the vendor's name for the requested model
        initial_model            the model from the command line
        effort                   the effort level; None means the vendor's default
        reported_model           the model that the vendor reports, or ""
        offered_models           the models that the vendor has listed in this session
        offered_commands         the vendor's commands; None if they are not known yet
        hooks                    the hooks from the frontend's `initialize` request
        sdk_servers              the MCP servers in the frontend's process
        configured_servers       the other MCP servers: name → configuration
        ignored_options          the options of the frontend that have no effect
        ignored_command_fields   the header fields of the turn's command that have no effect
        initialize_server_names  the names of the MCP servers from the frontend's control requests
        dynamic_server_names     the names of the MCP servers from `mcp_set_servers`
        disabled_servers         the MCP servers that the frontend has disabled: name → configuration
        server_statuses          the statuses of MCP servers that the vendor has reported, by name
        flag_settings            the settings that the frontend has set during the session
        server_revision          increased when the vendor must be restarted with other MCP servers
        sdk_servers_error        why the vendor cannot reach MCP servers in the frontend's process, or ""
        claude_settings          the settings from Claude's settings files that apply to the session
        agents                   the subagents from the frontend and from Claude's files, by name
        agent_requests           the control requests of running subagents; None if none has run
        prompt_id                identifies the user's message in the input of hooks, or ""
        raw_hooks                the `hooks` member of the frontend's `initialize` request
        enforcement_checks       functions that return why a vendor would not apply a policy before a
                                 tool call runs, or ""
    """

    def __init__(
        self,
        options: SessionOptions,
        vendor: VendorCapabilities,
        *,
        mode: str = "default",
        model: str | None = None,
        effort: str | None = None,
        answers_prompts: bool = False,
        policy: "Policy | None" = None,
    ) -> None:
        self.options = options
        self.vendor = vendor
        self.mode = mode
        self.requested_model = self.initial_model = model
        self.effort = effort
        self.answers_prompts = answers_prompts
        self.policy = policy
        self.claude_settings = options.claude_settings
        self.hooks: HookCallbacks | None = None
        self.sdk_servers: SdkMcpServerRegistry | EmptySdkMcpServerRegistry = (
            EmptySdkMcpServerRegistry()
        )
        self.configured_servers: dict[str, Any] = {}
        self.initialize_server_names: frozenset[str] = frozenset()
        self.dynamic_server_names: frozenset[str] = frozenset()
        self.disabled_servers: dict[str, Any] = {}
        self.server_statuses: Mapping[str, McpServerReport] = {}
        self.server_revision = 0
        self.flag_settings: Mapping[str, Any] = {}
        self.sdk_servers_error = ""
        self.agents: AgentDefinitions = {}
        self.agent_requests: AgentRequests | None = None
        self.prompt_id = ""
        self.raw_hooks: Mapping[str, Any] = {}
        self.enforcement_checks: list[Callable[[Policy], str]] = []
        self.reported_model = ""
        self.offered_models: tuple[OfferedModel, ...] = ()
        self.offered_commands: tuple[OfferedCommand, ...] | None = None
        self.system_prompt: str | None = None
        self.append_system_prompt: str | None = None
        # Whether the frontend's `initialize` requested the subagents' texts.
        self.forwards_subagent_text = False
        self.usage = SessionUsage()  # the usage at the end of the last turn
        self.ignored_options: tuple[UnsupportedRule, ...] = ()
        self.ignored_command_fields: tuple[UnsupportedRule, ...] = ()
        self._command_files: CommandFiles | None = None  # None until they are needed
        # The requested and initial models of each vendor that served the session before.
        self._models_by_vendor: dict[str, tuple[str | None, str | None]] = {}

    @property
    def asks_permissions(self) -> bool:
        """Whether the vendor asks for permission in the current mode."""
        if not self.vendor.asks_permissions:
            return False
        if self.vendor.asks_in_bypass_mode:
            return True
        return self.mode != BYPASS_MODE

    @property
    def hooks_may_allow(self) -> bool:
        """Whether a hook may allow a tool call that is not allowed otherwise."""
        if self.hooks is not None and self.hooks.can_allow_calls:
            return True
        return any(hook.event == PERMISSION_EVENT for hook in self.options.event_hooks)

    def open_agent_requests(self) -> "AgentRequests":
        """Create and return the list of control requests that running subagents send."""
        from shim.core.claude.agent_run import AgentRequests

        self.agent_requests = AgentRequests(self.options.max_line_bytes)
        return self.agent_requests

    def start_new_session(self, session_id: str) -> None:
        """Continue in a new session. The settings of the frontend still apply."""
        start_ms = self.options.elapsed_ms()
        elapsed_ms = self.options.elapsed_ms
        self.options = self.options._replace(
            session_id=session_id, elapsed_ms=lambda: elapsed_ms() - start_ms
        )
        self.usage = SessionUsage()
        self.prompt_id = ""

    def parse_local_command(self, message: "UserMessage") -> "LocalCommand | None":
        """Return the command in a message that the shim answers, or None."""
        if not self.options.answers_commands or message.is_verbatim:
            return None
        if not message.text.startswith("/"):
            return None
        from shim.core.claude.local_commands import parse_local_command

        return parse_local_command(message)

    def add_sdk_mcp_servers(self, names: Iterable[object]) -> None:
        """Register MCP servers that run in the frontend's process."""
        if isinstance(self.sdk_servers, EmptySdkMcpServerRegistry):
            from shim.core.claude.sdk_servers import SdkMcpServerRegistry

            self.sdk_servers = SdkMcpServerRegistry(self.options.max_line_bytes)
        self.sdk_servers.register_servers(names)

    def replace_dynamic_servers(self, servers: Mapping[str, Any]) -> tuple[list[str], list[str]]:
        """Replace the MCP servers that earlier requests have set. Return the names of the servers
        that were added or changed, and of those that were removed.
        """
        removed = [name for name in self.dynamic_server_names if name not in servers]
        added = [name for name in servers if self.configured_servers.get(name) != servers[name]]
        for name in removed:
            self.configured_servers.pop(name, None)
        for name in (*removed, *servers):
            self.disabled_servers.pop(name, None)
        self.configured_servers |= servers
        self.dynamic_server_names = frozenset(servers)
        self.initialize_server_names |= frozenset(servers)
        if added or removed:
            self.request_server_restart()
        return added, removed

    def toggle_configured_server(self, name: str, *, enabled: bool) -> bool:
        """Enable or disable an MCP server. Return whether the server exists."""
        source, target = self.configured_servers, self.disabled_servers
        if enabled:
            source, target = target, source
        if name in source:
            target[name] = source.pop(name)
            self.request_server_restart()
        return name in target

    def request_server_restart(self) -> None:
        """Request a restart of the vendor, with the current servers, before its next message."""
        self.server_revision += 1
        self.server_statuses = {}

    @property
    def mcp_servers_error(self) -> str:
        """Why the vendor cannot use MCP servers, or ""."""
        if self.vendor.accepts_mcp_servers:
            return ""
        return f"{self.vendor.display_name} does not support MCP servers"

    def list_sdk_mcp_tools(self) -> list[str]:
        """Return the names of the tools on MCP servers in the frontend's process, and of the shim's
        own tool for subagents. Return [] if the vendor cannot reach these servers.
        """
        if not self.vendor.accepts_mcp_servers or self.sdk_servers_error:
            return []
        if self.usable_agents:
            return [*self.sdk_servers.tool_names, AGENT_TOOL]
        return self.sdk_servers.tool_names

    def receives_calls_of(self, tool: str) -> bool:
        """Return whether the calls of a tool reach the shim with their arguments, because its MCP
        server is in the shim or in the frontend's process.
        """
        if tool == SUBAGENT_TOOL:
            return bool(self.usable_agents)
        return tool in self.sdk_servers.tool_names

    @property
    def usable_agents(self) -> "tuple[AgentDefinition, ...]":
        """The subagents that the vendor can run."""
        if self.vendor.agents_error:
            return ()
        return tuple(self.agents.values())

    def add_agents(self, agents: "AgentDefinitions") -> None:
        """Add subagents. They replace earlier subagents with the same names."""
        from shim.core.claude.agent_definitions import merge_agents

        self.agents = merge_agents(self.agents, agents)

    @property
    def command_files(self) -> "CommandFiles":
        """Claude's command files and skills, which are read when they are first needed."""
        if self._command_files is None:
            self._command_files = self.options.load_commands()
        return self._command_files

    def find_command_call(self, message: "UserMessage") -> "CommandCall | None":
        """Return the command file that a message invokes, or None. The files are read again for
        each message that begins with a slash.
        """
        if message.is_verbatim or "/" not in message.text:
            return None
        from shim.core.claude.command_files import find_command_call, find_command_text

        if not find_command_text(message):
            return None
        self.discard_command_files()
        return find_command_call(message, self.command_files)

    def discard_command_files(self) -> None:
        """Read Claude's command files again when they are needed next."""
        self._command_files = None

    @property
    def vendor_commands(self) -> "tuple[OfferedCommand, ...]":
        """The commands that the vendor has offered in this session. If it has not listed any yet,
        the commands from its previous session.
        """
        if self.offered_commands is None:
            self.offered_commands = self.options.load_vendor_commands()
        return self.offered_commands

    @property
    def answers_local_commands(self) -> bool:
        """Whether the shim answers its own commands, such as /clear."""
        return self.options.answers_commands and self.options.has_commands

    def add_flag_settings(self, settings: Mapping[str, Any]) -> None:
        """Merge settings into the frontend's earlier settings. A value of None removes its key."""
        merged = {**self.flag_settings, **settings}
        self.flag_settings = {key: value for key, value in merged.items() if value is not None}

    def switch_vendor(self, vendor: VendorCapabilities) -> None:
        """Continue the session with another vendor.

        If the vendor served the session before, the models that were requested from it are
        restored. Otherwise a requested model is only kept if its name is one of Claude's model
        names.
        """
        models = self._models_by_vendor[self.vendor.display_name] = (
            self.requested_model,
            self.initial_model,
        )
        claude_models = [name if name and is_claude_model(name) else None for name in models]
        self.vendor = vendor
        self.requested_model, self.initial_model = self._models_by_vendor.get(
            vendor.display_name, claude_models
        )
        self.reported_model = ""
        self.offered_models = ()
        self.offered_commands = None

    @property
    def model(self) -> str | None:
        """The vendor's name for the requested model. None means the vendor's default model."""
        if self.requested_model:
            return self.options.map_model(self.requested_model)
        return None

    @property
    def unknown_model(self) -> str:
        """The requested model if the real claude would report that it does not exist, or ""."""
        name = self.requested_model
        if name and is_impossible_claude_model(name) and self.options.map_model(name) is None:
            return name
        return ""

    def evaluate_tool_call(
        self, tool: str, tool_input: Mapping[str, Any], hook_decision: "HookDecision | None" = None
    ) -> PolicyDecision:
        """Return the decision of the hooks and the policy about a tool call.

        Without a policy, a tool call needs a prompt unless a hook allows it.
        """
        is_allowed = hook_decision is not None and bool(hook_decision.allow)
        requires_prompt = hook_decision is not None and hook_decision.requires_prompt
        if self.policy is None:
            return PolicyDecision("allow" if is_allowed else "ask", self.mode, is_by_rule=False)
        from shim.core.policy.evaluate import PolicyEvaluator

        evaluator = PolicyEvaluator(self.policy, asks_for_all=self.vendor.asks_for_all)
        return evaluator.evaluate_tool_call(
            tool,
            tool_input,
            self.mode,
            hook_allows_call=is_allowed,
            hook_requires_prompt=requires_prompt,
        )

    def apply_permission_updates(
        self, updates: "Iterable[PermissionRuleChange | WorkingDirectoryChange]"
    ) -> None:
        """Change permission rules and working directories for the rest of the session. The user
        requests these changes in an answer to a prompt.
        """
        from shim.core.claude.permissions import PermissionRuleChange

        policy = self.policy
        if policy is None:
            return
        for update in updates:
            if isinstance(update, PermissionRuleChange):
                rules = parse_permission_rules(update.rules, source=ANSWER_SOURCE)
                if update.operation != "add":
                    policy.remove_rules(
                        update.outcome, rules if update.operation == "remove" else None
                    )
                if update.operation != "remove":
                    policy.add_rules({update.outcome: rules})
            elif update.operation == "add":
                policy.add_working_directories(update.directories)
            else:
                policy.remove_working_directories(update.directories)

    def replace_flag_permission_rules(self, deny: Iterable[str], ask: Iterable[str]) -> None:
        """Replace the deny and ask rules that the flag settings contain.

        Raise ValueError with the reason if a vendor would not apply the new rules. In this case, no
        rule is changed.
        """
        if self.policy is None:
            if any((*deny, *ask)):
                raise ValueError(
                    f"{self.vendor.display_name} does not accept rules during a session"
                )
            return
        rules = {
            "deny": parse_permission_rules(deny, source=FLAGS_SOURCE),
            "ask": parse_permission_rules(ask, source=FLAGS_SOURCE),
        }
        self._restrict(self.policy, self.policy.with_restricting_rules(rules, FLAGS_SOURCE))

    def reload_settings(self) -> ClaudeSettings:
        """Reload Claude's settings files and add their new deny and ask rules. Return the settings
        that now apply to the session.

        Rules that a vendor would not apply are not added. Rules that were removed from a file stay
        in force until the session is restarted. All other settings also stay unchanged until then.
        """
        try:
            settings = self.options.load_settings()
            self._add_settings_rules(settings.deny, settings.ask)
        except (FrontendError, OSError, ValueError):
            return self.claude_settings
        applied = self.claude_settings
        self.claude_settings = applied._replace(
            deny=tuple(dict.fromkeys((*applied.deny, *settings.deny))),
            ask=tuple(dict.fromkeys((*applied.ask, *settings.ask))),
        )
        return self.claude_settings

    def _add_settings_rules(
        self, deny: Iterable[PermissionRule], ask: Iterable[PermissionRule]
    ) -> None:
        if self.policy is None:
            return
        import copy

        stricter_policy = copy.copy(self.policy)
        stricter_policy.add_rules(
            {
                "deny": [rule for rule in deny if rule not in self.claude_settings.deny],
                "ask": [rule for rule in ask if rule not in self.claude_settings.ask],
            }
        )
        self._restrict(self.policy, stricter_policy)

    def _restrict(self, policy: Policy, stricter_policy: Policy) -> None:
        """Apply the rules of a stricter policy. Raise ValueError if a vendor would not apply these
        rules.
        """
        if stricter_policy.restricting_rules == policy.restricting_rules:
            return
        for explain_unenforceable in self.enforcement_checks:
            if reason := explain_unenforceable(stricter_policy):
                raise ValueError(reason)
        policy.deny = stricter_policy.deny
        policy.ask = stricter_policy.ask

    def suggest_permission_updates(
        self, tool: str, tool_input: Mapping[str, Any]
    ) -> list[dict[str, Any]]:
        """Return permission updates that would allow a tool call without a prompt."""
        if self.policy is None:
            return []
        from shim.core.policy.policy import EDIT_MODE
        from shim.core.policy.suggestions import suggest_rule_updates

        can_accept_edits = self.mode == "default" and EDIT_MODE in self.vendor.modes
        return suggest_rule_updates(
            self.policy, tool, tool_input, self.mode, can_edit=can_accept_edits
        )

    def resolve_model_name(self) -> str:
        return self.model or self.reported_model or "default"
