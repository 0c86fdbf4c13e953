"""Finds and reads Claude's own settings files for their permission settings, and applies them to the
command line.
"""

import os
import sys
from collections.abc import Iterator, Mapping

from shim.core.claude.argv.flags import Invocation
from shim.core.errors import CliArgumentError, FrontendError, UnsupportedPermissionModeError
from shim.core.policy.policy import BYPASS_MODE, resolve_permission_mode
from shim.core.policy.settings import ClaudeSettings, SettingsSource, merge_settings
from shim.core.reading.typed import Any
from shim.io.stderr import warn

MAX_SETTINGS_BYTES = 1024 * 1024
MAX_CLAUDE_JSON_BYTES = 64 * 1024 * 1024  # `.claude.json` grows with every project
MANAGED_FOLDER = "/etc/claude-code"
if sys.platform == "darwin":
    MANAGED_FOLDER = "/Library/Application Support/ClaudeCode"
SETTINGS_FLAG = "--settings"
MANAGED_FLAG = "--managed-settings"
LOCAL_FILE_NAME = "settings.local.json"
DEFAULT_SETTING_SOURCES = "user,project,local"
AGENTS_FLAG = "--agents"
AGENTS_FOLDER = "agents"
MAX_PARENTS = 100  # folders above the working directory


def load_claude_settings(
    invocation: Invocation, environment: Mapping[str, str], cwd: str
) -> ClaudeSettings:
    """Return the merged settings from all of Claude's settings files. Raise FrontendError for a
    file that cannot be read, because it may contain deny rules.
    """
    return merge_settings(list(_collect_sources(invocation, environment, cwd)))


def apply_claude_settings(invocation: Invocation, claude_settings: ClaudeSettings) -> Invocation:
    """Apply the permission mode and the extra folders from Claude's settings files. Command-line
    flags take precedence.

    Raise UnsupportedPermissionModeError if a settings file forbids the requested mode.
    """
    for ignored_setting in claude_settings.unsupported_keys:
        warn(f"{ignored_setting} has no effect: only the real claude supports it\n")
    for hook in claude_settings.refused_event_hooks:
        warn(f"a {hook.event} hook in {hook.source} has no effect: {hook.refusal}\n")
    if (
        invocation.permission_mode is None
        and not invocation.skip_permissions
        and claude_settings.mode is not None
    ):
        invocation = invocation._replace(permission_mode=claude_settings.mode)
    if claude_settings.bypass_forbidden_by:
        mode = resolve_permission_mode(
            invocation.permission_mode, skips_permissions=invocation.skip_permissions
        )
        if mode == BYPASS_MODE:
            raise UnsupportedPermissionModeError(
                f"the permission mode {BYPASS_MODE} is forbidden by "
                f"{claude_settings.bypass_forbidden_by}",
                hint="use another mode, or exclude the file with --setting-sources",
            )
        invocation = invocation._replace(allow_skip_permissions=False)
    return invocation._replace(add_dirs=(*invocation.add_dirs, *claude_settings.directories))


def load_setting_sources(
    invocation: Invocation, environment: Mapping[str, str], cwd: str
) -> "list[SettingsSource]":
    """Return the content of Claude's settings files, the highest precedence first. Raise
    FrontendError for a file that cannot be read.
    """
    return _collect_sources(invocation, environment, cwd)


def list_claude_settings_paths(
    invocation: Invocation, environment: Mapping[str, str], cwd: str
) -> list[str]:
    """Return the paths of Claude's settings files that exist and are not empty."""
    return [source.name for source in _collect_sources(invocation, environment, cwd)]


def _collect_sources(
    invocation: Invocation, environment: Mapping[str, str], cwd: str
) -> "list[SettingsSource]":
    """Return the existing settings files in order of precedence. `--setting-sources` selects the
    files.
    """
    source_names = list_setting_sources(invocation)
    config_dir = resolve_claude_config_dir(environment)
    sources = _collect_managed_sources(invocation)
    if invocation.settings:
        sources.append(SettingsSource(SETTINGS_FLAG, load_settings_from_flag(invocation.settings)))
    is_trusted = None
    for name, folder, file, base, is_user_file in (
        ("local", os.path.join(find_repository(cwd), ".claude"), LOCAL_FILE_NAME, cwd, False),
        ("local", os.path.join(cwd, ".claude"), LOCAL_FILE_NAME, cwd, False),
        ("project", os.path.join(cwd, ".claude"), "settings.json", cwd, False),
        ("user", config_dir, "settings.json", config_dir, True),
    ):
        path = os.path.join(folder, file)
        if name in source_names and path not in (source.name for source in sources):
            values = _load_file(path)
            if not is_user_file and "hooks" in values and is_trusted is None:
                is_trusted = _is_trusted_folder(environment, cwd)
            sources.append(
                SettingsSource(path, values, base, is_user_file, is_user_file or bool(is_trusted))
            )
    return [source for source in sources if source.content]


def list_setting_sources(invocation: Invocation) -> list[str]:
    """Return the kinds of settings files to read: `user`, `project` and `local`."""
    setting_sources = DEFAULT_SETTING_SOURCES
    if invocation.setting_sources is not None:
        setting_sources = invocation.setting_sources
    return [name.strip() for name in setting_sources.split(",")]


def resolve_claude_config_dir(environment: Mapping[str, str]) -> str:
    """Return the path of the user's folder with Claude's files."""
    config_dir = environment.get("CLAUDE_CONFIG_DIR")
    if config_dir:
        return config_dir
    return os.path.join(environment.get("HOME") or "/", ".claude")


