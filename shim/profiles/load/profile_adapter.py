"""The adapter for a vendor that is defined by a profile."""

from collections.abc import Callable, Mapping

from shim.core.adapter.adapter import (
    Adapter,
    LaunchRequest,
    LaunchSpec,
    VendorAbilities,
    VendorCliInfo,
    VendorEnvironment,
    VendorPolicySupport,
    VendorSessionBehavior,
    VendorShutdownConfig,
    load_class,
)
from shim.core.adapter.tools import Tools
from shim.core.adapter.versions import LoginProbe, ModelProbe
from shim.core.policy.policy import PERMISSION_MODES, PermissionRule
from shim.core.reading.typed import TYPE_CHECKING, Any
from shim.core.reading.values import as_dict
from shim.profiles.check.config_node import ConfigNode
from shim.profiles.load.launch import HOME_KEYS, LaunchTemplate, ModeTools

if TYPE_CHECKING:
    from shim.core.adapter.translator import Translator
    from shim.core.policy.settings_hooks import SettingsHook
    from shim.profiles.compile.rules import ProfileRuleMatchObserver

_STREAMED_MODES = ("delta", "cumulative")
SYSTEMS = ("linux", "darwin")  # the keys of `overruled_by`
# The value of `two_way` in a profile → an adapter that drives the program so that it asks for
# permission.
TWO_WAY_ADAPTERS = {"codex_input": "shim.adapters.codex_input:CodexThreadAdapter"}

Table = Mapping[str, Any]
TranslatorLoader = Callable[[], "type[Translator]"]


class ProfileAdapter(Adapter):
    """The adapter for a vendor that is defined by a profile. `profile` has the values of
    PROFILE_KEYS.

    `load_translator_class` imports the class that the profile names, if there is one. `trace`
    receives each event's matching rules.
    """

    def __init__(
        self,
        node: ConfigNode,
        profile: dict[str, Any],
        template: LaunchTemplate,
        tools: Tools,
        load_translator_class: TranslatorLoader | None = None,
        trace: "ProfileRuleMatchObserver | None" = None,
    ) -> None:
        self.name = profile["id"]
        self.node = node
        self.tools = tools
        self._load_translator_class = load_translator_class
        self._trace = trace
        self._translator: type[Translator] | None = None
        if not node.source.is_bundled:  # report mistakes before a child starts
            _ = self.translator_class
        self._template = template
        self._mode_tools: ModeTools = template.mode_tools
        self._load_hook_rules = template.load_rules
        if template.denials is not None:
            self._load_hook_rules = None
        self.programs = template.programs
        self.modes = _parse_modes(template.values["permission_args"])
        self.listed_tools = _list_claude_tools(node, profile, tools)
        self.unattended = profile["unattended"]
        self.login_hint = template.values["login"]
        self.timeouts_s = _build_timeouts(template.values["timeouts"])
        self.version_probe = template.version_probe
        self.abilities = _build_abilities(node, template)
        self._two_way_ref = _choose_two_way_adapter(node, profile["two_way"])
        self.session_traits = _build_session_traits(node, profile)
        self.shutdown = _build_shutdown_config(node, template.values["interrupt"])
        self.cli = _build_cli_info(node, template, has_two_way=bool(self._two_way_ref))
        self.environment = _build_environment(template)
        self.policy_support = _build_policy_support(template)
        # Copies of the adapter may replace `unattended`, but apply the same rules.
        self._runs_unasked = self.unattended

    def build_launch(self, request: LaunchRequest) -> LaunchSpec:
        return self._template.build_launch(request)

    @property
    def translator_class(self) -> "type[Translator]":
        if self._translator is None:
            self._translator = self._compile_translator()
        return self._translator

    def _compile_translator(self) -> "type[Translator]":
        """Compile the profile's rules. Raise FrontendError for an invalid value."""
        from shim.profiles.compile.stream import ParsedStreamRules
        from shim.profiles.profile import build_translator_class

        adapter_class = None
        if self._load_translator_class is not None:
            adapter_class = self._load_translator_class()
        load_protocol_class = None
        if self.node.get_child("acp").value:
            load_protocol_class = self._load_protocol_class
        stream = ParsedStreamRules(self.node, self.tools, self._trace)
        return build_translator_class(self.node, stream, adapter_class, load_protocol_class)

    def _load_protocol_class(self) -> "type[Translator]":
        """Return the translator class for the program's JSON-RPC protocol."""
        return self.build_two_way().translator_class

    def build_two_way(self) -> Adapter:
        adapter: Adapter = load_class(self._two_way_ref)(self)
        return adapter

    def list_available_tools(self, request: LaunchRequest) -> tuple[str, ...]:
        """Return the tools that are available in the permission mode, including the tools that
        allow rules and hooks add.
        """
        policy = request.policy
        mode = request.permission_mode
        remaining_tools = self._mode_tools.get(mode, self.listed_tools)
        if policy is None or not (policy.allow or policy.hooks):
            return remaining_tools
        # With the shim's hook, the program runs tool calls that are allowed by allow rules or hooks.
        runs_our_hook = self.policy_support.has_hook and mode != "plan"
        allow_rules = [
            allow_rule
            for allow_rule in policy.allow
            if (runs_our_hook and self.can_hook_apply_allow_rule(allow_rule))
            or self.allows_unprompted(allow_rule, request)
        ]
        if runs_our_hook:
            hooks = policy.hooks
        else:
            hooks = ()
        return tuple(
            name
            for name in self.listed_tools
            if name in remaining_tools
            or any(rule.matches_tool(name) for rule in allow_rules)
            or any(_matches_hook(hook, name) for hook in hooks)
        )

    def can_enforce_rule(self, rule: PermissionRule, request: LaunchRequest) -> bool:
        return self.policy_support.has_hook

    def accepts_rule(self, rule: PermissionRule) -> bool:
        denials = self._template.denials
        if denials is None:
            return False
        return denials.can_express_rule(rule)

    def allows_unprompted(self, rule: PermissionRule, request: LaunchRequest) -> bool:
        template = self._template
        if template.denials is not None:
            return template.denials.can_run_calls_allowed_by_rule(
                rule, request, runs_allowed_calls_unprompted=self._runs_unasked
            )
        if template.load_rules is not None or not self._runs_unasked:
            return False
        if "allowed_tools" not in template.used_names:
            return False
        from shim.profiles.load.tool_selection import can_allow_rule_add_tool_to_mode

        return can_allow_rule_add_tool_to_mode(rule, request, template.mode_tools)

    def can_hook_apply_allow_rule(self, rule: PermissionRule) -> bool:
        load_rules = self._load_hook_rules
        if load_rules is None:
            return False
        return bool(load_rules().can_hook_apply_allow_rule(rule))


