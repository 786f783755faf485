from __future__ import annotations

import httpx
import pytest
from a2a.client import A2ACardResolver
from a2a.types import (
    CancelTaskRequest,
    StreamResponse,
    SubscribeToTaskRequest,
    TaskState,
)
from a2a.utils.constants import TransportProtocol

from tests.e2e.clients import (
    BINDINGS,
    artifact_text,
    client_at,
    last_state,
    send,
    settled,
    stream,
)
from tests.e2e.conftest import Doors


async def test_card_names_the_address_that_was_asked(dev: Doors) -> None:
    """One URL for each binding and version: a client stays where it has found the card."""
    async with httpx.AsyncClient(trust_env=False) as http:
        for address in (dev.api, dev.stream):
            card = await A2ACardResolver(http, address).get_agent_card()
            urls = [interface.url.rstrip("/") for interface in card.supported_interfaces]
            assert urls == [address] * 4


@pytest.mark.parametrize("binding", BINDINGS)
async def test_api_door_answers_a_send(dev: Doors, binding: TransportProtocol) -> None:
    """A send through API Gateway events and Mangum waits for the task and returns it whole."""
    async with client_at(dev.api, binding=binding, streaming=False) as client:
        task = await send(client, "hello")

    assert task.status.state == TaskState.TASK_STATE_COMPLETED
    assert artifact_text(task) == "You said: hello"


async def test_slow_agent_comes_back_as_the_working_task(dev: Doors) -> None:
    """A send that outlasts the blocking limit returns the task, and the task goes on."""
    async with client_at(dev.api, streaming=False) as client:
        task = await send(client, "hold")
        assert task.status.state == TaskState.TASK_STATE_WORKING

        dev.release(task.id)
        ended = await settled(client, task.id)

    assert ended.status.state == TaskState.TASK_STATE_COMPLETED
    assert artifact_text(ended) == "You said: hold"


@pytest.mark.parametrize("binding", BINDINGS)
async def test_stream_door_streams_while_the_agent_works(
    dev: Doors, binding: TransportProtocol
) -> None:
    """Events arrive before the agent is done: it goes on only after its status was seen."""
    seen: list[StreamResponse] = []
    async with client_at(dev.stream, binding=binding) as client:
        async for event in stream(client, "hold"):
            seen.append(event)
            if event.status_update.status.message.parts:
                dev.release(event.status_update.task_id)

    chunks = [e.artifact_update for e in seen if e.HasField("artifact_update")]
    assert "".join(c.artifact.parts[0].text for c in chunks) == "You said: hold"
    assert last_state(seen) == TaskState.TASK_STATE_COMPLETED


async def test_stream_through_the_api_door_ends_with_what_there_is(dev: Doors) -> None:
    """A buffered stream ends at the blocking limit, before the task does, without an error."""
    async with client_at(dev.api) as client:
        seen = [event async for event in stream(client, "hold")]

    assert last_state(seen) == TaskState.TASK_STATE_WORKING
    dev.release(seen[0].task.id)


async def test_cancel_ends_a_running_task(dev: Doors) -> None:
    """A cancel through one door interrupts the agent that another thread runs."""
    async with client_at(dev.api, streaming=False) as client:
        task = await send(client, "hold")
        canceled = await client.cancel_task(CancelTaskRequest(id=task.id))

    assert canceled.status.state == TaskState.TASK_STATE_CANCELED


async def test_subscription_opens_with_the_task_and_follows_it(dev: Doors) -> None:
    """A task that was sent through one door is followed at the other."""
    async with client_at(dev.api, streaming=False, polling=True) as sender:
        task = await send(sender, "hold")
    seen: list[StreamResponse] = []
    async with client_at(dev.stream) as client:
        async for event in client.subscribe(SubscribeToTaskRequest(id=task.id)):
            seen.append(event)
            dev.release(task.id)

    assert seen[0].task.id == task.id
    assert last_state(seen) == TaskState.TASK_STATE_COMPLETED


async def test_paused_task_goes_on_with_the_answer(dev: Doors) -> None:
    """Input-required ends the turn; the next message of the task opens another one."""
    async with client_at(dev.api, streaming=False) as client:
        paused = await send(client, "ask")
        assert paused.status.state == TaskState.TASK_STATE_INPUT_REQUIRED

        resumed = await send(client, "this", task=paused)

    assert resumed.id == paused.id
    assert resumed.status.state == TaskState.TASK_STATE_COMPLETED
    assert artifact_text(resumed) == "resumed with this"
