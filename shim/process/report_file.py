"""Reads the run report that a child writes to a file. Only the current user can access the file's
folder. The report is read once and then removed.

The folder is created inside the folder `spill`, so that reports of killed runs are removed together
with old spill files.
"""

import contextlib
import os
import shutil
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import orjson

from shim.core.adapter.adapter import VendorRunReportFileSpec
from shim.state.files import read_state_file
from shim.state.spill import LargeTextFolder

if TYPE_CHECKING:
    from shim.io.record_sinks import RunRecordSink

# vibe's report includes its complete configuration (10 KB). The usage totals are smaller.
MAX_REPORT_BYTES = 1024 * 1024


class RunReportFile:
    """The run report file of one child. `folder` is None if no private folder could be created."""

    def __init__(
        self,
        report: VendorRunReportFileSpec,
        environment: Mapping[str, str],
        session_id: str,
        recorder: "RunRecordSink | None" = None,
    ) -> None:
        self._report = report
        self._recorder = recorder
        self.folder = LargeTextFolder(environment, session_id).create_private_subfolder()

    def read_and_remove(self) -> dict[str, Any] | None:
        """Return the report's usage keys with their values, or None if there is no report. Remove
        the report's folder.
        """
        if self.folder is None:
            return None
        data = read_state_file(self.folder, self._report.file_name, MAX_REPORT_BYTES)
        self.remove()
        values = None
        if data:
            values = parse_selected_json_keys(data, self._report.usage_keys)
        if values is not None and self._recorder is not None:
            self._recorder.record_run_event("report", report=values)
        return values

    def remove(self) -> None:
        """Remove the report's folder with all files. If the session's spill folder is then empty,
        remove that folder as well.
        """
        folder = self.folder
        self.folder = None
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)
            with contextlib.suppress(OSError):  # the folder still contains spilled texts
                os.rmdir(os.path.dirname(folder))


def parse_selected_json_keys(data: bytes, keys: tuple[str, ...]) -> dict[str, Any] | None:
    """Parse a JSON object, and return the given keys that it contains. Return None if the bytes are
    not a JSON object.
    """
    try:
        value: object = orjson.loads(data)
    except orjson.JSONDecodeError:
        return None
    if isinstance(value, Mapping):
        return {key: value[key] for key in keys if key in value}
    return None
