"""What AG2's agent returns of an answer of the remote agent that is its model."""

from __future__ import annotations

from functools import partial

from ag2 import Agent
from ag2.a2a import A2AConfig

PACKAGE = "ag2"


async def read(url: str, text: str, *, streaming: bool) -> str:
    agent = Agent("remote", config=A2AConfig(url, streaming=streaming))
    return str((await agent.ask(text)).body)


READS = {
    "ask": partial(read, streaming=True),
    "ask, streaming=False": partial(read, streaming=False),
}
