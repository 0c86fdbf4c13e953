"""Creates a fleet, and invites and removes its members. The folder of the fleet holds the private
keys that sign, so only its owner may read it.

fleet.json           the state of the fleet: its keys, URL and members
server.conf          the configuration of the server
server.pem, server-key.pem, ca.pem   the certificates of the server
NAME.join            the join file of a member
lock                 locked by the process that changes the fleet
"""

import base64
import ipaddress
import os
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import orjson

from shim.bridge.lock import LOCK_FILE, acquire_session_host_lock
from shim.core.errors import FrontendError, explain_os_error
from shim.core.fleet.join_file import JoinFile, encode_join_file, get_member_key_pair
from shim.core.fleet.jwt import (
    MemberClaims,
    build_issuer_jwt,
    build_member_jwt,
    build_operator_jwt,
    build_storage_jwt,
    build_system_jwt,
)
from shim.core.fleet.keys import KeyKind, KeyPair, parse_key_pair
from shim.core.fleet.roles import MACHINE, WATCH
from shim.core.fleet.sealing import KEY_BYTES, READ_PURPOSE, derive_key
from shim.core.fleet.server_config import ServerSettings, format_server_config
from shim.core.fleet.subjects import NAME_FORMAT, NAME_PATTERN
from shim.core.reading.json_text import dump_json
from shim.fleet.certificates import create_server_certificates
from shim.state.files import (
    is_private_dir,
    remove_file,
    replace_file,
    write_all,
    write_new_file,
)

DEFAULT_PORT = 4222
STATE_FILE = "fleet.json"
CONFIG_FILE = "server.conf"
CERTIFICATE_FILES = ("ca.pem", "server.pem", "server-key.pem")
MAX_STATE_BYTES = 4 * 1024 * 1024
MAX_MEMBERS = 10_000  # a member has about 200 bytes in the state
REVOCATION_BYTES = 75  # of a removed member in the state
SECONDS_PER_DAY = 86_400
# A revocation covers all JWTs of a key, because each member has a key of its own. The time of a JWT
# may be wrong: the clock may have been ahead when the member was invited.
REVOKED_UNTIL_S = 9_999_999_999
# The administrator acts as a removed member for this long, which allows for a wrong clock.
REMOVAL_DAYS = 1
LOCK_TIMEOUT_S = 10.0  # for another process that changes the fleet, which needs less than a second


@dataclass
class Fleet:
    """The state of a fleet, as its administrator stores it.

    storage_key  the public key of the account with the streams
    key          the key of the fleet in base64
    members      the public key of each member, by its name, also of removed ones
    revocations  the time in seconds since 1970 up to which JWTs of a removed member are not valid, by
                 its public key
    """

    name: str
    url: str
    operator_seed: str
    operator_jwt: str
    system_key: str
    system_jwt: str
    issuer_seed: str
    storage_key: str
    key: str
    members: dict[str, str] = field(default_factory=dict)
    revocations: dict[str, int] = field(default_factory=dict)


def create_fleet(folder: str, name: str, url: str, machine: str) -> str:
    """Create a fleet in a folder, with a join file for its first machine. Return the path of the join
    file. Raise FrontendError if the folder already contains a fleet, if it cannot be written, or if a
    name or the URL is not valid.
    """
    _check_name("fleet", name)
    _check_name("member", machine)
    host, _ = parse_server_url(url)
    folder = os.path.abspath(folder)
    _create_private_folder(folder)
    was_interrupted = os.path.lexists(os.path.join(folder, LOCK_FILE))
    with _lock_folder(folder):
        if os.path.exists(os.path.join(folder, STATE_FILE)):
            raise FrontendError(f"{folder} already contains a fleet", hint="choose another --dir")
        if was_interrupted:
            for file_name in CERTIFICATE_FILES:
                remove_file(os.path.join(folder, file_name))
        _write_certificates(folder, name, host)
        fleet = _create_fleet_state(name, url)
        join = _add_member(folder, fleet, MemberInvitation(machine, MACHINE))
        path = _write_join_file(folder, join)
        _store_fleet(folder, fleet)  # last, because a folder with a state is complete
        return path


def _create_private_folder(folder: str) -> None:
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)
        is_private = is_private_dir(folder)
    except OSError as error:
        raise FrontendError(f"{folder} cannot be created: {explain_os_error(error)}") from None
    if not is_private:
        raise FrontendError(f"{folder} is not private", hint=f"run `chmod 700 {folder}`")


