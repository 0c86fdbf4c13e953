"""The result of an agent's call: updates have only the changed fields, and every kind of content is
shown or counted.
"""

import json

import pytest
from acp_agent import ANSWERS, DONE, AcpConversation, build_text_update, build_update
from sweeps import loop_over_rows

PNG = "iVBORw0KGgo="
TEXT = {"type": "text", "text": "line 1\nline 2\n"}


def begin(vendor="opencode", **fields):
    """Return a conversation with an agent that has made one call."""
    call = {
        "title": "shot_take",
        "kind": "other",
        "status": "pending",
        "rawInput": {"n": 1},
    } | fields
    return AcpConversation(vendor).feed_messages(
        *ANSWERS, build_update("tool_call", toolCallId="k1", **call)
    )


def build_call_update(**fields):
    return build_update("tool_call_update", toolCallId="k1", **fields)


def content(*blocks):
    return [{"type": "content", "content": block} for block in blocks]


def results(talk):
    """Return the content of each result, whether its call failed, and the names of the calls."""
    lines = [
        json.loads(line)
        for line in talk.feed_messages(build_text_update("Done."), DONE)
        .close_stream()
        .lines.splitlines()
    ]
    blocks = [
        block
        for line in lines
        if line["type"] in ("user", "assistant")
        for block in line["message"]["content"]
    ]
    tool_results = [
        (block["content"], block["is_error"]) for block in blocks if block["type"] == "tool_result"
    ]
    return (
        tool_results,
        [block["name"] for block in blocks if block["type"] == "tool_use"],
        lines[-2]["shim"],
    )


@loop_over_rows(
    ("updates", "expected"),
    [
        # the content or the raw output of an earlier update
        (
            [
                build_call_update(status="in_progress", content=content(TEXT)),
                build_call_update(status="completed"),
            ],
            TEXT["text"],
        ),
        (
            [
                build_call_update(content=content(TEXT)),
                build_call_update(status="completed", content=None),
            ],
            TEXT["text"],
        ),
        (
            [build_call_update(rawOutput={"output": "raw"}), build_call_update(status="completed")],
            "raw",
        ),
        (
            [
                build_call_update(rawOutput="raw"),
                build_call_update(status="completed", rawOutput=None),
            ],
            "raw",
        ),
        # The last update applies.
        (
            [
                build_call_update(content=content(TEXT)),
                build_call_update(status="completed", content=content({**TEXT, "text": "x"})),
            ],
            "x",
        ),
        (
            [
                build_call_update(content=content(TEXT)),
                build_call_update(status="completed", content=[]),
            ],
            "",
        ),
        (
            [
                build_call_update(rawOutput="a"),
                build_call_update(status="completed", rawOutput="b"),
            ],
            "b",
        ),
        # Content has precedence over the raw output, unless the raw output contains it and more.
        (
            [
                build_call_update(content=content(TEXT)),
                build_call_update(status="completed", rawOutput={"output": "other"}),
            ],
            TEXT["text"],
        ),
        (
            [
                build_call_update(content=content(TEXT)),
                build_call_update(status="completed", rawOutput=TEXT["text"] + "line 3"),
            ],
            TEXT["text"] + "line 3",
        ),
    ],
)
def test_field_value_is_preserved_if_an_update_omits_the_field(updates, expected):
    assert results(begin().feed_messages(*updates))[0] == [(expected, False)]


def test_exit_code_of_an_earlier_update_marks_the_call_as_failed():
    talk = begin().feed_messages(
        build_call_update(rawOutput={"output": "no", "metadata": {"exit": 7}}),
        build_call_update(status="completed"),
    )
    assert results(talk)[0] == [("no", True)]


@loop_over_rows(
    ("raw_output", "denied"),
    [
        ({"message": "no", "code": "denied"}, ["Bash"]),
        ({"message": "no", "code": "failure"}, []),
        ("denied", []),
    ],
)
def test_call_that_a_rule_refused_is_among_the_denials(raw_output, denied):
    talk = begin("copilot", kind="execute", rawInput={"command": "touch x"}).feed_messages(
        build_call_update(status="failed", rawOutput=raw_output)
    )
    lines = talk.feed_messages(DONE).close_stream().lines.splitlines()
    (result,) = [line for line in map(json.loads, lines) if line["type"] == "result"]
    assert [denial["tool_name"] for denial in result["permission_denials"]] == denied


def test_content_of_the_tool_call_event_is_used_in_the_result():
    assert results(begin(content=content(TEXT)).feed_messages(build_call_update(status="failed")))[
        0
    ] == [(TEXT["text"], True)]


