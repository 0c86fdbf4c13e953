"""`shim …`: the commands for people, in this process. The tests check their output and their exit
status.
"""

import json
import os
import re
import subprocess

import pytest
from box import ANSWER, ASK, END, SHIM, START, TIMEOUT_S, build_text_event, format_ndjson, run_shim
from fixture_cases import FIXTURES
from stream_invariants import check_turns
from stream_lines import parse_lines

from shim import __version__
from shim.adapters import VENDORS
from shim.commands.cli import app
from shim.commands.help import removed
from shim.conversation.drivers.open_translation import STABLE_SESSION_ID

COMMANDS = sorted(command.name or command.callback.__name__ for command in app.registered_commands)
U = "11111111-2222-4333-8444-555555555555"


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_with_an_example(shim, command):
    status, stdout, _ = shim(command, "--help")
    assert status == 0
    assert f"Example: shim {command}" in stdout.decode()


def test_required_commands_are_registered():
    assert {"demo", "run", "translate", "vendors", "install", "uninstall"} <= set(COMMANDS)


def test_version_option_prints_the_version(shim):
    assert shim("--version") == (0, f"shim {__version__}\n".encode(), "")


@pytest.mark.parametrize(
    "args", [("nonsense",), ("translate",), ("run",), ("vendors", "--nope"), ("--nope",)]
)
def test_invalid_arguments_exit_with_status_2_without_traceback(shim, args):
    status, stdout, complaint = shim(*args)
    assert (status, stdout) == (2, b"")
    assert (
        complaint.startswith("error: ") and "--help`" in complaint and "Traceback" not in complaint
    )


@pytest.mark.parametrize(
    "args", [("--casts", "x"), ("--casts=x",), ("qwen", "--json", "--casts", "x")]
)
def test_a_removed_option_names_its_successor(shim, args):
    status, printed, complaint = shim("doctor", *args)
    assert (status, printed) == (2, b"")
    assert "error: `--casts` was removed: " in complaint
    assert "\nhint: `shim show CAST` counts the events" in complaint


def test_a_removed_command_names_its_successor(shim, monkeypatch):
    monkeypatch.setattr(
        removed,
        "REMOVED",
        {
            "shim cast view": removed.RemovedCommandOrOptionNotice(
                "it was removed", "use `shim show`"
            )
        },
    )
    status, printed, complaint = shim("cast", "view", "x.cast")
    assert (status, printed) == (2, b"")
    assert "error: it was removed\nhint: use `shim show`\n" in complaint


def test_removed_option_after_a_double_dash_is_an_argument(shim):
    _, _, complaint = shim("doctor", "--", "--casts")
    assert "unknown vendor" in complaint


def test_removed_options_and_commands_are_absent_from_the_help(shim):
    for line, _ in removed.REMOVED.items():
        *command, last = line.split()[1:]
        assert last not in re.split(r"[\s,]+", shim(*command, "--help")[1].decode())


@pytest.mark.parametrize(
    "args", [("vendors",), ("bridge", "list"), ("sessions",), ("help", "bridge")]
)
def test_closed_stdout_is_not_an_error(box, args):
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = run_shim(args, env=box.build_environment(), cwd=box.cwd, stdout=writing)
    finally:
        os.close(writing)
    assert (done.status, done.stderr) == (0, "")


# -- translate -------------------------------------------------------------------------------------


@pytest.fixture
def recording(local_box):
    path = local_box.path / "run.ndjson"
    path.write_text(ANSWER, encoding="utf-8")
    return str(path)


def test_translate_converts_a_file(shim, recording):
    status, stdout, complaint = shim("translate", "demo", recording)
    check_turns(stdout, False)
    assert (status, complaint) == (0, "")


def test_translate_reads_stdin(box):
    for args in ((), ("-",)):
        done = box.run_shim("translate", "demo", *args, stdin=ANSWER.encode())
        assert done.status == 0
        check_turns(done.stdout, False)


