"""`shim doctor`: its findings and fixes. The programs are real processes."""

import json
import os
import shlex
import shutil
from pathlib import Path

import pytest
from box import STREAM
from cast_builder import build_case_recording, build_recording
from fixture_cases import find_case
from terminal_injection import BAD, VISIBLE_FRAGMENTS, find_control_characters

from shim.adapters import VENDORS, get_adapter
from shim.commands.doctor import recorded_logins
from shim.process import probe
from shim.process.install import build_drop_in_script

SAYS = {
    "acai": "acai 0.1.0", "amp": "0.0.1790142911-g12ab (released 2026-09-23)", "cake": "cake 0.1.0",
    "claude": "2.1.327 (Claude Code)", "cline": "3.0.65", "codex": "codex-cli 0.171.0",
    "copilot": "GitHub Copilot CLI 1.0.102.", "cursor-agent": "2026.09.10-7ae6800", "droid": "0.225.2",
    "gemini": "0.61.0", "kilo": "7.7.9", "kimi": "kimi, version 1.49.0", "opencode": "1.18.33", "pi": "1.5.2",
    "qwen": "0.24.4", "vibe": "vibe 3.0.2",
}  # fmt: skip


@pytest.fixture
def machine(local_box, monkeypatch):
    """Set a PATH with only the box's programs and what their scripts need, and timeouts for a slow
    machine.
    """
    monkeypatch.setattr(probe, "INTERACTIVE_TIMEOUT_S", 30)
    for name in ("cat", "head", "sleep"):
        (local_box.bin / name).symlink_to(shutil.which(name))
    monkeypatch.setenv("PATH", str(local_box.bin))
    return local_box


@pytest.fixture
def doctor(machine, shim):
    """Return a function that runs `shim doctor ARGS --json`. It returns the exit status and the
    report.
    """

    def ask(*args):
        status, stdout, complaint = shim("doctor", *args, "--json")
        assert "Traceback" not in complaint
        return status, json.loads(stdout)

    return ask


def findings(report, vendor=None):
    """Return the findings for the machine, or for one vendor, as (level, text and fix)."""
    entries = report["machine"]
    if vendor is not None:
        (row,) = (row for row in report["vendors"] if row["name"] == vendor)
        entries = row["findings"]
    return [(entry["level"], f"{entry['text']} → {entry['fix']}") for entry in entries]


def levels(report, vendor=None):
    return {level for level, _ in findings(report, vendor)}


def get_finding(report, phrase, vendor=None):
    """Return the level and text of the only finding that contains this phrase."""
    (match,) = ((level, text) for level, text in findings(report, vendor) if phrase in text)
    return match


# -- programs --------------------------------------------------------------------------------------


@pytest.mark.parametrize("program", SAYS)
def test_version_output_of_every_vendor_is_parsed_and_in_the_tested_range(machine, doctor, program):
    machine.write_program(program, f"[ \"$*\" = --version ] && echo '{SAYS[program]}'\n")
    name = "cursor" if program == "cursor-agent" else program
    status, report = doctor(name)
    (row,) = report["vendors"]
    assert (status, row["place"], row["program"]) == (0, "tested", f"{machine.bin}/{program}")
    assert report["works"] and "problem" not in levels(report, name)


def test_version_outside_the_tested_range_is_a_note(machine, doctor):
    for version, relation in (("0.999.1", "newer"), ("0.1.1", "older")):
        machine.write_program("codex", f"echo codex-cli {version}\n")
        status, report = doctor("codex")
        assert status == 0
        assert (
            get_finding(
                report,
                f"version {version} is {relation} than the tested versions (>=0.169,<0.172)",
                "codex",
            )[0]
            == "note"
        )


def test_doctor_probes_the_version_despite_the_cache_and_caches_the_result(machine, doctor, shim):
    call_log = machine.path / "asked"
    machine.write_program("qwen", f'[ "$*" = --version ] && echo x >> {call_log}; echo 0.24.4\n')
    shim("vendors")
    shim("vendors")
    assert call_log.read_text() == "x\n"
    doctor("qwen")
    assert call_log.read_text() == "x\nx\n"
    shim("vendors")
    assert call_log.read_text() == "x\nx\n"


