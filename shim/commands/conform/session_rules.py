"""Defines conformance rules about output formats and sessions (contract 4)."""

from shim.commands.conform.cli_rules import (
    require_exit_without_kill,
    require_printed_answer,
    require_usage_error,
)
from shim.commands.conform.observations import (
    ConformanceRuleSet,
    ObservedCommandRuns,
    RuleViolationError,
    fail_rule_if,
    skip_rule_if,
)
from shim.commands.conform.process import CommandRun
from shim.commands.conform.scenarios import UNKNOWN_SESSION_ID
from shim.core.claude.grammar import is_init_line
from shim.core.reading.diagnostics import pluralize
from shim.core.reading.values import as_dict, list_dicts

LIMIT_TEXT = "Reached maximum number of turns (1)"

RULES = ConformanceRuleSet()


# -- output formats --------------------------------------------------------------------------------


@RULES.register_must_rule(
    "F1", "The default format, `text`, is the text of the result and a newline."
)
def _text(observations: ObservedCommandRuns) -> str:
    run = require_printed_answer(observations, observations.get_run("text"))
    fail_rule_if(
        not run.stdout.endswith(b"\n"), "the output does not end with a newline", run, run.stdout
    )
    if any("type" in as_dict(line.value) for line in run.lines):
        raise RuleViolationError("the output is a stream", run, run.stdout)
    return f"{len(run.stdout)} bytes"


@RULES.register_must_rule("F1", "The format `json` is one line: the result.")
def _json(observations: ObservedCommandRuns) -> str:
    run = require_printed_answer(observations, observations.get_run("json"))
    if len(run.lines) != 1 or not run.stdout.endswith(b"\n") or len(run.find_lines("result")) != 1:
        raise RuleViolationError("the output is not one line with a result", run, run.stdout)
    return "one result"


@RULES.register_must_rule("F1", "With --verbose, the format `json` is one array of all events.")
def _json_verbose(observations: ObservedCommandRuns) -> str:
    # The contract specifies no newline at the end, but newer versions of the real claude print one.
    run = require_exit_without_kill(observations.get_run("json-verbose"))
    events = None
    if len(run.lines) == 1:
        events = run.lines[0].value
    if not isinstance(events, list):
        raise RuleViolationError("the output is not one array", run, run.stdout)
    kinds = [(event.get("type"), event.get("subtype")) for event in list_dicts(events)]
    if ("system", "init") not in kinds or "result" not in dict(kinds):
        raise RuleViolationError("the array lacks the init line or the result", run, run.stdout)
    return pluralize(len(events), "event")


# -- sessions --------------------------------------------------------------------------------------


def _get_requested_session_id(run: CommandRun) -> str:
    return run.argv[run.argv.index("--session-id") + 1]


def _get_session_id(observations: ObservedCommandRuns, name: str) -> str:
    return str(observations.get_finished_turn(name).result.get("session_id"))


@RULES.register_must_rule(
    "F5", "--session-id sets the id of the session, and a resumed session keeps this id."
)
def _chosen_session(observations: ObservedCommandRuns) -> str:
    session_id = _get_requested_session_id(observations.get_run("session"))
    for name in ("session", "resume"):
        if _get_session_id(observations, name) != session_id:
            raise RuleViolationError(
                f"the session id should be {session_id}",
                observations.get_run(name),
                observations.get_finished_turn(name).result,
            )
    return "both runs have the same session id"


@RULES.register_must_rule(
    "F5", "--resume with --fork-session starts a session with a different id."
)
def _forked_session(observations: ObservedCommandRuns) -> str:
    if _get_session_id(observations, "fork") == _get_requested_session_id(
        observations.get_run("session")
    ):
        raise RuleViolationError(
            "the copy has the id of the original session",
            observations.get_run("fork"),
            observations.get_finished_turn("fork").result,
        )
    return "a different id"


@RULES.register_must_rule("F5", "--continue resumes the last session of the directory.")
def _continued_session(observations: ObservedCommandRuns) -> str:
    session_ids = {_get_session_id(observations, "session"), _get_session_id(observations, "fork")}
    if _get_session_id(observations, "continue") not in session_ids:
        raise RuleViolationError(
            "the resumed session belongs to a different directory",
            observations.get_run("continue"),
            observations.get_finished_turn("continue").result,
        )
    return "an earlier session"


