"""`shim conform`: every rule fails if it is broken and passes if it is kept. No tested command can
cause harm.
"""

import json
import os
import signal
import subprocess
import sys
from functools import partial

import anyio
import pytest
import sweeps
from box import TIMEOUT_S, Box, build_stand_in_command, start_shim
from fork_worker import Forked, possible
from transcript_defects import EDITS, apply_edit

from shim.bridge import registry
from shim.bridge.stop import stop_hosts
from shim.commands.conform import cli_rules as conform_doors
from shim.commands.conform import control_rules as conform_control
from shim.commands.conform import observations as conform_observations
from shim.commands.conform import process as conform_process
from shim.commands.conform import runner as conform
from shim.commands.conform import scenarios as conform_runs
from shim.commands.conform.scenarios import ConformanceOptions
from shim.core.errors import ShimError
from shim.process import child, spawn
from tests.program.test_threats import ESCAPES, visible

FAKE = build_stand_in_command("fake_claude")
# Timeouts for a command that does not answer. A busy machine needs the longer ones.
SOON = (0.25, 1.0, TIMEOUT_S)
DOORS = ()
# Each continues with the session of an earlier one.
SESSION_RUNS = {"session", "resume", "fork", "continue", "session-again"}

# A defect of transcript_defects.py, or of fake_claude.py, which is executed → the rule that detects
# it, and the required runs, in the order of the rules.
MISTAKES, REQUESTS, CONVERSATION, QUEUE = (
    ("run_invalid_arguments",),
    ("run_control_protocol",),
    ("run_conversation",),
    ("run_queued_messages",),
)
TOOLS, INTERRUPT, SESSIONS, OUTPUTS, ENDS = (
    ("run_tool_calls",),
    ("run_interrupted_turn",),
    ("run_resumed_sessions",),
    ("run_output_formats",),
    ("run_terminated_turns",),
)
DEFECTS = {
    "version-text": ("version", DOORS),
    "version-old": ("version", DOORS),
    "version-reads": ("version", DOORS),
    "version-only-first": ("version", DOORS),
    "needs-print": ("needs-no-print", OUTPUTS),
    "no-equals": ("forms-of-values", QUEUE),
    "strict-flags": ("unknown-flag", REQUESTS),
    "not-variadic": ("variadic", MISTAKES),
    "takes-positional": ("positional-beside-messages", REQUESTS),
    "stdin-unread": ("prompt-on-stdin", OUTPUTS),
    "noise": ("only-lines", CONVERSATION),
    "no-newline": ("only-lines", CONVERSATION),
    "null": ("every-line-has-a-type", CONVERSATION),
    "array": ("every-line-has-a-type", CONVERSATION),
    "no-type": ("every-line-has-a-type", CONVERSATION),
    "half-line": ("every-object-is-whole", CONVERSATION),
    "nan": ("every-object-is-whole", CONVERSATION),
    "bad-utf8": ("utf8", CONVERSATION),
    "long-line": ("lines-end", CONVERSATION),
    "long-for-yume": ("short-lines-for-yume", SESSIONS),
    "mistakes-exit-0": ("bad-values", MISTAKES),
    "bad-values-pass": ("bad-values", MISTAKES),
    "bad-values-silent": ("bad-values", MISTAKES),
    "error-exit-0": ("errors-exit-1", MISTAKES),
    "sigterm-0": ("sigterm", ENDS),
    "sigint-1": ("sigint", ENDS),
    "good-exit-1": ("good-results-exit-0", QUEUE),
    "early-init": ("nothing-without-a-message", REQUESTS),
    "one-message-only": ("the-end-of-stdin-waits", QUEUE),
    "leaves-after-result": ("it-stays", CONVERSATION),
    "sigint-silent": ("sigint-says-so", ENDS),
    "orphan": ("nothing-survives", ENDS),
    "nobody-reads": ("nobody-reads", ENDS),
    "waits-for-stdin": ("silent-stdin", SESSIONS),
    "no-init": ("turns-have-their-order", CONVERSATION),
    "no-result": ("turns-have-their-order", QUEUE),
    "two-results": ("turns-have-their-order", QUEUE),
    "talk-behind-result": ("turns-have-their-order", QUEUE),
    "init-without-tools": ("init-is-complete", CONVERSATION),
    "init-with-a-tool-text": ("init-is-complete", CONVERSATION),
    "no-uuid": ("ids", CONVERSATION),
    "other-session-id": ("ids", CONVERSATION),
    "two-blocks": ("one-block-a-line", CONVERSATION),
    "stop-reason": ("one-block-a-line", CONVERSATION),
    "no-message-id": ("messages-are-whole", CONVERSATION),
    "no-counts": ("messages-are-whole", CONVERSATION),
    "no-parent": ("messages-are-whole", CONVERSATION),
    "content-is-text": ("messages-are-whole", CONVERSATION),
    "message-is-text": ("messages-are-whole", CONVERSATION),
    "text-without-text": ("blocks-are-whole", QUEUE),
    "call-without-input": ("blocks-are-whole", TOOLS),
    "result-without-content": ("results-follow-their-calls", TOOLS),
    "result-of-nobody": ("results-follow-their-calls", TOOLS),
    "no-tool-use-result": ("results-tell-more", TOOLS),
    "result-without-usage": ("result-is-complete", CONVERSATION),
    "result-with-a-duration-text": ("result-is-complete", CONVERSATION),
    "result-without-text": ("result-is-complete", CONVERSATION),
    "api-silent": ("api-failures", CONVERSATION),
    "no-message-start": ("partial-grammar", CONVERSATION),
    "no-message-stop": ("partial-grammar", CONVERSATION),
    "other-message": ("partial-grammar", CONVERSATION),
    "other-index": ("partial-grammar", CONVERSATION),
    "line-behind-block": ("partial-grammar", CONVERSATION),
    "block-stays-open": ("partial-grammar", CONVERSATION),
    "unasked-event": ("no-partial-unasked", QUEUE),
    "event-without-parent": ("partial-fields", CONVERSATION),
    "start-without-usage": ("partial-fields", CONVERSATION),
    "delta-without-usage": ("partial-fields", CONVERSATION),
    "deltas-differ": ("deltas-add-up", CONVERSATION),
    "type-last": ("type-comes-first", CONVERSATION),
    "stop-behind-error": ("errors-are-last", INTERRUPT),
    "call-unanswered": ("every-call-is-answered", TOOLS),
    "end-line": ("no-word-of-the-sdks", QUEUE),
    "state-running": ("states", CONVERSATION),
    "no-terminator": ("terminator", SESSIONS),
    "initialize-error": ("initialize", REQUESTS),
    "initialize-once": ("initialize-at-any-time", (*REQUESTS, *QUEUE, *CONVERSATION)),
    "no-models": ("initialize-is-complete", REQUESTS),
    "no-account": ("initialize-is-complete", REQUESTS),
    "wrong-id": ("envelope", CONVERSATION),
    "error-without-text": ("envelope", REQUESTS),
    "unknown-unanswered": ("unknown-request", REQUESTS),
    "unknown-succeeds": ("unknown-request", REQUESTS),
    "no-interrupt": ("idle-interrupt", REQUESTS),
    "idle-interrupt-talks": ("idle-interrupt", REQUESTS),
    "no-interrupt-line": ("interrupt", INTERRUPT),
    "interrupt-other-result": ("interrupt", INTERRUPT),
    "leaves-after-interrupt": ("life-after-an-interrupt", INTERRUPT),
    "set-model-silent": ("set-model", CONVERSATION),
    "set-model-lost": ("set-model", CONVERSATION),
    "mode-unsaid": ("set-permission-mode", CONVERSATION),
    "mode-lost": ("set-permission-mode", CONVERSATION),
    "any-mode": ("bad-mode", REQUESTS),
    "mcp-status-empty": ("requests", REQUESTS),
    "rewinds": ("requests", REQUESTS),
    "question-first": ("questions-stand-behind-their-calls", TOOLS),
    "denial-unsaid": ("denied", TOOLS),
    "denies-all": ("allowed", TOOLS),
    "question-stays": ("questions-are-taken-back", TOOLS),
    "no-pre-hook": ("hooks", TOOLS),
    "no-stop-hook": ("hooks", TOOLS),
    "hook-without-event": ("hooks", TOOLS),
    "blank-is-fatal": ("odd-lines", REQUESTS),
    "unknown-type-is-fatal": ("odd-lines", REQUESTS),
    "last-line-lost": ("odd-lines", REQUESTS),
    "no-id-unanswered": ("request-without-id", REQUESTS),
    "not-json-is-fatal": ("bad-lines", REQUESTS),
    "no-message-is-fatal": ("bad-lines", REQUESTS),
    "blocks-ignored": ("messages", CONVERSATION),
    "no-replay": ("replayed", QUEUE),
    "last-first": ("queued", QUEUE),
    "text-empty": ("text", OUTPUTS),
    "text-is-json": ("text", OUTPUTS),
    "json-is-many": ("json", OUTPUTS),
    "verbose-is-one": ("json-verbose", SESSIONS),
    "wants-verbose": ("needs-no-verbose", OUTPUTS),
    "flags-alone-pass": ("flags-alone", MISTAKES),
    "no-prompt-passes": ("no-prompt", MISTAKES),
    "other-session": ("chosen-session", SESSIONS),
    "fork-is-the-same": ("forked-session", SESSIONS),
    "continue-begins": ("continued-session", SESSIONS),
    "session-twice": ("bad-sessions", SESSIONS + MISTAKES),
    "unknown-resumes": ("unknown-session", MISTAKES),
    "unknown-with-init": ("unknown-session", MISTAKES),
    "unknown-unsaid": ("unknown-session", MISTAKES),
    "unknown-in-text": ("unknown-session-in-text", MISTAKES),
    "tools-kept": ("tools", QUEUE),
    "disallowed-kept": ("tools", SESSIONS),
    "specifier-removes": ("tools", SESSIONS),
    "no-limit": ("max-turns", OUTPUTS),
    "auth-is-a-prompt": ("auth", DOORS),
    "auth-unsaid": ("auth", DOORS),
    "auth-exit-1": ("auth", DOORS),
    "no-help": ("help", DOORS),
}
# Rules with time limits: no test waits until they are broken. The test sets the limit to zero.
TIMES = {
    "version-is-quick": ("VERSION_TIMEOUT_S", DOORS),
    "it-leaves": ("EXIT_TIMEOUT_S", REQUESTS),
    "help": ("HELP_TIMEOUT_S", DOORS),
}


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    """Raise every time limit above a test's timeout, so that a loaded machine breaks no rule."""
    for name, _ in TIMES.values():
        monkeypatch.setattr(conform_doors, name, 10 * TIMEOUT_S)
    monkeypatch.setattr(conform_control, "MAX_INTERRUPT_SECONDS", 10 * TIMEOUT_S)
    monkeypatch.setattr(conform_process, "DESCENDANTS_TIMEOUT_S", TIMEOUT_S)


