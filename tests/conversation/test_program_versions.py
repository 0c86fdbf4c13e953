"""A program with an unrecognised version guarantees nothing. What needs a guarantee is refused; the
rest runs unattended.
"""

import json
import os
import subprocess

import pytest
from box import ASK, CONVERSE, format_ndjson

from shim.adapters import VENDORS, get_adapter
from tests.conversation.test_persistent_driver import (
    HELLO,
    INIT,
    asks,
    calls,
    result,
    returns,
    says,
    user,
)

PLAN = ("--permission-mode", "plan")
STDIO = ("--permission-prompt-tool", "stdio")
SKIP = "--dangerously-skip-permissions"
WRAPPER = "echo 'wrapper 3.1'"


def install(box, answer, name="qwen", script=""):
    """Write a program that runs `answer` for `--version`. Otherwise it records its start and runs
    `script`.
    """
    version_branch = (
        f'if [ "$*" = --version ]; then echo x >> {box.path}/asked; {answer}; exit; fi\n'
    )
    return box.write_program(
        name, f"{version_branch}echo x >> {box.path}/started; {script or 'exit 3'}\n"
    )


def has_started(box):
    return (box.path / "started").exists()


def count_version_calls(box):
    path = box.path / "asked"
    return len(path.read_text(encoding="utf-8").splitlines()) if path.exists() else 0


def converse(box, *args):
    line = json.dumps({"type": "user", "message": {"role": "user", "content": "go"}}) + "\n"
    return box.run_claude(*CONVERSE, *args, SHIM_VENDOR="qwen", stdin=line.encode())


# -- versions with guarantees ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("vendor", "version", "is_trusted", "note"),
    [
        ("qwen", "0.24.4", True, False),
        ("qwen", "0.99.0", True, True),
        ("qwen", "0.99.0-nightly.20261127", True, True),
        ("qwen", "0.1.0", True, False),
        ("qwen", "1.0.0", False, False),
        ("qwen", "1.0.0-preview.1", False, False),
        ("pi", "0.73.1", True, False),
        ("pi", "1.99.0", True, True),
        ("pi", "2.0.0", False, False),
        ("claude", "1.0.128", False, False),
        ("claude", "2.9.0", True, True),
        ("claude", "3.0.0", False, False),
        ("opencode", "0.0.0-dev-202611", False, False),
        ("codex", "0.999.0", True, True),
        ("qwen", None, False, False),
    ],
)
def test_version_of_a_tested_major_is_trusted(vendor, version, is_trusted, note):
    version_probe = get_adapter(vendor).version_probe
    check = version_probe.check_version(vendor, version, "`x --version` printed 'y'")
    assert (check.distrust == "") is is_trusted
    assert ("newer than tested" in check.note) is note


@pytest.mark.parametrize(
    ("tested", "majors"),
    [
        (">=1.2,<2", {1}),
        (">=1.2,<=2", {1, 2}),
        (">=0.9,<1.5", {0, 1}),
        (">=3", {3, 4, 9}),
        ("==2.1", {2}),
        (">1,<3.0", {1, 2}),
    ],
)
def test_tested_range_defines_the_tested_majors(tested, majors):
    how = get_adapter("qwen").version_probe._replace(tested_range=tested)
    assert {
        number for number in (0, 1, 2, 3, 4, 9) if how.has_tested_major(f"{number}.1")
    } == majors


@pytest.mark.parametrize(
    "name", [name for name in VENDORS if get_adapter(name).version_probe.tested_range]
)
def test_unrelated_version_line_is_not_parsed(name):
    how = get_adapter(name).version_probe
    for line in (
        "wrapper 3.1",
        "Node.js v20.20.2",
        "some tool, version 1.49.0",
        "0.24.4 or newer is needed",
        "",
    ):
        assert how.parse_version(line) is None, line


@pytest.mark.parametrize(
    ("answer", "version"),
    [
        ("1.2.0 linux-x64 (2026-04-26)", None),
        ("qwen unknown", None),
        ("0.24.15410_1", "0.24.15410_1"),
        ("(node:12) DeprecationWarning: 1.2.3\n(Use node --trace-deprecation)\n0.24.4", "0.24.4"),
        ("Built 2026.06.04 \u2014 v0.24.4", None),
        ("dev", None),
        ("v0.24.4-12-gabc1234", "0.24.4-12-gabc1234"),
        ("SyntaxError: x\n\nNode.js v20.20.2", None),
    ],
)
def test_reported_version_lines_are_parsed_or_rejected(answer, version):
    assert get_adapter("qwen").version_probe.parse_version(answer) == version


