"""The abilities of an installed program, from its `--help`, which is read once."""

import os

import pytest

from shim.adapters import get_adapter
from shim.core.adapter.versions import ModelProbe, VersionProbe
from shim.process import probe as probes
from shim.process.probe import ProgramProbe


@pytest.fixture
def probe(box):
    """Return a function that creates the probe of a program. The program counts its calls."""

    def make(script="echo 'usage: --session-id ID'\n", *, environment=None, launcher=()):
        path = box.bin / "program"
        if script is not None:
            box.write_program("program", f'echo "$@" >> {box.path}/asked\n{script}')
        return ProgramProbe(
            [*launcher, str(path)],
            environment or box.build_environment(),
            box.build_environment(FROM="child"),
        )

    yield make


def list_calls(box):
    path = box.path / "asked"
    return path.read_text(encoding="utf-8").splitlines() if path.exists() else []


def test_help_is_probed_once_and_cached(box, probe):
    first = probe()
    assert first.accepts_flag("--session-id") and not first.accepts_flag("--resume")
    assert list_calls(box) == ["--help"]
    assert probe(None).accepts_flag("--session-id")
    assert list_calls(box) == ["--help"]


def test_probe_runs_nothing_until_queried(box, probe):
    probe()
    assert list_calls(box) == []


def test_updated_program_is_probed_a_second_time(box, probe):
    assert not probe("echo old\n").accepts_flag("--new")
    assert probe("echo this one is longer: --new\n").accepts_flag("--new")
    assert len(list_calls(box)) == 2


def test_changed_mtime_triggers_a_second_probe(box, probe):
    probe().get_help_text()
    os.utime(box.bin / "program", ns=(1, 1))
    probe(None).get_help_text()
    assert len(list_calls(box)) == 2


def test_command_prefix_triggers_a_separate_probe(box, probe):
    probe().get_help_text()
    probe(None, launcher=["/usr/bin/env"]).get_help_text()
    assert len(list_calls(box)) == 2


def test_program_without_help_text_accepts_every_flag(box, probe):
    assert probe("exit 1\n").accepts_flag("--anything")


def test_help_on_stderr_is_accepted(probe):
    assert probe("echo '--flag' >&2; exit 2\n").accepts_flag("--flag")


def test_hanging_program_is_killed_with_its_group_and_accepts_no_flag(box, probe, monkeypatch):
    monkeypatch.setattr(probes, "PROBE_TIMEOUT_S", 0.3)
    lifeline = box.create_lifeline()
    fake = box.create_fake(
        ["spawn", lifeline.path, False], ["say", lifeline.path, "child"], ["hang"]
    )
    assert not ProgramProbe([fake], box.build_environment(), box.build_environment()).accepts_flag(
        "--anything"
    )
    assert lifeline.wait_until_closed_or_unused()


def test_timed_out_probe_is_not_cached(box, monkeypatch):
    """Otherwise, a busy machine could store the wrong version of a program permanently."""
    ready_file = box.path / "ready"
    script = f"[ -e {ready_file} ] && echo '--new' && exit; exec sleep 30\n"
    path = box.write_program("program", script)
    monkeypatch.setattr(probes, "PROBE_TIMEOUT_S", 0.2)
    assert not ProgramProbe([path], box.build_environment(), box.build_environment()).accepts_flag(
        "--new"
    )
    ready_file.touch()
    monkeypatch.setattr(probes, "PROBE_TIMEOUT_S", 10)
    assert ProgramProbe([path], box.build_environment(), box.build_environment()).accepts_flag(
        "--new"
    )


def test_program_that_cannot_start_accepts_every_flag(box):
    path = box.path / "text"
    path.write_text("no program", encoding="utf-8")
    assert ProgramProbe([str(path)], box.build_environment(), box.build_environment()).accepts_flag(
        "--x"
    )
    assert ProgramProbe(
        ["/nowhere"], box.build_environment(), box.build_environment()
    ).accepts_flag("--x")


def test_help_text_is_truncated_at_the_limit(probe):
    assert (
        len(probe("head -c 1000000 /dev/zero | tr '\\0' x\n").get_help_text())
        <= probes.MAX_ANSWER_BYTES
    )


def test_probe_uses_the_environment_of_a_child(probe):
    assert probe('echo "$FROM ${SHIM_STATE:-none}"\n').get_help_text().startswith("child")


def test_probe_without_a_private_state_folder_is_not_cached(box, probe, capfd):
    (box.state / "probes").mkdir(parents=True)
    (box.state / "probes").chmod(0o755)
    assert probe().accepts_flag("--session-id") and probe(None).accepts_flag("--session-id")
    assert list_calls(box) == ["--help", "--help"]
    assert "state is not stored" in capfd.readouterr().err
    assert list((box.state / "probes").iterdir()) == []


@pytest.mark.parametrize(
    ("help_text", "variant"),
    [
        ("Commands:\n  instruct  Run a prompt\n", "instruct"),
        ("--output-format text|stream-json\n", "stream-json"),
        ("instruct --output-format\n", "stream-json"),
        ("", "stream-json"),
    ],
)
def test_acai_variant_is_detected_from_its_help(probe, help_text, variant):
    vendor = get_adapter("acai")
    assert vendor.cli.variants
    assert vendor.detect_variant(probe(f"printf '%s' '{help_text}'\n").get_help_text()) == variant
    assert variant in vendor.cli.variants


