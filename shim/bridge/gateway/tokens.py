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

from shim.core.errors import MachineError
from shim.state.config import state_directory
from shim.state.files import (
    explain_not_kept,
    private_directory,
    read_file,
    remove,
    write_all,
    write_file,
    write_new,
)

Role = Literal["drive", "watch"]

TOKEN_BYTES = 32  # 256 bits
WAY_IN_SECONDS = 10 * 60  # for the address that is printed: a person opens it at once
FILE_BYTES = 4096
_FOLDER, _FILE = "gateway", "tokens.json"


class Tokens(NamedTuple):
    """Both tokens, as they were read."""

    drive: str
    watch: str

    def role(self, token: str) -> Role | None:
        """What the bearer of a token may do; None for an unknown token."""
        return self._role(token, self.drive, self.watch)

    def way_in(self, role: Role, now: float) -> str:
        """What may stand in an address instead of a token, because browsers keep every address:
        good for a while.
        """
        until = f"{int(now) + WAY_IN_SECONDS:x}"
        return f"{until}.{_made('way in', self.drive if role == 'drive' else self.watch, until)}"

    def role_of_way_in(self, given: str, now: float) -> Role | None:
        """What whoever comes in this way may do; None if it is no way in, or not any more."""
        until, _, made = given.partition(".")
        role = self._role(
            made, _made("way in", self.drive, until), _made("way in", self.watch, until)
        )
        return role if role and int(until, 16) >= now else None

    def cookie(self, role: Role, authority: str) -> str:
        """The value of the cookie for a role at an `authority`, the gateway's name and port."""
        return _made("cookie", self.drive if role == "drive" else self.watch, authority)

    def proof(self, role: Role, authority: str) -> str:
        """What a page shows beside the cookie, at each request."""
        return _made("proof", self.drive if role == "drive" else self.watch, authority)

    def role_of_page(self, cookie: str, proof: str, authority: str) -> Role | None:
        """What a page may do with a cookie and its proof; None unless both are good for the same
        token.
        """
        by_cookie = self._role(
            cookie, self.cookie("drive", authority), self.cookie("watch", authority)
        )
        by_proof = self._role(proof, self.proof("drive", authority), self.proof("watch", authority))
        return by_cookie if by_cookie == by_proof else None

    def _role(self, given: str, drive: str, watch: str) -> Role | None:
        # Both are compared, in constant time: how long it takes says nothing about either.
        may_drive, may_watch = _same(given, drive), _same(given, watch)
        return "drive" if may_drive else "watch" if may_watch else None


def _same(given: str, known: str) -> bool:
    return hmac.compare_digest(given.encode("utf-8", "surrogateescape"), known.encode())


def _made(what: str, token: str, of: str) -> str:
    words = f"{what} of {of}".encode("utf-8", "surrogateescape")
    return hmac.new(token.encode(), words, hashlib.sha256).hexdigest()


class TokenFile:
    """Where the tokens are kept. They are made when they are first asked for."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._folder = os.path.join(state_directory(environment), _FOLDER)
        self._path = os.path.join(self._folder, _FILE)
        self._known: tuple[tuple[int, int], Tokens] | None = None

    @property
    def there(self) -> bool:
        """Whether there are tokens already."""
        return os.path.lexists(self._path)

    @property
    def readable_by_others(self) -> bool:
        """Whether somebody has changed who may read the tokens."""
        try:
            return any(os.lstat(path).st_mode & 0o077 for path in (self._folder, self._path))
        except OSError:
            return False

    def current(self) -> Tokens:
        """The tokens as they are now. MachineError if none can be kept.

        The file is looked at each time, so that a replaced token is refused from that moment.
        """
        stamp = self._stamp()
        if self._known is not None and stamp == self._known[0]:
            return self._known[1]
        tokens = self._read()
        while tokens is None:
            self._make()
            stamp, tokens = self._stamp(), self._read()
        if stamp is not None:
            self._known = stamp, tokens
        return tokens

    def replace(self, role: Role) -> Tokens:
        """Make a new token for a role; the old one, and its cookies, are worth nothing from now on."""
        tokens = self.current()._replace(**{role: _new()})
        if not write_file(self._folder, _FILE, _data(tokens)):
            raise self._fault()
        return tokens

    def _stamp(self) -> tuple[int, int] | None:
        try:
            found = os.lstat(self._path)
        except OSError:
            return None
        return found.st_mtime_ns, found.st_ino

    def _read(self) -> Tokens | None:
        try:
            found = orjson.loads(read_file(self._folder, _FILE, FILE_BYTES) or b"")
            tokens = Tokens(str(found["drive"]), str(found["watch"]))
        except (orjson.JSONDecodeError, TypeError, KeyError):
            return None
        return tokens if min(map(len, tokens)) >= len(_new()) else None

    def _make(self) -> None:
        """Make the file, unless another process was first. What cannot be read as tokens is
        replaced.
        """
        if not private_directory(self._folder):
            raise self._fault()
        if self._stamp() is not None and self._read() is None:
            remove(self._path)
        draft = f"{self._path}.{secrets.token_hex(8)}.tmp"
        try:
            write_new(draft, lambda file: write_all(file, _data(Tokens(_new(), _new()))))
            os.link(draft, self._path)  # only if there is none
        except FileExistsError:
            pass
        except OSError:
            raise self._fault() from None
        finally:
            remove(draft)

    def _fault(self) -> MachineError:
        why = explain_not_kept(self._folder)
        return MachineError(f"the gateway's tokens cannot be kept in {self._folder}", hint=why)


def _new() -> str:
    return secrets.token_urlsafe(TOKEN_BYTES)


def _data(tokens: Tokens) -> bytes:
    return orjson.dumps(tokens._asdict())
