"""Options of a frontend that have no effect are named."""

from shim.core.claude.ignored_options import (
    MAX_UNKNOWN_FLAGS,
    format_ignored_option,
    list_ignored_flags,
    list_unknown_flags,
)


def test_ignored_flag_is_named_once_with_its_reason():
    flags = (("--plugin-dir", "/a"), ("--plugin-dir", "/b"), ("--agents", "{}"))
    (option,) = list_ignored_flags(flags)
    assert (option.what, option.source) == ("--plugin-dir", "the command line")
    assert format_ignored_option(option).startswith("--plugin-dir has no effect: ")


def test_unknown_flag_is_named_once_without_its_value():
    (option,) = list_unknown_flags(["--no-such-flag=secret", "--no-such-flag"])
    assert (option.what, option.reason) == ("--no-such-flag", "the option is unknown")
    assert len(list_unknown_flags(f"--flag{number}" for number in range(50))) == MAX_UNKNOWN_FLAGS
