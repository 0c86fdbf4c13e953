"""Implements `shim bridge list`, `say`, `answer` and `stop`, with which a person or a script acts
on a session without attaching to it.
"""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Annotated, Any, NoReturn

import typer

from shim.bridge import registry
from shim.bridge.client import (
    ANSWER_TIMEOUT_S,
    HostNotAnsweringError,
    HostUnavailableError,
    connect_to_session_blocking,
    send_frames_and_collect_answers,
)
from shim.bridge.decisions import build_decision_body
from shim.bridge.launch import SessionRunningError, respawn_session
from shim.bridge.listings import list_other_machines
from shim.bridge.registry import SessionRecord
from shim.bridge.remote import run_session_command
from shim.bridge.session_lookup import resolve_session_reference
from shim.bridge.stop import describe_unanswered_messages, stop_hosts
from shim.commands.completion.values import complete_background_session, create_completer
from shim.commands.sessions.listing import format_no_sessions_message, format_session_table
from shim.core.bridge.frames import WATCH
from shim.core.errors import FrontendError, ShimError, SystemResourceError
from shim.core.reading.values import (
    as_list,
    canonicalize_uuid,
    escape_control_chars,
    get_text,
    shorten_session_id,
    split_machine,
)
from shim.io.ids import create_uuid
from shim.state.machines import select_machines
from shim.story.terminal.console import JsonOption, print_json, print_line

# The time in which a host must report its open prompts, so that a suspended host cannot block the
# list.
LIST_TIMEOUT_S = 2.0
SessionArgument = Annotated[
    str,
    typer.Argument(
        metavar="ID",
        help="The session's id, a prefix of it, or part of its name.",
        autocompletion=complete_background_session,
    ),
]
MAX_SUMMARY_CHARS = 160  # per prompt in an error message
DECISIONS = ("allow", "deny")
# Fields of a `question` frame that `list --json` prints.
QUESTION_KEYS = ("question", "at", "until", "request")


