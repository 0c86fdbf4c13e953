"""`claude daemon`: there is none. What is said of it, in the words that programs look for (B37 to
B43).
"""

import os
from collections.abc import Sequence

from shim.bridge import registry
from shim.bridge.registry import SessionRecord
from shim.bridge.stop import stop_hosts
from shim.commands.claude.answers import Answer, refused
from shim.core.reading.account import counted, printable
from shim.io.raw_output import tell

# The real one's first line, and below it why.
INSTEAD = "there is no daemon here, and none is needed: each background session is its own process"
STATUS = (
    "not running\n\nbg sessions:\n  folder:      {folder}\n  running:     {running}\n\n"
    + INSTEAD
    + "\n"
)
NONE = "no daemon running"
ASK_ANY = (
    "no background service is installed, but {running} ({ids}), each as its own process. "
    "Run `claude daemon stop --any` to stop them."
)
NOT_STARTED = (
    "claude daemon{action}: "
    + INSTEAD
    + ": `claude --bg` begins one, `claude agents --json` lists them"
)
NOT_INSTALLED = "`claude daemon {action}` is disabled: " + INSTEAD
USAGE = """Usage: claude daemon [subcommand] [options]

  status     Show that there is no daemon, and the background sessions that run
  logs       Print what the hosts of background sessions said beside their lines
  stop       End all background sessions; needs --any
               --any           end them
               --keep-workers  leave them running
  uninstall  Nothing to do
"""
LOG_BYTES = 64 * 1024  # of each session's, from its end
FLAGS = {"stop": ("--any", "--keep-workers")}


def daemon(words: Sequence[str]) -> Answer:
    """The answer to `claude daemon WORDS`."""
    action = next((word for word in words if not word.startswith("-")), "")
    others = [word for word in words if word != action and word not in FLAGS.get(action, ())]
    if others and action in ("status", "stop", "logs", "uninstall"):
        tell(printable(f"warning: extra arguments ignored: {' '.join(others)}\n"))
    if action == "status":
        return _status()
    if action == "stop":
        return _stop(any_of_them="--any" in words, keep="--keep-workers" in words)
    if action == "logs":
        return _logs()
    if action == "uninstall":
        return Answer("uninstalled\n")
    if action in ("install", "start", "restart"):
        return refused(NOT_INSTALLED.format(action=action))
    if action in ("", "run"):
        return refused(NOT_STARTED.format(action=f" {action}" if action else ""))
    return refused(f"unknown subcommand: {action[:60]}\n\n{USAGE}".rstrip())


def _living() -> list[SessionRecord]:
    return [one for one in registry.list_sessions(os.environ) if one.is_running]


def _status() -> Answer:
    folder = registry.get_bridge_folder(os.environ)
    return Answer(STATUS.format(folder=printable(folder), running=len(_living())), 1, wanted=True)


def _stop(*, any_of_them: bool, keep: bool) -> Answer:
    living = _living()
    if not living:
        return Answer(NONE + "\n")
    if not any_of_them:
        running = counted(len(living), "background session") + (
            " runs" if len(living) == 1 else " run"
        )
        return refused(
            ASK_ANY.format(running=running, ids=", ".join(one.short_id for one in living))
        )
    if keep:
        return Answer(
            "stopped\nnote: nothing was ended: there is no daemon, and the sessions were to be kept\n"
        )
    left = stop_hosts(living, os.environ)
    ended = counted(len(living) - len(left), "background session")
    if left:
        return refused(f"ended {ended}; still running: {', '.join(one.short_id for one in left)}")
    return Answer(f"stopped (ended {ended})\n")


def _logs() -> Answer:
    said = []
    for one in registry.list_sessions(os.environ):
        text = _end_of(one.stderr_path)
        said += [f"[{one.short_id}] {line}\n" for line in printable(text).splitlines()]
    return Answer(
        "".join(said) or "no host of a background session has said anything beside its lines\n"
    )


def _end_of(path: str) -> str:
    """The last lines of a file, "" where there is none."""
    try:
        with open(path, "rb") as file:
            file.seek(max(os.fstat(file.fileno()).st_size - LOG_BYTES, 0))
            return file.read().decode("utf-8", "replace")
    except OSError:
        return ""