def test_doctor_runs_only_version_and_login_probes(machine, doctor):
    log = machine.path / "log"
    for name in ("qwen", "codex", "pi"):
        machine.write_program(name, f'echo "$@" >> {log}; echo {SAYS[name]}\n')
    doctor()
    questions = {
        " ".join(get_adapter(name).cli.login_probe.args) for name in ("qwen", "codex", "pi")
    }
    assert set(log.read_text().splitlines()) == {"--version", *questions}


@pytest.mark.parametrize(
    ("script", "message", "fails"),
    [
        ("exec sleep 60\n", "the program did not answer within 0.2 s", False),
        ("exit 3\n", "the program printed nothing and exited with status 3", False),
        ("echo 'unknown option --version' >&2; exit 2\n", "unknown option --version", False),
        ("head -c 5000000 /dev/zero\n", "\\x00\\x00", False),
        (
            "echo 'thing: cannot execute' >&2; exit 126\n",
            "the program cannot run: thing: cannot execute",
            True,
        ),
    ],
    ids=["hangs", "silent", "refuses", "megabytes", "cannot run"],
)
def test_failed_version_probe_is_reported_with_its_output(
    machine, doctor, monkeypatch, script, message, fails
):
    if "sleep" in script:
        monkeypatch.setattr(probe, "INTERACTIVE_TIMEOUT_S", 0.2)
    machine.write_program("pi", script)
    status, report = doctor("pi")
    assert get_finding(report, message, "pi")[0] == ("problem" if fails else "warning")
    assert status == int(fails)


def test_wait_option_extends_the_version_timeout(machine, doctor, monkeypatch):
    """Some programs need seconds to print their version."""
    monkeypatch.setattr(probe, "INTERACTIVE_TIMEOUT_S", 0.1)
    machine.write_program("gemini", "sleep 0.5; echo 0.61.0\n")
    assert (
        "--wait 20"
        in get_finding(doctor("gemini")[1], "the program did not answer within 0.1 s", "gemini")[1]
    )
    assert doctor("gemini", "--wait", "60")[1]["vendors"][0]["place"] == "tested"


def test_missing_program_is_a_problem_only_for_the_requested_vendor(machine, doctor):
    status, report = doctor("codex")
    assert status == 1 and not report["works"]
    level, text = get_finding(report, "no program called codex was found on PATH", "codex")
    assert level == "problem" and "`bin` under [vendors.codex]" in text
    machine.write_program("qwen", "echo 0.24.4\n")
    machine.write_settings('vendor = "qwen"\n')
    status, report = doctor()
    assert status == 0 and get_finding(report, "no program called codex", "codex")[0] == "note"


def test_unknown_vendor_is_rejected(machine, shim):
    for name in ("nobody", "../x"):
        status, printed, complaint = shim("doctor", name)
        assert (
            (status, printed) == (2, b"")
            and "unknown vendor" in complaint
            and "hint: " in complaint
        )


def test_missing_interpreter_is_reported_without_a_version_probe(machine, doctor, monkeypatch):
    monkeypatch.setenv("PATH", str(machine.bin))
    (machine.bin / "qwen").write_text("#!/usr/bin/env -S node --no-warnings\n", encoding="utf-8")
    (machine.bin / "qwen").chmod(0o755)
    (machine.bin / "pi").write_text("#!/nowhere/python3\n", encoding="utf-8")
    (machine.bin / "pi").chmod(0o755)
    status, report = doctor("qwen")
    assert (
        status == 1
        and "install Node.js" in get_finding(report, "needs node, which is not on PATH", "qwen")[1]
    )
    assert not any(
        "version" in text or "cannot be run" in text for _, text in findings(report, "qwen")
    )
    assert "needs /nowhere/python3" in get_finding(doctor("pi")[1], "which is not on PATH", "pi")[1]


def test_shim_bin_applies_only_to_the_first_chosen_vendor(machine, doctor, monkeypatch):
    path = machine.write_program("other-qwen", "echo 0.24.4\n", folder=machine.path / "elsewhere")
    monkeypatch.setenv("SHIM_BIN", path)
    monkeypatch.setenv("SHIM_VENDOR", "qwen")
    status, report = doctor()
    assert status == 0
    assert {row["name"]: row["program"] for row in report["vendors"] if row["program"]} == {
        "demo": "bundled", "qwen": path,
    }  # fmt: skip
    machine.write_program("codex", "echo 0.169.0\n")
    monkeypatch.setenv("SHIM_VENDOR", "qwen,codex")
    programs = {row["name"]: row["program"] for row in doctor()[1]["vendors"]}
    assert (programs["qwen"], programs["codex"]) == (path, f"{machine.bin}/codex")


