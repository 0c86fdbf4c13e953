"""The file that a child writes about its run: a folder for it that only we may enter, read once, and then gone.

The folder is one of `spill`'s, so that what a killed run leaves behind is removed with the old ones.
"""

import contextlib
import os
import shutil
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import orjson

from shim.core.vendor.vendor import Report
from shim.state.files import read_file
from shim.state.spill import Spill

if TYPE_CHECKING:
    from shim.channels.tap import Tap

REPORT_BYTES = 1024 * 1024  # vibe's has its whole configuration: 10 KB; a conversation's totals have less


class ReportFile:
    """What one child may write about its run. `folder` is None when there is no private place for it."""

    def __init__(
        self, report: Report, environment: Mapping[str, str], session_id: str, recorder: "Tap | None" = None
    ) -> None:
        self._report = report
        self._recorder = recorder
        self.folder = Spill(environment, session_id).folder()

    def take(self) -> dict[str, Any] | None:
        """The keys of its object that are of use, None when there is no such file; the folder goes."""
        if self.folder is None:
            return None
        data = read_file(self.folder, self._report.file, REPORT_BYTES)
        self.remove()
        found = picked(data, self._report.keys) if data else None
        if found is not None and self._recorder is not None:
            self._recorder.note("report", report=found)
        return found

    def remove(self) -> None:
        """Remove the folder and whatever was put into it, and that of its session, if nothing else is in there."""
        folder, self.folder = self.folder, None
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)
            with contextlib.suppress(OSError):  # its session may have spilled something, which stays
                os.rmdir(os.path.dirname(folder))


def picked(data: bytes, keys: tuple[str, ...]) -> dict[str, Any] | None:
    """These keys of a JSON object; None when the bytes are none."""
    try:
        value: object = orjson.loads(data)
    except orjson.JSONDecodeError:
        return None
    return {key: value[key] for key in keys if key in value} if isinstance(value, Mapping) else None
