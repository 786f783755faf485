"""The agent through the official client, as it will be deployed. These hold for any agent."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from pathlib import Path

import httpx
from a2a.client import A2ACardResolver, ClientConfig, ClientFactory
from a2a.helpers import new_text_message
from a2a.types import (
    CancelTaskRequest,
    GetTaskRequest,
    Role,
    SendMessageRequest,
    Task,
    TaskState,
)

CARD = json.loads((Path(__file__).parents[1] / "functions/api/agent_card.json").read_text())
EXAMPLE = next(iter(CARD["skills"][0].get("examples", [])), "Hello")
GOOD = TaskState.TASK_STATE_COMPLETED, TaskState.TASK_STATE_INPUT_REQUIRED
AT_WORK = TaskState.TASK_STATE_SUBMITTED, TaskState.TASK_STATE_WORKING
PATIENCE_S = 60
"""How long a stream is read. An example that takes longer is at work then, and is canceled."""


async def ask(url: str, text: str, *, streaming: bool) -> tuple[int, Task]:
    """Send a message; return how many events came, and the task as it was then."""
    async with httpx.AsyncClient(timeout=2 * PATIENCE_S, trust_env=False) as http:
        card = await A2ACardResolver(http, url).get_agent_card()
        client = ClientFactory(ClientConfig(httpx_client=http, streaming=streaming)).create(card)
        request = SendMessageRequest(message=new_text_message(text, role=Role.ROLE_USER))
        events = []
        with suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE_S if streaming else None):
                async for event in client.send_message(request):
                    events.append(event)  # noqa: PERF401 - they count when the time is up
        named = (event.task.id or event.status_update.task_id for event in events)
        task = await client.get_task(GetTaskRequest(id=next(filter(None, named))))
        if task.status.state in AT_WORK:
            await client.cancel_task(CancelTaskRequest(id=task.id))
        return len(events), task


def check_end(task: Task) -> None:
    """Say how the task has ended, if it is neither done nor at work, nor asks back."""
    state = TaskState.Name(task.status.state).removeprefix("TASK_STATE_").lower()
    said = " ".join(part.text for part in task.status.message.parts)
    assert task.status.state in (*GOOD, *AT_WORK), (
        f"The card's first example, {EXAMPLE!r}, has ended as {state}: {said or 'without a word'}"
    )


def test_clients_see_the_card(url: str) -> None:
    """The agent shows the card of the project, with addresses at which it is reached."""
    shown = httpx.get(f"{url}/.well-known/agent-card.json", trust_env=False).json()
    assert shown["name"] == CARD["name"]
    assert [skill["id"] for skill in shown["skills"]] == [skill["id"] for skill in CARD["skills"]]
    assert all(way["url"].startswith(url) for way in shown["supportedInterfaces"])


def test_an_example_of_the_card_is_streamed(url: str) -> None:
    """The first example is worked on, answered or asked back about, in a stream of events."""
    events, task = asyncio.run(ask(url, EXAMPLE, streaming=True))
    assert events > 1 or task.status.state in AT_WORK
    check_end(task)


def test_an_example_of_the_card_is_answered(url: str) -> None:
    """A client that does not stream gets the same, in one answer."""
    events, task = asyncio.run(ask(url, EXAMPLE, streaming=False))
    assert events == 1
    check_end(task)
