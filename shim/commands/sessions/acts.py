"""`shim bridge list|say|answer|stop`: what a person or a script does to a session without opening
it.
"""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Annotated, Any

import typer

from shim.bridge import registry
from shim.bridge.answering import build_answer_body
from shim.bridge.link import (
    ANSWER_TIMEOUT_S,
    HostGoneError,
    NoAnswerError,
    connect_to_session_blocking,
    exchange_frames,
)
from shim.bridge.registry import SessionRecord
from shim.bridge.start import SessionRunningError, respawn_session
from shim.bridge.stop import describe_unanswered_messages, stop_hosts
from shim.bridge.which import find_session_by_reference
from shim.commands.sessions.listing import describe_no_sessions, format_session_table
from shim.core.bridge.frames import WATCH
from shim.core.errors import FrontendError, MachineError, ShimError
from shim.core.reading.account import escape_control_chars
from shim.io.stamps import create_uuid
from shim.story.terminal.console import JsonOption, print_json, print_line

# for a host to say what it asks in a list: one that is stopped must not keep the others from it
LIST_TIMEOUT_S = 2.0
SessionArgument = Annotated[
    str, typer.Argument(metavar="ID", help="The id, its beginning, or a part of the name.")
]
MAX_SUMMARY_CHARS = 160  # of a question, where several are listed to choose from
DECISIONS = ("allow", "deny")
# of a question's frame, that `list --json` prints
QUESTION_KEYS = ("question", "at", "until", "request")


