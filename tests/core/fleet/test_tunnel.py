"""The messages of a tunnel: order, seals and limits."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shim.core.fleet.keys import KeyKind, KeyPair
from shim.core.fleet.sealing import SealError
from shim.core.fleet.tunnel import (
    GRANT_BYTES,
    MESSAGE_OVERHEAD_BYTES,
    TO_MACHINE,
    TO_MEMBER,
    WINDOW_BYTES,
    MessageKind,
    TunnelEndpoint,
    TunnelError,
    TunnelKeys,
    TunnelMessage,
    build_answer_context,
    decode_exit,
    encode_exit,
)

NONCE = bytes(24)
READ_KEY, COMMAND_KEY = bytes([1]) * 32, bytes([2]) * 32
MEMBER, BUILD, MALLORY = (KeyPair(KeyKind.USER, bytes([number]) * 32) for number in (1, 2, 3))
DATA = TunnelMessage(MessageKind.STDIN, b"data")


def create_ends(tunnel="t1", challenge="c1", sender=MEMBER):
    member = TunnelKeys(sender, BUILD.public_key, COMMAND_KEY, READ_KEY)
    build = TunnelKeys(BUILD, MEMBER.public_key, READ_KEY, COMMAND_KEY)
    return (
        TunnelEndpoint(member, tunnel, challenge, TO_MACHINE),
        TunnelEndpoint(build, tunnel, challenge, TO_MEMBER),
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


def send_window(member, build):
    """Send as much data as possible. Return the messages."""
    messages = []
    while byte_count := member.get_max_data_bytes():
        message = member.seal_message(MessageKind.STDIN, bytes(byte_count), NONCE)
        messages.append(build.open_message(message))
    return messages


def test_data_on_the_way_is_limited():
    member, build = create_ends()
    messages = send_window(member, build)
    sent_bytes = sum(len(message.content) + MESSAGE_OVERHEAD_BYTES for message in messages)
    assert sent_bytes == WINDOW_BYTES
    grants = [build.count_written(message) for message in messages]
    for grant in filter(None, grants):
        assert int.from_bytes(grant, "big") >= GRANT_BYTES
        member.open_message(build.seal_message(MessageKind.GRANT, grant, NONCE))
    assert member.get_max_data_bytes() > 0


def test_short_messages_count_as_more_than_their_data():
    member, build = create_ends()
    count = 0
    while member.get_max_data_bytes():
        build.open_message(member.seal_message(MessageKind.STDIN, b"x", NONCE))
        count += 1
    assert count <= WINDOW_BYTES / MESSAGE_OVERHEAD_BYTES


@given(st.data())
def test_all_data_arrives_in_every_schedule(data):
    member, build = create_ends()
    content = bytes(range(256)) * 16 * 1024  # 8 windows
    sent_count, received, grants = 0, bytearray(), []
    on_the_way, unwritten = [], []
    while len(received) < len(content):
        byte_count = min(member.get_max_data_bytes(), len(content) - sent_count)
        steps = [
            *(["send"] if byte_count else []),
            *(["arrive"] if on_the_way else []),
            *(["write"] if unwritten else []),
            *(["grant"] if grants else []),
        ]
        step = data.draw(st.sampled_from(steps))  # fails if no step is possible
        if step == "send":
            part = content[sent_count : sent_count + byte_count]
            on_the_way.append(member.seal_message(MessageKind.STDIN, part, NONCE))
            sent_count += byte_count
        elif step == "arrive":
            unwritten.append(build.open_message(on_the_way.pop(0)))
        elif step == "write":
            message = unwritten.pop(0)
            received += message.content
            if grant := build.count_written(message):
                grants.append(build.seal_message(MessageKind.GRANT, grant, NONCE))
        else:
            member.open_message(grants.pop(0))
        assert sent_count - len(received) <= WINDOW_BYTES
    assert received == content


@given(
    st.lists(st.sampled_from(("deliver", "lose", "repeat", "delay", "forge")), max_size=30),
    st.lists(st.binary(min_size=1, max_size=20), min_size=30, max_size=30),
)
def test_hostile_server_never_adds_loses_or_repeats_data(actions, contents):
    member, build = create_ends()
    received, delayed, delivered = b"", [], []
    try:
        for action, content in zip(actions, contents, strict=False):
            message = member.seal_message(MessageKind.STDIN, content, NONCE)
            arriving = [message]
            if action == "lose":
                arriving = []
            elif action == "repeat":
                arriving = [message, *delivered[-1:], message]
            elif action == "delay":
                delayed.append(message)
                arriving = []
            elif action == "forge":
                arriving = [message[:-1] + bytes((message[-1] ^ 1,)), message]
            if action == "deliver":
                arriving += delayed
                delayed = []
            for each in arriving:
                with suppress(SealError):
                    received += build.open_message(each).content
                delivered.append(each)
    except TunnelError:
        pass
    assert b"".join(contents).startswith(received)


def test_data_beyond_the_limit_ends_the_tunnel():
    member, build = create_ends()
    send_window(member, build)
    grant = build.seal_message(MessageKind.GRANT, WINDOW_BYTES.to_bytes(4, "big"), NONCE)
    member.open_message(grant)
    message = member.seal_message(MessageKind.STDIN, b"x", NONCE)
    with pytest.raises(TunnelError, match="more data"):
        build.open_message(message)
    grant = (WINDOW_BYTES + 1).to_bytes(4, "big")
    with pytest.raises(TunnelError, match="too much"):
        member.open_message(build.seal_message(MessageKind.GRANT, grant, NONCE))


@pytest.mark.parametrize(
    "kinds",
    [
        (MessageKind.STDIN_END, MessageKind.STDIN),
        (MessageKind.STDIN_END, MessageKind.STDIN_END),
        (MessageKind.EXIT, MessageKind.STDIN),
        (MessageKind.EXIT, MessageKind.EXIT),
        (MessageKind.STDOUT,),
        (MessageKind.STDERR,),
    ],
)
def test_data_after_its_end_or_of_another_direction_ends_the_tunnel(kinds):
    member, build = create_ends()
    messages = [member.seal_message(kind, b"x", NONCE) for kind in kinds]
    for message in messages[:-1]:
        build.open_message(message)
    with pytest.raises(TunnelError, match="after its end"):
        build.open_message(messages[-1])


def test_member_accepts_no_stdin():
    member, build = create_ends()
    with pytest.raises(TunnelError, match="after its end"):
        member.open_message(build.seal_message(*DATA, NONCE))


def test_unknown_kind_of_message_is_ignored():
    member, build = create_ends()
    message = member.seal_message(99, b"new", NONCE)
    assert build.open_message(message).kind is MessageKind.PING


def test_answer_is_not_valid_as_a_request():
    assert build_answer_context("subject") not in ("subject", build_answer_context("other"))
