"""What fast-agent's agent of a remote agent returns of an answer."""

from __future__ import annotations

from functools import partial

from fast_agent.a2a.config import A2AAgentConfig
from fast_agent.a2a.remote_agent import A2ARemoteAgent
from fast_agent.agents.agent_types import AgentConfig

PACKAGE = "fast-agent-mcp"


async def read(url: str, text: str, *, streaming: bool) -> str:
    agent = A2ARemoteAgent(AgentConfig("remote"), A2AAgentConfig(url, streaming=streaming))
    await agent.initialize()
    try:
        return str(await agent.send(text))
    finally:
        await agent.shutdown()


READS = {
    "send": partial(read, streaming=True),
    "send, streaming=False": partial(read, streaming=False),
}
