"""The MCP relay program: `python -I -m …`. A vendor starts it in place of an MCP server that runs
in the frontend's process.

The relay copies bytes between its stdin and stdout and the drop-in's socket, without parsing them.
It exits when either side ends. The environment variable CLAUDE_SHIM_MCP_SOCKET contains the
socket's path, and CLAUDE_SHIM_MCP_TICKET contains the server's ticket. Only this program receives
these variables.
"""

import os
import socket
import sys
import threading

SOCKET_VARIABLE = "CLAUDE_SHIM_MCP_SOCKET"
TICKET_VARIABLE = "CLAUDE_SHIM_MCP_TICKET"
CHUNK_BYTES = 64 * 1024


def main() -> int:
    """Copy bytes in both directions until one side ends."""
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.connect(os.environ[SOCKET_VARIABLE])
        connection.sendall(os.environ[TICKET_VARIABLE].encode() + b"\n")
    except (KeyError, OSError) as error:
        sys.stderr.write(f"cannot connect to the program that provides this MCP server: {error}\n")
        return 1
    threading.Thread(target=_forward_stdin, args=(connection,), daemon=True).start()
    try:
        while chunk := connection.recv(CHUNK_BYTES):
            _write_stdout(chunk)
    except OSError:
        pass  # the drop-in has exited, or stdout is closed
    return 0


def _forward_stdin(connection: socket.socket) -> None:
    """Forward the vendor's bytes to the socket. Exit the process at the end of stdin, because no
    further answers are needed.
    """
    try:
        while chunk := os.read(0, CHUNK_BYTES):
            connection.sendall(chunk)
    except OSError:
        pass
    finally:
        os._exit(0)


def _write_stdout(data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(1, view) :]


if __name__ == "__main__":
    sys.exit(main())
