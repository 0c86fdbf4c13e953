"""Replays recordings without a process: with a manual clock, and another side that sends its lines
at given times.
"""

import json
from collections.abc import Iterable

from cast_builder import Moment, build_recording, read_cast

from shim.core.cast.protocol_lines import select_child_records
from shim.core.cast.replayer import RecordingReplayer, ReplayStep
from shim.recording.player import InputEvent, ReplayPlayer

START: Moment = (0.0, "s", {"child": 1, "turn": 1, "argv": ["qwen"], "cwd": "/w"})


def build_exit_record(
    at: float, code: int | None = 0, signal: str | None = None, child: int = 1
) -> Moment:
    """Build the record of a child's exit."""
    return at, "x", {"child": child, "code": code, "signal": signal}


def build_signal_note(at: float, name: str) -> Moment:
    """Build the note of a signal that was sent to a child."""
    return at, "n", {"kind": "signal", "child": 1, "signal": name}


def encode_line(event: object) -> bytes:
    """Encode an event as a line."""
    return json.dumps(event, separators=(",", ":")).encode() + b"\n"


def encode_control_request(request_id: str, subtype: str, **fields: object) -> bytes:
    return encode_line(
        {
            "type": "control_request",
            "request_id": request_id,
            "request": {"subtype": subtype, **fields},
        }
    )


def encode_control_response(request_id: str, **body: object) -> bytes:
    return encode_line(
        {
            "type": "control_response",
            "response": {"subtype": "success", "request_id": request_id, "response": body},
        }
    )


def encode_user_message(text: str, **fields: object) -> bytes:
    return encode_line({"type": "user", "message": {"role": "user", "content": text}, **fields})


RESULT = encode_line({"type": "result", "subtype": "success", "is_error": False, "result": "done"})


def build_replayer(
    moments: Iterable[Moment], *, child: int = 1, **options: object
) -> RecordingReplayer:
    """Build the replayer of a child in a recording of `moments`."""
    _, records = read_cast(build_recording(moments))
    replayer_options = {"output_streams": "oe", "input_stream": "I", **options}
    return RecordingReplayer(select_child_records(records, child), **replayer_options)  # type: ignore[arg-type]


class ReplayHarness:
    """Plays a recording. `outputs` has the output with its times, `inputs` the actions of the other
    side with their times.
    """

    def __init__(self, *inputs: tuple[float, str, bytes]) -> None:
        self.now = 0.0
        self.outputs: list[tuple[float, str, bytes]] = []
        self._inputs = list(inputs)
        self.timeouts_s: list[float] = []

    def wait_for_events(self, seconds: float) -> list[InputEvent] | None:
        """Wait for input, as the player requires it."""
        self.timeouts_s.append(seconds)
        if self._inputs and self._inputs[0][0] <= self.now + seconds:
            at, kind, data = self._inputs.pop(0)
            self.now = max(self.now, at)
            return [(kind, data)]
        self.now += seconds
        return None

    def write_output(self, letter: str, data: bytes) -> None:
        """Record output of the player."""
        self.outputs.append((round(self.now, 3), letter, data))

    def play_to_end(
        self, script: RecordingReplayer, speed: float = 1.0, max_gap: float | None = None
    ) -> ReplayStep:
        player = ReplayPlayer(
            script,
            wait_for_events=self.wait_for_events,
            write=self.write_output,
            speed=speed,
            max_gap_s=max_gap,
            clock=lambda: self.now,
        )
        return player.play()

    @property
    def stdout(self) -> bytes:
        return b"".join(data for _, letter, data in self.outputs if letter != "e")
