"""qwen (Qwen Code): `qwen --output-format stream-json --approval-mode MODE`, the prompt on stdin.

Measured: 0.24.4 and 0.15.10. `qwen_stream` translates its lines, `qwen_input` is what it is told.
"""

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
from shim.core.policy.policy import (
    BYPASS_MODE,
    MCP_PREFIX,
    SUBAGENT_TOOL,
    PermissionRule,
    normalize_tool_name,
    split_into_word_set,
)

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
    # its `directory` decides what runs
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

# Announced, but no tool a frontend could name: `tool_call` only wraps the others (section 8).
UNLISTED_TOOLS = frozenset(("tool_call",))

# qwen appends a hash to the name of a server's tool that has other characters than letters, digits,
# `_` and `-`, or is longer than 63: 32 bits in base 36, so its first digit is 0 or 1. `s.x` and `do
# it` are `mcp__s_x__do_it_1lf321w`.
HASH_STARTS = ("_0", "_1")
_HASH_CHARS = frozenset("0123456789abcdefghijklmnopqrstuvwxyz")


def strip_tool_name_hash(name: str) -> str:
    """Return the name of a server's tool without qwen's hash. It is the name that Claude has for
    the tool.
    """
    has_hash = (
        name.startswith(MCP_PREFIX)
        and name[-8:-6] in HASH_STARTS
        and _HASH_CHARS.issuperset(name[-6:])
    )
    return name[:-8] if has_hash else name


def translate_qwen_tool_call(name: str, arguments: object) -> tuple[str, Arguments]:
    """Return a call in Claude's words."""
    return translate_tool_call(TOOLS, strip_tool_name_hash(name), arguments)


# The warning about unattended runs is ours to give.
ENVIRONMENT = {"QWEN_CODE_SUPPRESS_YOLO_WARNING": "1"}
SYSTEM_PROMPT_VARIABLE = "QWEN_SYSTEM_MD"  # names a file that stands for --system-prompt
# Its settings of the highest precedence are ours: it asks about calls whatever its own files and
# the project's allow, and runs no hook or command of theirs. While nobody answers, what it would
# ask is denied, so reading is left out. An administrator's file becomes the defaults, so that what
# it denies is denied still.
SETTINGS_VARIABLE = "QWEN_CODE_SYSTEM_SETTINGS_PATH"
ADMINISTRATOR_DEFAULTS = {"QWEN_CODE_SYSTEM_DEFAULTS_PATH": "/etc/qwen-code/settings.json"}
ASK_ALL_SETTINGS, ASK_CHANGES_SETTINGS = "qwen_asks_all.json", "qwen_asks_changes.json"


NO_LOGIN_REGEX = r'(No auth type is selected|Missing API key)[^"]*'


# What it asks about in its mode `default` by itself; what only reads runs unasked in all of its
# modes.
PROMPTED_TOOLS = frozenset(("Bash", "Edit", "Write", "NotebookEdit", "WebFetch"))
# What it asks about with our settings. They take subagents away, which change files unasked in
# every mode of theirs.
PROMPTED_WITH_SETTINGS = PROMPTED_TOOLS | split_into_word_set("""
    mcp__ Read Grep Glob LS Monitor WebSearch Skill SendMessage CronCreate ScheduleWakeup EnterWorktree ExitWorktree
""")
ASKING_ARGUMENTS = ("--approval-mode", "default")
# to exclude one of these excludes all tools that change files, that read
TOOL_FAMILIES = ("edit", "read_file")


def build_permission_mode_arguments(request: LaunchRequest) -> tuple[str, ...]:
    """Return the arguments of the permission mode.

    A persistent child asks before each call, and the policy answers. Only the modes plan and auto,
    and bypassPermissions without rules, mean the same as in Claude.
    """
    uses_vendor_mode = request.permission_mode in ("plan", "auto") or _allows_everything(request)
    return (
        ASKING_ARGUMENTS if request.persistent and not uses_vendor_mode else request.mode_arguments
    )


def _allows_everything(request: LaunchRequest) -> bool:
    """Return whether every call may run."""
    return request.permission_mode == BYPASS_MODE and not (
        request.policy is not None and request.policy.has_rules
    )


def uses_bundled_qwen_settings(request: LaunchRequest) -> bool:
    """Return whether it is started with our settings."""
    return not (
        request.policy_bypass or request.permission_mode == "auto" or _allows_everything(request)
    )


def _list_server_tool_names(rule: str) -> list[str]:
    """Return qwen's names of the server's tool that a rule names.

    qwen appends a hash if it replaces characters.
    """
    name = normalize_tool_name(rule)
    if rule.endswith("*") or name.count("__") < 2 or "_" not in name.replace("__", ""):
        return [rule]
    return [rule, name, *(f"{name}{hash_start}*" for hash_start in HASH_STARTS)]


def build_session_arguments(request: LaunchRequest) -> list[str]:
    """Return session flags. They are Claude's, but a resumed session keeps its id."""
    invocation = request.invocation
    if request.resume_id:
        return ["--resume", request.resume_id] + (
            ["--fork-session"] if invocation.fork_session else []
        )
    return request.format_flag("--session-id", invocation.session_id)


# A request that fails is made again 28 times in 84 s without a word (page, section 6): that is how
# long it takes where each fails at once, and each may take half a minute of its own.
MAX_SILENCE_S = 28 * 30.0 + 84
# It denies a call itself that has no answer for longer than it may be told (`PERMISSION_TIMEOUT_MS`
# in its speech): ours comes first, and is said.
ANSWER_TIMEOUT_S = 590.0


