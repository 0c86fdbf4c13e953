"""Lists the MCP servers in a vendor's own settings files. A server's name is part of its tools'
names.
"""

import os
from collections.abc import Iterable, Mapping

from shim.core.reading.values import as_dict

MAX_SETTINGS_BYTES = 1024 * 1024  # a larger settings file is not read
MAX_SERVERS = 200  # the number of server names that are read from one file


def list_mcp_server_names(key_by_file: Mapping[str, str], folders: Iterable[str]) -> list[str]:
    """Return the names of the MCP servers that are defined in JSON settings files.

    `key_by_file` maps a path below each folder to the JSON key that contains the servers. A file
    that is missing, too large or not plain JSON is ignored.
    """
    names: dict[str, None] = {}
    for folder in filter(None, folders):
        for file, key in key_by_file.items():
            names |= dict.fromkeys(_read_names(os.path.join(folder, file), key))
    return list(names)


def _read_names(path: str, key: str) -> list[str]:
    import orjson

    try:
        with open(path, "rb") as file:
            data = file.read(MAX_SETTINGS_BYTES + 1)
        settings = None
        if len(data) <= MAX_SETTINGS_BYTES:
            settings = orjson.loads(data)
    except (OSError, ValueError):
        return []
    return list(as_dict(as_dict(settings).get(key)))[:MAX_SERVERS]
