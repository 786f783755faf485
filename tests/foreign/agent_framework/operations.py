"""A2AAgent of Microsoft's Agent Framework delegates: URL BINDING RECEIVER.

Prints one JSON line for each operation. Runs in the environment of its framework.
"""

from __future__ import annotations

import asyncio
import sys
import warnings
from typing import Any

import httpx
from a2a.client import A2ACardResolver
from agent_framework.a2a import A2AAgent

from tests.foreign.tried import tried


async def main(url: str, binding: str) -> None:
    async with httpx.AsyncClient(timeout=60, trust_env=False) as http:
        card = await A2ACardResolver(http, url).get_agent_card()
        agent = A2AAgent(agent_card=card, supported_protocol_bindings=[binding])

        async def said(text: str, **more: Any) -> str:
            return str((await agent.run(text, **more)).text)

        async def stream() -> str:
            return "".join([update.text async for update in agent.run("go", stream=True)])

        session = agent.create_session()
        async with agent:
            await tried("delegate", lambda: said("go"))
            await tried("last message", lambda: said("tell"))
            await tried("stream", stream)
            await tried("question", lambda: said("ask", session=session))
            await tried("answer", lambda: said("go", session=session))


if __name__ == "__main__":
    warnings.filterwarnings("ignore")
    asyncio.run(main(sys.argv[1], sys.argv[2]))
