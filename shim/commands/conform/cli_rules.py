"""Defines conformance rules about the process: subcommands, arguments, stdin, exit codes and
signals (contract 1, 4, 11).
"""

import json
import re

from shim.commands.conform.observations import (
    DROP_IN,
    ConformanceRuleSet,
    ObservedCommandRuns,
    ObservedTurn,
    RuleNotObservedError,
    RuleViolationError,
    describe_missing_output,
    fail_rule_if,
    has_interrupt_text,
    list_turns_with_api_error,
    skip_rule_if,
    split_run_into_turns,
)
from shim.commands.conform.process import CommandRun, is_result_line
from shim.core.reading.diagnostics import pluralize
from shim.core.reading.values import list_dicts

VERSION = re.compile(rb"(\d+)\.(\d+)\.(\d+) \(Claude Code\)\n")
MIN_MAJOR_VERSION = 2  # the SDKs warn about lower versions or refuse them
VERSION_TIMEOUT_S = 2.0  # the Python SDK waits this long for the output of `--version`
HELP_TIMEOUT_S = 10.0  # a frontend's timeout for the help text
EXIT_TIMEOUT_S = 5.0  # the Python SDK sends SIGTERM this long after the end of stdin
NO_INPUT_TEXT = "Input must be provided either through stdin or as a prompt argument"

RULES = ConformanceRuleSet()


def require_exit_without_kill(run: CommandRun) -> CommandRun:
    """Return the run. Raise RuleViolationError if the command had to be killed."""
    fail_rule_if(
        run.exit_status is None, f"the command did not exit{describe_missing_output(run)}", run
    )
    return run


def require_usage_error(run: CommandRun, *texts: str) -> None:
    """Raise RuleViolationError unless the run ended with a usage error: exit status 1, nothing on
    stdout, and one of `texts` on stderr.
    """
    fail_rule_if(
        require_exit_without_kill(run).exit_status != 1,
        f"the exit status is {run.exit_status}, not 1",
        run,
    )
    fail_rule_if(run.stdout.strip(), "something was printed on stdout", run, run.stdout)
    if texts and not any(text in run.stderr for text in texts):
        raise RuleViolationError(f"stderr does not contain {texts[0]!r}", run)


def require_successful_exit(run: CommandRun) -> CommandRun:
    """Return the run. Raise RuleViolationError unless the command exited by itself with status 0."""
    fail_rule_if(
        require_exit_without_kill(run).exit_status != 0,
        f"the exit status is {run.exit_status}, not 0",
        run,
    )
    return run


def require_printed_answer(observations: ObservedCommandRuns, run: CommandRun) -> CommandRun:
    """Return the run. Raise RuleViolationError unless the command printed an answer and exited with
    status 0.

    Raise RuleNotObservedError if the run failed and requests to the model also failed in other
    runs.
    """
    if require_exit_without_kill(run).exit_status == 1 and list_turns_with_api_error(observations):
        raise RuleNotObservedError("the requests to the model failed")
    fail_rule_if(not require_successful_exit(run).stdout.strip(), "nothing was printed", run)
    return run


# -- subcommands -----------------------------------------------------------------------------------


@RULES.register_must_rule(
    "P1",
    "`--version` and `-v`, also after other flags, print `X.Y.Z (Claude Code)` and exit 0; "
    "stdin is not read.",
)
def _version(observations: ObservedCommandRuns) -> str:
    for name in ("version", "version-among"):
        run = require_successful_exit(observations.get_run(name))
        version = VERSION.fullmatch(bytes(run.stdout))
        if not version:
            raise RuleViolationError("the output is not a version number", run, run.stdout)
        fail_rule_if(
            int(version[1]) < MIN_MAJOR_VERSION, "the version is below 2.0.0", run, run.stdout
        )
    return run.stdout.decode().strip()


@RULES.register_should_rule(
    "P2",
    f"The version is printed within {VERSION_TIMEOUT_S:.0f} s, the timeout of the Python SDK.",
)
def _version_is_quick(observations: ObservedCommandRuns) -> str:
    duration_s = min(
        require_exit_without_kill(run).ended_at
        for run in observations.get_runs("version", "version-among")
    )
    if not any(
        VERSION.fullmatch(bytes(run.stdout))
        for run in observations.get_runs("version", "version-among")
    ):
        raise RuleNotObservedError("no version was printed")
    if duration_s > VERSION_TIMEOUT_S:
        raise RuleViolationError(
            f"the command took {duration_s:.1f} s", observations.get_run("version")
        )
    return f"{duration_s * 1000:.0f} ms"


