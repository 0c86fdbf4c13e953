"""qwen-rfc: the dialect of the Qwen structured I/O RFC (October 2025), which no released program is
known to speak.

`qwen --input-format stream-json --output-format stream-json`, or `stream-chunk-json` for fragments;
a Qwen Chat Request a line on stdin. Documents only (qwen-rfc page): every fixture is handmade from
them.
"""

from shim.adapters.qwen_rfc_input import NEW_SESSION, build_user_message
from shim.adapters.qwen_rfc_tools import TOOLS
from shim.core.adapter.adapter import (
    Adapter,
    LaunchRequest,
    LaunchSpec,
    VendorAbilities,
    VendorCliInfo,
    VendorSessionBehavior,
)
from shim.core.errors import FrontendError
from shim.core.reading.json_text import dump_json

HEARTBEAT_TIMEOUT_S = 10.0  # the RFC's own suggestion (2.4)


def build_launch(request: LaunchRequest) -> LaunchSpec:
    """Model and session stand in the request; approval modes are flags of the program, which the
    RFC leaves alone.
    """
    invocation = request.invocation
    if request.resume_id and invocation.fork_session:
        raise FrontendError(
            "qwen-rfc cannot fork a session",
            hint="resume it without --fork-session, or start a new one",
        )
    output_format = "stream-chunk-json" if invocation.partial else "stream-json"
    arguments = [
        "--input-format",
        "stream-json",
        "--output-format",
        output_format,
        *request.mode_arguments,
    ]
    if request.persistent:
        return LaunchSpec((*arguments, *request.format_flag("--model", invocation.model)))
    session_id = request.resume_id or NEW_SESSION
    message = build_user_message(
        request.build_full_prompt(),
        session_id=session_id,
        prompt_id=None,
        model=invocation.model or None,
    )
    return LaunchSpec(tuple(arguments), dump_json(message) + b"\n")


ADAPTER = Adapter(
    name="qwen-rfc",
    programs=("qwen",),
    translator_ref="shim.adapters.qwen_rfc_stream:QwenRfcTranslator",
    build_launch=build_launch,
    modes={
        "default": ("--approval-mode", "default"),
        "plan": ("--approval-mode", "plan"),
        "acceptEdits": ("--approval-mode", "auto-edit"),
        "dontAsk": ("--approval-mode", "default"),
        "bypassPermissions": ("--approval-mode", "yolo"),
    },
    tools=TOOLS,
    abilities=VendorAbilities(can_stream=True, can_resume=True),
    timeouts_s={"heartbeat_timeout": HEARTBEAT_TIMEOUT_S},
    login_hint="start `qwen` once and choose how with /auth, or set OPENAI_API_KEY (and OPENAI_BASE_URL)",
    child_input_ref="shim.adapters.qwen_rfc_input:QwenRfcInput",
    session_traits=VendorSessionBehavior(prefixes_system_prompt=True),
    cli=VendorCliInfo(
        unreleased_note="no released program speaks it; translated as its RFC says (2025-10)"
    ),
)
