"""Helpers for tests of profiles: build an adapter from a text, and translate events with it."""

import json
import tomllib
from typing import Any

from stream_lines import Line, parse_lines, summarize_lines
from turn_stage import build_turn_config

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
    """Build the adapter of a profile. A missing `id`, launch or rule is added."""
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
    """Create the translation of a child. `previous` is that of the previous child in the
    conversation.
    """
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
    """Return Claude's lines for events and an exit code. An event that is a text is used as a line."""
    translation = create_translation(vendor, **options)
    data = "".join(
        (event if isinstance(event, str) else json.dumps(event)) + "\n" for event in events
    ).encode()
    return parse_lines(
        translation.feed(data)[0]
        + translation.close(None if code is None else ChildExit(code=code), stderr)[0]
    )


def summarize_events(text: str, *events: Any, **options: Any) -> list[str]:
    """Return a summary of Claude's lines for events, with the profile in a text."""
    return summarize_lines(translate_events(build_profile_adapter(text), *events, **options))


def find_result_line(lines: list[Line]) -> Line:
    """Return the only result line."""
    (result,) = (line for line in lines if line["type"] == "result")
    return result
