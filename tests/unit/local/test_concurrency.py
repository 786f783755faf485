"""Open streams leave room for others in an account that answers so many requests at a time."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractContextManager, AsyncExitStack, asynccontextmanager
from itertools import islice
from typing import Any

import httpx
import pytest
from pydantic import SecretStr

from a2a_serverless.http.streams import _TOO_MANY
from a2a_serverless.settings import Settings
from a2a_serverless.wiring import memory_backends
from tests.support.asgi_streams import LiveResponse, ServerEvent, live
from tests.support.messages import storyteller
from tests.support.simulation import front as simulation_front
from tests.support.simulation.front import front
from tests.support.simulation.gateway import Gateway
from tests.support.template import Template

FEWER = 100
"""Requests that the account answers at a time: twice the streams that one caller may have."""
ONE, OTHER = "one", "other"
CARD = storyteller()


def key_of(caller: str) -> str:
    return f"the-secret-key-of-{caller}"


def deployed() -> AbstractContextManager[Gateway]:
    """The API, in one account. No worker: a task stays as it was sent.

    All streams are opened at once, and none is to fail on the limit of requests.
    """
    keys = ", ".join(f"{caller}={key_of(caller)}" for caller in (OTHER, ONE))
    settings = Settings(
        auth="api-key", api_keys=SecretStr(keys), blocking_limit_s=0.05, cancel_timeout_s=0.05
    )
    template = Template(parameters={"ThrottleRate": "2000"})
    return front(settings, memory_backends(settings), CARD, template=template)


def a_message() -> dict[str, Any]:
    parts = [{"text": "tell"}]
    return {"message": {"messageId": uuid.uuid4().hex, "role": "ROLE_USER", "parts": parts}}


class Caller:
    """A caller of the agent, over HTTP+JSON."""

    def __init__(self, gateway: Gateway, name: str) -> None:
        self._gateway = gateway
        self._headers = {"x-api-key": key_of(name), "a2a-version": "1.0"}
        transport = httpx.ASGITransport(gateway)
        self._http = httpx.AsyncClient(
            transport=transport, base_url="http://127.0.0.1", headers=self._headers
        )

    async def send(self) -> httpx.Response:
        return await self._http.post("/message:send", json=a_message())

    async def get(self, task_id: str) -> httpx.Response:
        return await self._http.get(f"/tasks/{task_id}")

    async def cancel(self, task_id: str) -> httpx.Response:
        return await self._http.post(f"/tasks/{task_id}:cancel", json={})

    def stream(self, task_id: str = "") -> Any:
        """A stream of a new message, or of a task."""
        target = f"/tasks/{task_id}:subscribe" if task_id else "/message:stream"
        body = {} if task_id else a_message()
        return live(self._gateway, "POST", target, body=body, headers=self._headers)


@asynccontextmanager
async def streams_of_one(gateway: Gateway) -> AsyncIterator[list[LiveResponse]]:
    """As many subscriptions of one caller to its task as the account answers."""
    caller = Caller(gateway, ONE)
    task_id = (await caller.send()).json()["task"]["id"]
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(caller.stream(task_id)) for _ in range(FEWER)]


async def ended(streams: Sequence[LiveResponse], count: int) -> None:
    """Wait until so many of the streams have ended: resumable, and with a word about why.

    All others are open.
    """

    async def read(stream: LiveResponse) -> tuple[list[ServerEvent], list[str]]:
        return [event async for event in stream.events()], stream.comments

    reading = [asyncio.create_task(read(stream)) for stream in streams]
    for next_one in islice(asyncio.as_completed(reading, timeout=30), count):
        events, comments = await next_one
        assert [("task" in event.data, bool(event.id)) for event in events] == [(True, True)]
        assert _TOO_MANY in comments
    assert sum(task.done() for task in reading) == count
    for task in reading:
        task.cancel()
    await asyncio.wait(reading)


async def check_that_another_is_answered(gateway: Gateway) -> None:
    """Another caller sends, gets and cancels its task."""
    other = Caller(gateway, OTHER)
    sent = await other.send()
    assert sent.status_code == 200, sent.text
    task_id = sent.json()["task"]["id"]
    assert (await other.get(task_id)).json()["id"] == task_id
    canceled = (await other.cancel(task_id)).json()
    assert canceled["status"]["state"] == "TASK_STATE_CANCELED"


async def test_streams_of_one_caller_stop_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """A caller that opens all keeps as many as one may have: all others are answered."""
    monkeypatch.setattr(simulation_front, "ACCOUNT_CONCURRENCY", FEWER)
    with deployed() as gateway:
        async with streams_of_one(gateway) as streams:
            await ended(streams, FEWER - Settings().streams_per_caller)
            await check_that_another_is_answered(gateway)
