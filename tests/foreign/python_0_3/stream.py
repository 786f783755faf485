"""The official Python client of 0.3 as it comes: stream.py URL BINDING send|subscribe TEXT|TASK.

Prints one JSON line for each event, and one for the error that ends the stream. Runs in an
environment of its own, with what requirements.txt locks.
"""

from __future__ import annotations

import asyncio
import json
import sys
import uuid
from typing import Any

import httpx
from a2a.client import A2ACardResolver, A2AClientError, ClientConfig, ClientFactory
from a2a.types import Message, Part, Role, Task, TaskIdParams, TextPart


def say(**told: Any) -> None:
    sys.stdout.write(f"{json.dumps(told)}\n")
    sys.stdout.flush()


def text(parts: list[Part] | None) -> str:
    return "".join(part.root.text for part in parts or [])


def tell(task: Task, update: Any) -> None:
    if update is None:
        say(kind="task", task=task.id, state=task.status.state.value)
    elif update.kind == "status-update":
        said = update.status.message
        say(kind=update.kind, state=update.status.state.value, says=text(said and said.parts))
    else:
        say(kind=update.kind, chunk=text(update.artifact.parts), last=update.last_chunk)


async def main(url: str, binding: str, operation: str, argument: str) -> None:
    async with httpx.AsyncClient(timeout=120, trust_env=False) as http:
        card = await A2ACardResolver(http, url).get_agent_card()
        config = ClientConfig(httpx_client=http, supported_transports=[binding])
        client = ClientFactory(config).create(card)
        if operation == "subscribe":
            events = client.resubscribe(TaskIdParams(id=argument))
        else:
            parts = [Part(root=TextPart(text=argument))]
            message = Message(message_id=uuid.uuid4().hex, role=Role.user, parts=parts)
            events = client.send_message(message)
        try:
            async for task, update in events:
                tell(task, update)
        except A2AClientError as error:
            say(kind="error", name=type(error).__name__, says=str(error))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
