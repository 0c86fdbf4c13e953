"""What a vendor is, as data: how it is found and started, what it can do, and who translates it."""

from collections.abc import Callable, Mapping
from types import MappingProxyType

from shim.core.adapter.request import (  # what a vendor's module needs, from one place
    MAX_ARGUMENT_BYTES,
    ChildInput,
    LaunchRequest,
    LaunchSpec,
    McpServers,
    TurnReportAndAttachmentFiles,
    VendorRunReportFileSpec,
    can_pass_as_argument,
    encode_prompt_stdin,
)
from shim.core.adapter.tools import Tools, list_vendor_tool_names
from shim.core.adapter.versions import LoginProbe, ModelProbe, VersionProbe
from shim.core.claude.argv.invocation import Invocation
from shim.core.errors import UnsupportedPermissionModeError
from shim.core.policy.policy import BYPASS_MODE
from shim.core.reading.typed import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from shim.core.adapter.translator import Translator
    from shim.core.policy.policy import PermissionRule

__all__ = [
    "MAX_ARGUMENT_BYTES",
    "Adapter",
    "ChildInput",
    "LaunchRequest",
    "LaunchSpec",
    "McpServers",
    "TurnReportAndAttachmentFiles",
    "VendorAbilities",
    "VendorCliInfo",
    "VendorEnvironment",
    "VendorPolicySupport",
    "VendorRunReportFileSpec",
    "VendorSessionBehavior",
    "VendorShutdownConfig",
    "can_pass_as_argument",
    "encode_prompt_stdin",
]


class VendorAbilities(NamedTuple):
    """What a vendor can do. What it cannot is done for it, or has no effect.

    can_stream               it can print fragments
    can_resume               it can resume a session
    accepts_model            its command line names a model; otherwise the one that a frontend asks
                             for is not what answers
    accepts_effort           it can be told how hard its model is to try
    can_limit_tools          its own flags keep tools from it; otherwise a forbidden call stops the
                             turn
    selects_tools            its own flags can limit it to the tools of `--tools`; otherwise each
                             call has to be checked first
    can_limit_turns          it counts turns itself (`--max-turns`); otherwise the Turn does
    accepts_json_schema      it keeps to `--json-schema` itself; otherwise the prompt asks and the
                             answer is read
    reports_cost             it says what a reply cost, so `--max-budget-usd` can be kept
    can_repeat_reply         it may say a reply again that was cut
    accepts_mcp_servers      it takes MCP servers (`--mcp-config`)
    accepts_command_servers  among them those that are commands, as our relays to servers in the
                             frontend's process are
    has_auto_mode            its models can decide what may run, if it has the mode auto (False for
                             recordings of other vendors)
    """

    can_stream: bool = False
    can_resume: bool = False
    accepts_model: bool = True
    accepts_effort: bool = False
    can_limit_tools: bool = False
    selects_tools: bool = False
    can_limit_turns: bool = False
    accepts_json_schema: bool = False
    reports_cost: bool = False
    can_repeat_reply: bool = False
    accepts_mcp_servers: bool = False
    accepts_command_servers: bool = True
    has_auto_mode: bool = True


class VendorPolicySupport(NamedTuple):
    """How a vendor is kept to rules before a call runs.

    list_prompted_tools     Claude's names of the tools that a request lets it run only after its
                            question was answered
    enforces_rule           whether what a request launches it with keeps it to a rule
    accepts_rule            whether it hears beforehand of a rule about a whole tool, so that such a
                            call does not end its turn
    allows_unprompted       whether a request launches it so that it runs unasked what a rule allows
    covers_subagents        calls of its subagents are bound, and asked about, like its own
    has_native_rules        it keeps Claude's rules by itself, so that whatever it asks is asked
    can_hook_apply_allow_rule  whether our hook lets it run what a rule allows
    has_hook                our hook judges each of its calls
    emits_call_before_hook  it says a call before our hook has judged it
    has_wider_modes         its own modes let more run than Claude's: in each but the widest its
                            questions are answered here
    escape_prompt           a prompt without the words for which it reads files before any call
    """

    list_prompted_tools: "Callable[[LaunchRequest], frozenset[str]]" = lambda request: frozenset()
    enforces_rule: "Callable[[PermissionRule, LaunchRequest], bool]" = lambda rule, request: False
    accepts_rule: "Callable[[PermissionRule], bool]" = lambda rule: False
    allows_unprompted: "Callable[[PermissionRule, LaunchRequest], bool]" = lambda rule, request: (
        False
    )
    covers_subagents: bool = False
    has_native_rules: bool = False
    can_hook_apply_allow_rule: "Callable[[PermissionRule], bool]" = lambda rule: False
    has_hook: bool = False
    emits_call_before_hook: bool = False
    has_wider_modes: bool = False
    escape_prompt: Callable[[str], str] = lambda prompt: prompt


