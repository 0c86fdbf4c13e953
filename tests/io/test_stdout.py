"""The stdout of the shim: complete lines to every kind of descriptor, in the requested format."""

import json
import os
import socket
import tempfile
import threading

import anyio
import pytest
from box import TIMEOUT_S
from turn_stage import Stage

from shim.core.turn.outcome import ChildExit
from shim.io.stdout import FrontendDisconnectedError, FrontendOutput, Stdout

# A `Stdout` is never closed, because it is used until its process exits. The tests drop it.
pytestmark = [
    pytest.mark.anyio,
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),
]

LONG = b'{"type":"x"}\n' * 50_000


class DescriptorReader:
    """Reads a descriptor to its end in a thread."""

    def __init__(self, descriptor):
        self._descriptor = descriptor
        self._parts = []
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self):
        while True:
            try:
                chunk = os.read(self._descriptor, 65536)
            except OSError:  # the other side of the terminal is closed
                return
            if not chunk:
                return
            self._parts.append(chunk)

    def all(self):
        self._thread.join(TIMEOUT_S)
        assert not self._thread.is_alive(), "it never came to an end"
        os.close(self._descriptor)
        return b"".join(self._parts)


def pipe():
    return os.pipe()


def sockets():
    first, other = socket.socketpair()
    return first.detach(), other.detach()


def terminal():
    import tty

    reader, writer = os.openpty()
    tty.setraw(writer)
    return reader, writer


@pytest.mark.parametrize("kind", [pipe, sockets, terminal])
async def test_long_output_arrives_completely_on_pipe_socket_and_terminal(kind):
    reading, writing = kind()
    reader = DescriptorReader(reading)
    sink = Stdout(writing)
    with anyio.fail_after(TIMEOUT_S):
        await sink.write(LONG)
    del sink
    os.close(writing)
    if kind is pipe:
        _close_all_writers(reading)
    assert reader.all() == LONG


def _close_all_writers(reading):
    """Close the descriptors that `Stdout` opened for a pipe. Otherwise they stay open until the
    test process exits.
    """
    inode = os.fstat(reading).st_ino
    for name in os.listdir("/proc/self/fd"):
        try:
            status = os.fstat(int(name))
        except OSError:
            continue
        if status.st_ino == inode and int(name) != reading:
            os.close(int(name))


async def test_long_output_is_written_to_a_file_and_the_null_device():
    with tempfile.TemporaryFile() as file, anyio.fail_after(TIMEOUT_S):
        await Stdout(file.fileno()).write(LONG)
        assert file.tell() == len(LONG)
    with open(os.devnull, "wb") as null, anyio.fail_after(TIMEOUT_S):
        await Stdout(null.fileno()).write(LONG)


async def test_pipe_stays_blocking_for_other_processes():
    reading, writing = os.pipe()
    Stdout(writing)
    assert os.get_blocking(writing) is True
    os.close(writing)
    _close_all_writers(reading)
    os.close(reading)


@pytest.mark.parametrize("kind", [pipe, sockets])
async def test_closed_reader_raises_frontend_disconnected_error(kind):
    reading, writing = kind()
    sink = Stdout(writing)
    os.close(reading)
    with pytest.raises(FrontendDisconnectedError), anyio.fail_after(TIMEOUT_S):
        await sink.write(LONG)
    del sink
    os.close(writing)


async def test_cancelled_write_is_completed_by_the_next_write():
    reading, writing = sockets()
    sink = Stdout(writing)
    with anyio.move_on_after(0.05) as waiting:
        await sink.write(LONG)  # there is no reader yet
    assert waiting.cancelled_caught
    reader = DescriptorReader(reading)
    with anyio.fail_after(TIMEOUT_S):
        await sink.write(b"last\n")
    with socket.socket(fileno=writing) as end:
        end.shutdown(socket.SHUT_WR)  # the sink has a copy of this descriptor
    assert reader.all() == LONG + b"last\n"


# -- formats ---------------------------------------------------------------------------------------


class Memory:
    """An output that stores its data."""

    def __init__(self):
        self.output = b""

    async def write(self, data):
        self.output += data


async def print_turn(
    output_format, *, verbose=True, code=0, terminator="none", text="Hel\u2028lo."
):
    """Return the output of a turn in a format."""
    stage, memory = Stage(terminator=terminator), Memory()
    output = FrontendOutput(output_format, verbose=verbose, stdout=memory)
    for fragment in (text, "", " More."):
        if fragment:
            stage.turn.add_block(fragment)
        await output.write_lines(stage.writer.take_bytes())
    stage.turn.record_turn_end()
    stage.turn.close(ChildExit(code=code), "")
    await output.write_lines(stage.writer.take_bytes())
    await output.finish_turn(stage.turn)
    return memory.output


async def test_stream_json_prints_every_line():
    output = await print_turn("stream-json", terminator="message_stop")
    assert [json.loads(line)["type"] for line in output.splitlines()] == [
        "system", "assistant", "assistant", "result", "message_stop",
    ]  # fmt: skip


async def test_json_prints_only_the_result():
    output = await print_turn("json", verbose=False)
    assert output.count(b"\n") == 1 and output.endswith(b"\n")
    assert json.loads(output)["type"] == "result"


async def test_verbose_json_is_an_array_without_a_newline():
    output = await print_turn("json")
    assert not output.endswith(b"\n")
    assert [line["type"] for line in json.loads(output)] == [
        "system",
        "assistant",
        "assistant",
        "result",
    ]


async def test_verbose_json_array_is_valid_after_a_cancelled_or_late_write():
    memory = Memory()
    output = FrontendOutput("json", verbose=True, stdout=memory)
    with anyio.CancelScope() as scope:
        scope.cancel()
        await output.write_lines(b'{"a":1}\n')
    await output.write_lines(b'{"b":2}\n')
    await output.write_final_answer("", b"")
    await output.write_lines(b'{"c":3}\n')
    assert json.loads(memory.output) == [{"b": 2}]


async def test_text_prints_the_last_answer_with_a_newline():
    assert await print_turn("text") == b" More.\n"


async def test_text_of_a_failed_turn_contains_the_reason():
    assert b"exited with code 3" in await print_turn("text", code=3)
