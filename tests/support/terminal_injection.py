"""Escape sequences of a hostile vendor, in all texts of a session."""

import re
from typing import Any

from cast_builder import Moment, build_recording
from recording_renderer import encode_line
from story_builder import (
    build_assistant_line,
    build_delta,
    build_message_start,
    build_permission_answer,
    build_permission_request,
    build_result_line,
    build_text_block,
    build_tool_result_line,
    build_tool_use,
    build_user_line,
)

# Escape sequences, clipboard access, a link, eight-bit controls, a change of direction, a carriage
# return.
EVIL = "\x1b[31m\x1b]52;c;eA==\x07\x1b]8;;http://evil.example\x1b\\x\x9b2J\u202eb\u2066\r\x08\x7f"
MARKUP = "[red]m[/red] [link=http://evil.example]l[/link] [/]"
TRICKS = (
    "[https://good.example](https://evil.example) ![p](https://track.example/p.png) <script>a</script> "
    "<https://auto.example> &#27;[31m &#x202e; **b**\n\n<div>html</div>\n\n````\n```\ninside\n````\n\nafter\n"
)
BAD = EVIL + MARKUP
VISIBLE_FRAGMENTS = (
    "[red]m[/red]",
    "[link=http://evil.example]l[/link]",
    "\\x1b]52;c;eA==",
    "\\x9b2J",
    "\\u202e",
)

SGR = r"\x1b\[[0-9;]*m"
# The footer hides the cursor, moves up, erases rows, and moves to a column.
LIVE = r"\x1b\[\?25[lh]|\r(\x1b\[\d+A)?(\x1b\[J)?|\x1b\[\d+C"


def find_control_characters(drawn: str, *, live: bool = False) -> list[str]:
    """Return the control sequences in a drawing, except rich's own colors and, with `live`, its
    spinner.
    """
    remaining = re.sub(f"{SGR}|{LIVE}" if live else SGR, "", drawn)
    return re.findall(
        "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]", remaining
    )


def build_hostile_events() -> list[dict[str, Any]]:
    """Build a turn in which every string is hostile."""
    shim = {"vendor": BAD, "unattended": True}
    wrong = build_assistant_line(build_text_block(BAD), error=BAD, message_id="w")
    wrong["message"]["model"] = "<synthetic>"
    todos = [{"content": BAD, "status": BAD}]
    edit = {"file_path": BAD, "old_string": BAD, "new_string": BAD + "!"}
    patch = {
        "oldStart": 1,
        "oldLines": 1,
        "newStart": 1,
        "newLines": 1,
        "lines": ["-" + BAD, "+" + BAD],
    }
    return [
        {
            "type": "system",
            "subtype": "init",
            "session_id": BAD,
            "model": BAD,
            "cwd": BAD,
            "shim": shim,
        },
        build_assistant_line({"type": "thinking", "thinking": BAD + "\n" + BAD}),
        build_message_start("t"),
        build_delta(BAD + "\n\n"),
        build_delta(TRICKS),
        build_assistant_line(build_text_block(BAD + "\n\n" + TRICKS), message_id="t"),
        build_assistant_line(build_tool_use("a", BAD, **{BAD: BAD, "command": BAD})),
        build_permission_request("q" + BAD, "a", BAD, **{BAD: BAD}),
        build_tool_result_line("a", [{"type": "text", "text": BAD}, {"type": BAD}], failed=True),
        build_assistant_line(
            build_tool_use("e", "Edit", **edit),
            build_tool_use("f", "Edit", **edit),
            build_tool_use("t", "TodoWrite", todos=todos),
        ),
        build_tool_result_line("e", BAD, extra={"structuredPatch": [patch]}),
        build_tool_result_line("f", BAD, failed=True),
        build_assistant_line(build_tool_use("n", "Task", prompt=BAD), build_tool_use("o", BAD)),
        build_assistant_line(
            build_text_block(BAD + TRICKS),
            build_tool_use("m", BAD, **{BAD: [BAD]}),
            parent="n",
            message_id="u",
        ),
        build_user_line(BAD),
        {"type": "system", "subtype": BAD, BAD: BAD},
        {
            "type": "system",
            "subtype": "api_retry",
            "attempt": BAD,
            "max_retries": BAD,
            "error": BAD,
        },
        {"type": "system", "subtype": "informational", "content": BAD},
        {"type": "system", "subtype": "task_started", "description": BAD},
        {"type": "rate_limit_event", "rate_limit_info": {"status": BAD}},
        build_tool_result_line("nobody's", BAD),
        wrong,
        build_result_line(
            is_error=True,
            subtype=BAD,
            errors=[BAD],
            shim={"vendor": BAD, "cause": BAD, "repairs": {BAD: 1}, "unknown_events": {BAD: 2}},
        ),
    ]


def build_hostile_recording() -> bytes:
    """Build a recording of such a turn, with a hostile header, a hostile prompt and hostile
    answers.
    """
    argv = ["--output-format", "stream-json", "--input-format", "stream-json"]
    denied = build_permission_answer("q" + BAD, "deny")
    denied["response"]["response"]["message"] = BAD
    moments: list[Moment] = [
        (0.1, "i", encode_line(build_user_line(BAD + TRICKS))),
        (0.2, "s", {"child": BAD, "argv": [BAD]}),
        (0.3, "I", BAD.encode() + b"\n"),
        (0.4, "o", BAD.encode() + b"\xff\xfe\n"),
        (0.5, "e", BAD.encode() + b"\n"),
        (0.6, "n", {"kind": BAD, BAD: BAD}),
    ]
    moments += [
        (number, "O", encode_line(event)) for number, event in enumerate(build_hostile_events(), 1)
    ]
    moments.insert(14, (8.5, "i", encode_line(denied)))
    moments.append(
        (
            90.0,
            "i",
            encode_line(
                {"type": "control_request", "request": {"subtype": "set_model", "model": BAD}}
            ),
        )
    )
    header = dict.fromkeys(("started", "shim", "vendor_version", "cwd", "platform"), BAD)
    return build_recording(moments, argv=argv, vendor=BAD, **header)
