"""What OpenVoiceOS says of an answer."""

from __future__ import annotations

import asyncio
from functools import partial

from ovos_a2a_solver.engine import A2AChatEngine
from ovos_plugin_manager.templates.agents import AgentMessage, MessageRole

PACKAGE = "ovos-a2a-solver-plugin"


def _said(url: str, text: str, *, streaming: bool) -> str:
    engine = A2AChatEngine({"agent_url": url, "streaming": streaming})
    return "".join(engine.stream_tokens([AgentMessage(MessageRole.USER, text)], session_id=text))


async def read(url: str, text: str, *, streaming: bool) -> str:
    return await asyncio.to_thread(_said, url, text, streaming=streaming)


READS = {
    "engine": partial(read, streaming=False),
    "engine, streaming: true": partial(read, streaming=True),
}
