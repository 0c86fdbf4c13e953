"""Vendors that cannot be started: the cause and the hint, with real files that are not programs."""

import json
import os
import resource
import shutil
import subprocess

import pytest
from box import ANSWER, ASK, SHIM, STREAM, TIMEOUT_S, Done

from shim.core.errors import FrontendError, SystemResourceError, VendorError
from shim.process.spawn import spawn_child


def script(box, text, mode=0o755):
    path = box.path / "program"
    path.write_bytes(text)
    path.chmod(mode)
    return str(path)


@pytest.mark.parametrize(
    ("text", "mode", "reason", "hint"),
    [
        (
            b"echo hi\n",
            0o755,
            "Exec format error: the file is text without a #! line",
            "#! line to the script",
        ),
        (b"", 0o755, "Exec format error: the file is empty", "reinstall the program"),
        (
            b"\x7fELF\x02\x01\x01 of another machine",
            0o755,
            "Exec format error",
            "a build of the program for this machine",
        ),
        (
            b"#!/no/such/interpreter -x\n",
            0o755,
            "the script's interpreter /no/such/interpreter does not exist",
            "install the interpreter",
        ),
        (b"#!/bin/sh\r\nexit\r\n", 0o755, "the script's lines end in CR LF", "Unix line endings"),
        (b"#!/bin/sh\n", 0o644, "Permission denied", "chmod +x"),
    ],
    ids=[
        "no interpreter line",
        "empty",
        "another machine's",
        "dangling interpreter",
        "CRLF",
        "not executable",
    ],
)
def test_unstartable_program_is_reported_with_reason_and_hint(box, text, mode, reason, hint):
    path = script(box, text, mode)
    done = box.run_claude(*ASK, SHIM_VENDOR="demo", SHIM_BIN=path)
    assert (done.status, done.cause) == (1, "not_found")
    assert f"{path} could not be started: {reason}" in done.result["errors"][0]
    assert hint in done.stderr and len(done.stderr.splitlines()) == 2


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        ("/no/such/program", "the file does not exist"),
        ("nosuchprogram", "was not found on PATH"),
        ("/tmp", "a directory"),
    ],
)
def test_missing_program_raises_vendor_error(box, program, reason):
    with pytest.raises(VendorError, match=reason):
        spawn_child([program], box.build_environment(), str(box.cwd), opens_stdin=False)


def test_missing_working_directory_raises_frontend_error(box):
    with pytest.raises(FrontendError, match="the working directory /no/such does not exist"):
        spawn_child(
            [box.create_fake(["out", ANSWER])],
            box.build_environment(),
            "/no/such",
            opens_stdin=False,
        )


def test_nul_in_an_argument_raises_frontend_error(box):
    with pytest.raises(FrontendError, match="NUL"):
        spawn_child(
            ["/bin/true", "nul\0"], box.build_environment(), str(box.cwd), opens_stdin=False
        )


# -- texts above the argument limit ----------------------------------------------------------------

LONG = "Speak like a pirate. " * 10_000  # 210 kB; Linux accepts 128 KiB


def build_file_flag(box, flag):
    path = box.path / "prompt"
    path.write_text(LONG, encoding="utf-8")
    return (f"{flag}-file", str(path))


@pytest.mark.parametrize("flag", ["--system-prompt", "--append-system-prompt"])
@pytest.mark.parametrize("vendor", ["acai", "cake", "cursor", "demo"])
def test_long_system_prompt_is_prepended_to_stdin_for_vendors_without_a_flag(box, vendor, flag):
    child = box.create_fake(["read"], ["record", str(box.recording)])
    box.run_claude(*ASK, *build_file_flag(box, flag), SHIM_VENDOR=vendor, SHIM_BIN=child)
    assert box.read_record()["stdin"] == ("hi" if vendor == "demo" else f"{LONG}\n\nhi")


@pytest.mark.parametrize("flag", ["--system-prompt", "--append-system-prompt"])
def test_long_system_prompt_is_passed_to_pi_as_a_private_file(box, flag):
    box.run_claude(
        *ASK,
        *build_file_flag(box, flag),
        SHIM_VENDOR="pi",
        SHIM_BIN=box.create_fake(["record", str(box.recording)]),
    )
    args = box.read_record()["arguments"]
    path = args[args.index(flag) + 1]
    assert os.path.dirname(os.path.dirname(path)) == str(box.state / "spill")
    with open(path, encoding="utf-8") as file:
        assert file.read() == LONG
    assert os.stat(path).st_mode & 0o777 == 0o600


@pytest.mark.parametrize("is_conversation", [False, True])
def test_long_system_prompt_is_passed_to_qwen_as_a_file(box, is_conversation):
    child = box.create_fake(["record", str(box.recording)])
    environment = {"SHIM_VENDOR": "qwen", "SHIM_BIN": child}
    if is_conversation:
        hello = {"subtype": "initialize", "systemPrompt": LONG}
        lines = [
            {"type": "control_request", "request_id": "i", "request": hello},
            {"type": "user", "message": {"role": "user", "content": "hi"}},
        ]
        stdin = "".join(json.dumps(line) + "\n" for line in lines).encode()
        box.run_claude("--input-format", "stream-json", *STREAM, stdin=stdin, **environment)
    else:
        box.run_claude(*ASK, *build_file_flag(box, "--system-prompt"), **environment)
    record = box.read_record()
    assert "--system-prompt" not in record["arguments"]
    with open(record["environment"]["QWEN_SYSTEM_MD"], encoding="utf-8") as file:
        assert file.read() == LONG


