"""The adapter for qwen (Qwen Code): `qwen --output-format stream-json --approval-mode MODE` with
the prompt on stdin. Measured with 0.24.4 and 0.15.10.

`qwen_stream` translates qwen's output lines, and `qwen_input` encodes the input of a persistent
qwen.
"""

from collections.abc import Mapping

from shim.core.adapter.adapter import (
    Adapter,
    LaunchRequest,
    LaunchSpec,
    VendorAbilities,
    VendorCliInfo,
    VendorEnvironment,
    VendorPolicySupport,
    encode_prompt_stdin,
)
from shim.core.adapter.tools import (
    Arguments,
    ToolMapping,
    convert_to_claude_todos,
    convert_zero_based_read_offset,
    list_vendor_tool_names,
    translate_tool_call,
)
from shim.core.adapter.versions import LoginProbe, VersionProbe
from shim.core.claude.argv.flags import Invocation
from shim.core.policy.policy import (
    AGENT_SERVER,
    BYPASS_MODE,
    MCP_PREFIX,
    SUBAGENT_TOOL,
    PermissionRule,
    normalize_tool_name,
    split_into_word_set,
)
from shim.core.reading.typed import Any

# Claude has the same names in Pascal case: `exit_plan_mode` is ExitPlanMode.
_PASCAL_CASE_TOOLS = (
    "exit_plan_mode",
    "enter_plan_mode",
    "notebook_edit",
    "tool_search",
    "monitor",
    "task_stop",
    "send_message",
    "list_agents",
    "cron_create",
    "cron_list",
    "cron_delete",
    "enter_worktree",
    "exit_worktree",
    "report_findings",
    "structured_output",
    "ask_user_question",
    "skill",
    "web_search",
)

_TASK = ToolMapping("Task", drop=("fork_context", "fork_session", "fork_turns"))

TOOLS = {name: ToolMapping(name.title().replace("_", "")) for name in _PASCAL_CASE_TOOLS} | {
    "loop_wakeup": ToolMapping("ScheduleWakeup"),
    "read_file": ToolMapping(
        "Read",
        {"absolute_path": "file_path", "path": "file_path"},
        convert={"offset": convert_zero_based_read_offset},
    ),
    "write_file": ToolMapping("Write", drop=("record_as_artifact",)),
    "edit": ToolMapping("Edit"),
    # `directory` is kept, because the command's effect depends on it
    "run_shell_command": ToolMapping("Bash", {"is_background": "run_in_background"}),
    "glob": ToolMapping("Glob"),
    "grep_search": ToolMapping("Grep", {"limit": "head_limit"}, extra={"output_mode": "content"}),
    "list_directory": ToolMapping("LS", drop=("file_filtering_options",)),
    "todo_write": ToolMapping("TodoWrite", convert={"todos": convert_to_claude_todos}),
    "agent": _TASK,
    "task": _TASK,
    "web_fetch": ToolMapping("WebFetch", drop=("format",)),
    "exit_plan_mode": ToolMapping("ExitPlanMode", drop=("originalRequest", "researchSummary")),
    "ask_user_question": ToolMapping("AskUserQuestion", drop=("metadata",)),
}

# qwen lists this tool, but it only wraps calls of other tools, so the frontend does not see it.
UNLISTED_TOOLS = frozenset(("tool_call",))

# qwen appends a hash to the name of an MCP tool if the name has characters other than letters,
# digits, `_` and `-`, or is longer than 63 characters. The hash has 32 bits in base 36, so its
# first digit is 0 or 1. Example: the tool `do it` of the server `s.x` is `mcp__s_x__do_it_1lf321w`.
HASH_STARTS = ("_0", "_1")
_HASH_CHARS = frozenset("0123456789abcdefghijklmnopqrstuvwxyz")


def strip_tool_name_hash(name: str) -> str:
    """Return the name of an MCP tool as Claude writes it, without the hash that qwen appends."""
    if (
        name.startswith(MCP_PREFIX)
        and name[-8:-6] in HASH_STARTS
        and _HASH_CHARS.issuperset(name[-6:])
    ):
        return name[:-8]
    return name


def translate_qwen_tool_call(name: str, arguments: object) -> tuple[str, Arguments]:
    """Return Claude's tool name and arguments for a qwen tool call."""
    return translate_tool_call(TOOLS, strip_tool_name_hash(name), arguments)


