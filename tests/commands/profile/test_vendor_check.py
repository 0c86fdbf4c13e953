"""`shim vendor check`: the problems of a profile, with the output of its program."""

import json

import pytest
from fixture_cases import FIXTURES, ROOT
from profile_builder import HEAD, LAUNCH

from tests.program.test_threats import ESCAPES, visible

RULES = """
[[event]]
match = { type = "hello" }
emit = "session"
session_id = "id"
continue = true

[[event]]
match = { type = "hello" }
emit = "ignore"

[[event]]
match = { type = "say" }
emit = "text"
text = "words"

[[event]]
match = { type = "aside" }
emit = "thinking"
text = "thought"

[[event]]
match = { type = "run" }
emit = "tool_use"
id = "n"
name = "tool"
input = { object = { command = "cmd" } }

[[event]]
match = { type = "ran" }
emit = "tool_result"
id = "n"
content = "out"

[[event]]
match = { type = "bye" }
emit = "result"

[tools]
shell = { name = "Bash" }
"""
PROFILE = HEAD + LAUNCH + RULES
HELLO = {"type": "hello", "id": "s1"}
RUN, RAN = (
    {"type": "run", "n": 1, "tool": "shell", "cmd": "ls"},
    {"type": "ran", "n": 1, "out": "a"},
)
SAY, ASIDE, BYE = (
    {"type": "say", "words": "Hi."},
    {"type": "aside", "thought": "Hm."},
    {"type": "bye"},
)
COMPLETE_RUN = (HELLO, ASIDE, RUN, RAN, SAY, BYE)
SECRET = "sk-ant-api03-" + "abcdefgh0123456789" * 5  # not a real key


@pytest.fixture
def check_profile(shim, local_box):
    """Return a function that checks a profile with some runs. It returns the exit status and the
    report.
    """

    def check(*runs, profile=PROFILE, args=("--json",)):
        profile_path = local_box.path / "own.toml"
        profile_path.write_text(profile, encoding="utf-8")
        files = []
        for number, events in enumerate(runs):
            path = local_box.path / f"run{number}.ndjson"
            lines = [event if isinstance(event, str) else json.dumps(event) for event in events]
            path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
            files.append(str(path))
        status, stdout, complaint = shim("vendor", "check", str(profile_path), *files, *args)
        assert complaint == ""
        return status, json.loads(stdout) if "--json" in args else stdout.decode()

    return check


def count_findings(report, sort, within="findings"):
    return {
        finding["name"]: finding["times"] for finding in report[within] if finding["sort"] == sort
    }


def test_complete_profile_has_no_findings(check_profile):
    status, report = check_profile(COMPLETE_RUN)
    assert (status, report["findings"], report["notes"]) == (0, [], [])
    assert (report["vendor"], report["runs"], report["lines"]) == ("own", 1, 6)
    assert report["verbs"] == {
        "ended": 1, "say": 2, "settle": 1, "started": 1, "tool_result": 1, "tool_use": 1
    }  # fmt: skip


@pytest.mark.parametrize(
    ("events", "sort", "name"),
    [
        ((HELLO, {"type": "dance", "steps": 3}, BYE), "no_rule", "dance"),
        ((HELLO, {"steps": 3}, BYE), "no_rule", "untyped"),
        ((HELLO, "Traceback: no", BYE), "not_json", "not JSON"),
        ((HELLO, RUN, BYE), "open_call", "Bash"),
        ((HELLO, RAN, BYE), "orphan_result", "orphan tool result"),
        ((HELLO, RUN | {"tool": "saw"}, RAN, BYE), "tool", "saw"),
        ((HELLO, {"type": "say"}, BYE), "empty_text", "own.toml:16 text"),
        ((SAY, BYE), "no_session", "run0.ndjson"),
        ((HELLO, SAY), "no_end", "run0.ndjson"),
    ],
)
def test_mismatch_is_a_finding_and_exits_with_status_1(check_profile, events, sort, name):
    status, report = check_profile(events)
    assert status == 1
    ((finding_name, times),) = count_findings(report, sort).items()
    assert (finding_name.rpartition("/")[2], times) == (name, 1)
    assert {finding["sort"] for finding in report["findings"]} == {sort}