def test_partial_option_emits_stream_events(shim, recording):
    _, stdout, _ = shim("translate", "demo", recording, "--partial")
    check_turns(stdout, True)
    assert b"stream_event" in stdout


@pytest.mark.parametrize(
    ("name", "last"),
    [("message_stop", b'{"type":"message_stop"}\n'), ("dollar", b"$\n"), ("none", None)],
)
def test_terminator_option_selects_the_last_line(shim, recording, name, last):
    _, stdout, _ = shim("translate", "demo", recording, "--terminator", name)
    assert (
        stdout.endswith(last) if last else json.loads(stdout.splitlines()[-1])["type"] == "result"
    )


@pytest.mark.parametrize(
    ("how", "cause"), [("0", "clean"), ("3", "exit_code"), ("SIGKILL", "signal"), ("-9", "signal")]
)
def test_exit_option_determines_the_cause_of_the_result(shim, recording, how, cause):
    status, stdout, _ = shim("translate", "demo", recording, f"--exit={how}")
    assert status == 0, "exit 0 whenever the input was read"
    assert parse_lines(stdout)[-2]["shim"]["cause"] == cause


def test_stderr_option_determines_the_cause_of_a_failed_exit(shim, local_box):
    path, stderr = local_box.path / "empty", local_box.path / "stderr"
    path.touch()
    stderr.write_text("Error: no API key found\n", encoding="utf-8")
    status, stdout, _ = shim("translate", "qwen", str(path), "--exit", "1", "--stderr", str(stderr))
    assert status == 0
    assert parse_lines(stdout)[-2]["shim"]["cause"] == "auth"


def test_stable_ids_option_makes_the_output_reproducible(shim):
    path = str(FIXTURES / "qwen" / "0.24.4-shell" / "vendor.ndjson")
    first, other = (shim("translate", "qwen", path, "--stable-ids")[1] for _ in range(2))
    assert first == other
    assert STABLE_SESSION_ID.encode() in shim("translate", "demo", os.devnull, "--stable-ids")[1]


def test_session_id_option_sets_the_session_id_in_lower_case(shim, recording):
    assert (
        parse_lines(shim("translate", "demo", recording, "--session-id", U.upper())[1])[0][
            "session_id"
        ]
        == U
    )


def test_diagnostics_are_printed_as_a_single_json_object_on_stderr(shim, local_box):
    path = local_box.path / "odd"
    path.write_text("noise\n" + format_ndjson({"type": "odd"}) + ANSWER, encoding="utf-8")
    _, stdout, complaint = shim("translate", "demo", str(path), "--account")
    diagnostics = json.loads(complaint)
    check_turns(stdout, False)
    assert diagnostics["unknown_events"]["odd"]["count"] == 1
    assert diagnostics["repairs"]


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        (("--exit", "sometimes"), "--exit"),
        (("--terminator", "bell"), "--terminator"),
        (("--session-id", "nonsense"), "--session-id"),
        (("--dialect", "latin"), "--dialect"),
        (("--stderr", "/nowhere"), "/nowhere"),
    ],
)
def test_invalid_option_value_exits_with_status_2_and_names_the_option(
    shim, recording, args, expected
):
    status, stdout, complaint = shim("translate", "demo", recording, *args)
    assert (status, stdout) == (2, b"")
    assert expected in complaint


def test_missing_file_and_unknown_vendor_are_usage_errors(shim, recording):
    assert shim("translate", "demo", "/nowhere/at/all")[0] == 2
    status, stdout, complaint = shim("translate", "nobody", recording)
    assert (status, stdout) == (2, b"")
    assert "unknown vendor 'nobody'" in complaint and "hint: " in complaint


def test_translate_rejects_a_folder_without_traceback(shim, local_box):
    status, _, complaint = shim("translate", "demo", str(local_box.path))
    assert status in (1, 2)
    assert "Traceback" not in complaint


