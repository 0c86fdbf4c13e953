"""The messages of a tunnel: order, seals and limits."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shim.core.fleet.keys import KeyKind, KeyPair
from shim.core.fleet.sealing import SealError
from shim.core.fleet.tunnel import (
    GRANT_BYTES,
    TO_MACHINE,
    TO_MEMBER,
    WINDOW_BYTES,
    MessageKind,
    OpenAnswer,
    OpenRequest,
    TunnelEnd,
    TunnelError,
    TunnelKeys,
    TunnelMessage,
    check_open_answer,
    check_open_request,
    decode_exit,
    encode_exit,
    seal_open_answer,
    seal_open_request,
    unseal_open_answer,
    unseal_open_request,
)

NONCE = bytes(24)
READ_KEY, COMMAND_KEY = bytes([1]) * 32, bytes([2]) * 32
MEMBER, BUILD, MALLORY = (KeyPair(KeyKind.USER, bytes([number]) * 32) for number in (1, 2, 3))
DATA = TunnelMessage(MessageKind.STDIN, b"data")


def create_ends(tunnel="t1", challenge="c1", sender=MEMBER):
    member = TunnelKeys(sender, BUILD.public_key, COMMAND_KEY, READ_KEY)
    build = TunnelKeys(BUILD, MEMBER.public_key, READ_KEY, COMMAND_KEY)
    return (
        TunnelEnd(member, tunnel, challenge, TO_MACHINE),
        TunnelEnd(build, tunnel, challenge, TO_MEMBER),
    )


def test_messages_arrive_in_both_directions():
    member, build = create_ends()
    for content in (b"a", b"", b"b" * 1000):
        message = member.seal_message(MessageKind.STDIN, content, NONCE)
        assert build.open_message(message) == (MessageKind.STDIN, content)
    message = build.seal_message(MessageKind.EXIT, encode_exit(3, "why"), NONCE)
    assert decode_exit(member.open_message(message).content) == (3, "why")


@given(st.lists(st.integers(0, 5), min_size=1, max_size=12))
def test_messages_out_of_order_never_add_lose_or_repeat_data(order):
    member, build = create_ends()
    sealed = [member.seal_message(MessageKind.STDIN, b"%d" % number, NONCE) for number in range(6)]
    received = b""
    try:
        for number in order:
            received += build.open_message(sealed[number]).content
    except TunnelError:
        assert order != list(range(len(order)))
    else:
        assert order == list(range(len(order)))
    assert b"012345".startswith(received)


def test_message_of_another_tunnel_direction_or_sender_is_refused():
    for other, _ in (
        create_ends(tunnel="t2"),
        create_ends(challenge="c2"),
        create_ends(sender=MALLORY),
        reversed(create_ends()),
    ):
        message = other.seal_message(*DATA, NONCE)
        with pytest.raises(SealError):
            create_ends()[1].open_message(message)


def test_damaged_message_is_refused():
    member, build = create_ends()
    message = member.seal_message(*DATA, NONCE)
    for damaged in (b"", message[:8], message[:-1], bytes(8) + message[8:-1] + b"x"):
        with pytest.raises(SealError):
            build.open_message(damaged)
    renumbered = (1).to_bytes(8, "big") + message[8:]
    with pytest.raises(SealError):
        build.open_message(renumbered)
    assert build.open_message(message) == DATA


def test_data_on_the_way_is_limited():
    member, build = create_ends()
    message = member.seal_message(MessageKind.STDIN, bytes(WINDOW_BYTES), NONCE)
    assert member.sendable_bytes == 0
    build.open_message(message)
    assert build.count_written(GRANT_BYTES - 1) == b""
    grant = build.count_written(1)
    member.open_message(build.seal_message(MessageKind.GRANT, grant, NONCE))
    assert member.sendable_bytes == GRANT_BYTES


def test_data_beyond_the_limit_ends_the_tunnel():
    member, build = create_ends()
    member.sendable_bytes = 2 * WINDOW_BYTES
    build.open_message(member.seal_message(MessageKind.STDIN, bytes(WINDOW_BYTES), NONCE))
    message = member.seal_message(MessageKind.STDIN, b"x", NONCE)
    with pytest.raises(TunnelError, match="more data"):
        build.open_message(message)
    grant = (WINDOW_BYTES + 1).to_bytes(4, "big")
    with pytest.raises(TunnelError, match="too much"):
        member.open_message(build.seal_message(MessageKind.GRANT, grant, NONCE))


def test_unknown_kind_of_message_is_ignored():
    member, build = create_ends()
    message = member.seal_message(99, b"new", NONCE)
    assert build.open_message(message).kind is MessageKind.PING


def test_open_request_belongs_to_its_subject_and_sender():
    request = OpenRequest("t1", "jwt", "1.0")
    message = seal_open_request(COMMAND_KEY, NONCE, request, "subject", MEMBER)
    assert unseal_open_request(COMMAND_KEY, message, "subject") == request
    check_open_request(COMMAND_KEY, message, "subject", MEMBER.public_key)
    with pytest.raises(SealError):
        check_open_request(COMMAND_KEY, message, "subject", MALLORY.public_key)
    with pytest.raises(SealError):
        unseal_open_request(COMMAND_KEY, message, "other subject")
    with pytest.raises(SealError):
        unseal_open_request(READ_KEY, message, "subject")


def test_open_answer_belongs_to_its_request():
    answer = OpenAnswer("jwt", "c1")
    message = seal_open_answer(READ_KEY, NONCE, answer, "subject", "t1", BUILD)
    assert unseal_open_answer(READ_KEY, message, "subject", "t1") == answer
    check_open_answer(READ_KEY, message, "subject", "t1", BUILD.public_key)
    with pytest.raises(SealError):
        unseal_open_answer(READ_KEY, message, "subject", "t2")
    with pytest.raises(SealError):
        check_open_answer(READ_KEY, message, "subject", "t1", MALLORY.public_key)