@RULES.register_should_rule("10", "`--help` prints the flags and starts no turn.")
def _help(observations: ObservedCommandRuns) -> str:
    run = require_successful_exit(observations.get_run("help"))
    missing = [
        flag
        for flag in ("--output-format", "--resume", "--model")
        if flag.encode() not in run.stdout
    ]
    if missing:
        raise RuleViolationError(f"the help does not name {', '.join(missing)}", run, run.stdout)
    if run.ended_at > HELP_TIMEOUT_S:
        raise RuleViolationError(f"the command took {run.ended_at:.0f} s", run)
    return f"{len(run.stdout)} bytes"


@RULES.register_should_rule(
    "F11b",
    "`auth status --json` prints an object with `loggedIn`. It exits with 0 if "
    "`loggedIn` is true, and with 1 if not.",
)
def _auth(observations: ObservedCommandRuns) -> str:
    run = require_exit_without_kill(observations.get_run("auth"))
    try:
        auth_status = json.loads(bytes(run.stdout))
    except ValueError:
        raise RuleViolationError("the output is not JSON", run, run.stdout) from None
    if not isinstance(auth_status, dict) or not isinstance(auth_status.get("loggedIn"), bool):
        raise RuleViolationError("the object has no `loggedIn`", run, run.stdout)
    if run.exit_status != int(not auth_status["loggedIn"]):
        raise RuleViolationError(
            f"loggedIn is {auth_status['loggedIn']} and the exit code is {run.exit_status}",
            run,
            run.stdout,
        )
    if auth_status["loggedIn"]:
        return "logged in"
    return "logged out"


# -- arguments -------------------------------------------------------------------------------------


@RULES.register_must_rule(
    "P3", "-p is not required if stdout is not a terminal, or if messages are sent on stdin."
)
def _needs_no_print(observations: ObservedCommandRuns) -> str:
    for run in observations.get_runs("conversation", "text"):
        if run.name == "conversation":
            observations.get_finished_turn("conversation")
        else:
            require_printed_answer(observations, run)
    return "the command ran without -p"


@RULES.register_must_rule(
    "P4",
    "Flag values may follow = or a space, may be repeated, and may be empty. An empty "
    "prompt argument is ignored.",
)
def _forms_of_values(observations: ObservedCommandRuns) -> str:
    run = observations.get_run("queue")
    if run.find_control_response("conform_0") is None or not run.find_lines("result"):
        raise RuleViolationError(
            f"there is no answer or no result{describe_missing_output(run)}", run
        )
    return "all forms were accepted"


@RULES.register_must_rule("P5", "An unknown flag is ignored.", DROP_IN)
def _unknown_flag(observations: ObservedCommandRuns) -> str:
    run = require_successful_exit(observations.get_run("unknown-flag"))
    fail_rule_if(not run.find_lines("control_response"), "initialize was not answered", run)
    return "it continued"


@RULES.register_must_rule(
    "P6",
    "A flag with several values takes all following arguments, so no prompt is left. "
    "With = it takes only one value.",
)
def _variadic(observations: ObservedCommandRuns) -> str:
    run = require_exit_without_kill(observations.get_run("swallowed"))
    if run.exit_status == 0 or run.stdout.strip():
        raise RuleViolationError("the argument after --disallowedTools was used as the prompt", run)
    if "text" in observations.runs:
        require_printed_answer(observations, observations.runs["text"])  # --allowedTools=Read
    return "--disallowedTools Bash PROMPT was run without a prompt"


@RULES.register_must_rule("P7", "A prompt argument is ignored if messages are sent on stdin.")
def _positional_beside_messages(observations: ObservedCommandRuns) -> str:
    run = require_successful_exit(observations.get_run("eof-positional"))
    fail_rule_if(run.stdout.strip(), "the prompt argument was used as a message", run)
    observations.get_stream_json_runs()  # raises an error if the command printed no stream
    return "the prompt argument was not used"


@RULES.register_must_rule("P7", "Text on stdin is used as the prompt.")
def _prompt_on_stdin(observations: ObservedCommandRuns) -> str:
    require_printed_answer(observations, observations.get_run("json"))
    return "the prompt was answered"


