"""The folder of the fleet that this user's machine has joined, in the shim's state folder."""

import os
import time
from collections.abc import Mapping

from shim.core.errors import FrontendError, SystemResourceError
from shim.core.fleet.join_file import (
    MAX_JOIN_FILE_BYTES,
    NEW_FILE_HINT,
    JoinFile,
    encode_join_file,
    parse_join_file,
)
from shim.state.config import JOIN_FILE, get_fleet_folder, has_fleet
from shim.state.files import ensure_private_dir, read_state_file, remove_file, write_state_file


class MembershipError(FrontendError):
    """Raised if this machine is not a member of a fleet, or if another machine uses its membership. A
    new attempt would fail, too.
    """


def load_join_file(environment: Mapping[str, str]) -> JoinFile | None:
    """Load the join file of this user's fleet. Return None if there is no fleet. Raise
    MembershipError if the file is not valid, or if the membership has ended.
    """
    join = load_stored_join_file(environment)
    if join is not None:
        check_expiry(join)
    return join


def load_stored_join_file(environment: Mapping[str, str]) -> JoinFile | None:
    """Load the join file like `load_join_file`, even if the membership has ended."""
    if not has_fleet(environment):
        return None
    folder = get_fleet_folder(environment)
    data = read_state_file(folder, JOIN_FILE, MAX_JOIN_FILE_BYTES)
    if data is None:
        return None
    try:
        return parse_join_file(data, os.path.join(folder, JOIN_FILE))
    except FrontendError as error:
        raise MembershipError(str(error), hint=error.hint) from None


def require_join_file(environment: Mapping[str, str]) -> JoinFile:
    """Load the join file of this user's fleet. Raise MembershipError if there is no fleet, or if the
    membership has ended.
    """
    join = load_join_file(environment)
    if join is None:
        raise MembershipError(
            "this machine has not joined a fleet", hint="join one with `shim fleet join FILE`"
        )
    return join


def check_expiry(join: JoinFile) -> None:
    """Raise MembershipError if the membership has ended."""
    if join.expires and join.expires <= time.time():
        end = time.strftime("%Y-%m-%d %H:%M", time.localtime(join.expires))
        raise MembershipError(
            f"the membership of {join.name} in the fleet {join.fleet} ended at {end}",
            hint=f"if the clock of this machine is right, {NEW_FILE_HINT}",
        )


def store_join_file(join: JoinFile, environment: Mapping[str, str]) -> None:
    """Store the join file of this user's fleet. Raise SystemResourceError if it cannot be stored."""
    folder = get_fleet_folder(environment)
    if ensure_private_dir(folder) and write_state_file(folder, JOIN_FILE, encode_join_file(join)):
        return
    raise SystemResourceError(f"the join file cannot be stored in {folder}")


def remove_fleet_folder(environment: Mapping[str, str]) -> None:
    """Remove the folder of this user's fleet with the private key of the member."""
    folder = get_fleet_folder(environment)
    for name in os.listdir(folder):
        remove_file(os.path.join(folder, name))
    os.rmdir(folder)