def test_closed_stdout_causes_no_traceback_during_translate(box):
    path = FIXTURES / "pi" / "1.5.2-long1000" / "vendor.ndjson"
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = run_shim(
            ["translate", "pi", str(path)], stdout=writer, env=box.build_environment(), cwd=box.cwd
        )
    finally:
        os.close(writer)
    assert "Traceback" not in done.stderr


# -- vendors ---------------------------------------------------------------------------------------


def test_vendors_are_listed_as_json(shim, local_box, slow, monkeypatch):
    qwen = local_box.write_program("qwen", "echo 0.24.4\n")
    monkeypatch.setenv("PATH", f"{local_box.bin}:/usr/bin:/bin")
    status, stdout, _ = shim("vendors", "--json")
    rows = {row["name"]: row for row in json.loads(stdout)}
    assert status == 0
    assert set(rows) == set(VENDORS)
    assert (rows["qwen"]["program"], rows["qwen"]["version"]) == (qwen, "0.24.4")
    assert rows["pi"]["program"] is None and rows["pi"]["version"] is None
    assert rows["demo"]["program"] == "bundled"
    assert rows["pi"]["unattended"] and not rows["qwen"]["unattended"]
    assert rows["acai"]["refused"] == ["plan", "acceptEdits", "dontAsk", "auto"]
    for row in rows.values():
        assert set(row["modes"]) | set(row["refused"]) == {
            "default", "plan", "acceptEdits", "dontAsk", "auto", "bypassPermissions",
        }  # fmt: skip


def test_installed_vendors_are_printed_as_a_table_and_missing_vendors_are_named(
    shim, local_box, slow, monkeypatch
):
    local_box.write_program("qwen", "echo 0.24.4\n")
    local_box.write_program("codex", "echo codex-cli 0.201.3\n")
    local_box.write_program("pi", "echo 1.5.2\n")
    local_box.write_program("kilo", "echo 7.7.9\n")
    monkeypatch.setenv("PATH", f"{local_box.bin}:/usr/bin:/bin")
    status, stdout, _ = shim("vendors")
    table, _, footer = stdout.decode().partition("\n\n")
    rows = [line.split() for line in table.splitlines()[1:]]
    assert status == 0
    assert rows == [
        ["codex", "0.201.3", "newer", "interactive", f"{local_box.bin}/codex"],
        ["kilo", "7.7.9", "yes", "never", f"{local_box.bin}/kilo"],
        ["pi", "1.5.2", "yes", "interactive", f"{local_box.bin}/pi"],
        ["qwen", "0.24.4", "yes", "yes", f"{local_box.bin}/qwen"],
        ["demo", "no", "bundled"],
    ]
    assert (
        "not installed: acai, amp, cake, claude, cline, " in footer
        and "shim vendors --all" in footer
    )
    assert (
        "kilo never asks for permission: all of its tools run automatically" in footer
        and "qwen asks" not in footer
    )


def test_all_option_lists_every_vendor_with_its_install_command(shim):
    status, stdout, _ = shim("vendors", "--all")
    assert status == 0
    for name in VENDORS:
        assert stdout.decode().count(f"\n{name} ") >= 3 or name == "demo"
    assert "npm install -g @qwen-code/qwen-code" in stdout.decode()


@pytest.fixture
def slow(monkeypatch):
    """Raise the timeout for a machine under load."""
    from shim.process import probe

    monkeypatch.setattr(probe, "INTERACTIVE_TIMEOUT_S", 30)


def test_capabilities_of_a_vendor_match_its_profile(shim):
    rows = {row["name"]: row for row in json.loads(shim("vendors", "--json")[1])}
    assert "directories" in rows["qwen"]["can"] and "directories" in rows["pi"]["cannot"]
    assert "system prompt" in rows["pi"]["can"] and "system prompt" in rows["codex"]["emulated"]
    assert "fork" in rows["opencode"]["can"] and "fork" in rows["codex"]["cannot"]
    assert (
        "permission requests" in rows["qwen"]["can"]
        and "permission requests" in rows["cursor"]["cannot"]
    )
    assert rows["claude"]["cannot"] == rows["claude"]["emulated"] == []
    assert (
        rows["qwen"]["driven"] == "one process per conversation"
        and rows["kilo"]["driven"] == "one process per message"
    )


