"""The adapter for the real claude, whose lines are passed through unchanged. The search on PATH
skips the shim's own `claude`, so that the shim never starts itself.
"""

from shim.core.adapter.adapter import (
    Adapter,
    LaunchRequest,
    LaunchSpec,
    VendorAbilities,
    VendorCliInfo,
    VendorEnvironment,
    VendorPolicySupport,
    encode_prompt_stdin,
)
from shim.core.adapter.versions import LoginProbe, VersionProbe
from shim.core.claude.argv.flags import FLAG_BY_FIELD
from shim.core.reading.typed import Any

# These flags are not copied from the frontend's command line. The child always prints stream-json
# and reads its prompt from stdin, and the shim itself implements the other flags.
_REBUILT_FLAGS = (
    *(
        "print_mode",
        "output_format",
        "input_format",
        "verbose",
        "replay_user_messages",
        "version",
        "help",
    ),
    *("background", "disallowed_tools"),
)


def _format_flag(name: str, value: Any) -> list[str]:
    if value is None or value is False or (value == () and name != "--tools"):
        return []
    if value == ():
        return ["--tools="]
    if value is True:
        return [name]
    if isinstance(value, tuple):
        return [f"{name}={item}" for item in value]
    return [f"{name}={value}"]


_MODES = ("default", "plan", "acceptEdits", "dontAsk", "auto", "bypassPermissions")


class ClaudeAdapter(Adapter):
    """The adapter for the real claude. Its lines are passed through unchanged."""

    name = "claude"
    programs = ("claude",)
    version_probe = VersionProbe(
        regex=r"^(\d+\.\d[\w.+-]*) \(Claude Code\)$", tested_range=">=2.1.197,<2.2"
    )
    translator_ref = "shim.adapters.claude_stream:ClaudeTranslator"
    modes = dict.fromkeys(_MODES, ())
    passthrough = True
    abilities = VendorAbilities(
        can_limit_tools=True,
        selects_tools=True,
        can_limit_turns=True,
        can_stream=True,
        can_resume=True,
        accepts_effort=True,
        accepts_json_schema=True,
        accepts_mcp_servers=True,
    )
    policy_support = VendorPolicySupport(has_native_rules=True)
    environment = VendorEnvironment(api_base_variable="ANTHROPIC_BASE_URL")
    cli = VendorCliInfo(
        install_command="npm install -g @anthropic-ai/claude-code",
        login_probe=LoginProbe(("auth", "status"), '"loggedIn": false'),
    )
    login_hint = "run the real `claude` once and log in with /login, or set ANTHROPIC_API_KEY"

    def build_launch(self, request: LaunchRequest) -> LaunchSpec:
        """Build the launch with the frontend's flags, stream-json as the output format, and the
        prompt on stdin.
        """
        invocation = request.invocation
        arguments = []
        if invocation.print_mode or not request.persistent:
            arguments = ["-p"]
        arguments += ["--output-format", "stream-json", "--verbose"]
        if request.persistent:
            arguments += ["--input-format", "stream-json"]
            if invocation.replay_user_messages:
                arguments += ["--replay-user-messages"]
        for field, flag in FLAG_BY_FIELD.items():
            if field not in _REBUILT_FLAGS and not field.startswith("shim_"):
                arguments += _format_flag(flag.names[-1], getattr(invocation, field))
        denied_rules = dict.fromkeys((*invocation.disallowed_tools, *request.removed_tools))
        arguments += [f"--disallowedTools={rule}" for rule in denied_rules]
        for name, value in invocation.other_flags:
            if value is None:
                arguments += [name]
            else:
                arguments += [f"{name}={value}"]
        stdin = b""
        if not request.persistent:
            stdin = encode_prompt_stdin(request.prompt)
        return LaunchSpec(tuple(arguments), stdin)


ADAPTER = ClaudeAdapter()


class FlatClaudeAdapter(ClaudeAdapter):
    """The adapter for a real claude whose lines are translated to a flat dialect."""

    translator_ref = "shim.adapters.claude_flat_stream:FlatClaudeTranslator"
    child_input_ref = "shim.adapters.claude_input:ClaudeInput"
    abilities = ClaudeAdapter.abilities._replace(can_repeat_reply=True)

    def build_launch(self, request: LaunchRequest) -> LaunchSpec:
        """Build the launch. The id of a resumed session is passed with `--resume`, and a persistent
        child asks for permission through stdio.
        """
        prompt_tool = None
        if request.persistent:
            prompt_tool = "stdio"
        invocation = request.invocation._replace(permission_prompt_tool=prompt_tool, partial=True)
        if request.resume_id:
            invocation = invocation._replace(resume=request.resume_id, continue_last=False)
        return super().build_launch(request._replace(invocation=invocation))


FLAT_ADAPTER = FlatClaudeAdapter()
