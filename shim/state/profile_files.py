"""Loads profiles from disk. The parsed table is cached, because parsing TOML takes longer than all
other steps.

The cache is JSON in the state directory, with the path, time and size of the profile.
"""

import os
import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from types import ModuleType

from shim import __version__, adapters
from shim.core.adapter.adapter import Adapter
from shim.core.errors import FrontendError
from shim.core.reading.diagnostics import escape_control_chars
from shim.core.reading.typed import TYPE_CHECKING, Any
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

MAX_NAME_CHARS = 200  # every system allows at least 255
# A character of a profile may take up to six bytes as JSON.
MAX_CACHE_BYTES = 4 * MAX_PROFILE_BYTES


def load_adapter_from_profile(
    name: str,
    location: str,
    environment: Mapping[str, str],
    trace: "ProfileRuleMatchObserver | None" = None,
) -> Adapter:
    """Return the adapter of a profile. The location of a user's profile is an absolute path, that
    of a bundled profile a file name.

    Print a warning on stderr for each key of a user's profile that no bundled profile uses. With a
    `trace`, the caller reports these keys (`list_unused_key_warnings`).
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


_warned: set[tuple[str, str]] = set()  # (path of a profile, name of a key)


def _warn_of_unused_keys(file: ProfileFile) -> None:
    """Print one line on stderr for each key, only once per process."""
    from shim.profiles.schema.unused_keys import build_unused_key_warnings

    for name, warning in build_unused_key_warnings(file.table, file.source).items():
        if (file.source.path, name) not in _warned:
            _warned.add((file.source.path, name))
            warn(escape_control_chars(f"{warning}\n"))


def list_unused_key_warnings(location: str, environment: Mapping[str, str]) -> list[str]:
    """Return a sentence for each key of the profile at `location` that no bundled profile uses."""
    from shim.profiles.schema.unused_keys import build_unused_key_warnings

    file = _load_file(location, environment)
    if file.source.is_bundled:
        return []
    return list(build_unused_key_warnings(file.table, file.source).values())


# file name → bundled profile; empty until `preload_bundled_profiles` is called
_bundled_profiles: dict[str, ProfileFile] = {}


def preload_bundled_profiles(environment: Mapping[str, str]) -> None:
    """Load all bundled profiles into memory, because an upgrade may replace the files of the
    package.
    """
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
    """Return the table of a file. It is parsed only once and then read from the cache."""
    directory = os.path.join(get_state_dir(environment), "profiles")
    # Two paths with the same end have the same file, so the file contains a key of the path.
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
    # A value that JSON does not have (a date, nan, a long number) is an error in a profile. It is
    # not cached, so that it is an error at the next load too.
    if json.loads(encoded)["table"] == table:
        write_state_file(directory, name, encoded)
    return table


class _DefaultJsonContext:
    """The settings of the JSON scanner: the defaults of `json.loads`."""

    strict = True
    object_hook = object_pairs_hook = None
    parse_float, parse_int, parse_constant = float, int, float


def _parse_json(data: bytes) -> object:
    """Parse JSON like `json.loads`, with the same scanner. Importing `json`, which imports `re`,
    would delay the child by 3 ms.

    Raise ValueError if it is not JSON.
    """
    text = data.decode("utf-8")
    try:
        scanner: Any = import_module("_json")
    except ImportError:  # a Python other than CPython
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
    """Return an importer for modules in the folder of the profiles. It does not use a search path."""

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
