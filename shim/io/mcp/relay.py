"""The program that a vendor starts in place of an MCP server in the frontend's process: `python -I
-m …`.

It copies bytes between its stdin and stdout and the socket of the drop-in, without parsing them. It
exits when either side ends. SOCKET and TICKET exist only in its environment: they name the socket
and the server.
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
        pass  # the drop-in has exited, or stdout is closed
    return 0


def _forward_stdin(connection: socket.socket) -> None:
    """Copy the vendor's input to the socket. At its end the process exits, even if more output
    might come.
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