@RULES.register_must_rule(
    "P13",
    "For an invalid flag value, the command exits with 1 and prints a line on stderr, and nothing on stdout.",
)
def _bad_values(observations: ObservedCommandRuns) -> str:
    for run in observations.get_runs("bad-format", "bad-mode"):
        require_usage_error(run)
        fail_rule_if(not run.stderr.strip(), "stderr is empty", run)
    return "--output-format, --permission-mode"


@RULES.register_should_rule(
    "F3",
    "If a flag is passed without another flag that it requires (partial messages, message input, "
    "replay), the command exits with 1.",
)
def _flags_alone(observations: ObservedCommandRuns) -> str:
    for name, text in {
        "partial-alone": "--include-partial-messages requires",
        "input-alone": "--input-format=stream-json requires",
        "replay-alone": "--replay-user-messages requires",
    }.items():
        require_usage_error(observations.get_run(name), text)
    return "three combinations were refused"


@RULES.register_should_rule(
    "F4", "Without a prompt, the command exits with 1 and prints that input must be provided."
)
def _no_prompt(observations: ObservedCommandRuns) -> str:
    for run in observations.get_runs("no-prompt", "swallowed"):
        require_usage_error(run, NO_INPUT_TEXT)
    return NO_INPUT_TEXT


@RULES.register_should_rule(
    "F2",
    "The output format stream-json works without --verbose, which Yume does not pass.",
    DROP_IN,
)
def _needs_no_verbose(observations: ObservedCommandRuns) -> str:
    observations.get_finished_turn("no-verbose")
    return "a stream was printed"


# -- stdin and exit --------------------------------------------------------------------------------


@RULES.register_must_rule(
    "P15", "If stdin ends without a message, the command exits with 0 and prints nothing."
)
def _nothing_without_a_message(observations: ObservedCommandRuns) -> str:
    run = require_successful_exit(observations.get_run("eof"))
    fail_rule_if(run.stdout.strip(), "something was printed", run, run.stdout)
    return "nothing"


@RULES.register_must_rule("P15", "After the end of stdin, every queued message is still answered.")
def _the_end_of_stdin_waits(observations: ObservedCommandRuns) -> str:
    run = require_exit_without_kill(observations.get_run("queue"))
    results = len(run.find_lines("result"))
    fail_rule_if(results != 2, f"{results} results for 2 messages", run)
    return "2 messages, 2 results"


@RULES.register_must_rule("P15", "The process keeps running until stdin ends.")
def _it_stays(observations: ObservedCommandRuns) -> str:
    run = observations.get_run("conversation")
    fail_rule_if(
        run.missing_line,
        f"the command exited although stdin was open{describe_missing_output(run)}",
        run,
    )
    observations.get_finished_turn("conversation", 1)
    return "the second message was answered"


@RULES.register_must_rule(
    "P16", f"An idle process exits within {EXIT_TIMEOUT_S:.0f} s after the end of stdin."
)
def _it_leaves(observations: ObservedCommandRuns) -> str:
    run = observations.get_run("control")
    skip_rule_if(
        "idle" not in run.line_counts,
        f"the run ended before this check{describe_missing_output(run)}",
    )
    require_exit_without_kill(run)
    duration_s = run.ended_at - (run.closed_at or 0)
    fail_rule_if(duration_s > EXIT_TIMEOUT_S, f"the command took {duration_s:.1f} s", run)
    return f"{duration_s:.2f} s"


@RULES.register_should_rule(
    "P20",
    "With a prompt argument, the command does not wait forever for a stdin that sends nothing.",
)
def _silent_stdin(observations: ObservedCommandRuns) -> str:
    run = require_exit_without_kill(observations.get_run("json-verbose"))
    fail_rule_if(not run.stdout.strip(), "nothing was printed", run)
    return f"the command exited after {run.ended_at:.1f} s"


@RULES.register_should_rule("P19", "The command does not crash if stdout is closed.")
def _nobody_reads(observations: ObservedCommandRuns) -> str:
    run = require_exit_without_kill(observations.get_run("nobody-reads"))
    is_signalled = run.exit_status is not None and run.exit_status < 0
    if is_signalled or "Traceback" in run.stderr:
        raise RuleViolationError("it crashed", run)
    return f"exit {run.exit_status}"


# -- exit codes and signals ------------------------------------------------------------------------


