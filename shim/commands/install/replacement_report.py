"""The messages of `shim install --into` and `shim uninstall --into`."""

from collections.abc import Mapping

from shim.commands.install.replacement import replace_file_with_dropin, restore_replaced_file
from shim.story.terminal.console import print_line


def install_dropin_with_report(file: str, installed_options: Mapping[str, str]) -> None:
    """Replace `file` with the drop-in. Raise FrontendError if that cannot be done."""
    installation = replace_file_with_dropin(file, installed_options)
    print_line(f"wrote {installation.path}")
    if installation.old_backup:
        print_line(
            f"its package was updated since the last time; the file kept from before is now {installation.old_backup}"
        )
    if installation.backup:
        print_line(
            f"what was there is {installation.backup}; `shim uninstall --into {installation.path}` puts it back"
        )
    else:
        print_line("nothing is kept beside it, so `shim uninstall --into` has nothing to put back")
    print_line("an update of the package replaces it: then run this command again")


def uninstall_dropin_and_print_result(file: str) -> None:
    """Restore the original of `file`. If it is not a drop-in, print that; it is not a failure."""
    removal = restore_replaced_file(file)
    if removal.restored:
        print_line(f"{removal.path} is what it was before")
    elif removal.was_ours:
        print_line(
            f"removed {removal.path}; nothing was kept beside it, so its package has to be installed again"
        )
    else:
        print_line(f"{removal.path} is not ours; it is left alone")
    for path in removal.old_backups:
        print_line(f"still kept from an older version, and no longer needed: {path}")
