"""What Microsoft's Agent Framework shows of a remote agent's answer."""

from __future__ import annotations

from functools import partial

import httpx
from a2a.client import A2ACardResolver
from agent_framework.a2a import A2AAgent

PACKAGE = "agent-framework-a2a"


async def read(url: str, text: str, *, streams: bool) -> str:
    async with httpx.AsyncClient(timeout=60, trust_env=False) as http:
        card = await A2ACardResolver(http, url).get_agent_card()
        async with A2AAgent(agent_card=card) as agent:
            if streams:
                return "".join([update.text async for update in agent.run(text, stream=True)])
            return str((await agent.run(text)).text)


READS = {"run()": partial(read, streams=False), "run(stream=True)": partial(read, streams=True)}
