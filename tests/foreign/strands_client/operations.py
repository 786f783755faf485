"""Strands' agent of a remote agent: URL BINDING RECEIVER, of which URL is read.

Prints one JSON line for each operation. Runs in the environment of its framework.
"""

from __future__ import annotations

import asyncio
import sys
import warnings

from strands.agent.a2a_agent import A2AAgent

from tests.foreign.tried import tried


async def main(url: str) -> None:
    agent = A2AAgent(endpoint=url)

    async def delegate() -> str:
        return str(await agent.invoke_async("go")).strip()

    async def stream() -> str:
        events = [event async for event in agent.stream_async("go")]
        return str(events[-1]["result"]).strip()

    async def ask() -> str:
        return str(await agent.invoke_async("ask")).strip()

    await tried("delegate", delegate)
    await tried("stream", stream)
    await tried("question", ask)


if __name__ == "__main__":
    warnings.filterwarnings("ignore")
    asyncio.run(main(sys.argv[1]))
