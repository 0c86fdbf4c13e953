"""Claude's own settings files: found, and read as far as they give or take permissions."""

import os
import sys
from collections.abc import Mapping

from shim.core.claude.argv.invocation import Invocation
from shim.core.errors import ArgumentError, FrontendError
from shim.core.policy.sources import ClaudeSettings, SettingsSource, merge_settings
from shim.core.reading.typed import Any

MAX_SETTINGS_BYTES = 1024 * 1024
MAX_CLAUDE_JSON_BYTES = 64 * 1024 * 1024  # of `.claude.json`, which grows with every project
MANAGED_FOLDER = (
    "/Library/Application Support/ClaudeCode" if sys.platform == "darwin" else "/etc/claude-code"
)
SETTINGS_FLAG, MANAGED_FLAG = "--settings", "--managed-settings"
LOCAL_FILE_NAME = "settings.local.json"
DEFAULT_SETTING_SOURCES = "user,project,local"


def load_settings(
    invocation: Invocation, environment: Mapping[str, str], cwd: str
) -> ClaudeSettings:
    """What all settings files say together. FrontendError for one that cannot be read: it may have
    denied something.
    """
    return merge_settings(list(_collect_sources(invocation, environment, cwd)))


def list_settings_files(
    invocation: Invocation, environment: Mapping[str, str], cwd: str
) -> list[str]:
    """The names of the settings files that are there and say something."""
    return [source.name for source in _collect_sources(invocation, environment, cwd)]


def _collect_sources(
    invocation: Invocation, environment: Mapping[str, str], cwd: str
) -> "list[SettingsSource]":
    """The settings files that are there, the one that goes before the others first
    (`--setting-sources` chooses).
    """
    said = (
        DEFAULT_SETTING_SOURCES
        if invocation.configuration.setting_sources is None
        else invocation.configuration.setting_sources
    )
    wanted = [name.strip() for name in said.split(",")]
    home = environment.get("CLAUDE_CONFIG_DIR") or os.path.join(
        environment.get("HOME") or "/", ".claude"
    )
    found = _collect_managed_sources(invocation)
    if invocation.configuration.settings:
        found.append(
            SettingsSource(SETTINGS_FLAG, load_flag_settings(invocation.configuration.settings))
        )
    trusted = None
    for name, folder, file, base, own in (
        ("local", os.path.join(_find_repository(cwd), ".claude"), LOCAL_FILE_NAME, cwd, False),
        ("local", os.path.join(cwd, ".claude"), LOCAL_FILE_NAME, cwd, False),
        ("project", os.path.join(cwd, ".claude"), "settings.json", cwd, False),
        ("user", home, "settings.json", home, True),
    ):
        path = os.path.join(folder, file)
        if name in wanted and path not in (source.name for source in found):
            given = _load_file(path)
            if not own and "hooks" in given and trusted is None:
                trusted = _is_trusted_folder(environment, cwd)
            found.append(SettingsSource(path, given, base, own, own or bool(trusted)))
    return [source for source in found if source.content]


def _is_trusted_folder(environment: Mapping[str, str], cwd: str) -> bool:
    """Whether the user has told the real claude to trust the working directory, or a folder around
    it.

    A folder around the repository is not enough: people keep what they clone in their home.
    """
    path = os.path.join(
        environment.get("CLAUDE_CONFIG_DIR") or environment.get("HOME") or "/", ".claude.json"
    )
    try:
        projects = _parse_object(_read_limited(path, MAX_CLAUDE_JSON_BYTES)).get("projects")
    except (OSError, ValueError):
        return False
    folder = os.path.realpath(cwd)
    while isinstance(projects, dict):
        entry = projects.get(folder)
        if isinstance(entry, dict) and entry.get("hasTrustDialogAccepted") is True:
            return True
        if folder == os.path.dirname(folder) or os.path.lexists(os.path.join(folder, ".git")):
            break
        folder = os.path.dirname(folder)
    return False


def _collect_managed_sources(invocation: Invocation) -> "list[SettingsSource]":
    """The machine's own settings: the file and those that are dropped in beside it, of which the
    last goes first.

    A frontend's `--managed-settings`, always JSON, counts where the machine has none (as the real
    one does it).
    """
    places = [os.path.join(MANAGED_FOLDER, "managed-settings.json")]
    folder = os.path.join(MANAGED_FOLDER, "managed-settings.d")
    try:
        names = sorted(os.listdir(folder))
    except (FileNotFoundError, NotADirectoryError):
        names = []
    except OSError as error:
        raise _create_unreadable_error(folder, error.strerror) from None
    places += [
        os.path.join(folder, name) for name in names if name.endswith(".json") and name[0] != "."
    ]
    found = [SettingsSource(path, _load_file(path), is_managed=True) for path in reversed(places)]
    given = dict(invocation.other_flags.other).get(MANAGED_FLAG)
    if given and not any(source.content for source in found):
        try:
            said = _parse_object(given.encode("utf-8", "replace"))
            # the real one runs none of these
            without = {key: value for key, value in said.items() if key != "hooks"}
            found.append(SettingsSource(MANAGED_FLAG, without, is_managed=True))
        except ValueError:
            raise ArgumentError(f"Error: {MANAGED_FLAG} is not a JSON object") from None
    return found


def _find_repository(cwd: str) -> str:
    """The folder of the repository that `cwd` is in, which is `cwd` where it is in none."""
    folder = cwd
    while not os.path.lexists(os.path.join(folder, ".git")):
        if folder == os.path.dirname(folder):
            return cwd
        folder = os.path.dirname(folder)
    return folder


def _load_file(path: str) -> Mapping[str, Any]:
    """The object in a settings file; empty where there is no such file."""
    if not os.path.lexists(path):  # as most of them, and nothing need be loaded to read them
        return {}
    try:
        return _parse_object(_read_limited(path))
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except OSError as error:
        reason = error.strerror or "it is not a regular file"
    except ValueError:
        reason = f"it is no JSON object of at most {MAX_SETTINGS_BYTES} bytes"
    raise _create_unreadable_error(path, reason)


def _create_unreadable_error(path: str, reason: str | None) -> FrontendError:
    return FrontendError(
        f"Claude's settings file {path} cannot be read, and it may deny something: {reason}",
        hint="mend it, or leave it out with --setting-sources",
    )


def load_flag_settings(text: str) -> Mapping[str, Any]:
    """The object in the text of `--settings` itself, or in the file that it names (contract 11).
    ArgumentError.
    """
    import orjson

    try:
        given = orjson.loads(text)
    except orjson.JSONDecodeError:
        path = os.path.abspath(text)
        try:
            given = orjson.loads(_read_limited(text))
        except FileNotFoundError:
            raise ArgumentError(f"Error: Settings file not found: {path}") from None
        except OSError as error:
            raise ArgumentError(
                f"Error: the settings file {path} cannot be read: {error.strerror}"
            ) from None
        except ValueError:
            raise ArgumentError(
                f"Error: the settings file {path} is not JSON, or too large"
            ) from None
    if not isinstance(given, dict):
        raise ArgumentError("Error: --settings is not a JSON object")
    return given


def _read_limited(path: str, limit: int = MAX_SETTINGS_BYTES) -> bytes:
    from shim.state.files import open_regular

    with open(open_regular(path), "rb") as file:
        data = file.read(limit + 1)
    if len(data) > limit:
        raise ValueError("too large")
    return data


def _parse_object(data: bytes) -> Mapping[str, Any]:
    import orjson

    given = orjson.loads(data) if data.strip() else {}
    if not isinstance(given, dict):
        raise ValueError("no object")
    return given