# -- refusals --------------------------------------------------------------------------------------


@pytest.mark.parametrize("line", ["wrapper 3.1", "1.0.0"])
@pytest.mark.parametrize(
    ("args", "expected"),
    [
        (PLAN, "the permission mode plan"),
        (("--permission-mode", "acceptEdits"), "the permission mode acceptEdits"),
        (("--permission-mode", "dontAsk"), "the permission mode dontAsk"),
        (("--disallowedTools", "Bash"), "Bash (--disallowedTools)"),
        (("--tools", "Read"), "--tools"),
        (("--settings", '{"permissions": {"deny": ["Write"]}}'), "Write ("),
        (("--settings", '{"permissions": {"ask": ["Write"]}}'), "Write ("),
        ((SKIP, "--disallowedTools", "Bash"), "Bash (--disallowedTools)"),
        (STDIO, "--permission-prompt-tool"),
    ],
)
def test_flag_that_needs_a_trusted_version_is_refused_by_name(box, line, args, expected):
    install(box, f"echo '{line}'")
    done = box.run_claude(*ASK, *args, SHIM_VENDOR="qwen")
    (error,) = done.result["errors"]
    assert (done.status, done.cause, has_started(box)) == (1, "refused", False)
    assert expected in error and line in error and "trust_version = true" in error
    assert done.init["shim"]["unattended"] is True


UNRECOGNISED = (
    "my qwen 0.24.4",
    "Update available: 0.24.4",
    "Node.js v20.20.2",
    '{"version": "0.24.4"}',
    "latest",
    "qwen",
    "qwen, version 0.24.4",
)


@pytest.mark.parametrize("line", UNRECOGNISED)
def test_line_that_only_resembles_a_version_is_refused(box, line):
    install(box, f"echo '{line}'")
    done = box.run_claude(*ASK, *PLAN, SHIM_VENDOR="qwen")
    assert done.cause == "refused" and line in done.result["errors"][0] and not has_started(box)


@pytest.mark.parametrize(
    "args", [(), (SKIP,), ("--permission-mode", "bypassPermissions"), ("--allowedTools", "Read")]
)
@pytest.mark.parametrize("answer", [WRAPPER, "echo 2.0.0", "exit 1", "true"])
def test_untrusted_version_runs_unattended_without_restrictions(box, answer, args):
    install(box, answer, "pi")
    done = box.run_claude(*ASK, *args, SHIM_VENDOR="pi")
    assert has_started(box)
    assert (
        done.init["shim"]["unattended"] is True
        and "of pi" in done.init["shim"]["unattended_reason"]
    )
    assert "may run tools without asking" in done.stderr


def test_late_denials_run_with_an_untrusted_version_in_bypass_mode(box):
    install(box, WRAPPER)
    box.write_settings("[vendors.qwen]\nlate_denials = true\n")
    box.run_claude(*ASK, SKIP, "--disallowedTools", "Bash", SHIM_VENDOR="qwen")
    assert has_started(box)


def test_trust_version_skips_the_version_check(box):
    install(box, WRAPPER)
    box.write_settings("[vendors.qwen]\ntrust_version = true\n")
    done = box.run_claude(*ASK, *PLAN, SHIM_VENDOR="qwen")
    assert (
        has_started(box)
        and done.init["shim"]["unattended"] is False
        and count_version_calls(box) == 0
    )


def test_newer_version_of_a_tested_major_is_trusted_with_a_note(box):
    install(box, "echo 0.77.0")
    shim = box.run_claude(*ASK, *PLAN, SHIM_VENDOR="qwen").init["shim"]
    assert has_started(box) and shim["unattended"] is False
    assert "newer than tested" in shim["version_note"] and shim["vendor_version"] == "0.77.0"


def test_untrusted_version_refuses_a_conversation_at_its_first_message(box):
    install(box, WRAPPER)
    done = converse(box, *STDIO)
    assert (
        done.cause == "refused"
        and "--permission-prompt-tool" in done.result["errors"][0]
        and not has_started(box)
    )


