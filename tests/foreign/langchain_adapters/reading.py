"""What the tool of a2a-langchain-adapters gives a model of an answer."""

from __future__ import annotations

from a2a_langchain_adapters import A2ARunnable

PACKAGE = "a2a-langchain-adapters"


async def read(url: str, text: str) -> str:
    async with await A2ARunnable.from_agent_url(url) as remote:
        return str(await remote.as_tool().ainvoke({"query": text}))


async def stream(url: str, text: str) -> str:
    async with await A2ARunnable.from_agent_url(url) as remote:
        return "".join([event.text or "" async for event in remote.astream(text)])


READS = {"as_tool": read, "astream": stream}
