"""Handles the frames of a conversation with Yume (Yume's reference, section 1). Yume sends these
frames on stdin:

    {"type":"user","content":…}                              a user message; Claude's `message` is
                                                              also accepted
    {"type":"interrupt"}                                      stops the running turn
    {"type":"set_permission_mode","mode":…}                   a mode by Yume's or Claude's name
    {"type":"tool_approval","id":…,"approved":true|false}     the decision on a tool call; `id` is
                                                              the id in its `tool_use` line

If the vendor asks about a tool call, the shim writes the call and waits APPROVAL_TIMEOUT_S for its
approval. An approval that arrives before the vendor asks is stored. The line `$`, an older way to
end a message, is ignored. An invalid frame is skipped and reported on stderr.
"""

from collections.abc import Callable, Mapping
from typing import Any

from shim.core.claude.control.actions import FrontendAction, InterruptRequested, SettingChanged
from shim.core.claude.control.permission_gate import PendingPermission, PermissionPromptAbilities
from shim.core.claude.control.session import MAX_TYPE_CHARS, ControlSession
from shim.core.claude.messages import PRIORITY_LATER, parse_json_line, parse_user_message
from shim.core.claude.permissions import (
    CALL_TOO_LARGE_TEXT,
    DENIED_TEXT,
    STREAM_CLOSED_TEXT,
    PermissionDecision,
)
from shim.core.claude.session_state import SessionState
from shim.core.reading.bounded_dict import BoundedDict
from shim.core.reading.json_text import dump_json
from shim.core.reading.values import as_dict, escape_control_chars
from shim.core.yume.encoder import YumeEncoder
from shim.core.yume.protocol import parse_yume_permission_mode

# The time to wait for an approval. Yume limits a turn to ten minutes, so a longer wait is useless.
APPROVAL_TIMEOUT_S = 600.0
# the limit for approvals that arrive before the vendor asks about the tool call
MAX_EARLY_APPROVALS = 1000
APPROVAL_TIMEOUT_TEXT = "This call was not approved in time."
CANNOT_ANSWER_TEXT = (
    "This frontend can approve a call, but cannot answer a question. Continue without the answer."
)
TURN_STOPPED_TEXT = "The turn was stopped before this call was approved."


def _parse_approval(frame: Mapping[str, Any]) -> PermissionDecision:
    """Return the decision in a `tool_approval` frame. Only the JSON value true approves the tool
    call.
    """
    if frame.get("approved") is True:
        return PermissionDecision(True)
    reason = frame.get("reason")
    if not reason:
        reason = frame.get("message")
    if isinstance(reason, str):
        return PermissionDecision(False, message=reason, is_message_for_model=bool(reason))
    return PermissionDecision(False, message=DENIED_TEXT)


