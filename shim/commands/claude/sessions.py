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
from shim.commands.claude.answers import Answer, disabled, refused
from shim.commands.claude.claude_help import USAGES
from shim.core.errors import ShimError
from shim.core.reading.account import printable
from shim.io.raw_output import tell

EVERY = "--all"
UNSURE = "couldn't confirm {id} was stopped — its host does not end. `kill -9 {pid}` ends it."


def door(name: str, words: Sequence[str]) -> Answer:
    """The answer to `claude NAME WORDS`."""
    if off := disabled(name):
        return off
    if len(words) > 1:
        tell(printable(f"warning: extra arguments ignored: {' '.join(words[1:])}\n"))
    if not words or not words[0]:
        return refused(
            USAGES[name].replace("Usage", "usage") if name == "respawn" else USAGES[name]
        )
    if words[0].startswith("-") and (name, words[0]) != ("respawn", EVERY):
        return refused(f"unknown option '{words[0]}'\n{USAGES[name]}")
    try:
        return _DOORS[name](words)
    except ShimError as error:
        return refused(f"{error}\n{error.hint}".rstrip())


def _logs(words: Sequence[str]) -> Answer:
    one = find_session_by_reference(words[0], is_only_arg=len(words) == 1)
    from shim.commands.sessions.logs import recent

    return Answer(recent(one))


def _attach(words: Sequence[str]) -> Answer:
    one = find_session_by_reference(words[0], is_only_arg=len(words) == 1)
    from shim.commands.sessions.terminal.attach import attach

    return Answer("", attach(one, os.environ))


def _stop(words: Sequence[str]) -> Answer:
    one = find_session_by_id(words[0], NO_MATCH_WITH_HINT)
    if end([one], os.environ):
        return _unsure(one)
    if lost := describe_unanswered_messages(one, os.environ):
        tell(f"{lost}\n")  # beside the words that programs know
    return Answer(f"stopped {one.short_id}\n")


def _remove(words: Sequence[str]) -> Answer:
    one = find_session_by_id(words[0])
    if end([one], os.environ):
        return _unsure(one)
    if not registry.remove_session(one):
        return refused(f"couldn't remove {one.short_id} — {one.folder} cannot be removed")
    return Answer(f"removed {one.short_id}\n")


def _respawn(words: Sequence[str]) -> Answer:
    known = registry.list_sessions(os.environ)
    if words[0] != EVERY:
        one = find_session_by_id(words[0], sessions=known)
        return _unsure(one) if end([one], os.environ) else _restarted(one)
    living = [one for one in known if one.is_running]
    if not living:
        return Answer("no running sessions to restart\n")
    stubborn, restarted = {one.session_id for one in end(living, os.environ)}, list[str]()
    for one in living:
        if one.session_id in stubborn:
            tell(f"{one.short_id}: still running — couldn't confirm restart, retry in a moment\n")
            continue
        try:
            restarted.append(_restarted(one).text)
        except ShimError as error:  # the others were ended too, and want to go on
            tell(f"{one.short_id}: not restarted — {error}\n")
    return Answer("".join(restarted), int(len(restarted) < len(living)))


def _restarted(one: SessionRecord) -> Answer:
    from shim.bridge.start import respawn_session

    respawn_session(one, os.environ)
    return Answer(f"restarted {one.short_id}\n")


def _unsure(one: SessionRecord) -> Answer:
    return refused(UNSURE.format(id=one.short_id, pid=one.metadata.get("pid") or "PID"))


_DOORS: dict[str, Callable[[Sequence[str]], Answer]] = {
    "attach": _attach,
    "logs": _logs,
    "stop": _stop,
    "rm": _remove,
    "respawn": _respawn,
}