@RULES.register_should_rule(
    "F6",
    "If --session-id is already in use, not a UUID, or combined with --resume, the command exits "
    "with 1 and prints nothing on stdout.",
)
def _bad_sessions(observations: ObservedCommandRuns) -> str:
    require_usage_error(observations.get_run("bad-session"), "Invalid session ID")
    require_usage_error(observations.get_run("session-and-resume"), "--fork-session")
    if "session-again" in observations.runs:
        require_usage_error(observations.get_run("session-again"), "already in use")
    return "each session id is refused"


@RULES.register_must_rule(
    "F7",
    "For an unknown session, the command prints one error result without an init line, "
    "and exits with 1.",
)
def _unknown_session(observations: ObservedCommandRuns) -> str:
    expected = f"No conversation found with session ID: {UNKNOWN_SESSION_ID}"
    for run in observations.get_runs("unknown-stream", "unknown-sdk"):
        require_exit_without_kill(run)
        results = run.find_lines("result")
        if len(results) != 1 or run.find_lines("system", "assistant", "user"):
            raise RuleViolationError("the output is not exactly one result", run)
        fields = {
            "subtype": "error_during_execution",
            "is_error": True,
            "session_id": UNKNOWN_SESSION_ID,
            "num_turns": 0,
        }
        if not fields.items() <= results[0].items() or expected not in results[0].get("errors", ()):
            raise RuleViolationError("the result is not as expected", run, results[0])
        if run.exit_status != 1 or expected not in run.stderr:
            raise RuleViolationError(
                f"the exit code is {run.exit_status}, or the error is missing on stderr", run
            )
    return expected


@RULES.register_must_rule(
    "F7", "For an unknown session, the command prints nothing in text format, and exits with 1."
)
def _unknown_session_in_text(observations: ObservedCommandRuns) -> str:
    require_usage_error(
        observations.get_run("unknown-text"), "No conversation found with session ID"
    )
    return "nothing"


@RULES.register_must_rule(
    "F8",
    "init.tools lists the tools that --tools and --disallowedTools leave enabled. A rule with a "
    "specifier removes no tool.",
)
def _tools(observations: ObservedCommandRuns) -> str:
    observations.get_runs("queue", "json-verbose")
    if (
        "queue" in observations.runs
        and (tools := observations.get_finished_turn("queue").init_line.get("tools")) != []
    ):
        raise RuleViolationError(
            'some tools are still listed with --tools ""', observations.get_run("queue"), tools
        )
    if "json-verbose" not in observations.runs:
        return '--tools ""'
    run = observations.get_run("json-verbose")
    tools_before = observations.get_finished_turn("session").init_line.get("tools", [])
    events = []
    if run.lines:
        events = list_dicts(run.lines[0].value)
    inits = list(filter(is_init_line, events))
    fail_rule_if(not inits, "there is no init line", run)
    removed_tool = run.argv[-2]
    limited_tool = run.argv[-1].partition("(")[0]
    if removed_tool in inits[0]["tools"]:
        raise RuleViolationError(
            f"{removed_tool} is still listed with --disallowedTools {removed_tool}",
            run,
            inits[0]["tools"],
        )
    if limited_tool in tools_before and limited_tool not in inits[0]["tools"]:
        raise RuleViolationError(
            f"--disallowedTools '{run.argv[-1]}' removes {limited_tool}", run, inits[0]["tools"]
        )
    return f"--disallowedTools {removed_tool} removes this tool"


@RULES.register_should_rule(
    "F10", "At the limit of --max-turns, a turn ends with an `error_max_turns` result."
)
def _max_turns(observations: ObservedCommandRuns) -> str:
    turn = observations.get_finished_turn("max-turns")
    skip_rule_if(
        not turn.list_tool_calls(),
        "no tool was called, so the turn would not have continued",
    )
    errors = turn.result.get("errors")
    if turn.result.get("subtype") != "error_max_turns" or not errors or errors[0] != LIMIT_TEXT:
        raise RuleViolationError("the result is not as expected", turn.run, turn.result)
    return str(errors[0])
