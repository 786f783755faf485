"""What the function of NVIDIA's NeMo Agent Toolkit gives a model of an answer."""

from __future__ import annotations

from functools import partial

from nat.plugins.a2a.client.client_base import A2ABaseClient

PACKAGE = "nvidia-nat-a2a"


async def read(url: str, text: str, *, streaming: bool) -> str:
    async with A2ABaseClient(url, streaming=streaming) as client:
        events = [event async for event in client.send_message(text)]
        return str(client.extract_text_from_events(events))


READS = {
    "function": partial(read, streaming=True),
    "function, streaming=False": partial(read, streaming=False),
}