@pytest.fixture(scope="module")
def valid_observations(tmp_path_factory):
    """Yield the observations of a fake that keeps every rule."""
    fake_box = Box(tmp_path_factory.mktemp("kept"))
    with pytest.MonkeyPatch.context() as patch:
        use_forks(patch)
        yield anyio.run(
            conform._collect_observations,
            FAKE,
            fake_box.build_environment(),
            ConformanceOptions(),
            TIMEOUT_S,
        )
    fake_box.close()


def use_forks(monkeypatch):
    """Fork the tested commands from a process that has imported them already. Execute all others,
    and all of them in `make full`.
    """
    execute = spawn._start_by_subprocess

    def start(command, environment, cwd, *, opens_stdin):
        pipes = {
            "stdin": subprocess.PIPE if opens_stdin else subprocess.DEVNULL,
            "stdout": subprocess.PIPE,
        }
        options = pipes | {
            "stderr": subprocess.PIPE,
            "env": environment,
            "cwd": cwd,
            "start_new_session": True,
        }
        if command[: len(FAKE)] == FAKE:
            return Forked(command[len(FAKE) :], program=FAKE[-1], **options)
        if command[: len(OURS)] == OURS:
            return start_shim(["claude", *command[len(OURS) :]], **options)
        return execute(command, environment, cwd, opens_stdin=opens_stdin)

    if possible and not sweeps.full:
        monkeypatch.setattr(spawn, "_start_by_subprocess", start)


