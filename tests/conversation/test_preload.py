"""Modules are imported beside a conversation and do not block it."""

import anyio
import pytest

from shim.conversation.preload import preload_conversation_modules


@pytest.mark.anyio
async def test_preloading_pauses_also_if_everything_is_imported(monkeypatch):
    """A host imports its modules when it starts. Later only the files are looked up."""
    await preload_conversation_modules()
    pauses, sleep = 0, anyio.sleep

    async def sleep_and_count(delay_s):
        nonlocal pauses
        pauses += 1
        await sleep(delay_s)

    monkeypatch.setattr(anyio, "sleep", sleep_and_count)
    await preload_conversation_modules()
    assert pauses > 100