class QwenAdapter(Adapter):
    """Qwen Code."""

    name = "qwen"
    programs = ("qwen",)
    version_probe = VersionProbe(
        regex=r"^(?:qwen )?v?(\d+\.\d[\w.+-]*)$", tested_range=">=0.15.10,<0.25"
    )
    translator_ref = "shim.adapters.qwen_stream:QwenTranslator"
    modes = {
        "default": ("--approval-mode", "default"),
        "plan": ("--approval-mode", "plan"),
        # its own would edit anywhere: the policy answers
        "acceptEdits": ("--approval-mode", "default"),
        "dontAsk": ("--approval-mode", "default"),
        "auto": ("--approval-mode", "auto"),
        "bypassPermissions": ("--approval-mode", "yolo"),
    }
    tools = TOOLS
    abilities = VendorAbilities(
        accepts_effort=True,
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
        login_probe=LoginProbe(  # without a word on stdin it ends before it asks a model
            ("--output-format", "stream-json", "--input-format", "stream-json", *ASKING_ARGUMENTS),
            NO_LOGIN_REGEX,
            {
                SETTINGS_VARIABLE: f"{__file__.rpartition('/')[0]}/{ASK_ALL_SETTINGS}",
                **ADMINISTRATOR_DEFAULTS,
            },
        ),
    )
    login_hint = (
        "start `qwen` once and choose how with /auth, or set OPENAI_API_KEY (and OPENAI_BASE_URL)"
    )
    child_input_ref = "shim.adapters.qwen_input:QwenInput"
    environment = VendorEnvironment(
        api_base_variable="OPENAI_BASE_URL",
        attachment_dirs=(("QWEN_RUNTIME_DIR", "tmp"), ("QWEN_HOME", "tmp"), ("HOME", ".qwen/tmp")),
    )

    def build_launch(self, request: LaunchRequest) -> LaunchSpec:
        """An unknown flag ends qwen, so only its own flags are passed."""
        invocation = request.invocation
        arguments = ["--output-format", "stream-json", *build_permission_mode_arguments(request)]
        if request.persistent:
            arguments += ["--input-format", "stream-json"]
        if invocation.partial:
            arguments.append("--include-partial-messages")
        arguments += request.format_flag("--model", invocation.model)
        arguments += request.format_flag("--fallback-model", invocation.fallback_model)
        prompt_path = request.store_oversized_argument(invocation.system_prompt)
        environment = ENVIRONMENT | ({SYSTEM_PROMPT_VARIABLE: prompt_path} if prompt_path else {})
        if uses_bundled_qwen_settings(request):
            settings_file = ASK_ALL_SETTINGS if request.persistent else ASK_CHANGES_SETTINGS
            environment |= {
                SETTINGS_VARIABLE: f"{__file__.rpartition('/')[0]}/{settings_file}",
                **ADMINISTRATOR_DEFAULTS,
            }
        arguments += request.format_flag(
            "--system-prompt", None if prompt_path else invocation.system_prompt
        )
        arguments += request.format_flag("--append-system-prompt", invocation.append_system_prompt)
        max_turns = invocation.max_turns
        if max_turns is not None and not request.persistent:
            # it counts for the process, Claude for the turn
            arguments += ["--max-session-turns", str(max_turns)]
        selected_tools = list_vendor_tool_names(TOOLS, invocation.tools or ())
        arguments += [f"--core-tools={name}" for name in selected_tools]
        # Without a name to keep, "only these" has to be said as "none of those": an empty list would
        # mean all. The tool of --json-schema is none to choose, and `--core-tools` leaves it alone: it
        # is how the answer is given.
        all_tools = [name for name in TOOLS if name != "structured_output"]
        excluded_tools = (
            all_tools
            if invocation.tools is not None and not selected_tools
            else self._list_excluded_tools(request)
        )
        arguments += [f"--exclude-tools={name}" for name in excluded_tools]
        for directory in invocation.add_dirs:
            arguments += ["--add-dir", directory]
        # a child that listens is told them
        private_configs = [] if request.persistent else request.write_private_mcp_config_files()
        arguments += [
            f"--mcp-config={config}"
            for config in (*request.list_mcp_configs_without_sdk_servers(), *private_configs)
        ]
        if not request.persistent:  # with stream-json input it refuses the flag
            arguments += request.format_flag("--json-schema", invocation.json_schema)
        arguments += build_session_arguments(request)
        return LaunchSpec(
            tuple(arguments),
            b"" if request.persistent else encode_prompt_stdin(request.prompt),
            environment,
        )

    def list_prompted_tools(self, request: LaunchRequest) -> frozenset[str]:
        if request.persistent and uses_bundled_qwen_settings(request):
            return PROMPTED_WITH_SETTINGS
        return (
            PROMPTED_TOOLS
            if request.persistent and build_permission_mode_arguments(request) == ASKING_ARGUMENTS
            else frozenset()
        )

    def can_enforce_rule(self, rule: PermissionRule, request: LaunchRequest) -> bool:
        """Return whether it keeps to a rule about MCP: it asks about each call, or the tools of this
        name are removed.
        """
        if not rule.tool.startswith(MCP_PREFIX):
            return False
        return MCP_PREFIX in self.list_prompted_tools(request) or (
            rule.tool in request.removed_tools and "*" not in rule.tool[:-1]
        )

    def _list_excluded_tools(self, request: LaunchRequest) -> list[str]:
        """Return its names of the tools that it must not have.

        A tool whose exclusion removes its whole family stays if each call is asked about.
        """
        vendor_tools = list_vendor_tool_names(TOOLS, request.removed_tools)
        if request.persistent and _allows_everything(request):
            # it would answer its question itself, with nothing
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
        return rule.tool == SUBAGENT_TOOL and rule.content is None

    def escape_prompt(self, prompt: str) -> str:
        return prompt.replace("@", "\\@")


ADAPTER = QwenAdapter()
