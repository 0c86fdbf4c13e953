"""Profile keys that no bundled profile uses: their table is complete, and each one causes one
warning.
"""

import json
import os
import tomllib
from collections.abc import Collection
from typing import Any

import pytest
from profile_builder import HEAD, LAUNCH

from shim import adapters
from shim.profiles.check.config_node import ConfigKeys, ConfigNode, ConfigSource
from shim.profiles.compile import conditions, emits, fields
from shim.profiles.load import profile_file
from shim.profiles.schema.tables import map_unused_keys_to_successors
from shim.profiles.schema.unused_keys import build_unused_key_warnings, list_profile_keys
from shim.state import profile_files

# The tables of [launch] whose keys are modes.
MODES = ("permission_args", "permission_env", "permission_tools")
SAY = {"type": "say", "words": "Hi."}
PROFILE = f"""{HEAD}
note = "mine"
{LAUNCH}
[launch.timeouts]
tool = 5

[[event]]
match = {{ type = {{ in = ["say"] }} }}
emit = "text"
text = "words"
note = "once"

[[event]]
match = {{ type = {{ in = ["cut"] }} }}
emit = "compacted"
trigger = "why"
note = "twice"

[[event]]
match = {{ type = "bye" }}
emit = "result"

[tools]
in = {{ name = "Bash", args = {{ command = "note", note = "in" }} }}
"""


def insert_keys(
    profile: dict[str, Any], keys: ConfigKeys, allowed_keys: Collection[str], emit: object
) -> None:
    """Add allowed keys to the table at `keys` of a profile. Missing tables and lists are created."""
    table: Any = profile
    for number, key in enumerate(keys):
        if isinstance(key, int):
            table.extend({} for _ in range(key + 1 - len(table)))
        elif not isinstance(table.get(key), dict | list):
            table[key] = [] if isinstance((*keys, "")[number + 1], int) else {}
        table = table[key]
    for key in allowed_keys:
        table.setdefault(key, True)
    if emit is not None:
        table["emit"] = emit


def list_allowed_names(monkeypatch) -> set[str]:
    """Return the names of all keys that the loader allows in the tables of the bundled profiles."""
    tables: list[tuple[ConfigKeys, Collection[str], object]] = []
    read_table = ConfigNode.read_table

    def record(node: ConfigNode, allowed_keys: Collection[str] = ()) -> Any:
        if allowed_keys and not (len(node.keys) == 2 and node.keys[1] in MODES):
            is_rule = len(node.keys) == 2 and node.keys[0] in ("event", "report")
            tables.append((node.keys, allowed_keys, node.value["emit"] if is_rule else None))
        return read_table(node, allowed_keys)

    def read(path: str) -> profile_file.ProfileFile:
        file = profile_file.load_bundled_profile(path)
        file.source.is_bundled = False  # so that the whole profile is checked
        return file

    monkeypatch.setattr(ConfigNode, "read_table", record)
    names: set[str] = set()
    for vendor in adapters.BUNDLED_PROFILES:
        tables.clear()
        profile_file.load_profile_adapter(
            vendor, adapters.VENDORS[vendor], read, adapters.BUNDLED_PROFILES
        )
        profile: dict[str, Any] = {}
        for keys, allowed_keys, emit in tables:
            insert_keys(profile, keys, allowed_keys, emit)
        listed = list(list_profile_keys(profile))
        names |= {key.name for key in listed}
        missing = {(*keys, key) for keys, allowed_keys, _ in tables for key in allowed_keys} - {
            key.keys for key in listed
        }
        assert not missing, "`list_profile_keys` does not know these keys"
    return names


def list_allowed_operators() -> set[str]:
    """Return the names of all fields of all kinds of rules, and of all operators."""
    beside = [key for keys in fields._EXTRA_KEYS.values() for key in keys]
    field = dict.fromkeys((*fields._STANDALONE_OPERATORS, *fields._PATH_OPERATORS, *beside), True)
    match = {"type": dict.fromkeys(conditions._OPERATORS, True)}
    rules = [
        {"emit": kind, "match": match, **dict.fromkeys(emit_fields, field)}
        for kind, (_, emit_fields) in emits._EMIT_WRITERS.items()
    ]
    return {key.name for key in list_profile_keys({"event": rules})} - {
        f"usage.{key}" for key in field
    }