@pytest.fixture
def fork_patch(monkeypatch):
    use_forks(monkeypatch)


class Watched(dict):
    """Runs that record which of them were read."""

    def __init__(self, runs):
        super().__init__(runs)
        self.looked_at = set()

    def __getitem__(self, name):
        self.looked_at.add(name)
        return super().__getitem__(name)

    def values(self):
        self.looked_at |= set(self)
        return super().values()


class WatchedObservations(conform_observations.ObservedCommandRuns):
    def get_stream_json_runs(self):
        self.runs.looked_at |= conform_observations.STREAM_RUNS
        return [
            run for run in dict.values(self.runs) if run.name in conform_observations.STREAM_RUNS
        ]


def runs_of(rule, valid_observations):
    """Return the names of the runs that decide a rule. Runs with a common session need each
    other.
    """
    watched = Watched(valid_observations.runs)
    (chosen,) = (candidate for candidate in conform.RULES if candidate.name == rule)
    conform.evaluate_conformance_rule(chosen, WatchedObservations(runs=watched))
    return watched.looked_at


@pytest.fixture
def only(valid_observations, monkeypatch):
    """Return a function that runs only these runs and takes all others from the fake that keeps
    every rule.
    """

    def choose(names):
        original_method = conform._RunPool.run_command

        async def run_if_chosen(bench, folder, run, *args):
            if run.name in names:
                await original_method(bench, folder, run, *args)
            else:
                bench.observations.runs[run.name] = valid_observations.runs[run.name]

        monkeypatch.setattr(conform._RunPool, "run_command", run_if_chosen)

    return choose


