"""The tokens of the gateway: one that may drive, one that may only watch. They are kept in the
state directory.

A browser gets a cookie for a token, and a proof that its page keeps, because a browser sends a
cookie to every port of a name: to whatever another user listens with, too. Both are made from the
token, and end with it.
"""

import hashlib
import hmac
import os
import secrets
from collections.abc import Mapping
from typing import Literal, NamedTuple

import orjson

from shim.core.errors import SystemResourceError
from shim.state.config import get_state_dir
from shim.state.files import (
    ensure_private_dir,
    explain_unusable_dir,
    read_state_file,
    remove_file,
    write_all,
    write_new_file,
    write_state_file,
)

Role = Literal["drive", "watch"]

TOKEN_BYTES = 32  # 256 bits
LOGIN_CODE_TTL_S = 10 * 60  # for the address that is printed: a person opens it at once
MAX_FILE_BYTES = 4096
_FOLDER_NAME, _FILE_NAME = "gateway", "tokens.json"


class GatewayTokenPair(NamedTuple):
    """Both tokens, as they were read."""

    drive: str
    watch: str

    def find_role_by_token(self, token: str) -> Role | None:
        """What the bearer of a token may do; None for an unknown token."""
        return self._match_role(token, self.drive, self.watch)

    def create_login_code(self, role: Role, now_s: float) -> str:
        """What may stand in an address instead of a token, because browsers keep every address:
        good for a while.
        """
        expiry = f"{int(now_s) + LOGIN_CODE_TTL_S:x}"
        return f"{expiry}.{_compute_mac('way in', self.drive if role == 'drive' else self.watch, expiry)}"

    def find_role_by_login_code(self, login_code: str, now_s: float) -> Role | None:
        """What whoever comes in this way may do; None if it is no way in, or not any more."""
        expiry, _, mac = login_code.partition(".")
        role = self._match_role(
            mac,
            _compute_mac("way in", self.drive, expiry),
            _compute_mac("way in", self.watch, expiry),
        )
        return role if role and int(expiry, 16) >= now_s else None

    def create_cookie_value(self, role: Role, authority: str) -> str:
        """The value of the cookie for a role at an `authority`, the gateway's name and port."""
        return _compute_mac("cookie", self.drive if role == "drive" else self.watch, authority)

    def create_csrf_token(self, role: Role, authority: str) -> str:
        """What a page shows beside the cookie, at each request."""
        return _compute_mac("proof", self.drive if role == "drive" else self.watch, authority)

    def find_role_by_cookie(self, cookie: str, csrf_token: str, authority: str) -> Role | None:
        """What a page may do with a cookie and its proof; None unless both are good for the same
        token.
        """
        cookie_role = self._match_role(
            cookie,
            self.create_cookie_value("drive", authority),
            self.create_cookie_value("watch", authority),
        )
        proof_role = self._match_role(
            csrf_token,
            self.create_csrf_token("drive", authority),
            self.create_csrf_token("watch", authority),
        )
        return cookie_role if cookie_role == proof_role else None

    def _match_role(self, value: str, drive: str, watch: str) -> Role | None:
        # Both are compared, in constant time: how long it takes says nothing about either.
        may_drive, may_watch = _is_equal_token(value, drive), _is_equal_token(value, watch)
        return "drive" if may_drive else "watch" if may_watch else None


def _is_equal_token(value: str, expected: str) -> bool:
    return hmac.compare_digest(value.encode("utf-8", "surrogateescape"), expected.encode())


def _compute_mac(purpose: str, token: str, subject: str) -> str:
    message = f"{purpose} of {subject}".encode("utf-8", "surrogateescape")
    return hmac.new(token.encode(), message, hashlib.sha256).hexdigest()


class GatewayTokenFile:
    """Where the tokens are kept. They are made when they are first asked for."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._folder = os.path.join(get_state_dir(environment), _FOLDER_NAME)
        self._path = os.path.join(self._folder, _FILE_NAME)
        self._cached: tuple[tuple[int, int], GatewayTokenPair] | None = None

    @property
    def exists(self) -> bool:
        """Whether there are tokens already."""
        return os.path.lexists(self._path)

    @property
    def is_readable_by_others(self) -> bool:
        """Whether somebody has changed who may read the tokens."""
        try:
            return any(os.lstat(path).st_mode & 0o077 for path in (self._folder, self._path))
        except OSError:
            return False

    def load_tokens(self) -> GatewayTokenPair:
        """The tokens as they are now. SystemResourceError if none can be kept.

        The file is looked at each time, so that a replaced token is refused from that moment.
        """
        stamp = self._read_stamp()
        if self._cached is not None and stamp == self._cached[0]:
            return self._cached[1]
        tokens = self._load_file()
        while tokens is None:
            self._create_file()
            stamp, tokens = self._read_stamp(), self._load_file()
        if stamp is not None:
            self._cached = stamp, tokens
        return tokens

    def replace_token(self, role: Role) -> GatewayTokenPair:
        """Make a new token for a role; the old one, and its cookies, are worth nothing from now on."""
        tokens = self.load_tokens()._replace(**{role: _create_token()})
        if not write_state_file(self._folder, _FILE_NAME, _encode_tokens(tokens)):
            raise self._build_error()
        return tokens

    def _read_stamp(self) -> tuple[int, int] | None:
        try:
            status = os.lstat(self._path)
        except OSError:
            return None
        return status.st_mtime_ns, status.st_ino

    def _load_file(self) -> GatewayTokenPair | None:
        try:
            data = orjson.loads(read_state_file(self._folder, _FILE_NAME, MAX_FILE_BYTES) or b"")
            tokens = GatewayTokenPair(str(data["drive"]), str(data["watch"]))
        except (orjson.JSONDecodeError, TypeError, KeyError):
            return None
        return tokens if min(map(len, tokens)) >= len(_create_token()) else None

    def _create_file(self) -> None:
        """Make the file, unless another process was first. What cannot be read as tokens is
        replaced.
        """
        if not ensure_private_dir(self._folder):
            raise self._build_error()
        if self._read_stamp() is not None and self._load_file() is None:
            remove_file(self._path)
        draft_path = f"{self._path}.{secrets.token_hex(8)}.tmp"
        try:
            write_new_file(
                draft_path,
                lambda file: write_all(
                    file, _encode_tokens(GatewayTokenPair(_create_token(), _create_token()))
                ),
            )
            os.link(draft_path, self._path)  # only if there is none
        except FileExistsError:
            pass
        except OSError:
            raise self._build_error() from None
        finally:
            remove_file(draft_path)

    def _build_error(self) -> SystemResourceError:
        reason = explain_unusable_dir(self._folder)
        return SystemResourceError(
            f"the gateway's tokens cannot be kept in {self._folder}", hint=reason
        )


def _create_token() -> str:
    return secrets.token_urlsafe(TOKEN_BYTES)


def _encode_tokens(tokens: GatewayTokenPair) -> bytes:
    return orjson.dumps(tokens._asdict())
