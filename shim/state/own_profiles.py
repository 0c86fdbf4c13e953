"""Registers the user's own vendor profiles, which are stored next to config.toml. A profile is
loaded when its vendor is first used.
"""

import os
from collections.abc import Mapping

from shim import adapters
from shim.core.adapter.adapter import Adapter
from shim.core.errors import FrontendError
from shim.core.reading.values import escape_control_chars, is_valid_vendor_name
from shim.io.stderr import warn
from shim.state.config import ShimSettings, get_config_dir

BUNDLED_VENDORS = dict(adapters.VENDORS)
FOLDER_NAME = "vendors"
MAX_PROFILES = 200  # the maximum number of registered profiles


def load_adapters_and_errors() -> tuple[dict[str, Adapter], dict[str, FrontendError]]:
    """Return the adapters of all vendors by name, and the errors of vendors whose profiles cannot
    be loaded.
    """
    adapters_by_name = {}
    errors = {}
    for name, location in list(adapters.VENDORS.items()):
        try:
            adapters_by_name[name] = adapters.get_adapter(name)
        except FrontendError as error:
            errors[name] = error
        except Exception as error:
            # A user's adapter class may raise any error. The other vendors must still be loaded.
            errors[name] = FrontendError(
                f"{location}: its class cannot be imported: {type(error).__name__}: {error}"
            )
    return adapters_by_name, errors


def load_valid_adapters() -> dict[str, Adapter]:
    """Return the adapters of all vendors by name. For each vendor whose profile cannot be loaded,
    print a line on stderr.
    """
    adapters_by_name, errors = load_adapters_and_errors()
    for error in errors.values():
        warn(escape_control_chars(f"{error}\n"))
    return adapters_by_name


def get_user_profile_folder(
    environment: Mapping[str, str], settings_path: str | None = None
) -> str:
    """Return the folder for the user's profiles, next to the settings file."""
    path = settings_path
    if not path:
        path = environment.get("SHIM_CONFIG")
    if path:
        base = os.path.dirname(os.path.abspath(path))
    else:
        base = get_config_dir(environment)
    return os.path.join(base, FOLDER_NAME)


def check_vendor_names_in_settings(settings: ShimSettings) -> None:
    """Raise FrontendError if the settings file names an unknown vendor."""
    for name in settings.vendor:
        # Replays can be requested only by a flag or an environment variable.
        if name not in adapters.VENDORS and not name.startswith("replay"):
            raise settings.create_invalid_value_error(("vendor",), adapters.VENDORS, name)
    for name in settings.vendors:
        if name not in adapters.VENDORS:
            raise settings.create_unknown_key_error(("vendors", name), adapters.VENDORS)


def register_user_profiles(
    environment: Mapping[str, str], settings_path: str | None = None
) -> None:
    """Register the profiles in the folder `vendors` next to config.toml. `settings_path` is the
    path of a different settings file.

    A user's profile takes precedence over a bundled vendor with the same name. Files whose names
    are not valid vendor names are ignored.
    """
    directory = get_user_profile_folder(environment, settings_path)
    try:
        file_names = sorted(
            name for name in os.listdir(directory) if name.endswith(adapters.PROFILE_SUFFIX)
        )[:MAX_PROFILES]
    except OSError:
        file_names = []
    adapters.VENDORS.clear()
    adapters.VENDORS.update(BUNDLED_VENDORS)
    for file_name in file_names:
        name, path = (
            file_name.removesuffix(adapters.PROFILE_SUFFIX),
            os.path.join(directory, file_name),
        )
        if is_valid_vendor_name(name):
            adapters.VENDORS[name] = path

    def load_profile(name: str, location: str) -> Adapter:
        from shim.state.profile_files import load_adapter_from_profile

        return load_adapter_from_profile(name, location, environment)

    adapters.profile_loaders[:] = [*adapters.profile_loaders[:1], load_profile]