@pytest.fixture
def see(local_box, fork_patch, monkeypatch):
    """Return a function that runs some chains with the fake. It returns the verdict of every rule
    by name.
    """

    def collect_findings(defect="", chains=None, timeout_s=TIMEOUT_S, **options):
        monkeypatch.setenv("FAKE_DEFECT", defect)
        if chains is not None:
            monkeypatch.setattr(
                conform, "SCENARIOS", [getattr(conform_runs, name) for name in chains]
            )
        results = conform.run_and_evaluate_conformance_rules(
            FAKE, os.environ, os.getcwd(), ConformanceOptions(**options), timeout_s
        )
        return {finding.rule.name: finding for finding in results}

    return collect_findings


def verdicts(findings):
    return {name: finding.verdict for name, finding in findings.items()}


def describe_failures(findings):
    return {
        name: f"{finding.detail} {finding.output_text}"
        for name, finding in findings.items()
        if finding.verdict == "fail"
    }


# -- the rules -------------------------------------------------------------------------------------


def test_valid_command_passes_every_rule(valid_observations):
    findings = {
        rule.name: conform.evaluate_conformance_rule(rule, valid_observations)
        for rule in conform.RULES
    }
    assert describe_failures(findings) == {}
    assert {name for name, outcome in verdicts(findings).items() if outcome == "skipped"} == {
        "api-failures"
    }


# The defects that are executed. `make test` executes one for each rule that no transcript breaks.
EXECUTED = {defect: row for defect, row in DEFECTS.items() if defect not in EDITS}
BY_TRANSCRIPT = {DEFECTS[defect][0] for defect in EDITS}
FIRST = {
    rule: defect for defect, (rule, _) in reversed(EXECUTED.items()) if rule not in BY_TRANSCRIPT
}


@pytest.mark.parametrize("defect", EDITS)
def test_transcript_defect_fails_its_rule(valid_observations, defect):
    rule, _ = DEFECTS[defect]
    observations = conform_observations.ObservedCommandRuns(
        {name: apply_edit(run, EDITS[defect]) for name, run in valid_observations.runs.items()}
    )
    (chosen,) = [candidate for candidate in conform.RULES if candidate.name == rule]
    finding = conform.evaluate_conformance_rule(chosen, observations)
    assert finding.verdict == "fail", finding.detail
    assert finding.detail and finding.run and finding.input_text


@pytest.mark.parametrize(
    ("defect", "rule", "chains"),
    [
        pytest.param(
            defect, rule, chains, marks=() if FIRST.get(rule) == defect else pytest.mark.full
        )
        for defect, (rule, chains) in EXECUTED.items()
    ],
)
def test_executed_defect_fails_its_rule(
    see, only, valid_observations, monkeypatch, defect, rule, chains
):
    monkeypatch.setattr(conform_process, "DESCENDANTS_TIMEOUT_S", 0.2)
    monkeypatch.setattr(conform_process, "SIGTERM_TIMEOUT_S", 0.2)
    names = runs_of(rule, valid_observations)
    assert names, f"{rule} looks at no run"
    if "run_resumed_sessions" in chains and names & SESSION_RUNS:
        names |= SESSION_RUNS
    only(names)
    for timeout_s in SOON:
        finding = see(defect, chains, timeout_s)[rule]
        if finding.verdict != "skipped":
            break
    assert finding.verdict == "fail", finding.found
    assert finding.detail and finding.run and finding.input_text


@pytest.mark.parametrize(
    ("rule", "constant", "chains"), [(rule, *time) for rule, time in TIMES.items()]
)
def test_exceeded_time_limit_fails_its_rule(see, monkeypatch, rule, constant, chains):
    monkeypatch.setattr(conform_doors, constant, 0.0)
    assert see("", chains)[rule].verdict == "fail"


def test_ignored_interrupt_fails_only_after_max_interrupt_seconds(see, monkeypatch):
    assert see("interrupt-ignored", INTERRUPT)["interrupt"].verdict == "skipped"
    monkeypatch.setattr(conform_control, "MAX_INTERRUPT_SECONDS", 0.0)
    assert see("interrupt-ignored", INTERRUPT)["interrupt"].verdict == "fail"


def test_init_before_the_first_message_fails_its_rule(see):
    assert see("early-init", CONVERSATION)["init-waits-for-a-message"].verdict == "fail"


def test_unchanged_transcript_passes_every_rule(valid_observations):
    observations = conform_observations.ObservedCommandRuns(
        {
            name: apply_edit(run, lambda kind, line: [line])
            for name, run in valid_observations.runs.items()
        }
    )
    assert (
        describe_failures(
            {
                rule.name: conform.evaluate_conformance_rule(rule, observations)
                for rule in conform.RULES
            }
        )
        == {}
    )


def test_every_rule_has_a_defect():
    """A check without a defect might never fail."""
    rule_names = {rule for rule, _ in DEFECTS.values()} | set(TIMES) | {"init-waits-for-a-message"}
    assert {rule.name for rule in conform.RULES} == rule_names


