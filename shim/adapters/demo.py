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


def build_launch(request: LaunchRequest) -> LaunchSpec:
    """The child gets the prompt on stdin, and the id of a resumed session; the demo has no memory."""
    session_id = request.resume_id or request.invocation.session_id
    return LaunchSpec((session_id,) if session_id else (), encode_prompt_stdin(request.prompt))


ADAPTER = Adapter(
    name="demo",
    programs=(),
    cli=VendorCliInfo(bundled_module="shim.commands.turn.demo_child"),
    translator_ref="shim.adapters.demo_stream:DemoTranslator",
    build_launch=build_launch,
    modes=dict.fromkeys(
        ("default", "plan", "acceptEdits", "dontAsk", "auto", "bypassPermissions"), ()
    ),
    listed_tools=("Read", "Edit", "Bash"),
    abilities=VendorAbilities(can_stream=True, can_resume=True),
    policy_support=VendorPolicySupport(has_native_rules=True),  # it plays its calls and runs none
)