def test_mode_change_is_rejected_with_an_untrusted_version(box):
    turn = [
        HELLO,
        ["hear", '"user"'],
        ["out", format_ndjson(INIT, says("Hi."), result("Hi."))],
        ["hear", "never"],
    ]
    wrapper = install(box, WRAPPER, "wrapper", f'exec {box.create_fake(*turn)} "$@"')
    options = {
        "stdin": subprocess.PIPE,
        "environment": {"SHIM_VENDOR": "qwen", "SHIM_BIN": wrapper},
    }
    with box.start_claude(*CONVERSE, SKIP, *STDIO, **options) as running:
        running.send_lines(user("go"))
        running.read_until(b'"result"')
        for mode in ("plan", "default"):
            request = {"subtype": "set_permission_mode", "mode": mode}
            running.send_lines(
                {"type": "control_request", "request_id": f"to-{mode}", "request": request}
            )
            answer = running.read_line_containing(f'"to-{mode}"'.encode())["response"]
            assert (
                answer["subtype"] == "error"
                and f"Cannot set permission mode to {mode}" in answer["error"]
            )
        assert running.end_input().status == 0


def test_claude_of_another_major_version_refuses_plan_mode(box):
    path = install(box, "echo '1.0.128 (Claude Code)'", "claude")
    done = box.run_claude(*ASK, *PLAN, SHIM_VENDOR="claude", SHIM_BIN=path)
    assert done.status == 1 and not has_started(box)
    assert "another major version" in done.stdout.decode() + done.stderr


def test_init_of_another_claude_major_reports_unattended(box):
    session = {"session_id": "11111111-2222-4333-8444-555555555555"}
    init = {"type": "system", "subtype": "init", "model": "m", **session}
    end = {"type": "result", "subtype": "success", "is_error": False, "result": "x", **session}
    (box.path / "lines").write_text(format_ndjson(init, end), encoding="utf-8")
    path = install(box, "echo '1.0.128 (Claude Code)'", "claude", f"cat {box.path}/lines")
    shim = box.run_claude(*ASK, SHIM_VENDOR="claude", SHIM_BIN=path).init["shim"]
    assert shim["unattended"] is True and "1.0.128" in shim["unattended_reason"]


# -- the version query -----------------------------------------------------------------------------


def test_version_is_queried_once_and_after_an_update(box):
    install(box, "echo 0.24.4")
    for _ in range(3):
        box.run_claude(*ASK, SHIM_VENDOR="qwen")
    assert count_version_calls(box) == 1
    install(box, "echo '1.24.4'")
    done = box.run_claude(*ASK, *PLAN, SHIM_VENDOR="qwen")
    assert count_version_calls(box) == 2 and "1.24.4" in done.result["errors"][0]


def test_replaced_program_with_equal_size_and_mtime_is_queried(box):
    """Package managers and `cp -p` restore the time of a file."""
    path = install(box, "echo 0.24.4")
    before = os.stat(path)
    box.run_claude(*ASK, SHIM_VENDOR="qwen")
    (box.path / "started").unlink()
    install(box, "echo 9.24.4")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert os.stat(path).st_size == before.st_size
    done = box.run_claude(*ASK, *PLAN, SHIM_VENDOR="qwen")
    assert done.cause == "refused" and "9.24.4" in done.result["errors"][0] and not has_started(box)


def test_failed_version_query_is_not_cached(box):
    """A program that failed to start once, for example with an old Node, is queried again."""
    path = install(
        box, f"[ -e {box.path}/node ] && echo 0.24.4 || {{ echo 'SyntaxError: x'; exit 1; }}"
    )
    done = box.run_claude(*ASK, *PLAN, SHIM_VENDOR="qwen")
    assert (
        done.cause == "refused"
        and "SyntaxError" in done.result["errors"][0]
        and not has_started(box)
    )
    (box.path / "node").touch()
    before = os.stat(path)
    box.run_claude(*ASK, *PLAN, SHIM_VENDOR="qwen")
    assert has_started(box) and os.stat(path).st_mtime_ns == before.st_mtime_ns


def test_cached_version_is_used_if_the_program_fails_later(box):
    install(box, f"[ -e {box.path}/gone ] && exit 1; echo 0.24.4")
    box.run_claude(*ASK, SHIM_VENDOR="qwen")
    (box.path / "gone").touch()
    (box.path / "started").unlink()
    box.run_claude(*ASK, *PLAN, SHIM_VENDOR="qwen")
    assert has_started(box) and count_version_calls(box) == 1


@pytest.mark.parametrize(
    "answer",
    [
        "echo v0.24.4",
        "echo 0.24.4 >&2",
        "echo 'Update available 0.24.4 -> 0.25.0'; echo 'Run npm install -g x@1.2.3 to update'; echo 0.24.4",
        "echo '(node:12) Warning: x 9.9.9 is deprecated'; echo 0.24.4",
        "printf '\\033[1m0.24.4\\033[0m\\r\\n'",
        "echo; echo '  0.24.4  '",
        "echo 0.24.4-nightly.20261127.abcdef",
        "echo qwen 0.24.4",
    ],
)
def test_version_line_is_parsed_among_other_lines(box, answer):
    install(box, answer)
    done = box.run_claude(*ASK, *PLAN, SHIM_VENDOR="qwen")
    assert has_started(box) and not done.init["shim"]["unattended"]


