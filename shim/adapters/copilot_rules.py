"""What copilot is told of a conversation's rules before it runs anything. Measured with 1.0.102.

A plugin beside this module has a hook of ours, `preToolUse`. copilot starts the hook before each
call: of a command, a file tool, a tool of MCP, a subagent, and what a subagent calls. What the hook
denies does not run, whatever another hook, a flag or a file allows, and a hook that fails denies.
What the hook allows needs no other leave; outside of the folders of the turn copilot still asks by
itself. `disableAllHooks` of a settings file leaves the plugin's hook alone.

In a conversation copilot asks before it changes anything, so there the hook only refuses what a
rule keeps from running.
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
HOOK_MODULE = "shim.adapters.copilot_hook"  # what reads an event of the hook
# the variable that the plugin's hook runs; without it the hook fails
HOOK_VARIABLE = "PERMISSION_RULES_HOOK"
PROMPTED_TOOLS = ("Bash", "Edit", "MultiEdit", "Write")  # about which it asks in a conversation
EMITS_CALL_BEFORE_HOOK = True  # a reply is said with its calls


def build_arguments(request: LaunchRequest) -> list[str]:
    """The words that keep copilot to the rules of a request."""
    return ["--plugin-dir", PLUGIN_FOLDER] if _needs_hook(request) else []


def build_environment(request: LaunchRequest) -> dict[str, str]:
    """The variables of the hook."""
    prompted_tools = PROMPTED_TOOLS if request.persistent else ()
    return (
        {HOOK_VARIABLE: build_hook_command(request, "copilot", HOOK_MODULE, prompted_tools)}
        if _needs_hook(request)
        else {}
    )


def _needs_hook(request: LaunchRequest) -> bool:
    policy = request.policy
    return policy is not None and (
        policy.has_restrictions if request.persistent else needs_policy_hook(request)
    )


def can_hook_apply_allow_rule(rule: PermissionRule) -> bool:
    """Whether copilot runs what a rule allows: it does what the hook says."""
    return True
