"""What codex is told of a conversation's rules before it runs anything. Measured with 0.169.0.

Its sandbox is wider than Claude's modes: it runs any command, and knows folders only. So a hook of
ours stands in front of every call (`hooks.PreToolUse`). codex starts the hook for commands,
patches, tools of MCP, subagents and what subagents call, and for what a script calls in its code
mode. A hook that ends with code 2 and a reason on stderr stops the call; with another failure the
call would run, so a shell makes a 2 of every failure. A hook that nobody has reviewed is left out
without a word unless `--dangerously-bypass-hook-trust` stands there.

Below bypassPermissions codex also keeps from files that widen: `.rules` files, which let commands
out of the sandbox, and all that the working directory says (`.codex/config.toml`: servers, roles,
folders that may be written to). The web is searched by the model's service, which no hook sees, so
that tool is taken away.
"""

from shim.core.adapter.adapter import LaunchRequest
from shim.core.adapter.policy_hook import (
    HOOK_TIMEOUT_S,
    build_hook_command,
    needs_policy_hook,
)
from shim.core.policy.policy import (
    BYPASS_MODE,
    MCP_PREFIX,
    PROMPTLESS_MODES,
    PermissionRule,
    Policy,
)

__all__ = (
    "EMITS_CALL_BEFORE_HOOK",
    "build_arguments",
    "build_environment",
    "can_hook_apply_allow_rule",
)

HOOK_MODULE = "shim.adapters.codex_hook"  # what reads an event of the hook
APPROVAL_HOOK_MODULE = "shim.adapters.codex_approval_hook"  # and where codex asks about its calls
WEB_TOOL = "WebSearch"
EMITS_CALL_BEFORE_HOOK = False  # what it says of a call is that the call runs


def build_arguments(request: LaunchRequest) -> list[str]:
    """The words that keep codex to the rules of a request."""
    policy, mode = request.policy, request.permission_mode
    if policy is None:
        return []
    args = [] if can_search_web_unprompted(request) else _format_setting("web_search", '"disabled"')
    if not needs_policy_hook(request):
        return args
    args += _build_untrusted_projects(policy)
    if mode != BYPASS_MODE:
        args += ["--ignore-rules", *_build_workspace_sandbox(policy, mode)]
    handler = (
        '{type="command",command='
        f"{_quote_toml(build_hook_command(request, 'codex', HOOK_MODULE))},timeout={HOOK_TIMEOUT_S}}}"
    )
    args += ["--dangerously-bypass-hook-trust", *_format_setting("features.hooks", "true")]
    return args + _format_setting("hooks.PreToolUse", f"[{{hooks=[{handler}]}}]")


def build_app_server_arguments(request: LaunchRequest) -> list[str]:
    """The words for codex's app-server, which asks about its calls: the sandbox, and what it cannot
    ask about.

    What is typed into a program that runs (`write_stdin`) is asked about by nobody, so programs get
    no terminal.
    """
    policy = request.policy
    assert policy is not None, "a turn has a policy"
    args = [] if can_search_web_unprompted(request) else _format_setting("web_search", '"disabled"')
    args += [
        *_format_setting("features.unified_exec_tty", "false"),
        *_format_setting("features.hooks", "true"),
    ]
    if can_ask_frontend_for_permission(request):
        args += _format_setting("features.default_mode_request_user_input", "true")
        args += _format_setting("suppress_unstable_features_warning", "true")
    return args + _build_untrusted_projects(policy) + build_sandbox_arguments(request)


def can_ask_frontend_for_permission(request: LaunchRequest) -> bool:
    """Whether the frontend can be asked."""
    return request.invocation.permission_prompt_tool == "stdio"


def build_sandbox_arguments(request: LaunchRequest) -> list[str]:
    """The sandbox of a mode. A command that a person allowed has to run, so there is none where one
    may be asked.
    """
    policy, mode = request.policy, request.permission_mode
    assert policy is not None, "a turn has a policy"
    if mode == BYPASS_MODE or (
        can_ask_frontend_for_permission(request) and mode not in PROMPTLESS_MODES
    ):
        return _format_setting("sandbox_mode", '"danger-full-access"')
    return _build_workspace_sandbox(policy, mode) or _format_setting("sandbox_mode", '"read-only"')