def test_missing_command_prefix_is_reported(machine, doctor):
    machine.write_program("qwen", "echo 0.24.4\n")
    machine.write_settings('[vendors.qwen]\nlauncher = ["no-such-launcher", "box"]\n')
    status, report = doctor("qwen")
    assert status == 1
    assert (
        get_finding(report, "the launcher no-such-launcher was not found", "qwen")[0] == "problem"
    )


def test_program_in_the_working_directory_is_rejected_with_a_note(machine, doctor, monkeypatch):
    machine.write_program("qwen", "echo 0.24.4\n", folder=machine.cwd / "bin")
    monkeypatch.setenv("PATH", f"{machine.cwd}/bin:.")
    status, report = doctor("qwen")
    assert status == 1
    assert get_finding(report, "PATH entry . is ignored because the path is relative")[0] == "note"
    assert (
        get_finding(report, f"PATH entry {machine.cwd}/bin is ignored because the path is inside")[
            0
        ]
        == "note"
    )
    level, text = get_finding(report, f"{machine.cwd}/bin/qwen is on PATH but ignored", "qwen")
    assert level == "problem" and "[vendors.qwen] bin = " in text


# -- permissions -----------------------------------------------------------------------------------


def test_vendor_without_permission_prompts_is_reported(machine, doctor):
    for name in ("kilo", "qwen"):
        machine.write_program(name, f"echo {SAYS[name]}\n")
    _, report = doctor()
    assert (
        get_finding(
            report,
            "kilo never asks for permission: all of its tools run automatically",
            "kilo",
        )[0]
        == "note"
    )
    assert not any("asks nobody" in text for _, text in findings(report, "qwen"))


def test_trust_prompt_is_reported_with_the_setting_that_changes_the_behavior(machine, doctor):
    machine.write_program("codex", "echo codex-cli 0.169.0\n")
    level, text = get_finding(
        doctor("codex")[1], "the vendor decides which folders it trusts", "codex"
    )
    assert (
        level == "note"
        and "`trust = true` under [vendors.codex] adds --skip-git-repo-check" in text
    )
    machine.write_settings("[vendors.codex]\ntrust = true\n")
    level, text = get_finding(doctor("codex")[1], "every folder is trusted", "codex")
    assert level == "note" and "remove `trust`" in text


def test_login_hint_names_the_login_command_of_the_vendor(machine, doctor):
    machine.write_program("opencode", "echo 1.18.33\n")
    assert get_finding(doctor("opencode")[1], "run `opencode auth login`", "opencode")[0] == "note"


@pytest.mark.parametrize(
    ("program", "answer", "level", "phrase"),
    [
        (
            "qwen",
            '{"error":{"message":"No auth type is selected. Please do."}}',
            "problem",
            "“No auth type is selected. Please do.”",
        ),
        ("qwen", "", "ok", "credentials found"),
        ("pi", "No models available. Use /login", "problem", "“No models available.”"),
        (
            "codex",
            "Not logged in",
            "warning",
            "run `codex login`, unless codex's config.toml names a provider",
        ),
        ("claude", '{"loggedIn": false}', "problem", "run the real `claude` once"),
        (
            "gemini",
            "Please set an Auth method in your settings",
            "problem",
            "“Please set an Auth method in your settings”",
        ),
    ],
)
def test_login_probe_reports_a_missing_login(machine, doctor, program, answer, level, phrase):
    machine.write_program(
        program, f"[ \"$*\" = --version ] && echo '{SAYS[program]}' || printf '{answer}\\n'\n"
    )
    status, report = doctor(program)
    assert get_finding(report, phrase, program)[0] == level
    assert status == (level == "problem")


def test_failed_login_probe_is_a_note(machine, doctor):
    machine.write_program("qwen", '[ "$*" = --version ] && echo 0.24.4 || exit 7\n')
    level, text = get_finding(
        doctor("qwen")[1], "whether the program is logged in is unknown until a turn runs", "qwen"
    )
    assert level == "note" and "the program printed nothing and exited with status 7" in text


