"""The parameters of a replay, and their encoding as command-line arguments of the player."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple


class ReplayRequest(NamedTuple):
    """The parameters of a replay.

    path     the recording
    side     the recorded program to replay: `vendor` or `claude`
    child    the number of the child in the recording, from 1
    speed    2 is twice as fast, 0 has no pauses
    max_gap  the longest pause in seconds, or None
    signals  whether the replay waits for recorded signals
    session  the live session id, or ""
    folder   a folder of recordings; the player replaces `path` with the recording in this folder
             that starts with the received message
    report   the path for the child's report file, or "" if the report is not read
    """

    path: str
    side: str = "vendor"
    child: int = 1
    speed: float = 1.0
    max_gap: float | None = None
    signals: bool = False
    session: str = ""
    folder: str = ""
    report: str = ""


# Maps each ReplayRequest field to the player's option and the function that parses the value.
_OPTIONS: Mapping[str, tuple[str, Callable[[str], object]]] = {
    "path": ("--cast", str),
    "side": ("--as", str),
    "child": ("--child", int),
    "speed": ("--speed", float),
    "max_gap": ("--max-gap", float),
    "signals": ("--signals", bool),
    "session": ("--session", str),
    "folder": ("--folder", str),
    "report": ("--report", str),
}


def format_replay_args(request: ReplayRequest) -> list[str]:
    """Return the command-line arguments for the player. The player ignores any arguments after
    them.
    """
    values = ((option, getattr(request, name)) for name, (option, _) in _OPTIONS.items())
    return [
        *(
            f"{option}={value}"
            for option, value in values
            if value not in ("", None) and value is not False
        ),
        "--",
    ]


def parse_replay_args(args: Sequence[str]) -> ReplayRequest:
    option_args = args
    if "--" in args:
        option_args = list(args)[: args.index("--")]
    values_by_option = dict(arg.partition("=")[::2] for arg in option_args)
    fields: dict[str, Any] = {
        name: convert(values_by_option[arg])
        for name, (arg, convert) in _OPTIONS.items()
        if arg in values_by_option
    }
    return ReplayRequest(**{"path": "", **fields})