def list_sessions(
    everything: Annotated[
        bool, typer.Option("--all", help="List those that have ended too.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """List the sessions that live on their own, with what each waits for.

    With --json each question stands there with the whole input of its call.

    Example: shim bridge list --json
    """
    found = [one for one in registry.list_sessions(os.environ) if one.is_running or everything]
    if as_json:
        print_json([_build_session_report(one) for one in found])
    else:
        typer.echo(
            format_session_table(found)
            if found
            else describe_no_sessions(includes_ended=everything),
            nl=False,
        )


def say_message(
    session: SessionArgument,
    text: Annotated[str, typer.Argument(metavar="TEXT", help="The message.")],
    take: Annotated[
        bool, typer.Option("--take", help="Drive it from now on, whoever drives it.")
    ] = False,
) -> None:
    """Say a message in a session; while a turn runs it waits for the next one. A session that has
    ended goes on.

    Example: shim bridge say 1f0c "and now the tests"
    """
    one, message = find_session_by_reference(session), {"role": "user", "content": text}
    if not text.strip():
        raise typer.BadParameter("a message has at least one word", param_hint="TEXT")
    if not one.is_running:
        # somebody else was quicker, and is told the message like any host
        with suppress(SessionRunningError):
            respawn_session(one, os.environ, message)
            _wait_until_started(one)
            print_line(f"woke {one.short_id}")
            return
    frames: list[dict[str, Any]] = [{"kind": "message", "message": message}]
    frames[:0] = [{"kind": "take"}] if take else []
    _check_replies(
        one,
        exchange_frames(one.session_id, frames, os.environ, client="shim bridge say"),
        "--take drives it from here",
    )
    print_line(f"said to {one.short_id}")


def answer_question(
    session: SessionArgument,
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="ANSWER", help="`allow` or `deny`; before it the question, if several are open."
        ),
    ],
    message: Annotated[
        str, typer.Option("--message", metavar="TEXT", help="With deny: what the agent is told.")
    ] = "",
    given: Annotated[
        str,
        typer.Option(
            "--input",
            metavar="JSON",
            help="With allow: the input that runs instead of the asked one.",
        ),
    ] = "",
    always: Annotated[
        bool,
        typer.Option("--always", help="With allow: ask no more about such calls in this session."),
    ] = False,
) -> None:
    """Answer a question of a session.

    `shim bridge list --json` shows what is asked. Exit 1 if somebody was first, with who it was and
    how.

    Example: shim bridge answer 1f0c deny --message "not in this folder"
    """
    *named, behavior = words
    if behavior not in DECISIONS or len(named) > 1:
        raise typer.BadParameter(
            "give `allow` or `deny`, and before it at most one question", param_hint="ANSWER"
        )
    if behavior == "deny" and (given or always):
        raise typer.BadParameter(
            "it belongs to `allow`", param_hint="--input" if given else "--always"
        )
    if behavior == "allow" and message:
        raise typer.BadParameter(
            "it belongs to `deny`: `shim bridge say` tells the agent more", param_hint="--message"
        )
    changed = _parse_input(given) if given else None
    one = find_session_by_reference(session)
    if not one.is_running:
        raise FrontendError(
            f"session {one.short_id} has ended, and asks nothing",
            hint="`shim bridge list` shows who asks",
        )
    asked = list_open_requests(one)
    question = _resolve_prompt_id(one, asked, *named)
    request = asked.get(question, {})
    decision = build_answer_body(
        behavior,
        request,
        one.metadata["cwd"],
        message=message,
        replacement_input=changed,
        always=always,
    )
    frame = {"kind": "answer", "question": question, "decision": decision}
    ours = f"shim bridge answer {create_uuid()[:8]}"  # nobody who was here before had this name
    heard = exchange_frames(one.session_id, [frame], os.environ, client=ours)
    _check_replies(one, heard, "`shim bridge list --json` shows what is asked")
    for came in heard:
        if came["kind"] == "settled" and came["question"] == question and came["by"] != ours:
            by = came["by"] or "the session itself"
            raise FrontendError(
                f"the question was settled already: {came['how']}, by {escape_control_chars(str(by))}"
            )
    print_line("allowed" if behavior == "allow" else "denied")


def stop_sessions(
    sessions: Annotated[
        list[str], typer.Argument(metavar="ID", help="Ids, their beginnings, or parts of names.")
    ],
) -> None:
    """End sessions. What was said is kept: `claude --bg --resume` goes on with one.

    Example: shim bridge stop 1f0c
    """
    known = registry.list_sessions(os.environ)
    wanted = list(
        {
            one.session_id: one
            for one in (find_session_by_reference(word, sessions=known) for word in sessions)
        }.values()
    )
    left = stop_hosts(wanted, os.environ)
    for one in wanted:
        if one.session_id not in {each.session_id for each in left}:
            lost = describe_unanswered_messages(one, os.environ)
            print_line(f"stopped {one.short_id}" + (f"; {lost}" if lost else ""))
    if left:
        pids = " ".join(str(one.metadata.get("pid")) for one in left)
        raise MachineError(
            f"{', '.join(one.short_id for one in left)} could not be ended",
            hint=f"`kill -9 {pids}` ends them",
        )


def _wait_until_started(one: SessionRecord) -> None:
    """Wait until the host of a session that was woken is up. FrontendError with its own reason
    where it cannot be.
    """
    try:
        connect_to_session_blocking(
            one.session_id, os.environ, role=WATCH, replay=False, partial=False
        ).close()
    except HostGoneError as gone:
        raise FrontendError(
            f"session {one.short_id} could not be woken: {escape_control_chars(gone.reason or 'its host ended')}",
            hint=f"the message was not said; `{one.stderr_path}` has more",
        ) from None


def _check_replies(one: SessionRecord, heard: Sequence[Mapping[str, Any]], way: str) -> None:
    """FrontendError for what the host refused, or did not answer."""
    for came in heard:
        if came["kind"] == "refused":
            driver = (
                f" ({escape_control_chars(came['driver'])} drives it)" if came.get("driver") else ""
            )
            raise FrontendError(
                f"session {one.short_id}: {escape_control_chars(came['text'])}{driver}", hint=way
            )
    if not any(came["kind"] in ("accepted", "settled") for came in heard):
        raise NoAnswerError(one.session_id, one.metadata["pid"])


# -- questions -------------------------------------------------------------------------------------


def list_open_requests(one: SessionRecord) -> dict[str, Mapping[str, Any]]:
    """The questions that wait in a session: id → the body of Claude's request. ShimError where
    nobody says so.
    """
    return {
        question: came["request"] for question, came in _read_open_prompts(one, ANSWER_TIMEOUT_S)
    }


def _read_open_prompts(
    one: SessionRecord, seconds: float
) -> Iterator[tuple[str, Mapping[str, Any]]]:
    with connect_to_session_blocking(
        one.session_id, os.environ, role=WATCH, timeout_s=seconds, replay=False
    ) as link:
        left = set(link.welcome.get("questions") or ())
        for came in link.read_frames(seconds) if left else ():
            if came["kind"] == "question" and came["question"] in left:
                yield came["question"], came
            if came["kind"] in ("question", "settled"):
                left.discard(came["question"])
            if not left:
                return


def _resolve_prompt_id(
    one: SessionRecord, asked: Mapping[str, Mapping[str, Any]], named: str = ""
) -> str:
    """The id of the one question that is meant."""
    if named and not asked:
        return named
    found = [question for question in asked if question.startswith(named)]
    if len(found) == 1:
        return found[0]
    if named:
        return named
    if not found:
        last_answer = _describe_last_answer(one)
        raise FrontendError(
            f"session {one.short_id} asks nothing{last_answer}",
            hint="`shim bridge list` shows which sessions ask",
        )
    listed = "\n".join(
        f"  {question}  {escape_control_chars(summarize_request(asked[question]))}"
        for question in found
    )
    hint = f"name the question: shim bridge answer {one.short_id} QUESTION allow"
    raise FrontendError(f"session {one.short_id} asks {len(found)} questions:\n{listed}", hint=hint)


def _describe_last_answer(session: SessionRecord) -> str:
    """Return how and by which client the last question was settled, or "" if there was none."""
    with connect_to_session_blocking(
        session.session_id, os.environ, role=WATCH, replay=False, partial=False
    ) as link:
        settled = link.welcome.get("settled")
    if not isinstance(settled, dict):
        return ""
    client = escape_control_chars(str(settled.get("by") or "the session itself"))
    return f"; its last question was settled already: {escape_control_chars(str(settled.get('how')))}, by {client}"


def summarize_request(request: Mapping[str, Any]) -> str:
    """What a question is about, in a line; one that is cut says where the rest is."""
    asked = request.get("input") or request.get("message") or ""
    text = asked if isinstance(asked, str) else json.dumps(asked, ensure_ascii=False)
    line = " ".join(f"{request.get('tool_name') or request.get('subtype')}  {text}".split())
    more = len(line) - MAX_SUMMARY_CHARS
    rest = f"… ({more:,} more characters: `shim bridge list --json` has all)"
    return line if more <= 0 else f"{line[:MAX_SUMMARY_CHARS]}{rest}"


def _parse_input(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise typer.BadParameter(f"it is not JSON: {error}", param_hint="--input") from None
    if not isinstance(found, dict):
        raise typer.BadParameter("it is not an object", param_hint="--input")
    return found


def _build_session_report(one: SessionRecord) -> dict[str, Any]:
    """A session for a program. `questions` is null where its host does not say."""
    facts = one.metadata
    questions: list[dict[str, Any]] | None = []
    if one.is_running and (facts.get("waitingFor") or facts["state"] == "blocked"):
        try:
            asked = _read_open_prompts(one, LIST_TIMEOUT_S)
            questions = [
                {key: came[key] for key in QUESTION_KEYS if key in came} for _, came in asked
            ]
        except ShimError:
            questions = None
    keys = (
        "state",
        "status",
        "waitingFor",
        "needs",
        "detail",
        "driver",
        "pid",
        "generation",
        "created",
        "started",
        "unanswered",
    )
    told = {key: facts.get(key) for key in keys}
    known = {key: facts.get(key) or "" for key in ("vendor", "name", "cwd")}
    return {
        "id": one.short_id,
        "session": one.session_id,
        "alive": one.is_running,
        **known,
        **told,
        "questions": questions,
    }
