"""Loads a profile from its file: merges the profile that it extends, imports the class that it
names, and calls `adapter.build_adapter`.

The caller passes the function that reads the file. Bundled profiles are read from this package, and
a user's profiles through the I/O layer.
"""

from collections.abc import Callable, Collection, Mapping
from importlib import import_module
from types import ModuleType

import shim
from shim.core.adapter.adapter import Adapter
from shim.core.errors import FrontendError
from shim.core.reading.typed import TYPE_CHECKING, Any
from shim.profiles.check.config_node import ConfigNode, ConfigSource
from shim.profiles.load.adapter import build_adapter, merge_tables
from shim.profiles.load.argv_parts import BUNDLED_FOLDER

if TYPE_CHECKING:
    from shim.core.adapter.translator import Translator
    from shim.profiles.compile.rules import ProfileRuleMatchObserver

MAX_PROFILE_BYTES = 256 * 1024  # the size of the longest bundled profile is 8 KB
TRANSLATOR_PATTERN = r"([a-z_][a-z0-9_]{0,63}):([A-Za-z_][A-Za-z0-9_]{0,63})"


class ProfileFile:
    """A profile's table, its location, and the function that imports a module from the same folder."""

    def __init__(
        self,
        table: Mapping[str, Any],
        source: ConfigSource,
        load_module: Callable[[str], ModuleType],
    ) -> None:
        self.table = table
        self.source = source
        self.load_module = load_module


ReadProfile = Callable[[str], ProfileFile]


def parse_profile_toml(data: bytes, path: str) -> dict[str, Any]:
    """Return the table in a profile's file. Raise FrontendError if the file is too large or is not
    valid TOML.
    """
    import tomllib

    if len(data) > MAX_PROFILE_BYTES:
        raise FrontendError(f"{path} is larger than {MAX_PROFILE_BYTES} bytes")
    try:
        return tomllib.loads(data.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise FrontendError(f"{path} is not TOML: {error}") from None


def load_bundled_profile(path: str) -> ProfileFile:
    """Load a bundled profile from the files in this package."""
    data = _read_bundled_data(path)
    return ProfileFile(
        parse_profile_toml(data, path),
        ConfigSource(path, lambda: data.decode(), is_bundled=True),
        import_bundled_adapter_module,
    )


def _read_bundled_data(path: str) -> bytes:
    loader: Any = None
    if shim.__spec__:
        loader = shim.__spec__.loader
    data: bytes = loader.get_data(f"{BUNDLED_FOLDER}/{path}")
    return data


def import_bundled_adapter_module(name: str) -> ModuleType:
    """Import the module with a bundled profile's adapter class."""
    return import_module(f"shim.adapters.{name}")


def load_profile_adapter(
    name: str,
    path: str,
    read_profile: ReadProfile,
    bases: Collection[str],
    trace: "ProfileRuleMatchObserver | None" = None,
) -> Adapter:
    """Return the adapter for the profile at `path`. Raise FrontendError if the profile is invalid.

    `bases` are the bundled profiles that the profile may extend. `trace` is passed to
    `build_adapter`.
    """
    file = read_profile(path)
    node = ConfigNode(file.source, file.table)
    table, translator_file = _merge_base_profiles(file, read_profile, bases)
    class_path = table.get("adapter")
    load_translator = (
        None
        if class_path is None
        else lambda: _import_translator(node.get_child("adapter"), class_path, translator_file)
    )
    return build_adapter(name, table, file.source, load_translator, trace)


def _merge_base_profiles(
    file: ProfileFile, read_profile: ReadProfile, bases: Collection[str]
) -> tuple[Mapping[str, Any], ProfileFile]:
    """Return a profile's table, merged over the bundled profile that it extends. Also return the
    profile file that names the adapter class.
    """
    node = ConfigNode(file.source, file.table)
    if not node.get_child("extends"):
        return node.read_table(), file
    base = node.get_child("extends").read_text()
    changes = dict(node.read_table())
    if base not in bases:
        raise node.get_child("extends").build_error(f"a bundled profile: {', '.join(bases)}")
    del changes["extends"]
    table, translator_file = _merge_base_profiles(
        read_profile(f"{base}.toml"), read_profile, [name for name in bases if name != base]
    )
    return merge_tables(table, changes), file if node.get_child("adapter") else translator_file


def _import_translator(
    node: ConfigNode, class_path: object, file: ProfileFile
) -> "type[Translator]":
    """Return the translator class that a profile names. Its module is in the same folder as `file`."""
    import re

    from shim.core.adapter.translator import Translator

    match = None
    if isinstance(class_path, str):
        match = re.fullmatch(TRANSLATOR_PATTERN, class_path)
    if match is None:
        raise node.build_error(
            '"module:Class", where the module is in the profile\'s folder', class_path
        )
    try:
        translator = getattr(file.load_module(match[1]), match[2])
    except Exception as error:
        # Any exception during the import is reported as an error in the profile.
        raise node.build_error(
            '"module:Class", where the module is in the profile\'s folder and can be '
            f"imported ({error!r})",
            class_path,
        ) from None
    if not (isinstance(translator, type) and issubclass(translator, Translator)):
        raise node.build_error("a subclass of shim.profiles.profile.ProfileTranslator", class_path)
    return translator