def test_profile_without_a_session_rule_has_a_note_and_no_finding(shim):
    folder = ROOT / "tests" / "profiles"
    status, stdout, _ = shim(
        "vendor",
        "check",
        str(folder / "grok.toml"),
        str(folder / "grok" / "text" / "vendor.ndjson"),
        "--json",
    )
    report = json.loads(stdout)
    assert (status, report["findings"]) == (0, [])
    assert "no rule reports a session id, so the vendor's sessions cannot be resumed" in {
        note["name"] for note in report["notes"]
    }


def test_unread_fields_and_unused_rules_are_notes(check_profile):
    status, report = check_profile((HELLO | {"at": 5}, SAY | {"extra": {"deep": [SECRET]}}, BYE))
    assert status == 0
    assert count_findings(report, "unread_field", "notes") == {
        "hello: at": 1,
        "say: extra.deep[*]": 1,
    }
    unused = [
        note["name"].rpartition("/")[2] for note in report["notes"] if note["sort"] == "unused_rule"
    ]
    assert unused == ["own.toml:21 thinking", "own.toml:26 tool_use", "own.toml:33 tool_result"]
    assert SECRET not in json.dumps(report)


def test_findings_of_several_runs_are_summed(check_profile):
    status, report = check_profile(
        (HELLO, {"type": "dance"}, BYE), (HELLO, {"type": "dance"}), COMPLETE_RUN
    )
    assert (status, report["runs"], report["lines"]) == (1, 3, 11)
    assert count_findings(report, "no_rule") == {"dance": 2}
    (dance,) = (finding for finding in report["findings"] if finding["sort"] == "no_rule")
    assert dance["place"].endswith("run0.ndjson:2")
    assert dance["sample"] == '{"type": "dance"}'


def test_explain_lists_rules_and_verbs_of_each_line(check_profile):
    status, report = check_profile((HELLO, RUN, RAN, BYE), args=("--json", "--explain"))
    assert status == 0
    rows = [
        (
            entry["place"].rpartition(":")[2],
            [(rule.rpartition("/")[2], emit) for rule, emit in entry["rules"]],
            entry["verbs"],
        )
        for entry in report["explained"]
    ]
    assert rows == [
        ("1", [("own.toml:6", "session"), ("own.toml:12", "ignore")], ['started session_id="s1"']),
        ("2", [("own.toml:26", "tool_use")], ['tool_use "1" "Bash" {"command":"ls"}']),
        ("3", [("own.toml:33", "tool_result")], ['tool_result "1" "a" false']),
        (
            "4",
            [("own.toml:39", "result")],
            ["ended usage=null duration_ms=null result=null", "settle"],
        ),
    ]


def test_text_report_contains_no_control_characters(check_profile):
    status, output = check_profile(
        (HELLO, {"type": f"x{ESCAPES}", "k": ESCAPES}, BYE), args=("--explain",)
    )
    assert status == 1
    assert "lines without a rule:" in output and "rules that matched no line:" in output
    assert "own: 1 run, 3 lines, 1 thing to fix" in output
    visible(output)


def test_secrets_are_redacted_in_samples_and_values(check_profile):
    line = {"type": "dance", "key": SECRET}
    _, output = check_profile(
        (HELLO, line, SAY | {"words": f"key {SECRET}"}, BYE), args=("--explain",)
    )
    assert SECRET not in output
    assert output.count("[REDACTED:") >= 3


def test_recording_is_checked_with_the_stderr_of_its_children(shim, local_box):
    profile = (
        'schema = 1\nid = "own"\n'
        + LAUNCH
        + RULES
        + "[[stderr]]\nregex = 'at (?P<session_id>s\\d)'\nemit = 'session'\n"
    )
    (local_box.path / "own.toml").write_text(profile, encoding="utf-8")
    lines = "".join(json.dumps(item) + "\n" for item in (SAY, BYE))
    start = ["s", {"child": 1, "turn": 1, "argv": ["own"]}]
    end = ["x", {"child": 1, "code": 0, "signal": None}]
    cast = local_box.path / "run.cast"
    header = {
        "shimcast": 1,
        "started": "2026-11-20T10:00:00.000Z",
        "shim": "0.1.0",
        "vendor": "own",
        "argv": [],
        "env": {},
    }
    records = [
        [0.0, *start],
        [0.1, "o", lines.split("\n")[0]],
        [0.1, "o", lines.split("\n")[1]],
        [0.1, "e", "at s9"],
        [0.2, *end],
    ]
    cast.write_text(
        "".join(json.dumps(item) + "\n" for item in (header, *records)), encoding="utf-8"
    )
    status, stdout, _ = shim(
        "vendor", "check", str(local_box.path / "own.toml"), str(cast), "--json"
    )
    report = json.loads(stdout)
    assert (status, report["findings"]) == (0, [])
    assert (report["runs"], report["lines"]) == (1, 2)


