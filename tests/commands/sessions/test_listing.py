"""The table of sessions, as a person reads it."""

import pytest
from recording_renderer import strip_styles

from shim.bridge.registry import SessionRecord
from shim.commands.sessions import listing

WAITS = "approve Bash: **make test** of src/**/*.py and docs/**/*.md"
METADATA = {"state": "blocked", "vendor": "qwen", "cwd": "/repo/of/somebody", "needs": WAITS,
         "name": "make the tests of the whole project pass and then the documentation"}  # fmt: skip
RECORD = SessionRecord("1f0c2ab4-5d36-4e6f-8a7b-90c1d2e3f405", "/nowhere", True, METADATA)


@pytest.fixture
def rows(monkeypatch):
    """Return a function that draws the rows on a terminal of this width."""

    def draw_rows(columns):
        monkeypatch.setenv("COLUMNS", str(columns))
        monkeypatch.setattr(listing.os, "isatty", lambda descriptor: True)
        return strip_styles(listing.format_session_table([RECORD])).splitlines()

    return draw_rows


def test_table_fits_the_terminal_and_drops_the_folder_column(rows):
    drawn_rows = rows(80)
    assert len(drawn_rows) <= 3 and all(len(row) <= 80 for row in drawn_rows)
    assert "FOLDER" not in drawn_rows[0] and "make the tests …" in drawn_rows[1]
    assert "/repo/of/somebody" in rows(140)[1]


def test_table_removes_markdown_from_the_pending_prompt():
    table = listing.format_session_table([RECORD])
    assert (
        "approve Bash: make test of src/**/*.py and docs/**/*.md" in table
        and METADATA["name"] in table
    )


def test_narrow_terminal_drops_the_vendor_column(rows):
    drawn_rows = rows(40)
    assert (
        all(len(row) <= 40 for row in drawn_rows)
        and "WAITS FOR" in drawn_rows[0]
        and "VENDOR" not in drawn_rows[0]
    )
    assert "approve" in drawn_rows[1] and "VENDOR" in rows(60)[0]


def test_empty_list_message_names_the_folder():
    assert listing.format_no_sessions_message(includes_ended=False, folder="/repo").startswith(
        "no running background sessions in /repo; "
    )
