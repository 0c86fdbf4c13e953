"""The settings of a conversation that a frontend can query and change: its model, its permission
mode, its permission rules and its MCP servers.
"""

from collections.abc import Callable, Iterable, Mapping

from shim.core.claude.argv.models import CLAUDE_EFFORT_LEVELS, DEFAULT_MODEL, is_claude_model
from shim.core.errors import FrontendError
from shim.core.policy.policy import (
    ANSWER_SOURCE,
    BYPASS_MODE,
    FLAGS_SOURCE,
    PERMISSION_MODES,
    PermissionRule,
    Policy,
    PolicyDecision,
    parse_permission_rules,
)
from shim.core.policy.settings import ClaudeSettings
from shim.core.reading.typed import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from shim.core.claude.hooks.callbacks import HookCallbacks
    from shim.core.claude.hooks.callbacks import HookDecision as HookDecision
    from shim.core.claude.permissions import PermissionRuleChange, WorkingDirectoryChange
    from shim.core.claude.sdk_servers import SdkMcpServerRegistry

MODE_NAMES = tuple(sorted(PERMISSION_MODES))


class SessionOptions(NamedTuple):
    """Options that do not change during a session.

    pid              the id of our process
    allows_bypass    the session may change to bypassPermissions
    state_events     "", "visible" or "host" (contract 5.13)
    echoes_messages  messages of the frontend are echoed (C15)
    max_line_bytes   the maximum length of our lines; a prompt that would be longer is not sent
    validate_model   returns a model's name without its prefix; raises ValueError for a model that
                     must not be passed to the vendor
    map_model        returns the vendor's name for such a name; None means the vendor's default model
    list_models      returns the names of the models that can be selected from the current vendor
    output_style     the name of the output style in Claude's settings; only the real claude applies
                     it
    find_transcript  returns the path of the session's transcript, or "" if none is written
    claude_settings  Claude's settings at the start of the session
    load_settings    reads Claude's settings files again; raises FrontendError or OSError
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
    list_models: Callable[[], Iterable[str]] = tuple
    output_style: str = "default"
    find_transcript: Callable[[], str] = str
    claude_settings: ClaudeSettings = ClaudeSettings()
    load_settings: Callable[[], ClaudeSettings] = ClaudeSettings


class VendorCapabilities(NamedTuple):
    """The capabilities of the vendor that currently serves the session.

    modes                the permission modes that it supports
    asks_permissions     it asks for permissions
    asks_in_bypass_mode  it asks even in the mode bypassPermissions
    never_asks           it runs its tools and never asks
    accepts_effort       an effort level can be passed to it
    asks_for_all         only a rule can answer one of its requests, not a mode, because it has
                         already applied Claude's rules and mode itself; also set for a replay
    accepts_mcp_servers  it accepts MCP servers
    has_auto_mode        its models can decide which calls may run (the mode auto)
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


