"""A program that is played by hand, and that asks: its words in, the frontend's lines and its
questions out.
"""

import json

from support import STABLE_ID_PREFIX, terms_of

from shim.core.adapter.pump import ChildStream
from shim.core.adapter.translation import StreamTranslation
from shim.core.claude.pen import TERMINATORS, StreamJsonWriter
from shim.core.turn.outcome import ChildExit


class Played:
    """`lines` is what the frontend has; `asked` what it was asked, for a class of `hears`."""

    def __init__(self, vendor, **terms):
        self.speech = vendor.create_child_input()
        self.reader = self.speech.bind_translator(vendor.translator_class)
        pen = StreamJsonWriter(STABLE_ID_PREFIX, terminator=TERMINATORS["message_stop"])
        self.pump = ChildStream(StreamTranslation(self.reader, terms_of(vendor.name, **terms), pen))
        self.lines, self.asked = b"", []

    def says(self, *messages):
        data = b"".join(
            json.dumps(message, separators=(",", ":")).encode() + b"\n" for message in messages
        )
        return self.hears(*self.pump.feed(data))

    def end(self):
        said, _ = self.pump.close(ChildExit(0, None))
        self.lines += said
        return self