def image(data=PNG):
    return {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": data}}


@loop_over_rows(
    ("block", "expected"),
    [
        ({"type": "image", "mimeType": "image/png", "data": PNG}, image()),
        (
            {"type": "resource", "resource": {"uri": "file:///b", "text": "inner"}},
            "[Resource at file:///b] inner",
        ),
        (
            {"type": "resource_link", "name": "b", "uri": "file:///b"},
            "[Resource link: b] file:///b",
        ),
        (
            {"type": "audio", "mimeType": "audio/wav", "data": "AAAA"},
            "[Audio] Binary content (audio/wav, 3 bytes), not saved",
        ),
        (
            {
                "type": "resource",
                "resource": {"uri": "file:///b", "mimeType": "application/pdf", "blob": "AAAA"},
            },
            "[Resource at file:///b] Binary content (application/pdf, 3 bytes), not saved",
        ),
    ],
)
@loop_over_rows("beside", [False, True])
def test_every_content_type_is_converted(block, expected, beside):
    sent = content({"type": "text", "text": "before"}, block) if beside else content(block)
    (((returned, failed),), _, shim) = results(
        begin().feed_messages(build_call_update(status="completed", content=sent))
    )
    expected = {"type": "text", "text": expected} if isinstance(expected, str) else expected
    assert returned == [*([{"type": "text", "text": "before"}] if beside else ()), expected]
    assert not failed and shim["unknown_events"] == {}


@pytest.mark.parametrize("sent", [content({"type": "text", "text": "here"}), []])
def test_image_only_in_the_raw_output_is_included(sent):
    """copilot sends the texts of a tool's result as content. The complete result is only in
    `contents` of the raw output.
    """
    contents = [
        {"type": "text", "text": "here"},
        {"type": "image", "data": PNG, "mimeType": "image/png"},
        "x",
        {},
    ]
    raw = {"content": "here", "contents": [*contents, {"type": "shell_exit", "exitCode": 0}]}
    returned, _, shim = results(
        begin().feed_messages(build_call_update(status="completed", content=sent, rawOutput=raw))
    )
    assert returned == [([{"type": "text", "text": "here"}, image()], False)]
    assert shim["unknown_events"] == {}


@pytest.mark.parametrize(
    ("blocks", "expected"),
    [
        (
            [
                {"type": "text", "text": "here"},
                {"type": "image_url", "imageUrl": {"url": f"data:image/png;base64,{PNG}"}},
            ],
            [{"type": "text", "text": "here"}, image()],
        ),
        ([{"type": "text", "text": "one"}, {"type": "text", "text": "two"}], "one\ntwo"),
        ([{"type": "image_url", "imageUrl": {"url": "https://a.example/b.png"}}], "as JSON"),
    ],
)
def test_raw_output_with_a_list_of_blocks_is_converted(blocks, expected):
    """Kimi Code sends the same list as JSON, in a text."""
    tool_update = build_call_update(
        status="completed", content=content({"type": "text", "text": "as JSON"}), rawOutput=blocks
    )
    assert results(begin("kimi-code").feed_messages(tool_update))[0] == [(expected, False)]


def test_image_in_content_and_raw_output_is_included_once():
    block = {"type": "image", "mimeType": "image/png", "data": PNG}
    raw = {"contents": [block]}
    assert results(
        begin().feed_messages(
            build_call_update(status="completed", content=content(block), rawOutput=raw)
        )
    )[0] == [([image()], False)]


@pytest.mark.parametrize(
    ("item", "name"),
    [
        ({"type": "terminal", "terminalId": "t"}, "tool_content/terminal"),
        ({"type": "hologram"}, "tool_content/hologram"),
        ({"type": "content", "content": {"type": "smell", "data": "x"}}, "content/smell"),
        ({"type": "content", "content": {"type": "image"}}, "content/image"),
    ],
)
def test_unknown_content_is_counted(item, name):
    sent = [item, *content({"type": "text", "text": "seen"})]
    ((returned, _), *_), _, shim = results(
        begin().feed_messages(build_call_update(status="completed", content=sent))
    )
    assert returned == "seen" and shim["unknown_events"] == {name: 1}


@pytest.mark.parametrize("status", ["completed", "failed", "cancelled"])
def test_second_end_of_a_call_is_ignored(status):
    first, second = (content({"type": "text", "text": value}) for value in ("one", "two"))
    talk = begin().feed_messages(
        build_call_update(status="completed", content=first),
        build_call_update(status=status, content=second),
    )
    returned, names, shim = results(talk)
    assert (returned, names) == ([("one", False)], ["shot_take"])
    assert shim["repairs"] == {"second_tool_result": 1}


def test_update_of_an_ended_call_does_not_start_another_call():
    talk = begin().feed_messages(
        build_call_update(status="completed"),
        build_call_update(title="late"),
        build_call_update(content=content(TEXT)),
    )
    assert results(talk)[:2] == ([("", False)], ["shot_take"])


def test_new_call_may_reuse_the_id_of_an_ended_call():
    second_call = build_update(
        "tool_call", toolCallId="k1", title="bash", kind="execute", rawInput={"command": "ls"}
    )
    done = build_call_update(status="completed", content=content({"type": "text", "text": "two"}))
    talk = begin().feed_messages(
        build_call_update(status="completed", content=content(TEXT)), second_call, done
    )
    assert results(talk)[:2] == ([(TEXT["text"], False), ("two", False)], ["shot_take", "Bash"])


def test_refused_gemini_call_gets_the_path_from_its_error():
    error = 'Path not in workspace: Attempted path "/opt/made.txt" resolves outside the allowed workspace directories'
    fields = {
        "status": "failed",
        "kind": "edit",
        "content": content({"type": "text", "text": error}),
    }
    refused = build_update("tool_call_update", toolCallId="write_file__call_1_0", **fields)
    lines = (
        AcpConversation("gemini")
        .feed_messages(*ANSWERS, refused, build_text_update("Done."), DONE)
        .close_stream()
        .lines.splitlines()
    )
    (use,) = (
        json.loads(line)["message"]["content"][0] for line in lines if b'"type":"tool_use"' in line
    )
    assert (use["name"], use["input"]["file_path"]) == ("Write", "/opt/made.txt")
    ((text, is_error),) = (
        (block["content"], block["is_error"])
        for line in lines
        if b'"tool_result"' in line
        for block in json.loads(line)["message"]["content"]
    )
    assert text.startswith(error) and is_error
    assert text.endswith("gemini refused this file without asking. If it is outside the session's "
                         "folders, add its folder with --add-dir (add_dirs or "
                         "additionalDirectories in the SDKs).")  # fmt: skip
