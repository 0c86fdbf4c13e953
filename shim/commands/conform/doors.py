"""Rules of the process: the doors, the arguments, stdin and its end, exit codes and signals
(contract 1, 4, 11).
"""

import json
import re

from shim.commands.conform.process import Run
from shim.commands.conform.seen import (
    DROP_IN,
    Book,
    BrokenError,
    Seen,
    Turn,
    UnseenError,
    api_failures,
    broken_if,
    turns_of,
    unseen_if,
    waited,
)
from shim.core.reading.account import counted

VERSION = re.compile(rb"(\d+)\.(\d+)\.(\d+) \(Claude Code\)\n")
OLDEST = 2  # the SDKs warn of a lower major version, or refuse it
VERSION_SECONDS = 2.0  # the time that the Python SDK waits for the version
HELP_SECONDS = 10.0  # the time that a frontend waits for the answer
END_SECONDS = 5.0  # from the end of stdin to the SIGTERM of the Python SDK
NO_INPUT = "Input must be provided either through stdin or as a prompt argument"

BOOK = Book()


def ended(run: Run) -> Run:
    """A run that ended by itself. BrokenError if we had to end it."""
    broken_if(run.exit is None, f"it did not end{waited(run)}", run)
    return run


def refused(run: Run, *texts: str) -> None:
    """A mistake that costs nothing: exit 1, nothing on stdout, and one of these texts on stderr."""
    broken_if(ended(run).exit != 1, f"exit {run.exit}, not 1", run)
    broken_if(run.stdout.strip(), "something was printed on stdout", run, run.stdout)
    if texts and not any(text in run.stderr for text in texts):
        raise BrokenError(f"stderr does not say {texts[0]!r}", run)


def good(run: Run) -> Run:
    """A run that ended by itself, with success. BrokenError otherwise."""
    broken_if(ended(run).exit != 0, f"exit {run.exit}, not 0", run)
    return run


def answered(seen: Seen, run: Run) -> Run:
    """A run that printed an answer and ended well. UnseenError if its request to the model failed
    as in other runs.
    """
    unseen_if(ended(run).exit == 1 and api_failures(seen), "the requests to its model failed")
    broken_if(not good(run).stdout.strip(), "nothing was printed", run)
    return run


# -- doors -----------------------------------------------------------------------------------------


@BOOK.must(
    "P1",
    "`--version` and `-v`, also behind other flags, print `X.Y.Z (Claude Code)` and exit 0; stdin is not read.",
)
def _version(seen: Seen) -> str:
    for name in ("version", "version-among"):
        run = good(seen.run(name))
        said = VERSION.fullmatch(bytes(run.stdout))
        if not said:
            raise BrokenError("that is not a version", run, run.stdout)
        broken_if(int(said[1]) < OLDEST, "the version is below 2.0.0", run, run.stdout)
    return run.stdout.decode().strip()


@BOOK.should(
    "P2",
    f"The version is said at once: within {VERSION_SECONDS:.0f} s, the patience of the Python SDK.",
)
def _version_is_quick(seen: Seen) -> str:
    took = min(ended(run).ended_at or 0 for run in seen.made("version", "version-among"))
    if not any(
        VERSION.fullmatch(bytes(run.stdout)) for run in seen.made("version", "version-among")
    ):
        raise UnseenError("no version was said")
    if took > VERSION_SECONDS:
        raise BrokenError(f"it took {took:.1f} s", seen.run("version"))
    return f"{took * 1000:.0f} ms"


@BOOK.should("10", "`--help` prints the flags and starts no turn.")
def _help(seen: Seen) -> str:
    run = good(seen.run("help"))
    missing = [
        flag
        for flag in ("--output-format", "--resume", "--model")
        if flag.encode() not in run.stdout
    ]
    if missing:
        raise BrokenError(f"the help does not name {', '.join(missing)}", run, run.stdout)
    if (run.ended_at or 0) > HELP_SECONDS:
        raise BrokenError(f"it took {run.ended_at:.0f} s", run)
    return f"{len(run.stdout)} bytes"


@BOOK.should(
    "F11b",
    "`auth status --json` prints an object with `loggedIn`, exits 0 when that is true and 1 when not.",
)
def _auth(seen: Seen) -> str:
    run = ended(seen.run("auth"))
    try:
        said = json.loads(bytes(run.stdout))
    except ValueError:
        raise BrokenError("that is no JSON", run, run.stdout) from None
    if not isinstance(said, dict) or not isinstance(said.get("loggedIn"), bool):
        raise BrokenError("there is no `loggedIn`", run, run.stdout)
    if run.exit != int(not said["loggedIn"]):
        raise BrokenError(
            f"loggedIn is {said['loggedIn']} and the exit {run.exit}", run, run.stdout
        )
    return "logged in" if said["loggedIn"] else "logged out"