def test_launcher_version_is_not_accepted_as_the_vendor_version(box):
    install(box, "echo 0.24.4")
    prefix_program = box.write_program("launcher", "echo launcher 7.1\n")
    box.write_settings(f'[vendors.qwen]\nlauncher = ["{prefix_program}"]\n')
    done = box.run_claude(*ASK, *PLAN, SHIM_VENDOR="qwen")
    assert done.cause == "refused" and "launcher 7.1" in done.result["errors"][0]


PROFILE = """schema = 1
id = "own"
[launch]
command = ["own"]
argv = [{ when = "permission_args" }]
PROBE
[launch.permission_args]
default = []
plan = ["--plan"]
[[event]]
match = { type = "x" }
emit = "text"
text = "text"
"""


@pytest.mark.parametrize(
    ("probe", "runs"), [('version_probe = { tested = ">=1.2,<2" }', False), ("", True)]
)
def test_user_profile_is_checked_against_its_tested_versions(box, probe, runs):
    install(box, "echo own 3.0", "own")
    (box.config.parent / "vendors").mkdir(parents=True)
    (box.config.parent / "vendors" / "own.toml").write_text(
        PROFILE.replace("PROBE", probe), encoding="utf-8"
    )
    done = box.run_claude(*ASK, *PLAN, SHIM_VENDOR="own")
    assert has_started(box) is runs and (done.cause == "refused") is not runs


# -- explain, vendors, doctor ----------------------------------------------------------------------


def test_explain_reports_why_a_turn_would_be_refused(box):
    install(box, WRAPPER)
    box.run_claude(*ASK, SHIM_VENDOR="qwen")
    args = ("explain", "--json", "--", "-p", "x", "--permission-mode")
    environment = box.build_environment(SHIM_VENDOR="qwen")
    plan = json.loads(box.run_shim(*args, "plan", environment=environment).stdout)
    assert "wrapper 3.1" in plan["refused"] and "trust_version" in plan["refused"]
    default = json.loads(box.run_shim(*args, "default", environment=environment).stdout)
    assert (
        default["refused"] is None
        and default["unattended"]
        and "wrapper 3.1" in default["distrust"]
    )


def test_explain_does_not_start_the_program_for_its_version(box):
    install(box, WRAPPER)
    environment = box.build_environment(SHIM_VENDOR="qwen")
    report = json.loads(
        box.run_shim("explain", "--json", "--", "-p", "x", environment=environment).stdout
    )
    assert count_version_calls(box) == 0 and "not cached" in report["version_note"]


def test_vendors_lists_an_untrusted_version_as_unattended(box):
    install(box, WRAPPER)
    (row,) = (
        row for row in json.loads(box.run_shim("vendors", "--json").stdout) if row["name"] == "qwen"
    )
    assert row["unattended"] is True and row["talks"] is False and "wrapper 3.1" in row["distrust"]


def test_explain_does_not_report_an_unrecognised_version_as_uncached(box):
    install(box, WRAPPER)
    box.run_claude(*ASK, SHIM_VENDOR="qwen")
    for mode in ("plan", "default"):
        args = ("explain", "--", "-p", "x", "--permission-mode", mode)
        text = box.run_shim(*args, environment=box.build_environment(SHIM_VENDOR="qwen")).stdout
        text = text if isinstance(text, str) else text.decode()
        assert "qwen (version not recognized)" in text and "not cached" not in text


@pytest.mark.parametrize("answer", [WRAPPER, "echo 1.24.4"])
def test_doctor_reports_an_untrusted_version_once(box, answer):
    install(box, answer)
    report = json.loads(box.run_shim("doctor", "qwen", "--json").stdout)["vendors"][0]
    texts = [finding["text"] for finding in report["findings"] if "version" in finding["text"]]
    assert len(texts) == 1 and "qwen" in texts[0] and "refused" in texts[0]


def test_older_version_of_a_tested_major_is_trusted_with_a_note(box):
    install(box, "echo 0.10.0")
    shim = box.run_claude(*ASK, *PLAN, SHIM_VENDOR="qwen").init["shim"]
    assert has_started(box) and shim["unattended"] is False
    assert "older than tested" in shim["version_note"] and shim["vendor_version"] == "0.10.0"


