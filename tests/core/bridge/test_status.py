"""The reported status of a session."""

from sweeps import loop_over_rows

from shim.core.bridge.status import SessionStatus, format_message_detail

ERROR = {
    "type": "result",
    "subtype": "error_during_execution",
    "is_error": True,
    "errors": ["it broke\nat line 2"],
}


@loop_over_rows(
    ("result", "state", "detail"),
    [
        (
            {"type": "result", "subtype": "success", "is_error": False, "result": "Done."},
            "done",
            "Done.",
        ),
        (ERROR, "failed", "it broke"),
        ({**ERROR, "shim": {"cause": "vendor_error"}}, "failed", "it broke"),
        ({**ERROR, "shim": {"cause": "signal"}}, "stopped", "stopped"),
        ({**ERROR, "shim": {"cause": "signal", "signal": "SIGKILL"}}, "failed", "it broke"),
        ({**ERROR, "terminal_reason": "aborted_tools"}, "blocked", "interrupted"),
    ],
)
def test_session_status_reports_how_the_turn_ended(result, state, detail):
    now = SessionStatus()
    now.record_queued_user_message()
    now.record_stream_json_line({"type": "system", "subtype": "init"})
    assert now.build_status_fields()["state"] == "working"
    now.record_stream_json_line(result)
    status_fields = now.build_status_fields()
    assert (status_fields["state"], status_fields["status"], status_fields["detail"]) == (
        state,
        "idle",
        detail,
    )
    now.record_session_end()
    assert now.build_status_fields()["state"] == ("stopped" if state == "blocked" else state)


def test_detail_says_working_once_the_agent_has_started():
    status = SessionStatus()
    status.record_queued_user_message()
    assert status.build_status_fields(has_messages=True)["detail"] == "starting…"
    status.record_stream_json_line({"type": "system", "subtype": "init"})
    assert status.build_status_fields()["detail"] == "working…"


@loop_over_rows(
    ("text", "detail"),
    [
        ("## What is in `src`\n\nMany files.", "What is in src"),
        ("- **3 passed** in 0.1 s", "3 passed in 0.1 s"),
        ("edit src/**/*.py and __init__.py", "edit src/**/*.py and __init__.py"),
        ("5 * 3 > 2", "5 * 3 > 2"),
        ("#include is code", "#include is code"),
        ("", ""),
    ],
)
def test_message_detail_has_no_markdown_marks(text, detail):
    assert format_message_detail(text) == detail
