"""The adapter for cursor-agent (`agent`): `agent -p --output-format stream-json
[--stream-partial-output] PROMPT`.

cursor-agent was never run for this project, because it needs its own servers. `cursor_stream`
translates its output lines.
"""

from shim.adapters.cursor_tools import LISTED_TOOLS, PLAN_TOOLS, TOOLS
from shim.core.adapter.adapter import (
    Adapter,
    LaunchRequest,
    LaunchSpec,
    VendorAbilities,
    VendorCliInfo,
    VendorEnvironment,
    can_pass_as_argument,
    encode_prompt_stdin,
)
from shim.core.adapter.versions import VersionProbe
from shim.core.errors import FrontendError

# In one capture, cursor printed nothing for 757 s while it wrote one long reply. Longer silences
# are possible.
IDLE_TIMEOUT_S = 1800.0


class CursorAdapter(Adapter):
    name = "cursor"
    programs = ("cursor-agent", "agent")
    version_probe = VersionProbe(
        regex=r"^(?:cursor-agent )?v?(\d{4}\.\d[\w.+-]*)$", tested_range=">=2025.10,<2026.10"
    )
    translator_ref = "shim.adapters.cursor_stream:CursorTranslator"
    modes = {
        "default": (),
        "plan": ("--mode", "plan"),
        "acceptEdits": (),
        "bypassPermissions": ("--force",),
    }
    tools = TOOLS
    listed_tools = LISTED_TOOLS
    abilities = VendorAbilities(can_stream=True, can_resume=True)
    environment = VendorEnvironment(trust_prompt_text="Workspace Trust")
    timeouts_s = {"idle_timeout": IDLE_TIMEOUT_S}
    cli = VendorCliInfo(install_command="curl https://cursor.com/install -fsS | bash")
    login_hint = "run `agent login`, or set CURSOR_API_KEY"

    def build_launch(self, request: LaunchRequest) -> LaunchSpec:
        """Build the launch. The frontend's session id is passed to cursor with `--resume`. Raise
        FrontendError for a fork.
        """
        invocation = request.invocation
        prompt = request.build_full_prompt()
        arguments = ["-p", "--output-format", "stream-json"]
        if invocation.partial:
            arguments.append("--stream-partial-output")
        if request.opens_trust_prompt:
            arguments.append("--trust")
        arguments += request.mode_arguments
        arguments += ["--model", invocation.model or "auto"]
        if request.resume_id and invocation.fork_session:
            raise FrontendError(
                "cursor cannot fork a session",
                hint="resume the session without --fork-session, or start a new session",
            )
        if session_id := request.resume_id or invocation.session_id:
            arguments += ["--resume", session_id]
        for directory in invocation.add_dirs:
            arguments += ["--add-dir", directory]
        if can_pass_as_argument(prompt):
            return LaunchSpec((*arguments, prompt))
        return LaunchSpec(tuple(arguments), encode_prompt_stdin(prompt))

    def list_available_tools(self, request: LaunchRequest) -> tuple[str, ...]:
        if request.permission_mode == "plan":
            return PLAN_TOOLS
        return LISTED_TOOLS


ADAPTER = CursorAdapter()
