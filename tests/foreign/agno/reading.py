"""What Agno's remote agent returns of an answer."""

from __future__ import annotations

from agno.agent import RemoteAgent

PACKAGE = "agno"


def _agent(url: str) -> RemoteAgent:
    return RemoteAgent(url, agent_id="remote", protocol="a2a", a2a_protocol="json-rpc")


async def read(url: str, text: str) -> str:
    return str((await _agent(url).arun(text)).content or "")


async def stream(url: str, text: str) -> str:
    events = [event async for event in _agent(url).arun(text, stream=True)]
    return "".join(str(getattr(event, "content", None) or "") for event in events)


READS = {"arun": read, "arun, stream=True": stream}
