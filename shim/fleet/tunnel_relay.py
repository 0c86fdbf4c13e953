"""Runs the relay of a tunnel on a machine: a process whose streams and exit status the tunnel carries."""

import asyncio
import os
import signal
import sys
import time
import traceback
from collections.abc import Mapping
from contextlib import suppress
from typing import NoReturn

from shim.core.errors import explain_os_error
from shim.core.fleet.tunnel import (
    MAX_DATA_BYTES,
    SILENCE_LIMIT_S,
    MessageKind,
    TunnelError,
    encode_exit,
)
from shim.fleet.connection import FleetUnavailableError
from shim.fleet.tasks import cancel_tasks, run_to_end, run_until_first_end, wait_forever
from shim.fleet.tunnels import Tunnel

# A member that has opened a tunnel sends its first message within this time.
FIRST_MESSAGE_TIMEOUT_S = SILENCE_LIMIT_S
RELAY_EXIT_TIMEOUT_S = 2.0  # for the relay to exit after the end of its stdin, or after a signal
EXPIRY_CHECK_INTERVAL_S = 30.0  # the clock may be changed
# The member's exit status if the tunnel fails, and if the relay cannot be started, as in a shell.
FAILURE_STATUS = 255
START_FAILURE_STATUS = 126
# The exit status of a process that a signal ended is this, plus the number of the signal.
STATUS_OF_SIGNAL = 128


class RelayStartError(TunnelError):
    """Raised if the relay of a tunnel cannot be started."""


async def serve_tunnel(
    tunnel: Tunnel, argv: list[str], environment: Mapping[str, str], expires_s: int
) -> None:
    """Run a relay for the member, after its first message. If something else than the relay ends the
    tunnel, send the reason to the member.
    """
    status, reason = FAILURE_STATUS, ""
    try:
        async with asyncio.timeout(FIRST_MESSAGE_TIMEOUT_S):
            await tunnel.wait_for_first_message()
        await _run_relay(tunnel, argv, environment, expires_s)
    except TimeoutError:
        return
    except RelayStartError as error:
        status, reason = START_FAILURE_STATUS, str(error)
    except (FleetUnavailableError, TunnelError) as error:
        reason = str(error)
    except asyncio.CancelledError:
        reason = "`shim fleet run` has ended there"
        raise
    except Exception as error:
        # The other tunnels are not affected. Without an EXIT message, the member would wait.
        traceback.print_exc()
        reason = f"the tunnel has failed: {type(error).__name__}: {error}"
    finally:
        if reason:
            with suppress(TunnelError):
                await tunnel.send(MessageKind.EXIT, encode_exit(status, reason))


async def _run_relay(
    tunnel: Tunnel, argv: list[str], environment: Mapping[str, str], expires_s: int
) -> None:
    """Run a relay until it or the member ends. Raise RelayStartError if it cannot be started. Raise
    TunnelError or FleetUnavailableError if the tunnel is lost.
    """
    process = await _start_relay(argv, environment)
    try:
        await run_until_first_end(
            _copy_output(tunnel, process),
            _copy_input(tunnel, process),
            tunnel.check_silence(),
            _wait_until_expired(expires_s),
        )
    finally:
        await run_to_end(_stop_relay(process))


async def _start_relay(
    argv: list[str], environment: Mapping[str, str]
) -> asyncio.subprocess.Process:
    try:
        return await asyncio.create_subprocess_exec(
            *argv,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=dict(environment),
            start_new_session=True,
            limit=MAX_DATA_BYTES,
        )
    except OSError as error:
        reason = f"the relay cannot be started: {explain_os_error(error)}"
        raise RelayStartError(reason) from None


async def _wait_until_expired(expires_s: int) -> NoReturn:
    """Raise TunnelError when the membership ends."""
    if not expires_s:
        await wait_forever()
    while (remaining_s := expires_s - time.time()) > 0:
        await asyncio.sleep(min(remaining_s, EXPIRY_CHECK_INTERVAL_S))
    raise TunnelError("the membership has ended")


async def _copy_input(tunnel: Tunnel, process: asyncio.subprocess.Process) -> None:
    """Write the member's stdin to the relay, until the tunnel ends."""
    assert process.stdin is not None
    while True:
        message = await tunnel.receive()
        with suppress(OSError):  # the relay has exited; its status follows
            if message.kind is MessageKind.STDIN:
                process.stdin.write(message.content)
                await process.stdin.drain()
            elif message.kind is MessageKind.STDIN_END:
                process.stdin.close()
        if message.kind is MessageKind.EXIT:
            return
        await tunnel.grant_written(message)


async def _copy_output(tunnel: Tunnel, process: asyncio.subprocess.Process) -> None:
    """Send the output of the relay to the member, and then the relay's exit status."""
    assert process.stdout is not None
    assert process.stderr is not None
    copies = [
        asyncio.create_task(_copy_stream(tunnel, process.stdout, MessageKind.STDOUT)),
        asyncio.create_task(_copy_stream(tunnel, process.stderr, MessageKind.STDERR)),
    ]
    try:
        await asyncio.gather(*copies)
    finally:
        await cancel_tasks(copies)  # a stream has only one reader, and `_stop_relay` reads next
    status = await process.wait()
    if status < 0:
        status = STATUS_OF_SIGNAL - status
    await tunnel.send(MessageKind.EXIT, encode_exit(status, ""))


async def _copy_stream(tunnel: Tunnel, stream: asyncio.StreamReader, kind: MessageKind) -> None:
    while data := await stream.read(MAX_DATA_BYTES):
        await tunnel.send_data(kind, data)


async def _stop_relay(process: asyncio.subprocess.Process) -> None:
    """End the relay and the commands that it has started: close its stdin, and then send signals if
    that is not enough. Report a relay that does not end on stderr.
    """
    assert process.stdin is not None
    process.stdin.close()
    for signal_number in (0, signal.SIGTERM, signal.SIGKILL):
        # macOS reports processes that have exited with PermissionError.
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal_number)
        with suppress(TimeoutError):
            async with asyncio.timeout(RELAY_EXIT_TIMEOUT_S):
                await _wait_for_exit(process)
                return
    if process.returncode is None:
        sys.stderr.write(f"the relay {process.pid} does not end after SIGKILL\n")


async def _wait_for_exit(process: asyncio.subprocess.Process) -> None:
    """Wait until the relay has exited. Its remaining output is discarded, because a relay that cannot
    write does not exit.
    """
    assert process.stdout is not None
    assert process.stderr is not None
    await asyncio.gather(_discard(process.stdout), _discard(process.stderr), process.wait())


async def _discard(stream: asyncio.StreamReader) -> None:
    while await stream.read(MAX_DATA_BYTES):
        pass