def test_rule_names_are_unique():
    names = [rule.name for rule in conform.RULES]
    assert len(set(names)) == len(names)


def test_api_failure_fails_no_rule(see):
    findings = see("api-failure")
    assert describe_failures(findings) == {}
    assert findings["api-failures"].verdict == "pass"
    assert findings["text"].detail == "the requests to the model failed"


def test_mode_refused_with_a_reason_is_skipped(see):
    finding = see("mode-refused", CONVERSATION)["set-permission-mode"]
    assert (finding.verdict, finding.detail) == (
        "skipped",
        "the command refuses acceptEdits: this agent has no such mode",
    )


def test_tool_call_rules_are_skipped_without_a_tool_call(see):
    findings = verdicts(see("", TOOLS, tool_prompt="hello"))
    for name in (
        "every-call-is-answered",
        "results-follow-their-calls",
        "results-tell-more",
        "denied",
        "allowed",
    ):
        assert findings[name] == "skipped"


# -- selection of rules and runs -------------------------------------------------------------------


def test_real_claude_is_not_checked_against_drop_in_rules(see):
    lenient = {
        "unknown-flag",
        "lines-end",
        "short-lines-for-yume",
        "bad-lines",
        "needs-no-verbose",
        "terminator",
    }
    assert lenient == {rule.name for rule in conform.RULES if rule.scope == "drop-in"}
    findings = see("strict-flags", REQUESTS, drop_in=False)
    assert not lenient & set(findings) and describe_failures(findings) == {}


@pytest.mark.parametrize(
    ("frontend", "checked_rules", "unseen"),
    [
        (
            {"yume": False},
            {"initialize", "queued", "it-stays"},
            {"terminator", "chosen-session", "text"},
        ),
        (
            {"sdk": False},
            {"terminator", "chosen-session", "text"},
            {"initialize", "queued", "it-stays"},
        ),
    ],
    ids=["sdk", "yume"],
)
def test_check_of_a_single_frontend_skips_the_rules_of_the_other(
    see, frontend, checked_rules, unseen
):
    findings = see(**frontend)
    assert describe_failures(findings) == {}
    assert {findings[name].verdict for name in checked_rules | {"version", "no-prompt"}} == {"pass"}
    assert {findings[name].verdict for name in unseen} == {"skipped"}


def test_number_of_runs_is_limited_to_max_runs(see, monkeypatch):
    monkeypatch.setattr(conform, "MAX_RUNS", 4)
    findings = see("", CONVERSATION)
    assert findings["version"].verdict == "pass"
    assert findings["it-stays"].detail == "not run: the limit of 4 runs was reached"


def test_valid_command_needs_fewer_runs_than_max_runs(valid_observations):
    assert not valid_observations.skip_reasons and len(valid_observations.runs) < conform.MAX_RUNS
    assert set(valid_observations.runs) >= conform_observations.STREAM_RUNS


# -- harmful commands ------------------------------------------------------------------------------


def program(box, script):
    return [box.write_program("claude", script)]


def check_command(command, timeout_s=0.1, **options):
    results = conform.run_and_evaluate_conformance_rules(
        command, os.environ, os.getcwd(), ConformanceOptions(**options), timeout_s
    )
    return {finding.rule.name: finding for finding in results}


def test_hanging_command_is_killed_and_later_runs_are_skipped(local_box, monkeypatch):
    monkeypatch.setattr(conform_process, "SIGTERM_TIMEOUT_S", 0.1)
    lifeline = local_box.create_lifeline()
    findings = check_command(
        program(local_box, f"exec 9>{lifeline.path}; trap '' TERM; while :; do sleep 30; done\n")
    )
    assert (
        findings["version"].verdict == "fail"
        and "timed out waiting for" in findings["version"].detail
    )
    assert findings["initialize"].detail == f"not run: {conform.MAX_HUNG_RUNS} earlier runs hung"
    assert lifeline.wait_until_closed_or_unused()


def test_command_that_floods_stdout_is_cut_off(local_box, monkeypatch):
    monkeypatch.setattr(conform_process, "MAX_STDOUT_BYTES", 10_000)
    monkeypatch.setattr(child, "CHUNK_BYTES", 4096)
    findings = check_command(program(local_box, "exec yes conform\n"), TIMEOUT_S)
    assert (
        findings["version"].verdict == "fail"
        and "more than the limit for a run" in findings["version"].detail
    )


def test_flood_of_blank_lines_is_cut_off(local_box, monkeypatch):
    monkeypatch.setattr(conform, "SCENARIOS", [])
    monkeypatch.setattr(child, "CHUNK_BYTES", 4096)
    monkeypatch.setattr(conform_process, "MAX_STDOUT_LINES", 1000)
    assert (
        check_command(program(local_box, "exec yes ''\n"), TIMEOUT_S)["version"].verdict == "fail"
    )