@contextmanager
def _lock_folder(folder: str) -> Iterator[None]:
    """Let no other process change the fleet in a folder. Raise FrontendError if another process still
    changes it after LOCK_TIMEOUT_S, or if a file in the folder cannot be written.
    """
    deadline_s = time.monotonic() + LOCK_TIMEOUT_S
    try:
        while (descriptor := acquire_session_host_lock(folder)) is None:
            if time.monotonic() > deadline_s:
                raise FrontendError(f"another process changes the fleet in {folder}")
        try:
            yield
        finally:
            os.close(descriptor)
    except OSError as error:
        path = error.filename or folder
        raise FrontendError(f"{path} cannot be written: {explain_os_error(error)}") from None


def _create_fleet_state(name: str, url: str) -> Fleet:
    """Return the state of a new fleet, which has no members."""
    now_s = int(time.time())
    operator = _create_key_pair(KeyKind.OPERATOR)
    # The private keys of the accounts without members are not kept.
    system_key = _create_key_pair(KeyKind.ISSUER).public_key
    return Fleet(
        name,
        url,
        operator.seed,
        build_operator_jwt(operator, name, now_s),
        system_key,
        build_system_jwt(operator, system_key, now_s),
        _create_key_pair(KeyKind.ISSUER).seed,
        _create_key_pair(KeyKind.ISSUER).public_key,
        base64.b64encode(secrets.token_bytes(KEY_BYTES)).decode(),
    )


def _write_certificates(folder: str, fleet: str, host: str) -> None:
    certificates = create_server_certificates(fleet, host)
    for file_name, data in zip(
        CERTIFICATE_FILES,
        (certificates.authority, certificates.certificate, certificates.private_key),
        strict=True,
    ):
        write_new_file(os.path.join(folder, file_name), partial(write_all, data=data))


class MemberInvitation(NamedTuple):
    """A new member. `session` is the only session that it may use, or "". `days` is 0 for a
    membership without an end.
    """

    name: str
    role: str
    session: str = ""
    days: int = 0


def invite_member(folder: str, name: str, role: str, session: str = "", days: int = 0) -> str:
    """Create a join file for a new member in the fleet's folder, and return its path. `days` is 0
    for a membership without an end. Raise FrontendError if the name is not valid or is taken.
    """
    _check_name("member", name)
    with _change_fleet(folder) as fleet:
        join = _add_member(folder, fleet, MemberInvitation(name, role, session, days))
        # A member whose key is not in the state could never be removed.
        _store_fleet(folder, fleet)
        return _write_join_file(folder, join)


@contextmanager
def _change_fleet(folder: str) -> Iterator[Fleet]:
    """Yield the fleet in a folder, which no other process changes meanwhile. Raise FrontendError if
    there is none, or if it cannot be written.
    """
    load_fleet(folder)  # before a lock file is created
    with _lock_folder(folder):
        yield load_fleet(folder)


def _add_member(folder: str, fleet: Fleet, invitation: MemberInvitation) -> JoinFile:
    """Add a member to the state of the fleet, and return its join file. Raise FrontendError if the
    name is taken, or if the fleet already has MAX_MEMBERS current members.
    """
    name = invitation.name
    current_members = _list_current_members(fleet)
    if name in current_members:
        raise FrontendError(
            f"the fleet already has a member {name}",
            hint="choose another name, or remove the member with `shim fleet revoke`",
        )
    if len(current_members) >= MAX_MEMBERS:
        raise FrontendError(
            f"a fleet has at most {MAX_MEMBERS:,} members",
            hint="remove a member with `shim fleet revoke`",
        )
    join = _create_join_file(folder, fleet, invitation)
    fleet.members[name] = get_member_key_pair(join).public_key
    _check_state_size(fleet)
    return join


def _check_state_size(fleet: Fleet) -> None:
    """Raise FrontendError if the state would be too large after the removal of all members. A member
    can always be removed.
    """
    size = len(dump_json(asdict(fleet))) + REVOCATION_BYTES * len(_list_current_members(fleet))
    if size > MAX_STATE_BYTES:
        raise FrontendError(
            "the state of the fleet has no space for one more member",
            hint="create a fleet in another folder with `shim fleet init`",
        )


def _list_current_members(fleet: Fleet) -> list[str]:
    """Return the names of the members that were not removed."""
    return sorted(
        name for name, public_key in fleet.members.items() if public_key not in fleet.revocations
    )


