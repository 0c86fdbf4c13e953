"""The feedback of hooks: texts for the model, and whether the turn ends. The texts are those of the
real claude 2.1.330.
"""

from sweeps import loop_over_rows

from shim.core.claude.hooks.callbacks import HookEvent, build_compaction_events
from shim.core.claude.hooks.feedback import (
    MAX_TEXTS,
    HookFeedback,
    HookFeedbackQueue,
    parse_hook_feedback,
)
from shim.core.claude.hooks.unsupported import (
    HookSupport,
    list_uncalled_restricting_events,
    list_unsupported_callbacks,
)
from shim.core.policy import HOOK_EVENTS

PROMPT = HookEvent("UserPromptSubmit")
CALL = HookEvent("PreToolUse", "call_1", "Bash")
RESULT = HookEvent("PostToolUse", "call_1", "Bash")
FAILURE = HookEvent("PostToolUseFailure", "call_1", "Bash")
STOP = HookEvent("Stop")
BLOCK = {"decision": "block", "reason": "R"}
END = {"continue": False, "stopReason": "R"}


def context(event, **more):
    output = {"hookEventName": event.name, "additionalContext": "C"}
    return {"hookSpecificOutput": output, **more}


def label(event):
    return f"{event.name}:{event.tool} hook"


@loop_over_rows(
    ("event", "answer", "feedback"),
    [
        (PROMPT, None, HookFeedback()),
        (PROMPT, {}, HookFeedback()),
        (PROMPT, context(PROMPT), HookFeedback(("UserPromptSubmit hook additional context: C",))),
        (PROMPT, context(PROMPT, **BLOCK), HookFeedback()),
        (PROMPT, context(STOP), HookFeedback()),
        (CALL, context(CALL), HookFeedback((f"{label(CALL)} additional context: C",))),
        (CALL, BLOCK, HookFeedback()),
        (CALL, END, HookFeedback((f"{label(CALL)} stopped continuation: R",), stops_turn=True)),
        (
            RESULT,
            context(RESULT, **BLOCK),
            HookFeedback(
                (
                    f'{label(RESULT)} blocking error from command: "callback": R',
                    f"{label(RESULT)} additional context: C",
                ),
                needs_answer=True,
            ),
        ),
        (RESULT, END, HookFeedback((f"{label(RESULT)} stopped continuation: R",), stops_turn=True)),
        (RESULT, {"systemMessage": "M"}, HookFeedback(notice="PostToolUse:Bash says: M")),
        (FAILURE, END, HookFeedback()),
        (
            STOP,
            BLOCK,
            HookFeedback(("Stop hook feedback:\nR",), "Stop hook feedback:\nR", needs_answer=True),
        ),
        (
            STOP,
            context(STOP),
            HookFeedback(("Stop hook additional context: C",), needs_answer=True),
        ),
        (STOP, END, HookFeedback(("Stop hook stopped continuation: R",), stops_turn=True)),
    ],
)
def test_answer_of_a_hook_is_parsed_to_feedback(event, answer, feedback):
    assert parse_hook_feedback(event, answer) == feedback


def test_texts_are_joined_for_the_model():
    queue = HookFeedbackQueue()
    queue.add(HookFeedback(("one",), needs_answer=True))
    queue.add(HookFeedback(("two",)))
    assert queue.needs_answer and queue.has_late_context
    text = queue.take_model_text()
    assert text == "<system-reminder>\none\n\ntwo\n</system-reminder>"
    assert not queue.needs_answer and queue.take_model_text() == ""
    queue.put_back(text)
    assert queue.take_model_text() == text


def test_text_of_a_hook_that_ends_the_turn_belongs_to_the_next_message():
    queue = HookFeedbackQueue()
    queue.add(HookFeedback(("stopped",), stops_turn=True))
    assert queue.take_model_text() == "" and not queue.has_late_context
    queue.end_turn()
    assert "stopped" in queue.take_model_text()


def test_queue_keeps_a_limited_number_of_texts():
    queue = HookFeedbackQueue()
    for number in range(2 * MAX_TEXTS):
        queue.add(HookFeedback((f"text {number}.",)))
    text = queue.take_model_text()
    assert f"text {2 * MAX_TEXTS - 1}." in text and "text 0." not in text


SUPPORT = HookSupport(
    "qwen",
    is_persistent=True,
    accepts_steering=True,
    asks_permissions=True,
    changes_input=True,
    passes_reasons=True,
    denies_calls=True,
    runs_agents=True,
)
AGENT_EVENTS = ["SubagentStart", "SubagentStop"]
ALWAYS_LISTED = ["PostToolUse.updatedToolOutput", "PreCompact", "PostCompact", *AGENT_EVENTS]


@loop_over_rows(
    ("support", "events"),
    [
        (SUPPORT, []),
        (
            SUPPORT._replace(accepts_steering=False),
            ["PreToolUse.additionalContext", "PostToolUse", "PostToolUseFailure"],
        ),
        (SUPPORT._replace(is_persistent=False), ["PostToolUse", "PostToolUseFailure", "Stop"]),
        (SUPPORT._replace(asks_permissions=False), ["PermissionRequest"]),
        (SUPPORT._replace(denies_calls=False), ["PreToolUse"]),
        (
            SUPPORT._replace(passes_reasons=False),
            ["PreToolUse.reason", "PermissionRequest.reason"],
        ),
        (
            SUPPORT._replace(changes_input=False),
            ["PreToolUse.updatedInput", "PermissionRequest.updatedInput"],
        ),
    ],
)
def test_hooks_with_a_smaller_effect_are_listed(support, events):
    entries = list_unsupported_callbacks((*HOOK_EVENTS, "Notification", "PostToolBatch"), support)
    assert sorted(entry.what for entry in entries) == sorted(
        f"hooks.{event}" for event in (*events, *ALWAYS_LISTED, "PostToolBatch")
    )
    assert all(entry.reason for entry in entries)


def test_hooks_that_can_restrict_something_and_are_not_called_are_reported():
    events = list_uncalled_restricting_events(asks_permissions=True, runs_agents=True)
    assert "PostToolBatch" in events and not {"PermissionRequest", "SubagentStop"} & {*events}
    events = list_uncalled_restricting_events(asks_permissions=False, runs_agents=False)
    assert {"PermissionRequest", "SubagentStop"} <= {*events}


def test_answer_to_another_event_is_reported_for_a_stop_hook_only():
    assert parse_hook_feedback(STOP, context(CALL)) == HookFeedback(
        notice="Stop hook failed: Hook returned incorrect event name: expected 'Stop' but got "
        "'PreToolUse'.",
        is_failure=True,
    )
    assert parse_hook_feedback(RESULT, context(CALL, systemMessage="M")) == HookFeedback()


def test_hook_blocks_a_compaction_and_cannot_add_context():
    event, _ = build_compaction_events("manual")
    assert parse_hook_feedback(event, BLOCK) == HookFeedback(stops_turn=True)
    assert parse_hook_feedback(event, context(event)) == HookFeedback()
