"""Runs programs from PyPI that start the claude of their Agent SDK, one prompt after another, and
writes a JSON line for each.

Arguments: the program's name, and JSON {prompts, model, cwd}. A line is {text} or {error}.
"""

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable

Ask = Callable[[str], Awaitable[str]]


async def open_langchain(model: str, cwd: str) -> Ask:
    """Open a chat model of LangChain. Each request has the complete conversation."""
    from langchain_claude_cli import ChatClaudeCli
    from langchain_core.messages import BaseMessage, HumanMessage

    chat = ChatClaudeCli(model=model, cwd=cwd, builtin_tools="claude_code", auth="inherit")
    messages: list[BaseMessage] = []

    async def send_prompt(prompt: str) -> str:
        messages.append(HumanMessage(prompt))
        message = await chat.ainvoke(messages)
        messages.append(message)
        return str(message.text)

    return send_prompt


async def open_agent_framework(model: str, cwd: str) -> Ask:
    """Open Microsoft's Agent Framework with one session."""
    from agent_framework_claude import ClaudeAgent

    agent = ClaudeAgent(default_options={"model": model, "cwd": cwd})
    session = agent.create_session()

    async def send_prompt(prompt: str) -> str:
        return str((await agent.run(prompt, session=session)).text)

    return send_prompt


PROGRAMS = {"langchain-claude-cli": open_langchain, "agent-framework-claude": open_agent_framework}


async def main() -> None:
    request = json.loads(sys.argv[2])
    ask = await PROGRAMS[sys.argv[1]](request["model"], request["cwd"])
    for prompt in request["prompts"]:
        try:
            line = {"text": await ask(prompt)}
        except Exception as error:
            line = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(line), flush=True)  # noqa: T201 -- stdout is how this program is read


asyncio.run(main())
