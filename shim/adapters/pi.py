"""The adapter for pi: `pi --mode json` with the prompt on stdin, or `pi --mode rpc`. Measured with
0.73.1, 0.87.1, 1.5.2 and 1.6.0.

`pi_stream` translates pi's output lines. A conversation uses pi's RPC: `pi_rpc_session` encodes the
requests, and `pi_rpc_stream` translates the lines that only the RPC has.
"""

from shim.core.adapter.adapter import (
    Adapter,
    LaunchRequest,
    LaunchSpec,
    VendorAbilities,
    VendorCliInfo,
    VendorEnvironment,
    VendorSessionBehavior,
    VendorShutdownConfig,
    encode_prompt_stdin,
)
from shim.core.adapter.tools import (
    ToolMapping,
    build_edit_list_converter,
    convert_seconds_to_ms,
    list_vendor_tool_names,
)
from shim.core.adapter.versions import LoginProbe, ModelProbe, VersionProbe
from shim.core.claude.argv.models import CLAUDE_EFFORT_LEVELS, choose_supported_effort
from shim.core.errors import UnsupportedPermissionModeError
from shim.core.policy.policy import BYPASS_MODE, MCP_PREFIX, PERMISSION_MODES, PermissionRule

# pi's tools and Claude's names for them. pi's tools read `path` and ignore `file_path`.
_DROPPED_KEYS = ("file_path",)
TOOLS = {
    "read": ToolMapping("Read", {"path": "file_path"}, drop=_DROPPED_KEYS),
    "bash": ToolMapping("Bash", convert={"timeout": convert_seconds_to_ms}),
    "write": ToolMapping("Write", {"path": "file_path"}, drop=_DROPPED_KEYS),
    "edit": ToolMapping(
        "Edit",
        {"path": "file_path"},
        drop=_DROPPED_KEYS,
        reshape=build_edit_list_converter("oldText", "newText"),
    ),
    "grep": ToolMapping(
        "Grep",
        {"ignoreCase": "-i", "context": "-C", "limit": "head_limit"},
        drop=("literal",),
        extra={"output_mode": "content"},
    ),
    "find": ToolMapping("Glob", drop=("limit",)),
    "ls": ToolMapping("LS", drop=("limit",)),
}
# tools that pi enables by default, unlike grep, find and ls
BUILT_IN_TOOLS = ("read", "bash", "edit", "write")
ALL_TOOLS = (*BUILT_IN_TOOLS, "grep", "find", "ls")
# The name of an MCP tool that does not exist. Since 1.0.4, `--tools` keeps the tools of pi's MCP
# servers unless it names an MCP tool. Therefore this name is added to `--tools` if pi's help does
# not show `--no-mcp`, which removes these tools. Older versions ignore the name.
NO_MCP_TOOL = "mcp__claude-shim__none"
SUPPORTED_EFFORTS = CLAUDE_EFFORT_LEVELS[:-1]  # pi 0.73 does not have the highest level


def uses_permission_extension(request: LaunchRequest) -> bool:
    """Return whether the shim's pi extension asks about each tool call in a conversation.

    The extension is not used if pi might not load it and no call needs permission.
    """
    if not request.persistent:
        return False
    if request.permission_mode != BYPASS_MODE:
        return True
    if request.policy is not None and request.policy.has_rules:
        return True
    return not request.policy_bypass


def build_extension_settings_json(request: LaunchRequest) -> str:
    """Return the settings for the shim's pi extension. Raise UnsupportedPermissionModeError if pi
    might not load the extension.

    The extension asks about each tool call. If edits need no permission, it restricts pi's tools to
    some folders instead.
    """
    if request.policy_bypass and request.persistent:
        raise UnsupportedPermissionModeError(
            f"pi might not load the extension that asks before each tool call: {request.policy_bypass}",
            hint='start pi without a launcher, set [vendors.pi] driver = "one-way" (it never '
            f"asks), or choose {BYPASS_MODE} without rules",
        )
    if request.policy_bypass:
        raise UnsupportedPermissionModeError(
            "pi might not load the extension that restricts edits to the session's folders: "
            f"{request.policy_bypass}",
            hint="start pi without a launcher, or choose the mode default or bypassPermissions",
        )
    import json

    if request.persistent:
        return json.dumps({"asks": True})

    from shim.core.policy.policy import PROTECTED_NAMES, SHIM_FOLDERS

    return json.dumps(
        {
            "folders": [".", *request.invocation.add_dirs],
            "names": sorted(PROTECTED_NAMES),
            "paths": SHIM_FOLDERS,
        }
    )


