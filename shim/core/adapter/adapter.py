"""The base class for adapters. An adapter describes how a vendor's program is found and started,
what the program can do, and which class translates its output.
"""

from collections.abc import Mapping
from types import MappingProxyType

from shim.core.adapter.request import (  # re-exported, so that adapters import only one module
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
from shim.core.claude.argv.flags import Invocation
from shim.core.errors import UnsupportedPermissionModeError
from shim.core.policy.policy import BYPASS_MODE
from shim.core.reading.typed import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    from shim.core.adapter.translator import Translator
    from shim.core.claude.resume_point import ResumePoint
    from shim.core.policy.policy import PermissionRule
    from shim.core.turn.context import VendorDataReader

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
    """The abilities of a vendor.

    If an ability is missing, the shim does the work itself, or the frontend's flag has no effect.

    can_stream               the vendor can print fragments of an answer
    can_resume               the vendor can resume a session
    accepts_model            a flag selects the model; otherwise the frontend's choice has no effect
    accepts_effort           the vendor accepts an effort level
    accepts_fallback_model   the vendor has a flag for a second model (`--fallback-model`)
    can_limit_tools          the vendor's flags remove tools; otherwise a forbidden call ends the
                             turn
    selects_tools            the vendor's flags limit the session to the tools of `--tools`;
                             otherwise each call must be checked before it runs
    can_limit_turns          the vendor counts turns (`--max-turns`); otherwise the Turn counts them
    accepts_json_schema      the vendor implements `--json-schema`; otherwise the prompt asks for
                             JSON, and the shim parses the answer
    reports_cost             the vendor reports the cost of an answer; `--max-budget-usd` needs it
    can_repeat_reply         the vendor may send an answer again after the answer was cut off
    accepts_mcp_servers      the vendor accepts MCP servers (`--mcp-config`)
    accepts_command_servers  an MCP server may be a command, such as the shim's relays to the
                             frontend's own servers
    has_auto_mode            the vendor's models can decide which calls run in the permission mode
                             auto; False in a replay if the recorded vendor does not have the mode
    """

    can_stream: bool = False
    can_resume: bool = False
    accepts_model: bool = True
    accepts_effort: bool = False
    accepts_fallback_model: bool = False
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
    """How a vendor enforces permission rules before a tool call runs. Methods of `Adapter` return
    which rules the vendor enforces.

    covers_subagents        the same rules and prompts apply to the calls of subagents
    has_native_rules        the vendor applies Claude's rules itself, so all its permission requests
                            are passed on
    has_hook                the shim's hook checks each call
    emits_call_before_hook  the vendor reports a call before the shim's hook has checked it
    has_wider_modes         the vendor's modes allow more than Claude's; except in auto and
                            bypassPermissions, the shim evaluates its permission requests
    """

    covers_subagents: bool = False
    has_native_rules: bool = False
    has_hook: bool = False
    emits_call_before_hook: bool = False
    has_wider_modes: bool = False


class VendorSessionBehavior(NamedTuple):
    """The differences between a vendor's sessions and Claude's.

    saves_late              a session can be resumed only after its first complete answer
    uses_shim_id            the shim chooses the id of a new session, because the vendor reports its
                            own id too late for a turn that is cut off
    prefixes_system_prompt  system prompts are put before the first message to a persistent child
    reads_project_commands  the vendor itself reads Claude's commands and skills in the project
    loses_sessions          a persistent child loses the records of a session that it resumes
    """

    saves_late: bool = False
    uses_shim_id: bool = False
    prefixes_system_prompt: bool = False
    reads_project_commands: bool = False
    loses_sessions: bool = False


class VendorShutdownConfig(NamedTuple):
    """How a vendor's turn is interrupted, and how its process ends.

    interrupt_signal  the signal that interrupts a turn
    grace_s           the seconds between this signal and SIGTERM; 0 for the general default
    clean_exit_codes  exit codes that are normal after a turn that the vendor reported as done
    """

    interrupt_signal: str = "SIGINT"
    grace_s: float = 0.0
    clean_exit_codes: frozenset[int] = frozenset({0})


class VendorVariant(NamedTuple):
    """How to recognize a variant of a program by its `--help` output: texts that must occur in it,
    and texts that must not.
    """

    required_texts: tuple[str, ...]
    excluded_texts: tuple[str, ...]


class ReplaySource(Protocol):
    """Recordings that are replayed in place of a vendor's program."""

    child_id: str  # the recorded child's id, which is the vendor's session id in a replay

    def build_launch(self, request: LaunchRequest) -> LaunchSpec: ...


class VendorCliInfo(NamedTuple):
    """The properties of a vendor's command-line program.

    bundled_module      the shim's module that serves as the program
    variants            the program's variants by name; `Adapter.detect_variant` selects one
    unreleased_note     a message for the user if the vendor's program is not released yet
    install_command     the command that installs the program
    login_probe         the command that checks whether the user is logged in
    replayed_vendor     the vendor whose recordings are replayed
    replay              the recordings to replay
    has_two_way         `Adapter.build_two_way` builds an adapter that asks for permissions
    two_way_help_texts  texts in the `--help` output of a version that can ask for permissions
    always_keeps_child  the child is also persistent in one-shot mode
    model_names         the vendor's name for each of Claude's model names; settings take precedence
    model_probe         the command that lists the models
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
    """The environment variables, files and folders that a vendor's program uses.

    visible_variables  the ANTHROPIC_* variables that are passed to the program
    api_base_variable  the variable that sets a different URL for the model's API
    data_dir           the folder of the vendor's data: the variable that names it, and the default
                       folder in the user's home
    run_report         the file that the program writes about its run, in a folder of the shim
    overriding_files   by operating system: the files, and the folders with `.toml` files, that
                       override the shim's settings
    extra_tool_keys    by JSON file in the working directory or home folder: the key that lists
                       tools that no rule names
    mcp_server_keys    by JSON file in the working directory or home folder: the key that lists MCP
                       servers by name
    autostart_files    files in a working directory or its parents that make the program start other
                       programs without asking. For a JSON file, the value lists the keys that name
                       these programs; the value is () if the file itself is started
    no_autostart_flag  the flag that disables these starts in newer versions
    trust_prompt_text  the text that the program prints on stderr if the folder is not trusted; the
                       setting `trust = true` trusts the folder
    attachment_dirs    the folders from which the program reads files that a prompt names:
                       variables, and folders below the folder of the first variable
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
    """Base class for adapters. Each vendor has a subclass whose attributes describe it.

    A subclass overrides `build_launch`, and the other methods whose default does not fit.

    programs         names on PATH; the first program that exists is started
    translator_ref   "module:Class" of the translator, which is loaded after the child has started
    modes            the vendor's arguments for each of Claude's permission modes; other modes are
                     refused
    tools            the mapping from the vendor's tools to Claude's
    listed_tools     Claude's names for the tools, if the vendor's stream does not list them
    unattended       the vendor runs its tools and never asks for permission
    passthrough      the vendor's output is already in Claude's format
    child_input_ref  "module:Class" of the `ChildInput` for a persistent child, or "" if the vendor
                     cannot keep its child
    login_hint       how to log in; printed if the user is not logged in
    timeouts_s       the timeouts that differ from `config.DEFAULT_TIMEOUTS_S`: how long the vendor
                     may be silent, and how long it waits for a permission response
    version_probe    the command that prints the version, and the versions that were tested
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
        """Return a copy of the adapter with new values for these attributes."""
        adapter = object.__new__(type(self))
        vars(adapter).update(vars(self), **attributes)
        return adapter

    # -- to override -------------------------------------------------------------------------------

    def build_launch(self, request: LaunchRequest) -> LaunchSpec:
        """Return how to start the child process for a request."""
        raise NotImplementedError

    @property
    def translator_class(self) -> "type[Translator]":
        """The class that translates the vendor's output. It is imported after the child process has
        started.
        """
        translator: type[Translator] = load_class(self.translator_ref)
        return translator

    def create_child_input(self) -> ChildInput:
        """Create the encoder of messages for a new persistent child."""
        child_input: ChildInput = load_class(self.child_input_ref)()
        return child_input

    def build_two_way(self) -> "Adapter":
        """Return an adapter that runs the vendor in a mode in which the vendor asks for
        permissions. Only called if `cli.has_two_way` is true.
        """
        raise NotImplementedError

    def list_available_tools(self, request: LaunchRequest) -> tuple[str, ...]:
        """Return Claude's names for the tools that can run in a request. They are listed in
        `init.tools`.
        """
        return self.listed_tools

    def list_prompted_tools(self, request: LaunchRequest) -> frozenset[str]:
        """Return Claude's names for the tools that the vendor runs only after a permission
        response.
        """
        return frozenset()

    def can_enforce_rule(self, rule: "PermissionRule", request: LaunchRequest) -> bool:
        """Return whether the child process for a request always obeys a permission rule."""
        return False

    def accepts_rule(self, rule: "PermissionRule") -> bool:
        """Return whether a permission rule is passed to the vendor. If so, a forbidden call does
        not end the turn.
        """
        return False

    def allows_unprompted(self, rule: "PermissionRule", request: LaunchRequest) -> bool:
        """Return whether the child process for a request needs no prompt to run the calls that an
        allow rule matches.
        """
        return False

    def can_hook_apply_allow_rule(self, rule: "PermissionRule") -> bool:
        """Return whether the shim's hook can make the vendor run the calls that an allow rule
        matches.
        """
        return False

    def escape_prompt(self, prompt: str) -> str:
        """Return the prompt without syntax, such as `@file`, that would make the vendor read files
        before the first tool call.
        """
        return prompt

    def find_rewind_target(
        self, point: "ResumePoint", session_id: str, data_dir: "VendorDataReader"
    ) -> str:
        """Return the vendor's id of the last turn that is kept in a session which is resumed at an
        earlier message. Return "" if the vendor cannot drop the later turns itself.

        `session_id` is the vendor's id of the session, and `data_dir` reads the vendor's own files.
        """
        return ""

    # -- common to all vendors ---------------------------------------------------------------------

    @property
    def display_name(self) -> str:
        """The vendor's name in texts for frontends. For a replay, this is the name of the recorded
        vendor.
        """
        return self.cli.replayed_vendor or self.name

    def detect_variant(self, help_text: str) -> str:
        """Return the first variant that matches the program's `--help` output. If no variant
        matches, return the last one.
        """
        for name, variant in self.cli.variants.items():
            has_required = all(text in help_text for text in variant.required_texts)
            if has_required and not any(text in help_text for text in variant.excluded_texts):
                return name
        return [*self.cli.variants][-1]

    def needs_external_policy_check(self, mode: str) -> bool:
        """Return whether the shim must check the vendor's tool calls, because the vendor's
        permission mode allows more than Claude's.
        """
        if not self.policy_support.has_wider_modes:
            return False
        return mode not in ("auto", BYPASS_MODE)

    def list_ignored_flags(self, invocation: Invocation) -> list[str]:
        """Return a message for each flag on the command line that has no effect with this vendor, or
        a smaller effect than with the real claude.
        """
        notices = []
        if invocation.max_budget_usd is not None and not (
            self.abilities.reports_cost or self.passthrough
        ):
            notices.append(f"--max-budget-usd has no effect: {self.name} does not report costs\n")
        if invocation.model and not self.abilities.accepts_model:
            notices.append(f"--model has no effect: {self.name} has no flag for it\n")
        if invocation.fallback_model and not (
            self.abilities.accepts_fallback_model or self.passthrough or self.cli.replayed_vendor
        ):
            notices.append(f"--fallback-model has no effect: {self.name} has no flag for it\n")
        if invocation.effort and not (self.abilities.accepts_effort or self.passthrough):
            notices.append(f"--effort has no effect: {self.name} has no effort setting\n")
        if invocation.mcp_config and not (
            self.abilities.accepts_mcp_servers or self.cli.replayed_vendor
        ):
            notices.append(
                f"--mcp-config has no effect: {self.name} does not support MCP servers in this mode\n"
            )
        if invocation.strict_mcp_config and not (self.passthrough or self.cli.replayed_vendor):
            notices.append(
                f"--strict-mcp-config has no effect: {self.name} starts its own MCP servers too\n"
            )
        return notices

    def require_permission_prompts(self) -> None:
        """Raise UnsupportedPermissionModeError if the vendor never asks for permissions. Yume's
        mode interactive needs a permission response before each tool call.
        """
        if self.unattended:
            raise UnsupportedPermissionModeError(
                f"{self.name} runs its tools without asking, so it does not support the "
                "permission mode `interactive`",
                hint="use the permission mode `default`, or a vendor that asks for permission "
                "(`shim vendors`)",
            )

    def resolve_permission_mode_args(self, mode: str) -> tuple[str, ...]:
        """Return the vendor's arguments for a permission mode.

        Raise UnsupportedPermissionModeError if the vendor does not support the mode.
        """
        if mode in self.modes:
            return self.modes[mode]
        reason = ""
        if self.unattended and mode != "auto":  # no vendor needs to ask in the mode auto
            reason = ", because it runs some tools without asking"
        raise UnsupportedPermissionModeError(
            f"{self.name} does not support the permission mode {mode}{reason}; it supports "
            f"{', '.join(self.modes)}",
            hint="use one of these modes, or another vendor (`shim vendors` lists their features)",
        )


def load_class(reference: str) -> Any:
    """Import and return the class that a "module:Class" reference names."""
    from importlib import import_module

    module, _, name = reference.partition(":")
    return getattr(import_module(module), name)