class VendorSessionBehavior(NamedTuple):
    """What is peculiar to a vendor's sessions.

    saves_late              a session can only go on once a reply was complete
    uses_shim_id            a new session has our id, because the vendor tells its own too late for
                            a turn that is cut
    prefixes_system_prompt  a child that stays is told system prompts before the first message, and
                            nowhere else
    """

    saves_late: bool = False
    uses_shim_id: bool = False
    prefixes_system_prompt: bool = False


class VendorShutdownConfig(NamedTuple):
    """How a vendor's turn is stopped, and how its process ends.

    interrupt_signal  the signal that stops its turn
    grace_s           the seconds that it gets for that; 0 is as long as any vendor
    clean_exit_codes  exit codes that do not contradict its own "done"
    """

    interrupt_signal: str = "SIGINT"
    grace_s: float = 0.0
    clean_exit_codes: frozenset[int] = frozenset({0})


class VendorCliInfo(NamedTuple):
    """What is peculiar to a vendor's program.

    bundled_module        the module of ours that is its program
    variants              names of its dialects; `detect_variant` picks one from the program's
                          `--help`
    unreleased_note       what a person should know of a vendor that no released program is
    install_command       the command that installs it
    login_probe           how it is asked whether it has a login
    replayed_vendor       the vendor that it stands for, where it plays recordings
    read_replay_position  where it is in them, which is its own id of the session then
    build_two_way         gives the same vendor, driven so that it asks; None where it always is, or
                          has no such way
    two_way_help_texts    what the help of a version names that has this way
    always_keeps_child    one message too is given to a child that stays
    model_names           Claude's name of a model → its own, where the settings say nothing else
    model_probe           how it is asked for its models
    """

    bundled_module: str = ""
    variants: tuple[str, ...] = ()
    detect_variant: Callable[[str], str] | None = None
    unreleased_note: str = ""
    install_command: str = ""
    login_probe: LoginProbe = LoginProbe()
    replayed_vendor: str = ""
    read_replay_position: Callable[[], str] | None = None
    build_two_way: "Callable[[], Adapter] | None" = None
    two_way_help_texts: tuple[str, ...] = ()
    always_keeps_child: bool = False
    model_names: Mapping[str, str] = MappingProxyType({})
    model_probe: ModelProbe = ModelProbe()


class VendorEnvironment(NamedTuple):
    """The variables, files and folders that matter to a vendor's program.

    visible_variables  the ANTHROPIC_* variables that it may see
    api_base_variable  the variable in which it reads another address of its model's API
    data_dir           its folder of records: the variable that names it, and where in the person's
                       home it is without
    run_report         what it writes about its run into a folder of ours
    overriding_files   system → files, and folders with `.toml` files, that go before what we tell
                       it
    extra_tool_keys    JSON file in the working directory or at home → its key that gives tools
                       which no rule names
    mcp_server_keys    JSON file in the working directory or at home → the key that lists MCP
                       servers by name
    autostart_files    what of a working directory, or a folder around it, it starts unasked: path →
                       the keys of a JSON file that name programs, none where the path itself is one
    no_autostart_flag  a flag that only a version knows which does not start them
    trust_prompt_text  what its stderr says when its trust gate is closed; `trust = true` opens it
    attachment_dirs    where it reads files that a prompt names: variables, and folders below what
                       the first one says
    """

    visible_variables: tuple[str, ...] = ()
    api_base_variable: str = ""
    data_dir: tuple[str, str] | None = None
    run_report: VendorRunReportFileSpec | None = None
    overriding_files: Mapping[str, tuple[str, ...]] = MappingProxyType({})
    extra_tool_keys: Mapping[str, str] = MappingProxyType({})
    mcp_server_keys: Mapping[str, str] = MappingProxyType({})
    autostart_files: Mapping[str, tuple[str, ...]] = MappingProxyType({})
    no_autostart_flag: str = ""
    trust_prompt_text: str = ""
    attachment_dirs: tuple[tuple[str, str], ...] = ()


