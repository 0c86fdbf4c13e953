"""How many connections a server may hold with the file descriptors that it has: macOS gives a process 256."""

import resource

FEWEST_CONNECTIONS = 8  # with even fewer descriptors nothing works anyway


def limit_connections(most: int, *, per_connection: int, reserved: int) -> int:
    """Return how many connections fit, at most `most`.

    Each takes `per_connection` descriptors; `reserved` are kept for files, children and connections that are about to
    be closed.
    """
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return most
    return max(FEWEST_CONNECTIONS, min(most, (soft - reserved) // per_connection))
