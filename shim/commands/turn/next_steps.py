"""Prints the end of `shim demo`: what the demo showed, and what to type next."""

import os
import shutil
import sys
from collections.abc import Mapping

from rich.console import Console
from rich.text import Text

from shim.core.reading.values import format_single_line
from shim.process.find_program import find_programs_on_path
from shim.state.own_profiles import load_valid_adapters

DEMO_SUMMARY = (
    "That was a demo: the `claude` drop-in ran the bundled demo agent and translated its "
    "output to Claude's stream-json. No files were changed and no session was saved."
)
NO_VENDOR_TEXT = (
    "No agent CLI was found on PATH. Install one, for example qwen (`npm install -g "
    "@qwen-code/qwen-code`), and log in to it once. Then:"
)
EXAMPLE_VENDOR = "qwen"


def print_next_steps(console: Console) -> None:
    """Print what the demo showed and the next commands to try."""
    names = list(find_programs_on_path(load_valid_adapters(), os.environ, os.getcwd()))
    # The real claude works without the drop-in.
    name = next((name for name in names if name != "claude"), EXAMPLE_VENDOR)
    shim = find_shim_command(sys.argv[0], os.environ)
    vendors_text = NO_VENDOR_TEXT
    if names:
        vendors_text = f"Found on PATH: {', '.join(names)}. Next steps:"
    lines = {
        f"{shim} doctor {name}": "check that it works here",
        f'{shim} run -v {name} "what is here?"': "run one turn",
        f"{shim} install --vendor {name}": "install `claude` for your editor or UI",
    }
    widest = max(map(len, lines))
    console.print()
    console.print(Text(DEMO_SUMMARY))
    console.print()
    console.print(Text(vendors_text))
    fits_beside = widest + max(map(len, lines.values())) + 4 <= console.width
    for line, purpose in lines.items():
        text = Text(f"  {format_single_line(line):{widest}}")
        console.print(
            text.append(f"  {purpose}", style="dim") if fits_beside else text, soft_wrap=True
        )


def find_shim_command(program: str, environment: Mapping[str, str]) -> str:
    """Return the command to type for this `shim`, whose file is `program`. The command is the name
    if PATH finds the same file, and the path otherwise.
    """
    name = os.path.basename(program)
    if name != "shim":
        return f"{sys.executable} -m shim"
    path_match = shutil.which(name, path=environment.get("PATH"))
    if path_match and os.path.realpath(path_match) == os.path.realpath(program):
        return name
    relative_path = os.path.relpath(program)
    if not relative_path.startswith(os.pardir):
        return relative_path
    return os.path.abspath(program)
