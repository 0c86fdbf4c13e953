"""The rules of a profile: the events that they match, their order and their output."""

import pytest
from profile_builder import (
    build_profile_adapter,
    create_translation,
    find_result_line,
    summarize_events,
    translate_events,
)
from stream_lines import parse_lines, summarize_lines
from sweeps import loop_over_rows

from shim.core.errors import FrontendError

END = '[[event]]\nmatch = { type = "end" }\nemit = "result"\nis_error = "bad"\nerror = "why"\n'


def rule(emit, **keys):
    """Build an `[[event]]` in TOML. Keys that are keywords of Python have an underscore at the end."""
    lines = [f'emit = "{emit}"'] + [f"{key.rstrip('_')} = {value}" for key, value in keys.items()]
    return "[[event]]\n" + "\n".join(lines) + "\n"


def say(match, text="words", **keys):
    return rule("text", match=match, text=f'"{text}"', **keys)


@loop_over_rows(
    ("match", "event", "matches"),
    [
        ('{ kind = "a" }', {"kind": "a"}, True),
        ('{ kind = "a" }', {"kind": "b"}, False),
        ('{ kind = "a" }', {}, False),
        ('{ kind = ["a", "b"] }', {"kind": "b"}, True),
        ('{ kind = ["a", 1] }', {"kind": 1}, True),
        ("{ kind = 1 }", {"kind": True}, False),
        ("{ kind = true }", {"kind": True}, True),
        ("{ kind = 1 }", {"kind": 1.0}, True),
        ('{ kind = "a", "x.y" = 1 }', {"kind": "a", "x": {"y": 1}}, True),
        ('{ kind = "a", "x.y" = 1 }', {"kind": "a", "x": {"y": 2}}, False),
        ("{ kind = { exists = true } }", {"kind": None}, False),
        ("{ kind = { exists = true } }", {"kind": ""}, True),
        ("{ kind = { exists = true } }", {"kind": 0}, True),
        ("{ kind = { exists = false } }", {}, True),
        ("{ kind = { regex = '^a.c$' } }", {"kind": "abc"}, True),
        ("{ kind = { regex = '^a.c$' } }", {"kind": 3}, False),
        ('{ kind = { kind = "string" } }', {"kind": "x"}, True),
        ('{ kind = { kind = "number" } }', {"kind": True}, False),
        ('{ kind = { kind = "number" } }', {"kind": 1.5}, True),
        ('{ kind = { kind = "array" } }', {"kind": []}, True),
        ('{ kind = { kind = "object" } }', {"kind": {}}, True),
        ('{ kind = { kind = "null" } }', {}, True),
        ('{ kind = { in = ["a"] } }', {"kind": "a"}, True),
        ('{ kind = { not_in = ["a"] } }', {"kind": "b"}, True),
        ('{ kind = { not_in = ["a"] } }', {"kind": "a"}, False),
        ('{ kind = { exists = true, not_in = ["a"] } }', {}, False),
        ('{ type = { in = ["say"] } }', {"kind": "x"}, True),
    ],
)
@loop_over_rows("type_", ["say", "unnamed"])
def test_condition_matches_event_fields(match, event, matches, type_):
    if "type =" in match and type_ == "unnamed":
        matches = False
    summary = summarize_events(
        say(match) + END, {"type": type_, "words": "Hi.", **event}, {"type": "end"}
    )
    assert ("text:Hi." in summary) is matches


def test_first_matching_rule_wins():
    profile = say('{ type = "say", loud = true }', "upper") + say('{ type = "say" }') + END
    events = [{"type": "say", "words": "a", "upper": "A", "loud": loud} for loud in (True, False)]
    assert summarize_events(profile, *events, {"type": "end"})[1:3] == ["text:A", "text:a"]


def test_continue_rule_passes_the_event_to_the_next_rule():
    profile = (
        say('{ type = "say" }', "first", continue_="true") + say('{ type = "say" }', "second") + END
    )
    summary = summarize_events(
        profile, {"type": "say", "first": "1", "second": "2"}, {"type": "end"}
    )
    assert summary[1:3] == ["text:1", "text:2"]


