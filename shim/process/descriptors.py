"""Computes a connection limit from the file descriptor limit, which is 256 per process on macOS."""

import resource

MIN_CONNECTIONS = 8  # with fewer descriptors, no session could start anyway


def compute_connection_limit(max_connections: int, *, per_connection: int, reserved: int) -> int:
    """Return how many connections the file descriptor limit allows, at most `max_connections`.

    Each connection needs `per_connection` descriptors. `reserved` descriptors are kept for files,
    child processes and connections that are about to be closed.
    """
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return max_connections
    return max(MIN_CONNECTIONS, min(max_connections, (soft - reserved) // per_connection))
