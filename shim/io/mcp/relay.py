"""The program that a vendor starts as an MCP server for one that lives in the frontend: `python -I
-m …`.

It carries bytes between its stdin and stdout and the socket of the drop-in, and reads none of them.
It ends when either side ends. SOCKET and TICKET, in its environment only, say where the socket is
and which server is meant.
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
        sys.stderr.write(f"the program that has this MCP server cannot be reached: {error}\n")
        return 1
    threading.Thread(target=_forward_stdin, args=(connection,), daemon=True).start()
    try:
        while chunk := connection.recv(CHUNK_BYTES):
            _write_stdout(chunk)
    except OSError:
        pass  # the drop-in has gone, or nobody reads our stdout
    return 0


def _forward_stdin(connection: socket.socket) -> None:
    """Carry what the vendor says. At its end there is nothing left to do, whatever is still to
    come.
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