# The shim prints its own warning about unattended runs.
ENVIRONMENT = {"QWEN_CODE_SUPPRESS_YOLO_WARNING": "1"}
SYSTEM_PROMPT_VARIABLE = "QWEN_SYSTEM_MD"  # path of a file that replaces --system-prompt
# The bundled settings have the highest precedence. With these settings, qwen also asks about calls
# that the user's and the project's settings allow, and ignores the hooks and commands in the user's
# and the project's settings. In one-shot mode, qwen denies each call that it would ask about, so
# the bundled settings for this mode do not ask before a file is read. The administrator's settings
# become the defaults, so that their denials still apply.
SETTINGS_VARIABLE = "QWEN_CODE_SYSTEM_SETTINGS_PATH"
ADMINISTRATOR_DEFAULTS = {"QWEN_CODE_SYSTEM_DEFAULTS_PATH": "/etc/qwen-code/settings.json"}
ASK_ALL_SETTINGS = "qwen_asks_all.json"
ASK_CHANGES_SETTINGS = "qwen_asks_changes.json"


NO_LOGIN_REGEX = r'(No auth type is selected|Missing API key)[^"]*'


# The tools that qwen asks about in its mode `default`. In every mode, qwen runs read-only tools
# without a prompt.
PROMPTED_TOOLS = frozenset(("Bash", "Edit", "Write", "NotebookEdit", "WebFetch"))
# The tools that qwen asks about with the bundled settings. These settings disable subagents,
# because subagents change files without a prompt in each of their modes.
PROMPTED_WITH_SETTINGS = PROMPTED_TOOLS | split_into_word_set("""
    mcp__ Read Grep Glob LS Monitor WebSearch Skill SendMessage CronCreate ScheduleWakeup EnterWorktree ExitWorktree
""")
ASKING_ARGUMENTS = ("--approval-mode", "default")
# If `edit` is excluded, qwen excludes all tools that change files. If `read_file` is excluded, qwen
# excludes all tools that read files.
TOOL_FAMILIES = ("edit", "read_file")


def build_permission_mode_arguments(request: LaunchRequest) -> tuple[str, ...]:
    """Return the command-line arguments for the permission mode.

    A persistent child asks before each tool call, and the policy answers. Only plan, auto, and
    bypassPermissions without rules mean the same in qwen as in Claude.
    """
    if (
        request.persistent
        and request.permission_mode not in ("plan", "auto")
        and not _allows_everything(request)
    ):
        return ASKING_ARGUMENTS
    return request.mode_arguments


def _allows_everything(request: LaunchRequest) -> bool:
    """Return whether the mode is bypassPermissions and there are no rules."""
    if request.permission_mode != BYPASS_MODE:
        return False
    if request.policy is None:
        return True
    return not request.policy.has_rules


def uses_bundled_qwen_settings(request: LaunchRequest) -> bool:
    """Return whether qwen is started with the settings that are bundled with the shim."""
    if request.policy_bypass or request.permission_mode == "auto":
        return False
    return not _allows_everything(request)


def _list_server_tool_names(rule: str) -> list[str]:
    """Return qwen's names for the MCP tool that a rule names.

    qwen appends a hash to a tool name if it replaces characters in the name.
    """
    name = normalize_tool_name(rule)
    if rule.endswith("*") or name.count("__") < 2 or "_" not in name.replace("__", ""):
        return [rule]
    return [rule, name, *(f"{name}{hash_start}*" for hash_start in HASH_STARTS)]


def _build_settings_environment(file_name: str) -> dict[str, str]:
    """Return the variables that make qwen read one of the bundled settings files."""
    folder = __file__.rpartition("/")[0]
    return {SETTINGS_VARIABLE: f"{folder}/{file_name}", **ADMINISTRATOR_DEFAULTS}


def _build_environment(request: LaunchRequest, system_prompt_path: str | None) -> dict[str, str]:
    """Return the environment variables. `system_prompt_path` is the file with a system prompt that
    is too long for an argument, or None.
    """
    environment = dict(ENVIRONMENT)
    if system_prompt_path:
        environment[SYSTEM_PROMPT_VARIABLE] = system_prompt_path
    if not uses_bundled_qwen_settings(request):
        return environment
    if request.persistent:
        return environment | _build_settings_environment(ASK_ALL_SETTINGS)
    return environment | _build_settings_environment(ASK_CHANGES_SETTINGS)


def _build_stream_arguments(request: LaunchRequest) -> list[str]:
    """Return the flags for the form of the input and the output, and for the permission mode."""
    arguments = ["--output-format", "stream-json", *build_permission_mode_arguments(request)]
    if request.persistent:
        arguments += ["--input-format", "stream-json"]
    if request.invocation.partial:
        arguments.append("--include-partial-messages")
    return arguments


