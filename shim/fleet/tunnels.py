"""Sends and receives the messages of a tunnel, at either end (see `shim.core.fleet.tunnel`)."""

import asyncio
import os
import time
from contextlib import suppress
from typing import NoReturn

from nats.aio.client import Client
from nats.aio.msg import Msg

from shim.core.fleet.sealing import NONCE_BYTES, SealError
from shim.core.fleet.tunnel import (
    PING_INTERVAL_S,
    SILENCE_LIMIT_S,
    MessageKind,
    TunnelEndpoint,
    TunnelError,
    TunnelMessage,
)
from shim.fleet.buckets import NO_RESPONDERS_STATUS, get_status, unsubscribe
from shim.fleet.connection import FleetUnavailableError

# How many bytes a message may have besides its data: number, signature, nonce, and the seal.
MAX_OVERHEAD_BYTES = 256
# A server of a cluster may not know a new subscription yet, so the first reply does not count.
MAX_UNRECEIVED_PINGS = 2


class Tunnel:
    """One end of a tunnel. `subject` is the subject of the messages to the other side."""

    def __init__(self, client: Client, subject: str, endpoint: TunnelEndpoint) -> None:
        self._client = client
        self._subject = subject
        self._endpoint = endpoint
        # The window of the tunnel limits the data in this queue. An error is its last element.
        self._received = asyncio.Queue[TunnelMessage | TunnelError]()
        self._has_received = asyncio.Event()
        self._has_failed = False
        self._granted = asyncio.Event()
        self._last_received_s = time.monotonic()
        self._unreceived_pings = 0
        self._is_disconnected = asyncio.Event()

    async def handle_message(self, message: Msg) -> None:
        """Add a message of the other side to the queue. Ignore messages that the other side has not
        sealed, because anybody may have sent them, and all messages after an error.
        """
        if self._has_failed:
            return
        try:
            received = self._endpoint.open_message(message.data)
        except SealError:
            return
        except TunnelError as error:
            self._has_failed = True
            self._received.put_nowait(error)
            return
        self._last_received_s = time.monotonic()
        self._unreceived_pings = 0
        self._has_received.set()
        if received.kind is MessageKind.GRANT:
            self._granted.set()
        elif received.kind is not MessageKind.PING:
            self._received.put_nowait(received)

    async def wait_for_first_message(self) -> None:
        """Wait until the other side has proved that it knows the challenge."""
        await self._has_received.wait()

    async def receive(self) -> TunnelMessage:
        """Return the next message with data, or about an end. Raise TunnelError if a message is
        missing.
        """
        received = await self._received.get()
        if isinstance(received, TunnelError):
            raise received
        return received

    async def grant_written(self, message: TunnelMessage) -> None:
        """Let the other side send further data, after the data of this message was written."""
        grant = self._endpoint.count_written(message)
        if grant:
            await self.send(MessageKind.GRANT, grant)

    async def send(self, kind: MessageKind, content: bytes = b"", reply_subject: str = "") -> None:
        """Send a message. Raise TunnelError if the connection is lost."""
        sealed = self._endpoint.seal_message(kind, content, os.urandom(NONCE_BYTES))
        try:
            await self._client.publish(self._subject, sealed, reply_subject)
        except FleetUnavailableError as error:
            raise TunnelError(str(error)) from None

    async def send_data(self, kind: MessageKind, data: bytes) -> None:
        """Send data in messages that the server accepts, as soon as the other side accepts them."""
        max_bytes = max(1, self._client.max_payload - MAX_OVERHEAD_BYTES)
        position = 0
        while position < len(data):
            while not (allowed_bytes := self._endpoint.get_max_data_bytes()):
                self._granted.clear()
                await self._granted.wait()
            count = min(max_bytes, allowed_bytes)
            await self.send(kind, data[position : position + count])
            position += count

    async def check_silence(self) -> NoReturn:
        """Send pings. Raise TunnelError if the other side is silent for SILENCE_LIMIT_S, or if the
        server reports that it has disconnected. Raise FleetUnavailableError if the connection is
        lost.
        """
        inbox = self._client.new_inbox()
        subscription = await self._client.subscribe(inbox, cb=self._handle_server_reply)
        try:
            while (remaining_s := self._last_received_s + SILENCE_LIMIT_S - time.monotonic()) > 0:
                await self.send(MessageKind.PING, reply_subject=inbox)
                with suppress(TimeoutError):
                    async with asyncio.timeout(min(PING_INTERVAL_S, remaining_s)):
                        await self._is_disconnected.wait()
                        raise TunnelError("the other side has disconnected from the fleet")
            raise TunnelError(f"no message for {SILENCE_LIMIT_S:g} s")
        finally:
            await unsubscribe(subscription)

    async def _handle_server_reply(self, message: Msg) -> None:
        """Count the pings that, as the server replies, no subscriber has received."""
        if get_status(message) != NO_RESPONDERS_STATUS:
            return
        self._unreceived_pings += 1
        if self._unreceived_pings >= MAX_UNRECEIVED_PINGS:
            self._is_disconnected.set()
