"""claude, for a dialect that is not its own: `claude_flat_stream` translates its lines like any vendor's."""

from shim.core.vendor.vendor import Launch, Request
from shim.vendors import claude


def launch(request: Request) -> Launch:
    """The real one's own launch, in the session that goes on; it asks through its stdin, if it stays."""
    asks = "stdio" if request.listens else None
    invocation = request.invocation.with_flags(permission_prompt_tool=asks, partial=True)
    if request.resume:
        invocation = invocation.with_flags(resume=request.resume, continue_last=False)
    return claude.launch(request._replace(invocation=invocation))


VENDOR = claude.VENDOR._replace(
    translates="shim.vendors.claude_flat_stream:FlatClaudeTranslator",
    launch=launch,
    speaks="shim.vendors.claude_speech:ClaudeSpeech",
    retracts=True,
)