def test_session_id_on_missing_stderr_is_a_note_and_no_finding(check_profile):
    profile = PROFILE + "[[stderr]]\nregex = 'at (?P<session_id>s\\d)'\nemit = 'session'\n"
    status, report = check_profile((SAY, BYE), profile=profile)
    assert (status, report["findings"]) == (0, [])
    assert [note["name"] for note in report["notes"] if note["sort"] == "remark"] == [
        "the session id may be on stderr, which is not in these files"
    ]


def test_invalid_profile_is_refused_with_file_line_and_key(shim, local_box):
    profile_path = local_box.path / "own.toml"
    profile_path.write_text(
        PROFILE.replace('emit = "thinking"', 'emit = "dance"'), encoding="utf-8"
    )
    status, stdout, complaint = shim("vendor", "check", str(profile_path), str(profile_path))
    assert (status, stdout) == (1, b"")
    assert 'own.toml:23: event[3].emit is "dance"' in complaint


@pytest.mark.parametrize(
    ("args", "status", "part"),
    [
        (("nobody", "FILE"), 2, "unknown vendor"),
        (("Odd Name.toml", "FILE"), 2, "is not a valid profile name"),
        (("./none.toml", "FILE"), 1, "cannot be read"),
        (("demo", "./missing.ndjson"), 2, "cannot be read"),
        (("demo", "."), 2, "is a folder"),
        (("demo",), 2, "missing argument FILE"),
    ],
)
def test_invalid_vendor_or_file_argument_is_reported(
    shim, local_box, args, status, part, monkeypatch
):
    monkeypatch.chdir(local_box.path)
    (local_box.path / "f.ndjson").write_text("{}\n", encoding="utf-8")
    exit_status, stdout, complaint = shim(
        "vendor", "check", *[str(local_box.path / "f.ndjson") if w == "FILE" else w for w in args]
    )
    assert (exit_status, stdout) == (status, b"")
    assert part in complaint.replace("\n", " ")


def test_python_module_vendor_is_checked_with_a_note(shim):
    folder = FIXTURES / "qwen"
    status, stdout, _ = shim(
        "vendor", "check", "qwen", str(folder / "0.24.4-shell" / "vendor.ndjson"), "--json"
    )
    report = json.loads(stdout)
    assert (status, report["findings"]) == (0, [])
    assert report["verbs"]["tool_use"] == report["verbs"]["tool_result"] == 1
    assert "is a Python module" in report["notes"][0]["name"]
    cut = str(folder / "0.24.4-sigterm-group" / "vendor.ndjson")
    status, stdout, _ = shim("vendor", "check", "qwen", cut, "--json")
    assert status == 1 and "no_end" in {
        finding["sort"] for finding in json.loads(stdout)["findings"]
    }


def test_inherited_rules_are_reported_with_their_profile(shim):
    path = str(FIXTURES / "kilo" / "7.7.9-shell" / "vendor.ndjson")
    status, stdout, _ = shim("vendor", "check", "kilo", path, "--json", "--explain")
    report = json.loads(stdout)
    assert (status, report["findings"]) == (0, [])
    assert any(
        rule.startswith("kilo.toml: event[")
        for entry in report["explained"]
        for rule, _ in entry["rules"]
    )


def test_rules_of_a_turn_are_not_traced():
    """Traced rules are compiled separately. The vendor of a turn has the rules without traces."""
    from shim.adapters import get_adapter
    from shim.commands.profile.rule_tracer import RuleTracer

    handler = get_adapter("gemini").translator_class.rules.find_event_handler("message")
    assert not any(
        getattr(value, "__self__", None).__class__ is RuleTracer
        for value in handler.__globals__.values()
    )
    assert not any(
        isinstance(attribute, RuleTracer)
        for attribute in vars(get_adapter("gemini").translator_class).values()
    )
