"""What Strands' agent of a remote agent returns of an answer."""

from __future__ import annotations

from strands.agent.a2a_agent import A2AAgent

PACKAGE = "strands-agents"


async def read(url: str, text: str) -> str:
    return str(await A2AAgent(endpoint=url).invoke_async(text)).strip()


async def stream(url: str, text: str) -> str:
    events = [event async for event in A2AAgent(endpoint=url).stream_async(text)]
    return str(events[-1]["result"]).strip()


READS = {"invoke_async": read, "stream_async": stream}
