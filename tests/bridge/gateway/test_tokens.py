"""The gateway's tokens: stored with private access, compared in constant time, replaced at once."""

import os
import stat
import threading

import pytest

from shim.bridge.gateway import tokens as module
from shim.bridge.gateway.tokens import GatewayTokenFile, GatewayTokenPair
from shim.core.errors import SystemResourceError


def test_tokens_have_256_bits_and_differ(tokens):
    current_tokens = tokens.load_tokens()
    assert min(map(len, current_tokens)) >= 43 and current_tokens.drive != current_tokens.watch
    assert current_tokens == tokens.load_tokens()


def test_token_file_has_mode_0600_and_its_folder_0700(tokens, tmp_path):
    tokens.load_tokens()
    (file,) = (tmp_path / "state" / "gateway").iterdir()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700


def page(tokens, role, authority="here:1"):
    """Return the credentials of a page with a role: its cookie and its CSRF token."""
    return tokens.create_cookie_value(role, authority), tokens.create_csrf_token(role, authority)


def test_replacing_a_token_invalidates_its_cookies_but_not_the_other_token(tokens, tmp_path):
    old = tokens.load_tokens()
    other_file = GatewayTokenFile({"SHIM_STATE": str(tmp_path / "state")})
    new = other_file.replace_token("drive")
    assert tokens.load_tokens() == new and new.watch == old.watch
    assert (
        new.find_role_by_token(old.drive) is None
        and new.find_role_by_token(new.drive) == "drive"
        and new.find_role_by_token(old.watch) == "watch"
    )
    assert new.find_role_by_cookie(*page(old, "drive"), "here:1") is None
    assert new.find_role_by_cookie(*page(old, "watch"), "here:1") == "watch"


def test_cookie_is_not_a_token_and_is_bound_to_an_authority(tokens):
    current_tokens = tokens.load_tokens()
    cookie, proof = page(current_tokens, "drive")
    assert (
        current_tokens.find_role_by_token(cookie) is None
        and current_tokens.find_role_by_token(proof) is None
        and cookie != proof
    )
    assert current_tokens.find_role_by_cookie(cookie, proof, "here:1") == "drive"
    assert current_tokens.find_role_by_cookie(cookie, proof, "here:2") is None


def test_cookie_without_a_matching_proof_is_rejected(tokens):
    current_tokens = tokens.load_tokens()
    for proof in (
        "",
        "x",
        current_tokens.create_csrf_token("watch", "here:1"),
        current_tokens.create_cookie_value("drive", "here:1"),
        current_tokens.drive,
    ):
        assert (
            current_tokens.find_role_by_cookie(
                current_tokens.create_cookie_value("drive", "here:1"), proof, "here:1"
            )
            is None
        )


def test_login_code_expires_and_is_not_a_token(tokens):
    current_tokens = tokens.load_tokens()
    for role in ("drive", "watch"):
        login_code = current_tokens.create_login_code(role, 1000.9)
        assert (
            current_tokens.find_role_by_login_code(login_code, 1000)
            == current_tokens.find_role_by_login_code(login_code, 1600)
            == role
        )
        assert (
            current_tokens.find_role_by_login_code(login_code, 1601) is None
            and current_tokens.find_role_by_token(login_code) is None
        )
        until, _, made = login_code.partition(".")
        assert (
            current_tokens.find_role_by_login_code(f"{int(until, 16) + 1:x}.{made}", 1000) is None
        )
        assert current_tokens.drive not in login_code and current_tokens.watch not in login_code
    assert (
        tokens.replace_token("drive").find_role_by_login_code(
            current_tokens.create_login_code("drive", 1000), 1000
        )
        is None
    )


@pytest.mark.parametrize("text", ["", "x", "\udcff", "ä" * 50, "x" * 100_000])
def test_invalid_token_has_no_role(tokens, text):
    assert (
        tokens.load_tokens().find_role_by_token(text) is None
        and tokens.load_tokens().find_role_by_cookie(text, text, "here:1") is None
    )
    assert (
        tokens.load_tokens().find_role_by_login_code(text, 0) is None
        and tokens.load_tokens().find_role_by_login_code(f"{text}.x", 0) is None
    )


def test_tokens_are_compared_in_constant_time(monkeypatch):
    compared = []
    monkeypatch.setattr(
        module.hmac, "compare_digest", lambda first, other: compared.append((first, other))
    )
    assert GatewayTokenPair("d" * 43, "w" * 43).find_role_by_token("d" * 43) is None
    assert compared == [(b"d" * 43, b"d" * 43), (b"d" * 43, b"w" * 43)]


def test_invalid_token_file_is_replaced(tokens, tmp_path):
    file = tmp_path / "state" / "gateway" / "tokens.json"
    tokens.load_tokens()
    for broken in (b"", b"{}", b'{"drive":"short","watch":"short"}', b"null"):
        file.unlink()
        file.write_bytes(broken)
        file.chmod(0o600)
        assert len(tokens.load_tokens().drive) >= 43


def test_concurrent_loads_return_the_same_tokens(tmp_path):
    results = []
    barrier = threading.Barrier(8)

    def ask():
        barrier.wait()
        results.append(GatewayTokenFile({"SHIM_STATE": str(tmp_path / "state")}).load_tokens())

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 8 and len(set(results)) == 1
    assert os.listdir(tmp_path / "state" / "gateway") == ["tokens.json"]


def test_token_file_is_refused_if_the_state_folder_is_not_private(tmp_path):
    (tmp_path / "state").mkdir(mode=0o755)
    (tmp_path / "state").chmod(0o755)
    with pytest.raises(SystemResourceError, match="cannot be stored") as raised:
        GatewayTokenFile({"SHIM_STATE": str(tmp_path / "state")}).load_tokens()
    assert "chmod 700" in raised.value.hint
