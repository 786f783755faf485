"""What NovaOS's client gives of an answer: artifacts, or else the status, as its pages read it."""

from __future__ import annotations

from typing import Any

from novaos_client_sdk.client import Client

PACKAGE = "novaos-agent-sdk"


async def read(url: str, text: str) -> str:
    async with Client(url) as client:
        answer: Any = await client.send_message(text)
        return _text(answer)


async def stream(url: str, text: str) -> str:
    async with Client(url) as client:
        frames = [frame async for frame in client.send_streaming_message(text)]
    return "".join(_text(frame) for frame in frames)


def _text(answer: Any) -> str:
    if hasattr(answer, "artifact"):
        return str(answer.artifact.text)
    if not hasattr(answer, "status"):
        return str(answer.text)
    if texts := [artifact.text for artifact in getattr(answer, "artifacts", None) or ()]:
        return "".join(texts)
    return str(answer.status.message.text) if answer.status.message else ""


READS = {"send_message": read, "send_streaming_message": stream}