def test_flood_of_stderr_does_not_block(local_box, monkeypatch):
    monkeypatch.setattr(conform, "SCENARIOS", [])
    findings = check_command(
        program(local_box, "yes x | head -c 3000000 >&2; echo '2.1.0 (Claude Code)'\n"), TIMEOUT_S
    )
    assert findings["version"].verdict == "pass"


def test_command_that_does_not_read_stdin_times_out(local_box, monkeypatch):
    monkeypatch.setattr(conform, "SCENARIOS", [conform_runs.run_control_protocol])
    monkeypatch.setattr(conform_runs, "REQUESTS", {"x" * 200_000: ({}, {})})
    assert check_command(program(local_box, "exec sleep 30\n"))["initialize"].verdict in (
        "fail",
        "skipped",
    )


def test_command_that_exits_immediately_passes_only_two_rules(local_box):
    """A rule about answers is not satisfied by silence, however fast and exact the command is."""
    findings = check_command(program(local_box, "exit 0\n"), TIMEOUT_S)
    assert {
        findings[name].verdict for name in ("version", "initialize", "text", "chosen-session")
    } == {"fail"}
    passed_rules = {name for name, finding in findings.items() if finding.verdict == "pass"}
    assert passed_rules == {"nothing-without-a-message", "nobody-reads"}


@pytest.mark.parametrize("command", [["no-such-command-at-all"], ["/no/such/claude"], []])
def test_missing_command_raises_an_error_with_a_hint(local_box, command):
    with pytest.raises(ShimError) as caught:
        check_command(command)
    assert caught.value.hint


@pytest.mark.parametrize("defect", ["escapes", "deep", "says-escapes", "message-is-text"])
def test_malformed_output_fails_a_rule_and_is_printed_safely(see, defect):
    findings = see(defect, CONVERSATION, 1.0)
    assert defect == "says-escapes" or describe_failures(findings)
    for finding in findings.values():
        visible(json.dumps(finding.to_json(), ensure_ascii=False))


def test_descendants_of_a_run_are_killed(local_box, monkeypatch):
    monkeypatch.setattr(conform, "SCENARIOS", [])
    monkeypatch.setattr(conform_process, "DRAIN_TIMEOUT_S", 0.1)
    lifeline = local_box.create_lifeline()
    check_command(
        program(
            local_box, f"(exec 9>{lifeline.path}; exec sleep 60) &\necho '2.1.0 (Claude Code)'\n"
        ),
        TIMEOUT_S,
    )
    assert lifeline.wait_until_closed()


def test_environment_is_passed_on_with_the_entrypoint_of_the_frontend(local_box, monkeypatch):
    log_file = local_box.path / "seen"
    monkeypatch.setattr(conform, "SCENARIOS", [conform_runs.run_invalid_arguments])
    monkeypatch.setenv("CLAUDE_CODE_ENTRYPOINT", "another")
    monkeypatch.setenv("MINE", "kept")
    check_command(
        program(local_box, f'echo "$HOME,$MINE,$CLAUDE_CODE_ENTRYPOINT" >> {log_file}; exit 1\n'),
        TIMEOUT_S,
    )
    assert set(log_file.read_text().split()) == {
        f"{local_box.home},kept,",
        f"{local_box.home},kept,sdk-py",
    }


def test_run_removes_its_temporary_files(local_box, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(local_box.path))
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.setattr(conform, "SCENARIOS", [conform_runs.run_invalid_arguments])
    before = set(os.listdir(local_box.path))
    check_command(program(local_box, "pwd > where; mkdir -p x; exit 1\n"), TIMEOUT_S)
    assert set(os.listdir(local_box.path)) == before
    assert os.listdir(local_box.cwd) == []


def test_relative_file_argument_is_resolved_from_the_original_folder(local_box, monkeypatch):
    monkeypatch.setattr(conform, "SCENARIOS", [])
    (local_box.cwd / "fake.sh").write_text("echo '2.1.0 (Claude Code)'\n")
    assert check_command(["sh", "fake.sh"], TIMEOUT_S)["version"].verdict == "pass"


# -- the command -----------------------------------------------------------------------------------


@pytest.fixture
def run_conform(shim, fork_patch, monkeypatch):
    """Return a function that runs `shim conform ARGS -- FAKE` with a defect of the fake and the
    runs of a few chains.
    """

    def run(*args, defect="", command=FAKE, chains=SESSIONS):
        monkeypatch.setenv("FAKE_DEFECT", defect)
        monkeypatch.setattr(conform, "SCENARIOS", [getattr(conform_runs, name) for name in chains])
        return shim("conform", *args, "--", *command)

    return run


