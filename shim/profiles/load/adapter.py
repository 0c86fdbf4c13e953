r"""The vendor that a profile describes: its table, checked, and compiled as far as its child's start
needs it.

                                   WHAT A PROFILE HOLDS

    schema = 1
    id = "name"               the name of its file
    extends = "opencode"      a bundled profile whose tables this one changes (lists are replaced)
    unattended = true         the vendor runs its tools and asks nobody
    listed = ["Bash"]         the tools that it can run, in Claude's words; else all that [tools]
                              names
    other_tools = { … }, unknown_tools = "pass"    `tools`
    adapter = "module:Class"  a class for what rules cannot say; see below
    [launch]                  `launch`, and permission_args (mode → words), permission_env (mode →
                              variables), permission_tools (mode → `listed`, where that is less),
                              `denials`, timeouts = { first_byte, idle, tool } in seconds, interrupt
                              = { signal = "SIGINT", grace = 1.4 } (seconds until the child is
                              killed), env_keep (ANTHROPIC_* that it may see), resume_id_pattern,
                              model_map (Claude's name of a model → its own), gate (what stderr says
                              when its trust gate is closed), login, install (the command that
                              installs it), models_probe = { args = ["models"], regex = '^\S+/\S+$'
                              }: how it is asked for its models, one in a line; groups are joined
                              with slashes login_probe = { args = ["login", "status"], refusal =
                              "Not logged in" }: how it is asked whether it has a login, and its
                              words for none; unless = when it needs none rules (the module that
                              tells the program the rules), api_base (the variable with another
                              address of its API), version_probe = { args = ["--version"], regex =
                              'own ([0-9.]+)', tested = ">=1.2,<2" }: how the program is asked for
                              its version, where the version stands in the answer (the first group,
                              or all), which versions these rules were tried with; no turn waits for
                              it home = { variable = "X_HOME", folder = ".x" }: its own records,
                              which an adapter may read
    [acp]                     `acp`: how it is driven so that it asks
    protocol = "acp"          it speaks that protocol and nothing else: no rules, and only
                              `launch.command` is needed
    two_way = "module"        the same, by one of our modules: its `build_persistent_adapter(adapter)` gives
                              the vendor
    [stream]                  text = final (or delta, cumulative): what a `text` rule gives usage =
                              none; request: the numbers add up; run_total: the last ones count;
                              thread_total: the last ones less those of the turns before, which are
                              kept with the session end = { ok_exit = [0], result = "event" }: a
                              turn is a success when a `result` rule said so; "synthesize": also
                              when a good exit code comes behind a whole reply ids = "process": ids
                              of calls begin anew with each process (else: "session") results =
                              "late": what a call returned may come behind the next text, or never
                              (else: "next"); a whole text waits one event while calls are open
                              stderr_noise = ["…"]: beginnings of lines that never are the reason of
                              a failure saves_late = true: a session can go on only once a reply was
                              complete given_id = true: {session_id} names every new session,
                              because the vendor says it too late parent = "data.parent": the path
                              of the id of the call that runs the nested agent of an event
    [[event]]                 `rules`, `emits`
    [[report]]                rules of the file `launch.report`, read at the end: session, usage,
                              result, error, notice
    [[stderr]]                regex, emit = "session" (group session_id) or "error" (group error,
                              cause)
    [exit_codes]              code = cause, for an end that nothing else explains
    [tools]                   `tools`

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
from shim.profiles.check.config_node import ConfigNode, ConfigSource
from shim.profiles.compile.tools import parse_tools
from shim.profiles.load.launch import (
    LaunchTemplate,
    ModeTools,
    can_add_tool_to_mode,
    parse_overriding_config_paths,
)

if TYPE_CHECKING:
    from shim.core.adapter.translator import Translator
    from shim.core.policy.settings_hooks import SettingsHook
    from shim.profiles.compile.rules import RuleTrace
    from shim.profiles.compile.stream import StreamProfile

SCHEMA_VERSION = 1
PROFILE_KEYS = (
    *(
        "schema",
        "id",
        "extends",
        "protocol",
        "unattended",
        "listed",
        "other_tools",
        "unknown_tools",
        "adapter",
    ),
    "two_way",
    *("launch", "acp", "stream", "event", "report", "stderr", "exit_codes", "tools", "note"),
)
TWO_WAY_MODULES = ("codex_input",)  # that drive a program so that it asks, where no table says how
PROTOCOLS = ("acp",)
INTERRUPT_SIGNALS = ("SIGINT", "SIGTERM")
TIMEOUT_KEYS = ("first_byte", "idle", "tool")
MAX_GRACE_S = 10.0  # seconds after an interrupt; a frontend that waits longer has given up
MAX_TIMEOUT_S = 86_400.0  # seconds; no silence is longer on purpose
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
    trace: "RuleTrace | None" = None,
) -> Adapter:
    """The vendor that a profile describes. FrontendError, with file, line and key, for one that is
    wrong.

    `load_translator_class` imports the class that the profile names. `trace` is told which rules
    take which events.
    """
    node = ConfigNode(source, table)
    node.read_table(PROFILE_KEYS)
    if (
        node.child("schema").value.__class__ is not int
        or node.child("schema").value != SCHEMA_VERSION
    ):
        raise node.child("schema").build_error(
            f"{SCHEMA_VERSION}", description="" if node.child("schema") else "not there"
        )
    if node.child("id").read_text() != name:
        raise node.child("id").build_error(f"{name!r}, as its file is called")
    if node.child("protocol"):
        from shim.profiles.load.acp import build_acp_only_adapter, expand_acp_profile

        node.child("protocol").read_choice(PROTOCOLS)
        full_table = expand_acp_profile(node)
        return build_acp_only_adapter(build_adapter(name, full_table, source), full_table, source)
    tool_table = parse_tools(
        node.child("tools"), node.child("other_tools"), node.child("unknown_tools"), name
    )
    launch_node, stream_node = node.child("launch"), node.child("stream")
    template = LaunchTemplate(launch_node, name, tool_table)
    load_translator = _create_translator_loader(
        node, tool_table, load_translator_class, lambda: _compile_stream(node, tool_table, trace)
    )
    if not source.is_bundled or trace is not None:
        load_translator()
    events = [event for event in table.get("event", ()) if event]
    tool_names = (
        node.child("listed").read_texts()
        if node.child("listed")
        else tuple(sorted({tool.name for tool in tool_table.values()}))
    )
    exit_codes = stream_node.child("end").child("ok_exit").read_items(20)
    unattended = node.child("unattended").read_bool()
    policy_support = _build_policy_support(template, unattended=unattended)
    adapter = Adapter(
        name=name,
        programs=template.programs,
        translator_ref=load_translator,
        build_launch=template.build_launch,
        modes=_parse_modes(launch_node.child("permission_args")),
        tools=tool_table,
        listed_tools=tool_names,
        unattended=unattended,
        choose_tools=(
            lambda request: _list_remaining_tools(
                template.mode_tools, tool_names, policy_support, request
            )
        )
        if template.mode_tools
        else None,
        login_hint=launch_node.child("login").read_text(""),
        timeouts_s=_parse_timeouts(launch_node.child("timeouts")),
        version_probe=template.version_probe,
        abilities=VendorAbilities(
            can_stream=stream_node.child("text").value in _STREAMED_MODES
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
            stream_node.child("saves_late").read_bool(), stream_node.child("given_id").read_bool()
        ),
        shutdown=VendorShutdownConfig(
            _parse_interrupt_signal(launch_node.child("interrupt")),
            _parse_grace(launch_node.child("interrupt").child("grace")),
            frozenset(int(event.read_number(0, 255)) for event in exit_codes) or frozenset((0,)),
        ),
        cli=VendorCliInfo(
            variants=template.variants,
            detect_variant=template.detect_variant,
            install_command=launch_node.child("install").read_text(""),
            model_names=template.model_map,
            login_probe=_parse_login_probe(launch_node.child("login_probe")),
            model_probe=_parse_model_probe(launch_node.child("models_probe")),
        ),
        environment=VendorEnvironment(
            visible_variables=launch_node.child("env_keep").read_texts(20),
            api_base_variable=launch_node.child("api_base").read_text(""),
            data_dir=_parse_data_dir(launch_node.child("home")),
            run_report=template.run_report,
            overriding_files=parse_overriding_config_paths(launch_node.child("overruled_by")),
            extra_tool_keys={
                name: launch_node.child("widened_by").child(name).read_text()
                for name in launch_node.child("widened_by").read_table()
            },
            mcp_server_keys={
                name: launch_node.child("servers_in").child(name).read_text()
                for name in launch_node.child("servers_in").read_table()
            },
            autostart_files={
                name: launch_node.child("brings").child(name).read_texts()
                for name in launch_node.child("brings").read_table()
            },
            no_autostart_flag=launch_node.child("brings_off").read_text(""),
            trust_prompt_text=launch_node.child("gate").read_text(""),
        ),
    )
    if node.child("two_way"):
        module = f"shim.adapters.{node.child('two_way').read_choice(TWO_WAY_MODULES)}"
        return adapter._replace(
            cli=adapter.cli._replace(build_two_way=lambda: _load_two_way_adapter(module, adapter))
        )
    if not node.child("acp").value:
        return adapter
    acp_args = (
        node.child("acp").child("command").read_texts()[1:]
        if node.child("acp").child("command")
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
        if (runs_our_hook and policy_support.allows_through_hook(allow_rule))
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
            allows_unprompted=lambda rule, request: denials.can_apply_allow_rule(
                rule, request, runs_unasked=unattended
            ),
            covers_subagents=denials.binds_subagents,
        )
    if rules is None and unattended and "allowed_tools" in made.used_names:
        return VendorPolicySupport(
            allows_unprompted=lambda rule, request: can_add_tool_to_mode(
                rule, request, made.mode_tools
            )
        )
    if rules is None:
        return VendorPolicySupport()
    return VendorPolicySupport(
        enforces_rule=lambda rule, request: bool(rules().enforces_rule(rule, request)),
        covers_subagents=True,
        allows_through_hook=lambda rule: bool(rules().allows_through_hook(rule)),
        has_hook=True,
        emits_call_before_hook=bool(rules().EMITS_CALL_BEFORE_HOOK),
    )


def _create_acp_translator(node: ConfigNode, tool_table: Tools) -> "type[Translator]":
    from shim.profiles.load.acp import create_acp_translator_class

    return create_acp_translator_class(node.child("acp"), tool_table)


def _create_translator_loader(
    node: ConfigNode,
    tool_table: Tools,
    load_class: TranslatorLoader | None,
    compile_stream: "Callable[[], StreamProfile]",
) -> TranslatorLoader:
    """A function that gives the class which translates. The class is made at its first call."""
    cache: list[type[Translator]] = []

    def load_translator() -> "type[Translator]":
        if not cache:
            from shim.profiles.profile import build_translator_class

            load_acp_translator = (
                (lambda: _create_acp_translator(node, tool_table))
                if node.child("acp").value
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
    node: ConfigNode, tool_table: Tools, trace: "RuleTrace | None"
) -> "StreamProfile":
    from shim.profiles.compile.stream import StreamProfile

    return StreamProfile(node, tool_table, trace)


def _parse_modes(node: ConfigNode) -> dict[str, tuple[str, ...]]:
    if not node:
        return {"default": ()}
    node.read_table(PERMISSION_MODES)
    return {mode: node.child(mode).read_texts(20) for mode in node.value}


def _parse_interrupt_signal(node: ConfigNode) -> str:
    node.read_table(("signal", "grace"))
    return node.child("signal").read_choice(INTERRUPT_SIGNALS, "SIGINT")


def _parse_grace(node: ConfigNode) -> float:
    return node.read_number(0.1, MAX_GRACE_S) if node else 0.0


def _parse_login_probe(node: ConfigNode) -> LoginProbe:
    if not node:
        return LoginProbe()
    node.read_table(("args", "refusal", "unless"))
    return LoginProbe(
        node.child("args").read_texts(20),
        node.child("refusal").read_regex(),
        login_exception=node.child("unless").read_text(""),
    )


def _parse_model_probe(node: ConfigNode) -> ModelProbe:
    if not node:
        return ModelProbe()
    node.read_table(("args", "regex"))
    return ModelProbe(node.child("args").read_texts(20), node.child("regex").read_regex())


def _parse_timeouts(node: ConfigNode) -> dict[str, float]:
    node.read_table(TIMEOUT_KEYS)
    return {
        f"{key}_timeout": node.child(key).read_number(1, MAX_TIMEOUT_S) for key in node.read_table()
    }


def _parse_data_dir(node: ConfigNode) -> tuple[str, str] | None:
    """The variable and the folder of `home`."""
    if not node:
        return None
    node.read_table(("variable", "folder"))
    folder = node.child("folder").read_text()
    if not {"", ".", ".."}.isdisjoint(folder.split("/")):
        raise node.child("folder").build_error("a folder in the person's home, such as .codex")
    return node.child("variable").read_text(""), folder


def _has_prices(table: Table) -> bool:
    """Whether a rule says what a reply cost."""
    usage_rules = [
        rule for rule in table.get("event", ()) if rule.get("emit") in ("usage", "result")
    ]
    return any(
        "cost_usd" in rule or "cost_usd" in (rule.get("usage") or ()) for rule in usage_rules
    )
