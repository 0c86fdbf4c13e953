"""The steps of a running session, for lines of any kind."""

import orjson
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from shim.bridge.gateway.step_renderer import (
    MAX_DEPTH,
    SessionStepRenderer,
    build_permission_prompt_json,
    escape_control_chars_in_json,
    render_step,
)

TEXT = st.text(max_size=20) | st.sampled_from(
    ["\x1b[31m", "\u202e", "text", "tool_use", "success", "t1", "Bash"]
)
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=12,
)
BLOCK = st.fixed_dictionaries(
    {"type": st.sampled_from(["text", "thinking", "tool_use", "tool_result", "image"]) | TEXT},
    optional={
        "text": JSON, "thinking": JSON, "id": TEXT | JSON, "name": JSON, "input": JSON, "tool_use_id": TEXT | JSON,
        "content": JSON, "is_error": JSON,
    },
)  # fmt: skip
EVENT = st.fixed_dictionaries(
    {"type": st.sampled_from(["content_block_start", "content_block_delta", "content_block_stop"])},
    optional={
        "delta": st.fixed_dictionaries({}, optional={"text": TEXT, "thinking": TEXT | JSON}),
        "content_block": BLOCK,
    },
)
LINE = st.fixed_dictionaries(
    {"type": st.sampled_from(["system", "assistant", "user", "result", "stream_event", "rate_limit_event", "other"])},
    optional={
        "message": st.fixed_dictionaries({}, optional={"content": st.lists(BLOCK, max_size=3) | JSON}) | JSON,
        "event": EVENT | JSON,
        "isReplay": JSON, "subtype": TEXT | JSON, "parent_tool_use_id": TEXT | JSON, "result": JSON, "usage": JSON,
        "is_error": JSON, "permission_denials": JSON, "total_cost_usd": JSON, "session_id": JSON, "error": JSON,
    },
)  # fmt: skip


def unseen(value):
    """Return the characters that a page or a terminal would obey."""
    if isinstance(value, str):
        return [character for character in value if character in "\x1b\u202e\x9b"]
    inner = (
        value
        if isinstance(value, list | tuple)
        else [*value, *value.values()]
        if isinstance(value, dict)
        else ()
    )
    return [control_character for item in inner for control_character in unseen(item)]


@given(st.lists(LINE | JSON, max_size=8))
def test_steps_of_arbitrary_lines_are_json_without_control_characters(lines):
    drawing, late = SessionStepRenderer(), SessionStepRenderer()
    for at, line in enumerate(lines):
        data = orjson.dumps(line)
        live = drawing.render_partial_message(data)
        steps = [render_step(sheet) for sheet in drawing.update_steps_from_line(at, data)]
        assert steps == [render_step(sheet) for sheet in late.update_steps_from_line(at, data)], (
            "who watched what was streamed sees the same steps"
        )
        assert not unseen([live, steps])
    assert not unseen([drawing.session_export.title, drawing.build_session_totals()])


@given(EVENT)
@example({"type": "content_block_delta", "delta": {"text": "\x1b[31m"}})
@example({"type": "content_block_start", "content_block": {"type": "\x1b", "name": "\u202e"}})
def test_streamed_events_are_rendered_without_control_characters(event):
    assert not unseen(
        SessionStepRenderer().render_partial_message(
            orjson.dumps({"type": "stream_event", "event": event})
        )
    )


@given(
    JSON
    | st.fixed_dictionaries(
        {"subtype": TEXT, "tool_name": JSON, "input": JSON, "permission_suggestions": JSON}
    )
)
def test_permission_prompt_is_rendered_without_control_characters(request):
    question = build_permission_prompt_json(
        "q1", request if isinstance(request, dict) else {}, "/repo"
    )
    assert question["question"] == "q1" and not unseen(question)


def test_nesting_depth_of_rendered_values_is_bounded():
    deep: object = "end"
    for _ in range(5000):
        deep = [deep]
    assert orjson.dumps(escape_control_chars_in_json(deep)).count(b"[") == MAX_DEPTH