def test_json_output_contains_all_rules_and_counts(run_conform):
    status, stdout, complaint = run_conform("--json")
    report = json.loads(stdout)
    assert (status, complaint, report["passed"], report["command"]) == (0, "", True, FAKE)
    assert len(report["rules"]) == len(conform.RULES)
    first = report["rules"][0]
    assert (first["id"], first["level"], first["applies"], first["verdict"]) == (
        "P1",
        "MUST",
        "both",
        "pass",
    )
    assert report["counts"]["MUST"]["pass"] > 20 and "fail" not in report["counts"]["MUST"]


def test_broken_must_rule_exits_with_status_1_and_evidence(run_conform):
    status, stdout, _ = run_conform("--json", defect="other-session")
    (rule_result,) = [
        rule for rule in json.loads(stdout)["rules"] if rule["rule"] == "chosen-session"
    ]
    assert (status, rule_result["verdict"], rule_result["evidence"]["run"]) == (
        1,
        "fail",
        "session",
    )
    assert (
        "--session-id" in rule_result["evidence"]["sent"]
        and '"session_id"' in rule_result["evidence"]["came"]
    )


def test_broken_should_rule_exits_with_status_0(run_conform):
    status, stdout, _ = run_conform("--json", defect="no-terminator")
    assert (status, json.loads(stdout)["counts"]["SHOULD"]["fail"]) == (0, 1)


def test_table_output_escapes_control_characters_and_markup(run_conform):
    status, stdout, _ = run_conform("--timeout", "5", defect="escapes")
    text = stdout.decode()
    assert status == 1
    visible(text)
    assert "\\x1b[31m" in text and "[red]x[/red]" in text, "shown as text, and not as markup"
    assert "P10" in text and "MUST" in text and "fail" in text and "broken" in text


def test_hostile_command_line_is_printed_without_control_characters(run_conform):
    visible(run_conform(command=[*FAKE, ESCAPES], chains=MISTAKES)[1].decode())
    status, _, complaint = run_conform(command=[f"nobody{ESCAPES}"])
    assert status == 1 and "hint: " in complaint
    visible(complaint)


def test_drop_in_rules_are_omitted_for_real_claude(run_conform):
    status, stdout, _ = run_conform("--json", "--as", "real", defect="no-terminator")
    assert all(rule["applies"] == "both" for rule in json.loads(stdout)["rules"])
    assert status == 0


@pytest.mark.parametrize(("frontend", "made"), [("sdk", False), ("yume", True), ("all", True)])
def test_frontend_option_selects_the_runs(run_conform, frontend, made):
    rules = json.loads(run_conform("--json", "--frontend", frontend)[1])["rules"]
    (rule_result,) = [rule for rule in rules if rule["rule"] == "chosen-session"]
    assert (rule_result["verdict"] == "pass") == made


def test_prompt_options_are_passed_to_the_command(shim, local_box, monkeypatch):
    monkeypatch.setattr(
        conform, "SCENARIOS", [conform_runs.run_output_formats, conform_runs.run_terminated_turns]
    )
    log_file = local_box.path / "seen"
    command = local_box.write_program("claude", f'printf "%s\n" "$@" >> {log_file}; exit 1\n')
    shim(
        "conform",
        "--prompt",
        "a one",
        "--tool-prompt",
        "a two",
        "--long-prompt",
        "a three",
        "--",
        command,
    )
    assert {"a one", "a two", "a three"} <= set(log_file.read_text().splitlines())


@pytest.mark.parametrize(
    "args",
    [(), ("--as", "another", "--", "x"), ("--frontend", "x", "--", "x"), ("--timeout", "0", "--", "x"),
     ("--prompt", "", "--", "x"), ("--tool-prompt", "-x", "--", "x")],
)  # fmt: skip
def test_invalid_arguments_exit_with_status_2(box, args):
    done = box.run_shim("conform", *args)
    assert (done.status, done.stdout) == (2, b"")
    assert "Traceback" not in done.stderr


