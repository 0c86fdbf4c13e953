"""A machine of a fleet that runs another version of the shim: `fleet_other_version.py newer|older run`.

A newer version sends fields, kinds of messages and kinds of frames that do not exist today. An older
one does not send the fields that a reader can do without. `relay` instead of `run` starts the relay of
such a machine.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

from shim.core.fleet import sealing
from shim.core.reading.json_text import dump_json
from shim.fleet import machine_tunnels
from shim.fleet.run import run_fleet
from shim.fleet.tunnels import Tunnel

NEWER, OLDER = "newer", "older"
NEWER_VERSION = "99.0"
UNKNOWN_KIND = 99
UNKNOWN_FRAME = {"kind": "sparkle", "new": [1, 2]}
# The fields of entries, requests and answers that no reader can do without.
REQUIRED_KEYS = ("jwt", "generation", "session", "alive", "challenge", "refusal")


def encode_as_newer(fields: Mapping[str, Any]) -> bytes:
    """Encode an entry, a request or an answer with fields that do not exist today."""
    changes = {key: NEWER_VERSION for key in ("version",) if key in fields}
    return dump_json({"new": {"nested": [None]}, **fields, **changes, "newest": 1.5})


def encode_as_older(fields: Mapping[str, Any]) -> bytes:
    """Encode an entry, a request or an answer without optional fields."""
    return dump_json(
        {key: fields[key] for key in REQUIRED_KEYS if fields.get(key) not in (None, "")}
    )


ENCODERS = {NEWER: encode_as_newer, OLDER: encode_as_older}


async def send_unknown_kinds(self: Tunnel, kind: int, *args: Any, **options: Any) -> None:
    """Send a message of an unknown kind before each message of a tunnel."""
    await send_message(self, UNKNOWN_KIND, b"new")  # type: ignore[arg-type]
    await send_message(self, kind, *args, **options)  # type: ignore[arg-type]


send_message = Tunnel.send


def run_machine(version: str) -> None:
    """Run `shim fleet run` of this version."""
    sealing.dump_json = ENCODERS[version]  # type: ignore[assignment]
    if version == NEWER:
        Tunnel.send = send_unknown_kinds  # type: ignore[method-assign, assignment]
        machine_tunnels.RELAY_ARGV = (sys.executable, __file__, NEWER, "relay")  # type: ignore[assignment]
    run_fleet(os.environ)


def run_relay(options: list[str]) -> int:
    """Run the relay. Add an unknown field to each frame that it writes, and a frame of an unknown
    kind after it.
    """
    argv = [sys.executable, "-I", "-m", "shim", "bridge", "relay", *options]
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as relay:
        assert relay.stdout is not None
        for line in relay.stdout:
            if line.startswith(b'{"kind":'):
                line = b'{"new":{},' + line[1:] + json.dumps(UNKNOWN_FRAME).encode() + b"\n"
            sys.stdout.buffer.write(line)
            sys.stdout.buffer.flush()
    return relay.returncode


if __name__ == "__main__":
    if sys.argv[2] == "relay":
        sys.exit(run_relay(sys.argv[3:]))
    run_machine(sys.argv[1])