def _create_join_file(folder: str, fleet: Fleet, invitation: MemberInvitation) -> JoinFile:
    """Return a join file with a new key."""
    name, role, session, days = invitation
    now_s = int(time.time())
    expires_s = now_s + days * SECONDS_PER_DAY if days else 0
    key_pair = _create_key_pair(KeyKind.USER)
    claims = MemberClaims(fleet.name, name, role, session, key_pair.public_key, expires_s)
    key = base64.b64decode(fleet.key)
    return JoinFile(
        fleet.name,
        fleet.url,
        _read_text(os.path.join(folder, CERTIFICATE_FILES[0])),
        name,
        role,
        session,
        expires_s,
        build_member_jwt(parse_key_pair(fleet.issuer_seed), claims, now_s),
        key_pair.seed,
        derive_key(key, READ_PURPOSE) if role == WATCH else key,
    )


def _write_join_file(folder: str, join: JoinFile) -> str:
    path = os.path.join(folder, f"{join.name}.join")
    replace_file(path, partial(write_all, data=encode_join_file(join)))
    return path


def revoke_member(folder: str, name: str) -> JoinFile:
    """Remove a member: its JWTs are not valid any more, after the server has read server.conf again.
    A member can be removed again.

    Return a join file that can remove what the member has published. It is for a machine of the same
    name, with another key. Raise FrontendError if there has never been such a member.
    """
    with _change_fleet(folder) as fleet:
        if name not in fleet.members:
            raise FrontendError(
                f"the fleet has no member {name}",
                hint=f"the members are: {', '.join(_list_current_members(fleet))}",
            )
        fleet.revocations[fleet.members[name]] = REVOKED_UNTIL_S
        _store_fleet(folder, fleet)
        return _create_join_file(folder, fleet, MemberInvitation(name, MACHINE, days=REMOVAL_DAYS))


def load_fleet(folder: str) -> Fleet:
    """Load the fleet in a folder. Raise FrontendError if there is none."""
    path = os.path.join(folder, STATE_FILE)
    try:
        fields: dict[str, Any] = orjson.loads(_read_text(path))
        return Fleet(**fields)
    except (orjson.JSONDecodeError, TypeError) as error:
        raise FrontendError(
            f"{path} is damaged, or another version has written it: {error}",
            hint="create a fleet in another folder with `shim fleet init`",
        ) from None


def parse_server_url(url: str) -> tuple[str, int]:
    """Return the host and the port of a URL such as tls://build01:4222. Raise FrontendError if it is
    not valid.
    """
    scheme, host, port = "", None, None
    with suppress(ValueError):
        parts = urlsplit(url)
        scheme, host, port = parts.scheme, parts.hostname, parts.port
    if scheme != "tls" or not host:
        raise FrontendError(f"--url must be tls://HOST:PORT, not {url!r}")
    return host, port or DEFAULT_PORT


def _store_fleet(folder: str, fleet: Fleet) -> None:
    """Store the server's configuration with its account, and then the state of the fleet. After an
    interruption, the command can be repeated, because the state has not changed.
    """
    folder = os.path.abspath(folder)
    operator = parse_key_pair(fleet.operator_seed)
    issuer = parse_key_pair(fleet.issuer_seed).public_key
    now_s = int(time.time())
    settings = ServerSettings(
        fleet.name,
        _choose_listen_address(fleet.url),
        folder,
        fleet.operator_jwt,
        fleet.system_key,
        fleet.system_jwt,
        issuer,
        build_issuer_jwt(operator, issuer, fleet.storage_key, fleet.name, now_s, fleet.revocations),
        fleet.storage_key,
        build_storage_jwt(operator, fleet.storage_key, fleet.name, now_s),
    )
    for name, data in (
        (CONFIG_FILE, format_server_config(settings).encode()),
        (STATE_FILE, dump_json(asdict(fleet))),
    ):
        replace_file(os.path.join(folder, name), partial(write_all, data=data))


def _choose_listen_address(url: str) -> str:
    """Return the address on which the server listens: the address in the URL, or all addresses of the
    computer if the URL has a host name.
    """
    host, port = parse_server_url(url)
    try:
        ipaddress.ip_address(host)
    except ValueError:
        host = "0.0.0.0"
    if ":" in host:
        host = f"[{host}]"
    return f"{host}:{port}"


def _create_key_pair(kind: KeyKind) -> KeyPair:
    return KeyPair(kind, secrets.token_bytes(KEY_BYTES))


def _check_name(kind: str, name: str) -> None:
    if not NAME_PATTERN.match(name):
        raise FrontendError(f"the name of a {kind} must have {NAME_FORMAT}, not {name[:80]!r}")


def _read_text(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read(MAX_STATE_BYTES)
    except FileNotFoundError:
        raise FrontendError(
            f"there is no fleet in {os.path.dirname(path)}",
            hint="name its folder with --dir, or create one with `shim fleet init`",
        ) from None
    except (OSError, ValueError) as error:
        raise FrontendError(f"{path} cannot be read: {explain_os_error(error)}") from None