def test_ctrl_c_kills_the_running_command(box):
    lifeline = box.create_lifeline()
    command = box.write_program(
        "claude",
        f"exec 9>{lifeline.path}; echo up $$ >&9; trap '' INT; while :; do sleep 30; done\n",
    )
    process = start_shim(
        ["conform", "--", command], env=box.build_environment(), cwd=box.cwd, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip
    lifeline.wait_for("up")
    process.send_signal(signal.SIGINT)
    _, complaint = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode not in (0, 2) and b"Traceback" not in complaint
    assert lifeline.wait_until_closed()


def test_cancelled_run_kills_a_command_that_ignores_sigterm(local_box, monkeypatch):
    monkeypatch.setattr(conform_process, "SIGTERM_TIMEOUT_S", 0.1)
    lifeline = local_box.create_lifeline()
    script = (
        f"exec 9>{lifeline.path}; trap '' INT TERM; echo up $$ >&9; while :; do sleep 30; done\n"
    )

    async def cancel():
        async with anyio.create_task_group() as tasks:
            run = conform_process.CommandRun("ends", "any", ())
            start = (
                program(local_box, script),
                dict(os.environ),
                os.getcwd(),
                conform._close_stdin,
                TIMEOUT_S,
            )
            tasks.start_soon(
                partial(conform_process.run_command_with_script, run, *start, has_stdin=True)
            )
            await anyio.to_thread.run_sync(lifeline.wait_for, "up")
            tasks.cancel_scope.cancel()

    anyio.run(cancel)
    assert lifeline.wait_until_closed()


# -- the shim itself -------------------------------------------------------------------------------

OURS = [sys.executable, "-I", "-m", "shim", "claude"]
# What a replay cannot show: it never asks, and its requests never fail.
UNSEEN_IN_DEMO = {
    "api-failures",
    "questions-stand-behind-their-calls",
    "denied",
    "allowed",
    "questions-are-taken-back",
}


# These runs need turns that are long enough to be interrupted. All others replay without pauses.
LONG = (conform_runs.run_interrupted_turn, conform_runs.run_terminated_turns)
GROUPS = {
    "long turns": (LONG, 0.4),
    "sessions": ((conform_runs.run_resumed_sessions,), 0.0),
    "the others": (
        tuple(
            scenario
            for scenario in conform_runs.SCENARIOS
            if scenario not in (*LONG, conform_runs.run_resumed_sessions)
        ),
        0.0,
    ),
}


def check_ours(monkeypatch, vendor, record):
    """Run the checks as an SDK and as Yume would start the shim. Return the rules that are not
    shown.
    """
    # The demo vendor pauses as a model does, and so does its replay.
    monkeypatch.setattr(conform, "MAX_PARALLEL_RUNS", 8)
    monkeypatch.setenv("SHIM_VENDOR", vendor)
    monkeypatch.setenv("SHIM_RECORD", record)
    findings = check_command(OURS, 120.0)  # for a busy machine
    assert describe_failures(findings) == {}
    return {name for name, finding in findings.items() if finding.verdict == "skipped"}


def unseen_of(valid_observations, chains):
    """Return the rules that the runs of some chains do not show."""
    made = {
        run
        for scenario in (conform_runs.run_version_help_and_auth_commands, *chains)
        for run in names_of(scenario)
    }
    observations = conform_observations.ObservedCommandRuns(
        {name: run for name, run in valid_observations.runs.items() if name in made}
    )
    return {
        rule.name
        for rule in conform.RULES
        if conform.evaluate_conformance_rule(rule, observations).verdict == "skipped"
    }


def names_of(scenario):
    """Return the names of a chain's runs."""
    names = []

    class RunNameCollector:
        options = ConformanceOptions()

        async def run_command(self, name, frontend, *argv, **options):
            names.append(name)
            return conform_process.CommandRun(name, frontend, argv)

    anyio.run(scenario, RunNameCollector())
    return names


@pytest.mark.parametrize("group", GROUPS)
def test_shim_passes_every_rule(local_box, fork_patch, valid_observations, monkeypatch, group):
    chains, pace = GROUPS[group]
    monkeypatch.setattr(conform, "SCENARIOS", chains)
    monkeypatch.setenv("SHIM_BIN", local_box.create_demo_program(pace))
    assert (
        check_ours(monkeypatch, "demo", "")
        <= unseen_of(valid_observations, chains) | UNSEEN_IN_DEMO
    )


def test_every_rule_is_covered_by_a_group(valid_observations):
    assert {scenario for chains, _ in GROUPS.values() for scenario in chains} == set(
        conform_runs.SCENARIOS
    )
    unseen = [unseen_of(valid_observations, chains) for chains, _ in GROUPS.values()]
    assert set.intersection(*unseen) == {"api-failures"}


@pytest.mark.full
def test_shim_passes_every_rule_with_conversations_in_hosts(local_box, fork_patch, monkeypatch):
    monkeypatch.setenv("SHIM_BRIDGE", "1")
    monkeypatch.setenv("SHIM_BIN", local_box.create_demo_program(0.4))
    try:
        assert check_ours(monkeypatch, "demo", "") == UNSEEN_IN_DEMO
        assert registry.list_sessions(os.environ), "they lived in hosts"
    finally:
        assert stop_hosts(registry.list_sessions(os.environ), os.environ) == []


@pytest.mark.full
def test_replay_of_recorded_conversations_passes_every_rule(local_box, monkeypatch):
    folder = local_box.path / "casts"
    folder.mkdir(mode=0o700)
    for vendor, record in (("demo", f"{folder}/"), (f"replay:{folder}", "")):
        assert check_ours(monkeypatch, vendor, record) == UNSEEN_IN_DEMO
