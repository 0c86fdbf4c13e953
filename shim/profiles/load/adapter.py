"""The adapter that a profile describes: its table, checked, and compiled as far as the start of its
child needs it.

PROFILE_KEYS and the other tables of `shim.profiles.schema.tables` have all keys of a profile.

A profile has no state and no code. `adapter` names a subclass of
`shim.profiles.profile.ProfileTranslator`: a bundled profile's is a module of `shim.adapters`, a
user's is a file beside the profile itself, `vendors/MODULE.py`. It is found by its place and never
by a search path, so that no working directory and no package can put another in its stead (threats
page). Whoever may write there may write the profile, which names the program to run, so it adds no
power.

What a child's output means is read once the child runs (`compile/stream.py`). A user's profile is
read whole before anything is started, so that a mistake in it is told of in time.
"""

from collections.abc import Callable, Mapping

from shim.core.adapter.adapter import (
    Adapter,
    LaunchRequest,
    VendorAbilities,
    VendorCliInfo,
    VendorEnvironment,
    VendorPolicySupport,
    VendorSessionBehavior,
    VendorShutdownConfig,
)
from shim.core.adapter.tools import Tools
from shim.core.adapter.versions import LoginProbe, ModelProbe
from shim.core.policy.policy import PERMISSION_MODES
from shim.core.reading.typed import TYPE_CHECKING, Any
from shim.profiles.check.config_node import ConfigKey, ConfigNode, ConfigSource
from shim.profiles.compile.tools import parse_tools
from shim.profiles.load.launch import (
    HOME_KEYS,
    LaunchTemplate,
    ModeTools,
    can_allow_rule_add_tool_to_mode,
    parse_overriding_config_paths,
)

if TYPE_CHECKING:
    from shim.core.adapter.translator import Translator
    from shim.core.policy.settings_hooks import SettingsHook
    from shim.profiles.compile.rules import ProfileRuleMatchObserver
    from shim.profiles.compile.stream import ParsedStreamRules

SCHEMA_VERSION = 1
TWO_WAY_MODULES = ("codex_input",)  # that drive a program so that it asks, where no table says how
PROTOCOLS = ("acp",)
PROFILE_KEYS = {
    "schema": ConfigKey.for_node("the number 1", "the version of this list of keys"),
    "id": ConfigKey(ConfigNode.read_text, "the name of the vendor, and of its file"),
    "extends": ConfigKey.for_node(
        "a string", "a bundled profile whose tables this one changes; lists are replaced"
    ),
    "protocol": ConfigKey(
        ConfigNode.read_choice,
        "the program speaks this protocol and nothing else: the profile has no rules, and needs "
        "`launch.command` only",
        PROTOCOLS,
        "",
    ),
    "unattended": ConfigKey(ConfigNode.read_bool, "the vendor runs its tools without asking"),
    "listed": ConfigKey(
        ConfigNode.read_text_list,
        "the tools that the vendor can run, as Claude names them; by default all that `[tools]` "
        "names",
    ),
    "other_tools": ConfigKey.for_node(
        "a table", "a name for tools that `[tools]` does not have: `{ regex = '…', name = '…' }`"
    ),
    "unknown_tools": ConfigKey.for_node(
        "a string",
        "what happens to calls of tools without a name: `pass`, `hide`, or `mcp_prefix`",
        successor="[tools] or `other_tools`",
    ),
    "adapter": ConfigKey.for_node(
        "a string",
        "a class for what rules cannot express: `module:Class`, a subclass of "
        "`shim.profiles.profile.ProfileTranslator` in a file beside the profile",
    ),
    "two_way": ConfigKey(
        ConfigNode.read_choice,
        "a bundled module that drives the program so that it asks (`build_persistent_adapter`)",
        TWO_WAY_MODULES,
        "",
    ),
    "launch": ConfigKey.for_node("a table", "how the program is started"),
    "acp": ConfigKey.for_node("a table", "how the program is driven by the Agent Client Protocol"),
    "stream": ConfigKey.for_node("a table", "what holds for all its events"),
    "event": ConfigKey.for_node(
        "a list of tables",
        "rules for its events (`shim/profiles/compile/rules.py`, `shim/profiles/compile/emits.py`)",
    ),
    "report": ConfigKey.for_node(
        "a list of tables",
        "rules for the file `launch.report`, read at the end: session, usage, result, error, notice",
    ),
    "stderr": ConfigKey.for_node(
        "a list of tables",
        'rules for lines on stderr: `regex`, and `emit = "session"` (group `session_id`) or '
        '`emit = "error"` (group `error`; `cause`)',
    ),
    "exit_codes": ConfigKey.for_node(
        "a table of strings", "exit code → cause, for an end that nothing else explains"
    ),
    "tools": ConfigKey.for_node(
        "a table", "the program's tools, as Claude names them (`shim/profiles/compile/tools.py`)"
    ),
    "note": ConfigKey.for_node("any value", "a remark", successor="a comment (#)"),
}
_STREAMED_MODES = ("delta", "cumulative")