def _matches_hook(hook: "SettingsHook", tool: str) -> bool:
    from shim.core.claude.hooks.callbacks import matches_tool_name

    return matches_tool_name(hook.matcher, tool)


def _list_claude_tools(node: ConfigNode, profile: dict[str, Any], tools: Tools) -> tuple[str, ...]:
    """Return the tools that the vendor can run, by Claude's names."""
    if node.get_child("listed"):
        listed_tools: tuple[str, ...] = profile["listed"]
        return listed_tools
    return tuple(sorted({tool.name for tool in tools.values()}))


def _build_timeouts(timeouts: dict[str, float]) -> dict[str, float]:
    """Return the timeouts that the profile sets, in seconds, by the names of their settings."""
    return {f"{key}_timeout": seconds for key, seconds in timeouts.items() if seconds}


def _build_abilities(node: ConfigNode, template: LaunchTemplate) -> VendorAbilities:
    """Return the abilities that follow from the event rules and from the placeholders in `argv`."""
    used_names = template.used_names
    has_denials = template.denials is not None
    events = [event for event in node.value.get("event", ()) if event]
    return VendorAbilities(
        can_stream=_can_stream(node, events),
        can_resume="resume" in used_names,
        accepts_model="model" in used_names,
        accepts_effort="effort" in used_names,
        can_limit_tools=has_denials or not used_names.isdisjoint(("denied_tools", "allowed_tools")),
        selects_tools=has_denials or not used_names.isdisjoint(("allowed_tools", "chosen_tools")),
        can_limit_turns="max_turns" in used_names,
        reports_cost=_has_prices(node.value),
        accepts_mcp_servers="mcp_configs" in used_names,
        can_repeat_reply=any(event["emit"] == "retract" for event in events),
    )


def _can_stream(node: ConfigNode, events: list[Table]) -> bool:
    """Return whether the program prints fragments of an answer."""
    if node.get_child("stream").get_child("text").value in _STREAMED_MODES:
        return True
    return any(event.get("mode") in _STREAMED_MODES for event in events)


def _choose_two_way_adapter(node: ConfigNode, two_way: str) -> str:
    """Return the reference to the class of the adapter that drives the program so that it asks for
    permission, or "" if there is none.
    """
    if two_way:
        return TWO_WAY_ADAPTERS[two_way]
    if node.get_child("acp").value:
        return "shim.profiles.load.acp:AcpAdapter"
    return ""