def build_approval_hook_settings(request: LaunchRequest, servers: list[str]) -> dict[str, object]:
    """The hook, as the table `hooks` of a thread's settings. `servers` of MCP ask about their tools
    themselves.

    PermissionModeError where codex may not run it, but for the widest mode without rules, which
    needs none.
    """
    if request.policy_bypass and not needs_policy_hook(request):
        return {}
    command_line = build_hook_command(request, "codex", APPROVAL_HOOK_MODULE, module_args=servers)
    return {
        "PreToolUse": [
            {"hooks": [{"type": "command", "command": command_line, "timeout": HOOK_TIMEOUT_S}]}
        ]
    }


def build_environment(request: LaunchRequest) -> dict[str, str]:
    return {}


def can_hook_apply_allow_rule(rule: PermissionRule) -> bool:
    """Whether codex runs what a rule allows. Of a server's tools it runs those alone that say they
    only read.
    """
    return not rule.tool.startswith(MCP_PREFIX)


def can_search_web_unprompted(request: LaunchRequest) -> bool:
    """Whether it may search the web, which nobody is asked about."""
    policy = request.policy
    return (
        policy is not None
        and can_tool_run_unprompted(policy, WEB_TOOL, request.permission_mode)
        and not _has_hook_for(policy, WEB_TOOL)
    )


def can_tool_run_unprompted(policy: Policy, tool: str, mode: str) -> bool:
    """Whether some call of a tool that asks in every mode below the widest runs without a question."""
    if not policy.list_visible_tools([tool]) or any(
        rule.matches_tool(tool, is_restriction=True) for rule in policy.ask
    ):
        return False
    return mode == BYPASS_MODE or any(rule.matches_tool(tool) for rule in policy.allow)


def _has_hook_for(policy: Policy, tool: str) -> bool:
    """Whether a hook of the settings is about a tool."""
    if not policy.hooks:
        return False
    from shim.core.claude.hooks.commands import is_hook_for_tool

    return any(is_hook_for_tool(hook, tool) for hook in policy.hooks)


def _build_workspace_sandbox(policy: Policy, mode: str) -> list[str]:
    """The sandbox below the hook. It is open for changes where the mode, a rule or a hook may allow
    one.
    """
    if mode == "plan" or (mode in ("default", "dontAsk") and not (policy.allow or policy.hooks)):
        return []
    table_name = "sandbox_workspace_write"
    roots = ",".join(
        _quote_toml(policy.workspace.make_path_absolute(folder))
        for folder in policy.workspace.directories
    )
    # `Bash(git push:*)` needs the network
    allows_commands = any(rule.tool == "Bash" for rule in policy.allow)
    return [
        *_format_setting("sandbox_mode", '"workspace-write"'),
        *_format_setting(f"{table_name}.exclude_slash_tmp", "true"),
        *_format_setting(f"{table_name}.exclude_tmpdir_env_var", "true"),
        *_format_setting(f"{table_name}.writable_roots", f"[{roots}]"),
        *_format_setting(f"{table_name}.network_access", "true" if allows_commands else "false"),
    ]


def _build_untrusted_projects(policy: Policy) -> list[str]:
    """Nothing that the working directory says of codex counts, nor what a folder around it says.

    codex asks whether a folder is trusted first, and only then about its repository, so each folder
    is named.
    """
    projects: dict[str, None] = {}
    for folder in policy.workspace.list_equivalent_paths(policy.workspace.cwd):
        while folder not in projects:
            projects[folder] = None
            folder = folder.rpartition("/")[0] or "/"
    return _format_setting(
        "projects",
        "{"
        + ",".join(f'{_quote_toml(project)}={{trust_level="untrusted"}}' for project in projects)
        + "}",
    )


def _format_setting(key: str, value: str) -> list[str]:
    return ["-c", f"{key}={value}"]


def _quote_toml(value: str) -> str:
    """A string of TOML."""
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return (
        '"'
        + "".join(
            character if character >= " " and character != "\x7f" else f"\\u{ord(character):04x}"
            for character in escaped
        )
        + '"'
    )