Table = Mapping[str, Any]
TranslatorLoader = Callable[[], "type[Translator]"]


def merge_tables(base: Table, override: Table) -> dict[str, Any]:
    """One table over another: tables inside of them are merged, everything else is replaced."""
    result = dict(base)
    for key, value in override.items():
        base_value = result.get(key)
        are_tables = isinstance(value, dict) and isinstance(base_value, dict)
        result[key] = (
            merge_tables(base_value, value) if are_tables and base_value is not None else value
        )
    return result


def build_adapter(
    name: str,
    table: Table,
    source: ConfigSource,
    load_translator_class: TranslatorLoader | None = None,
    trace: "ProfileRuleMatchObserver | None" = None,
) -> Adapter:
    """The vendor that a profile describes. FrontendError, with file, line and key, for one that is
    wrong.

    `load_translator_class` imports the class that the profile names. `trace` is told which rules
    take which events.
    """
    node = ConfigNode(source, table)
    node.read_table(PROFILE_KEYS)
    if (
        node.get_child("schema").value.__class__ is not int
        or node.get_child("schema").value != SCHEMA_VERSION
    ):
        raise node.get_child("schema").build_error(
            f"{SCHEMA_VERSION}", description="" if node.get_child("schema") else "not there"
        )
    if node.get_child("id").read_text() != name:
        raise node.get_child("id").build_error(f"{name!r}, as its file is called")
    profile = node.read_keys(PROFILE_KEYS)
    if profile["protocol"]:
        from shim.profiles.load.acp import build_acp_only_adapter, expand_acp_profile

        full_table = expand_acp_profile(node)
        return build_acp_only_adapter(build_adapter(name, full_table, source), full_table, source)
    tool_table = parse_tools(
        node.get_child("tools"),
        node.get_child("other_tools"),
        node.get_child("unknown_tools"),
        name,
    )
    stream_node = node.get_child("stream")
    template = LaunchTemplate(node.get_child("launch"), name, tool_table)
    launch = template.values
    load_translator = _create_translator_loader(
        node, tool_table, load_translator_class, lambda: _compile_stream(node, tool_table, trace)
    )
    if not source.is_bundled or trace is not None:
        load_translator()
    events = [event for event in table.get("event", ()) if event]
    tool_names = (
        profile["listed"]
        if node.get_child("listed")
        else tuple(sorted({tool.name for tool in tool_table.values()}))
    )
    exit_codes = stream_node.get_child("end").get_child("ok_exit").read_items(20)
    policy_support = _build_policy_support(template, unattended=profile["unattended"])
    adapter = Adapter(
        name=name,
        programs=template.programs,
        translator_ref=load_translator,
        build_launch=template.build_launch,
        modes=_parse_modes(launch["permission_args"]),
        tools=tool_table,
        listed_tools=tool_names,
        unattended=profile["unattended"],
        choose_tools=(
            lambda request: _list_remaining_tools(
                template.mode_tools, tool_names, policy_support, request
            )
        )
        if template.mode_tools
        else None,
        login_hint=launch["login"],
        timeouts_s={
            f"{key}_timeout": seconds for key, seconds in launch["timeouts"].items() if seconds
        },
        version_probe=template.version_probe,
        abilities=VendorAbilities(
            can_stream=stream_node.get_child("text").value in _STREAMED_MODES
            or any(event.get("mode") in _STREAMED_MODES for event in events),
            can_resume="resume" in template.used_names,
            accepts_model="model" in template.used_names,
            accepts_effort="effort" in template.used_names,
            can_limit_tools=template.denials is not None
            or not template.used_names.isdisjoint(("denied_tools", "allowed_tools")),
            selects_tools=template.denials is not None
            or not template.used_names.isdisjoint(("allowed_tools", "chosen_tools")),
            can_limit_turns="max_turns" in template.used_names,
            reports_cost=_has_prices(table),
            accepts_mcp_servers="mcp_configs" in template.used_names,
            can_repeat_reply=any(event["emit"] == "retract" for event in events),
        ),
        policy_support=policy_support,
        session_traits=VendorSessionBehavior(
            stream_node.get_child("saves_late").read_bool(),
            stream_node.get_child("given_id").read_bool(),
        ),
        shutdown=VendorShutdownConfig(
            launch["interrupt"]["signal"],
            launch["interrupt"]["grace"],
            frozenset(int(event.read_number(0, 255)) for event in exit_codes) or frozenset((0,)),
        ),
        cli=VendorCliInfo(
            variants=template.variants,
            detect_variant=template.detect_variant,
            install_command=launch["install"],
            model_names=launch["model_map"],
            login_probe=_build_login_probe(launch["login_probe"]),
            model_probe=ModelProbe(**(launch["models_probe"] or {})),
        ),
        environment=VendorEnvironment(
            visible_variables=launch["env_keep"],
            api_base_variable=launch["api_base"],
            data_dir=_parse_data_dir(launch["home"]),
            run_report=template.run_report,
            overriding_files=parse_overriding_config_paths(launch["overruled_by"]),
            extra_tool_keys=launch["widened_by"],
            mcp_server_keys=launch["servers_in"],
            autostart_files=launch["brings"],
            no_autostart_flag=launch["brings_off"],
            trust_prompt_text=launch["gate"],
        ),
    )
    if profile["two_way"]:
        module = f"shim.adapters.{profile['two_way']}"
        return adapter._replace(
            cli=adapter.cli._replace(build_two_way=lambda: _load_two_way_adapter(module, adapter))
        )
    if not node.get_child("acp").value:
        return adapter
    acp_args = (
        node.get_child("acp").get_child("command").read_text_list()[1:]
        if node.get_child("acp").get_child("command")
        else ()
    )
    if not source.is_bundled:  # a mistake in it is told of now
        _build_two_way_adapter(adapter, table, source)
    cli_info = adapter.cli._replace(
        build_two_way=lambda: _build_two_way_adapter(adapter, table, source),
        two_way_help_texts=acp_args,
    )
    return adapter._replace(cli=cli_info)


