"""demo: bundled, needs nothing; plays a small session as a real child process, with real pauses.

`shim.commands.turn.demo_child` is that child, `demo_stream` translates its lines.
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
    """The bundled demo."""

    name = "demo"
    programs = ()
    cli = VendorCliInfo(bundled_module="shim.commands.turn.demo_child")
    translator_ref = "shim.adapters.demo_stream:DemoTranslator"
    modes = dict.fromkeys(
        ("default", "plan", "acceptEdits", "dontAsk", "auto", "bypassPermissions"), ()
    )
    listed_tools = ("Read", "Edit", "Bash")
    abilities = VendorAbilities(can_stream=True, can_resume=True)
    # it plays its calls and runs none
    policy_support = VendorPolicySupport(has_native_rules=True)

    def build_launch(self, request: LaunchRequest) -> LaunchSpec:
        """The child gets the prompt on stdin. The id of a session is an argument."""
        session_id = request.resume_id or request.invocation.session_id
        return LaunchSpec((session_id,) if session_id else (), encode_prompt_stdin(request.prompt))


ADAPTER = DemoAdapter()
