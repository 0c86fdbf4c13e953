"""Implements `shim replay`, which plays one side of a recording or checks it against the current
translation.
"""

from typing import Annotated

import typer

from shim.commands.completion.values import create_completer
from shim.io.stderr import warn
from shim.recording.completion import complete_recording
from shim.recording.player import play_recording
from shim.recording.replay_request import ReplayRequest
from shim.story.terminal.console import check_option_value

SIDES = ("vendor", "claude")
CastsArgument = Annotated[
    list[str],
    typer.Argument(
        metavar="CAST",
        help="A recording; with --check also several, or folders of them.",
        autocompletion=complete_recording,
    ),
]
SideOption = Annotated[
    str,
    typer.Option(
        "--as",
        help="vendor: replay the child's output; claude: replay what the frontend received.",
        autocompletion=create_completer(SIDES),
    ),
]
ChildOption = Annotated[
    int,
    typer.Option(
        help="Replay the child with this number, if each message has its own child.", min=1
    ),
]
SpeedOption = Annotated[
    float, typer.Option(help="The speed: 2 is twice as fast, 0 leaves out all pauses.", min=0.0)
]
MaxGapOption = Annotated[float | None, typer.Option(help="The longest pause, in seconds.", min=0.0)]
CheckOption = Annotated[
    bool, typer.Option("--check", help="Compare the current translation with the recorded one.")
]
CheckJsonOption = Annotated[
    bool, typer.Option("--json", help="Print the result of --check as JSON.")
]


def replay(
    casts: CastsArgument,
    side: SideOption = "vendor",
    child: ChildOption = 1,
    speed: SpeedOption = 1.0,
    max_gap: MaxGapOption = None,
    check: CheckOption = False,
    as_json: CheckJsonOption = False,
) -> None:
    """Replay a recorded session, or check it.

    Writes the recording to stdout: as the vendor printed it, or as its frontend received it. If the
    recorded child received a line, the replay waits for a line on stdin, unless stdin is a
    terminal.

    Example: shim replay session.cast --as claude --speed 4 --max-gap 2
    """
    if check:
        from shim.commands.cast.check_report import check_recordings_and_print_report

        raise typer.Exit(check_recordings_and_print_report(casts, as_json=as_json))
    check_option_value(SIDES, side, "--as")
    if len(casts) > 1:
        raise typer.BadParameter(
            "only one recording can be replayed at a time; --check accepts several",
            param_hint="CAST",
        )
    if as_json:
        warn("--json has no effect without --check\n")
    raise typer.Exit(
        play_recording(
            ReplayRequest(casts[0], side=side, child=child, speed=speed, max_gap=max_gap)
        )
    )