def test_claude_receives_the_system_prompt_file_flag_unchanged(box):
    flags = build_file_flag(box, "--append-system-prompt")
    child = box.create_fake(["record", str(box.recording)])
    box.run_claude(*ASK, *flags, SHIM_VENDOR="claude", SHIM_BIN=child)
    assert f"{flags[0]}={flags[1]}" in box.read_record()["arguments"]


def test_system_prompt_above_the_argument_limit_is_refused_with_its_size(box):
    """The program is not started, and the error states the reason instead of "Argument list too
    long".
    """
    child = box.create_fake(["record", str(box.recording)])
    flags = build_file_flag(box, "--append-system-prompt")
    done = box.run_claude(*ASK, *flags, SHIM_VENDOR="qwen", SHIM_BIN=child)
    assert (done.status, done.cause) == (1, "refused")
    assert f"{len(LONG)} of them in --append-system-prompt" in done.result["errors"][0]
    assert "shorten" in done.stderr
    assert not box.recording.exists()


@pytest.mark.parametrize("vendor", ["acai", "cake", "cursor", "pi", "qwen", "demo", "claude"])
def test_prompt_above_the_argument_limit_reaches_every_vendor_on_stdin(box, vendor):
    prompt = b"word " * 60_000  # Linux accepts 128 KiB
    child = box.create_fake(["read"], ["record", str(box.recording)])
    # With permission prompts, the stdin of a vendor stays open for the answers.
    alone = "--dangerously-skip-permissions"
    box.run_claude("-p", *STREAM, alone, stdin=prompt, SHIM_VENDOR=vendor, SHIM_BIN=child)
    assert box.read_record()["stdin"].encode() == prompt


def test_environment_of_two_megabytes_reaches_the_child(box):
    variables = {f"HELD{number}": "v" * 100_000 for number in range(18)}
    child = box.create_fake(["record", str(box.recording)], ["out", ANSWER])
    assert box.run_claude(*ASK, SHIM_VENDOR="demo", SHIM_BIN=child, **variables).status == 0
    assert variables.items() <= box.read_record()["environment"].items()


# -- missing resources -----------------------------------------------------------------------------


def run_limited(box, *args, before=(), preexec=None, stdin=b"", environment=()):
    """Run the drop-in with limited resources."""
    process = subprocess.run(
        [*before, *SHIM, "claude", *args],
        input=stdin,
        capture_output=True,
        env=box.build_environment(**dict(environment)),
        cwd=box.cwd,
        preexec_fn=preexec,
        timeout=TIMEOUT_S,
        check=False,
    )
    return Done(process.returncode, process.stdout, process.stderr.decode())


def test_failed_fork_is_reported_as_an_internal_error(box):
    """The limit of processes does not apply to root. Another user may not be able to read our
    interpreter, so a capability allows it.
    """
    before = ["prlimit", "--nproc=1"]
    if os.getuid() == 0:
        capabilities = "-all,+dac_override,+dac_read_search"
        before += [
            "setpriv",
            "--reuid=54321",
            "--regid=54321",
            "--clear-groups",
            f"--inh-caps={capabilities}",
        ]
        before += [f"--ambient-caps={capabilities}"]
    if not all(shutil.which(name) for name in before if name in ("prlimit", "setpriv")):
        pytest.skip("prlimit and setpriv are not installed")
    environment = {
        "SHIM_VENDOR": "demo",
        "SHIM_BIN": box.create_fake(["record", str(box.recording)]),
    }
    if os.getuid() == 0:
        for folder, _, files in os.walk(box.path):
            for path in (folder, *(os.path.join(folder, name) for name in files)):
                os.chown(path, 54321, 54321)
    done = run_limited(box, *ASK, before=before, environment=environment)
    assert (done.status, done.cause) == (1, "internal")
    assert "could not be started: Resource temporarily unavailable" in done.result["errors"][0]
    assert "ulimit" in done.stderr and "Traceback" not in done.stderr
    assert not box.recording.exists()


# The limit of open files decides which call fails first. `make test` tries half of the limits.
TABLES = [(count, converses) for converses in (False, True) for count in (8, 11, 12, 13, 14, 15)]


@pytest.mark.parametrize(
    ("count", "converses"),
    [
        pytest.param(*table, marks=() if number % 2 else pytest.mark.full)
        for number, table in enumerate(TABLES)
    ],
)
def test_exhausted_file_descriptors_end_in_a_single_result(box, count, converses):
    def few():
        resource.setrlimit(resource.RLIMIT_NOFILE, (count, count))

    environment = {"SHIM_VENDOR": "demo", "SHIM_BIN": box.create_fake(["out", ANSWER])}
    user = (
        json.dumps({"type": "user", "message": {"role": "user", "content": "hi"}}).encode() + b"\n"
    )
    args = ("--input-format", "stream-json", *STREAM) if converses else ASK
    done = run_limited(
        box, *args, preexec=few, stdin=user if converses else b"", environment=environment
    )
    assert done.status == int(done.result["is_error"])
    assert done.cause in ("clean", "internal") and "Traceback" not in done.stderr
    if done.status:
        assert "Too many open files" in done.result["errors"][0]


def test_errors_have_distinct_causes():
    assert (SystemResourceError.cause, VendorError.cause, FrontendError.cause) == (
        "internal",
        "not_found",
        "refused",
    )
