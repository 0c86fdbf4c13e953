"""Computes a limit for connections from the limit for file descriptors, which is 256 per process on
macOS.
"""

import resource

MIN_CONNECTIONS = 8  # a process with fewer descriptors cannot start a session anyway


def compute_connection_limit(max_connections: int, *, per_connection: int, reserved: int) -> int:
    """Return how many connections the descriptors allow, at most `max_connections`.

    Each connection needs `per_connection` descriptors. `reserved` descriptors remain for files,
    children and connections that are about to be closed.
    """
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return max_connections
    return max(MIN_CONNECTIONS, min(max_connections, (soft - reserved) // per_connection))