def test_version_is_classified_against_the_tested_range(shim, local_box, slow, monkeypatch):
    monkeypatch.setenv("PATH", f"{local_box.bin}:/usr/bin:/bin")
    local_box.write_program("codex", "echo codex-cli 0.201.3\n")
    local_box.write_program("qwen", "echo 0.24.4\n")
    rows = {row["name"]: row for row in json.loads(shim("vendors", "--json")[1])}
    assert (rows["codex"]["version"], rows["codex"]["place"]) == ("0.201.3", "newer")
    assert (rows["qwen"]["place"], rows["pi"]["place"]) == ("tested", "unknown")


def test_configured_program_and_driver_are_listed(shim, local_box, slow):
    path = local_box.write_program("my-qwen", "echo 0.24.4\n", folder=local_box.path / "own")
    local_box.write_settings(f'[vendors.qwen]\nbin = "{path}"\ndriver = "one-way"\n')
    rows = {row["name"]: row for row in json.loads(shim("vendors", "--json")[1])}
    assert (rows["qwen"]["program"], rows["qwen"]["version"]) == (path, "0.24.4")
    assert rows["qwen"]["driven"] == "one process per message"


@pytest.mark.parametrize("columns", [80, 100, 140])
def test_vendor_table_fits_the_terminal_width(local_box, slow, monkeypatch, capsys, columns):
    from shim.commands.doctor.vendor_rows import build_vendor_table_rows
    from shim.commands.doctor.vendor_table import print_vendor_table

    monkeypatch.setenv("PATH", f"{local_box.bin}:/usr/bin:/bin")
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", str(columns))
    local_box.write_program("codex", "echo codex-cli 0.201.3\n")
    print_vendor_table(
        build_vendor_table_rows(dict(os.environ), str(local_box.cwd)), shows_all=True
    )
    table = re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out)
    assert max(map(len, table.splitlines())) <= columns
    for name in VENDORS:
        assert table.count(f"\n{name} ") >= 2, "no name is cut"
    assert "…" not in table


def test_invalid_settings_do_not_break_the_vendor_list(shim, local_box):
    local_box.write_settings("vendor = 7\n")
    status, stdout, complaint = shim("vendors", "--json")
    assert status == 0 and len(json.loads(stdout)) == len(VENDORS)
    assert "vendor is 7" in complaint


WILD = 'schema = 1\nid = "kimi"\nadapter = "wild:Wild"\n[[event]]\nemit = "ignore"\n'


@pytest.mark.parametrize("profile", ["schema = 7\n", "]", WILD])
def test_invalid_user_profile_is_left_out_of_the_vendor_list(shim, local_box, profile):
    folder = local_box.config.parent / "vendors"
    folder.mkdir(parents=True)
    (folder / "kimi.toml").write_text(profile, encoding="utf-8")
    (folder / "wild.py").write_text("1 / 0\n", encoding="utf-8")
    status, stdout, complaint = shim("vendors", "--json")
    assert status == 0
    assert {row["name"] for row in json.loads(stdout)} == set(VENDORS) - {"kimi"}
    assert "kimi.toml" in complaint and "Traceback" not in complaint


def test_failed_version_probe_leaves_the_version_empty(shim, local_box, monkeypatch):
    from shim.process import probe

    monkeypatch.setattr(probe, "INTERACTIVE_TIMEOUT_S", 0.1)
    monkeypatch.setenv("PATH", f"{local_box.bin}:/usr/bin:/bin")
    local_box.write_program("qwen", "exec sleep 30\n")
    local_box.write_program("pi", "exit 1\n")
    status, stdout, _ = shim("vendors", "--json")
    rows = {row["name"]: row for row in json.loads(stdout)}
    assert (status, rows["qwen"]["version"], rows["pi"]["version"]) == (0, None, None)


