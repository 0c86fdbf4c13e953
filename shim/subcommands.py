"""`claude --help` and Claude's subcommands: answered here, never by starting a vendor (contract F11b)."""

import os
from collections.abc import Mapping

from shim.argv import FLAGS, Invocation
from shim.translate import write_all


def answer(invocation: Invocation, installed: Mapping[str, str]) -> int:
    """Print the answer; the exit status."""
    if invocation.subcommand == "auth":
        vendor = invocation.shim_vendor or os.environ.get("SHIM_VENDOR") or installed.get("vendor") or "shim"
        write_all(1, _auth(invocation.subcommand_args, vendor))
        return 0
    if invocation.subcommand:
        write_all(2, f"claude {invocation.subcommand} is not needed: the shim has nothing to set up there\n".encode())
        return 0
    write_all(1, _help().encode())
    return 0


def _auth(words: tuple[str, ...], vendor: str) -> bytes:
    import json

    status = {"loggedIn": True, "authMethod": vendor, "apiProvider": "shim"}
    if "--json" in words:
        return json.dumps(status, indent=2).encode() + b"\n"
    return b"Logged in through the shim's vendor\n"


def _help() -> str:
    lines = [
        "Usage: claude [options] [prompt]",
        "",
        "A stand-in for claude: another agent answers in Claude's stream-json. `shim --help` lists its own commands.",
        "",
        "Options:",
    ]
    known = (spelling for field, spelling in FLAGS.items() if field != "other")
    return "\n".join([*lines, *(f"  {spelling}" for spelling in known)]) + "\n"
