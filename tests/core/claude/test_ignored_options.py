"""Options of a frontend that have no effect are named."""

from shim.core.claude.ignored_options import (
    format_ignored_option,
    list_ignored_flags,
)


def test_ignored_flag_is_named_once_with_its_reason():
    flags = (("--plugin-dir", "/a"), ("--plugin-dir", "/b"), ("--agents", "{}"))
    (option,) = list_ignored_flags(flags)
    assert (option.what, option.source) == ("--plugin-dir", "the command line")
    assert format_ignored_option(option).startswith("--plugin-dir has no effect: ")