def failed_login(text, first_vendor="pi", later_results=()):
    """Return a recording in which pi failed because of a missing login. A list may have another
    vendor first. `later_results` are the vendor and the cause of each turn after it.
    """
    results = [("pi", "auth"), *later_results]
    lines = [
        json.dumps(
            {"type": "result", "result": text, "shim": {"vendor": vendor, "cause": cause}},
            separators=(",", ":"),
        )
        for vendor, cause in results
    ]
    moments = [(0.1, "O", f"{line}\n".encode()) for line in lines]
    return build_recording([(0.0, "s", {"child": 1}), *moments], vendor=first_vendor)


def test_vendor_without_login_in_its_last_recording_is_a_warning(machine, doctor, monkeypatch):
    """The program is a stand-in, but the recordings are real runs of the drop-in."""
    folder = machine.path / "casts"
    monkeypatch.setenv("SHIM_RECORD", f"{folder}/")
    environment = machine.build_environment(SHIM_VENDOR="pi", SHIM_RECORD=f"{folder}/")
    machine.write_program(
        "pi",
        "[ $1 = --version ] && echo 1.5.2 && exit; echo 'Error: no API key found' >&2; exit 1\n",
    )
    assert machine.run_shim("claude", "-p", "hi", *STREAM, environment=environment).cause == "auth"
    (cast,) = folder.iterdir()
    os.utime(cast, ns=(1, 1))
    level, text = get_finding(doctor("pi")[1], "not logged in at the last recorded run", "pi")
    assert level == "warning" and "no API key found" in text and "/login" in text
    good = build_case_recording(find_case("pi/1.5.2-bash"), vendor_version="1.5.2")
    (folder / "newer.cast").write_bytes(good)
    assert get_finding(doctor("pi")[1], "if the program is not logged in: ", "pi")[0] == "note"


@pytest.fixture
def recordings(machine, monkeypatch):
    """Return the folder for recordings. The program in it cannot check its own login."""
    folder = machine.path / "casts"
    folder.mkdir()
    monkeypatch.setenv("SHIM_RECORD", f"{folder}/")
    machine.write_program("pi", "[ $1 = --version ] && echo 1.5.2; exit 1\n")
    return folder


def write_aged(path, data, age):
    """Write a recording. The one with the smallest `age` is the newest."""
    path.write_bytes(data)
    os.utime(path, (1_000_000_000 - age, 1_000_000_000 - age))


def test_unreadable_recordings_are_skipped(recordings, doctor):
    write_aged(recordings / "bad.cast", b"not a recording\n", age=1)
    write_aged(recordings / "login.cast", failed_login("no key"), age=2)
    assert "no key" in get_finding(doctor("pi")[1], "not logged in", "pi")[1]


def test_login_error_in_a_recording_is_assigned_to_the_vendor_that_failed(recordings, doctor):
    write_aged(recordings / "list.cast", failed_login("no key", first_vendor="qwen"), age=1)
    assert "no key" in get_finding(doctor("pi")[1], "not logged in", "pi")[1]


@pytest.mark.parametrize(
    ("later_result", "level"),
    [(("pi", "clean"), "note"), (("qwen", "clean"), "warning"), (("pi", "auth"), "warning")],
)
def test_later_result_of_the_same_vendor_clears_its_missing_login(
    recordings, doctor, later_result, level
):
    data = failed_login("no key", later_results=[later_result])
    write_aged(recordings / "login.cast", data, age=1)
    phrase = "if the program is not logged in: " if level == "note" else "no key"
    assert get_finding(doctor("pi")[1], phrase, "pi")[0] == level


@pytest.mark.parametrize(("limit", "value"), [("MAX_RECORDINGS", 1), ("MAX_READ_BYTES", 1)])
def test_only_the_newest_recordings_within_the_limits_are_read(
    recordings, doctor, monkeypatch, limit, value
):
    monkeypatch.setattr(recorded_logins, limit, value)
    write_aged(
        recordings / "newer.cast", build_case_recording(find_case("codex/0.169.0-shell")), age=1
    )
    write_aged(recordings / "login.cast", failed_login("no key"), age=2)
    assert get_finding(doctor("pi")[1], "if the program is not logged in: ", "pi")[0] == "note"


NOTES = [(0.1, "n", {"kind": "caught", "signal": "SIGINT"})] * 5000