@pytest.mark.parametrize("flags", [(), ("--disallowedTools", "Bash")])
def test_background_session_refusal_names_permission_prompts(box, flags):
    """The user did not type --permission-prompt-tool. Every background session has it."""
    install(box, WRAPPER)
    done = box.run_claude("--bg", "hi", *flags, SHIM_VENDOR="qwen")
    assert done.status == 1 and not has_started(box)
    assert (
        "a permission prompt (--permission-prompt-tool; background sessions always have it)"
        in done.stderr
    )


def test_newer_kimi_in_the_background_is_checked_with_the_kimi_code_profile(box):
    """`kimi` is the command of two programs. Only the second one has plan mode in a background
    session.
    """
    install(box, "echo 3.0.0", "kimi")
    done = box.run_claude("--bg", "hi", *PLAN, SHIM_VENDOR="kimi")
    assert (
        done.status == 1 and "version 3.0.0 of kimi-code has another major version" in done.stderr
    )


def test_refusal_hint_lists_what_runs_with_any_version(box):
    install(box, WRAPPER)
    done = box.run_claude(*ASK, SKIP, "--disallowedTools", "Bash", SHIM_VENDOR="qwen")
    assert "the rule Bash (--disallowedTools) cannot be guaranteed" in done.stderr
    assert (
        "without rules, hooks and permission prompts can use any version in default or bypassPermissions"
        in done.stderr
    )


def test_doctor_suggests_trust_version(box):
    install(box, WRAPPER)
    report = json.loads(box.run_shim("doctor", "qwen", "--json").stdout)["vendors"][0]
    fixes = [finding["fix"] for finding in report["findings"] if finding["level"] == "warning"]
    assert report["unattended"] and any(
        "[vendors.qwen] trust_version = true" in fix for fix in fixes
    )


# -- a broken guarantee ----------------------------------------------------------------------------


def install_liar(box, failed=False):
    """Return a qwen that asks about a command, receives a denial, and reports a result as if the
    command had run.
    """
    child_steps = [
        HELLO,
        ["hear", '"user"'],
        ["out", format_ndjson(INIT, calls(command="touch x"), asks(command="touch x"))],
    ]
    child_steps += [
        ["hear", '"control_response"'],
        ["out", format_ndjson(returns("made", failed=failed), says("Done."), result())],
    ]
    return box.create_fake(*child_steps, ["hear", "never"], name="qwen")


def test_version_that_ran_a_denied_call_is_distrusted_until_doctor_runs(box):
    install_liar(box)
    first = converse(box)
    assert "ran a denied Bash call" in first.stderr
    assert "denied_call_ran" in json.dumps(first.result["shim"])
    second = converse(box, *STDIO)
    assert second.cause == "refused" and "ran a denied Bash call" in second.result["errors"][0]
    assert "shim doctor qwen" in second.result["errors"][0]
    assert "ran a denied Bash call" in " ".join(
        box.run_shim("doctor", "qwen").stdout.decode().split()
    )
    assert "ran a denied Bash call" not in " ".join(
        box.run_shim("doctor", "qwen").stdout.decode().split()
    )
    assert converse(box, *PLAN).cause != "refused"


def test_denied_call_that_ran_overrides_trust_version(box):
    install_liar(box)
    box.write_settings("[vendors.qwen]\ntrust_version = true\n")
    converse(box)
    refused = converse(box, *STDIO)
    assert refused.cause == "refused"
    assert "run `shim doctor qwen`" in refused.result["errors"][0]
    assert "trust_version" not in refused.result["errors"][0], "it would not help"


def test_distrust_does_not_apply_to_another_version(box):
    path = box.path / "bin" / "qwen"
    install_liar(box)
    converse(box)
    path.write_text(
        path.read_text(encoding="utf-8").replace("qwen 0.24.4", "qwen 0.24.40"), encoding="utf-8"
    )
    assert converse(box, *PLAN).cause != "refused"


def test_failed_denied_call_does_not_cause_distrust(box):
    install_liar(box, failed=True)
    assert "trusted again" not in converse(box).stderr
    assert converse(box, *PLAN).cause != "refused"


@pytest.mark.parametrize(
    ("line", "vendor"), [("2.1.0", "kimi-code"), ("kimi, version 1.49.0", "kimi")]
)
def test_kimi_programs_are_distinguished_by_their_version_line(box, line, vendor):
    install(box, f"echo '{line}'", "kimi")
    for _ in range(2):
        done = box.run_claude(*ASK, SHIM_VENDOR="kimi")
        assert (
            done.init["shim"]["vendor"] == vendor and "unattended_reason" not in done.init["shim"]
        )
    assert count_version_calls(box) == 1
