"""codex driven by its app-server, so that the frontend is asked about each call. Measured with
0.169.0.
"""

import re

from shim.adapters import codex_rules
from shim.core.adapter.adapter import Adapter, LaunchRequest, LaunchSpec
from shim.core.claude.permissions import QUESTION_TOOL
from shim.core.errors import FrontendError

THREAD_ID = "[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
PROMPTED_TOOLS = frozenset(("Bash", "Delete", "Edit", "MultiEdit", "Write"))


def build_persistent_adapter(base: Adapter) -> Adapter:
    """codex, driven so that it asks."""

    def build_launch(request: LaunchRequest) -> LaunchSpec:
        if request.resume_id and not re.fullmatch(THREAD_ID, request.resume_id):
            raise FrontendError(
                f"{request.resume_id[:60]!r} is no session id of codex", hint="start a new session"
            )
        args = codex_rules.build_app_server_arguments(request)
        codex_rules.build_approval_hook_settings(
            request, []
        )  # where it cannot be, nothing is started
        return LaunchSpec(
            (*args, "app-server"), environment={"RUST_LOG": "error"}, needs_stdin_pipe=True
        )

    def choose_tools(request: LaunchRequest) -> tuple[str, ...]:
        question_tools = (
            (QUESTION_TOOL,) if codex_rules.can_ask_frontend_for_permission(request) else ()
        )
        has_web_search = codex_rules.can_search_web_unprompted(request)
        return (
            *(name for name in base.listed_tools if has_web_search or name != codex_rules.WEB_TOOL),
            *question_tools,
        )

    return base._replace(
        translator_ref="shim.adapters.codex_thread_stream:CodexThreadTranslator",
        child_input_ref="shim.adapters.codex_thread:CodexThread",
        build_launch=build_launch,
        modes=dict.fromkeys(base.modes, ()),
        choose_tools=choose_tools,
        abilities=base.abilities._replace(can_stream=True, accepts_mcp_servers=True),
        policy_support=base.policy_support._replace(
            list_prompted_tools=lambda request: PROMPTED_TOOLS, emits_call_before_hook=True
        ),
        cli=base.cli._replace(build_two_way=None),
    )