# -- install ---------------------------------------------------------------------------------------


def test_install_reports_the_path_and_the_claude_on_path(shim, local_box, monkeypatch):
    monkeypatch.setenv("PATH", str(local_box.bin))
    status, stdout, _ = shim("install", "--vendor", "pi", "--to", str(local_box.bin))
    assert status == 0
    assert f"wrote {local_box.bin}/claude" in stdout.decode()
    assert f"the claude on PATH is {local_box.bin}/claude" in stdout.decode()
    assert "pi: no program called pi was found on PATH" in stdout.decode()
    assert stdout.decode().endswith(
        "next: npm install -g @earendil-works/pi-coding-agent, then shim doctor pi\n"
    )


def test_install_reports_a_vendor_without_permission_prompts(shim, local_box, monkeypatch):
    monkeypatch.setenv("PATH", str(local_box.bin))
    _, stdout, _ = shim("install", "--vendor", "kilo", "--to", str(local_box.bin))
    assert "kilo never asks for permission: all of its tools run automatically" in stdout.decode()


@pytest.mark.parametrize(
    ("answer", "next_step"),
    [
        ("exit 0", 'next: claude -p "what is here?"\n'),
        (
            "echo No auth type is selected",
            "next: start `qwen` once and log in with /auth, or set OPENAI_API_KEY",
        ),
    ],
)
def test_install_checks_the_vendor_and_prints_the_next_step(
    shim, local_box, slow, monkeypatch, answer, next_step
):
    monkeypatch.setenv("PATH", f"{local_box.bin}:/usr/bin:/bin")
    local_box.write_program("qwen", f'[ "$*" = --version ] && echo 0.24.4 || {answer}\n')
    status, stdout, _ = shim("install", "--vendor", "qwen", "--to", str(local_box.bin))
    assert status == 0 and "✓ version 0.24.4 (tested: " in stdout.decode()
    assert stdout.decode().splitlines(keepends=True)[-1].startswith(next_step)


def test_install_without_a_vendor_lists_installed_vendors(shim, local_box, slow, monkeypatch):
    monkeypatch.setenv("PATH", f"{local_box.bin}")
    nothing = shim("install", "--to", str(local_box.bin))[1].decode()
    assert "no vendor's program was found on PATH" in nothing
    assert "`npm install -g @qwen-code/qwen-code`" in nothing and nothing.endswith(
        "next: shim install --vendor qwen\n"
    )
    local_box.write_program("qwen", "echo 0.24.4\n")
    local_box.write_program("pi", "echo 1.5.2\n")
    output = shim("install", "--to", str(local_box.bin))[1].decode()
    assert "no default vendor is set; found on PATH: pi, qwen" in output and output.endswith(
        "next: shim install --vendor pi\n"
    )


def test_install_accepts_a_comma_separated_vendor_list(shim, local_box):
    assert shim("install", "--vendor", "qwen, pi", "--to", str(local_box.bin))[0] == 0
    assert "--installed vendor=qwen,pi claude" in (local_box.bin / "claude").read_text()


def test_install_reports_invalid_settings(shim, local_box):
    local_box.write_settings('vendr = "qwen"\n')
    status, stdout, _ = shim("install", "--vendor", "demo", "--to", str(local_box.bin))
    assert (
        status == 0
        and f"✗ unknown key `vendr` in {local_box.config} line 1, did you mean `vendor`?"
        in stdout.decode()
    )


def test_repeated_uninstall_succeeds_and_reports_remaining_files(shim, local_box):
    local_box.write_settings("")
    assert shim("install", "--vendor", "demo", "--to", str(local_box.bin))[0] == 0
    status, stdout, _ = shim("uninstall", "--to", str(local_box.bin))
    assert (
        status == 0
        and f"left {local_box.config.parent}: your settings and custom vendors" in stdout.decode()
    )
    status, stdout, _ = shim("uninstall", "--to", str(local_box.bin))
    assert (
        status == 0
        and f"{local_box.bin}/claude does not exist; nothing to remove" in stdout.decode()
    )


