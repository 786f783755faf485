"""What BeeAI's agent of a remote agent returns of an answer."""

from __future__ import annotations

from functools import partial

from beeai_framework.adapters.a2a.agents import A2AAgent
from beeai_framework.memory import UnconstrainedMemory

PACKAGE = "beeai-framework"


async def read(url: str, text: str, *, streaming: bool) -> str:
    agent = A2AAgent(url=url, memory=UnconstrainedMemory())
    return str((await agent.run(text, streaming=streaming)).last_message.text)


READS = {
    "run": partial(read, streaming=True),
    "run, streaming=False": partial(read, streaming=False),
}