# -- arguments -------------------------------------------------------------------------------------


@BOOK.must("P3", "It needs no -p: a stdout that is no terminal, or messages on stdin, are enough.")
def _needs_no_print(seen: Seen) -> str:
    for run in seen.made("conversation", "text"):
        if run.name == "conversation":
            seen.done("conversation")
        else:
            answered(seen, run)
    return "it went without"


@BOOK.must(
    "P4",
    "Values may be joined by = or follow, be repeated and be empty; an empty positional means nothing.",
)
def _forms_of_values(seen: Seen) -> str:
    run = seen.run("queue")
    if run.answer_to("conform_0") is None or not run.of_type("result"):
        raise BrokenError(f"no answer, or no result{waited(run)}", run)
    return "all forms were taken"


@BOOK.must("P5", "A flag that it does not know is ignored.", DROP_IN)
def _unknown_flag(seen: Seen) -> str:
    run = good(seen.run("unknown-flag"))
    broken_if(not run.of_type("control_response"), "initialize was not answered", run)
    return "it went on"


@BOOK.must(
    "P6",
    "A variadic flag swallows the words behind it, so that there is no prompt; one with = does not.",
)
def _variadic(seen: Seen) -> str:
    run = ended(seen.run("swallowed"))
    broken_if(
        run.exit == 0 or run.stdout.strip(),
        "the word behind --disallowedTools was taken for the prompt",
        run,
    )
    if "text" in seen.runs:
        answered(seen, seen.runs["text"])  # --allowedTools=Read
    return "--disallowedTools Bash PROMPT has no prompt"


@BOOK.must("P7", "A positional prompt means nothing beside messages on stdin.")
def _positional_beside_messages(seen: Seen) -> str:
    run = good(seen.run("eof-positional"))
    broken_if(run.stdout.strip(), "the positional was taken for a message", run)
    seen.streams()  # a command that never prints anything proves nothing
    return "it was not used"


@BOOK.must("P7", "Text on stdin is the prompt.")
def _prompt_on_stdin(seen: Seen) -> str:
    answered(seen, seen.run("json"))
    return "it was answered"


@BOOK.must("P13", "A value that is not allowed is exit 1, nothing on stdout, and a line on stderr.")
def _bad_values(seen: Seen) -> str:
    for run in seen.made("bad-format", "bad-mode"):
        refused(run)
        broken_if(not run.stderr.strip(), "stderr says nothing", run)
    return "--output-format, --permission-mode"


@BOOK.should(
    "F3",
    "Flags that do not go together are exit 1: partial messages, message input and replay without theirs.",
)
def _flags_alone(seen: Seen) -> str:
    for name, text in {
        "partial-alone": "--include-partial-messages requires",
        "input-alone": "--input-format=stream-json requires",
        "replay-alone": "--replay-user-messages requires",
    }.items():
        refused(seen.run(name), text)
    return "three of them"


@BOOK.should("F4", "Without a prompt it is exit 1 and says that input must be provided.")
def _no_prompt(seen: Seen) -> str:
    for run in seen.made("no-prompt", "swallowed"):
        refused(run, NO_INPUT)
    return NO_INPUT


@BOOK.should("F2", "stream-json needs no --verbose: Yume gives none.", DROP_IN)
def _needs_no_verbose(seen: Seen) -> str:
    seen.done("no-verbose")
    return "it was a stream"


# -- stdin and the end -----------------------------------------------------------------------------


@BOOK.must("P15", "The end of stdin without a message is exit 0 and prints nothing.")
def _nothing_without_a_message(seen: Seen) -> str:
    run = good(seen.run("eof"))
    broken_if(run.stdout.strip(), "something was printed", run, run.stdout)
    return "nothing"


@BOOK.must("P15", "The end of stdin lets every queued message finish.")
def _the_end_of_stdin_waits(seen: Seen) -> str:
    run = ended(seen.run("queue"))
    results = len(run.of_type("result"))
    broken_if(results != 2, f"{results} results for 2 messages", run)
    return "2 messages, 2 results"


@BOOK.must("P15", "Until stdin ends the process stays.")
def _it_stays(seen: Seen) -> str:
    run = seen.run("conversation")
    broken_if(run.over, f"it left although stdin was open{waited(run)}", run)
    seen.done("conversation", 1)
    return "it was there for the second message"