def test_uninstall_preserves_a_foreign_claude(shim, local_box):
    local_box.write_program("claude", "echo real\n")
    status, stdout, _ = shim("uninstall", "--to", str(local_box.bin))
    assert status == 0 and b"was not written by `shim install`, so it is not removed" in stdout
    assert "echo real" in (local_box.bin / "claude").read_text()


def test_purge_removes_shim_files_and_preserves_other_files(shim, local_box):
    local_box.write_settings("")
    (local_box.config.parent / "vendors").mkdir()
    (local_box.state / "sessions").mkdir(parents=True)
    (local_box.state / "sessions" / "a.json").touch()
    (local_box.state / "mine").touch()
    outside_folder = local_box.path / "elsewhere"
    outside_folder.mkdir()
    (outside_folder / "precious").touch()
    (local_box.state / "spill").symlink_to(outside_folder)
    status, stdout, _ = shim("uninstall", "--to", str(local_box.bin), "--purge")
    assert status == 0 and f"removed {local_box.config.parent}" in stdout.decode()
    assert (
        os.listdir(local_box.state) == ["mine"] and f"left {local_box.state}: " in stdout.decode()
    )
    assert (outside_folder / "precious").exists() and not local_box.config.parent.exists()


def test_install_warns_about_an_earlier_claude_on_path(shim, local_box, monkeypatch):
    other = local_box.write_program("claude", "", folder=local_box.path / "first")
    monkeypatch.setenv("PATH", f"{local_box.path}/first:{local_box.bin}")
    assert (
        f"the first claude on PATH is {other}"
        in shim("install", "--to", str(local_box.bin))[1].decode()
    )


