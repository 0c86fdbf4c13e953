"""Lists the machines and the sessions of the fleet over stdin and stdout, for commands of a user who
has no `shim fleet run`.
"""

import asyncio
import sys
from collections.abc import Mapping

from shim.core.bridge.frames import FrameError, parse_frame
from shim.core.errors import ShimError
from shim.fleet.connection import FleetConnection, FleetUnavailableError
from shim.fleet.folder import require_join_file
from shim.fleet.listing_frame import encode_listing
from shim.fleet.view import FleetMachine, FleetView

FAILURE_STATUS = 255
# The command waits for an answer for 5 s, and this process needs a part of them to start.
LIST_TIMEOUT_S = 3.0


def answer_listing_requests(environment: Mapping[str, str]) -> int:
    """Answer each line of stdin with the machines of the fleet. Return the exit status, after a line
    on stderr if the fleet cannot be reached.
    """
    try:
        for line in sys.stdin.buffer:
            if parse_frame(line)["kind"] != "fleet":
                raise FrameError("the request is unknown")
            machines = asyncio.run(load_fleet(environment))
            sys.stdout.buffer.write(encode_listing(machines))
            sys.stdout.buffer.flush()
    except (ShimError, FrameError) as error:
        sys.stderr.write(f"{error}\n")
        return FAILURE_STATUS
    return 0


async def load_fleet(environment: Mapping[str, str]) -> list[FleetMachine]:
    """Return all machines of the fleet except this one. Raise FrontendError if there is no fleet,
    FleetUnavailableError if its server does not answer within LIST_TIMEOUT_S, or BucketError if it
    refuses a request.
    """
    join = require_join_file(environment)
    connection = FleetConnection(join)
    view = FleetView(join)
    try:
        async with asyncio.timeout(LIST_TIMEOUT_S):
            await connection.open()
            await view.load(connection)
    except TimeoutError:
        reason = f"no answer from {join.url} within {LIST_TIMEOUT_S:g} s"
        raise FleetUnavailableError(reason) from None
    finally:
        connection.client.abort()  # nothing must be sent, and a stalled server would delay the end
    return view.list_machines()