def _load_two_way_adapter(module: str, adapter: Adapter) -> Adapter:
    from importlib import import_module

    two_way_adapter: Adapter = import_module(module).build_persistent_adapter(adapter)
    return two_way_adapter


def _build_two_way_adapter(adapter: Adapter, table: Table, source: ConfigSource) -> Adapter:
    from shim.profiles.load.acp import build_acp_adapter

    return build_acp_adapter(adapter, table, source)


def _list_remaining_tools(
    mode_tools: ModeTools,
    tool_names: tuple[str, ...],
    policy_support: VendorPolicySupport,
    request: LaunchRequest,
) -> tuple[str, ...]:
    """The tools that a request leaves the vendor: those of its mode, and those that rules and hooks
    add to the mode.
    """
    remaining_tools, policy = mode_tools.get(request.permission_mode, tool_names), request.policy
    if policy is None or not (policy.allow or policy.hooks):
        return remaining_tools
    # by our hook, which lets run what they allow
    runs_our_hook = policy_support.has_hook and request.permission_mode != "plan"
    allow_rules = [
        allow_rule
        for allow_rule in policy.allow
        if (runs_our_hook and policy_support.can_hook_apply_allow_rule(allow_rule))
        or policy_support.allows_unprompted(allow_rule, request)
    ]
    hooks = policy.hooks if runs_our_hook else ()
    return tuple(
        name
        for name in tool_names
        if name in remaining_tools
        or any(rule.matches_tool(name) for rule in allow_rules)
        or any(_matches_hook(hook, name) for hook in hooks)
    )


