"""The commands of vendors and of the shim, as frontends list them."""

from shim.core.claude.command_files import CommandFile
from shim.core.claude.control.session_reports import describe_commands, list_command_names
from shim.core.claude.local_commands import COMMAND_KINDS
from shim.core.claude.offered_commands import (
    LOCAL_COMMANDS,
    MAX_OFFERED_COMMANDS,
    OfferedCommand,
    parse_offered_commands,
)
from shim.core.claude.session_state import SessionOptions, SessionState, VendorCapabilities

VENDOR_COMMANDS = (OfferedCommand("init", "Write a file"), OfferedCommand("clear"))
FILES = (
    CommandFile("sk", "user", "", skill_folder="/s"),
    CommandFile("args", "project", ""),
    CommandFile("hidden", "project", "", can_be_invoked=False),
)


def session(**options):
    return SessionState(
        SessionOptions(
            "S",
            load_commands=lambda: FILES,
            load_vendor_commands=lambda: VENDOR_COMMANDS,
            **options,
        ),
        VendorCapabilities("vendor"),
    )


def test_names_and_objects_are_parsed():
    acp = {"name": "review", "description": "Review it", "input": {"hint": "[branch]"}}
    stored = {"name": "init", "description": "", "argument_hint": "x"}
    assert parse_offered_commands(["clear", acp, stored, acp]) == (
        OfferedCommand("clear"),
        OfferedCommand("review", "Review it", "[branch]"),
        OfferedCommand("init", "", "x"),
    )


def test_invalid_commands_are_left_out():
    entries = [None, 7, {}, {"name": 7}, {"name": ""}, "x" * 101, {"name": "a", "input": 7}]
    assert parse_offered_commands(entries) == (OfferedCommand("a"),)
    assert parse_offered_commands("abc") == parse_offered_commands(None) == ()
    entries = [f"c{number}" for number in range(2 * MAX_OFFERED_COMMANDS)]
    assert len(parse_offered_commands(entries)) == MAX_OFFERED_COMMANDS


def test_commands_are_listed_in_the_order_in_which_they_are_reached():
    entries = describe_commands(session(answers_commands=True))
    names = [entry["name"] for entry in entries]
    assert names == ["sk", "args", "clear", "compact", "context", "usage", "init"]
    assert entries[2]["aliases"] == ["reset", "new"] and entries[2]["builtin"] is True
    assert entries[-1] == {"name": "init", "description": "Write a file", "argumentHint": ""}
    names = list_command_names(session(answers_commands=True))
    assert names.listed == ("sk", "args", "clear", "compact", "context", "usage")
    assert (names.skills, names.vendor) == (("sk",), ("init", "clear"))


def test_only_commands_that_the_shim_answers_are_listed_as_builtin():
    for options in ({"answers_commands": False}, {"answers_commands": True, "has_commands": False}):
        names = [entry["name"] for entry in describe_commands(session(**options))]
        assert names == ["sk", "args", "init", "clear"]
    local_names = {
        name for command, aliases in LOCAL_COMMANDS.items() for name in (command.name, *aliases)
    }
    assert local_names == set(COMMAND_KINDS)


def test_commands_of_this_session_replace_those_of_the_last_session():
    state = session()
    assert list_command_names(state).vendor == ("init", "clear")
    state.offered_commands = (OfferedCommand("new"),)
    assert list_command_names(state).vendor == ("new",)
    state.switch_vendor(VendorCapabilities("another"))
    assert list_command_names(state).vendor == ("init", "clear")
