"""A user's own vendors: the profiles beside config.toml, known by name until one of them is asked
for.
"""

import os
from collections.abc import Mapping

from shim import adapters
from shim.core.adapter.vendor import Adapter
from shim.core.errors import FrontendError
from shim.core.reading.account import escape_control_chars
from shim.core.reading.ids import is_vendor_name
from shim.io.raw_output import warn
from shim.state.config import Settings, get_config_dir

BUNDLED_VENDORS = dict(adapters.VENDORS)
FOLDER_NAME = "vendors"
MAX_PROFILES = 200  # of the folder; more than anybody has agents


def load_all_adapters() -> tuple[dict[str, Adapter], dict[str, FrontendError]]:
    """Every readable vendor by name, and for the others the mistake."""
    found, mistakes = {}, {}
    for name, place in list(adapters.VENDORS.items()):
        try:
            found[name] = adapters.get_adapter(name)
        except FrontendError as error:
            mistakes[name] = error
        except (
            Exception
        ) as error:  # a user's class may raise anything, and other vendors must not suffer
            mistakes[name] = FrontendError(
                f"{place}: its class cannot be imported: {type(error).__name__}: {error}"
            )
    return found, mistakes


def load_readable_adapters() -> dict[str, Adapter]:
    """Every readable vendor by name. Others are left out, with a line on stderr."""
    found, mistakes = load_all_adapters()
    for error in mistakes.values():
        warn(escape_control_chars(f"{error}\n"))
    return found


def get_profile_folder(environment: Mapping[str, str], chosen: str | None = None) -> str:
    """The folder of a user's profiles, beside the settings file."""
    settings = chosen or environment.get("SHIM_CONFIG")
    base = os.path.dirname(os.path.abspath(settings)) if settings else get_config_dir(environment)
    return os.path.join(base, FOLDER_NAME)


def check_vendor_names(settings: Settings) -> None:
    """FrontendError for a vendor in the settings file that there is not."""
    for name in settings.vendor:
        # which only a flag or a variable may name
        if name not in adapters.VENDORS and not name.startswith("replay"):
            raise settings.create_value_error(("vendor",), adapters.VENDORS, name)
    for name in settings.vendors:
        if name not in adapters.VENDORS:
            raise settings.create_unknown_key_error(("vendors", name), adapters.VENDORS)


def register_profiles(environment: Mapping[str, str], chosen: str | None = None) -> None:
    """Add the profiles of the folder `vendors` beside config.toml to the table. `chosen` is another
    settings file.

    A user's profile goes before a bundled vendor of its name. A file that no vendor can be named
    like is ignored.
    """
    directory = get_profile_folder(environment, chosen)
    try:
        found = sorted(
            name for name in os.listdir(directory) if name.endswith(adapters.PROFILE_SUFFIX)
        )[:MAX_PROFILES]
    except OSError:
        found = []
    adapters.VENDORS.clear()
    adapters.VENDORS.update(BUNDLED_VENDORS)
    for file in found:
        name, path = file.removesuffix(adapters.PROFILE_SUFFIX), os.path.join(directory, file)
        if is_vendor_name(name):
            adapters.VENDORS[name] = path

    def read(name: str, place: str) -> Adapter:
        from shim.state.profile_files import load_adapter

        return load_adapter(name, place, environment)

    adapters.profile_loaders[:] = [*adapters.profile_loaders[:1], read]
