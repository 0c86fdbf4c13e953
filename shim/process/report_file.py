"""The file in which a child reports about its run. Its folder is accessible only to the current
user. It is read once and removed.

The folder is in `spill`, so the files of a killed run are removed with old spill files.
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

# vibe writes its complete configuration (10 KB). The totals of a conversation are smaller.
MAX_REPORT_BYTES = 1024 * 1024


class RunReportFile:
    """The report of one child. `folder` is None if there is no private folder for it."""

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
        """Return the requested keys of the report (None: no file), and remove its folder."""
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
        """Remove the folder with its files, and the folder of its session if that is empty."""
        folder = self.folder
        self.folder = None
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)
            with contextlib.suppress(OSError):  # the folder contains spilled texts, which are kept
                os.rmdir(os.path.dirname(folder))


def parse_selected_json_keys(data: bytes, keys: tuple[str, ...]) -> dict[str, Any] | None:
    """Return these keys of a JSON object, or None for other bytes."""
    try:
        value: object = orjson.loads(data)
    except orjson.JSONDecodeError:
        return None
    if isinstance(value, Mapping):
        return {key: value[key] for key in keys if key in value}
    return None
