"""What a vendor is: how it is found and started, what it can do, and what translates its lines."""

from collections.abc import Mapping
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
from shim.core.adapter.tools import Tools
from shim.core.adapter.versions import LoginProbe, ModelProbe, VersionProbe
from shim.core.claude.argv.invocation import Invocation
from shim.core.errors import UnsupportedPermissionModeError
from shim.core.policy.policy import BYPASS_MODE
from shim.core.reading.typed import TYPE_CHECKING, Any, NamedTuple, Protocol

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
    "ReplaySource",
    "TurnReportAndAttachmentFiles",
    "VendorAbilities",
    "VendorCliInfo",
    "VendorEnvironment",
    "VendorPolicySupport",
    "VendorRunReportFileSpec",
    "VendorSessionBehavior",
    "VendorShutdownConfig",
    "VendorVariant",
    "can_pass_as_argument",
    "encode_prompt_stdin",
    "load_class",
]


class VendorAbilities(NamedTuple):
    """What a vendor can do. The shim does the rest itself, or it has no effect.

    can_stream               it can print fragments
    can_resume               it can resume a session
    accepts_model            a flag selects its model; otherwise the frontend's choice has no effect
    accepts_effort           it accepts a level of effort
    can_limit_tools          its own flags remove tools; otherwise a forbidden call ends the turn
    selects_tools            its own flags limit it to the tools of `--tools`; otherwise each call
                             must be checked before it runs
    can_limit_turns          it counts turns itself (`--max-turns`); otherwise the Turn counts them
    accepts_json_schema      it implements `--json-schema`; otherwise the prompt asks for JSON, and
                             the shim parses the answer
    reports_cost             it reports the cost of an answer, as `--max-budget-usd` needs
    can_repeat_reply         it may repeat an answer that was cut off
    accepts_mcp_servers      it accepts MCP servers (`--mcp-config`)
    accepts_command_servers  they may be commands, as our relays to the frontend's own servers are
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
    """How a vendor is kept to rules before a call runs. Methods of `Adapter` say which rules.

    covers_subagents        the calls of its subagents are bound by the same rules and prompts
    has_native_rules        it applies Claude's rules itself, so all that it asks is passed on
    has_hook                our hook judges each of its calls
    emits_call_before_hook  it reports a call before our hook has judged the call
    has_wider_modes         its modes let more run than Claude's: in each mode but the widest, the
                            shim answers its permission requests
    """

    covers_subagents: bool = False
    has_native_rules: bool = False
    has_hook: bool = False
    emits_call_before_hook: bool = False
    has_wider_modes: bool = False


class VendorSessionBehavior(NamedTuple):
    """How a vendor's sessions differ from Claude's.

    saves_late              a session can only be resumed after its first complete answer
    uses_shim_id            the shim chooses the id of a new session, because the vendor reports its
                            own too late for a turn that is cut off
    prefixes_system_prompt  system prompts stand before the first message of a persistent child
    """

    saves_late: bool = False
    uses_shim_id: bool = False
    prefixes_system_prompt: bool = False


class VendorShutdownConfig(NamedTuple):
    """How a vendor's turn is interrupted, and how its process ends.

    interrupt_signal  the signal that interrupts its turn
    grace_s           the time until it must have ended; 0 is the default of all vendors
    clean_exit_codes  exit codes that do not contradict a turn that the vendor reported as done
    """

    interrupt_signal: str = "SIGINT"
    grace_s: float = 0.0
    clean_exit_codes: frozenset[int] = frozenset({0})


class VendorVariant(NamedTuple):
    """What the `--help` of one variant of a program contains, and what it does not contain."""

    required_texts: tuple[str, ...]
    excluded_texts: tuple[str, ...]


class ReplaySource(Protocol):
    """Recordings that are played in place of a vendor."""

    child_id: str  # the recorded child that is played, which is the vendor's session id of a replay

    def build_launch(self, request: LaunchRequest) -> LaunchSpec: ...


class VendorCliInfo(NamedTuple):
    """What is peculiar to a vendor's program.

    bundled_module      the module of the shim that is its program
    variants            its dialects by name; `Adapter.detect_variant` selects one
    unreleased_note     what a person should know of a vendor that no released program is
    install_command     the command that installs it
    login_probe         the command that tells whether it has a login
    replayed_vendor     the vendor whose recordings it plays
    replay              the recordings
    has_two_way         `Adapter.build_two_way` builds an adapter of the same vendor that asks
    two_way_help_texts  what the help of a version contains that can be driven this way
    always_keeps_child  the child also persists for a single message
    model_names         Claude's name of a model → the vendor's, if no setting names another one
    model_probe         the command that lists its models
    """

    bundled_module: str = ""
    variants: Mapping[str, VendorVariant] = MappingProxyType({})
    unreleased_note: str = ""
    install_command: str = ""
    login_probe: LoginProbe = LoginProbe()
    replayed_vendor: str = ""
    replay: ReplaySource | None = None
    has_two_way: bool = False
    two_way_help_texts: tuple[str, ...] = ()
    always_keeps_child: bool = False
    model_names: Mapping[str, str] = MappingProxyType({})
    model_probe: ModelProbe = ModelProbe()


class VendorEnvironment(NamedTuple):
    """The variables, files and folders that matter to a vendor's program.

    visible_variables  the ANTHROPIC_* variables that it may see
    api_base_variable  the variable with another address of its model's API
    data_dir           its folder of records: the variable that names it, and the default folder in
                       the user's home
    run_report         the report that it writes into a folder of the shim
    overriding_files   system → files, and folders with `.toml` files, that override our settings
    extra_tool_keys    JSON file in the working directory or at home → its key with tools that no
                       rule names
    mcp_server_keys    JSON file in the working directory or at home → the key that lists MCP
                       servers by name
    autostart_files    what it starts unasked from a working directory or its parents: path → the
                       keys of a JSON file that name programs, or () if the file itself is started
    no_autostart_flag  a flag of newer versions that starts none of these
    trust_prompt_text  what its stderr prints if the folder is not trusted; `trust = true` trusts it
    attachment_dirs    where it reads files that a prompt names: variables, and folders below the
                       folder of the first variable
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


