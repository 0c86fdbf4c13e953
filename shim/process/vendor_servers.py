"""The MCP servers in a vendor's own settings files: its tools are named after them."""

import os
from collections.abc import Iterable, Mapping

SETTINGS_BYTES = 1024 * 1024  # of a settings file that is read
SERVERS = 200  # names of one file


def list_server_names(files: Mapping[str, str], folders: Iterable[str]) -> list[str]:
    """Return the names of the servers in JSON files: path below one of the folders → the key that has the servers.

    A file that is missing, too large or no plain JSON has none.
    """
    names: dict[str, None] = {}
    for folder in filter(None, folders):
        for file, key in files.items():
            names |= dict.fromkeys(_read_names(os.path.join(folder, file), key))
    return list(names)


def _read_names(path: str, key: str) -> list[str]:
    import orjson

    try:
        with open(path, "rb") as file:
            data = file.read(SETTINGS_BYTES + 1)
        settings = orjson.loads(data) if len(data) <= SETTINGS_BYTES else None
    except (OSError, ValueError):
        return []
    servers = settings.get(key) if isinstance(settings, dict) else None
    return list(servers)[:SERVERS] if isinstance(servers, dict) else []