def _matches_hook(hook: "SettingsHook", tool: str) -> bool:
    from shim.core.claude.hooks.commands import is_hook_for_tool

    return is_hook_for_tool(hook, tool)


def _build_policy_support(made: LaunchTemplate, *, unattended: bool) -> VendorPolicySupport:
    denials, rules = made.denials, made.load_rules
    if denials is not None:
        return VendorPolicySupport(
            accepts_rule=denials.can_express_rule,
            allows_unprompted=lambda rule, request: denials.can_run_calls_allowed_by_rule(
                rule, request, runs_allowed_calls_unprompted=unattended
            ),
            covers_subagents=denials.binds_subagents,
        )
    if rules is None and unattended and "allowed_tools" in made.used_names:
        return VendorPolicySupport(
            allows_unprompted=lambda rule, request: can_allow_rule_add_tool_to_mode(
                rule, request, made.mode_tools
            )
        )
    if rules is None:
        return VendorPolicySupport()
    return VendorPolicySupport(
        enforces_rule=lambda rule, request: bool(rules().enforces_rule(rule, request)),
        covers_subagents=True,
        can_hook_apply_allow_rule=lambda rule: bool(rules().can_hook_apply_allow_rule(rule)),
        has_hook=True,
        emits_call_before_hook=bool(rules().EMITS_CALL_BEFORE_HOOK),
    )


def _create_acp_translator(node: ConfigNode, tool_table: Tools) -> "type[Translator]":
    from shim.profiles.load.acp import create_acp_translator_class

    return create_acp_translator_class(node.get_child("acp"), tool_table)


def _create_translator_loader(
    node: ConfigNode,
    tool_table: Tools,
    load_class: TranslatorLoader | None,
    compile_stream: "Callable[[], ParsedStreamRules]",
) -> TranslatorLoader:
    """A function that gives the class which translates. The class is made at its first call."""
    cache: list[type[Translator]] = []

    def load_translator() -> "type[Translator]":
        if not cache:
            from shim.profiles.profile import build_translator_class

            load_acp_translator = (
                (lambda: _create_acp_translator(node, tool_table))
                if node.get_child("acp").value
                else None
            )
            cache.append(
                build_translator_class(
                    node,
                    compile_stream(),
                    None if load_class is None else load_class(),
                    load_acp_translator,
                )
            )
        return cache[0]

    return load_translator


def _compile_stream(
    node: ConfigNode, tool_table: Tools, trace: "ProfileRuleMatchObserver | None"
) -> "ParsedStreamRules":
    from shim.profiles.compile.stream import ParsedStreamRules

    return ParsedStreamRules(node, tool_table, trace)


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
    """Return the variable and the folder of `home`."""
    if not node:
        return None
    home = node.read_keys(HOME_KEYS)
    if not {"", ".", ".."}.isdisjoint(home["folder"].split("/")):
        raise node.get_child("folder").build_error("a folder in the person's home, such as .codex")
    return home["variable"], home["folder"]


def _has_prices(table: Table) -> bool:
    """Whether a rule says what a reply cost."""
    usage_rules = [
        rule for rule in table.get("event", ()) if rule.get("emit") in ("usage", "result")
    ]
    return any(
        "cost_usd" in rule or "cost_usd" in (rule.get("usage") or ()) for rule in usage_rules
    )
