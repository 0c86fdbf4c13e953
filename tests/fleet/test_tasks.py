"""The end of tasks that ignore cancellations, as tasks of the client library do."""

import asyncio

from shim.fleet import tasks
from shim.fleet.tasks import cancel_tasks, run_until_first_end

WAIT_SECONDS = 30


async def ignore_cancellations(count, ended):
    """Wait forever. Ignore this number of cancellations."""
    for _ in range(count):
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            pass
    try:
        await asyncio.Event().wait()
    finally:
        ended.append(count)


async def return_soon():
    await asyncio.sleep(0.01)
    return "first"


def test_tasks_that_ignore_cancellations_end_with_the_first_task(monkeypatch):
    monkeypatch.setattr(tasks, "CANCEL_INTERVAL_S", 0.01)
    ended = []

    async def run_check():
        others = (ignore_cancellations(count, ended) for count in range(4))
        async with asyncio.timeout(WAIT_SECONDS):
            result = await run_until_first_end(return_soon(), *others)
        assert len(asyncio.all_tasks()) == 1
        return result

    assert asyncio.run(run_check()) == "first"
    assert sorted(ended) == [0, 1, 2, 3]


def test_all_tasks_end_before_the_cancellation_of_their_waiter():
    ended = []

    async def run_check():
        task = asyncio.create_task(ignore_cancellations(2, ended))
        await asyncio.sleep(0)
        waiter = asyncio.create_task(cancel_tasks([task]))
        for _ in range(2):
            await asyncio.sleep(0.01)
            assert not task.done()
            waiter.cancel()
        async with asyncio.timeout(WAIT_SECONDS):
            await asyncio.wait([waiter])
        assert waiter.cancelled()
        assert ended == [2]

    asyncio.run(run_check())
