"""The adapter for demo, a bundled vendor that needs no installation. It plays a small session in a
real child process, with real pauses.

The child is `shim.commands.turn.demo_child`, and `demo_stream` translates its lines.
"""

from shim.core.adapter.adapter import (
    Adapter,
    LaunchRequest,
    LaunchSpec,
    VendorAbilities,
    VendorCliInfo,
    VendorPolicySupport,
    encode_prompt_stdin,
)


class DemoAdapter(Adapter):
    name = "demo"
    programs = ()
    cli = VendorCliInfo(bundled_module="shim.commands.turn.demo_child")
    translator_ref = "shim.adapters.demo_stream:DemoTranslator"
    modes = dict.fromkeys(
        ("default", "plan", "acceptEdits", "dontAsk", "auto", "bypassPermissions"), ()
    )
    listed_tools = ("Read", "Edit", "Bash")
    abilities = VendorAbilities(can_stream=True, can_resume=True)
    # demo only prints tool calls and never runs them
    policy_support = VendorPolicySupport(has_native_rules=True)

    def build_launch(self, request: LaunchRequest) -> LaunchSpec:
        """Build the launch. The prompt is sent through stdin, and the session id is passed as an
        argument.
        """
        session_id = request.resume_id
        if not session_id:
            session_id = request.invocation.session_id
        return LaunchSpec((session_id,) if session_id else (), encode_prompt_stdin(request.prompt))


ADAPTER = DemoAdapter()
