"""The adapter for codex's app-server, which asks the frontend about each tool call. Measured with
0.169.0.
"""

import re

from shim.adapters import codex_rules
from shim.core.adapter.adapter import LaunchRequest, LaunchSpec
from shim.core.claude.permissions import QUESTION_TOOL
from shim.core.errors import FrontendError
from shim.core.reading.typed import TYPE_CHECKING
from shim.profiles.load.profile_adapter import ProfileAdapter

if TYPE_CHECKING:
    from shim.core.adapter.translator import Translator
    from shim.core.claude.resume_point import ResumePoint
    from shim.core.turn.context import VendorDataReader

THREAD_ID = "[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
PROMPTED_TOOLS = frozenset(("Bash", "Delete", "Edit", "MultiEdit", "Write"))


class CodexThreadAdapter(ProfileAdapter):
    """The adapter that drives codex through its app-server. `base` is the adapter that codex's
    profile defines.
    """

    child_input_ref = "shim.adapters.codex_thread:CodexThread"

    def __init__(self, base: ProfileAdapter) -> None:
        vars(self).update(vars(base))
        self.modes = dict.fromkeys(base.modes, ())
        self.abilities = base.abilities._replace(can_stream=True, accepts_mcp_servers=True)
        self.policy_support = base.policy_support._replace(emits_call_before_hook=True)
        self.cli = base.cli._replace(has_two_way=False)

    def build_launch(self, request: LaunchRequest) -> LaunchSpec:
        if request.resume_id and not re.fullmatch(THREAD_ID, request.resume_id):
            raise FrontendError(
                f"{request.resume_id[:60]!r} is not a session id of codex",
                hint="start a new session",
            )
        args = codex_rules.build_app_server_arguments(request)
        # This raises an error if the hook cannot be used. codex must not start without the hook.
        codex_rules.build_approval_hook_settings(request, [])
        return LaunchSpec(
            (*args, "app-server"), environment={"RUST_LOG": "error"}, needs_stdin_pipe=True
        )

    def find_rewind_target(
        self, point: "ResumePoint", session_id: str, data_dir: "VendorDataReader"
    ) -> str:
        from shim.adapters.codex_rollout import find_turn_before_prompts

        return find_turn_before_prompts(data_dir, session_id, point.dropped_prompts)

    @property
    def translator_class(self) -> "type[Translator]":
        from shim.adapters.codex_thread_stream import CodexThreadTranslator

        return CodexThreadTranslator

    def list_available_tools(self, request: LaunchRequest) -> tuple[str, ...]:
        has_web_search = codex_rules.can_search_web_unprompted(request)
        can_ask = codex_rules.can_ask_frontend_for_permission(request)
        tools = [
            tool for tool in self.listed_tools if has_web_search or tool != codex_rules.WEB_TOOL
        ]
        if can_ask:
            return (*tools, QUESTION_TOOL)
        return tuple(tools)

    def list_prompted_tools(self, request: LaunchRequest) -> frozenset[str]:
        return PROMPTED_TOOLS