def list_sessions(
    everything: Annotated[bool, typer.Option("--all", help="Include ended sessions.")] = False,
    machine: Annotated[
        str | None, typer.Option(metavar="NAME", help="List only the sessions of this machine.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """List background sessions, and what each is waiting for.

    With --json, each open permission prompt has the full input of its tool call.

    Example: shim bridge list --json
    """
    if as_json:
        records = [record for listed in _list_by_machine(machine, everything) for record in listed]
        print_json([_build_session_report(record) for record in records])
        return
    is_empty = True
    for listed in _list_by_machine(machine, everything):
        if listed:
            typer.echo(format_session_table(listed), nl=False)
            is_empty = False
    if is_empty:
        typer.echo(format_no_sessions_message(includes_ended=everything), nl=False)


def _list_by_machine(
    machine_name: str | None, includes_ended: bool
) -> Iterator[Sequence[SessionRecord]]:
    """Yield the sessions of this machine, and then the sessions of each other machine as they
    arrive.
    """
    machines = select_machines(machine_name, os.environ)
    if machine_name is None:
        yield [
            record
            for record in registry.list_sessions(os.environ)
            if record.is_running or includes_ended
        ]
    for listing in list_other_machines(machines, os.environ, includes_ended=includes_ended):
        yield listing.sessions


def send_message_to_session(
    session: SessionArgument,
    text: Annotated[str, typer.Argument(metavar="TEXT", help="The message.")],
    take: Annotated[
        bool, typer.Option("--take", help="Take control, even if another client has it.")
    ] = False,
    message_id: Annotated[
        str,
        typer.Option(
            "--id", metavar="UUID", help="The message's id: a repeated message is sent once."
        ),
    ] = "",
) -> None:
    """Send a message to a background session.

    During a turn the message is queued for the next turn. An ended session is restarted.

    Example: shim bridge say 1f0c "and now the tests"
    """
    record = resolve_session_reference(session)
    message = {"role": "user", "content": text}
    if not text.strip():
        raise typer.BadParameter("the message is empty", param_hint="TEXT")
    if message_id and canonicalize_uuid(message_id) != message_id:
        raise typer.BadParameter(f"{message_id!r} is not a UUID", param_hint="--id")
    if record.machine:
        options = []
        if take:
            options.append("--take")
        if message_id:
            options += ["--id", message_id]
        _run_bridge_command_on_machine(record, "say", [*options, "--", text])
    if not record.is_running:
        # If another client has restarted the host meanwhile, the message is sent to that host.
        with suppress(SessionRunningError):
            respawn_session(record, os.environ, message, message_id)
            _wait_until_started(record)
            print_line(f"restarted {record.short_id}")
            return
    frame: dict[str, Any] = {"kind": "message", "message": message}
    if message_id:
        frame["id"] = message_id
    frames = [frame]
    if take:
        frames.insert(0, {"kind": "take"})
    _check_replies(
        record,
        send_frames_and_collect_answers(
            record.session_id, frames, os.environ, client="shim bridge say"
        ),
        "use --take to take control",
    )
    print_line(f"sent to {record.short_id}")


def answer_permission_prompt(
    session: SessionArgument,
    answer_args: Annotated[
        list[str],
        typer.Argument(
            metavar="ANSWER",
            help="`allow` or `deny`, after the prompt's id if several prompts are open.",
            autocompletion=create_completer(DECISIONS),
        ),
    ],
    message: Annotated[
        str, typer.Option("--message", metavar="TEXT", help="With deny: a message to the agent.")
    ] = "",
    input_json: Annotated[
        str,
        typer.Option(
            "--input",
            metavar="JSON",
            help="With allow: run this input instead of the requested one.",
        ),
    ] = "",
    always: Annotated[
        bool,
        typer.Option(
            "--always", help="With allow: auto-approve such calls for the rest of this session."
        ),
    ] = False,
) -> None:
    """Answer a permission prompt of a background session.

    `shim bridge list --json` shows the open prompts. If another client has already answered, the
    exit status is 1 and the message states who answered, and how.

    Example: shim bridge answer 1f0c deny --message "not in this folder"
    """
    *prompt_ids, behavior = answer_args
    _check_answer_arguments(behavior, prompt_ids, message, input_json, always=always)
    replacement_input = None
    if input_json:
        replacement_input = _parse_input(input_json)
    record = resolve_session_reference(session)
    if record.machine:
        options = _list_answer_options(message, input_json, always=always)
        _run_bridge_command_on_machine(record, "answer", [*options, "--", *answer_args])
    if not record.is_running:
        raise FrontendError(
            f"session {record.short_id} has ended and has no open prompt",
            hint="`shim bridge list` shows open prompts",
        )
    requests = load_open_permission_requests(record)
    prompt_id = _resolve_prompt_id(record, requests, *prompt_ids)
    request = requests.get(prompt_id, {})
    decision = build_decision_body(
        behavior,
        request,
        record.metadata["cwd"],
        message=message,
        replacement_input=replacement_input,
        always=always,
    )
    _send_decision(record, prompt_id, decision)
    print_line("allowed" if behavior == "allow" else "denied")


def _check_answer_arguments(
    behavior: str, prompt_ids: Sequence[str], message: str, input_text: str, *, always: bool
) -> None:
    """Raise BadParameter if the answer is invalid, or if an option cannot be used with it."""
    if behavior not in DECISIONS or len(prompt_ids) > 1:
        raise typer.BadParameter(
            "expected `allow` or `deny`, after at most one prompt id", param_hint="ANSWER"
        )
    if behavior == "deny" and (input_text or always):
        param_hint = "--always"
        if input_text:
            param_hint = "--input"
        raise typer.BadParameter("can only be used with `allow`", param_hint=param_hint)
    if behavior == "allow" and message:
        raise typer.BadParameter(
            "can only be used with `deny`; `shim bridge say` sends a message",
            param_hint="--message",
        )


def _list_answer_options(message: str, input_text: str, *, always: bool) -> list[str]:
    """Return the options of `shim bridge answer` on another machine."""
    options = []
    if always:
        options.append("--always")
    for name, value in (("--message", message), ("--input", input_text)):
        if value:
            options += [name, value]
    return options


def _send_decision(record: SessionRecord, prompt_id: str, decision: Mapping[str, Any]) -> None:
    """Send the answer to a permission prompt. Raise FrontendError if another client has already
    answered.
    """
    frame = {"kind": "answer", "question": prompt_id, "decision": decision}
    # The client name is unique, so that the reply to this command can be recognized.
    client_name = f"shim bridge answer {create_uuid()[:8]}"
    replies = send_frames_and_collect_answers(
        record.session_id, [frame], os.environ, client=client_name
    )
    _check_replies(record, replies, "`shim bridge list --json` shows the open prompts")
    for reply in replies:
        if (
            reply["kind"] == "settled"
            and reply["question"] == prompt_id
            and reply["by"] != client_name
        ):
            resolver = reply["by"] or "the session itself"
            raise FrontendError(
                f"the prompt was already answered: {reply['how']}, by "
                f"{escape_control_chars(str(resolver))}"
            )


def stop_sessions(
    sessions: Annotated[
        list[str],
        typer.Argument(
            metavar="ID",
            help="Session ids, prefixes of them, or parts of names.",
            autocompletion=complete_background_session,
        ),
    ],
) -> None:
    """Stop background sessions.

    The history is kept: `claude --bg --resume` resumes a stopped session.

    Example: shim bridge stop 1f0c
    """
    records = registry.list_sessions(os.environ)
    selected = list(
        {
            record.session_id: record
            for record in (
                resolve_session_reference(reference, sessions=records) for reference in sessions
            )
        }.values()
    )
    _stop_local_sessions([record for record in selected if not record.machine])
    failed_count = 0
    for record in selected:
        if record.machine:
            output = run_session_command(record.session_id, ("bridge", "stop"), os.environ)
            typer.echo(output.text, nl=False)
            failed_count += output.status != 0
    if failed_count:
        raise typer.Exit(1)


def _stop_local_sessions(selected: Sequence[SessionRecord]) -> None:
    survivors = stop_hosts(selected, os.environ)
    for record in selected:
        if record.session_id not in {survivor.session_id for survivor in survivors}:
            unanswered_text = describe_unanswered_messages(record, os.environ)
            print_line(
                f"stopped {record.short_id}" + (f"; {unanswered_text}" if unanswered_text else "")
            )
    if survivors:
        pids = " ".join(str(record.metadata.get("pid")) for record in survivors)
        raise SystemResourceError(
            f"could not stop {', '.join(record.short_id for record in survivors)}",
            hint=f"`kill -9 {pids}` kills their hosts",
        )


def _run_bridge_command_on_machine(
    session: SessionRecord, name: str, args: Sequence[str]
) -> NoReturn:
    """Run `shim bridge NAME` on the machine of a session, print its output, and exit with its
    status.
    """
    output = run_session_command(session.session_id, ("bridge", name), os.environ, args)
    typer.echo(output.text, nl=False)
    raise typer.Exit(output.status)


def _wait_until_started(session: SessionRecord) -> None:
    """Wait until the host process of a restarted session is running. Raise FrontendError with the
    host's reason if the host cannot start.
    """
    try:
        connect_to_session_blocking(
            session.session_id, os.environ, role=WATCH, replay=False, partial=False
        ).close()
    except HostUnavailableError as error:
        raise FrontendError(
            f"could not restart session {session.short_id}: "
            f"{escape_control_chars(error.reason or 'its host exited')}",
            hint=f"the message was not sent; see `{session.stderr_path}`",
        ) from None


def _check_replies(session: SessionRecord, replies: Sequence[Mapping[str, Any]], hint: str) -> None:
    """Raise FrontendError if the host refused a frame, and HostNotAnsweringError if the host did
    not answer.
    """
    for reply in replies:
        if reply["kind"] == "refused":
            controller_text = ""
            if reply.get("driver"):
                controller_text = f" ({escape_control_chars(reply['driver'])} has control)"
            raise FrontendError(
                f"session {session.short_id}: {escape_control_chars(reply['text'])}{controller_text}",
                hint=hint,
            )
    if not any(reply["kind"] in ("accepted", "settled") for reply in replies):
        raise HostNotAnsweringError(session.session_id, session.metadata["pid"])


# -- permission prompts ----------------------------------------------------------------------------


def load_open_permission_requests(session: SessionRecord) -> dict[str, Mapping[str, Any]]:
    """Return a session's open permission prompts: prompt id → body of the permission request. Raise
    ShimError if the host does not report them.
    """
    return {
        prompt_id: frame["request"]
        for prompt_id, frame in _read_open_prompts(session, ANSWER_TIMEOUT_S)
    }


def _read_open_prompts(
    session: SessionRecord, timeout_s: float
) -> Iterator[tuple[str, Mapping[str, Any]]]:
    with connect_to_session_blocking(
        session.session_id, os.environ, role=WATCH, timeout_s=timeout_s, replay=False
    ) as connection:
        pending_ids = set(map(str, as_list(connection.welcome.get("questions"))))
        for frame in connection.read_frames(timeout_s) if pending_ids else ():
            prompt_id = get_text(frame, "question")
            if frame["kind"] == "question" and prompt_id in pending_ids:
                yield prompt_id, frame
            if frame["kind"] in ("question", "settled"):
                pending_ids.discard(prompt_id)
            if not pending_ids:
                return


def _resolve_prompt_id(
    session: SessionRecord, requests: Mapping[str, Mapping[str, Any]], id_prefix: str = ""
) -> str:
    """Return the id of the open prompt that starts with `id_prefix`.

    A prefix that does not match exactly one prompt is returned unchanged. Without a prefix, raise
    FrontendError unless exactly one prompt is open.
    """
    if id_prefix and not requests:
        return id_prefix
    matches = [prompt_id for prompt_id in requests if prompt_id.startswith(id_prefix)]
    if len(matches) == 1:
        return matches[0]
    if id_prefix:
        return id_prefix
    if not matches:
        last_answer = _describe_last_answer(session)
        raise FrontendError(
            f"session {session.short_id} has no open prompt{last_answer}",
            hint="`shim bridge list` shows which sessions have open prompts",
        )
    lines = "\n".join(
        f"  {prompt_id}  {escape_control_chars(summarize_permission_request(requests[prompt_id]))}"
        for prompt_id in matches
    )
    hint = f"pass the prompt's id: shim bridge answer {session.short_id} ID allow"
    raise FrontendError(
        f"session {session.short_id} has {len(matches)} open prompts:\n{lines}", hint=hint
    )


def _describe_last_answer(session: SessionRecord) -> str:
    """Describe how the last prompt was answered, and by which client. Return "" if no prompt was
    answered.
    """
    with connect_to_session_blocking(
        session.session_id, os.environ, role=WATCH, replay=False, partial=False
    ) as connection:
        resolution = connection.welcome.get("settled")
    if not isinstance(resolution, dict):
        return ""
    client = escape_control_chars(get_text(resolution, "by", "the session itself"))
    return (
        "; the last permission prompt was already answered: "
        f"{escape_control_chars(str(resolution.get('how')))}, by {client}"
    )


def summarize_permission_request(request: Mapping[str, Any]) -> str:
    """Summarize a permission request in one line. A shortened summary names the command that prints
    the full request.
    """
    content = request.get("input") or request.get("message")
    if not content:
        content = ""
    text = content
    if not isinstance(content, str):
        text = json.dumps(content, ensure_ascii=False)
    name = get_text(request, "tool_name", get_text(request, "subtype"))
    line = " ".join(f"{name}  {text}".split())
    hidden_chars = len(line) - MAX_SUMMARY_CHARS
    suffix = f"… ({hidden_chars:,} more characters: `shim bridge list --json` prints all of them)"
    if hidden_chars <= 0:
        return line
    return f"{line[:MAX_SUMMARY_CHARS]}{suffix}"


def _parse_input(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise typer.BadParameter(f"not valid JSON: {error}", param_hint="--input") from None
    if not isinstance(value, dict):
        raise typer.BadParameter("must be a JSON object", param_hint="--input")
    return value


def _build_session_report(session: SessionRecord) -> dict[str, Any]:
    """Build the JSON entry of a session. `questions` is null if the host does not report its open
    prompts.
    """
    metadata = session.metadata
    questions: list[dict[str, Any]] | None = []
    if metadata.get("away") is not None:
        questions = None
    elif session.is_running and (metadata.get("waitingFor") or metadata["state"] == "blocked"):
        try:
            timeout_s = LIST_TIMEOUT_S
            if session.machine:
                timeout_s = ANSWER_TIMEOUT_S
            prompts = _read_open_prompts(session, timeout_s)
            questions = [
                {key: frame[key] for key in QUESTION_KEYS if key in frame} for _, frame in prompts
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
    state_fields = {key: metadata.get(key) for key in keys}
    text_fields = {key: get_text(metadata, key) for key in ("vendor", "name", "cwd")}
    machine, uuid = split_machine(session.session_id)
    machine_fields = {}
    if machine:
        machine_fields = {"machine": machine, "away": metadata.get("away")}
    return {
        "id": shorten_session_id(uuid),
        "session": uuid,
        **machine_fields,
        "alive": session.is_running,
        **text_fields,
        **state_fields,
        "questions": questions,
    }