class Adapter:
    """Base class of the adapters. Each vendor has a subclass with attributes that describe it.

    A subclass overrides `build_launch`, and the other methods whose default does not fit.

    programs         names on PATH; the first that exists is started
    translator_ref   "module:Class" of its translator, which is loaded once its child runs
    modes            Claude's permission mode → the vendor's arguments; other modes are refused
    tools            its tools as Claude names them
    listed_tools     Claude's names of its tools, for a vendor whose stream does not list them
    unattended       it runs its tools and never asks
    passthrough      its stream is Claude's already
    child_input_ref  "module:Class" of the `ChildInput` of a persistent child; "" without one
    login_hint       how a person logs in; printed if the vendor is not logged in
    timeouts_s       how long it may be silent, if longer than others (keys of
                     `config.DEFAULT_TIMEOUTS_S`), and how long it waits for an answer, if shorter
    version_probe    the command that prints its version, and the versions that were tested
    """

    name: str
    programs: tuple[str, ...] = ()
    translator_ref: str = ""
    modes: Mapping[str, tuple[str, ...]] = MappingProxyType({})
    tools: Tools = MappingProxyType({})
    listed_tools: tuple[str, ...] = ()
    unattended: bool = False
    passthrough: bool = False
    child_input_ref: str = ""
    login_hint: str = ""
    timeouts_s: Mapping[str, float] = MappingProxyType({})
    version_probe: VersionProbe = VersionProbe()
    abilities: VendorAbilities = VendorAbilities()
    policy_support: VendorPolicySupport = VendorPolicySupport()
    session_traits: VendorSessionBehavior = VendorSessionBehavior()
    shutdown: VendorShutdownConfig = VendorShutdownConfig()
    cli: VendorCliInfo = VendorCliInfo()
    environment: VendorEnvironment = VendorEnvironment()

    def copy_with(self, **attributes: Any) -> "Adapter":
        """Return a copy with other values of these attributes."""
        adapter = object.__new__(type(self))
        vars(adapter).update(vars(self), **attributes)
        return adapter

    # -- to override -------------------------------------------------------------------------------

    def build_launch(self, request: LaunchRequest) -> LaunchSpec:
        """Return how the child of a request is started."""
        raise NotImplementedError

    @property
    def translator_class(self) -> "type[Translator]":
        """The class that translates its lines. It is imported after the child has started."""
        translator: type[Translator] = load_class(self.translator_ref)
        return translator

    def create_child_input(self) -> ChildInput:
        """Return the `ChildInput` of a new persistent child."""
        child_input: ChildInput = load_class(self.child_input_ref)()
        return child_input

    def build_two_way(self) -> "Adapter":
        """Return an adapter that drives the vendor so that it asks, if `cli.has_two_way`."""
        raise NotImplementedError

    def list_available_tools(self, request: LaunchRequest) -> tuple[str, ...]:
        """Return Claude's names of the tools that it can run in a request, for `init.tools`."""
        return self.listed_tools

    def list_prompted_tools(self, request: LaunchRequest) -> frozenset[str]:
        """Return Claude's names of the tools that it runs only after a permission response."""
        return frozenset()

    def can_enforce_rule(self, rule: "PermissionRule", request: LaunchRequest) -> bool:
        """Return whether a child that is started for a request keeps to a rule."""
        return False

    def accepts_rule(self, rule: "PermissionRule") -> bool:
        """Return whether it is told of a rule about a whole tool, so that a forbidden call does not
        end the turn.
        """
        return False

    def allows_unprompted(self, rule: "PermissionRule", request: LaunchRequest) -> bool:
        """Return whether a child of a request runs the calls that a rule allows without asking."""
        return False

    def can_hook_apply_allow_rule(self, rule: "PermissionRule") -> bool:
        """Return whether our hook makes it run the calls that a rule allows."""
        return False

    def escape_prompt(self, prompt: str) -> str:
        """Return the prompt without the syntax that makes it read files before any call."""
        return prompt

    # -- the same for all vendors ------------------------------------------------------------------

    @property
    def display_name(self) -> str:
        """The name that a frontend sees. A replay has the name of the recorded vendor."""
        return self.cli.replayed_vendor or self.name

    def detect_variant(self, help_text: str) -> str:
        """Return the first variant that fits the program's `--help`, or the last one of all."""
        for name, variant in self.cli.variants.items():
            has_required = all(text in help_text for text in variant.required_texts)
            if has_required and not any(text in help_text for text in variant.excluded_texts):
                return name
        return [*self.cli.variants][-1]

    def needs_external_policy_check(self, mode: str) -> bool:
        """Return whether the shim must judge its calls, because the vendor's mode lets more run."""
        if not self.policy_support.has_wider_modes:
            return False
        return mode not in ("auto", BYPASS_MODE)

    def list_ignored_flags(self, invocation: Invocation) -> list[str]:
        """Return a line for each flag of an invocation that has no effect."""
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
        """Raise UnsupportedPermissionModeError for a vendor that never asks, because each call must
        wait for its answer (Yume's interactive).
        """
        if self.unattended:
            raise UnsupportedPermissionModeError(
                f"{self.name} runs its tools and asks nobody, so it cannot be run in the mode interactive",
                hint="choose the mode default, or a vendor that asks (`shim vendors`)",
            )

    def resolve_permission_mode_args(self, mode: str) -> tuple[str, ...]:
        """Return the arguments of a permission mode.

        Raise UnsupportedPermissionModeError if the vendor does not have the mode.
        """
        if mode in self.modes:
            return self.modes[mode]
        raise UnsupportedPermissionModeError(
            f"{self.name} has no way to honour the permission mode {mode}; it can do: {', '.join(self.modes)}",
            hint="ask for one of these modes, or choose another vendor (`shim vendors` lists what each can do)",
        )


def load_class(reference: str) -> Any:
    """Return the class that "module:Class" names."""
    from importlib import import_module

    module, _, name = reference.partition(":")
    return getattr(import_module(module), name)