def test_rules_without_a_type_preserve_their_order():
    profile = say("{ loud = true }", "upper") + say('{ type = "say" }') + END
    event = {"type": "say", "words": "a", "upper": "A"}
    assert summarize_events(profile, event | {"loud": True}, event, {"type": "end"})[1:3] == [
        "text:A",
        "text:a",
    ]


def test_unmatched_event_is_counted_as_unknown():
    lines = translate_events(
        build_profile_adapter(say('{ type = "say", loud = true }') + END),
        {"type": "say"},
        {"type": "x"},
        {"type": "end"},
    )
    assert find_result_line(lines)["shim"]["unknown_events"] == {"say": 1, "x": 1}


def test_event_matched_only_by_a_session_rule_is_unknown():
    profile = (
        rule("session", match="{ id = { exists = true } }", session_id='"id"', continue_="true")
        + END
    )
    lines = translate_events(
        build_profile_adapter(profile), {"type": "new", "id": "s1"}, {"type": "end", "id": "s1"}
    )
    assert find_result_line(lines)["shim"]["unknown_events"] == {"new": 1}
    assert find_result_line(lines)["subtype"] == "success"


def test_vendor_without_event_types_is_matched_by_fields():
    profile = say('{ role = "assistant" }', "content")
    summary = summarize_events(
        profile + '[stream]\nend = { result = "synthesize" }\n',
        {"role": "user"},
        {"role": "assistant", "content": "Hi."},
    )
    assert summary == ["init", "text:Hi.", "end:success Hi."]


def test_foreach_emits_each_matching_item():
    profile = (
        say('{ type = "many" }', "$.t", foreach='"parts"', item_match='{ kind = "text" }') + END
    )
    parts = [{"kind": "text", "t": "a"}, {"kind": "image"}, {"kind": "text", "t": "b"}, 7]
    assert summarize_events(profile, {"type": "many", "parts": parts}, {"type": "end"})[1:3] == [
        "text:a",
        "text:b",
    ]


@loop_over_rows("parts", [None, {}, "text", 3, []])
def test_foreach_over_a_non_list_emits_nothing(parts):
    profile = say('{ type = "many" }', "$.t", foreach='"parts"') + END
    assert summarize_events(profile, {"type": "many", "parts": parts}, {"type": "end"}) == [
        "init",
        "end:success",
    ]


def test_item_index_can_be_part_of_its_id():
    use = rule(
        "tool_use",
        match='{ type = "many" }',
        foreach='"calls"',
        id='{ join = ["id", { const = ":" }, "$index"] }',
        name='"$.tool"',
        input='"$.args"',
    )
    event = {
        "type": "many",
        "id": "i",
        "calls": [{"tool": "A", "args": {}}, {"tool": "B", "args": {}}],
    }
    assert summarize_events(use + END, event, {"type": "end"})[1:3] == ["call:i:0 A", "call:i:1 B"]


def test_once_rule_emits_an_event_once_per_turn():
    profile = say('{ type = "say" }', once='["id", "words"]') + END
    events = [{"type": "say", "id": 1, "words": "a"}] * 2 + [{"type": "say", "id": 2, "words": "a"}]
    lines = translate_events(build_profile_adapter(profile), *events, {"type": "end"})
    assert [line["type"] for line in lines] == ["system", "assistant", "assistant", "result"]
    assert find_result_line(lines)["shim"]["unknown_events"] == {}


def test_once_rule_emits_the_event_in_the_next_turn():
    translation = create_translation(
        build_profile_adapter(say('{ type = "say" }', once='["id"]') + END)
    )
    event = b'{"type":"say","id":1,"words":"a"}\n{"type":"end"}\n'
    output = translation.feed(event)[0] + translation.finish()[0]
    translation.start_turn()
    output += translation.feed(event)[0] + translation.finish()[0]
    assert summarize_lines(parse_lines(output)) == ["init", "text:a", "end:success a"] * 2