class Adapter(NamedTuple):
    """A vendor.

    programs         names on PATH, the first that exists is started
    translator_ref   who translates its lines: "module:Class", or what gives the class; loaded once
                     its child runs
    modes            Claude's permission mode → the vendor's arguments for it; a mode that is
                     missing is refused
    tools            its tools in Claude's words
    listed_tools     Claude's names of what it can run, where its own stream does not say
    choose_tools     which tools a request leaves it, where that is more than `listed_tools`
    unattended       it runs its tools and never asks
    passthrough      its stream is Claude's already
    child_input_ref  the `ChildInput` of a child that stays for the conversation, named as in
                     `translator_ref`; "": a child a turn
    login_hint       how a person logs in with it, said when the vendor is not logged in
    timeouts_s       how long it may be silent, where that is longer than others (keys of
                     `config.DEFAULT_TIMEOUTS_S`), and how long it waits for an answer, where that
                     is shorter
    version_probe    how its program is asked for its version, and which ones were tried
    """

    name: str
    programs: tuple[str, ...]
    translator_ref: "str | Callable[[], type[Translator]]"
    build_launch: Callable[[LaunchRequest], LaunchSpec]
    modes: Mapping[str, tuple[str, ...]]
    tools: Tools = MappingProxyType({})
    listed_tools: tuple[str, ...] = ()
    choose_tools: Callable[[LaunchRequest], tuple[str, ...]] | None = None
    unattended: bool = False
    passthrough: bool = False
    child_input_ref: str | Callable[[], ChildInput] = ""
    login_hint: str = ""
    timeouts_s: Mapping[str, float] = MappingProxyType({})
    version_probe: VersionProbe = VersionProbe()
    abilities: VendorAbilities = VendorAbilities()
    policy_support: VendorPolicySupport = VendorPolicySupport()
    session_traits: VendorSessionBehavior = VendorSessionBehavior()
    shutdown: VendorShutdownConfig = VendorShutdownConfig()
    cli: VendorCliInfo = VendorCliInfo()
    environment: VendorEnvironment = VendorEnvironment()

    @property
    def translator_class(self) -> "type[Translator]":
        """The class that translates its lines. Its module is imported here and not before: the
        child starts first.
        """
        translator: type[Translator] = (
            _load_class(self.translator_ref)
            if isinstance(self.translator_ref, str)
            else self.translator_ref()
        )
        return translator

    def create_child_input(self) -> ChildInput:
        """The `ChildInput` of one child that stays; only for a vendor that `child_input_ref`."""
        child_input: ChildInput = (
            _load_class(self.child_input_ref)()
            if isinstance(self.child_input_ref, str)
            else self.child_input_ref()
        )
        return child_input

    @property
    def display_name(self) -> str:
        """The name that a frontend sees: of who speaks, recorded or not."""
        return self.cli.replayed_vendor or self.name

    def list_available_tools(self, request: LaunchRequest) -> tuple[str, ...]:
        """Claude's names of the tools that it can run under a request, for `init.tools`."""
        return self.listed_tools if self.choose_tools is None else self.choose_tools(request)

    def needs_external_policy_check(self, mode: str) -> bool:
        """Whether its calls in a mode have to be judged here, because its own mode lets more run."""
        return self.policy_support.has_wider_modes and mode not in ("auto", BYPASS_MODE)

    def list_ignored_flags(self, invocation: Invocation) -> list[str]:
        """What of an invocation has no effect, a line each."""
        notices = []
        if invocation.max_budget_usd is not None and not (
            self.abilities.reports_cost or self.passthrough
        ):
            notices.append(
                f"--max-budget-usd has no effect: {self.name} does not say what a reply costs\n"
            )
        if invocation.model and not self.abilities.accepts_model:
            notices.append(f"--model has no effect: {self.name} has no flag for it\n")
        if invocation.effort and not (self.abilities.accepts_effort or self.passthrough):
            notices.append(
                f"--effort has no effect: {self.name} cannot be told how hard its model is to try\n"
            )
        if invocation.mcp_config and not (
            self.abilities.accepts_mcp_servers or self.cli.replayed_vendor
        ):
            notices.append(f"--mcp-config has no effect: {self.name} takes no MCP servers here\n")
        if invocation.strict_mcp_config and not (self.passthrough or self.cli.replayed_vendor):
            notices.append(
                f"--strict-mcp-config has no effect: {self.name} starts its own MCP servers too\n"
            )
        return notices

    def require_permission_prompts(self) -> None:
        """PermissionModeError for a vendor that never asks, where each call is to wait for its
        answer (Yume's interactive).
        """
        if self.unattended:
            raise UnsupportedPermissionModeError(
                f"{self.name} runs its tools and asks nobody, so it cannot be run in the mode interactive",
                hint="choose the mode default, or a vendor that asks (`shim vendors`)",
            )

    def resolve_permission_mode_args(self, mode: str) -> tuple[str, ...]:
        """The arguments that honour a permission mode; PermissionModeError when there is no way to
        (surface page).
        """
        if mode in self.modes:
            return self.modes[mode]
        raise UnsupportedPermissionModeError(
            f"{self.name} has no way to honour the permission mode {mode}; it can do: {', '.join(self.modes)}",
            hint="ask for one of these modes, or choose another vendor (`shim vendors` lists what each can do)",
        )

    def map_to_vendor_tool_names(self, claude_tool_names: tuple[str, ...]) -> list[str]:
        """Its own names of the tools that Claude calls `names`."""
        return list_vendor_tool_names(self.tools, claude_tool_names)


def _load_class(reference: str) -> Any:
    """The class that "module:Class" names."""
    from importlib import import_module

    module, _, name = reference.partition(":")
    return getattr(import_module(module), name)
