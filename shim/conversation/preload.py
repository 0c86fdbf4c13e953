"""Import everything that a long-running process may need later, because an upgrade may replace the files meanwhile.

A turn's start imports as little as possible, so many functions import a module when they first need it. In a process
that runs for weeks this import would find the files of another version, or none.
"""

import pkgutil
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib import import_module

import shim
from shim.state import profile_files

# What functions of this package, of the libraries and of Python import only when they run. `jsonschema`, `structlog`
# and `opentelemetry` are left out: a process needs them from its start, or never.
LAZY_MODULES = (
    "_ctypes", "_json", "anyio._backends._asyncio", "anyio.to_thread", "ast", "compileall", "copy", "datetime",
    "difflib", "encodings.ascii", "encodings.idna", "encodings.latin_1", "fcntl", "fnmatch", "hashlib",
    "importlib.util", "ipaddress", "json", "logging", "orjson", "pathspec", "platformdirs", "resource", "shlex",
    "signal", "tempfile", "tomllib", "traceback", "tree_sitter", "tree_sitter_bash", "uuid",
)  # fmt: skip
CONVERSATION = ("core", "profiles", "vendors", "channels", "state", "process", "recording", "conversation")
HOST = (*CONVERSATION, "bridge")
SERVER = (*HOST, "story")
NOT_IN_A_HOST = ("shim.bridge.gateway", "shim.bridge.attach")


def preload(
    folders: Sequence[str], environment: Mapping[str, str], leave_out: tuple[str, ...] = (), also: Sequence[str] = ()
) -> None:
    """Import all modules of these folders of the package and `LAZY_MODULES`, and read the bundled profiles.

    Modules whose name begins with one of `leave_out` are not imported. `also` are further modules.
    """
    for folder in folders:
        for module in pkgutil.walk_packages([f"{shim.__path__[0]}/{folder}"], f"shim.{folder}."):
            if module.name not in sys.modules and not _is_left_out(module.name, leave_out):
                import_module(module.name)
    for name in (*LAZY_MODULES, *also):
        with suppress(ImportError):  # not on this system
            import_module(name)
    profile_files.load_bundled(environment)


def _is_left_out(name: str, leave_out: tuple[str, ...]) -> bool:
    return name.endswith(".__main__") or name.startswith(leave_out)