# -- versions --------------------------------------------------------------------------------------

HOW = VersionProbe()


def test_version_is_probed_once_and_cached_with_the_help(box, probe):
    script = '[ "$1" = --version ] && echo 1.2.3 || echo usage --flag\n'
    first = probe(script)
    assert first.ask_version(HOW) == "1.2.3" and first.accepts_flag("--flag")
    second = probe(None)
    assert second.ask_version(HOW) == second.find_cached_version(
        HOW
    ) == "1.2.3" and not second.accepts_flag("--other")
    assert list_calls(box) == ["--version", "--help"]
    (file,) = (box.state / "probes").iterdir()
    assert file.suffix == ".json" and file.stat().st_mode & 0o777 == 0o600


def test_cached_version_is_missing_until_probed(box, probe):
    fresh = probe("echo 1.2.3\n")
    assert fresh.find_cached_version(HOW) is None
    assert list_calls(box) == []
    fresh.ask_version(HOW)
    assert fresh.find_cached_version(VersionProbe(args=("version",))) is None, (
        "that is another question"
    )


def test_refresh_probes_the_version_a_second_time(box, probe):
    """The file of a launcher may stay unchanged while the program that it starts is updated."""
    version_file = box.path / "said"
    version_file.write_text("1.0.0\n", encoding="utf-8")
    first_probe = probe(f"cat {version_file}\n")
    assert first_probe.ask_version(HOW) == "1.0.0"
    version_file.write_text("2.0.0\n", encoding="utf-8")
    assert first_probe.ask_version(HOW) == "1.0.0"
    assert (
        first_probe.ask_version(HOW, refresh=True)
        == "2.0.0"
        == probe(None).find_cached_version(HOW)
    )


def test_version_on_stdout_takes_precedence_over_stderr(probe):
    assert probe("echo 0.73.1 >&2\n").ask_version(HOW) == "0.73.1"
    assert probe("echo 'node 18.19 is old' >&2; echo 1.5.2\n").ask_version(HOW) == "1.5.2"


def test_version_is_read_from_oversized_output(monkeypatch, probe):
    monkeypatch.setattr(probes, "PROBE_TIMEOUT_S", 30)
    assert (
        probe("echo 1.2.3; head -c 20000000 /dev/zero | tr '\\0' x\n").ask_version(HOW) == "1.2.3"
    )


def test_missing_interpreter_is_reported_and_not_cached(box, probe):
    broken = probe("echo \"env: 'node': No such file or directory\" >&2; exit 127\n")
    assert broken.ask_version(HOW) is None
    assert broken.failure == "env: 'node': No such file or directory"
    assert list((box.state / "probes").iterdir()) == []


@pytest.mark.parametrize(
    ("script", "failure"),
    [
        ("exec sleep 30\n", "the program did not answer within 0.2 s"),
        ("exit 3\n", "the program printed nothing and exited with status 3"),
    ],
)
def test_failed_version_probe_reports_its_reason(monkeypatch, probe, script, failure):
    if "sleep" in script:
        monkeypatch.setattr(probes, "PROBE_TIMEOUT_S", 0.2)
    first_probe = probe(script)
    assert first_probe.ask_version(HOW) is None
    assert first_probe.failure == failure


def test_probe_does_not_wait_for_background_processes(box, monkeypatch):
    """An updater in the background keeps the stdout of the program open. It is ended after the
    probe.
    """
    monkeypatch.setattr(probes, "PROBE_TIMEOUT_S", 30)
    lifeline = box.create_lifeline()
    path = box.write_program(
        "program", f"echo 1.2.3; (exec 3> {lifeline.path}; exec sleep 300) &\n"
    )
    assert (
        ProgramProbe([path], box.build_environment(), box.build_environment()).ask_version(HOW)
        == "1.2.3"
    )
    assert lifeline.wait_until_closed_or_unused()


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"--version": 7}', b"\xff" * 100])
def test_damaged_cache_file_is_ignored(box, probe, content):
    first_probe = probe("echo 1.2.3\n")
    first_probe.ask_version(HOW)
    (file,) = (box.state / "probes").iterdir()
    file.write_bytes(content)
    assert probe(None).find_cached_version(HOW) is None
    assert probe(None).ask_version(HOW) == "1.2.3"


def test_oldest_cache_files_are_removed(box, probe, monkeypatch):
    monkeypatch.setattr(probes, "MAX_CACHED_PROGRAMS", 2)
    for age in range(1, 5):
        probe(f"echo {'x' * age} 1.2.{age}\n").ask_version(HOW)
        (box.bin / "program").touch()
        for file in (box.state / "probes").iterdir():
            os.utime(file, ns=(file.stat().st_mtime_ns - 10**9,) * 2)
    assert len(list((box.state / "probes").iterdir())) == 2
    assert probe("echo xxxx 1.2.4\n").ask_version(HOW) == "1.2.4"


def test_models_are_listed_only_after_caching(box, probe):
    how = ModelProbe(("models",))
    program = probe("[ $# = 1 ] && [ $1 = models ] && printf 'a/b\\nc\\n'\n")
    assert program.list_cached_models(how) == [] and list_calls(box) == []
    program.cache_models(how)
    assert program.list_cached_models(how) == ["a/b", "c"]
    program.cache_models(ModelProbe())
    assert list_calls(box) == ["models"]