def _build_system_prompt_arguments(
    request: LaunchRequest, system_prompt_path: str | None
) -> list[str]:
    """Return the flags for the system prompts, without a system prompt that is in a file."""
    invocation = request.invocation
    arguments = []
    if not system_prompt_path:
        arguments += request.format_flag("--system-prompt", invocation.system_prompt)
    return arguments + request.format_flag(
        "--append-system-prompt", invocation.append_system_prompt
    )


def _build_turn_limit_arguments(request: LaunchRequest) -> list[str]:
    """Return the flag for `--max-turns`. qwen counts the turns of its process, but Claude counts
    the turns of one message, so a persistent child does not get the flag.
    """
    max_turns = request.invocation.max_turns
    if max_turns is None or request.persistent:
        return []
    return ["--max-session-turns", str(max_turns)]


def _build_mcp_arguments(request: LaunchRequest) -> list[str]:
    """Return the flags for MCP servers. A persistent child receives the other private
    configurations through its stdin.
    """
    private_servers = _select_agent_server(request)
    if not request.persistent:
        private_servers = {**request.mcp_servers.private_servers, **private_servers}
    private_configs = request.write_mcp_config_files(private_servers)
    return [
        f"--mcp-config={config}"
        for config in (*request.list_mcp_configs_without_sdk_servers(), *private_configs)
    ]


def _select_agent_server(request: LaunchRequest) -> dict[str, Mapping[str, Any]]:
    """Return the shim's own MCP server, with the key that makes qwen offer the server's tool to the
    model immediately. The model must search for the tools of other servers. qwen does not accept
    the key for servers that are sent through stdin.
    """
    return {
        name: {**config, "alwaysLoadTools": True}
        for name, config in request.mcp_servers.private_servers.items()
        if name == AGENT_SERVER
    }


def build_session_arguments(request: LaunchRequest) -> list[str]:
    """Return the session flags. qwen's flags are the same as Claude's, but a resumed session keeps
    its id.
    """
    invocation = request.invocation
    if request.resume_id:
        return ["--resume", request.resume_id] + (
            ["--fork-session"] if invocation.fork_session else []
        )
    return request.format_flag("--session-id", invocation.session_id)


# qwen silently retries a failed request 28 times. The retries take 84 s if each request fails at
# once, and each request may take another 30 s.
MAX_SILENCE_S = 28 * 30.0 + 84
# qwen prints nothing during these retries, so the shim cannot change the model earlier.
LATE_FALLBACK_NOTICE = (
    "--fallback-model has a late effect: qwen first retries its model for more than a minute\n"
)
# qwen itself denies a call without an answer after `PERMISSION_TIMEOUT_MS` (`qwen_input`). The
# shim's timeout is shorter, so that the denial is reported.
ANSWER_TIMEOUT_S = 590.0