def test_event_with_wrong_field_types_is_counted_and_the_turn_continues():
    profile = say('{ type = "say" }') + END
    lines = translate_events(
        build_profile_adapter(profile),
        {"type": "say", "words": 7},
        {"type": "say", "words": "ok"},
        {"type": "end"},
    )
    assert find_result_line(lines)["shim"]["repairs"] == {"malformed_event": 1}
    assert find_result_line(lines)["result"] == "ok"


def test_numeric_call_id_matches_its_result():
    use = rule("tool_use", match='{ type = "call" }', id='"n"', name='"tool"', input='"args"')
    back = rule(
        "tool_result", match='{ type = "back" }', id='"n"', content='"out"', is_error='"bad"'
    )
    summary = summarize_events(
        use + back + END,
        {"type": "call", "n": 3, "tool": "A", "args": {}},
        {"type": "back", "n": 3, "out": "x", "bad": True},
        {"type": "end"},
    )
    assert summary == ["init", "call:3 A", "failed:3 x", "end:success"]


def test_tool_result_can_create_its_tool_call():
    back = rule(
        "tool_result",
        match='{ type = "did" }',
        id='"n"',
        content='"out"',
        name='"tool"',
        input='"args"',
    )
    event = {"type": "did", "n": "c", "out": "x", "tool": "A", "args": {"k": 1}}
    assert summarize_events(back + END, event, {"type": "end"}) == [
        "init",
        "call:c A",
        "result:c x",
        "end:success",
    ]


@pytest.mark.parametrize(
    ("content", "expected"), [(0, "0"), (False, "false"), ("", ""), (None, "")]
)
def test_tool_result_of_another_type_is_written_as_text(content, expected):
    use = rule("tool_use", match='{ type = "use" }', id='"id"', name='"tool"', input='"args"')
    returned = rule("tool_result", match='{ type = "returned" }', id='"id"', content='"value"')
    events = (
        {"type": "use", "id": "c", "tool": "Own"},
        {"type": "returned", "id": "c", "value": content},
    )
    assert f"result:c {expected}".rstrip() in summarize_events(
        use + returned + END, *events, {"type": "end"}
    )


def test_denied_event_is_listed_in_permission_denials():
    profile = rule("denied", match='{ type = "no" }', id='"n"', name='"tool"', input='"args"') + END
    profile += '[tools]\nsh = { name = "Bash", args = { command = "cmd" } }\n'
    lines = translate_events(
        build_profile_adapter(profile),
        {"type": "no", "n": "c", "tool": "sh", "args": {"cmd": "ls"}},
        {"type": "end"},
    )
    assert find_result_line(lines)["permission_denials"] == [
        {"tool_name": "Bash", "tool_use_id": "c", "tool_input": {"command": "ls"}}
    ]


# -- tools -----------------------------------------------------------------------------------------

USE = rule("tool_use", match='{ type = "call" }', id='"n"', name='"tool"', input='"args"')


def translate_call(tools, name, tool_input):
    """Return Claude's name and input for a call."""
    lines = translate_events(
        build_profile_adapter(USE + END + tools),
        {"type": "call", "n": "c", "tool": name, "args": tool_input},
    )
    (block,) = (line["message"]["content"][0] for line in lines if line["type"] == "assistant")
    return block["name"], block["input"]


ARGS = {"path": "/a", "from": 3, "to": 9, "more": True}