def test_malformed_line_produces_no_steps():
    drawing = SessionStepRenderer()
    for line in (b"", b"nonsense", b"[]", b"null", b'"text"', b"\xff"):
        assert (
            drawing.update_steps_from_line(1, line) == []
            and drawing.render_partial_message(line) is None
        )


def test_always_option_contains_the_exact_rule_to_be_allowed():
    """The suggestions are a less restrictive rule, a folder and a mode, so they are not used."""
    suggested = [
        {
            "type": "addRules",
            "behavior": "allow",
            "rules": [{"toolName": "Bash", "ruleContent": "git *\u202e"}],
        },
        {"type": "setMode", "mode": "acceptEdits", "destination": "session"},
        {"type": "addDirectories", "directories": ["/a"], "destination": "localSettings"},
    ]

    def find_always_rules(**tool_input):
        request = {"tool_name": "Bash", "input": tool_input, "permission_suggestions": suggested}
        return build_permission_prompt_json("q", request, "/repo").get("always")

    assert find_always_rules(command="git push") == ["Bash(git push)"]
    (rule,) = find_always_rules(command="git *")
    assert rule.startswith("Bash(git *") and "\u202e" not in rule
    del suggested[0]
    assert find_always_rules(command="git *") is None


EDIT = {"old_string": "a", "new_string": "b"}


@pytest.mark.parametrize(
    ("name", "tool_input"),
    [
        ("Edit", {"file_path": "a", "old_string": "x", "new_string": "EVIL", "edits": [EDIT]}),
        (
            "MultiEdit",
            {"file_path": "a", "edits": [EDIT] * 200 + [{"old_string": "x", "new_string": "EVIL"}]},
        ),
        (
            "MultiEdit",
            {"file_path": "a", "edits": [EDIT, {"old_string": ["x"], "new_string": "EVIL"}]},
        ),
        ("MultiEdit", {"file_path": "a", "edits": [EDIT, EDIT | {"replace": "EVIL"}]}),
        ("Write", {"file_path": "a", "content": "b", "new_string": "EVIL"}),
        ("NotebookEdit", {"notebook_path": "a", "new_source": "b", "content": "EVIL"}),
        ("AskUserQuestion", {"questions": [{"question": "?"}, "EVIL"]}),
        ("AskUserQuestion", {"questions": [{"question": "?"}], "other": "EVIL"}),
    ],
)
def test_prompt_fields_contain_input_that_the_diff_omits(name, tool_input):
    question = build_permission_prompt_json("q", {"tool_name": name, "input": tool_input}, "/repo")
    assert any("EVIL" in value for _, value in question["fields"])


def test_prompt_fields_omit_input_that_the_diff_contains():
    question = build_permission_prompt_json(
        "q", {"tool_name": "Edit", "input": {"file_path": "a", **EDIT}}, "/repo"
    )
    assert question["fields"] == [("file_path", "a")] and question["diff"] == "@@\n-a\n+b"
    question = build_permission_prompt_json(
        "q", {"tool_name": "MultiEdit", "input": {"file_path": "a", "edits": [EDIT, EDIT]}}, "/repo"
    )
    assert question["fields"] == [("file_path", "a")]


def test_prompt_diff_includes_unchanged_lines_between_changes():
    old = "\n".join(map(str, range(100)))
    tool_input = {
        "file_path": "a",
        "old_string": old,
        "new_string": old.replace("3\n", "x\n", 1).replace("97", "y"),
    }
    assert (
        "\n 50\n"
        in build_permission_prompt_json("q", {"tool_name": "Edit", "input": tool_input}, "/repo")[
            "diff"
        ]
    )


def test_elicitation_prompt_includes_the_url():
    request = {
        "subtype": "elicitation",
        "mcp_server_name": "shop",
        "message": "Log in",
        "url": "https://a.example",
    }
    assert build_permission_prompt_json("q", request, "/repo")["fields"] == [
        ("url", "https://a.example")
    ]
