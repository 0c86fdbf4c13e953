"""Builds the settings with which codex applies a conversation's rules before it runs a tool call.
Measured with 0.169.0.

codex's sandbox allows more than Claude's permission modes: it runs any command, and it only
distinguishes folders. Therefore codex starts a hook of the shim (`hooks.PreToolUse`) before each
call: for commands, patches, MCP tools and subagents, for calls by subagents, and for calls by a
script in its code mode. A hook that exits with status 2 and a reason on stderr blocks the call.
After any other failure the call would run, so a shell turns every failure into status 2. codex
silently ignores a hook that has not been reviewed, unless `--dangerously-bypass-hook-trust` is set.

When the hook is used, codex also ignores all settings in the working directory
(`.codex/config.toml`: servers, roles, writable folders). Outside bypassPermissions, codex also
ignores `.rules` files, which let commands run outside the sandbox. The model's service searches the
web without calling the hook, so web search is disabled unless it may run without a prompt.
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

HOOK_MODULE = "shim.adapters.codex_hook"  # reads the hook's events
APPROVAL_HOOK_MODULE = "shim.adapters.codex_approval_hook"  # used if codex asks about calls
WEB_TOOL = "WebSearch"
EMITS_CALL_BEFORE_HOOK = False  # codex reports a tool call when the call runs


def build_arguments(request: LaunchRequest) -> list[str]:
    """Return the arguments with which `codex exec` applies a request's rules."""
    policy = request.policy
    mode = request.permission_mode
    if policy is None:
        return []
    args = []
    if not can_search_web_unprompted(request):
        args = _format_setting("web_search", '"disabled"')
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
    """Return the arguments for codex's app-server, which asks about its tool calls: the sandbox,
    and settings for actions that codex does not ask about.

    codex does not ask about input for a running program (`write_stdin`), so programs get no
    terminal.
    """
    policy = request.policy
    assert policy is not None, "a turn has a policy"
    args = []
    if not can_search_web_unprompted(request):
        args = _format_setting("web_search", '"disabled"')
    args += [
        *_format_setting("features.unified_exec_tty", "false"),
        *_format_setting("features.hooks", "true"),
    ]
    if can_ask_frontend_for_permission(request):
        args += _format_setting("features.default_mode_request_user_input", "true")
        args += _format_setting("suppress_unstable_features_warning", "true")
    return args + _build_untrusted_projects(policy) + build_sandbox_arguments(request)


def can_ask_frontend_for_permission(request: LaunchRequest) -> bool:
    return request.invocation.permission_prompt_tool == "stdio"


def build_sandbox_arguments(request: LaunchRequest) -> list[str]:
    """Return the sandbox settings for a permission mode. The sandbox is off if the frontend can be
    asked or has hooks that may allow a call, because an allowed command must run.
    """
    policy = request.policy
    mode = request.permission_mode
    assert policy is not None, "a turn has a policy"
    may_allow_more = can_ask_frontend_for_permission(request) or request.hooks_may_allow
    if mode == BYPASS_MODE or (may_allow_more and mode not in PROMPTLESS_MODES):
        return _format_setting("sandbox_mode", '"danger-full-access"')
    return _build_workspace_sandbox(policy, mode) or _format_setting("sandbox_mode", '"read-only"')


def build_approval_hook_settings(request: LaunchRequest, servers: list[str]) -> dict[str, object]:
    """Return the table `hooks` for a thread's settings. `servers` are the MCP servers that are
    configured to ask about their tools.

    In bypassPermissions without rules, no hook is needed; return {} if codex might not run the
    hook. Otherwise raise UnsupportedPermissionModeError if codex might not run the hook.
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
    """Return whether codex runs every call that the rule allows. From an MCP server, codex only
    runs the tools that are declared read-only.
    """
    return not rule.tool.startswith(MCP_PREFIX)


def can_search_web_unprompted(request: LaunchRequest) -> bool:
    """Return whether codex may search the web without a prompt. codex never requests permission for
    a search.
    """
    policy = request.policy
    if policy is None:
        return False
    if not can_tool_run_unprompted(policy, WEB_TOOL, request.permission_mode):
        return False
    return not _has_hook_for(policy, WEB_TOOL)


def can_tool_run_unprompted(policy: Policy, tool: str, mode: str) -> bool:
    """Return whether at least one call of the tool can run without a permission prompt. `tool` must
    be a tool that prompts in every mode except bypassPermissions.
    """
    if not policy.list_visible_tools([tool]) or any(
        rule.matches_tool(tool, is_restriction=True) for rule in policy.ask
    ):
        return False
    if mode == BYPASS_MODE:
        return True
    return any(rule.matches_tool(tool) for rule in policy.allow)


def _has_hook_for(policy: Policy, tool: str) -> bool:
    """Return whether a hook from the settings matches the tool."""
    if not policy.hooks:
        return False
    from shim.core.claude.hooks.callbacks import matches_tool_name

    return any(matches_tool_name(hook.matcher, tool) for hook in policy.hooks)


def _build_workspace_sandbox(policy: Policy, mode: str) -> list[str]:
    """Return the sandbox settings that are used together with the hook. Files are writable in the
    sandbox if the mode, a rule or a hook may allow a change.
    """
    if mode == "plan" or (mode in ("default", "dontAsk") and not (policy.allow or policy.hooks)):
        return []
    table_name = "sandbox_workspace_write"
    roots = ",".join(
        _quote_toml(policy.workspace.make_path_absolute(folder))
        for folder in policy.workspace.directories
    )
    # a rule such as `Bash(git push:*)` needs network access
    allows_commands = any(rule.tool == "Bash" for rule in policy.allow)
    return [
        *_format_setting("sandbox_mode", '"workspace-write"'),
        *_format_setting(f"{table_name}.exclude_slash_tmp", "true"),
        *_format_setting(f"{table_name}.exclude_tmpdir_env_var", "true"),
        *_format_setting(f"{table_name}.writable_roots", f"[{roots}]"),
        *_format_setting(f"{table_name}.network_access", "true" if allows_commands else "false"),
    ]


def _build_untrusted_projects(policy: Policy) -> list[str]:
    """Return the setting that marks the working directory and its parents as untrusted, so that
    codex ignores their settings.

    codex checks the trust of a folder before that of the folder's repository, so each folder is
    listed.
    """
    projects: dict[str, None] = {}
    for folder in policy.workspace.list_equivalent_paths(policy.workspace.cwd):
        while folder not in projects:
            projects[folder] = None
            folder = folder.rpartition("/")[0]
            if not folder:
                folder = "/"
    return _format_setting(
        "projects",
        "{"
        + ",".join(f'{_quote_toml(project)}={{trust_level="untrusted"}}' for project in projects)
        + "}",
    )


def _format_setting(key: str, value: str) -> list[str]:
    return ["-c", f"{key}={value}"]


def _quote_toml(value: str) -> str:
    """Return a string as a TOML string literal."""
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return (
        '"'
        + "".join(
            character if character >= " " and character != "\x7f" else f"\\u{ord(character):04x}"
            for character in escaped
        )
        + '"'
    )
