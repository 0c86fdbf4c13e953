"""Loads vendor profiles from disk. Parsed profiles are cached, because parsing TOML takes longer
than all other steps of loading.

The cache consists of JSON files in the state directory. The cache key contains the path, time and
size of the profile.
"""

import os
import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from types import ModuleType

from shim import __version__, adapters
from shim.core.adapter.adapter import Adapter
from shim.core.errors import FrontendError
from shim.core.reading.typed import TYPE_CHECKING, Any
from shim.core.reading.values import escape_control_chars
from shim.io.stderr import warn
from shim.profiles.check.config_node import ConfigSource
from shim.profiles.load import profile_file
from shim.profiles.load.profile_file import (
    MAX_PROFILE_BYTES,
    ProfileFile,
    import_bundled_adapter_module,
    parse_profile_toml,
)
from shim.state.config import get_state_dir
from shim.state.files import open_regular_file, read_state_file, write_state_file

if TYPE_CHECKING:
    from shim.profiles.compile.rules import ProfileRuleMatchObserver

MAX_NAME_CHARS = 200  # the limit for file names; every system allows at least 255
# The size limit for a cached profile. A character of a profile may take up to six bytes in JSON.
MAX_CACHE_BYTES = 4 * MAX_PROFILE_BYTES


def load_adapter_from_profile(
    name: str,
    location: str,
    environment: Mapping[str, str],
    trace: "ProfileRuleMatchObserver | None" = None,
) -> Adapter:
    """Load a profile and return its adapter. `location` is an absolute path for a user's profile,
    and a file name for a bundled profile.

    Print a warning on stderr for each key in a user's profile that no bundled profile uses. If a
    `trace` is given, the caller reports these keys instead (`list_unused_key_warnings`).
    """
    read: dict[str, ProfileFile] = {}

    def read_profile(path: str) -> ProfileFile:
        read[path] = _load_file(path, environment)
        return read[path]

    described = profile_file.load_profile_adapter(
        name, location, read_profile, adapters.BUNDLED_PROFILES, trace
    )
    if trace is None and not read[location].source.is_bundled:
        _warn_of_unused_keys(read[location])
    return described


_warned: set[tuple[str, str]] = set()  # the reported keys: (profile path, key name)


def _warn_of_unused_keys(file: ProfileFile) -> None:
    """Warn on stderr about each unused key of a profile, once per process."""
    from shim.profiles.schema.unused_keys import build_unused_key_warnings

    for name, warning in build_unused_key_warnings(file.table, file.source).items():
        if (file.source.path, name) not in _warned:
            _warned.add((file.source.path, name))
            warn(escape_control_chars(f"{warning}\n"))


def list_unused_key_warnings(location: str, environment: Mapping[str, str]) -> list[str]:
    """Return a warning for each key in the profile at `location` that no bundled profile uses."""
    from shim.profiles.schema.unused_keys import build_unused_key_warnings

    file = _load_file(location, environment)
    if file.source.is_bundled:
        return []
    return list(build_unused_key_warnings(file.table, file.source).values())


# Bundled profiles by file name. The dict is empty until `preload_bundled_profiles` is called.
_bundled_profiles: dict[str, ProfileFile] = {}


def preload_bundled_profiles(environment: Mapping[str, str]) -> None:
    """Load all bundled profiles into memory, because an upgrade may replace the package's files."""
    for location in map(adapters.VENDORS.__getitem__, adapters.BUNDLED_PROFILES):
        _bundled_profiles[location] = _load_file(location, environment)


def _load_file(location: str, environment: Mapping[str, str]) -> ProfileFile:
    if location in _bundled_profiles:
        return _bundled_profiles[location]
    is_user_profile = os.path.isabs(location)
    path = location
    if not is_user_profile:
        path = os.path.join(os.path.dirname(os.path.abspath(adapters.__file__)), location)
    try:
        status = os.stat(path)
        table = _load_table(
            path, f"{path}\0{status.st_mtime_ns}\0{status.st_size}\0{__version__}", environment
        )
    except OSError as error:
        raise FrontendError(f"the profile {path} cannot be read: {error.strerror}") from None
    if is_user_profile:
        module = _create_importer(os.path.dirname(path))
    else:
        module = import_bundled_adapter_module
    source = ConfigSource(
        path if is_user_profile else location,
        lambda: _read_profile(path).decode("utf-8", "replace"),
        is_bundled=not is_user_profile,
    )
    return ProfileFile(table, source, module)


def _load_table(path: str, key: str, environment: Mapping[str, str]) -> Mapping[str, Any]:
    """Return the parsed table of a profile file. The file is parsed only once, and later read from
    the cache.
    """
    directory = os.path.join(get_state_dir(environment), "profiles")
    # Two profile paths may share a cache file, so the file contains a key for the profile's path.
    name = f"{path.encode('utf-8', 'surrogateescape').hex()[-MAX_NAME_CHARS:]}.json"
    cached_bytes = read_state_file(directory, name, MAX_CACHE_BYTES)
    if cached_bytes is not None:
        try:
            cached = _parse_json(cached_bytes)
        except (ValueError, RecursionError):
            cached = None
        if (
            isinstance(cached, dict)
            and cached.get("key") == key
            and isinstance(cached.get("table"), dict)
        ):
            table: dict[str, Any] = cached["table"]
            return table
    import json

    table = parse_profile_toml(_read_profile(path), path)
    try:
        encoded = json.dumps({"key": key, "table": table}).encode()
    except (TypeError, RecursionError):
        return table
    # Values that JSON cannot represent (a date, nan, a long number) are errors in a profile.
    # Such a profile is not cached, so that the next load reports the error again.
    if json.loads(encoded)["table"] == table:
        write_state_file(directory, name, encoded)
    return table


class _DefaultJsonContext:
    """Settings for Python's JSON scanner, with the defaults of `json.loads`."""

    strict = True
    object_hook = object_pairs_hook = None
    parse_float, parse_int, parse_constant = float, int, float


def _parse_json(data: bytes) -> object:
    """Parse JSON with the same scanner as `json.loads`. `json` itself is not imported, because it
    imports `re`, which would delay the child by 3 ms.

    Raise ValueError for invalid JSON.
    """
    text = data.decode("utf-8")
    try:
        scanner: Any = import_module("_json")
    except ImportError:  # only CPython has this scanner
        import json

        return json.loads(text)
    try:
        value, end = scanner.make_scanner(_DefaultJsonContext)(text, 0)
    except StopIteration:
        raise ValueError("no JSON") from None
    if end != len(text):
        raise ValueError("more than one value")
    return value


def _read_profile(path: str) -> bytes:
    with open(open_regular_file(path), "rb") as file:
        return file.read(MAX_PROFILE_BYTES + 1)


def _create_importer(directory: str) -> Callable[[str], ModuleType]:
    """Return an importer for Python modules in the profile folder. The importer uses no search
    path.
    """

    def load_module(name: str) -> ModuleType:
        from importlib.util import module_from_spec, spec_from_file_location

        module_name = f"shim_own_vendors_{name}"
        if module_name in sys.modules:
            return sys.modules[module_name]
        spec = spec_from_file_location(module_name, os.path.join(directory, f"{name}.py"))
        if spec is None or spec.loader is None:
            raise ImportError(f"{name}.py cannot be imported")
        module = module_from_spec(spec)
        spec.loader.exec_module(module)
        sys.modules[module_name] = module
        return module

    return load_module