def choose_enabled_tools(request: LaunchRequest) -> tuple[list[str], bool]:
    """Return pi's names for the tools that a request allows, and whether they differ from pi's
    default.

    pi has only one flag for tools, which combines the permission mode, `--tools` and denied tools.
    Except in plan mode, a rule that allows a complete tool adds it to the tools of the mode. pi has
    no flag for rules that apply to some calls of a tool.
    """
    invocation = request.invocation
    if request.mode_arguments:
        names = request.mode_arguments[1].split(",")
    else:
        names = list(BUILT_IN_TOOLS)
    if request.mode_arguments and request.permission_mode != "plan":
        names += [
            name
            for name in list_vendor_tool_names(TOOLS, invocation.allowed_tools)
            if name not in names
        ]
    if request.mode_arguments:
        allowed_names = tuple(names)
    else:
        allowed_names = ALL_TOOLS
    is_limited = bool(request.mode_arguments)
    if invocation.tools is not None:
        names = [
            name
            for name in list_vendor_tool_names(TOOLS, invocation.tools)
            if name in allowed_names
        ]
        is_limited = True
    removed = list_vendor_tool_names(TOOLS, request.removed_tools)
    if any(name in names for name in removed):
        is_limited = True
    return [name for name in names if name not in removed], is_limited


def build_tool_selection_arguments(request: LaunchRequest) -> list[str]:
    """Return the command-line arguments that select pi's tools."""
    names, is_limited = choose_enabled_tools(request)
    arguments = []
    if needs_mcp_tool_removal(request):
        if request.has_flag("--no-mcp"):
            arguments = ["--no-mcp"]
        else:
            names = [*names, NO_MCP_TOOL]
            is_limited = True
    if is_limited and names:
        return [*arguments, "--tools", ",".join(names)]
    if is_limited:
        return [*arguments, "--no-tools"]
    if needs_built_in_tool_restore(request):
        return [*arguments, "--tools", ",".join(f"+{name}" for name in BUILT_IN_TOOLS)]
    return arguments


def needs_mcp_tool_removal(request: LaunchRequest) -> bool:
    """Return whether the tools of pi's own MCP servers must be removed.

    One-shot mode has no permission prompts, and only the modes default and bypassPermissions run
    these tools without a prompt.
    """
    if request.persistent:
        return False
    if request.policy is not None:
        narrowing = request.policy.restricting_rules
    else:
        narrowing = ()
    if request.mode_arguments:
        return True
    return any(rule.tool.startswith(MCP_PREFIX) for rule in narrowing)


def needs_built_in_tool_restore(request: LaunchRequest) -> bool:
    """Return whether pi's built-in tools must be enabled again in a resumed session.

    Since 1.3, a session keeps the tools of its last run, which may have been in plan mode. The
    tools are restored only in bypassPermissions, or if the shim's extension asks about each call.
    In other cases, the user may have disabled a tool in pi's settings.
    """
    if not request.persistent and request.permission_mode != BYPASS_MODE:
        return False
    if not request.resume_id:
        return False
    return request.has_flag("+name")


def _needs_extension(request: LaunchRequest) -> bool:
    """Return whether pi is started with the shim's extension."""
    if uses_permission_extension(request):
        return True
    return request.permission_mode == "acceptEdits" and not request.persistent


def _build_model_arguments(request: LaunchRequest) -> list[str]:
    """Return the flags for the model and its effort."""
    arguments = request.format_flag("--model", request.invocation.model)
    effort = request.invocation.effort
    if effort is not None:
        arguments += ["--thinking", str(choose_supported_effort(effort, SUPPORTED_EFFORTS))]
    return arguments


def _build_system_prompt_arguments(request: LaunchRequest) -> list[str]:
    """Return the flags for the system prompts. pi also accepts the path of a file that contains the
    prompt.
    """
    invocation = request.invocation
    arguments = []
    for name, text in (
        ("--system-prompt", invocation.system_prompt),
        ("--append-system-prompt", invocation.append_system_prompt),
    ):
        if text:
            arguments += [name, request.store_oversized_argument(text) or text]
    return arguments


def _build_session_arguments(request: LaunchRequest) -> list[str]:
    """Return the flags for the session to resume, to fork or to start."""
    invocation = request.invocation
    if request.resume_id and invocation.fork_session:
        return ["--fork", request.resume_id]
    if request.resume_id:
        return ["--session", request.resume_id]
    if invocation.session_id and request.has_flag("--session-id"):
        return ["--session-id", invocation.session_id]
    return []


# The shim's extension asks about each tool call. In one-shot mode, it restricts pi's tools to the
# turn's folders instead.
PERMISSION_EXTENSION = __file__.rpartition("/")[0] + "/pi_gate.js"
READ_ONLY_ARGUMENTS = ("--tools", "read,grep,find,ls")


