"""`claude --bg`: begins a session that lives on its own, says its id and returns (background page, B1 to B8).

All that can be checked without a start is checked before: a mistake is told here, not by the session later.
"""

import os
from collections.abc import Mapping, Sequence

from shim.channels.prompt import read_background_prompt
from shim.channels.raw_output import tell
from shim.conversation.decide import Start
from shim.conversation.drivers.dry_launcher import DryLauncher
from shim.core.claude.argv.invocation import Invocation
from shim.core.errors import FrontendError, ShimError
from shim.core.reading.account import printable

SWITCH = "CLAUDE_CODE_DISABLE_AGENT_VIEW"
ON = ("1", "true", "yes", "on")
NO_ID = (
    "warning: --bg manages the session id; ignoring --session-id (use --resume <id> to continue an existing session)\n"
)
STREAMED = "--bg takes its prompt as an argument or as text on stdin, not as stream-json"


def disabled(word: str) -> str:
    """Why background sessions are switched off, for who called `word`; "" where they are not."""
    return f"'{word}' is disabled by {SWITCH}.\n" if os.environ.get(SWITCH, "").lower() in ON else ""


def begin(invocation: Invocation, installed: Mapping[str, str], arguments: Sequence[str]) -> int:
    """`claude --bg`. Returns the exit status."""
    if off := disabled("--bg"):
        tell(off)
        return 1
    if invocation.session.session_id is not None:
        tell(NO_ID)
        invocation = invocation.with_flags(session_id=None)
    try:
        return _begin(invocation, installed, arguments)
    except ShimError as error:
        hint = f"\nhint: {error.hint}" if error.hint else ""
        tell(printable(f"{error}{hint}\n"))
        return 1


def _begin(invocation: Invocation, installed: Mapping[str, str], arguments: Sequence[str]) -> int:
    if invocation.streams.input_format == "stream-json":
        raise FrontendError(STREAMED, hint="leave --input-format out")
    asked = invocation.with_flags(
        input_format="stream-json", output_format="stream-json", verbose=True, permission_prompt_tool="stdio"
    )
    started = Start(asked, installed, arguments, launches=DryLauncher)
    started.plan()
    read_background_prompt(invocation, 0, started.settings.max_inbound_bytes)
    raise FrontendError("--bg: background sessions are not there yet")
