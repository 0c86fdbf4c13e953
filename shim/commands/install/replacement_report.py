"""Prints the results of `shim install --into` and `shim uninstall --into`."""

from collections.abc import Mapping

from shim.commands.install.replacement import replace_file_with_dropin, restore_replaced_file
from shim.story.terminal.console import print_line


def install_dropin_with_report(file: str, installed_options: Mapping[str, str]) -> None:
    """Replace `file` with the drop-in and print the result. Raise FrontendError if the file cannot
    be replaced.
    """
    installation = replace_file_with_dropin(file, installed_options)
    print_line(f"wrote {installation.path}")
    if installation.old_backup:
        print_line(
            "the package was updated since the last install; the previously saved file is "
            f"now {installation.old_backup}"
        )
    if installation.backup:
        print_line(
            f"saved the previous file as {installation.backup}; `shim uninstall --into "
            f"{installation.path}` restores it"
        )
    else:
        print_line("no previous file was saved, so `shim uninstall --into` has nothing to restore")
    print_line(
        "an update of the package overwrites this file; run this command again after each update"
    )


def uninstall_dropin_and_print_result(file: str) -> None:
    """Restore the original of `file` and print the result. A file that is not a drop-in is
    reported, but is not a failure.
    """
    removal = restore_replaced_file(file)
    if removal.restored:
        print_line(f"restored {removal.path}")
    elif removal.was_ours:
        print_line(
            f"removed {removal.path}; no previous file was saved, so reinstall the package that contained it"
        )
    else:
        print_line(f"{removal.path} was not written by `shim install`, so it is not removed")
    for path in removal.old_backups:
        print_line(f"{path} is the backup of an older version and no longer needed")
