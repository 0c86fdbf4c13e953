"""What a frontend may ask and change in the middle of a conversation: the vendor's name, models,
mode, prompts.
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
    """What holds for a whole session.

    pid              the number of our process
    allows_bypass    the session may change to bypassPermissions
    state_events     "", "visible" or "host" (contract 5.13)
    echoes_messages  a message of the frontend's is said back (C15)
    max_line_bytes   no line of ours is longer: a question that would be is not put
    validate_model   gives a model's name without its prefix; ValueError for a model that is not the
                     vendor's to be told
    map_model        gives the name that the vendor is told for such a name; None is the vendor's
                     own default
    list_models      gives the names of the models that can be chosen from the vendor that serves
    output_style     the name of the output style in Claude's settings; only the real claude applies
                     it
    find_transcript  gives the path of the session's transcript, "" if none is written
    claude_settings  what Claude's settings files said when the session was started
    load_settings    reads Claude's settings files as they are now. It raises FrontendError or
                     OSError
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
    """The vendor that serves the session now.

    modes                the permission modes that it can honour
    asks_permissions     it asks permissions
    asks_in_bypass_mode  it asks in the mode bypassPermissions too
    never_asks           it runs its tools and never asks
    accepts_effort       it can be told how hard its model is to try
    asks_for_all         no mode spares one of its questions, only a rule does: it asks by Claude's
                         rules, or did so once, in a recording
    accepts_mcp_servers  it takes MCP servers
    has_auto_mode        its models can decide what may run (the mode auto)
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
    """A frontend without MCP servers in its process, which is nearly every one: nothing of theirs
    is imported.
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
    """What the answers are made of, and what the requests change: the conversation reads it when a
    turn begins.

    answers_prompts     whether the frontend answers permission requests
    requested_model     the model that the frontend asked for, in its own words; `model` is what the
                        vendor is told
    initial_model       what the command line asked for
    effort              how hard the model is to try; None is the vendor's own
    reported_model      what the vendor used by itself, as far as it has said so
    hooks               what the frontend's `initialize` registered
    sdk_servers         the MCP servers that live in the frontend's process
    configured_servers  the other MCP servers: name → configuration; `initialize_server_names` are
                        those that `initialize` named
    sdk_servers_error   why the vendor cannot reach a server in the frontend's process
    claude_settings     what the session applies of Claude's settings files
    enforcement_checks  each says why a vendor would not keep a policy before a call runs; "" where
                        it would
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
        # the frontend's `initialize` asked for texts of subagents
        self.forwards_subagent_text = False
        self.cost_usd = 0.0
        self.context_tokens = 0  # input and output of the latest reply; 0 before the first
        # of the vendors that served before
        self._models_by_vendor: dict[str, tuple[str | None, str | None]] = {}

    @property
    def asks_permissions(self) -> bool:
        """Whether the vendor asks about its calls in the mode that is in force."""
        if not self.vendor.asks_permissions:
            return False
        return self.vendor.asks_in_bypass_mode or self.mode != BYPASS_MODE

    def add_sdk_mcp_servers(self, names: Iterable[object]) -> None:
        """The frontend has MCP servers in its own process."""
        if not self.sdk_servers:
            from shim.core.claude.sdk_servers import SdkMcpServerRegistry

            self.sdk_servers = SdkMcpServerRegistry(self.options.max_line_bytes)
        self.sdk_servers.register_servers(names)

    def list_mcp_server_entries(self, *, detailed: bool = False) -> list[dict[str, Any]]:
        """What `init` says of the MCP servers, or, `detailed`, `mcp_status`.

        Of a server outside of the frontend only the vendor knows whether it runs.
        """
        unsupported_reason = ""
        if not self.vendor.accepts_mcp_servers:
            unsupported_reason = f"{self.vendor.display_name} takes no MCP servers"
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
        """The tools of servers in the frontend's process, where the vendor reaches them."""
        if self.vendor.accepts_mcp_servers and not self.sdk_servers_error:
            return self.sdk_servers.tool_names
        return []

    def switch_vendor(self, vendor: VendorCapabilities) -> None:
        """Another vendor serves from now on. Of the models that were asked for, those in Claude's
        words are its too.
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
        """The model that the vendor is told; None is its own default."""
        if self.requested_model:
            return self.options.map_model(self.requested_model)
        return None

    def evaluate_tool_call(
        self, tool: str, tool_input: Mapping[str, Any], hook_decision: "HookDecision | None" = None
    ) -> PolicyDecision:
        """What becomes of a call that the vendor asks about, under the verdict of its hooks.

        Without a policy, and without a hook that allows it, the call is a question.
        """
        is_allowed, requires_prompt = (
            (bool(hook_decision.allow), hook_decision.requires_prompt)
            if hook_decision is not None
            else (False, False)
        )
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
        """Change rules and folders for the rest of this session: the frontend's user said so."""
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
                    f"{self.vendor.display_name} takes no rules in the middle of a session"
                )
            return
        rules = {
            "deny": parse_permission_rules(deny, source=FLAGS_SOURCE),
            "ask": parse_permission_rules(ask, source=FLAGS_SOURCE),
        }
        self._restrict(self.policy, self.policy.with_restricting_rules(rules, FLAGS_SOURCE))

    def reload_settings(self) -> ClaudeSettings:
        """Read Claude's settings files again, and add their new rules that deny or ask. Return what
        the session applies now.

        Rules that a vendor would not apply are not added. Rules that were removed from a file, and
        all other settings, stay as they are until the session is started again.
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
        """Apply the rules of a stricter policy. Raise ValueError if a vendor would not apply them."""
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
        """The updates of permissions that would have allowed a call."""
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
        """At least one: some clients take the first without looking (C3)."""
        default_description = f"The model that {self.vendor.display_name} uses by itself"
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
