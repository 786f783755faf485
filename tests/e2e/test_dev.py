from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

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
from tests.e2e.commands import environment, running
from tests.e2e.conftest import Served
from tests.e2e.received import events
from tests.support.a2a_calls import JSONRPC, REST, message


async def test_card_names_the_address_that_was_asked(dev: Served) -> None:
    """One URL for each binding and version: a client stays where it has found the card."""
    async with httpx.AsyncClient(trust_env=False) as http:
        for address in (dev.url, dev.url.replace("127.0.0.1", "localhost")):
            card = await A2ACardResolver(http, address).get_agent_card()
            urls = [interface.url.rstrip("/") for interface in card.supported_interfaces]
            assert urls == [address] * 4


@pytest.mark.parametrize("path", ["/.well-known/agent-card.json", "/tasks/unknown"])
async def test_requests_of_pages_are_refused(dev: Served, path: str) -> None:
    """Without authentication no page in a browser gets an answer, by whatever name it asks.

    The sentence says which header it was, and the way out.
    """
    port = dev.url.rpartition(":")[2]
    async with httpx.AsyncClient(base_url=dev.url, trust_env=False) as http:
        for name, value in (
            ("Origin", "https://evil.example"),
            ("Origin", "null"),
            ("Origin", "http://127.0.0.1:1"),
            ("Host", f"evil.example:{port}"),
            ("Host", "127.0.0.1:1"),
        ):
            response = await http.get(path, headers={name: value})
            assert response.status_code == 403
            says = response.json()["error"]["message"]
            assert says.startswith(f"The header {name} says '{value}'")
            assert dev.url in says
            assert "A2A_AUTH=api-key" in says
        own = {"Origin": dev.url, "Host": f"LOCALHOST:{port}"}
        assert (await http.get(path, headers=own)).status_code != 403


@pytest.mark.parametrize("binding", BINDINGS)
async def test_a_send_waits_for_the_task(dev: Served, binding: TransportProtocol) -> None:
    """The whole task is the answer."""
    async with client_at(dev.url, binding=binding, streaming=False) as client:
        task = await send(client, "hello")

    assert task.status.state == TaskState.TASK_STATE_COMPLETED
    assert artifact_text(task) == "You said: hello"


async def test_slow_agent_comes_back_as_the_working_task(dev: Served) -> None:
    """A send that outlasts the blocking limit returns the task, and the task goes on."""
    async with client_at(dev.url, streaming=False) as client:
        task = await send(client, "hold")
        assert task.status.state == TaskState.TASK_STATE_WORKING

        dev.release(task.id)
        ended = await settled(client, task.id)

    assert ended.status.state == TaskState.TASK_STATE_COMPLETED
    assert artifact_text(ended) == "You said: hold"


@pytest.mark.parametrize("binding", BINDINGS)
async def test_a_stream_comes_while_the_agent_works(
    dev: Served, binding: TransportProtocol
) -> None:
    """Events arrive before the agent is done: it goes on only after its status was seen."""
    seen: list[StreamResponse] = []
    async with client_at(dev.url, binding=binding) as client:
        async for event in stream(client, "hold"):
            seen.append(event)
            if event.status_update.status.message.parts:
                dev.release(event.status_update.task_id)

    chunks = [e.artifact_update for e in seen if e.HasField("artifact_update")]
    assert "".join(c.artifact.parts[0].text for c in chunks) == "You said: hold"
    assert last_state(seen) == TaskState.TASK_STATE_COMPLETED


async def test_cancel_ends_a_running_task(dev: Served) -> None:
    """A cancel interrupts the agent that another thread runs."""
    async with client_at(dev.url, streaming=False) as client:
        task = await send(client, "hold")
        canceled = await client.cancel_task(CancelTaskRequest(id=task.id))

    assert canceled.status.state == TaskState.TASK_STATE_CANCELED


