"""A machine of a fleet that runs another program instead of the relay: `fleet_machine.py PROGRAM ARG…`."""

import asyncio
import os
import signal
import sys

from shim.fleet import machine_tunnels
from shim.fleet.connection import connect_to_fleet
from shim.fleet.folder import require_join_file
from shim.fleet.machine_tunnels import MachineTunnels
from shim.fleet.tasks import run_until_first_end, wait_for_signal, wait_forever

SUBSCRIBE_SECONDS = 0.2


async def serve() -> None:
    async with connect_to_fleet(require_join_file(os.environ)) as connection:

        async def report() -> None:
            await asyncio.sleep(SUBSCRIBE_SECONDS)
            await connection.client.flush()
            sys.stdout.write("ready\n")
            sys.stdout.flush()
            await wait_forever()

        await run_until_first_end(
            MachineTunnels(connection, os.environ).serve(),
            connection.wait_until_lost(),
            report(),
            wait_for_signal(signal.SIGTERM),
        )


machine_tunnels.RELAY_ARGV = tuple(sys.argv[1:])  # type: ignore[assignment]
asyncio.run(serve())