def _build_session_traits(node: ConfigNode, profile: dict[str, Any]) -> VendorSessionBehavior:
    stream_node = node.get_child("stream")
    return VendorSessionBehavior(
        stream_node.get_child("saves_late").read_bool(),
        stream_node.get_child("given_id").read_bool(),
        reads_project_commands=profile["reads_commands"],
    )


def _build_shutdown_config(node: ConfigNode, interrupt: dict[str, Any]) -> VendorShutdownConfig:
    code_nodes = node.get_child("stream").get_child("end").get_child("ok_exit").read_items(20)
    clean_exit_codes = frozenset(int(code_node.read_number(0, 255)) for code_node in code_nodes)
    if not clean_exit_codes:
        clean_exit_codes = frozenset((0,))
    return VendorShutdownConfig(interrupt["signal"], interrupt["grace"], clean_exit_codes)


def _build_cli_info(
    node: ConfigNode, template: LaunchTemplate, *, has_two_way: bool
) -> VendorCliInfo:
    launch = template.values
    acp_node = node.get_child("acp")
    acp_command: tuple[str, ...] = ()
    if acp_node.value and acp_node.get_child("command"):
        acp_command = acp_node.get_child("command").read_text_list()
    return VendorCliInfo(
        variants=template.variants,
        install_command=launch["install"],
        model_names=launch["model_map"],
        login_probe=_build_login_probe(launch["login_probe"]),
        model_probe=ModelProbe(**(launch["models_probe"] or {})),
        has_two_way=has_two_way,
        two_way_help_texts=acp_command[1:],
    )


def _build_environment(template: LaunchTemplate) -> VendorEnvironment:
    launch = template.values
    return VendorEnvironment(
        visible_variables=launch["env_keep"],
        api_base_variable=launch["api_base"],
        data_dir=_parse_data_dir(launch["home"]),
        run_report=template.run_report,
        overriding_files=_parse_overriding_config_paths(launch["overruled_by"]),
        extra_tool_keys=launch["widened_by"],
        mcp_server_keys=launch["servers_in"],
        autostart_files=launch["brings"],
        no_autostart_flag=launch["brings_off"],
        trust_prompt_text=launch["gate"],
    )


def _build_policy_support(template: LaunchTemplate) -> VendorPolicySupport:
    if template.denials is not None:
        return VendorPolicySupport(covers_subagents=template.denials.binds_subagents)
    if template.load_rules is None:
        return VendorPolicySupport()
    return VendorPolicySupport(
        covers_subagents=True,
        has_hook=True,
        emits_call_before_hook=bool(template.load_rules().EMITS_CALL_BEFORE_HOOK),
    )


def _parse_modes(node: ConfigNode) -> dict[str, tuple[str, ...]]:
    if not node:
        return {"default": ()}
    node.read_table(PERMISSION_MODES)
    return {mode: node.get_child(mode).read_text_list(20) for mode in node.value}


def _build_login_probe(probe: dict[str, Any] | None) -> LoginProbe:
    if probe is None:
        return LoginProbe()
    return LoginProbe(probe["args"], probe["refusal"], login_exception=probe["unless"])


def _parse_data_dir(node: ConfigNode) -> tuple[str, str] | None:
    """Return the environment variable and the folder in `home`, or None if the table is missing."""
    if not node:
        return None
    home = node.read_keys(HOME_KEYS)
    if not {"", ".", ".."}.isdisjoint(home["folder"].split("/")):
        raise node.get_child("folder").build_error(
            "a folder in the user's home directory, such as .codex"
        )
    return home["variable"], home["folder"]


def _parse_overriding_config_paths(node: ConfigNode) -> dict[str, tuple[str, ...]]:
    """Return the files and folders in `overruled_by` for each operating system. These files
    override the files in `{bundled}`.
    """
    nodes = {system: node.get_child(system) for system in node.read_table(SYSTEMS)}
    return {
        system: paths_node.read_text_list(10)
        if isinstance(paths_node.value, list)
        else (paths_node.read_text(),)
        for system, paths_node in nodes.items()
    }


def _has_prices(table: Table) -> bool:
    """Return whether a rule reports the cost of each message."""
    usage_rules = [
        rule for rule in table.get("event", ()) if rule.get("emit") in ("usage", "result")
    ]
    return any(
        "cost_usd" in fields
        for rule in usage_rules
        for fields in (rule, as_dict(rule.get("usage")))
    )
