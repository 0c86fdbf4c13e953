"""A scripted program that asks for permission: its output is fed in, and the frontend's lines and
permission prompts are collected.
"""

import json

from turn_stage import build_turn_config

from shim.conversation.drivers.open_translation import STABLE_ID_PREFIX
from shim.core.adapter.child_stream import ChildStream
from shim.core.claude.writer import TERMINATORS, StreamJsonWriter
from shim.core.turn.outcome import ChildExit


class Played:
    """A conversation with a scripted program.

    `lines` are the lines that the frontend received, `pending_permissions` its permission prompts.
    A subclass implements `add_output`.
    """

    def __init__(self, vendor, **config_fields):
        self.child_input = vendor.create_child_input()
        self.reader = self.child_input.create_translator_factory(vendor.translator_class)
        writer = StreamJsonWriter(STABLE_ID_PREFIX, terminator=TERMINATORS["message_stop"])
        self.child_stream = ChildStream(
            self.reader, build_turn_config(vendor.name, **config_fields), writer
        )
        self.lines, self.pending_permissions = b"", []

    def feed_messages(self, *messages):
        data = b"".join(
            json.dumps(message, separators=(",", ":")).encode() + b"\n" for message in messages
        )
        return self.add_output(*self.child_stream.feed(data))

    def close_stream(self):
        output, _ = self.child_stream.close(ChildExit(0, None))
        self.lines += output
        return self
