"""A secret that is cut at any position: a stream and a recording redact it like the full text."""

import json
import random
import re

from fake_secrets import SECRETS
from sweeps import loop_over_rows

from shim.core.cast.secrets import RecordingRedactor, apply_string_edits
from shim.core.secrets.redactor import Redactor, StreamRedactor

SEED = 26
ROWS = [
    (kind, f"the {before}", secret, f"{after} is it") for kind, before, secret, after in SECRETS
]


def mask_placeholders(text: str) -> str:
    """Return a text in which the kinds and the number of adjacent placeholders do not matter."""
    return re.sub(r"(\[REDACTED:[a-z-]+\])+", "[REDACTED]", text)


def redact_stream(fragments: list[str]) -> str:
    stream = StreamRedactor({})
    return "".join(map(stream.feed, fragments)) + stream.flush()


def redact_recording(fragments: list[str]) -> str:
    """Return the text of a recording whose lines contain the fragments."""
    redactor = RecordingRedactor()
    lines = [redactor.redact_record("o", json.dumps({"text": text}).encode()) for text in fragments]
    redactor.close()
    for record_number, edits in redactor.edits.items():
        lines[record_number] = apply_string_edits(lines[record_number], edits)
    return "".join(json.loads(line)["text"] for line in lines)


def list_splits(text: str, first_cut: int, last_cut: int) -> list[list[str]]:
    """Return the text in two fragments for every cut, and in several fragments for random cuts."""
    cuts_by_split = [[cut] for cut in range(first_cut, last_cut + 1)]
    chance = random.Random(SEED)
    for cut_count in (2, 5, 20):
        cuts_by_split.append(sorted(chance.choices(range(len(text)), k=cut_count)))
    return [
        [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
        for cuts in cuts_by_split
    ]


@loop_over_rows(("kind", "before", "secret", "after"), ROWS)
def test_secret_cut_at_any_position_is_redacted_like_the_full_text(kind, before, secret, after):
    text = before + secret + after
    redacted_text = Redactor().redact_text(text)
    assert secret not in redacted_text
    for fragments in list_splits(text, len(before) - 4, len(before + secret)):
        assert redact_stream(fragments) == redacted_text
        recorded_text = redact_recording(fragments)
        assert mask_placeholders(recorded_text) == mask_placeholders(redacted_text)
