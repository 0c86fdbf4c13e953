"""Runs and cancels tasks of asyncio. The client library may ignore their cancellations."""

import asyncio
import signal
import time
from collections.abc import Coroutine, Iterable
from typing import Any, NoReturn, TypeVar

Result = TypeVar("Result")
# A task that has ignored a cancellation is cancelled again after this time. Before, it may clean up.
CANCEL_INTERVAL_S = 2.0
CANCEL_TIMEOUT_S = 20.0  # to end the relays of all tunnels, and to send the last messages


async def wait_forever() -> NoReturn:
    """Wait until this task is cancelled."""
    while True:
        await asyncio.Event().wait()


async def wait_for_signal(*signal_numbers: signal.Signals) -> None:
    """Wait for one of the signals. From now on, they do not end this process."""
    received = asyncio.Event()
    for signal_number in signal_numbers:
        asyncio.get_running_loop().add_signal_handler(signal_number, received.set)
    await received.wait()


async def run_until_first_end(*coroutines: Coroutine[Any, Any, Result]) -> Result:
    """Run coroutines at the same time until one of them ends. Cancel the others. Return the result of
    the first, or raise its error. If several end at once, the first argument takes precedence.
    """
    tasks = [asyncio.ensure_future(coroutine) for coroutine in coroutines]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        return next(task for task in tasks if task in done).result()
    finally:
        await cancel_tasks(tasks)


async def run_to_end(coroutine: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine to its end, even if this task is cancelled meanwhile. Then raise the
    cancellation.
    """
    task = asyncio.ensure_future(coroutine)
    was_cancelled = False
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError:
            was_cancelled = True
    task.result()
    if was_cancelled:
        raise asyncio.CancelledError


async def cancel_tasks(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel tasks, and wait until all have ended, even if this task is cancelled meanwhile. Stop
    waiting after CANCEL_TIMEOUT_S. Errors of the tasks are ignored.

    A task is cancelled repeatedly, because the client library may ignore a cancellation.
    """
    tasks = list(tasks)
    deadline_s = time.monotonic() + CANCEL_TIMEOUT_S
    was_cancelled = False
    pending = {task for task in tasks if not task.done()}
    while pending and time.monotonic() < deadline_s:
        for task in pending:
            task.cancel()
        try:
            _, pending = await asyncio.wait(pending, timeout=CANCEL_INTERVAL_S)
        except asyncio.CancelledError:
            was_cancelled = True
            pending = {task for task in pending if not task.done()}
    for task in tasks:
        if task.done() and not task.cancelled():
            task.exception()  # otherwise asyncio reports it
    if was_cancelled:
        raise asyncio.CancelledError