def _get_last_turns(observations: ObservedCommandRuns) -> list[ObservedTurn]:
    """Return the last turn of each run in which the command exited by itself."""
    ended_runs = [
        run
        for run in observations.runs.values()
        if run.exit_status is not None and not run.sent_signal
    ]
    turns = [
        split_run_into_turns(run)[-1]
        for run in ended_runs
        if run.name != "nobody-reads" and run.find_lines("result")
    ]
    skip_rule_if(not turns, "no run ended with a result")
    return turns


@RULES.register_must_rule("P13", "The exit code is 1 when the last result is an error.")
def _errors_exit_1(observations: ObservedCommandRuns) -> str:
    failed_turns = [turn for turn in _get_last_turns(observations) if turn.is_failed]
    for turn in failed_turns:
        fail_rule_if(
            turn.run.exit_status != 1,
            f"an error result, but exit status {turn.run.exit_status}",
            turn.run,
            turn.result,
        )
    skip_rule_if(not failed_turns, "no run ended with an error result")
    return pluralize(len(failed_turns), "run")


@RULES.register_must_rule(
    "P14",
    "The exit code is 0 when the last result is a success. With any other code, the SDKs "
    "lose the result.",
)
def _good_results_exit_0(observations: ObservedCommandRuns) -> str:
    successful_turns = [
        turn for turn in _get_last_turns(observations) if turn.result.get("is_error") is False
    ]
    for turn in successful_turns:
        fail_rule_if(
            turn.run.exit_status != 0,
            f"a successful result, but exit status {turn.run.exit_status}",
            turn.run,
            turn.result,
        )
    skip_rule_if(not successful_turns, "no run ended with a successful result")
    return pluralize(len(successful_turns), "run")


def _get_signalled_run(observations: ObservedCommandRuns, name: str) -> CommandRun:
    """Return a run in which the command received a signal during its turn. Raise
    RuleNotObservedError if the turn had already ended.
    """
    run = observations.get_run(name)
    fail_rule_if(
        "signalled" not in run.line_counts,
        f"the turn printed nothing{describe_missing_output(run)}",
        run,
    )
    earlier_lines = list_dicts([line.value for line in run.lines[: run.line_counts["signalled"]]])
    if any(map(is_result_line, earlier_lines)):
        raise RuleNotObservedError(
            "the turn was over before the signal; a longer --long-prompt may help"
        )
    if any(value.get("error") for value in earlier_lines if value.get("type") == "assistant"):
        raise RuleNotObservedError("the request to the model had failed before the signal")
    return require_exit_without_kill(run)


@RULES.register_must_rule("P13", "After SIGTERM during a turn, the command exits with 143.")
def _sigterm(observations: ObservedCommandRuns) -> str:
    run = _get_signalled_run(observations, "sigterm")
    if run.exit_status not in (143, -15):  # a shell reports both as 143
        raise RuleViolationError(f"exit {run.exit_status}", run)
    return f"exit {run.exit_status}"


@RULES.register_must_rule("P13", "After SIGINT during a turn, the command exits with 0.")
def _sigint(observations: ObservedCommandRuns) -> str:
    run = _get_signalled_run(observations, "sigint")
    fail_rule_if(run.exit_status != 0, f"exit {run.exit_status}", run)
    return "exit 0"


@RULES.register_should_rule(
    "P17",
    "SIGINT ends the turn with `[Request interrupted by user]` and an `error_during_execution` result.",
)
def _sigint_says_so(observations: ObservedCommandRuns) -> str:
    run = _get_signalled_run(observations, "sigint")
    results = run.find_lines("result")
    fail_rule_if(not results, "there is no result", run)
    if results[-1].get("subtype") != "error_during_execution":
        raise RuleViolationError("the result is not as expected", run, results[-1])
    if not has_interrupt_text(run.json_lines):
        raise RuleViolationError("the line that reports the interrupt is missing", run)
    return "both"


@RULES.register_must_rule("P18", "After SIGTERM, no child process of the turn is still running.")
def _nothing_survives(observations: ObservedCommandRuns) -> str:
    run = _get_signalled_run(observations, "sigterm")
    skip_rule_if(
        not run.descendant_count,
        "the command started no child process, or this system does not list child processes",
    )
    fail_rule_if(
        run.survivor_count,
        f"{run.survivor_count} of {run.descendant_count} child processes are still running",
        run,
    )
    return f"{run.descendant_count} processes"
