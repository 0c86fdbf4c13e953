"""The report file of a vendor: its folder, the values that are read from it, and its place in a
replay.
"""

import json
import os
import re
import stat
import tomllib
from pathlib import Path

import pytest
from box import ASK, format_ndjson
from cast_builder import read_cast
from profile_builder import HEAD, build_profile_adapter, create_translation, find_result_line
from stream_invariants import check_turns
from stream_lines import parse_lines

from shim.core.adapter.adapter import (
    LaunchRequest,
    TurnReportAndAttachmentFiles,
    VendorRunReportFileSpec,
)
from shim.core.cast.protocol_lines import NOTE_REPORT
from shim.core.claude.argv.flags import parse_argv as parse_argv
from shim.core.errors import FrontendError
from shim.core.turn.outcome import ChildExit
from shim.process.report_file import MAX_REPORT_BYTES, RunReportFile, parse_selected_json_keys
from shim.profiles.check.config_node import ConfigSource
from shim.profiles.load.adapter import build_adapter
from shim.state.spill import LargeTextFolder
from tests.core.cast.test_replayer import START, ReplayHarness, build_exit_record, build_replayer
from tests.state.test_user_profiles import forgotten, write

assert forgotten  # the fixture also applies to this module
LAUNCH = """
[launch]
command = ["parrot"]
argv = [{ when = "report_folder", args = ["--tell={report_folder}/night.json"] }, "{prompt}"]
prompt = { via = "arg" }
report = { file = "night.json", keys = ["nests"] }
"""
RULES = """
[stream]
usage = "run_total"

[[report]]
emit = "usage"
cost_usd = "nests[0].price"
[report.usage]
input_tokens = { minus = ["nests[*].heard", "nests[*].known"] }
output_tokens = { plus = ["nests[*].said"] }

[[event]]
match = { type = "squawk" }
emit = "text"
text = "sound"

[[event]]
match = { type = "sleep" }
emit = "result"
"""
PARROT = f'schema = 1\nid = "parrot"\n{LAUNCH}{RULES}'
REPORT = {
    "nests": [{"heard": 100, "known": 20, "said": 7, "price": 0.5}, {"heard": 10, "said": 3}],
    "name": "Polly",
}
NIGHT = format_ndjson({"type": "squawk", "sound": "Seeds."}, {"type": "sleep"})
KEYS = ("nests",)
S = "11111111-2222-4333-8444-555566667777"


def report_file(box):
    """Return a report file in the state of the box."""
    return RunReportFile(
        VendorRunReportFileSpec("night.json", KEYS),
        {"SHIM_STATE": str(box.state)},
        "11111111-2222-4333-8444-555566667777",
    )


# -- the file --------------------------------------------------------------------------------------


def test_report_folder_is_private_and_removed_after_reading(box):
    file = report_file(box)
    assert stat.S_IMODE(os.stat(file.folder).st_mode) == 0o700
    folder = file.folder
    os.mkdir(f"{folder}/session")
    with open(f"{folder}/night.json", "w", encoding="utf-8") as written:
        json.dump(REPORT, written)
    assert file.read_and_remove() == {"nests": REPORT["nests"]}
    assert not os.path.exists(folder) and file.read_and_remove() is None
    assert not os.path.exists(os.path.dirname(folder)), "a run leaves nothing of it"


def test_removing_the_report_preserves_spilled_files(box):
    file = report_file(box)
    spilled = LargeTextFolder(
        {"SHIM_STATE": str(box.state)}, "11111111-2222-4333-8444-555566667777"
    ).store_text("long")
    file.remove()
    assert Path(spilled).read_text(encoding="utf-8") == "long"


def test_missing_report_returns_none_and_removes_the_folder(box):
    file = report_file(box)
    folder = file.folder
    assert file.read_and_remove() is None and not os.path.exists(folder)


def test_symlinked_report_is_not_followed(box, tmp_path):
    """Threat: a vendor's output causes a file of another folder to be read as its report."""
    other = tmp_path / "other.json"
    other.write_text(json.dumps(REPORT))
    file = report_file(box)
    os.symlink(other, f"{file.folder}/night.json")
    assert file.read_and_remove() is None and other.exists()


def test_oversized_report_is_ignored(box):
    file = report_file(box)
    with open(f"{file.folder}/night.json", "w", encoding="utf-8") as written:
        json.dump(REPORT | {"noise": "x" * MAX_REPORT_BYTES}, written)
    assert file.read_and_remove() is None


@pytest.mark.parametrize("data", [b"", b"[]", b"1", b"{", b'{"nests":', b"\xff\xfe"])
def test_parse_json_keys_returns_none_for_invalid_json(data):
    assert parse_selected_json_keys(data, KEYS) is None


def test_report_folder_is_not_created_in_a_shared_spill_folder(box):
    """Threat: files of another user. There is no fallback to a shared folder."""
    (box.state / "spill").mkdir(parents=True)
    (box.state / "spill").chmod(0o777)
    assert report_file(box).folder is None


# -- the rules -------------------------------------------------------------------------------------


