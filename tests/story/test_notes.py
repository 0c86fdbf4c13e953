"""The sentences about events of a session that are neither text nor calls."""

from typing import Any

from sweeps import loop_over_rows

from shim.story.events import SessionStep
from shim.story.notes import MAX_FIELDS_CHARS, describe_note_step


def note(kind: str, **fields: Any) -> str:
    return describe_note_step(SessionStep(1, "note", 0.0, name=kind, text=kind, facts=fields))


@loop_over_rows(
    ("name", "fields", "expected"),
    [
        ("api_retry", {"attempt": 1}, "retrying the request to the model (1)"),
        (
            "api_retry",
            {
                "attempt": 1,
                "max_retries": 2,
                "retry_delay_ms": 527,
                "error": "overloaded",
                "error_status": 529,
            },
            "retrying the request to the model (1 of 2, after 0.5 s): overloaded 529",
        ),
        (
            "compact_boundary",
            {"compact_metadata": {"trigger": "manual", "pre_tokens": 12345}},
            "the context was compacted (manual, 12,345 tokens before)",
        ),
        ("permission_denied", {"tool_name": "Bash", "message": "no"}, "Bash was refused: no"),
        (
            "hook_response",
            {"hook_name": "h", "exit_code": 2, "stderr": "no"},
            "the hook h failed (2): no",
        ),
        ("driver", {"client": "terminal 12"}, "control: terminal 12"),
        ("driver", {"client": None}, "control: released"),
        (
            "settled",
            {"question": "q", "by": "page", "how": "allow"},
            "permission prompt allowed by page",
        ),
        (
            "settled",
            {"question": "q", "by": "shim bridge answer 3e907f1f", "how": "allow"},
            "permission prompt allowed with `shim bridge answer` in a terminal",
        ),
        (
            "settled",
            {"question": "q", "by": "terminal 4711", "how": "deny"},
            "permission prompt denied in a terminal",
        ),
        (
            "settled",
            {"question": "q", "by": None, "how": "cancelled"},
            "permission prompt withdrawn",
        ),
        (
            "task_notification",
            {"status": "completed", "summary": "done"},
            "in the background: completed: done",
        ),
        ("set_model", {"model": "sonnet"}, "model changed: sonnet"),
        ("set_model", {}, "model changed: the default"),
        ("interrupt", {}, "interrupted by the user"),
        ("refused", {"text": "no program", "cause": "not_found"}, "refused: no program"),
        ("repair", {"repair": "not_json", "count": 2}, "repaired: not json 2"),
        ("limit", {"bytes": 1000}, "the recording stopped at its limit of 1,000 bytes"),
        (
            "spill",
            {"path": "/x", "characters": 2000},
            "too large for one line: 2,000 characters are in /x",
        ),
        ("timeout", {"name": "idle_timeout", "seconds": 9}, "no output for 9 s (idle_timeout)"),
        ("timeout", {"seconds": 9}, "timeout: seconds 9"),
        (
            "something_new",
            {"uuid": "u", "colour": "blue", "empty": None},
            "something new: colour blue",
        ),
    ],
)
def test_note_is_described_as_a_sentence_or_by_its_fields(
    name: str, fields: dict[str, Any], expected: str
) -> None:
    assert note(name, **fields) == expected


def test_long_note_fields_are_truncated() -> None:
    assert len(note("new", text="x" * 10_000)) < MAX_FIELDS_CHARS + 20


def test_user_line_and_late_result_are_described_as_text() -> None:
    assert describe_note_step(
        SessionStep(1, "note", 0.0, name="user", text="[Request interrupted by user]")
    ) == ("[Request interrupted by user]")
    late = SessionStep(1, "note", 0.0, name="late_result", output=[{"type": "text", "text": "out"}])
    assert describe_note_step(late) == "a late or repeated result: out"