@loop_over_rows(
    ("tools", "expected"),
    [
        ("", ("look", ARGS)),
        ('[tools]\nlook = { name = "Read" }\n', ("Read", ARGS)),
        ('[tools]\nlook = { name = "Read", args = {} }\n', ("Read", {})),
        (
            '[tools]\nlook = { name = "Read", args = { file_path = "path" } }\n',
            ("Read", {"file_path": "/a"}),
        ),
        (
            '[tools]\nlook = { name = "Read", args = { file_path = "path" }, keep = true }\n',
            ("Read", {"file_path": "/a", "from": 3, "to": 9, "more": True}),
        ),
        (
            '[tools]\nlook = { name = "Read", args = { limit = { minus = ["to", "from"] }, gone = "no" } }\n',
            ("Read", {"limit": 6}),
        ),
        (
            '[tools]\nlook = { name = "Read", args = { p = "x || path" }, keep = true, add = { why = "" } }\n',
            ("Read", {"from": 3, "to": 9, "more": True, "p": "/a", "why": ""}),
        ),
        (
            '[tools.look]\nname = "Read"\nargs = { a = "path" }\n'
            '[[tools.look.alt]]\nmatch = { more = true }\nname = "Glob"\nargs = { b = "path" }\n',
            ("Glob", {"b": "/a"}),
        ),
        (
            '[tools.look]\nname = "Read"\nargs = { a = "path" }\n'
            '[[tools.look.alt]]\nmatch = { more = false }\nname = "Glob"\n',
            ("Read", {"a": "/a"}),
        ),
    ],
)
def test_tool_name_and_arguments_are_mapped_to_claude(tools, expected):
    assert translate_call(tools, "look", ARGS) == expected


@loop_over_rows(
    ("args", "tool_input", "expected"),
    [
        # A field is in the position of its argument.
        ('{ b = "x" }', {"a": 1, "x": 2, "c": 3}, {"a": 1, "b": 2, "c": 3}),
        ('{ b = { path = "x", times = 10 } }', {"a": 1, "x": 2, "c": 3}, {"a": 1, "b": 20, "c": 3}),
        ('{ b = { path = "x", default = 5 } }', {"a": 1, "x": 2, "c": 3}, {"a": 1, "b": 2, "c": 3}),
        ('{ b = { path = "x", default = 5 } }', {"a": 1}, {"a": 1, "b": 5}),
        # The arguments from which a field is built are removed, for every kind of field.
        ('{ b = { path = "x", capture = "(.)$" } }', {"x": "12", "c": 3}, {"b": "2", "c": 3}),
        ('{ n = { minus = ["x", "y"] } }', {"x": 5, "c": 0, "y": 2}, {"n": 3, "c": 0}),
        (
            '{ l = { foreach = "x.items", item = { k = "$.v" } } }',
            {"x": {"items": [{"v": 1}]}},
            {"l": [{"k": 1}]},
        ),
        ('{ b = "x.y || z" }', {"z": 1, "x": {}}, {"b": 1}),
        ("{ b = \"'a b'.c\" }", {"a b": {"c": 1}, "d": 2}, {"b": 1, "d": 2}),
        # A field replaces an argument with the same name. Without the field, the argument stays.
        ('{ b = { path = "x", capture = ".$" } }', {"b": 1, "x": "12"}, {"b": "2"}),
        ('{ b = { path = "x", capture = ".$" } }', {"b": 1}, {"b": 1}),
    ],
)
def test_mapped_arguments_preserve_their_order(args, tool_input, expected):
    result = translate_call(
        f'[tools]\nlook = {{ name = "Read", keep = true, args = {args} }}\n', "look", tool_input
    )[1]
    assert list(result.items()) == list(expected.items())


def test_unmapped_tools_are_named_by_a_pattern():
    others = "other_tools = { regex = '^mcp_([^_]+)_(.+)$', name = 'mcp__\\1__\\2' }\n"
    vendor = build_profile_adapter('schema = 1\nid = "own"\n' + others + USE)
    for name, expected in (("mcp_files_read_all", "mcp__files__read_all"), ("plain", "plain")):
        lines = translate_events(vendor, {"type": "call", "n": "c", "tool": name, "args": {}})
        (block,) = (line["message"]["content"][0] for line in lines if line["type"] == "assistant")
        assert block["name"] == expected


def test_tool_name_template_with_a_missing_group_is_rejected():
    with pytest.raises(FrontendError, match=r"other_tools\.name"):
        build_profile_adapter(
            "schema = 1\nid = \"own\"\nother_tools = { regex = '^(a)$', name = 'x\\2' }\n" + USE
        )