def test_install_reports_a_target_folder_that_is_not_on_path(shim, local_box, monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    assert (
        f"{local_box.bin} is not on PATH" in shim("install", "--to", str(local_box.bin))[1].decode()
    )


def test_install_writes_to_local_bin_by_default(shim, local_box):
    assert shim("install")[0] == 0
    assert (local_box.home / ".local" / "bin" / "claude").exists()
    status, stdout, _ = shim("uninstall")
    assert status == 0 and b"removed" in stdout
    assert not (local_box.home / ".local" / "bin" / "claude").exists()


def test_each_run_is_recorded_into_a_new_folder(shim, local_box):
    folder = local_box.path / "runs"
    shim("install", "--vendor", "demo", "--to", str(local_box.bin), "--record", str(folder))
    for _ in range(2):
        ask = [str(local_box.bin / "claude"), "-p", "hi"]
        environment = local_box.build_environment(SHIM_BIN=local_box.create_fake(["out", ANSWER]))
        subprocess.run(
            ask,
            stdin=subprocess.DEVNULL,
            env=environment,
            cwd=local_box.cwd,
            timeout=TIMEOUT_S,
            check=True,
        )
    assert len(list(folder.glob("*.cast"))) == 2


def test_install_force_backs_up_a_claude_that_uninstall_restores(shim, local_box):
    local_box.write_program("claude", "echo real\n")
    status, _, complaint = shim("install", "--to", str(local_box.bin))
    assert status == 1 and "hint: " in complaint
    assert b"claude.before-shim" in shim("install", "--to", str(local_box.bin), "--force")[1]
    assert b"restored the previous file" in shim("uninstall", "--to", str(local_box.bin))[1]


@pytest.mark.parametrize("args", [("--vendor", "nobody"), ("--as", "ls"), ("--vendor", "../x")])
def test_install_rejects_an_unknown_vendor_or_target_name(shim, local_box, args):
    status, _, complaint = shim("install", "--to", str(local_box.bin), *args)
    assert status == 2
    assert "Traceback" not in complaint
    assert os.listdir(local_box.bin) == []


def test_install_rejects_an_unknown_dialect(shim, local_box):
    assert shim("install", "--to", str(local_box.bin), "--dialect", "latin")[0] in (1, 2)
    assert os.listdir(local_box.bin) == []


def test_install_rejects_a_target_that_is_not_a_folder_without_traceback(shim, local_box):
    file = local_box.path / "file"
    file.touch()
    status, _, complaint = shim("install", "--to", str(file))
    assert status == 1
    assert complaint and "Traceback" not in complaint


# -- run -------------------------------------------------------------------------------------------


def test_run_prints_the_turn_and_exits_with_status_1_on_failure(box):
    good = box.run_shim(
        "run",
        "-v",
        "demo",
        "hi",
        environment=box.build_environment(SHIM_BIN=box.create_fake(["out", ANSWER])),
    )
    assert good.status == 0
    assert "Hello." in good.stdout.decode() and "done · " in good.stdout.decode()
    bad = box.run_shim(
        "run",
        "-v",
        "demo",
        "hi",
        environment=box.build_environment(SHIM_BIN=box.create_fake(["leave", 3])),
    )
    assert bad.status == 1
    assert "failed: the vendor exited with an error" in bad.stdout.decode()


def test_run_accepts_a_prompt_that_starts_with_a_dash(box):
    fake = box.create_fake(
        ["read"],
        ["record", str(box.recording)],
        ["out", format_ndjson(START, build_text_event("x"), END)],
    )
    done = box.run_shim(
        "run", "-v", "demo", "--", "--yolo", environment=box.build_environment(SHIM_BIN=fake)
    )
    assert done.status == 0
    assert box.read_record()["stdin"] == "--yolo"


def test_run_without_a_vendor_explains_how_to_choose_a_vendor(box):
    done = box.run_shim("run", "hi", environment=box.build_environment())
    assert done.status == 1
    assert "SHIM_VENDOR" in done.stderr


REMOVED = 'mkdir gone && cd gone && rmdir ../gone && exec "$@"'


@pytest.mark.parametrize("args", [("vendors",), ("claude", "-p", "hi")])
def test_removed_working_directory_is_reported_by_the_process(box, args):
    """The error must not name stdout."""
    command = ["/bin/sh", "-c", REMOVED, "sh", *SHIM, *args]
    environment = box.build_environment(
        SHIM_VENDOR="demo", SHIM_BIN=box.create_fake(["out", ANSWER])
    )
    done = subprocess.run(
        command, cwd=box.cwd, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S
    )
    assert done.returncode == 1
    assert "the working directory no longer exists" in done.stderr + done.stdout
    assert "cannot write the output" not in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize("args", [("doctor",), ("run", "hi")])
def test_removed_working_directory_is_reported_by_doctor_and_run(
    local_box, shim, monkeypatch, args
):
    """The commands run in this process."""
    monkeypatch.setenv("SHIM_VENDOR", "demo")
    monkeypatch.setenv("SHIM_BIN", local_box.create_fake(["out", ANSWER]))
    removed_folder = local_box.cwd / "gone"
    removed_folder.mkdir()
    monkeypatch.chdir(removed_folder)
    removed_folder.rmdir()
    status, printed, complaint = shim(*args)
    assert status == 1
    assert "the working directory no longer exists" in complaint + printed.decode()
    assert "cannot write the output" not in complaint


def test_error_names_the_reason_if_the_state_folder_cannot_be_created(box):
    """This also happens if HOME is on a read-only disk."""
    (box.path / "file").touch()
    state = f"{box.path}/file/state"
    environment = {
        "SHIM_STATE": state,
        "SHIM_VENDOR": "demo",
        "SHIM_BIN": box.create_fake(["out", ANSWER]),
    }
    assert box.run_claude(*ASK, **environment).status == 0
    for args in (("doctor",), ("bridge", "token"), ("claude", "--bg", "hi")):
        done = box.run_shim(*args, environment=box.build_environment(**environment))
        output = done.stdout.decode() + done.stderr
        assert "Not a directory" in output and "chmod 700" not in output, (args, output)
