"""`shim replay`: a cast played as one of its sides, or checked against what is said of it today."""

from typing import Annotated

import typer

from shim.channels.raw_output import tell
from shim.recording.replay import play
from shim.recording.wanted import Wanted

SIDES = ("vendor", "claude")
Casts = Annotated[list[str], typer.Argument(metavar="CAST…", help="A cast; with --check also a directory of them.")]
Side = Annotated[str, typer.Option("--as", help="vendor: the child's bytes; claude: what the frontend saw.")]
Child = Annotated[int, typer.Option(help="Which child of the recording, where each message had one.", min=1)]
Speed = Annotated[float, typer.Option(help="2 is twice as fast, 0 at once.", min=0.0)]
Gap = Annotated[float | None, typer.Option(help="No pause is longer, in seconds.", min=0.0)]
Check = Annotated[bool, typer.Option("--check", help="Today's translator against what was said then.")]
AsJson = Annotated[bool, typer.Option("--json", help="With --check, for a program.")]


def replay(
    casts: Casts,
    side: Side = "vendor",
    child: Child = 1,
    speed: Speed = 1.0,
    max_gap: Gap = None,
    check: Check = False,
    as_json: AsJson = False,
) -> None:
    """Play a recorded session: as the vendor's program would, or as its frontend saw it.

    Where the recording was told something, a line on stdin is waited for, unless stdin is a terminal.

    Example: shim replay session.cast --as claude --speed 4 --max-gap 2
    """
    if check:
        from shim.commands.cast.report import report

        raise typer.Exit(report(casts, as_json=as_json))
    if side not in SIDES:
        raise typer.BadParameter(f"{side!r} is none of {', '.join(SIDES)}", param_hint="--as")
    if len(casts) > 1:
        raise typer.BadParameter("one cast is played at a time; --check takes many", param_hint="CAST")
    if as_json:
        tell("--json is for --check, and is ignored\n")
    raise typer.Exit(play(Wanted(casts[0], side=side, child=child, speed=speed, max_gap=max_gap)))
