"""`make picture`: draws the output of `shim demo` as the SVG in the README.

The demo vendor's events go through the real translator, and their pauses through a fixed clock, so
the picture is the same on every machine. Fonts are left to the reader's browser, so that the
picture loads nothing from a network.
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


def draw_demo() -> Console:
    """Draw the complete demo on a console. Return the console."""
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
    for line in translation.close(ChildExit(0))[0].splitlines():
        for change in story.add_claude_event(clock, orjson.loads(line)):
            drawing.draw_step_change(change)
    for change in story.end_open_steps(clock):
        drawing.draw_step_change(change)
    drawing.close()
    return console


def render_svg() -> str:
    template = re.sub(r"@font-face \{\{.*?\}\}", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)
    svg = draw_demo().export_svg(
        title="shim demo", theme=MONOKAI, code_format=template, unique_id="demo"
    )
    return "\n".join(line.rstrip() for line in svg.splitlines() if line.strip()) + "\n"


def main() -> None:
    """Write the picture."""
    PICTURE.write_text(render_svg(), encoding="utf-8")
    sys.stdout.write(f"{PICTURE}: {PICTURE.stat().st_size} bytes\n")


if __name__ == "__main__":
    main()