@pytest.mark.parametrize(
    "data",
    [
        build_recording(NOTES, vendor="codex"),
        build_recording([], vendor="codex") + b"no record\n" * 20_000,
        b"no recording\n" * 20_000,
    ],
    ids=["notes", "lines that are no records", "no recording"],
)
def test_every_record_and_line_of_a_recording_counts_toward_the_read_limit(
    recordings, doctor, monkeypatch, data
):
    monkeypatch.setattr(recorded_logins, "MAX_READ_BYTES", 100_000)
    assert len(data) > 100_000
    write_aged(recordings / "large.cast", data, age=1)
    write_aged(recordings / "login.cast", failed_login("no key"), age=2)
    assert get_finding(doctor("pi")[1], "if the program is not logged in: ", "pi")[0] == "note"


def test_recording_is_read_only_up_to_the_read_limit(recordings, doctor, monkeypatch):
    data = build_recording([], vendor="codex")
    monkeypatch.setattr(recorded_logins, "MAX_READ_BYTES", len(data) + 10)
    write_aged(recordings / "large.cast", data + b"x" * 100_000 + failed_login("no key"), age=1)
    assert get_finding(doctor("pi")[1], "if the program is not logged in: ", "pi")[0] == "note"


# -- settings, state, PATH -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "phrase"),
    [
        ("vendor = 7\n", "vendor is 7"),
        ("]", "is not TOML"),
        ("[vendors.qwen]\ntruts = true\n", "unknown key `vendors.qwen.truts` in "),
        ("[vendors.qwenn]\ntrust = true\n", "unknown key `vendors.qwenn` in "),
        (
            '[vendors.qwen]\ndriver = "three-way"\n',
            'vendors.qwen.driver is "three-way"; it must be one of two-way, ',
        ),
        ('vendor = "nobody"\n', 'vendor is "nobody"; it must be one of '),
        ('log = "verbose"\n', 'log is "verbose"; it must be one of debug, '),
    ],
)
def test_invalid_setting_is_a_problem(machine, doctor, settings, phrase):
    machine.write_program("qwen", "echo 0.24.4\n")
    machine.write_settings(settings)
    status, report = doctor()
    assert status == 1 and get_finding(report, phrase)[0] == "problem"


def test_claude_settings_that_would_refuse_a_turn_are_a_problem(machine, doctor):
    """The files are Claude's own settings: a denied tool that pi cannot disable, and an invalid
    value.
    """
    machine.write_program("pi", f"echo {SAYS['pi']}\n")
    assert doctor("pi")[0] == 0
    (machine.home / ".claude").mkdir()
    (machine.home / ".claude" / "settings.json").write_text("{", encoding="utf-8")
    status, report = doctor("pi")
    assert (status, get_finding(report, "settings.json", "pi")[0]) == (1, "problem")
    (machine.home / ".claude" / "settings.json").write_text(
        '{"permissions": {"deny": ["Bash(rm:*)"]}}', encoding="utf-8"
    )
    status, report = doctor("pi")
    assert (status, get_finding(report, "Bash(rm:*)", "pi")[0]) == (1, "problem")
    assert doctor("pi")[1]["machine"][0]["level"] == "note", "nothing is wrong in our own settings"


def test_unwritable_log_file_is_a_problem_and_no_log_file_is_created(machine, doctor):
    machine.write_settings(f'log = "debug:{machine.path}/none/log"\n')
    status, report = doctor()
    assert (status, get_finding(report, "/none/log cannot be written")[0]) == (1, "problem")
    machine.write_settings(f'log = "debug:{machine.path}/log"\n')
    assert get_finding(doctor()[1], "log:")[0] == "ok"
    assert not (machine.path / "log").exists()


def test_config_with_an_invalid_setting_is_not_reported_as_ok(machine, doctor):
    machine.write_settings('log = "verbose"\n')
    about = [level for level, text in findings(doctor()[1]) if str(machine.config) in text]
    assert about == ["problem"]


def test_installed_claude_that_fails_to_start_is_a_problem(machine, doctor):
    file = machine.write_program("claude", "")
    machine.write_program("broken", "echo 'no such thing' >&2; exit 3\n")
    script_text = build_drop_in_script({}).decode()
    old = shlex.split(script_text.rpartition("\nexec ")[2])[0]
    Path(file).write_text(script_text.replace(old, str(machine.bin / "broken")), encoding="utf-8")
    status, report = doctor()
    level, text = get_finding(report, "claude-shim's drop-in, which fails to start: no such thing")
    assert (status, level) == (1, "problem") and "shim install" in text


