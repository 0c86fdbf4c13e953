"""The gateway's access tokens, stored in the state directory: the `drive` token permits everything,
and the `watch` token permits reading.

After the login a browser has a cookie, and its page has a proof (a CSRF token). The cookie alone is
not enough: browsers send a cookie to every port of a host name, so a server of another user could
receive it. The cookie and the proof are derived from the token, and become invalid when the token
is replaced.
"""

import hashlib
import hmac
import os
import secrets
from collections.abc import Mapping
from typing import Literal, NamedTuple

from shim.core.errors import SystemResourceError
from shim.core.reading.json_text import dump_json, parse_json_object
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
LOGIN_CODE_TTL_S = 10 * 60  # a user opens the printed URL soon after it is printed
MAX_FILE_BYTES = 4096
_FOLDER_NAME = "gateway"
_FILE_NAME = "tokens.json"


class GatewayTokenPair(NamedTuple):
    """The `drive` token and the `watch` token, as last read from the token file."""

    drive: str
    watch: str

    def find_role_by_token(self, token: str) -> Role | None:
        """Return the role of a token, or None if the token is unknown."""
        return self._match_role(token, self.drive, self.watch)

    def create_login_code(self, role: Role, now_s: float) -> str:
        """Return a login code, which replaces a token in a URL. The code is valid for
        LOGIN_CODE_TTL_S.

        Browsers keep every URL in their history, so a URL must not contain the token.
        """
        expiry = f"{int(now_s) + LOGIN_CODE_TTL_S:x}"
        return f"{expiry}.{self._compute_mac('way in', role, expiry)}"

    def find_role_by_login_code(self, login_code: str, now_s: float) -> Role | None:
        """Return the role of a login code, or None if the code is invalid or has expired."""
        expiry, _, mac = login_code.partition(".")
        role = self._match_mac(mac, "way in", expiry)
        if role and int(expiry, 16) >= now_s:
            return role
        return None

    def create_cookie_value(self, role: Role, authority: str) -> str:
        """Return the value of the cookie for a role. `authority` is the gateway's name and port."""
        return self._compute_mac("cookie", role, authority)

    def create_csrf_token(self, role: Role, authority: str) -> str:
        """Return the proof (CSRF token) that a page sends with its cookie in each request."""
        return self._compute_mac("proof", role, authority)

    def find_role_by_cookie(self, cookie: str, csrf_token: str, authority: str) -> Role | None:
        """Return the role of a cookie and its proof, or None unless both were derived from the same
        token.
        """
        cookie_role = self._match_mac(cookie, "cookie", authority)
        proof_role = self._match_mac(csrf_token, "proof", authority)
        if cookie_role == proof_role:
            return cookie_role
        return None

    def _compute_mac(self, purpose: str, role: Role, subject: str) -> str:
        token = self._asdict()[role]
        message = f"{purpose} of {subject}".encode("utf-8", "surrogateescape")
        return hmac.new(token.encode(), message, hashlib.sha256).hexdigest()

    def _match_mac(self, value: str, purpose: str, subject: str) -> Role | None:
        """Return the role whose token `value` was derived from, or None."""
        return self._match_role(
            value,
            self._compute_mac(purpose, "drive", subject),
            self._compute_mac(purpose, "watch", subject),
        )

    def _match_role(self, value: str, drive: str, watch: str) -> Role | None:
        # Both tokens are compared in constant time, so the duration reveals nothing about them.
        may_drive = _is_equal_token(value, drive)
        may_watch = _is_equal_token(value, watch)
        if may_drive:
            return "drive"
        if may_watch:
            return "watch"
        return None


def _is_equal_token(value: str, expected: str) -> bool:
    return hmac.compare_digest(value.encode("utf-8", "surrogateescape"), expected.encode())


class GatewayTokenFile:
    """The file with the gateway's tokens. The tokens are created when they are first loaded."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._folder = os.path.join(get_state_dir(environment), _FOLDER_NAME)
        self._path = os.path.join(self._folder, _FILE_NAME)
        self._cached: tuple[tuple[int, int], GatewayTokenPair] | None = None

    @property
    def exists(self) -> bool:
        """Whether the token file exists."""
        return os.path.lexists(self._path)

    @property
    def is_readable_by_others(self) -> bool:
        """Whether other users can access the token file, because the permissions of the file or its
        folder were changed.
        """
        try:
            return any(os.lstat(path).st_mode & 0o077 for path in (self._folder, self._path))
        except OSError:
            return False

    def load_tokens(self) -> GatewayTokenPair:
        """Return the current tokens. Raise SystemResourceError if the tokens cannot be stored.

        The file is checked at each call, so a replaced token is refused immediately.
        """
        stamp = self._read_stamp()
        if self._cached is not None and stamp == self._cached[0]:
            return self._cached[1]
        tokens = self._load_file()
        while tokens is None:
            self._create_file()
            stamp = self._read_stamp()
            tokens = self._load_file()
        if stamp is not None:
            self._cached = stamp, tokens
        return tokens

    def replace_token(self, role: Role) -> GatewayTokenPair:
        """Create and store a new token for a role. The old token and its cookies become invalid
        immediately.
        """
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
        data = parse_json_object(read_state_file(self._folder, _FILE_NAME, MAX_FILE_BYTES) or b"")
        try:
            tokens = GatewayTokenPair(str(data["drive"]), str(data["watch"]))
        except KeyError:
            return None
        if min(map(len, tokens)) >= len(_create_token()):
            return tokens
        return None

    def _create_file(self) -> None:
        """Create the token file, unless another process has just created it. A file without valid
        tokens is replaced.
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
            os.link(draft_path, self._path)  # unlike a rename, this fails if the file exists
        except FileExistsError:
            pass
        except OSError:
            raise self._build_error() from None
        finally:
            remove_file(draft_path)

    def _build_error(self) -> SystemResourceError:
        reason = explain_unusable_dir(self._folder)
        return SystemResourceError(
            f"the gateway's tokens cannot be stored in {self._folder}", hint=reason
        )


def _create_token() -> str:
    return secrets.token_urlsafe(TOKEN_BYTES)


def _encode_tokens(tokens: GatewayTokenPair) -> bytes:
    return dump_json(tokens._asdict())
