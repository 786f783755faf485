"""The agent through the official client, as it will be deployed. These hold for any agent."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path

import httpx
from a2a.client import A2ACardResolver, ClientConfig, ClientFactory
from a2a.helpers import new_text_message
from a2a.types import GetTaskRequest, Role, SendMessageRequest, Task, TaskState

CARD = json.loads((Path(__file__).parents[1] / "functions/api/agent_card.json").read_text())
EXAMPLE = next(iter(CARD["skills"][0].get("examples", [])), "Hello")
GOOD = TaskState.TASK_STATE_COMPLETED, TaskState.TASK_STATE_INPUT_REQUIRED
AT_WORK = TaskState.TASK_STATE_SUBMITTED, TaskState.TASK_STATE_WORKING
LIMIT_S = 600
"""The longest work on the example: a server answers earlier, and the task goes on."""


async def ask(url: str, text: str, *, streaming: bool) -> tuple[int, Task]:
    """Send a message; return how many events came, and the task as its work has left it."""
    async with httpx.AsyncClient(timeout=60, trust_env=False) as http:
        card = await A2ACardResolver(http, url).get_agent_card()
        client = ClientFactory(ClientConfig(httpx_client=http, streaming=streaming)).create(card)
        request = SendMessageRequest(message=new_text_message(text, role=Role.ROLE_USER))
        events = [event async for event in client.send_message(request)]
        named = (event.task.id or event.status_update.task_id for event in events)
        stored = GetTaskRequest(id=next(filter(None, named)))
        until = time.monotonic() + LIMIT_S
        while (task := await client.get_task(stored)).status.state in AT_WORK:
            assert time.monotonic() < until, (
                f"The agent works on {text!r} for more than {LIMIT_S} s: let the card's first"
                " example be a short one, or raise LIMIT_S in this file."
            )
            await asyncio.sleep(1)
        return len(events), task


def check_end(task: Task) -> None:
    """Say how the task has ended, if it is neither done nor asks back."""
    state = TaskState.Name(task.status.state).removeprefix("TASK_STATE_").lower()
    said = " ".join(part.text for part in task.status.message.parts)
    assert task.status.state in GOOD, (
        f"The card's first example, {EXAMPLE!r}, has ended as {state}: {said or 'without a word'}"
    )


def test_clients_see_the_card(url: str) -> None:
    """The agent shows the card of the project, with addresses at which it is reached."""
    shown = httpx.get(f"{url}/.well-known/agent-card.json", trust_env=False).json()
    assert shown["name"] == CARD["name"]
    assert [skill["id"] for skill in shown["skills"]] == [skill["id"] for skill in CARD["skills"]]
    assert all(way["url"].startswith(url) for way in shown["supportedInterfaces"])


def test_an_example_of_the_card_is_streamed(url: str) -> None:
    """The first example is answered, or asked back about, in a stream of events."""
    events, task = asyncio.run(ask(url, EXAMPLE, streaming=True))
    assert events > 1
    check_end(task)


def test_an_example_of_the_card_is_answered(url: str) -> None:
    """A client that does not stream gets the same, in one answer."""
    events, task = asyncio.run(ask(url, EXAMPLE, streaming=False))
    assert events == 1
    check_end(task)
