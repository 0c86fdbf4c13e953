"""Complete profiles: the translated events, the end of a stream, and rejected profiles with the
line of the error.
"""

import json
import re
import tomllib

import pytest
from profile_builder import (
    HEAD,
    LAUNCH,
    build_profile_adapter,
    create_translation,
    find_result_line,
    summarize_events,
    translate_events,
)
from stream_lines import parse_lines, summarize_lines
from sweeps import loop_over_rows
from turn_stage import Stage

from shim.adapters import BUNDLED_PROFILES, VENDORS, get_adapter
from shim.core.adapter.translator import Translator
from shim.core.errors import FrontendError
from shim.core.turn.outcome import ChildExit
from shim.profiles.check.config_node import ConfigSource, find_key_line
from shim.profiles.load.adapter import build_adapter, merge_tables
from shim.profiles.load.profile_file import ProfileFile, load_bundled_profile
from shim.profiles.load.profile_file import load_profile_adapter as described
from shim.profiles.profile import ProfileTranslator

SAY = '[[event]]\nmatch = { type = "say" }\nemit = "text"\ntext = "words"\nblock = "id"\n'
FINAL_TEXT = '[[event]]\nmatch = { type = "whole" }\nemit = "text"\ntext = "words"\nblock = "id"\nmode = "final"\n'
USAGE = """
[[event]]
match = { type = "usage" }
emit = "usage"
stop_reason = { path = "why", map = { done = "end_turn", tools = "tool_use" } }
usage = { input_tokens = "in", output_tokens = "out", cost_usd = "cost" }
"""
END = """
[[event]]
match = { type = "end" }
emit = "result"
is_error = "bad"
error = "why"
code = "code"
text = "text"
duration_ms = "ms"
limit = "limit"
interrupted = "stopped"
usage = { input_tokens = "in", output_tokens = "out" }
"""
DONE = {"type": "end"}


def stream(**fields):
    return "[stream]\n" + "".join(f"{key} = {value}\n" for key, value in fields.items())


SYNTHESIZED = stream(usage='"request"', end='{ result = "synthesize", ok_exit = [0, 7] }')


# -- text ------------------------------------------------------------------------------------------


def test_deltas_are_joined_into_a_single_block():
    profile = stream(text='"delta"') + SAY + END
    assert (
        summarize_events(
            profile, *({"type": "say", "words": text} for text in ("Hel", "lo.")), DONE
        )[1]
        == "text:Hello."
    )


