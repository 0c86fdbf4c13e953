"""Encodes the list of the fleet for a command of this user, which reads a limited size."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from shim.core.bridge.frames import encode_frame
from shim.fleet.view import FleetMachine
from shim.state.machines import MAX_FLEET_LISTING_BYTES

# The command stores the machines with its own fields, which have fewer bytes.
MAX_FRAME_BYTES = MAX_FLEET_LISTING_BYTES - 1024
# How many ended sessions of each machine are listed. If the list is too large, the next limit is tried.
ENDED_SESSION_LIMITS = (500, 100, 20, 0)


def encode_listing(machines: Sequence[FleetMachine]) -> bytes:
    """Return the frame `fleet`, with as many of the newest ended sessions as MAX_FRAME_BYTES allow.
    Return the frame `bye` if the running sessions alone exceed it.
    """
    for max_ended in ENDED_SESSION_LIMITS:
        frame = encode_frame(
            "fleet",
            machines=[
                {
                    "name": machine.name,
                    "version": machine.version,
                    "away": machine.away_ms,
                    "sessions": list(_select_sessions(machine.sessions.values(), max_ended)),
                }
                for machine in machines
            ],
        )
        if len(frame) <= MAX_FRAME_BYTES:
            return frame
    size = MAX_FLEET_LISTING_BYTES // 1024**2
    return encode_frame("bye", reason=f"the running sessions of the fleet exceed {size} MiB")


def _select_sessions(
    sessions: Collection[Mapping[str, Any]], max_ended: int
) -> Collection[Mapping[str, Any]]:
    """Return the running sessions, and the newest ended ones."""
    running = [fields for fields in sessions if fields.get("alive") is True]
    ended = [fields for fields in sessions if fields.get("alive") is not True]
    if len(ended) <= max_ended:
        return sessions
    ended.sort(key=lambda fields: str(fields.get("updated")), reverse=True)
    return running + ended[:max_ended]
