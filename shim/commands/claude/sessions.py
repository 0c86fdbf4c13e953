"""`claude attach|logs|stop|rm|respawn`: what is done to one session that lives on its own (B21 to
B28).
"""

import os
from collections.abc import Callable, Sequence

from shim.bridge import registry
from shim.bridge.registry import SessionRecord
from shim.bridge.stop import describe_unanswered_messages
from shim.bridge.stop import stop_hosts as end
from shim.bridge.which import NO_MATCH_WITH_HINT, find_session_by_id, find_session_by_reference
from shim.commands.claude.answers import CommandOutput, build_refusal, check_disabled
from shim.commands.claude.claude_help import USAGE_TEXTS
from shim.core.errors import ShimError
from shim.core.reading.account import escape_control_chars
from shim.io.raw_output import warn

ALL_FLAG = "--all"
STILL_RUNNING_TEXT = (
    "couldn't confirm {id} was stopped — its host does not end. `kill -9 {pid}` ends it."
)


def dispatch_session_command(name: str, words: Sequence[str]) -> CommandOutput:
    """The answer to `claude NAME WORDS`."""
    if off := check_disabled(name):
        return off
    if len(words) > 1:
        warn(escape_control_chars(f"warning: extra arguments ignored: {' '.join(words[1:])}\n"))
    if not words or not words[0]:
        return build_refusal(
            USAGE_TEXTS[name].replace("Usage", "usage") if name == "respawn" else USAGE_TEXTS[name]
        )
    if words[0].startswith("-") and (name, words[0]) != ("respawn", ALL_FLAG):
        return build_refusal(f"unknown option '{words[0]}'\n{USAGE_TEXTS[name]}")
    try:
        return _COMMANDS[name](words)
    except ShimError as error:
        return build_refusal(f"{error}\n{error.hint}".rstrip())


def _answer_logs(words: Sequence[str]) -> CommandOutput:
    one = find_session_by_reference(words[0], is_only_arg=len(words) == 1)
    from shim.commands.sessions.logs import format_recent_lines

    return CommandOutput(format_recent_lines(one))


def _answer_attach(words: Sequence[str]) -> CommandOutput:
    one = find_session_by_reference(words[0], is_only_arg=len(words) == 1)
    from shim.commands.sessions.terminal.attach import run_attach

    return CommandOutput("", run_attach(one, os.environ))


def _answer_stop(words: Sequence[str]) -> CommandOutput:
    one = find_session_by_id(words[0], NO_MATCH_WITH_HINT)
    if end([one], os.environ):
        return _build_survivor_refusal(one)
    if lost := describe_unanswered_messages(one, os.environ):
        warn(f"{lost}\n")  # beside the words that programs know
    return CommandOutput(f"stopped {one.short_id}\n")


def _answer_remove(words: Sequence[str]) -> CommandOutput:
    one = find_session_by_id(words[0])
    if end([one], os.environ):
        return _build_survivor_refusal(one)
    if not registry.remove_session(one):
        return build_refusal(f"couldn't remove {one.short_id} — {one.folder} cannot be removed")
    return CommandOutput(f"removed {one.short_id}\n")


def _answer_respawn(words: Sequence[str]) -> CommandOutput:
    known = registry.list_sessions(os.environ)
    if words[0] != ALL_FLAG:
        one = find_session_by_id(words[0], sessions=known)
        return _build_survivor_refusal(one) if end([one], os.environ) else _restart_session(one)
    living = [one for one in known if one.is_running]
    if not living:
        return CommandOutput("no running sessions to restart\n")
    stubborn, restarted = {one.session_id for one in end(living, os.environ)}, list[str]()
    for one in living:
        if one.session_id in stubborn:
            warn(f"{one.short_id}: still running — couldn't confirm restart, retry in a moment\n")
            continue
        try:
            restarted.append(_restart_session(one).text)
        except ShimError as error:  # the others were ended too, and want to go on
            warn(f"{one.short_id}: not restarted — {error}\n")
    return CommandOutput("".join(restarted), int(len(restarted) < len(living)))


def _restart_session(one: SessionRecord) -> CommandOutput:
    from shim.bridge.start import respawn_session

    respawn_session(one, os.environ)
    return CommandOutput(f"restarted {one.short_id}\n")


def _build_survivor_refusal(one: SessionRecord) -> CommandOutput:
    return build_refusal(
        STILL_RUNNING_TEXT.format(id=one.short_id, pid=one.metadata.get("pid") or "PID")
    )


_COMMANDS: dict[str, Callable[[Sequence[str]], CommandOutput]] = {
    "attach": _answer_attach,
    "logs": _answer_logs,
    "stop": _answer_stop,
    "rm": _answer_remove,
    "respawn": _answer_respawn,
}
