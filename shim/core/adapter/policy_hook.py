"""Builds the command line of the shim's hook. The vendor runs this command before each tool call to
apply the policy (`conversation.tool_hook`).
"""

from collections.abc import Sequence

from shim.core.adapter.adapter import MAX_ARGUMENT_BYTES, LaunchRequest
from shim.core.errors import UnsupportedPermissionModeError
from shim.core.policy.policy import BYPASS_MODE
from shim.core.policy.serialize import PolicyContext, serialize_policy

# The time that a vendor waits for the hook. If the hook is late, a vendor may run the tool call. So
# the shim's hook ends long before this limit.
HOOK_TIMEOUT_S = 900
# Any failure of the hook denies the tool call, and a denial needs a reason.
RULES_UNAVAILABLE = "the permission rules could not be applied to this call"
FAIL_CLOSED_SCRIPT = (
    f'"$@"; s=$?; [ $s = 0 ] && exit 0; [ $s = 2 ] || echo "{RULES_UNAVAILABLE}" >&2; exit 2'
)


def needs_policy_hook(request: LaunchRequest) -> bool:
    """Return whether the policy may deny a tool call during the turn."""
    if request.permission_mode != BYPASS_MODE:
        return True
    if request.policy is None:
        return False
    return request.policy.has_restrictions


def build_hook_command(
    request: LaunchRequest,
    vendor_name: str,
    module: str,
    prompted_tools: tuple[str, ...] = (),
    module_args: Sequence[str] = (),
) -> str:
    """Return the shell command of the shim's hook for the vendor `vendor_name`. The command reads a
    tool call from stdin and decides whether the call may run.

    `module` parses the vendor's hook events, and `module_args` are passed only to this module.
    `prompted_tools` are Claude's names for the tools about which the vendor always asks. Raise
    UnsupportedPermissionModeError if the vendor might not run the command, or if the command is too
    long.
    """
    assert request.policy is not None, "a turn has a policy"
    if request.policy_bypass:
        raise UnsupportedPermissionModeError(
            f"{vendor_name} might not start the hook that applies the permission rules: {request.policy_bypass}",
            hint=f"remove the cause, or use {BYPASS_MODE} without rules",
        )
    context = PolicyContext(
        request.permission_mode,
        request.session_id,
        request.transcript_path,
        request.mode_file,
        ",".join(prompted_tools),
    )
    policy = serialize_policy(request.policy, context)
    command_line = " ".join(
        map(
            _quote_arg,
            (
                "/bin/sh",
                "-c",
                FAIL_CLOSED_SCRIPT,
                "sh",
                *request.hook_argv,
                module,
                policy,
                *module_args,
            ),
        )
    )
    if len(command_line) > MAX_ARGUMENT_BYTES:
        raise UnsupportedPermissionModeError(
            f"{vendor_name} cannot enforce that many permission rules",
            hint="remove rules, or choose another vendor",
        )
    return command_line


def _quote_arg(arg: str) -> str:
    return "'" + arg.replace("'", "'\"'\"'") + "'"