class YumeControlSession(ControlSession):
    """Handles the frames from Yume, and asks Yume for permissions. The encoder writes all output
    lines.
    """

    prompt_timeout_s = APPROVAL_TIMEOUT_S
    _prompt_abilities = PermissionPromptAbilities(
        question_refusal=CANNOT_ANSWER_TEXT,
        confirms_mode=True,
        shows_changed_input=False,
    )
    _timeout_text = APPROVAL_TIMEOUT_TEXT
    _interrupt_text = TURN_STOPPED_TEXT

    def __init__(
        self,
        session_state: SessionState,
        create_id: Callable[[], str],
        format_now: Callable[[], str],
        encoder: YumeEncoder,
        *,
        never_asks: bool,
    ) -> None:
        """Create the session. `never_asks` is set if the vendor runs its tools without asking."""
        super().__init__(session_state, create_id, format_now)
        self._encoder = encoder
        self.session_state.vendor = self.session_state.vendor._replace(never_asks=never_asks)
        self._early_approvals: dict[str, PermissionDecision] = {}
        # The tool calls in this turn that were already decided. A second approval for such a call
        # does not approve a later prompt.
        self._decided_calls = BoundedDict[str, None](MAX_EARLY_APPROVALS)

    def take_output(self) -> bytes:
        """Return the lines that the encoder has written since the last call."""
        return self._encoder.take_bytes()

    # -- frames from the frontend ------------------------------------------------------------------

    def receive_line(self, line: bytes) -> list[FrontendAction]:
        if line.strip() in (b"", b"$"):
            return []
        frame = parse_json_line(line)
        kind = as_dict(frame).get("type")
        if not isinstance(frame, dict) or not isinstance(kind, str):
            self._report_bad_line(f"a line of stdin is not a frame ({len(line)} bytes)")
        elif kind == "user":
            self._accept_user_frame(frame, len(line))
        elif kind == "interrupt":
            if self.is_running:
                return [*self._refuse_open_requests(""), InterruptRequested()]
            return []
        elif kind == "set_permission_mode":
            return self._set_permission_mode(frame.get("mode"))
        elif kind == "tool_approval":
            return self._accept_approval(frame)
        else:
            self._report_bad_line(
                f"unknown frame type {escape_control_chars(kind[:MAX_TYPE_CHARS])}"
            )
        return []

    def _accept_user_frame(self, frame: Mapping[str, Any], size_bytes: int) -> None:
        message = frame.get("message")
        if not isinstance(message, dict):
            message = {"role": "user", "content": frame.get("content")}
        try:
            user_message = parse_user_message({**frame, "message": message}, self._format_now())
        except ValueError as error:
            self._report_bad_line(f"a message cannot be read: {error}")
            return
        # Yume waits for each turn to end before it sends the next message, so no message joins a
        # running turn.
        self.queued_messages.append(
            user_message._replace(size_bytes=size_bytes, priority=PRIORITY_LATER)
        )

    def _set_permission_mode(self, name: object) -> list[FrontendAction]:
        mode, answers_prompts, is_valid = parse_yume_permission_mode(name)
        if not is_valid:
            self._report_bad_line(
                "unknown permission mode "
                f"{escape_control_chars(str(name)[:MAX_TYPE_CHARS])!r}; using default",
                "",
            )
        if answers_prompts and not self.session_state.vendor.asks_permissions:
            # The next turn is refused if its vendor is unattended, unless a different vendor
            # answers.
            self._report_bad_line(
                "permission prompts are not available here"
                + (
                    ""
                    if self.session_state.vendor.never_asks
                    else "; the vendor's default mode applies"
                ),
                "",
            )
        self.session_state.mode = mode
        self.session_state.answers_prompts = answers_prompts
        return [SettingChanged("mode", mode)]

    def _accept_approval(self, frame: Mapping[str, Any]) -> list[FrontendAction]:
        call_id = str(frame.get("id"))
        decision = _parse_approval(frame)
        action = self._accept_answer(call_id, decision)
        if action is not None:
            self._decided_calls[call_id] = None
            return [action]
        if (
            self.is_running
            and call_id not in self._decided_calls
            and len(self._early_approvals) < MAX_EARLY_APPROVALS
        ):
            self._early_approvals[call_id] = decision
        else:
            self._report_bad_line("an approval matches no pending call")
        return []

    # -- permission prompts ------------------------------------------------------------------------

    def _find_prompt_error(self) -> str:
        """Return "", because the frontend can always be asked. Even after stdin has ended, an
        approval that arrived earlier is valid.
        """
        return ""

    def _write_prompt(
        self, pending: PendingPermission, tool_input: Mapping[str, Any]
    ) -> PermissionDecision | None:
        """Write the tool call, which is the permission prompt, and wait for its approval.

        Return the decision immediately if the frontend has already approved the call, or cannot
        approve it.
        """
        request = pending.request
        size_bytes = len(dump_json(tool_input))
        if size_bytes > self._encoder.max_bytes:
            return PermissionDecision(False, message=CALL_TOO_LARGE_TEXT.format(size=size_bytes))
        early_decision = self._early_approvals.pop(request.call_id, None)
        if early_decision is not None:
            self._decided_calls[request.call_id] = None
            return early_decision
        if self.is_input_closed:
            return PermissionDecision(False, message=STREAM_CLOSED_TEXT)
        self._encoder.write_buffered_call(request.call_id)
        self._pending[request.request_id] = pending._replace(prompt_id=request.call_id)
        return None

    def _withdraw_prompt(self, pending: PendingPermission) -> None:
        """Ignore all later approvals for a tool call. Yume needs no line for this, because the
        call's result follows.
        """
        self._decided_calls[pending.request.call_id] = None

    # -- events that only frontends of Claude receive ----------------------------------------------

    def end_turn(self) -> None:
        """Clear the approvals at the end of a turn."""
        self._early_approvals.clear()
        self._decided_calls.clear()
        super().end_turn()

    def write_session_state(self, state: str) -> None:
        """Do nothing, because Yume derives the session state from other lines."""

    def write_system_message(self, subtype: str, **fields: object) -> None:
        """Do nothing, because Yume has no such message."""

    def _report_bad_line(self, text: str, consequence: str = "; the line was skipped") -> None:
        self.warnings.append(f"{self.session_state.vendor.display_name}: {text}{consequence}\n")