def test_unknown_variant_is_reported_with_the_allowed_values(machine, doctor):
    machine.write_program("acai", "echo acai 0.1.0\n")
    machine.write_settings('[vendors.acai]\nvariant = "x"')
    assert (
        "auto, instruct, stream-json"
        in get_finding(doctor("acai")[1], 'vendors.acai.variant is "x"', "acai")[1]
    )


def test_invalid_user_profile_is_reported_and_other_vendors_are_checked(machine, doctor):
    folder = machine.config.parent / "vendors"
    folder.mkdir(parents=True)
    (folder / "parrot.toml").write_text(
        'schema = 1\nid = "parrot"\n[launch]\nargv = 7\n', encoding="utf-8"
    )
    status, report = doctor()
    assert status == 1 and get_finding(report, "parrot.toml:")[0] == "problem"
    assert {row["name"] for row in report["vendors"]} == set(VENDORS) - {"parrot"}
    assert doctor("parrot")[0] == 1
    machine.write_program("qwen", "echo 0.24.4\n")
    assert doctor("qwen")[0] == 0, "who asks for another vendor has nothing to do with it"


def test_state_directory_with_open_permissions_is_a_problem(machine, doctor):
    machine.write_program("qwen", "echo 0.24.4\n")
    machine.state.mkdir(parents=True)
    machine.state.chmod(0o755)
    status, report = doctor("qwen")
    level, text = get_finding(report, "state cannot be stored, so sessions cannot be resumed")
    assert (status, level) == (1, "problem") and f"chmod 700 {machine.state}" in text


def test_state_directory_that_is_a_file_is_a_problem(machine, doctor):
    machine.state.parent.mkdir(parents=True)
    machine.state.touch()
    assert doctor()[0] == 1


def test_unwritable_state_directory_is_a_problem(machine, doctor, monkeypatch):
    monkeypatch.setattr(
        "shim.commands.doctor.installation_checks.write_state_file", lambda *_: False
    )
    assert get_finding(doctor()[1], "cannot write to")[0] == "problem"


def test_doctor_leaves_no_file_in_a_valid_state_directory(machine, doctor):
    _, report = doctor()
    assert get_finding(report, "private, mode 0700")[0] == "ok"
    assert os.listdir(machine.state / "probes") == []


def test_claude_on_path_is_reported(machine, doctor):
    assert get_finding(doctor()[1], "no claude on PATH")[0] == "note"
    other = machine.write_program("claude", "echo '2.1.327 (Claude Code)'\n")
    assert (
        get_finding(
            doctor()[1], f"the claude on PATH is {other}, which is not claude-shim's drop-in"
        )[0]
        == "note"
    )
    (machine.bin / "claude").write_bytes(
        build_drop_in_script({"vendor": "demo", "record": "/a folder"})
    )
    (machine.bin / "claude").chmod(0o755)
    status, report = doctor()
    assert get_finding(report, "claude-shim's drop-in (vendor demo, record /a folder)")[0] == "ok"
    assert status == 0, "what is baked in is who answers"


def test_installed_claude_with_a_missing_python_is_a_problem(machine, doctor):
    data = build_drop_in_script({"vendor": "demo"}).replace(b"exec ", b"exec /nowhere", 1)
    (machine.bin / "claude").write_bytes(data)
    (machine.bin / "claude").chmod(0o755)
    status, report = doctor()
    level, text = get_finding(report, "but its Python")
    assert (status, level) == (1, "problem") and "`shim install` again" in text


def test_recording_folder_that_cannot_be_created_is_reported(machine, doctor):
    (machine.path / "file").touch()
    machine.write_settings(f'record = "{machine.path}/file/casts/"\n')
    assert get_finding(doctor()[1], "runs cannot be recorded to")[0] == "warning"
    machine.write_settings(f'record = "{machine.path}/file/casts/"\nrecord_strict = true\n')
    assert get_finding(doctor()[1], "runs cannot be recorded to")[0] == "problem"
    machine.write_settings(f'record = "{machine.path}/casts/"\n')
    assert get_finding(doctor()[1], "runs are recorded to")[0] == "ok"


