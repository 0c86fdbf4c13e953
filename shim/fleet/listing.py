"""Lists the machines and the sessions of the fleet over stdin and stdout, for commands of a user who
has no `shim fleet run`.
"""

import asyncio
import sys
from collections.abc import Mapping

from shim.core.bridge.frames import FrameError, encode_frame, parse_frame
from shim.core.errors import ShimError
from shim.fleet.connection import connect_to_fleet
from shim.fleet.folder import require_join_file
from shim.fleet.view import FleetMachine, FleetView, build_listing

FAILURE_STATUS = 255


def answer_listing_requests(environment: Mapping[str, str]) -> int:
    """Answer each line of stdin with the machines of the fleet. Return the exit status, after a line
    on stderr if the fleet cannot be reached.
    """
    try:
        for line in sys.stdin.buffer:
            if parse_frame(line)["kind"] != "fleet":
                raise FrameError("the request is unknown")
            machines = asyncio.run(load_fleet(environment))
            sys.stdout.buffer.write(encode_frame("fleet", machines=build_listing(machines)))
            sys.stdout.buffer.flush()
    except (ShimError, FrameError) as error:
        sys.stderr.write(f"{error}\n")
        return FAILURE_STATUS
    return 0


async def load_fleet(environment: Mapping[str, str]) -> list[FleetMachine]:
    """Return all machines of the fleet except this one. Raise FrontendError if there is no fleet,
    FleetUnavailableError if its server cannot be reached, or BucketError if it does not answer.
    """
    join = require_join_file(environment)
    async with connect_to_fleet(join) as connection:
        view = FleetView(join)
        await view.load(connection)
        return view.list_machines()