def find_agent_folders(
    invocation: Invocation, environment: Mapping[str, str], cwd: str
) -> Iterator[tuple[str, str]]:
    """Yield the existing folders with subagents, and their names in messages. The last folder has
    the highest precedence.

    This function is here and not in `claude_agents.py`, because most turns have no such folder and
    do not import that module.
    """
    sources = list_setting_sources(invocation)
    user_folder = os.path.join(resolve_claude_config_dir(environment), AGENTS_FOLDER)
    if "user" in sources and os.path.isdir(user_folder):
        yield user_folder, "~/.claude/agents"
    if "project" not in sources:
        return
    parents = [cwd]
    while parents[-1] != os.path.dirname(parents[-1]) and len(parents) < MAX_PARENTS:
        parents.append(os.path.dirname(parents[-1]))
    directories = [os.path.join(cwd, directory) for directory in invocation.add_dirs]
    for directory in (*directories, *reversed(parents)):
        folder = os.path.join(directory, ".claude", AGENTS_FOLDER)
        if folder != user_folder and os.path.isdir(folder):
            yield folder, ".claude/agents"


def _is_trusted_folder(environment: Mapping[str, str], cwd: str) -> bool:
    """Return whether the user has trusted the working directory, or a folder above it, in the real
    claude.

    Trust in a folder above the repository is not enough, because people clone repositories into
    their home directory.
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
    """Return the settings managed by the machine's administrator: the settings file, and the files
    in the folder next to it. The last file takes precedence.

    If the machine has no managed settings, a frontend's `--managed-settings` (always JSON) is used,
    as in the real claude.
    """
    paths = [os.path.join(MANAGED_FOLDER, "managed-settings.json")]
    folder = os.path.join(MANAGED_FOLDER, "managed-settings.d")
    try:
        names = sorted(os.listdir(folder))
    except (FileNotFoundError, NotADirectoryError):
        names = []
    except OSError as error:
        raise _create_unreadable_error(folder, error.strerror) from None
    paths += [
        os.path.join(folder, name) for name in names if name.endswith(".json") and name[0] != "."
    ]
    sources = [SettingsSource(path, _load_file(path), is_managed=True) for path in reversed(paths)]
    flag_text = dict(invocation.other_flags).get(MANAGED_FLAG)
    if flag_text and not any(source.content for source in sources):
        try:
            flag_values = _parse_object(flag_text.encode("utf-8", "replace"))
            # The real claude does not run hooks from `--managed-settings`.
            allowed_values = {key: value for key, value in flag_values.items() if key != "hooks"}
            sources.append(SettingsSource(MANAGED_FLAG, allowed_values, is_managed=True))
        except ValueError:
            raise CliArgumentError(f"Error: {MANAGED_FLAG} is not a JSON object") from None
    return sources


def find_repository(cwd: str) -> str:
    """Return the root folder of the repository that contains `cwd`, or `cwd` if there is no
    repository.
    """
    folder = cwd
    while not os.path.lexists(os.path.join(folder, ".git")):
        if folder == os.path.dirname(folder):
            return cwd
        folder = os.path.dirname(folder)
    return folder


def _load_file(path: str) -> Mapping[str, Any]:
    """Load the JSON object from a settings file. Return {} if the file does not exist."""
    if not os.path.lexists(path):  # the usual case, which avoids the import of a JSON parser
        return {}
    try:
        return _parse_object(_read_limited(path))
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except OSError as error:
        reason = error.strerror
        if not reason:
            reason = "not a regular file"
    except ValueError:
        reason = f"not a JSON object of at most {MAX_SETTINGS_BYTES} bytes"
    raise _create_unreadable_error(path, reason)


def _create_unreadable_error(path: str, reason: str | None) -> FrontendError:
    return FrontendError(
        f"Claude's settings file {path} may have deny rules, but cannot be read: {reason}",
        hint="correct the file, or exclude it with --setting-sources",
    )


def load_settings_from_flag(text: str) -> Mapping[str, Any]:
    """Return the JSON object from the value of `--settings`, or from the file named by the value
    (contract 11). Raise CliArgumentError if there is no JSON object.
    """
    import orjson

    try:
        values = orjson.loads(text)
    except orjson.JSONDecodeError:
        path = os.path.abspath(text)
        try:
            values = orjson.loads(_read_limited(text))
        except FileNotFoundError:
            raise CliArgumentError(f"Error: Settings file not found: {path}") from None
        except OSError as error:
            raise CliArgumentError(
                f"Error: the settings file {path} cannot be read: {error.strerror}"
            ) from None
        except ValueError:
            raise CliArgumentError(
                f"Error: the settings file {path} is not JSON, or too large"
            ) from None
    if not isinstance(values, dict):
        raise CliArgumentError("Error: --settings is not a JSON object")
    return values


def _read_limited(path: str, max_bytes: int = MAX_SETTINGS_BYTES) -> bytes:
    from shim.state.files import open_regular_file

    with open(open_regular_file(path), "rb") as file:
        data = file.read(max_bytes + 1)
    if len(data) > max_bytes:
        raise ValueError("too large")
    return data


def _parse_object(data: bytes) -> Mapping[str, Any]:
    import orjson

    value = {}
    if data.strip():
        value = orjson.loads(data)
    if not isinstance(value, dict):
        raise ValueError("no object")
    return value