# -- the selected vendor ---------------------------------------------------------------------------


def test_missing_vendor_programs_are_a_problem_with_install_hints(machine, doctor):
    status, report = doctor()
    level, text = get_finding(report, "no vendor's program was found on PATH")
    assert (status, level) == (1, "problem")
    assert "npm install -g @qwen-code/qwen-code" in text and "shim install --vendor demo" in text


def test_installed_vendors_are_listed_if_no_vendor_is_chosen(machine, doctor):
    machine.write_program("qwen", "echo 0.24.4\n")
    status, report = doctor()
    level, text = get_finding(report, "no default vendor is set; found on PATH: qwen")
    assert (status, level) == (0, "warning") and "shim install --vendor qwen" in text


def test_doctor_fails_unless_a_chosen_vendor_is_installed(machine, doctor, monkeypatch):
    machine.write_program("qwen", "echo 0.24.4\n")
    machine.write_settings('vendor = "pi"\n')
    assert doctor()[0] == 1
    machine.write_settings('vendor = ["pi", "qwen"]\n')
    status, report = doctor()
    assert status == 0, "of a list the next one answers"
    assert get_finding(report, "no program called pi", "pi")[0] == "warning"
    machine.write_settings('vendor = ["pi", "codex"]\n')
    assert doctor()[0] == 1
    monkeypatch.setenv("SHIM_VENDOR", "qwen")
    assert doctor()[0] == 0
    monkeypatch.setenv("SHIM_VENDOR", "pi, qwen")
    status, report = doctor()
    assert status == 0 and get_finding(report, "no program called pi", "pi")[0] == "warning"
    monkeypatch.setenv("SHIM_VENDOR", "replay:/somewhere")
    assert doctor()[0] == 0


# -- the output for a person -----------------------------------------------------------------------


def test_text_report_contains_level_marks_and_fixes(machine, shim):
    machine.write_program("codex", "echo codex-cli 0.999.0\n")
    status, printed, _ = shim("doctor")
    text = printed.decode()
    assert status == 0 and "\x1b" not in text, "piped is plain"
    assert f"codex  {machine.bin}/codex" in text
    assert "· version 0.999.0 is newer than the tested versions" in text
    assert (
        "! no default vendor is set" in text
        and "  → set a default vendor with `shim install --vendor codex`" in text
    )
    assert (
        "not found on PATH: acai, amp, " in text
        and "codex," not in text.partition("not found on PATH")[2]
    )
    assert "demo  bundled" in shim("doctor", "demo")[1].decode()


@pytest.mark.parametrize("terminal", [False, True])
def test_control_characters_in_program_output_are_escaped(machine, shim, monkeypatch, terminal):
    if terminal:
        monkeypatch.setenv("FORCE_COLOR", "1")
    (machine.path / "evil").write_text(f"1.2{BAD}.3\n", encoding="utf-8")
    for name, code in (("codex", 0), ("pi", 127)):
        machine.write_program(name, f"cat {machine.path}/evil; exit {code}\n")
    folder = machine.path / "casts"
    folder.mkdir()
    (folder / "evil.cast").write_bytes(failed_login(BAD))
    monkeypatch.setenv("SHIM_RECORD", f"{folder}/")
    machine.write_settings(f'[vendors.codex]\ndriver = "{json.dumps(BAD)[1:-1]}"\n')
    printed = shim("doctor")[1].decode()
    assert find_control_characters(printed) == []
    assert any(form in printed for form in VISIBLE_FRAGMENTS)


# -- bytecode --------------------------------------------------------------------------------------


def test_missing_bytecode_is_a_warning_with_a_fix(machine, doctor, monkeypatch):
    monkeypatch.setattr(
        "shim.commands.doctor.installation_checks.list_uncompiled_modules",
        lambda: ["core/reading/values.py", "core/errors.py"],
    )
    level, text = get_finding(doctor()[1], "modules of claude-shim")
    assert (
        level == "warning"
        and "2 modules of claude-shim" in text
        and "core/reading/values.py" in text
        and "make setup" in text
    )
    monkeypatch.setattr("shim.commands.doctor.installation_checks.list_uncompiled_modules", list)
    assert get_finding(doctor()[1], "all modules are compiled")[0] == "ok"