class QwenAdapter(Adapter):
    """The adapter for Qwen Code."""

    name = "qwen"
    programs = ("qwen",)
    version_probe = VersionProbe(
        regex=r"^(?:qwen )?v?(\d+\.\d[\w.+-]*)$", tested_range=">=0.15.10,<0.25"
    )
    translator_ref = "shim.adapters.qwen_stream:QwenTranslator"
    modes = {
        "default": ("--approval-mode", "default"),
        "plan": ("--approval-mode", "plan"),
        # qwen's own mode would edit files in any folder, so the policy answers
        "acceptEdits": ("--approval-mode", "default"),
        "dontAsk": ("--approval-mode", "default"),
        "auto": ("--approval-mode", "auto"),
        "bypassPermissions": ("--approval-mode", "yolo"),
    }
    tools = TOOLS
    abilities = VendorAbilities(
        accepts_effort=True,
        accepts_fallback_model=True,
        can_limit_tools=True,
        selects_tools=True,
        can_limit_turns=True,
        can_stream=True,
        can_resume=True,
        can_repeat_reply=True,
        accepts_json_schema=True,
        accepts_mcp_servers=True,
    )
    timeouts_s = {
        "first_byte_timeout": MAX_SILENCE_S,
        "idle_timeout": MAX_SILENCE_S,
        "permission_timeout": ANSWER_TIMEOUT_S,
    }
    policy_support = VendorPolicySupport(
        has_wider_modes=True,
    )
    cli = VendorCliInfo(
        install_command="npm install -g @qwen-code/qwen-code",
        login_probe=LoginProbe(  # with an empty stdin, qwen exits before it calls a model
            ("--output-format", "stream-json", "--input-format", "stream-json", *ASKING_ARGUMENTS),
            NO_LOGIN_REGEX,
            _build_settings_environment(ASK_ALL_SETTINGS),
        ),
    )
    login_hint = (
        "start `qwen` once and log in with /auth, or set OPENAI_API_KEY (and OPENAI_BASE_URL)"
    )
    child_input_ref = "shim.adapters.qwen_input:QwenInput"
    environment = VendorEnvironment(
        api_base_variable="OPENAI_BASE_URL",
        attachment_dirs=(("QWEN_RUNTIME_DIR", "tmp"), ("QWEN_HOME", "tmp"), ("HOME", ".qwen/tmp")),
    )

    def list_ignored_flags(self, invocation: Invocation) -> list[str]:
        """Return the base class's messages, and one for a fallback model, which qwen uses late."""
        notices = super().list_ignored_flags(invocation)
        if invocation.fallback_model:
            notices.append(LATE_FALLBACK_NOTICE)
        return notices

    def build_launch(self, request: LaunchRequest) -> LaunchSpec:
        """Build the launch with only the flags that qwen supports, because qwen exits at an unknown
        flag.
        """
        invocation = request.invocation
        system_prompt_path = request.store_oversized_argument(invocation.system_prompt)
        arguments = [
            *_build_stream_arguments(request),
            *request.format_flag("--model", invocation.model),
            *request.format_flag("--fallback-model", invocation.fallback_model),
            *_build_system_prompt_arguments(request, system_prompt_path),
            *_build_turn_limit_arguments(request),
            *self._build_tool_arguments(request),
            *(arg for directory in invocation.add_dirs for arg in ("--add-dir", directory)),
            *_build_mcp_arguments(request),
        ]
        if not request.persistent:  # qwen rejects this flag with stream-json input
            arguments += request.format_flag("--json-schema", invocation.json_schema)
        arguments += build_session_arguments(request)
        stdin = b""
        if not request.persistent:
            stdin = encode_prompt_stdin(request.prompt)
        return LaunchSpec(tuple(arguments), stdin, _build_environment(request, system_prompt_path))

    def list_prompted_tools(self, request: LaunchRequest) -> frozenset[str]:
        if request.persistent and uses_bundled_qwen_settings(request):
            return PROMPTED_WITH_SETTINGS
        if request.persistent and build_permission_mode_arguments(request) == ASKING_ARGUMENTS:
            return PROMPTED_TOOLS
        return frozenset()

    def can_enforce_rule(self, rule: PermissionRule, request: LaunchRequest) -> bool:
        """Return whether qwen can enforce a rule about MCP. It can if it asks about each call, or
        if the tools with the rule's name are removed.
        """
        if not rule.tool.startswith(MCP_PREFIX):
            return False
        if MCP_PREFIX in self.list_prompted_tools(request):
            return True
        if rule.tool not in request.removed_tools:
            return False
        return "*" not in rule.tool[:-1]

    def _build_tool_arguments(self, request: LaunchRequest) -> list[str]:
        """Return the flags that limit the tools."""
        tools = request.invocation.tools
        selected_tools = list_vendor_tool_names(TOOLS, tools or ())
        if tools is None or selected_tools:
            excluded_tools = self._list_excluded_tools(request)
        else:
            # An empty `--core-tools` would mean all tools, so all tools are excluded if none is
            # selected. The tool of --json-schema cannot be selected and is always available,
            # because the model answers with it.
            excluded_tools = [name for name in TOOLS if name != "structured_output"]
        return [
            *(f"--core-tools={name}" for name in selected_tools),
            *(f"--exclude-tools={name}" for name in excluded_tools),
        ]

    def _list_excluded_tools(self, request: LaunchRequest) -> list[str]:
        """Return qwen's names for the tools that must be excluded.

        If excluding a tool would exclude all tools of its family, the tool is kept, provided that
        qwen asks about each call.
        """
        vendor_tools = list_vendor_tool_names(TOOLS, request.removed_tools)
        if request.persistent and _allows_everything(request):
            # in this mode qwen would answer its own question with an empty text
            vendor_tools.append("ask_user_question")
        server_tools = [
            vendor_tools
            for name in request.removed_tools
            if name.startswith(MCP_PREFIX)
            for vendor_tools in _list_server_tool_names(name)
        ]
        spared_tools = TOOL_FAMILIES if MCP_PREFIX in self.list_prompted_tools(request) else ()
        return [
            name for name in dict.fromkeys(vendor_tools + server_tools) if name not in spared_tools
        ]

    def accepts_rule(self, rule: PermissionRule) -> bool:
        if rule.tool != SUBAGENT_TOOL:
            return False
        return rule.content is None

    def escape_prompt(self, prompt: str) -> str:
        return prompt.replace("@", "\\@")


ADAPTER = QwenAdapter()
