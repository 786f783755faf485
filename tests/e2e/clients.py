"""The official client, at a URL and over a binding of the test's choice."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager
from typing import Any

import httpx
from a2a.client import A2ACardResolver, Client, ClientConfig, ClientFactory
from a2a.types import GetTaskRequest, Part, SendMessageRequest, StreamResponse, Task
from a2a.utils.constants import TransportProtocol

from a2a_serverless.tasks.head import TERMINAL
from tests.support.messages import message

SETTLE_S = 120.0


@asynccontextmanager
async def client_at(
    url: str,
    *,
    binding: TransportProtocol = TransportProtocol.JSONRPC,
    streaming: bool = True,
    polling: bool = False,
    headers: Mapping[str, str] | None = None,
) -> AsyncIterator[Client]:
    limits = httpx.Limits(max_connections=250)
    own: Any = {"trust_env": False, "timeout": SETTLE_S}
    async with httpx.AsyncClient(limits=limits, headers=headers, **own) as http:
        card = await A2ACardResolver(http, url).get_agent_card()
        config = ClientConfig(httpx_client=http, streaming=streaming, polling=polling)
        config.supported_protocol_bindings = [binding]
        yield ClientFactory(config).create(card)


async def send(client: Client, text: str | Part, **ids: Any) -> Task:
    """The task that a send answers with, or the last one that a stream shows; `ids`: as there."""
    events = [event async for event in stream(client, text, **ids)]
    return events[-1].task


async def stream(
    client: Client, text: str | Part, *, task: Task | None = None, context_id: str = ""
) -> AsyncIterator[StreamResponse]:
    """What the client gets for a message, a new task's or the next one of `task`."""
    said = message(text if isinstance(text, str) else "")
    if isinstance(text, Part):
        said.parts[0].CopyFrom(text)
    said.context_id = context_id
    if task is not None:
        said.task_id, said.context_id = task.id, task.context_id
    async for event in client.send_message(SendMessageRequest(message=said)):
        yield event


async def settled(client: Client, task_id: str, states: Collection[int] = tuple(TERMINAL)) -> Task:
    """The task when it is in one of `states`: when it has ended, if none is named."""
    deadline = time.monotonic() + SETTLE_S
    while True:
        task = await client.get_task(GetTaskRequest(id=task_id))
        if task.status.state in states:
            return task
        assert time.monotonic() < deadline, f"still {task.status}"
        await asyncio.sleep(0.1)


def artifact_text(task: Task) -> str:
    return "".join(part.text for artifact in task.artifacts for part in artifact.parts)