def test_another_block_id_starts_a_new_assistant_event():
    profile = stream(text='"delta"') + SAY + END
    events = [{"type": "say", "words": str(number), "id": number // 2} for number in range(4)]
    assert summarize_events(profile, *events, DONE)[1:3] == ["text:01", "text:23"]


def test_cumulative_text_emits_only_the_new_text_as_deltas():
    profile = stream(text='"cumulative"') + SAY + END
    events = [{"type": "say", "words": "Hello."[:end], "id": "b"} for end in (2, 4, 6)]
    summary = summarize_events(profile, *events, DONE, partial=True)
    assert [entry for entry in summary if entry.startswith("+")] == ["+He", "+ll", "+o."]


def test_final_text_after_its_deltas_is_not_repeated():
    profile = stream(text='"delta"') + SAY + FINAL_TEXT + END
    events = [
        {"type": "say", "words": "Hel", "id": "b"},
        {"type": "whole", "words": "Hello.", "id": "b"},
    ]
    assert summarize_events(profile, *events, DONE)[1:] == ["text:Hello.", "end:success Hello."]


NAMELESS = stream(text='"delta"') + (SAY + FINAL_TEXT).replace('block = "id"\n', "") + END


@loop_over_rows(
    ("events", "expected"),
    [
        (["say Hel", "say lo.", "whole Hello."], ["text:Hello."]),
        (["say Hel", "whole Hello."], ["text:Hello."]),
        (["whole Hello."], ["text:Hello."]),
        (["say Hi.", "whole Hi.", "say Hi.", "whole Hi."], ["text:Hi.", "text:Hi."]),
        (["whole Hi.", "whole Hi."], ["text:Hi.", "text:Hi."]),
    ],
)
def test_final_text_without_a_block_id_is_matched_to_its_deltas(events, expected):
    event_dicts = [
        dict(zip(("type", "words"), event.split(" ", 1), strict=True)) for event in events
    ]
    assert summarize_events(NAMELESS, *event_dicts, DONE)[1:-1] == expected


def test_final_text_without_deltas_is_emitted():
    profile = stream(text='"delta"') + SAY + FINAL_TEXT + END
    assert (
        summarize_events(profile, {"type": "whole", "words": "Hello.", "id": "b"}, DONE)[1]
        == "text:Hello."
    )


# -- usage -----------------------------------------------------------------------------------------


def numbers(lines):
    result = find_result_line(lines)
    return (
        result["usage"]["input_tokens"],
        result["usage"]["output_tokens"],
        result["total_cost_usd"],
    )


TWO = [
    {"type": "say", "words": "a"},
    {"type": "usage", "in": 10, "out": 1, "cost": 0.5, "why": "tools"},
    {"type": "say", "words": "b"},
    {"type": "usage", "in": 30, "out": 4, "cost": 0.75, "why": "done"},
]


@pytest.mark.parametrize(
    ("means", "expected"),
    [
        ("request", (40, 5, 1.25)),
        ("run_total", (30, 4, 0.75)),
        ("thread_total", (30, 4, 0.75)),
        ("none", (30, 4, 0.75)),
    ],
)
def test_usage_mode_determines_the_total_usage(means, expected):
    profile = stream(usage=f'"{means}"', end='{ result = "synthesize" }') + SAY + USAGE + END
    assert numbers(translate_events(build_profile_adapter(profile), *TWO)) == expected
    assert numbers(translate_events(build_profile_adapter(profile), *TWO, DONE)) == expected


NAMED = '[[event]]\nmatch = { type = "who" }\nemit = "session"\nsession_id = "id"\n'
WHO = {"type": "who", "id": "thread-1"}


def two_turns(vendor, first, second, *, forgotten=False):
    """Return the results of two children of one conversation. With `forgotten`, the second child
    starts a new vendor session.
    """
    results, before = [], None
    for events in (first, second):
        if before is not None and forgotten:
            before.turn.conversation.vendor_session_id = None
        before = create_translation(vendor, previous=before)
        data = "".join(json.dumps(event) + "\n" for event in events).encode()
        results.append(
            find_result_line(parse_lines(before.feed(data)[0] + before.close(ChildExit(code=0))[0]))
        )
    return results


THREAD = stream(usage='"thread_total"') + NAMED + SAY + USAGE + END + 'cost_usd = "cost"\n'


def thread(input_tokens, out, cost=0.0):
    return [
        WHO,
        {"type": "say", "words": "a"},
        DONE | {"in": input_tokens, "out": out, "cost": cost},
    ]


def get_usage_numbers(result):
    return (
        result["usage"]["input_tokens"],
        result["usage"]["output_tokens"],
        result["total_cost_usd"],
    )


def test_thread_total_excludes_the_usage_of_earlier_turns():
    results = two_turns(build_profile_adapter(THREAD), thread(100, 10, 0.5), thread(160, 30, 0.75))
    assert [get_usage_numbers(result) for result in results] == [(100, 10, 0.5), (60, 20, 0.75)], (
        "the cost is that of the session"
    )


def test_thread_total_starts_at_zero_if_the_thread_id_was_reset():
    results = two_turns(
        build_profile_adapter(THREAD), thread(100, 10), thread(60, 5), forgotten=True
    )
    assert [get_usage_numbers(result)[:2] for result in results] == [(100, 10), (60, 5)]


@pytest.mark.parametrize("end", [DONE | {"bad": True}, DONE | {"stopped": True}, None])
def test_thread_total_excludes_earlier_turns_for_every_kind_of_end(end):
    error = '[[event]]\nmatch = { type = "error" }\nemit = "error"\nerror = "why"\n'
    vendor = build_profile_adapter(
        stream(usage='"thread_total"')
        + NAMED
        + SAY
        + USAGE
        + error
        + END.replace("usage =", "# usage =")
    )
    used = {"type": "usage", "in": 160, "out": 30}
    second = [
        WHO,
        {"type": "say", "words": "b"},
        used,
        {"type": "error", "why": "it broke"},
        *([end] if end else []),
    ]
    first = [WHO, {"type": "say", "words": "a"}, used | {"in": 100, "out": 10}, DONE]
    assert [get_usage_numbers(result)[:2] for result in two_turns(vendor, first, second)] == [
        (100, 10),
        (60, 20),
    ]


@loop_over_rows(("means", "expected"), [("request", (40, 5)), ("run_total", (30, 4))])
@loop_over_rows("options", [{}, {"code": 3}, {"code": None}])
def test_usage_of_a_truncated_run_is_counted(means, expected, options):
    lines = translate_events(
        build_profile_adapter(stream(usage=f'"{means}"') + SAY + USAGE + END), *TWO, **options
    )
    assert numbers(lines)[:2] == expected and find_result_line(lines)["is_error"]


def test_thread_total_of_another_thread_id_is_counted_in_full():
    who = '[[event]]\nmatch = { type = "who" }\nemit = "session"\nsession_id = "id"\n'
    vendor = build_profile_adapter(stream(usage='"thread_total"') + who + SAY + END)
    first = create_translation(vendor)
    first.feed(
        b'{"type":"who","id":"one"}\n{"type":"say","words":"a"}\n{"type":"end","in":100,"out":10}\n'
    )
    first.close(ChildExit(code=0))
    second = create_translation(vendor, previous=first)
    data = second.feed(
        b'{"type":"who","id":"two"}\n{"type":"say","words":"b"}\n{"type":"end","in":160,"out":30}\n'
    )[0]
    assert numbers(parse_lines(data + second.close(ChildExit(code=0))[0]))[:2] == (160, 30)


def test_usage_after_the_last_text_is_counted():
    profile = stream(usage='"run_total"') + SAY + USAGE + END.replace("usage =", "# usage =")
    lines = translate_events(
        build_profile_adapter(profile),
        {"type": "say", "words": "a"},
        {"type": "usage", "in": 9, "out": 2},
        DONE,
    )
    assert numbers(lines)[:2] == (9, 2)


def test_late_usage_of_a_message_is_not_assigned_to_the_next_message():
    stage = Stage(partial=True)
    stage.turn.add_block("a")
    stage.turn.add_tool_call("c", "Bash", {})
    stage.turn.add_tool_result("c", "x")
    stage.turn.end_message({"input_tokens": 10, "output_tokens": 1})
    stage.turn.add_block("b")
    stage.turn.add_tool_call("d", "Bash", {})
    stage.turn.add_tool_result("d", "y")
    stage.turn.record_turn_end()
    stage.turn.close(ChildExit(code=0), "")
    lines = stage.take_lines()
    ends = [line["event"] for line in lines if line.get("event", {}).get("type") == "message_delta"]
    assert [end["usage"]["input_tokens"] for end in ends] == [0, 0]
    assert find_result_line(lines)["usage"]["input_tokens"] == 10


# -- the end ---------------------------------------------------------------------------------------


def cause(profile, *events, **options):
    result = find_result_line(translate_events(build_profile_adapter(profile), *events, **options))
    return result["shim"]["cause"], result.get("result") or (result.get("errors") or [""])[0]


def test_result_event_sets_the_duration_but_not_the_streamed_text():
    lines = translate_events(
        build_profile_adapter(SAY + END),
        {"type": "say", "words": "a"},
        DONE | {"ms": 12, "text": "ignored"},
    )
    assert (find_result_line(lines)["duration_ms"], find_result_line(lines)["result"]) == (12, "a")


@loop_over_rows(
    ("event", "expected"),
    [
        ({"bad": True, "why": "it broke"}, ("vendor_error", "it broke")),
        ({"bad": True}, ("vendor_error", "error")),
        (
            {"bad": True, "why": "no", "code": 429},
            ("rate_limit", "API Error: Request rejected (429) · no"),
        ),
        (
            {"bad": True, "why": "enough", "limit": "turns"},
            ("limit", "Reached maximum number of turns"),
        ),
        ({"stopped": True}, ("interrupted", "[Request interrupted by user]")),
    ],
)
def test_failed_result_event_determines_cause_and_message(event, expected):
    assert cause(SAY + END, {"type": "say", "words": "a"}, DONE | event) == expected


def test_exit_status_0_without_a_result_event_is_truncated():
    assert cause(SAY + END, {"type": "say", "words": "a"})[0] == "truncated"


REPLY = [{"type": "say", "words": "a"}, {"type": "usage", "in": 1, "out": 1, "why": "done"}]


@loop_over_rows(
    ("events", "options", "expected"),
    [
        (REPLY, {}, "clean"),
        (REPLY, {"code": 7}, "clean"),
        (REPLY, {"code": 1}, "exit_code"),
        (REPLY[:1], {}, "truncated"),
        (TWO[:2], {}, "truncated"),
        ([], {}, "truncated"),
        (["help text", "more of it"], {}, "protocol"),
    ],
)
def test_result_is_synthesized_after_a_complete_message_and_an_ok_exit_status(
    events, options, expected
):
    assert cause(SYNTHESIZED + SAY + USAGE, *events, **options)[0] == expected


def test_no_result_is_synthesized_for_a_child_without_an_exit_status():
    assert cause(SYNTHESIZED + SAY + USAGE, *REPLY, code=None)[0] == "truncated"


STDERR = """
[[stderr]]
regex = 'resume with (?P<session_id>[0-9a-f-]{36})'
emit = "session"

[[stderr]]
regex = 'fatal: (?P<error>.*)'
emit = "error"
cause = "refused"
"""
SESSION = "0a1b2c3d-1111-4222-8333-444455556666"


def test_session_id_is_read_from_stderr():
    vendor = build_profile_adapter(SAY + END + STDERR)
    translation = create_translation(vendor)
    translation.feed(b'{"type":"say","words":"a"}\n{"type":"end"}\n')
    translation.close(ChildExit(code=0), f"noise\nresume with {SESSION}\n")
    assert translation.turn.conversation.vendor_session_id == SESSION
    assert not translation.turn.is_error


def test_session_id_is_read_from_a_stderr_line_that_matches_noise():
    """kimi prints its session id in such a line."""
    vendor = build_profile_adapter(stream(stderr_noise='["resume with"]') + SAY + END + STDERR)
    translation = create_translation(vendor)
    output = translation.feed(b'{"type":"say","words":"a"}\n')[0]
    output += translation.close(ChildExit(code=1), f"resume with {SESSION}\nfatal: no trust\n")[0]
    assert translation.turn.conversation.vendor_session_id == SESSION
    assert find_result_line(parse_lines(output))["errors"] == ["no trust"]


def test_stderr_rule_sets_cause_and_error():
    assert cause(SAY + END + STDERR, code=3, stderr="noise\nfatal: no trust\n") == (
        "refused",
        "no trust",
    )


@pytest.mark.parametrize(("line", "error"), [("fatal", "fatal"), ("fatal: no trust", "no trust")])
def test_stderr_error_without_the_group_is_the_matched_text(line, error):
    rule = """[[stderr]]
regex = '^fatal(?:: (?P<error>.*))?'
emit = "error"
cause = "refused"
"""
    assert cause(SAY + END + rule, code=3, stderr=f"noise\n{line}\n") == ("refused", error)


def test_stderr_error_is_ignored_after_a_successful_result_event():
    assert cause(SAY + END + STDERR, {"type": "say", "words": "a"}, DONE, stderr="fatal: no\n") == (
        "clean",
        "a",
    )


def test_stderr_noise_is_excluded_from_the_error():
    profile = stream(stderr_noise='["warning:"]') + SAY + END
    text = cause(profile, code=3, stderr="warning: slow\nbroken pipe dream\n")[1]
    assert "broken pipe dream" in text and "warning" not in text


EXITS = '[exit_codes]\n53 = "limit"\n55 = "refused"\n130 = "interrupted"\n'


@loop_over_rows(
    ("code", "stderr", "expected"),
    [
        (53, "", ("limit", "own exited with code 53")),
        (55, "not in a trusted folder", ("refused", "not in a trusted folder")),
        (130, "", ("interrupted", "[Request interrupted by user]")),
        (55, "401 unauthorized: invalid api key", ("auth", None)),
        (9, "boom", ("exit_code", "own exited with code 9 before it finished: boom")),
    ],
)
def test_exit_code_table_determines_the_cause(code, stderr, expected):
    outcome = cause(SAY + END + EXITS, {"type": "say", "words": "a"}, code=code, stderr=stderr)
    assert outcome[0] == expected[0] and expected[1] in (outcome[1], None)


def test_notice_is_the_error_if_no_other_error_exists():
    notice = '[[event]]\nmatch = { type = "note" }\nemit = "notice"\ntext = "words"\n'
    assert (
        cause(SAY + END + notice, {"type": "note", "words": "the network is down"}, code=1)[1]
        == "the network is down"
    )


def test_first_error_takes_precedence_with_first_wins():
    error = '[[event]]\nmatch = { type = "error" }\nemit = "error"\nerror = "words"\nfirst_wins = true\n'
    events = [{"type": "error", "words": "401 nobody"}, {"type": "error", "words": "run failed"}]
    assert cause(SAY + END + error, *events, code=1)[0] == "auth"
    assert (
        cause(SAY + END + error.replace("first_wins = true", ""), *events, code=1)[0]
        == "vendor_error"
    )


def test_retry_and_compaction_become_system_events_and_reply_sets_the_model():
    profile = SAY + END
    profile += '[[event]]\nmatch = { type = "again" }\nemit = "retry"\nattempt = "n"\nmax = "of"\ntext = "why"\n'
    profile += '[[event]]\nmatch = { type = "short" }\nemit = "compacted"\ntokens = "n"\n'
    profile += '[[event]]\nmatch = { type = "model" }\nemit = "reply"\nmodel = "m"\n'
    events = [
        {"type": "model", "m": "m2"},
        {"type": "again", "n": 1, "of": 3, "why": "429"},
        {"type": "short", "n": 9},
    ]
    lines = translate_events(
        build_profile_adapter(profile), *events, {"type": "say", "words": "a"}, DONE
    )
    assert summarize_lines(lines) == [
        "init",
        "system:api_retry",
        "system:compact_boundary",
        "text:a",
        "end:success a",
    ]
    assert lines[3]["message"]["model"] == "m2"


def test_retracted_message_is_not_repeated():
    profile = SAY + END + '[[event]]\nmatch = { type = "cut" }\nemit = "retract"\n'
    events = [{"type": "say", "words": "Hello"}, {"type": "cut"}, {"type": "say", "words": "Hello"}]
    assert summarize_events(profile, *events, DONE) == ["init", "text:Hello", "end:success Hello"]
    assert build_profile_adapter(profile).abilities.can_repeat_reply


# -- adapters --------------------------------------------------------------------------------------


class Adapter(ProfileTranslator):
    """An adapter that handles one event type, and the exit of the child."""

    def on_event(self, event):
        if event.get("type") == "odd":
            self.turn.add_block("odd")
            return True
        return False

    def on_exit(self, child_exit, stderr):
        if "done" in stderr:
            self.turn.record_turn_end()


def test_events_that_the_translator_ignores_are_matched_by_the_rules():
    vendor = build_profile_adapter(SAY + END, Adapter)
    lines = translate_events(
        vendor, {"type": "odd"}, {"type": "say", "words": "even"}, {"type": "new"}, stderr="done"
    )
    assert summarize_lines(lines) == ["init", "text:odd", "text:even", "end:success even"]
    assert find_result_line(lines)["shim"]["unknown_events"] == {"new": 1}


def test_profile_translator_must_subclass_profile_translator():
    with pytest.raises(FrontendError, match=r"ProfileTranslator"):
        build_profile_adapter(SAY + END, Translator)


def test_merge_tables_merges_nested_tables_and_replaces_lists():
    base = {"a": {"b": 1, "c": [1, 2]}, "d": 1}
    assert merge_tables(base, {"a": {"c": [3]}, "e": 2}) == {
        "a": {"b": 1, "c": [3]},
        "d": 1,
        "e": 2,
    }
    assert base["a"] == {"b": 1, "c": [1, 2]}


# -- rejected profiles -----------------------------------------------------------------------------

GOOD = (
    HEAD
    + LAUNCH
    + 'argv = ["--json", "{prompt}"]\nprompt = { via = "arg" }\n\n[launch.permission_args]\ndefault = []\n\n'
    + '[stream]\ntext = "final"\n\n'
    + SAY
    + "\n"
    + END
    + '\n[exit_codes]\n1 = "refused"\n\n[tools.sh]\nname = "Bash"\nargs = { command = "cmd" }\n'
)


def test_base_profile_of_the_error_cases_is_valid():
    assert build_profile_adapter(GOOD).modes == {"default": ()}


@loop_over_rows(
    ("old", "new", "key", "allowed"),
    [
        ("schema = 1", "schema = 2", "schema", "must be 1"),
        ('id = "own"', 'id = "other"', "id", "must be 'own', the name of the profile's file"),
        ('id = "own"', 'id = "own"\nname = "x"', "name", "the allowed keys are: schema, id"),
        ('command = ["own"]', 'command = "own"', "launch.command", "a list of at most"),
        ('command = ["own"]', "command = []", "launch", "a table with `command`"),
        (
            'command = ["own"]',
            'command = ["./own"]',
            "launch.command[0]",
            "the name of a program on PATH",
        ),
        (
            'command = ["own"]',
            'command = ["/bin/sh"]',
            "launch.command[0]",
            "the name of a program on PATH",
        ),
        ('command = ["own"]', 'command = ["own", 3]', "launch.command[1]", "a string"),
        (
            'command = ["own"]',
            'command = ["own"]\nshell = true',
            "launch.shell",
            "the allowed keys are: command, programs",
        ),
        ('"--json", ', '"--json", "{who}", ', "launch.argv[1]", "placeholders are among {prompt}"),
        (
            '"--json", ',
            '"--json", { when = "moon", args = [] }, ',
            "launch.argv[1].when",
            "one of permission_args",
        ),
        (
            '"--json", ',
            '"--json", { when = "rules" }, ',
            "launch.argv",
            "if and only if `rules` is set",
        ),
        (
            'command = ["own"]',
            'command = ["own"]\nrules = "codex_rules"',
            "launch.argv",
            "if and only if `rules` is set",
        ),
        (
            'command = ["own"]',
            'command = ["own"]\nrules = "mine"',
            "launch.rules",
            "one of codex_rules",
        ),
        (
            '"--json", ',
            '"--json", { args = [] }, ',
            "launch.argv[1]",
            "with one of when, unless, each",
        ),
        (', "{prompt}"]', "]", "launch.argv", "a list that contains {prompt}"),
        ('via = "arg"', 'via = "fax"', "launch.prompt.via", "one of arg, stdin, file"),
        (
            'via = "arg"',
            'via = "arg", dash_guard = "equals"',
            "launch.argv[1]",
            "--prompt={prompt}",
        ),
        (
            "default = []",
            "always = []",
            "launch.permission_args.always",
            "the allowed keys are: default",
        ),
        ("default = []", "default = 3", "launch.permission_args.default", "a list of at most"),
        ('text = "final"', 'text = "all"', "stream.text", "one of delta, cumulative, final"),
        ('text = "final"', 'speed = "final"', "stream.speed", "the allowed keys are: text, usage"),
        ('emit = "text"', 'emit = "texts"', "event[0].emit", "one of session, text"),
        (
            'emit = "text"',
            'emit = "tool_use"',
            "event[0].text",
            "the allowed keys are: match, foreach",
        ),
        ('text = "words"', 'txt = "words"', "event[0].txt", "the allowed keys are: match, foreach"),
        ('text = "words"\n', "", "event[0]", "a rule with `text`, which text needs"),
        ('text = "words"', 'text = "a..b"', "event[0].text", "a path"),
        (
            'text = "words"',
            'text = { path = "a", regex = "(" }',
            "event[0].text.regex",
            "a regular expression",
        ),
        (
            'match = { type = "say" }',
            "match = { type = 3 }",
            "event[0].match.type",
            "a string, a list of strings",
        ),
        (
            'match = { type = "say" }',
            'match = { a = { is = "x" } }',
            "event[0].match.a.is",
            "the allowed keys are: exists, kind",
        ),
        (
            'match = { type = "say" }',
            'match = { a = { kind = "text" } }',
            "event[0].match.a.kind",
            "one of string, number",
        ),
        (
            'match = { type = "say" }',
            "item_match = { a = 1 }",
            "event[0].item_match",
            "in a rule with `foreach`",
        ),
        (
            'input_tokens = "in"',
            'input = "in"',
            "event[1].usage.input",
            "the allowed keys are: input_tokens",
        ),
        ('1 = "refused"', '1 = "bad"', "exit_codes.1", "one of vendor_error"),
        ('1 = "refused"', '999 = "refused"', "exit_codes.999", "an exit code from 0 to 255"),
        ('name = "Bash"', "name = 3", "tools.sh.name", "a string"),
        ('command = "cmd"', "command = 3", "tools.sh.args.command", "a path, or a table"),
    ],
)
def test_profile_error_names_file_line_key_and_allowed_values(old, new, key, allowed):
    assert old in GOOD
    text = GOOD.replace(old, new, 1)
    with pytest.raises(FrontendError) as caught:
        build_adapter("own", tomllib.loads(text), ConfigSource("own.toml", lambda: text))
    message = f"{caught.value} {caught.value.hint}"
    wrong = re.match(r"([^ ]+):(\d+): (.+?) is .*; it must be ", message)
    unknown = re.match(r"unknown key `(.+?)` in (.+) line (\d+)", message)
    assert (wrong or unknown) and allowed in message, message
    file, line, reported_key = wrong.groups() if wrong else (unknown[2], unknown[3], unknown[1])
    assert reported_key == key
    key_name = key.partition("[")[0] if key.endswith("]") else key.rpartition(".")[2]
    assert file == "own.toml" and key_name.rpartition(".")[2] in text.splitlines()[int(line) - 1], (
        message
    )


def test_long_value_is_truncated_and_escaped_in_the_error():
    with pytest.raises(FrontendError) as caught:
        build_profile_adapter(HEAD + 'listed = ["' + "x\\u001b[2J" * 1000 + '", 3]\n' + SAY)
    assert len(str(caught.value)) < 300 and "\x1b" not in str(caught.value)


def test_line_of_a_key_is_resolved_through_headers_and_arrays():
    text = "a = 1\n\n[[event]]\nx = 1\n\n[[event]]\ny = 1\n"
    text += "[event.usage]\nz = { q = 2,\n  r = 3 }\n\n[tools.'a b']\nname = 1\n"
    lines = {
        ("a",): 1,
        ("event", 0, "x"): 4,
        ("event", 1, "y"): 7,
        ("event", 1, "usage", "z", "q"): 9,
        ("event", 1, "usage", "z", "r"): 10,
        ("tools", "a b", "name"): 13,
        ("event", 1, "nothing"): 6,
        ("nothing",): 1,
        (): 1,
    }
    assert {keys: find_key_line(text, keys) for keys in lines} == lines


# -- bundled profiles ------------------------------------------------------------------------------

BUNDLED = [name for name, file_name in VENDORS.items() if file_name.endswith(".toml")]


@loop_over_rows("name", BUNDLED)
def test_bundled_profile_passes_user_profile_validation(name):
    """Bundled profiles are not validated when they are loaded, so this test validates them."""

    def read(file_name):
        file = load_bundled_profile(file_name)
        return ProfileFile(
            file.table, ConfigSource(file.source.path, file.source.read_text), file.load_module
        )

    assert described(name, f"{name}.toml", read, BUNDLED_PROFILES).name == name


@loop_over_rows("name", BUNDLED)
def test_bundled_profile_has_login_hint_default_mode_and_listed_tools(name):
    vendor = get_adapter(name)
    assert vendor.login_hint, "who is not logged in is told how to"
    # amp lists its tools itself.
    assert "default" in vendor.modes and (vendor.listed_tools or name == "amp")
    assert issubclass(vendor.translator_class, ProfileTranslator)