async def test_subscription_opens_with_the_task_and_follows_it(dev: Served) -> None:
    """Another client's subscription begins with the task, and follows it to its end."""
    async with client_at(dev.url, streaming=False, polling=True) as sender:
        task = await send(sender, "hold")
    seen: list[StreamResponse] = []
    async with client_at(dev.url) as client:
        async for event in client.subscribe(SubscribeToTaskRequest(id=task.id)):
            seen.append(event)
            dev.release(task.id)

    assert seen[0].task.id == task.id
    assert last_state(seen) == TaskState.TASK_STATE_COMPLETED


async def test_the_command_follows_beside_a_running_stream(dev: Served) -> None:
    """`task ID --follow` prints what the stream shows, under its cursors, and ends with it."""
    env = environment()
    output = dev.folder / "follow.log"
    body = {"message": message("hold", messageId=uuid.uuid4().hex)}
    streamed: list[tuple[str, Any]] = []
    async with (
        httpx.AsyncClient(base_url=dev.url, trust_env=False, timeout=60) as http,
        http.stream("POST", "/message:stream", json=body, headers={"A2A-Version": "1.0"}) as answer,
    ):
        lines = answer.aiter_lines()
        streamed.append(await next_event(lines))
        task_id = streamed[0][1]["task"]["id"]
        arguments = ("task", task_id, "--follow", "--file", str(dev.file))
        with running(*arguments, env=env, output=output) as following:
            await asyncio.to_thread(following.wait_for, "holding")
            dev.release(task_id)
            while "COMPLETED" not in str(streamed[-1]):
                streamed.append(await next_event(lines))
            assert await asyncio.to_thread(following.process.wait, 30) == 0
            said = [json.loads(line) for line in following.said().splitlines()]
    followed = [(line.pop("id"), line) for line in said]
    assert [line["statusUpdate"]["status"]["state"] for _, line in followed[-1:]] == [
        "TASK_STATE_COMPLETED"
    ]
    assert followed[-len(streamed) + 1 :] == streamed[1:]


async def next_event(lines: AsyncIterator[str]) -> tuple[str, Any]:
    """The next event of a stream: its cursor, and what it says."""
    cursor = ""
    async for line in lines:
        if line.startswith("id:"):
            cursor = line[3:].strip()
        elif line.startswith("data:"):
            return cursor, json.loads(line[5:])
    pytest.fail("The stream has ended.")


@pytest.mark.parametrize("binding", [JSONRPC, REST])
async def test_a_stream_is_resumed_where_it_was_left(dev: Served, binding: str) -> None:
    """A client that comes back with the last id gets the rest: nothing twice, nothing left out."""
    params = {"message": message("hold", messageId=uuid.uuid4().hex)}
    before, after = [], []
    async with httpx.AsyncClient(base_url=dev.url, trust_env=False, timeout=60) as http:
        async with aclosing(events(http, binding, "SendStreamingMessage", params, {})) as stream:
            async for event in stream:
                before.append(event)
                if event.state == "TASK_STATE_WORKING":
                    break
        task_id, resumed = before[0].content["id"], {"Last-Event-ID": before[-1].id}
        async for event in events(http, binding, "SubscribeToTask", {"id": task_id}, resumed):
            after.append(event)
            dev.release(task_id)

    assert (after[0].kind, after[0].id) == ("task", before[-1].id)
    whole = [*before, *after[1:]]
    assert len({event.id for event in whole}) == len(whole)
    written = [event.content["artifact"] for event in whole if event.kind == "artifactUpdate"]
    assert "".join(p["text"] for a in written for p in a["parts"]) == "You said: hold"
    assert after[-1].state == "TASK_STATE_COMPLETED"


async def test_paused_task_goes_on_with_the_answer(dev: Served) -> None:
    """Input-required ends the turn; the next message of the task opens another one."""
    async with client_at(dev.url, streaming=False) as client:
        paused = await send(client, "ask")
        assert paused.status.state == TaskState.TASK_STATE_INPUT_REQUIRED

        resumed = await send(client, "this", task=paused)

    assert resumed.id == paused.id
    assert resumed.status.state == TaskState.TASK_STATE_COMPLETED
    assert artifact_text(resumed) == "resumed with this"
