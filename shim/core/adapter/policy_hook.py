"""Our hook: what a vendor runs before each call, so that the policy judges the call
(`conversation.tool_hook`).
"""

from collections.abc import Sequence

from shim.core.adapter.adapter import MAX_ARGUMENT_BYTES, LaunchRequest
from shim.core.errors import UnsupportedPermissionModeError
from shim.core.policy.policy import BYPASS_MODE
from shim.core.policy.serialize import PolicyContext, serialize_policy

# that a vendor waits for it: one may run a call whose hook is late, so ours ends itself long before
HOOK_TIMEOUT_S = 900
# Any failure of the hook is a refusal, and a refusal needs a reason.
RULES_UNAVAILABLE = "the permission rules could not be asked about this call"
FAIL_CLOSED_SCRIPT = (
    f'"$@"; s=$?; [ $s = 0 ] && exit 0; [ $s = 2 ] || echo "{RULES_UNAVAILABLE}" >&2; exit 2'
)


def needs_policy_hook(request: LaunchRequest) -> bool:
    """Whether any call may have to be kept from running."""
    if request.permission_mode != BYPASS_MODE:
        return True
    return request.policy is not None and request.policy.has_restrictions


def build_hook_command(
    request: LaunchRequest,
    vendor_name: str,
    module: str,
    prompted_tools: tuple[str, ...] = (),
    module_args: Sequence[str] = (),
) -> str:
    """The line of a shell that judges the call on its stdin, for the vendor called `vendor_name`.

    `module` reads the vendor's events, `prompted_tools` are the tools about which the vendor asks
    all the same, in Claude's words. `module_args` are for the module alone. PermissionModeError
    where the vendor may not run the line as it is.
    """
    assert request.policy is not None, "a turn has a policy"
    if request.policy_bypass:
        raise UnsupportedPermissionModeError(
            f"{vendor_name} might not start the hook that applies the permission rules: {request.policy_bypass}",
            hint=f"remove what is named, or ask for {BYPASS_MODE} without rules",
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
            f"{vendor_name} cannot be told so many permission rules",
            hint="take rules away, or choose another vendor",
        )
    return command_line


def _quote_arg(arg: str) -> str:
    """A word of a shell's line."""
    return "'" + arg.replace("'", "'\"'\"'") + "'"
