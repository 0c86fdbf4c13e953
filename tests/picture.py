"""`make picture`: draws the output of `shim demo` as the SVG in the README.

The demo vendor's events go through the real translator, and their pauses through a fixed clock, so
the picture is the same on every machine. The rows appear at the times of the demo, and the picture
repeats; a reader who prefers less motion, or a viewer without animations, sees all rows. Fonts are
left to the reader's browser, so that the picture loads nothing from a network.
"""

import io
import json
import re
import sys
from pathlib import Path

import orjson
from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.terminal_theme import MONOKAI

from shim.commands.turn.demo_child import REPLY_PAUSE_S, TOKEN_PAUSE_S, generate_demo_events
from shim.conversation.drivers.open_translation import create_standalone_child_stream
from shim.core.turn.outcome import ChildExit
from shim.story.model import SessionStepTracker
from shim.story.terminal.renderer import TerminalSessionRenderer

PICTURE = Path(__file__).resolve().parent.parent / "shim" / "manual" / "demo.svg"
PROMPT, FOLDER = "make greet.py nicer", "/home/you/hello"
WIDTH = 84  # in columns
ROW_HEIGHT = 24.4  # in pixels, as Rich draws it
HOLD_S = 6.0  # for reading the complete picture before it repeats


def draw_demo() -> tuple[Console, list[float]]:
    """Draw the complete demo on a console. Return the console, and the seconds from the start of the
    demo until each row was complete.
    """
    console = Console(
        file=io.StringIO(),
        record=True,
        width=WIDTH,
        force_terminal=True,
        color_system="truecolor",
        highlight=False,
    )
    translation = create_standalone_child_stream(
        "demo", include_partial_messages=True, terminator="none", stable_ids=True
    )
    story, clock = SessionStepTracker(), 0.0
    row_times: list[float] = []
    drawing = TerminalSessionRenderer(console, story)
    for change in story.add_user_prompt(clock, PROMPT):
        drawing.draw_step_change(change)
    for event in generate_demo_events(PROMPT, FOLDER, "demo"):
        clock += {
            "thinking": TOKEN_PAUSE_S,
            "text": TOKEN_PAUSE_S,
            "start": REPLY_PAUSE_S,
            "result": REPLY_PAUSE_S,
        }.get(event["type"], 0.0)
        for line in translation.feed(json.dumps(event).encode() + b"\n")[0].splitlines():
            for change in story.add_claude_event(clock, orjson.loads(line)):
                drawing.draw_step_change(change)
        row_times += [clock] * (console.file.getvalue().count("\n") - len(row_times))
    for line in translation.close(ChildExit(0))[0].splitlines():
        for change in story.add_claude_event(clock, orjson.loads(line)):
            drawing.draw_step_change(change)
    for change in story.end_open_steps(clock):
        drawing.draw_step_change(change)
    drawing.close()
    row_times += [clock] * (console.file.getvalue().count("\n") - len(row_times))
    return console, row_times


def render_animation(row_times: list[float]) -> str:
    """Return the style that shows each row from its time on."""
    duration_s = row_times[-1] + HOLD_S
    rules = []
    for row, row_time in enumerate(row_times):
        start = f"{100 * row_time / duration_s:.1f}%"
        rules.append(
            f"@keyframes demo-{row} {{ 0% {{ visibility: hidden }} {start} {{ visibility: visible }} }}"
        )
        rules.append(
            f'[clip-path="url(#demo-line-{row})"] {{ animation: demo-{row} {duration_s:.1f}s step-end infinite }}'
        )
    return "@media (prefers-reduced-motion: no-preference) {\n" + "\n".join(rules) + "\n}\n"


def render_svg() -> str:
    template = re.sub(r"@font-face \{\{.*?\}\}", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)
    console, row_times = draw_demo()
    svg = console.export_svg(
        title="shim demo", theme=MONOKAI, code_format=template, unique_id="demo"
    )
    # The background of a part of a row appears with the row.
    svg = re.sub(
        r'(<rect (?=[^>]*crispEdges)[^>]* y="([0-9.]+)")',
        lambda match: (
            f'{match[1]} clip-path="url(#demo-line-{round(float(match[2]) / ROW_HEIGHT)})"'
        ),
        svg,
    )
    svg = svg.replace("</style>", render_animation(row_times) + "</style>", 1)
    return "\n".join(line.rstrip() for line in svg.splitlines() if line.strip()) + "\n"


def main() -> None:
    """Write the picture."""
    PICTURE.write_text(render_svg(), encoding="utf-8")
    sys.stdout.write(f"{PICTURE}: {PICTURE.stat().st_size} bytes\n")


if __name__ == "__main__":
    main()
