"""Imports modules that a long-running process may need later, before an upgrade can replace their
files.

The start of a turn imports as little as possible, so many functions import a module on first use.
In a process that runs for weeks, such an import could load a file of another version, or find no
file.
"""

import pkgutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from importlib import import_module

import anyio

import shim
from shim.core.errors import ShimError
from shim.state import profile_files

# Modules that functions in this package, in libraries and in the standard library import lazily.
# `jsonschema`, `structlog` and `opentelemetry` are not listed, because a process needs them either
# from the start or never.
LAZY_MODULES = (
    "_ctypes", "_json", "anyio._backends._asyncio", "anyio.to_thread", "ast", "compileall", "copy", "datetime",
    "difflib", "encodings.ascii", "encodings.idna", "encodings.latin_1", "fcntl", "fnmatch", "hashlib",
    "importlib.util", "ipaddress", "json", "logging", "orjson", "pathspec", "platformdirs", "resource", "shlex",
    "signal", "tempfile", "tomllib", "traceback", "tree_sitter", "tree_sitter_bash", "urllib.parse", "uuid",
)  # fmt: skip
CONVERSATION_FOLDERS = (
    "core",
    "profiles",
    "adapters",
    "io",
    "state",
    "process",
    "recording",
    "conversation",
)
HOST_FOLDERS = (*CONVERSATION_FOLDERS, "bridge")
SERVER_FOLDERS = (*HOST_FOLDERS, "story")
SKIPPED_IN_CONVERSATION = ("shim.bridge.gateway", "shim.bridge.host")
SKIPPED_IN_HOST = ("shim.bridge.gateway", "shim.bridge.attach")


def preload_modules(
    folders: Sequence[str],
    environment: Mapping[str, str],
    skipped_prefixes: tuple[str, ...] = (),
    extra_modules: Sequence[str] = (),
) -> None:
    """Import all modules in the given folders of the package and in LAZY_MODULES, and load the
    bundled profiles.

    Modules with a prefix in `skipped_prefixes` are skipped. `extra_modules` names additional
    modules.
    """
    for _ in _import_all(folders, skipped_prefixes, extra_modules):
        pass
    with suppress(ShimError):
        profile_files.preload_bundled_profiles(environment)


async def preload_conversation_modules() -> None:
    """Import the modules that a conversation may need. They are imported one at a time, so that the
    conversation is not blocked.
    """
    for _ in _import_all(HOST_FOLDERS, SKIPPED_IN_CONVERSATION):
        await anyio.sleep(0)


def _import_all(
    folders: Sequence[str], skipped_prefixes: tuple[str, ...], extra_modules: Sequence[str] = ()
) -> Iterator[None]:
    """Import the modules, and yield after each file.

    A module that cannot be imported is skipped, because it may be missing on this system or its
    file may be in the middle of an upgrade.
    """
    for folder in folders:
        for module in pkgutil.walk_packages([f"{shim.__path__[0]}/{folder}"], f"shim.{folder}."):
            if module.name not in sys.modules and not _is_skipped(module.name, skipped_prefixes):
                with suppress(ImportError, OSError):
                    import_module(module.name)
            yield  # after each file, even if its module was not imported
    for name in (*LAZY_MODULES, *extra_modules):
        with suppress(ImportError, OSError):
            import_module(name)
        yield


def _is_skipped(name: str, skipped_prefixes: tuple[str, ...]) -> bool:
    if name.endswith(".__main__"):
        return True
    return name.startswith(skipped_prefixes)
