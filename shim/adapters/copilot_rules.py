"""Builds the arguments with which copilot applies a conversation's rules before it runs a tool
call. Measured with 1.0.102.

The bundled plugin `copilot_plugin` contains a hook (`preToolUse`). copilot starts the hook before
each call of a command, a file tool, an MCP tool or a subagent, and before a subagent's own calls. A
call that the hook denies does not run, even if another hook, a flag or a file allows it. If the
hook fails, the call is denied. A call that the hook allows needs no other permission, but copilot
itself still asks about paths outside the turn's folders. The setting `disableAllHooks` does not
disable the plugin's hook.

In a conversation copilot asks before it changes anything, so the hook only applies the rules that
forbid a call.
"""

from shim.core.adapter.adapter import LaunchRequest
from shim.core.adapter.policy_hook import build_hook_command, needs_policy_hook
from shim.core.policy.policy import PermissionRule
from shim.profiles.load.argv_parts import BUNDLED_FOLDER

__all__ = (
    "EMITS_CALL_BEFORE_HOOK",
    "build_arguments",
    "build_environment",
    "can_hook_apply_allow_rule",
)

PLUGIN_FOLDER = f"{BUNDLED_FOLDER}/copilot_plugin"
HOOK_MODULE = "shim.adapters.copilot_hook"  # reads the hook's events
# The plugin's hook runs the command in this variable. Without the variable the hook fails.
HOOK_VARIABLE = "PERMISSION_RULES_HOOK"
PROMPTED_TOOLS = ("Bash", "Edit", "MultiEdit", "Write")  # tools with prompts in a conversation
EMITS_CALL_BEFORE_HOOK = True  # copilot prints a reply together with its calls


def build_arguments(request: LaunchRequest) -> list[str]:
    """Return the arguments with which copilot applies a request's rules."""
    if _needs_hook(request):
        return ["--plugin-dir", PLUGIN_FOLDER]
    return []


def build_environment(request: LaunchRequest) -> dict[str, str]:
    """Return the environment variables for the hook."""
    prompted_tools = PROMPTED_TOOLS if request.persistent else ()
    if _needs_hook(request):
        return {HOOK_VARIABLE: build_hook_command(request, "copilot", HOOK_MODULE, prompted_tools)}
    return {}


def _needs_hook(request: LaunchRequest) -> bool:
    policy = request.policy
    if policy is None:
        return False
    if request.persistent:
        return policy.has_restrictions
    return needs_policy_hook(request)


def can_hook_apply_allow_rule(rule: PermissionRule) -> bool:
    """Return True, because copilot runs every call that the hook allows."""
    return True