class PiAdapter(Adapter):
    """The adapter for pi in one-shot mode, in which pi never asks for permission."""

    name = "pi"
    programs = ("pi",)
    version_probe = VersionProbe(regex=r"^(?:pi )?v?(\d+\.\d[\w.+-]*)$", tested_range=">=0.73,<1.7")
    translator_ref = "shim.adapters.pi_stream:PiTranslator"
    modes = {
        "default": (),
        "plan": READ_ONLY_ARGUMENTS,
        "acceptEdits": ("--tools", "read,grep,find,ls,edit,write"),
        "bypassPermissions": (),
    }
    tools = TOOLS
    listed_tools = ("Read", "Bash", "Edit", "MultiEdit", "Write")
    unattended = True
    abilities = VendorAbilities(
        accepts_effort=True,
        can_limit_tools=True,
        selects_tools=True,
        can_stream=True,
        can_resume=True,
        can_repeat_reply=True,
        reports_cost=True,
    )
    session_traits = VendorSessionBehavior(saves_late=True)
    # pi 0.73 loads these files. Newer versions first ask whether the folder is trusted.
    environment = VendorEnvironment(
        autostart_files={".pi/extensions": (), ".pi/settings.json": ()},
        no_autostart_flag="--no-approve",
    )
    shutdown = VendorShutdownConfig(interrupt_signal="SIGTERM")
    cli = VendorCliInfo(
        install_command="npm install -g @earendil-works/pi-coding-agent",
        # The output is a table whose first columns are the provider and the model.
        model_probe=ModelProbe(("--list-models",), r"^(?!provider )(\S+) {2,}(\S+) {2,}\S"),
        login_probe=LoginProbe(("--list-models",), r"^No models available\."),
        has_two_way=True,
    )
    login_hint = (
        "start `pi` once and log in with /login, or set the API key of the model's provider"
    )

    def build_launch(self, request: LaunchRequest) -> LaunchSpec:
        """Build the launch. The prompt is sent through stdin, because as an argument it could be
        too long, or pi could read it as a flag or a file.
        """
        mode = "json"
        if request.persistent:
            mode = "rpc"
        arguments = [
            "--mode",
            mode,
            *_build_model_arguments(request),
            *_build_system_prompt_arguments(request),
            *build_tool_selection_arguments(request),
        ]
        enforced_environment: dict[str, str] = {}
        if _needs_extension(request):
            arguments += ["-e", PERMISSION_EXTENSION]
            enforced_environment["PI_GATE"] = build_extension_settings_json(request)
        arguments += _build_session_arguments(request)
        launch_spec = LaunchSpec(tuple(arguments), enforced_environment=enforced_environment)
        if request.persistent:
            return launch_spec._replace(needs_stdin_pipe=True)
        return launch_spec._replace(stdin=encode_prompt_stdin(request.prompt))

    def list_available_tools(self, request: LaunchRequest) -> tuple[str, ...]:
        """Return the tools that the request allows. pi's `edit` stands for Edit and MultiEdit."""
        names, _ = choose_enabled_tools(request)
        listed = [
            claude_name
            for name in names
            for claude_name in (TOOLS[name].name, *(("MultiEdit",) if name == "edit" else ()))
        ]
        return tuple(listed)

    def can_enforce_rule(self, rule: PermissionRule, request: LaunchRequest) -> bool:
        """Return whether the rule is about MCP. For such a rule, the tools of all MCP servers are
        removed.
        """
        return rule.tool.startswith(MCP_PREFIX)

    def build_two_way(self) -> Adapter:
        return PiRpcAdapter()


class PiRpcAdapter(PiAdapter):
    """The adapter that drives pi through its RPC. The shim's extension asks about each tool call,
    and the policy or the frontend answers.
    """

    translator_ref = "shim.adapters.pi_rpc_stream:PiRpcTranslator"
    child_input_ref = "shim.adapters.pi_rpc_session:PiRpcSession"
    modes = {
        **{mode: () for mode in PERMISSION_MODES if mode != "auto"},
        "plan": READ_ONLY_ARGUMENTS,
    }
    unattended = False
    cli = PiAdapter.cli._replace(has_two_way=False)

    def list_prompted_tools(self, request: LaunchRequest) -> frozenset[str]:
        if not uses_permission_extension(request):
            return frozenset()
        return frozenset((*self.listed_tools, *(tool.name for tool in TOOLS.values()), MCP_PREFIX))

    def can_enforce_rule(self, rule: PermissionRule, request: LaunchRequest) -> bool:
        return uses_permission_extension(request)


ADAPTER = PiAdapter()
