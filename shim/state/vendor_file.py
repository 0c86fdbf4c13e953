"""Stores one JSON value for each vendor in a folder of the state directory."""

import os
from collections.abc import Mapping

from shim.core.reading.json_text import dump_json
from shim.state.config import get_state_dir
from shim.state.files import read_state_file, write_state_file


class VendorFile:
    """A vendor's file in the state directory. A file that is larger than `max_bytes` counts as
    empty.
    """

    def __init__(
        self, folder_name: str, vendor: str, environment: Mapping[str, str], max_bytes: int
    ) -> None:
        self._folder = os.path.join(get_state_dir(environment), folder_name)
        self._name = f"{vendor}.json"
        self._max_bytes = max_bytes

    def load(self) -> object:
        """Return the stored value, or None."""
        if not os.path.lexists(os.path.join(self._folder, self._name)):
            return None
        data = read_state_file(self._folder, self._name, self._max_bytes)
        if not data:
            return None
        import orjson

        try:
            return orjson.loads(data)
        except orjson.JSONDecodeError:
            return None

    def store(self, value: object) -> None:
        """Replace the stored value."""
        write_state_file(self._folder, self._name, dump_json(value))
