"""What the tests of profiles share: a profile out of a text, and what it says for events."""

import json
import tomllib
from typing import Any

from support import Line, build_turn_config, parse_lines, summarize_lines

from shim.conversation.drivers.open_translation import STABLE_ID_PREFIX, create_output_writer
from shim.core.adapter.adapter import Adapter
from shim.core.adapter.child_stream import ChildStream
from shim.core.turn.outcome import ChildExit
from shim.profiles.check.config_node import ConfigSource
from shim.profiles.load.adapter import build_adapter

HEAD = 'schema = 1\nid = "own"\n'
LAUNCH = '[launch]\ncommand = ["own"]\n'
TEXT_RULE = '[[event]]\nmatch = { type = "say" }\nemit = "text"\ntext = "words"\n'


def build_profile_adapter(text: str, adapter: type | None = None) -> Adapter:
    """The vendor of a profile's text; `id`, a launch and a rule are added where it has none."""
    if "schema" not in text:
        text = HEAD + text
    if "[launch]" not in text:
        text += "\n" + LAUNCH
    if "[[event]]" not in text:
        text += "\n" + TEXT_RULE
    return build_adapter(
        "own",
        tomllib.loads(text),
        ConfigSource("own.toml", lambda: text),
        adapter and (lambda: adapter),
    )


def create_translation(
    vendor: Adapter, *, partial: bool = False, previous: ChildStream | None = None
) -> ChildStream:
    """A child of a vendor; `previous` is the one before it in the same conversation."""
    writer = (
        create_output_writer("claude", STABLE_ID_PREFIX, partial=partial)
        if previous is None
        else previous.writer
    )
    config = build_turn_config(
        vendor.name, tools=vendor.listed_tools, clean_exit_codes=vendor.shutdown.clean_exit_codes
    )
    return ChildStream(vendor.translator_class, config, writer, previous)


def translate_events(
    vendor: Adapter, *events: Any, code: int | None = 0, stderr: str = "", **options: Any
) -> list[Line]:
    """Claude's lines for events (texts are lines as they are) and an exit code."""
    translation = create_translation(vendor, **options)
    data = "".join(
        (event if isinstance(event, str) else json.dumps(event)) + "\n" for event in events
    ).encode()
    return parse_lines(
        translation.feed(data)[0]
        + translation.close(None if code is None else ChildExit(code=code), stderr)[0]
    )


def summarize_events(text: str, *events: Any, **options: Any) -> list[str]:
    """The same in short, of a profile's text."""
    return summarize_lines(translate_events(build_profile_adapter(text), *events, **options))


def find_result_line(lines: list[Line]) -> Line:
    """The one result."""
    (result,) = (line for line in lines if line["type"] == "result")
    return result
