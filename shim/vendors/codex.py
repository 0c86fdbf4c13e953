"""codex's adapter: what a `file_change` wrote, which its stream leaves out (codex page, section 3).

codex keeps a record of each thread, `sessions/YEAR/MONTH/DAY/rollout-TIME-THREAD.jsonl` in its home, by its own clock's
date. Measured with 0.169.0: a change stands there, with its contents, before its `item.completed` is printed. The file
itself is no source: without the sandbox it is changed before `item.started` is read. So such a call is said when it has
ended; where nothing of it is found, as in a replay, the rules say what the stream does: which file, and no more.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import orjson

from shim.ending import Exit
from shim.profiles.profile import ProfileTranslator
from shim.translator import Event
from shim.turn import Turn

HELD = 100  # changes that have begun and not ended; codex makes one after the other
USED = 10_000  # records of changes that were said; beyond that many in a turn the rules say the rest
DAYS = (0, -1, 1)  # from the date of a thread in UTC: its folder is named after the local one
NAMES = {"add": "Write", "delete": "Delete"}  # Claude's name of a change; else it is an Edit
BEGUN, CHANGED = b'"type":"task_started"', b'"type":"FileChange"'  # unescaped, so in no text of anybody's

Call = tuple[str, dict[str, str]]


class CodexTranslator(ProfileTranslator):
    """Edits and writes with their contents."""

    def __init__(self, turn: Turn, *, partial: bool = False) -> None:
        super().__init__(turn, partial=partial)
        self._held: dict[str, Event] = {}
        self._used: set[str] = set()
        self._record: str | None = None

    def on_event(self, event: Event) -> bool:
        item, kind = event.get("item"), event.get("type")
        if self.turn.terms.home is None:
            return False
        if not isinstance(item, dict) or item.get("type") != "file_change":
            if kind in ("turn.completed", "turn.failed"):
                self._let_go()
            return False
        identity, changes = str(item.get("id")), _changes(item)
        if changes is None:
            return False
        if kind == "item.started":
            if len(self._held) >= HELD or not self._may_run(changes):
                return False
            self._held[identity] = event
            return True
        self._held.pop(identity, None)
        return kind == "item.completed" and self._say(item, [path for path, _ in changes])

    def on_exit(self, child_exit: Exit | None, stderr: str) -> None:
        self._let_go()

    def _let_go(self) -> None:
        """Say what had begun, and will not be heard of again, as the rules say it."""
        for event in self._held.values():
            self.handlers[event["type"]](event)
        self._held.clear()

    def _may_run(self, changes: list[tuple[str, str]]) -> bool:
        """Whether nobody denied this; what must not run is said at once, so that the turn is stopped."""
        policy = self.turn.terms.policy
        return policy is None or all(
            policy.verdict(NAMES.get(kind, "Edit"), {"file_path": path}) == "allow" for path, kind in changes
        )

    def _say(self, item: Event, paths: list[str]) -> bool:
        """Say an ended change with its contents, if they are known."""
        record = self._recorded(set(paths))
        if record is None:
            return False
        failed = item.get("status") == "failed"
        said = str(record.get("stderr" if failed else "stdout") or item.get("status") or "").strip()
        contents: list[tuple[str, str, Call]] = []
        for index, path in enumerate(paths):
            change = record["changes"][path]
            moved = change.get("move_path")
            text = f"{said}\n{path} is now {moved}" if moved and not failed else said
            for number, call in enumerate(calls(path, change)):
                identity = f"{self.mark}{item.get('id')}:{index}" + (f".{number}" if number else "")
                contents.append((identity, text, call))
        for identity, _, call in contents:
            self.turn.tool_use(identity, *call)
        for identity, text, _ in contents:
            self.turn.tool_result(identity, text, failed)
        return True

    def _recorded(self, paths: set[str]) -> dict[str, Any] | None:
        """codex's own record of a change of these files in this turn, which was not said yet."""
        home = self.turn.terms.home
        self._record = self._record or self._place()
        if home is None or self._record is None or len(self._used) >= USED:
            return None
        data = home.tail(self._record)
        for line in data[max(data.rfind(BEGUN), 0) :].split(b"\n"):
            if CHANGED not in line:
                continue
            try:
                found = orjson.loads(line)["payload"]["item"]
                if found["id"] not in self._used and set(found["changes"]) == paths:
                    self._used.add(found["id"])
                    record: dict[str, Any] = found
                    return record
            except (orjson.JSONDecodeError, KeyError, TypeError):
                continue  # the first line is cut off, or it is of another version
        return None

    def _place(self) -> str | None:
        """Where the record of the thread is; the first part of a thread's id is when it began, in milliseconds."""
        from datetime import UTC, datetime, timedelta

        home, thread = self.turn.terms.home, self.turn.conversation.vendor_session or ""
        try:
            began = datetime.fromtimestamp(int(thread.replace("-", "")[:12], 16) / 1000, UTC)
            folders = [f"sessions/{began + timedelta(days):%Y/%m/%d}" for days in DAYS]
        except (ValueError, OverflowError, OSError):
            return None
        found = (home.find(folder, f"-{thread}.jsonl") for folder in folders if home is not None)
        return next((path for path in found if path), None)


def _changes(item: Event) -> list[tuple[str, str]] | None:
    """Path and kind of what an item changes; None where it is not said so."""
    changes = item.get("changes")
    if not isinstance(changes, list) or not all(isinstance(one, dict) for one in changes):
        return None
    found = [(one.get("path"), one.get("kind")) for one in changes]
    return found if all(isinstance(path, str) and isinstance(kind, str) for path, kind in found) else None


def calls(path: str, change: Mapping[str, Any]) -> list[Call]:
    """A recorded change of one file as calls of Claude's: one for each part of it, at least one."""
    file, kind = {"file_path": path}, change.get("type")
    if kind == "add" and isinstance(change.get("content"), str):
        return [("Write", file | {"content": change["content"]})]
    edits = hunks(change["unified_diff"]) if kind == "update" and isinstance(change.get("unified_diff"), str) else ()
    said = [("Edit", file | {"old_string": old, "new_string": new}) for old, new in edits]
    return said or [(NAMES.get(str(kind), "Edit"), file)]


def hunks(diff: str) -> Iterator[tuple[str, str]]:
    """The parts of a unified diff: what stood there, and what stands there now, with the lines around it."""
    old: list[str] = []
    new: list[str] = []
    last: list[list[str]] = []  # where the line before this one went
    for line in diff.split("\n"):
        mark = line[:1]
        if mark == "@":
            if old or new:
                yield "".join(old), "".join(new)
            old, new = [], []
        elif mark in (" ", "-", "+"):
            last = [side for side, other in ((old, "+"), (new, "-")) if mark != other]
            for side in last:
                side.append(line[1:] + "\n")
        elif mark == "\\":  # "No newline at end of file"
            for side in last:
                side[-1] = side[-1].removesuffix("\n")
    if old or new:
        yield "".join(old), "".join(new)
