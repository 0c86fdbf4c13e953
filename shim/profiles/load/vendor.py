r"""The vendor that a profile describes: its table, checked, and compiled as far as its child's
start needs it.

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
                              variables),
                              permission_tools (mode → `listed`, where that is less), `denials`,
                              timeouts = { first_byte, idle, tool } in seconds,
                              interrupt = { signal = "SIGINT", grace = 1.4 } (seconds until the
                                  child is killed),
                              env_keep (ANTHROPIC_* that it may see), resume_id_pattern, model_map
                                  (Claude's
                              name of a model → its own), gate (what stderr says when its trust gate
                                  is closed), login,
                              install (the command that installs it),
                              models_probe = { args = ["models"], regex = '^\S+/\S+$' }: how it is
                                  asked for its
                              models, one in a line; groups are joined with slashes
                              login_probe = { args = ["login", "status"], refusal = "Not logged in"
                                  }: how it is asked
                              whether it has a login, and its words for none; unless = when it needs
                                  none
                              rules (the module that tells the program the rules),
                              api_base (the variable with another address of its API),
                              version_probe = { args = ["--version"], regex = 'own ([0-9.]+)',
                                  tested = ">=1.2,<2" }:
                              how the program is asked for its version, where the version stands in
                                  the answer (the
                              first group, or all), which versions these rules were tried with; no
                                  turn waits for it
                              home = { variable = "X_HOME", folder = ".x" }: its own records, which
                                  an adapter may read
    [acp]                     `acp`: how it is driven so that it asks
    protocol = "acp"          it speaks that protocol and nothing else: no rules, and only
                              `launch.command` is needed
    two_way = "module"        the same, by one of our modules: its `two_way(vendor)` gives the
                              vendor
    [stream]                  text = final (or delta, cumulative): what a `text` rule gives
                              usage = none; request: the numbers add up; run_total: the last ones
                                  count; thread_total:
                              the last ones less those of the turns before, which are kept with the
                                  session
                              end = { ok_exit = [0], result = "event" }: a turn is a success when a
                                  `result` rule said
                              so; "synthesize": also when a good exit code comes behind a whole
                                  reply
                              ids = "process": ids of calls begin anew with each process (else:
                                  "session")
                              results = "late": what a call returned may come behind the next text,
                                  or never (else:
                              "next"); a whole text waits one event while calls are open
                              stderr_noise = ["…"]: beginnings of lines that never are the reason of
                                  a failure
                              saves_late = true: a session can go on only once a reply was complete
                              given_id = true: {session_id} names every new session, because the
                                  vendor says it too late
                              parent = "data.parent": the path of the id of the call that runs the
                                  nested agent of an
                              event
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

from shim.core.adapter.tools import Tools
from shim.core.adapter.vendor import (
    Abilities,
    Adapter,
    CliInfo,
    Environment,
    LaunchRequest,
    PolicySupport,
    SessionTraits,
    ShutdownConfig,
)
from shim.core.adapter.versions import LoginProbe, ModelProbe
from shim.core.policy.policy import PERMISSION_MODES
from shim.core.reading.typed import TYPE_CHECKING, Any
from shim.profiles.check.toml_errors import ConfigNode, ConfigSource
from shim.profiles.compile.tools import parse_tools
from shim.profiles.load.launch import (
    LaunchTemplate,
    ModeTools,
    can_add_tool,
    parse_overruling_paths,
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
TWO_WAY_MODULES = ("codex_speech",)  # that drive a program so that it asks, where no table says how
PROTOCOLS = ("acp",)
INTERRUPT_SIGNALS = ("SIGINT", "SIGTERM")
TIMEOUT_KEYS = ("first_byte", "idle", "tool")
MAX_GRACE_S = 10.0  # seconds after an interrupt; a frontend that waits longer has given up
MAX_TIMEOUT_S = 86_400.0  # seconds; no silence is longer on purpose
_STREAMED_MODES = ("delta", "cumulative")

Table = Mapping[str, Any]
TranslatorLoader = Callable[[], "type[Translator]"]


def merge_tables(base: Table, own: Table) -> dict[str, Any]:
    """One table over another: tables inside of them are merged, everything else is replaced."""
    result = dict(base)
    for key, value in own.items():
        before = result.get(key)
        both = isinstance(value, dict) and isinstance(before, dict)
        result[key] = merge_tables(before, value) if both and before is not None else value
    return result


def build_adapter(
    name: str,
    table: Table,
    source: ConfigSource,
    adapter: TranslatorLoader | None = None,
    trace: "RuleTrace | None" = None,
) -> Adapter:
    """The vendor that a profile describes. FrontendError, with file, line and key, for one that is
    wrong.

    `adapter` imports the class that the profile names. `trace` is told which rules take which
    events.
    """
    spot = ConfigNode(source, table)
    spot.read_table(PROFILE_KEYS)
    if (
        spot.child("schema").value.__class__ is not int
        or spot.child("schema").value != SCHEMA_VERSION
    ):
        raise spot.child("schema").build_error(
            f"{SCHEMA_VERSION}", description="" if spot.child("schema") else "not there"
        )
    if spot.child("id").read_text() != name:
        raise spot.child("id").build_error(f"{name!r}, as its file is called")
    if spot.child("protocol"):
        from shim.profiles.load.acp import build_acp_agent, expand_acp_profile

        spot.child("protocol").read_choice(PROTOCOLS)
        whole = expand_acp_profile(spot)
        return build_acp_agent(build_adapter(name, whole, source), whole, source)
    known = parse_tools(
        spot.child("tools"), spot.child("other_tools"), spot.child("unknown_tools"), name
    )
    launch, own = spot.child("launch"), spot.child("stream")
    made = LaunchTemplate(launch, name, known)
    translates = _create_translator_loader(
        spot, known, adapter, lambda: _compile_stream(spot, known, trace)
    )
    if not source.is_bundled or trace is not None:
        translates()
    events = [one for one in table.get("event", ()) if one]
    listed = (
        spot.child("listed").read_texts()
        if spot.child("listed")
        else tuple(sorted({tool.name for tool in known.values()}))
    )
    codes = own.child("end").child("ok_exit").read_items(20)
    unattended = spot.child("unattended").read_bool()
    enforcement = _build_policy_support(made, unattended=unattended)
    vendor = Adapter(
        name=name,
        programs=made.programs,
        translator_ref=translates,
        build_launch=made.build_launch,
        modes=_parse_modes(launch.child("permission_args")),
        tools=known,
        listed_tools=listed,
        unattended=unattended,
        choose_tools=(
            lambda request: _list_remaining_tools(made.mode_tools, listed, enforcement, request)
        )
        if made.mode_tools
        else None,
        login_hint=launch.child("login").read_text(""),
        timeouts_s=_parse_timeouts(launch.child("timeouts")),
        version_probe=made.version_probe,
        abilities=Abilities(
            can_stream=own.child("text").value in _STREAMED_MODES
            or any(one.get("mode") in _STREAMED_MODES for one in events),
            can_resume="resume" in made.used_names,
            accepts_model="model" in made.used_names,
            accepts_effort="effort" in made.used_names,
            can_limit_tools=made.denials is not None
            or not made.used_names.isdisjoint(("denied_tools", "allowed_tools")),
            selects_tools=made.denials is not None
            or not made.used_names.isdisjoint(("allowed_tools", "chosen_tools")),
            can_limit_turns="max_turns" in made.used_names,
            reports_cost=_has_prices(table),
            accepts_mcp_servers="mcp_configs" in made.used_names,
            can_repeat_reply=any(one["emit"] == "retract" for one in events),
        ),
        policy_support=enforcement,
        session_traits=SessionTraits(
            own.child("saves_late").read_bool(), own.child("given_id").read_bool()
        ),
        shutdown=ShutdownConfig(
            _parse_interrupt_signal(launch.child("interrupt")),
            _parse_grace(launch.child("interrupt").child("grace")),
            frozenset(int(one.read_number(0, 255)) for one in codes) or frozenset((0,)),
        ),
        cli=CliInfo(
            variants=made.variants,
            detect_variant=made.detect_variant,
            install_command=launch.child("install").read_text(""),
            model_names=made.model_map,
            login_probe=_parse_login_probe(launch.child("login_probe")),
            model_probe=_parse_model_probe(launch.child("models_probe")),
        ),
        environment=Environment(
            visible_variables=launch.child("env_keep").read_texts(20),
            api_base_variable=launch.child("api_base").read_text(""),
            data_dir=_parse_data_dir(launch.child("home")),
            run_report=made.run_report,
            overriding_files=parse_overruling_paths(launch.child("overruled_by")),
            extra_tool_keys={
                name: launch.child("widened_by").child(name).read_text()
                for name in launch.child("widened_by").read_table()
            },
            mcp_server_keys={
                name: launch.child("servers_in").child(name).read_text()
                for name in launch.child("servers_in").read_table()
            },
            autostart_files={
                name: launch.child("brings").child(name).read_texts()
                for name in launch.child("brings").read_table()
            },
            no_autostart_flag=launch.child("brings_off").read_text(""),
            trust_prompt_text=launch.child("gate").read_text(""),
        ),
    )
    if spot.child("two_way"):
        module = f"shim.adapters.{spot.child('two_way').read_choice(TWO_WAY_MODULES)}"
        return vendor._replace(
            cli=vendor.cli._replace(build_two_way=lambda: _load_two_way_adapter(module, vendor))
        )
    if not spot.child("acp").value:
        return vendor
    words = (
        spot.child("acp").child("command").read_texts()[1:]
        if spot.child("acp").child("command")
        else ()
    )
    if not source.is_bundled:  # a mistake in it is told of now
        _build_two_way_adapter(vendor, table, source)
    facts = vendor.cli._replace(
        build_two_way=lambda: _build_two_way_adapter(vendor, table, source),
        two_way_help_texts=words,
    )
    return vendor._replace(cli=facts)


def _load_two_way_adapter(module: str, vendor: Adapter) -> Adapter:
    from importlib import import_module

    made: Adapter = import_module(module).build_two_way(vendor)
    return made


def _build_two_way_adapter(vendor: Adapter, table: Table, source: ConfigSource) -> Adapter:
    from shim.profiles.load.acp import build_two_way_adapter

    return build_two_way_adapter(vendor, table, source)


def _list_remaining_tools(
    mode_tools: ModeTools,
    listed: tuple[str, ...],
    enforcement: PolicySupport,
    request: LaunchRequest,
) -> tuple[str, ...]:
    """The tools that a request leaves the vendor: those of its mode, and those that rules and hooks
    add to the mode.
    """
    left, policy = mode_tools.get(request.permission_mode, listed), request.policy
    if policy is None or not (policy.allow or policy.hooks):
        return left
    # by our hook, which lets run what they allow
    judged = enforcement.has_hook and request.permission_mode != "plan"
    added = [
        it
        for it in policy.allow
        if (judged and enforcement.allows_through_hook(it))
        or enforcement.allows_unprompted(it, request)
    ]
    hooks = policy.hooks if judged else ()
    return tuple(
        name
        for name in listed
        if name in left
        or any(rule.matches_tool(name) for rule in added)
        or any(_matches_hook(hook, name) for hook in hooks)
    )


def _matches_hook(hook: "SettingsHook", tool: str) -> bool:
    from shim.core.claude.hooks.commands import is_for_tool

    return is_for_tool(hook, tool)


def _build_policy_support(made: LaunchTemplate, *, unattended: bool) -> PolicySupport:
    denials, rules = made.denials, made.load_rules
    if denials is not None:
        return PolicySupport(
            accepts_rule=denials.can_express,
            allows_unprompted=lambda rule, request: denials.allows_rule(
                rule, request, runs_unasked=unattended
            ),
            covers_subagents=denials.binds_subagents,
        )
    if rules is None and unattended and "allowed_tools" in made.used_names:
        return PolicySupport(
            allows_unprompted=lambda rule, request: can_add_tool(rule, request, made.mode_tools)
        )
    if rules is None:
        return PolicySupport()
    return PolicySupport(
        enforces_rule=lambda rule, request: bool(rules().enforces_rule(rule, request)),
        covers_subagents=True,
        allows_through_hook=lambda rule: bool(rules().allows_through_hook(rule)),
        has_hook=True,
        emits_call_before_hook=bool(rules().EMITS_CALL_BEFORE_HOOK),
    )


def _create_acp_translator(spot: ConfigNode, known: Tools) -> "type[Translator]":
    from shim.profiles.load.acp import create_acp_translator

    return create_acp_translator(spot.child("acp"), known)


def _create_translator_loader(
    spot: ConfigNode,
    known: Tools,
    adapter: TranslatorLoader | None,
    stream: "Callable[[], StreamProfile]",
) -> TranslatorLoader:
    """A function that gives the class which translates. The class is made at its first call."""
    made: list[type[Translator]] = []

    def translates() -> "type[Translator]":
        if not made:
            from shim.profiles.profile import build_translator

            protocol = (
                (lambda: _create_acp_translator(spot, known)) if spot.child("acp").value else None
            )
            made.append(
                build_translator(spot, stream(), None if adapter is None else adapter(), protocol)
            )
        return made[0]

    return translates


def _compile_stream(spot: ConfigNode, known: Tools, trace: "RuleTrace | None") -> "StreamProfile":
    from shim.profiles.compile.stream import StreamProfile

    return StreamProfile(spot, known, trace)


def _parse_modes(spot: ConfigNode) -> dict[str, tuple[str, ...]]:
    if not spot:
        return {"default": ()}
    spot.read_table(PERMISSION_MODES)
    return {mode: spot.child(mode).read_texts(20) for mode in spot.value}


def _parse_interrupt_signal(spot: ConfigNode) -> str:
    spot.read_table(("signal", "grace"))
    return spot.child("signal").read_choice(INTERRUPT_SIGNALS, "SIGINT")


def _parse_grace(spot: ConfigNode) -> float:
    return spot.read_number(0.1, MAX_GRACE_S) if spot else 0.0


def _parse_login_probe(spot: ConfigNode) -> LoginProbe:
    if not spot:
        return LoginProbe()
    spot.read_table(("args", "refusal", "unless"))
    return LoginProbe(
        spot.child("args").read_texts(20),
        spot.child("refusal").read_regex(),
        login_exception=spot.child("unless").read_text(""),
    )


def _parse_model_probe(spot: ConfigNode) -> ModelProbe:
    if not spot:
        return ModelProbe()
    spot.read_table(("args", "regex"))
    return ModelProbe(spot.child("args").read_texts(20), spot.child("regex").read_regex())


def _parse_timeouts(spot: ConfigNode) -> dict[str, float]:
    spot.read_table(TIMEOUT_KEYS)
    return {
        f"{key}_timeout": spot.child(key).read_number(1, MAX_TIMEOUT_S) for key in spot.read_table()
    }


def _parse_data_dir(spot: ConfigNode) -> tuple[str, str] | None:
    """The variable and the folder of `home`."""
    if not spot:
        return None
    spot.read_table(("variable", "folder"))
    folder = spot.child("folder").read_text()
    if not {"", ".", ".."}.isdisjoint(folder.split("/")):
        raise spot.child("folder").build_error("a folder in the person's home, such as .codex")
    return spot.child("variable").read_text(""), folder


def _has_prices(table: Table) -> bool:
    """Whether a rule says what a reply cost."""
    rules = [one for one in table.get("event", ()) if one.get("emit") in ("usage", "result")]
    return any("cost_usd" in one or "cost_usd" in (one.get("usage") or ()) for one in rules)