@pytest.mark.parametrize("tool_input", [None, 7, "text", [1]])
def test_non_object_arguments_are_wrapped_as_raw(tool_input):
    name, result = translate_call('[tools]\nlook = { name = "Read" }\n', "look", tool_input)
    assert (name, result) == ("Read", {} if tool_input is None else {"raw": tool_input})


@pytest.mark.parametrize(
    "line",
    [
        '{"role":"assistant","content":"Hi \\\\ud99c."}',
        'banner {"role":"assistant","content":"Hi."}',
    ],
)
def test_repaired_line_of_a_vendor_without_types_is_read(line):
    profile = (
        say('{ role = "assistant" }', "content") + '[stream]\nend = { result = "synthesize" }\n'
    )
    lines = translate_events(build_profile_adapter(profile), line.replace("\\\\u", "\\u"))
    assert (
        find_result_line(lines)["result"].startswith("Hi")
        and find_result_line(lines)["shim"]["repairs"]
    )


# -- late results ----------------------------------------------------------------------------------

LATE = (
    '[stream]\nresults = "late"\n'
    + USE
    + say('{ type = "say" }')
    + rule("thinking", match='{ type = "think" }', text='"words"')
    + rule("tool_result", match='{ type = "back" }', id='"n"', content='"out"', oldest="true")
    + rule("input", match='{ type = "user" }')
    + rule("ignore", match='{ type = "beat" }')
    + END
)
CALL_A, CALL_B = ({"type": "call", "n": name, "tool": "T", "args": {}} for name in "ab")
BACK_A, BACK_B = ({"type": "back", "n": name, "out": name} for name in "ab")
SAY, THINK, OVER = {"type": "say", "words": "t"}, {"type": "think", "words": "m"}, {"type": "end"}


@loop_over_rows(
    ("events", "expected"),
    [
        # A text that precedes the result is written after it.
        ([CALL_A, SAY, BACK_A], ["call:a T", "result:a a", "text:t"]),
        (
            [CALL_A, CALL_B, SAY, BACK_A, BACK_B],
            ["call:a T", "call:b T", "result:a a", "result:b b", "text:t"],
        ),
        # Without a result, the output of the call is unknown.
        ([CALL_A, SAY, SAY], ["call:a T", "result:a", "text:t", "text:t"]),
        ([CALL_A, SAY, {"type": "user"}], ["call:a T", "result:a", "text:t"]),
        ([CALL_A, SAY, {"type": "beat"}, BACK_A], ["call:a T", "result:a a", "text:t"]),
        (
            [CALL_A, SAY, CALL_B, SAY],
            ["call:a T", "result:a", "text:t", "call:b T", "result:b", "text:t"],
        ),
        # Thinking between two calls of a batch does not end the batch.
        (
            [CALL_A, THINK, CALL_B, BACK_A, BACK_B],
            ["call:a T", "think:m", "call:b T", "result:a a", "result:b b"],
        ),
        # A result without an id belongs to the oldest open call.
        (
            [CALL_A, CALL_B, {"type": "back", "out": "x"}, BACK_B],
            ["call:a T", "call:b T", "result:a x", "result:b b"],
        ),
        ([SAY, {"type": "user"}], ["text:t"]),
    ],
)
def test_late_tool_result_is_written_before_the_waiting_text(events, expected):
    assert summarize_events(LATE, *events, OVER)[1:-1] == expected


def test_open_call_is_truncated_only_if_another_call_has_a_result():
    lines = translate_events(build_profile_adapter(LATE), CALL_A, BACK_A, CALL_B, OVER)
    assert find_result_line(lines)["shim"]["cause"] == "truncated"
    assert (
        find_result_line(translate_events(build_profile_adapter(LATE), CALL_A, OVER))["shim"][
            "cause"
        ]
        == "clean"
    )


def test_waiting_text_is_written_when_the_stream_is_cut():
    assert summarize_events(LATE, CALL_A, SAY, code=None)[1:3] == ["call:a T", "text:t"]
