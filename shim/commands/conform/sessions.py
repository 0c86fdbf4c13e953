"""Rules of the forms of output and of sessions (contract 4)."""

from shim.commands.conform.doors import answered, ended, refused
from shim.commands.conform.process import Run
from shim.commands.conform.runs import NOBODY
from shim.commands.conform.seen import Book, BrokenError, Seen, broken_if, unseen_if
from shim.core.reading.account import counted

LIMIT = "Reached maximum number of turns (1)"

BOOK = Book()


# -- forms of output -------------------------------------------------------------------------------


@BOOK.must("F1", "Text, the default, is the text of the result and a newline.")
def _text(seen: Seen) -> str:
    run = answered(seen, seen.run("text"))
    broken_if(not run.stdout.endswith(b"\n"), "that is no text with a newline", run, run.stdout)
    if any(isinstance(line.value, dict) and "type" in line.value for line in run.lines):
        raise BrokenError("that is a stream", run, run.stdout)
    return f"{len(run.stdout)} bytes"


@BOOK.must("F1", "`json` is one line: the result.")
def _json(seen: Seen) -> str:
    run = answered(seen, seen.run("json"))
    if len(run.lines) != 1 or not run.stdout.endswith(b"\n") or len(run.of_type("result")) != 1:
        raise BrokenError("that is not one result and a newline", run, run.stdout)
    return "one result"


@BOOK.must("F1", "`json` with --verbose is one array of all events.")
def _json_verbose(seen: Seen) -> str:
    # The contract's page says that no newline follows; newer versions of the real one print one.
    run = ended(seen.run("json-verbose"))
    events = run.lines[0].value if len(run.lines) == 1 else None
    if not isinstance(events, list):
        raise BrokenError("that is not one array", run, run.stdout)
    kinds = [
        (event.get("type"), event.get("subtype")) for event in events if isinstance(event, dict)
    ]
    if ("system", "init") not in kinds or "result" not in dict(kinds):
        raise BrokenError("the array has no init or no result", run, run.stdout)
    return counted(len(events), "event")


# -- sessions --------------------------------------------------------------------------------------


def _asked_session(run: Run) -> str:
    return run.argv[run.argv.index("--session-id") + 1]


def _session(seen: Seen, name: str) -> str:
    return str(seen.done(name).result.get("session_id"))


@BOOK.must("F5", "--session-id chooses the id of the session, and --resume keeps it.")
def _chosen_session(seen: Seen) -> str:
    chosen = _asked_session(seen.run("session"))
    for name in ("session", "resume"):
        if _session(seen, name) != chosen:
            raise BrokenError(f"it should be {chosen}", seen.run(name), seen.done(name).result)
    return "the same in both"


@BOOK.must("F5", "--resume with --fork-session begins a session of another id.")
def _forked_session(seen: Seen) -> str:
    if _session(seen, "fork") == _asked_session(seen.run("session")):
        raise BrokenError("it is the old id", seen.run("fork"), seen.done("fork").result)
    return "another id"


@BOOK.must("F5", "--continue goes on with the last session of the directory.")
def _continued_session(seen: Seen) -> str:
    known = {_session(seen, "session"), _session(seen, "fork")}
    if _session(seen, "continue") not in known:
        raise BrokenError(
            "it is a session that was not held here",
            seen.run("continue"),
            seen.done("continue").result,
        )
    return "a session of before"


@BOOK.should(
    "F6",
    "A session id that is taken, or is no UUID, or comes with --resume, is exit 1 with nothing on stdout.",
)
def _bad_sessions(seen: Seen) -> str:
    refused(seen.run("bad-session"), "Invalid session ID")
    refused(seen.run("session-and-resume"), "--fork-session")
    if "session-again" in seen.runs:
        refused(seen.run("session-again"), "already in use")
    return "each is refused"


@BOOK.must(
    "F7", "A session that nobody knows is one error result, at once, without init, and exit 1."
)
def _unknown_session(seen: Seen) -> str:
    wanted = f"No conversation found with session ID: {NOBODY}"
    for run in seen.made("unknown-stream", "unknown-sdk"):
        ended(run)
        results = run.of_type("result")
        broken_if(
            len(results) != 1 or run.of_type("system", "assistant", "user"),
            "that is not one result",
            run,
        )
        facts = {
            "subtype": "error_during_execution",
            "is_error": True,
            "session_id": NOBODY,
            "num_turns": 0,
        }
        if not facts.items() <= results[0].items() or wanted not in results[0].get("errors", ()):
            raise BrokenError("the result says something else", run, results[0])
        broken_if(
            run.exit != 1 or wanted not in run.stderr,
            f"exit {run.exit}, or stderr does not say so",
            run,
        )
    return wanted


@BOOK.must("F7", "A session that nobody knows prints nothing in text output, and is exit 1.")
def _unknown_session_in_text(seen: Seen) -> str:
    refused(seen.run("unknown-text"), "No conversation found with session ID")
    return "nothing"


@BOOK.must(
    "F8",
    "init.tools lists what --tools and --disallowedTools leave; a rule with a specifier removes nothing.",
)
def _tools(seen: Seen) -> str:
    seen.made("queue", "json-verbose")
    if "queue" in seen.runs and (tools := seen.done("queue").init.get("tools")) != []:
        raise BrokenError('--tools "" leaves tools', seen.run("queue"), tools)
    if "json-verbose" not in seen.runs:
        return '--tools ""'
    run, before = seen.run("json-verbose"), seen.done("session").init.get("tools", [])
    events = run.lines[0].value if run.lines else None
    inits = (
        [event for event in events if event.get("subtype") == "init"]
        if isinstance(events, list)
        else []
    )
    broken_if(not inits, "there is no init", run)
    removed, limited = run.argv[-2], run.argv[-1].partition("(")[0]
    if removed in inits[0]["tools"]:
        raise BrokenError(
            f"--disallowedTools {removed} leaves it on the list", run, inits[0]["tools"]
        )
    if limited in before and limited not in inits[0]["tools"]:
        raise BrokenError(
            f"--disallowedTools '{run.argv[-1]}' removes {limited}", run, inits[0]["tools"]
        )
    return f"--disallowedTools {removed} removes it"


@BOOK.should("F10", "--max-turns ends a turn that would go on in error_max_turns.")
def _max_turns(seen: Seen) -> str:
    turn = seen.done("max-turns")
    unseen_if(
        not list(turn.blocks("assistant", "tool_use")),
        "no tool was called, so nothing would have gone on",
    )
    errors = turn.result.get("errors")
    if turn.result.get("subtype") != "error_max_turns" or not errors or errors[0] != LIMIT:
        raise BrokenError("the result is another", turn.run, turn.result)
    return str(errors[0])
