"""The Claude Agent SDK for Python with a session store in memory. It needs only that SDK on its path.

The argument is a JSON object: claude PATH, cwd PATH, runs [prompt, environment]. Each run resumes
the session of the first run. A JSON line is written for each run, and a last one with the store: a
list of keys, each with its entries.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import claude_agent_sdk as sdk


class MemoryStore(sdk.SessionStore):
    """A store that shows its content."""

    def __init__(self) -> None:
        self.content: dict[tuple[str, ...], list[Any]] = {}

    async def append(self, key: Any, entries: list[Any]) -> None:
        parts = (key["project_key"], key["session_id"], key.get("subpath") or "")
        self.content.setdefault(parts, []).extend(entries)

    async def load(self, key: Any) -> list[Any] | None:
        parts = (key["project_key"], key["session_id"], key.get("subpath") or "")
        return self.content.get(parts)


def write_line(**fields: Any) -> None:
    print(json.dumps(fields), flush=True)  # noqa: T201 -- stdout is how this program is read


async def main() -> None:
    start = json.loads(sys.argv[1])
    store = MemoryStore()
    session_id = None
    for run in start["runs"]:
        stderr: list[str] = []
        options = sdk.ClaudeAgentOptions(
            cli_path=start["claude"],
            cwd=start["cwd"],
            env=run["environment"],
            session_store=store,
            resume=session_id,
            stderr=stderr.append,
        )
        async for message in sdk.query(prompt=run["prompt"], options=options):
            if isinstance(message, sdk.ResultMessage):
                session_id = message.session_id
                write_line(session=session_id, result=message.result, stderr=stderr)
    write_line(store=[[*key, entries] for key, entries in store.content.items()])


asyncio.run(main())