def parrot(text=PARROT):
    """Return the vendor of the profile."""
    return build_adapter("parrot", tomllib.loads(text), ConfigSource("parrot.toml", lambda: text))


def result_with(report, *, code=0, interrupt=False):
    """Return the result of a run that wrote a report."""
    translation = create_translation(parrot())
    lines = NIGHT.encode().splitlines(keepends=True)
    output = translation.feed(lines[0])[0]
    if interrupt:
        translation.turn.record_interrupt()
    else:
        output += translation.feed(lines[1])[0]
    if report is not None:
        translation.set_vendor_run_report_file_content(report)
    return find_result_line(parse_lines(output + translation.close(ChildExit(code=code))[0]))


@pytest.mark.parametrize("interrupt", [False, True])
def test_result_contains_usage_and_cost_of_the_report(interrupt):
    result = result_with(REPORT, interrupt=interrupt)
    assert (result["usage"]["input_tokens"], result["usage"]["output_tokens"]) == (90, 10)
    assert result["total_cost_usd"] == 0.5 and result["is_error"] is interrupt


@pytest.mark.parametrize(
    "report", [None, {}, {"nests": "x"}, {"nests": [1, None, {"said": "3"}]}, {"nests": [[]]}]
)
def test_empty_report_leaves_the_result_unchanged(report):
    result = result_with(report)
    assert result["usage"]["output_tokens"] == 0 and result["is_error"] is False


@pytest.mark.parametrize(
    ("replaced", "by", "says"),
    [
        ('report = { file = "night.json", keys = ["nests"] }', "", "without {report_folder}"),
        (
            '{ when = "report_folder", args = ["--tell={report_folder}/night.json"] }',
            '"-q"',
            "a list that contains {report_folder}",
        ),
        ('file = "night.json"', 'file = "../night.json"', "the name of a file"),
        ('keys = ["nests"]', "keys = []", "a table with `keys`"),
        ("[stream]", '[[report]]\nemit = "reply"\n\n[stream]', "session, usage, result"),
        (
            '[[report]]\nemit = "usage"',
            '[[report]]\nmatch = { type = "x" }\nemit = "usage"',
            "without `type`",
        ),
    ],
)
def test_invalid_report_profile_is_rejected(replaced, by, says):
    with pytest.raises(FrontendError, match=re.escape(says)):
        parrot(PARROT.replace(replaced, by))


def test_report_rules_require_launch_report():
    with pytest.raises(FrontendError, match=r"launch\.report"):
        build_profile_adapter(HEAD + RULES)


def test_report_argument_is_passed_only_with_a_report_folder():
    vendor = parrot()
    invocation = parse_argv(["-p", "x"])
    assert vendor.build_launch(LaunchRequest(invocation, "say hi")).arguments == ("say hi",)
    launch = vendor.build_launch(
        LaunchRequest(invocation, "say hi", files=TurnReportAndAttachmentFiles("/f"))
    )
    assert launch.arguments == ("--tell=/f/night.json", "say hi")


# -- a run -----------------------------------------------------------------------------------------


def folders(box):
    """Return the report folders that are left in the state of the box."""
    return [path for path in (box.state / "spill").glob("*/*") if path.is_dir()]


def night(box):
    """Create a program that writes its report to a file."""
    write(box, PARROT)
    plan = [["record", str(box.recording)], ["put", "--tell", json.dumps(REPORT)], ["out", NIGHT]]
    box.create_fake(*plan, name="parrot")


def test_run_reports_usage_from_the_file_and_removes_the_folder(box):
    night(box)
    done = box.run_claude(*ASK, SHIM_VENDOR="parrot")
    check_turns(done.stdout, False)
    assert done.result["usage"]["output_tokens"] == 10 and done.result["total_cost_usd"] == 0.5
    assert done.status == 0 and folders(box) == []


def test_replay_reports_the_recorded_usage(box):
    night(box)
    cast = box.cwd / "one.cast"
    done = box.run_claude(*ASK, "--shim-record", str(cast), SHIM_VENDOR="parrot")
    _, records = read_cast(cast.read_bytes())
    (note,) = (
        record for record in records if record.code == "n" and record.fields["kind"] == "report"
    )
    assert note.fields["report"] == {"nests": REPORT["nests"]}, "nothing else of the file is kept"
    replay = box.run_claude(*ASK, SHIM_VENDOR=f"replay:{cast}")
    assert replay.result["usage"] == done.result["usage"] and replay.result["total_cost_usd"] == 0.5
    assert folders(box) == []


def test_replayer_outputs_stdout_and_the_report_note():
    note = (0.4, "n", {"kind": NOTE_REPORT, "report": REPORT})
    player = ReplayHarness()
    player.play_to_end(build_replayer([START, (0.1, "o", b"a\n"), build_exit_record(0.3), note]))
    assert [data for _, letter, data in player.outputs if letter == "o"] == [b"a\n"]
    assert [json.loads(data) for _, letter, data in player.outputs if letter == NOTE_REPORT] == [
        REPORT
    ]
