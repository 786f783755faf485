"""What a LangChain Runnable of a remote agent returns of an answer."""

from __future__ import annotations

from langchain_remote_a2a_agent import RemoteAgent

PACKAGE = "langchain-remote-a2a-agent"


def _agent(url: str) -> RemoteAgent:
    return RemoteAgent(name="remote", agent_card_url=f"{url}.well-known/agent-card.json")


async def read(url: str, text: str) -> str:
    return str((await _agent(url).ainvoke(text))["messages"][-1].content)


async def stream(url: str, text: str) -> str:
    chunks = [chunk async for chunk in _agent(url).astream(text)]
    return "".join(str(chunk["messages"][-1].content) for chunk in chunks)


READS = {"ainvoke": read, "astream": stream}
