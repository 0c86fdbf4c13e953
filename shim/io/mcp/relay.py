"""The program that a vendor starts as the MCP server for one that runs in the frontend: `python -I
-m …`.

It copies bytes between its stdin and stdout and the socket of the drop-in, without parsing them. It
exits when either side ends. The variables CLAUDE_SHIM_MCP_SOCKET and CLAUDE_SHIM_MCP_TICKET have
the path of the socket and the ticket of the server. They are only in the environment of this
program.
"""

import os
import socket
import sys
import threading

SOCKET_VARIABLE = "CLAUDE_SHIM_MCP_SOCKET"
TICKET_VARIABLE = "CLAUDE_SHIM_MCP_TICKET"
CHUNK_BYTES = 64 * 1024


def main() -> int:
    """Relay until one side ends."""
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
    """Forward the vendor's bytes. Exit the process at the end of stdin, because no answer is needed
    after that.
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