@BOOK.must("P16", f"An idle process ends within {END_SECONDS:.0f} s of the end of stdin.")
def _it_leaves(seen: Seen) -> str:
    run = seen.run("control")
    unseen_if("idle" not in run.marks, f"it did not get that far{waited(run)}")
    ended(run)
    took = (run.ended_at or 0) - (run.closed_at or 0)
    broken_if(took > END_SECONDS, f"it took {took:.1f} s", run)
    return f"{took:.2f} s"


@BOOK.should("P20", "Beside a prompt, a stdin that is open and silent holds nothing up for ever.")
def _silent_stdin(seen: Seen) -> str:
    run = ended(seen.run("json-verbose"))
    broken_if(not run.stdout.strip(), "nothing was printed", run)
    return f"it ended after {run.ended_at or 0:.1f} s"


@BOOK.should("P19", "A reader that leaves is no crash.")
def _nobody_reads(seen: Seen) -> str:
    run = ended(seen.run("nobody-reads"))
    broken_if((run.exit or 0) < 0 or "Traceback" in run.stderr, "it crashed", run)
    return f"exit {run.exit}"


# -- exit codes and signals ------------------------------------------------------------------------


def _last_results(seen: Seen) -> list[Turn]:
    """The last turn of each run that ended by itself."""
    made = [run for run in seen.runs.values() if run.exit is not None and not run.signalled]
    found = [
        turns_of(run)[-1] for run in made if run.name != "nobody-reads" and run.of_type("result")
    ]
    unseen_if(not found, "no run ended with a result")
    return found


@BOOK.must("P13", "The exit code is 1 when the last result is an error.")
def _errors_exit_1(seen: Seen) -> str:
    failed = [turn for turn in _last_results(seen) if turn.failed]
    for turn in failed:
        broken_if(
            turn.run.exit != 1, f"an error result and exit {turn.run.exit}", turn.run, turn.result
        )
    unseen_if(not failed, "no run ended with an error")
    return counted(len(failed), "run")


@BOOK.must(
    "P14", "The exit code is 0 when the last result is good: any other makes the SDKs lose it."
)
def _good_results_exit_0(seen: Seen) -> str:
    good = [turn for turn in _last_results(seen) if turn.result.get("is_error") is False]
    for turn in good:
        broken_if(
            turn.run.exit != 0, f"a good result and exit {turn.run.exit}", turn.run, turn.result
        )
    unseen_if(not good, "no run ended well")
    return counted(len(good), "run")


def _under_way(seen: Seen, name: str) -> Run:
    """A run that got a signal in the middle of its turn. UnseenError if the turn was over before."""
    run = seen.run(name)
    broken_if("signalled" not in run.marks, f"no word of a turn came{waited(run)}", run)
    before = [
        line.value for line in run.lines[: run.marks["signalled"]] if isinstance(line.value, dict)
    ]
    if any(value.get("type") == "result" for value in before):
        raise UnseenError("the turn was over before the signal; a longer --long-prompt may help")
    if any(value.get("type") == "assistant" and value.get("error") for value in before):
        raise UnseenError("the request to its model had failed before the signal")
    return ended(run)


@BOOK.must("P13", "SIGTERM in a turn is exit 143.")
def _sigterm(seen: Seen) -> str:
    run = _under_way(seen, "sigterm")
    if run.exit not in (143, -15):  # by itself, or by the signal: a shell says 143 for both
        raise BrokenError(f"exit {run.exit}", run)
    return f"exit {run.exit}"


@BOOK.must("P13", "SIGINT in a turn is exit 0.")
def _sigint(seen: Seen) -> str:
    run = _under_way(seen, "sigint")
    broken_if(run.exit != 0, f"exit {run.exit}", run)
    return "exit 0"


@BOOK.should(
    "P17",
    "SIGINT ends the turn with `[Request interrupted by user]` and a result error_during_execution.",
)
def _sigint_says_so(seen: Seen) -> str:
    run = _under_way(seen, "sigint")
    results = run.of_type("result")
    broken_if(not results, "there is no result", run)
    if results[-1].get("subtype") != "error_during_execution":
        raise BrokenError("the result is another", run, results[-1])
    if not any("[Request interrupted by user" in json.dumps(line) for line in run.of_type("user")):
        raise BrokenError("the line of the interrupt is missing", run)
    return "both"


@BOOK.must("P18", "What it started for a turn is gone when a SIGTERM has ended it.")
def _nothing_survives(seen: Seen) -> str:
    run = _under_way(seen, "sigterm")
    unseen_if(not run.below, "it had started no other process, or this system does not tell")
    broken_if(run.survivors, f"{run.survivors} of the {run.below} processes below it live on", run)
    return f"{run.below} processes"