# `protocol = "acp"` describes an agent by the Agent Client Protocol. It exists for agents that are
# not bundled.
FOR_UNKNOWN_AGENTS = {"protocol"}


def test_unused_key_table_lists_exactly_the_keys_no_bundled_profile_uses(monkeypatch):
    tables = [
        profile_file.load_bundled_profile(adapters.VENDORS[name]).table
        for name in adapters.BUNDLED_PROFILES
    ]
    used = {key.name for table in tables for key in list_profile_keys(table)}
    unused = (list_allowed_names(monkeypatch) | list_allowed_operators()) - used
    kinds = {name.removeprefix("emit.") for name in unused if name.startswith("emit.")}
    of_kinds = {
        name for name in unused if name.startswith("event.") and name.split(".")[1] in kinds
    }
    assert set(map_unused_keys_to_successors()) == unused - of_kinds - FOR_UNKNOWN_AGENTS


@pytest.fixture
def load_user_profile(local_box, monkeypatch):
    """Return a function that loads a user profile and returns its path and its warnings."""
    monkeypatch.setattr(profile_files, "_warned", set())
    warned = []
    monkeypatch.setattr(profile_files, "warn", warned.append)

    def read(text):
        path = local_box.path / "own.toml"
        path.write_text(text, encoding="utf-8")
        profile_files.load_adapter_from_profile("own", str(path), os.environ)
        return str(path), "".join(warned).splitlines()

    return read


def test_user_is_warned_once_about_each_unused_key(load_user_profile):
    path, warned = load_user_profile(PROFILE)
    numbers = {
        line.strip(): number for number, line in reversed(list(enumerate(PROFILE.splitlines(), 1)))
    }
    later = "and a later version may remove it"
    assert sorted(warned) == sorted(
        f"{path}:{numbers[line]}: no bundled profile uses `{key}`, {later}{instead}"
        for line, key, instead in (
            ('note = "mine"', "note", "; write a comment (#) instead"),
            (
                "tool = 5",
                "launch.timeouts.tool",
                "; write `[vendors.NAME.timeouts] tool` in config.toml instead",
            ),
            (
                'match = { type = { in = ["say"] } }',
                "event[0].match.type.in",
                '; write the list alone, such as `type = ["a", "b"]`, instead',
            ),
            ('note = "once"', "event[0].note", "; write a comment (#) instead"),
            ('emit = "compacted"', 'event[1].emit = "compacted"', ""),
        )
    )
    assert load_user_profile(PROFILE)[1] == warned, "the second reading is silent"


def test_profile_text_is_read_once_for_all_keys():
    reads = []

    def read_text():
        reads.append(PROFILE)
        return PROFILE

    source = ConfigSource("own.toml", read_text)
    assert len(build_unused_key_warnings(tomllib.loads(PROFILE), source)) == 5
    assert build_unused_key_warnings({}, source) == {}
    assert len(reads) == 1


def test_keys_of_bundled_profiles_cause_no_warning(load_user_profile):
    used = (
        PROFILE.replace('note = "mine"\n', "")
        .replace('note = "once"\n', "")
        .replace('note = "twice"\n', "")
    )
    used = (
        used.replace('{ in = ["say"] }', '"say"')
        .replace('{ in = ["cut"] }', '"cut"')
        .replace("tool = 5", "idle = 5")
    )
    assert load_user_profile(used.replace('"compacted"\ntrigger = "why"', '"ignore"'))[1] == []


def test_vendor_check_lists_unused_keys_once_in_its_notes(shim, local_box, monkeypatch):
    monkeypatch.setattr(profile_files, "_warned", set())
    profile_path = local_box.path / "own.toml"
    run_path = local_box.path / "run.ndjson"
    profile_path.write_text(PROFILE, encoding="utf-8")
    run_path.write_text(
        "".join(f"{json.dumps(event)}\n" for event in (SAY, {"type": "bye"})), encoding="utf-8"
    )
    _, output, complaint = shim("vendor", "check", str(profile_path), str(run_path), "--json")
    remarks = [
        note["name"] for note in json.loads(output)["notes"] if "no bundled profile" in note["name"]
    ]
    assert len(remarks) == 5
    assert complaint == "", "the notes have the warnings, so stderr does not repeat them"