class EmptySdkMcpServerRegistry(tuple[()]):
    """The registry of a frontend without MCP servers in its process.

    This is the common case, and it avoids the import of `sdk_servers`.
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

    def close(self) -> None: ...


class SessionState:
    """The state of a session that control requests read and change. The conversation reads it when
    a turn starts.

    answers_prompts     the frontend answers permission prompts
    requested_model     the model that the frontend requested, by its own name; `model` is the
                        vendor's name
    initial_model       the model of the command line
    effort              the effort level of the model; None means the vendor's default
    reported_model      the model that the vendor reported that it uses; "" if it reported none
    hooks               the hooks that the frontend's `initialize` registered
    sdk_servers         the MCP servers in the frontend's process
    configured_servers  the other MCP servers: name → configuration; `initialize_server_names` are
                        those that `initialize` named
    sdk_servers_error   why the vendor cannot reach a server in the frontend's process
    claude_settings     the values of Claude's settings files that the session applies
    enforcement_checks  each returns why a vendor would not apply a policy before a call runs, or ""
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
        self.configured_servers: Mapping[str, Any] = {}
        self.initialize_server_names: frozenset[str] = frozenset()
        self.sdk_servers_error = ""
        self.enforcement_checks: list[Callable[[Policy], str]] = []
        self.reported_model = ""
        self.system_prompt: str | None = None
        self.append_system_prompt: str | None = None
        # the frontend's `initialize` requested the texts of subagents
        self.forwards_subagent_text = False
        self.cost_usd = 0.0
        self.context_tokens = 0  # input and output of the latest reply; 0 before the first
        # requested and initial models of vendors that served the session before
        self._models_by_vendor: dict[str, tuple[str | None, str | None]] = {}

    @property
    def asks_permissions(self) -> bool:
        """Whether the vendor asks for permission in the current mode."""
        if not self.vendor.asks_permissions:
            return False
        if self.vendor.asks_in_bypass_mode:
            return True
        return self.mode != BYPASS_MODE

    def add_sdk_mcp_servers(self, names: Iterable[object]) -> None:
        """Register MCP servers in the frontend's own process."""
        if not self.sdk_servers:
            from shim.core.claude.sdk_servers import SdkMcpServerRegistry

            self.sdk_servers = SdkMcpServerRegistry(self.options.max_line_bytes)
        self.sdk_servers.register_servers(names)

    def list_mcp_server_entries(self, *, detailed: bool = False) -> list[dict[str, Any]]:
        """Return the entries of the MCP servers for `init`, or for `mcp_status` if `detailed`.

        An external server is listed as `pending`, because only the vendor knows whether it runs. If
        the vendor cannot use a server, its status is `failed`.
        """
        unsupported_reason = ""
        if not self.vendor.accepts_mcp_servers:
            unsupported_reason = f"{self.vendor.display_name} does not support MCP servers"
        external_names = [
            name for name in self.configured_servers if name not in self.sdk_servers.names
        ]
        sdk_entries = [
            server.mcp_server_entry_in_status if detailed else server.mcp_server_entry_in_init
            for server in self.sdk_servers
        ]
        external_entries: list[dict[str, Any]] = [
            {"name": name, "status": "pending", "source": "dynamic"} for name in external_names
        ]

        def add_failure(entries: list[dict[str, Any]], reason: str) -> list[dict[str, Any]]:
            failure_fields = {"status": "failed", **({"error": reason} if detailed else {})}
            if reason:
                return [entry | failure_fields for entry in entries]
            return entries

        return add_failure(sdk_entries, self.sdk_servers_error or unsupported_reason) + add_failure(
            external_entries, unsupported_reason
        )

    def list_sdk_mcp_tools(self) -> list[str]:
        """Return the tools of servers in the frontend's process, or [] if the vendor cannot reach
        them.
        """
        if self.vendor.accepts_mcp_servers and not self.sdk_servers_error:
            return self.sdk_servers.tool_names
        return []

    def switch_vendor(self, vendor: VendorCapabilities) -> None:
        """Continue the session with another vendor.

        A vendor that served the session before gets its requested models back. For any other
        vendor, requested models are kept only if they are Claude's names.
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

    @property
    def model(self) -> str | None:
        """The vendor's name of the requested model. None means the vendor's default model."""
        if self.requested_model:
            return self.options.map_model(self.requested_model)
        return None

    def evaluate_tool_call(
        self, tool: str, tool_input: Mapping[str, Any], hook_decision: "HookDecision | None" = None
    ) -> PolicyDecision:
        """Return what the hooks and the policy decide about a call that the vendor asks about.

        Without a policy, a call needs a prompt unless a hook allows it.
        """
        if hook_decision is not None:
            is_allowed = bool(hook_decision.allow)
            requires_prompt = hook_decision.requires_prompt
        else:
            is_allowed = False
            requires_prompt = False
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
        """Change rules and folders for the rest of the session, as the frontend's user
        requested.
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
        """Replace the rules of the flag settings.

        Raise ValueError with the reason if a vendor would not apply the new ones. Then nothing has
        changed.
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
        """Read Claude's settings files again, and add their new deny and ask rules. Return the
        settings that the session applies now.

        Rules that a vendor would not apply are not added. Rules that were removed from a file, and
        all other settings, stay unchanged until the session is restarted.
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
        """Apply the rules of a stricter policy. Raise ValueError if a vendor would not apply
        them.
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
        """Return the permission updates that would have allowed a call."""
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

    def list_models(self) -> list[dict[str, Any]]:
        """Return the models that can be selected, the default first. The list is never empty,
        because some clients read its first element without a check (C3).
        """
        default_description = f"The default model of {self.vendor.display_name}"
        models = [
            {
                "value": DEFAULT_MODEL,
                "displayName": f"Default ({self.vendor.display_name})",
                "description": default_description,
            }
        ]
        names = (
            *self.options.list_models(),
            *(() if self.initial_model is None else (self.initial_model,)),
        )
        for name in dict.fromkeys(names):
            if name != DEFAULT_MODEL and (model := self.options.map_model(name)):
                models.append(
                    {
                        "value": name,
                        "displayName": name,
                        "description": f"{model} through {self.vendor.display_name}",
                    }
                )
        abilities: dict[str, Any] = {"supportsAutoMode": self.vendor.has_auto_mode}
        if self.vendor.accepts_effort:
            abilities |= {
                "supportsEffort": True,
                "supportedEffortLevels": list(CLAUDE_EFFORT_LEVELS),
            }
        return [model | abilities for model in models]
