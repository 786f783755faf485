"""Registering receivers: what is looked up and when, and how many; the key set, and how long.

What clients see of configurations, in each binding and of each function, is in
`tests/conformance`.
"""

from __future__ import annotations

import asyncio
import json
import queue
import socket
import threading
from typing import Any
from unittest.mock import AsyncMock, Mock

import pytest
from a2a.types import SendMessageRequest
from starlette.requests import Request

from a2a_serverless.errors import UnavailableError
from a2a_serverless.http.receivers import KeySet
from a2a_serverless.storage.allowance import Allowance
from a2a_serverless.tasks.identity import ANONYMOUS, Scope
from a2a_serverless.wiring import Backends
from tests.support.a2a_calls import LATER, Agent, message
from tests.support.clocks import ManualClock
from tests.support.memory import memory_keys
from tests.support.present import present
from tests.unit.push.world import COMPLETED, World

CREATE = "CreateTaskPushNotificationConfig"
PUBLIC = "93.184.216.34"
KEY = {"kty": "EC", "crv": "P-256", "x": "x", "y": "y", "kid": "first", "use": "sig"}


SETTINGS = {"push_queue": "pushes.fifo", "push_allowed_hosts": "receiver.vpc.example"}


@pytest.fixture
def may_answer() -> threading.Event:
    """Whether the name server answers."""
    event = threading.Event()
    event.set()
    return event


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch, may_answer: threading.Event) -> queue.Queue[str]:
    """What a name server is asked, which has public addresses."""
    asked = queue.Queue[str]()

    def getaddrinfo(host: str, port: int, *_: Any) -> list[Any]:
        asked.put(host)
        assert may_answer.wait(10)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (PUBLIC, port))]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    return asked


DIGEST = {"authentication": {"scheme": "Digest", "credentials": "x"}}


@pytest.mark.parametrize(
    ("method", "whose", "change"),
    [
        (CREATE, "nobody's", {}),
        (CREATE, "mine", DIGEST),
        (CREATE, "mine", {"url": "https://receiver.internal/"}),
        ("SendMessage", "nobody's", {"token": "two\nlines"}),
        ("SendMessage", "mine", {"taskId": "another"}),
        ("SendMessage", "mine", {"url": "http://receiver.example.com/"}),
    ],
)
async def test_no_name_is_looked_up_in_vain(
    agent: Agent, task_id: str, asked: Any, method: str, whose: str, change: dict[str, Any]
) -> None:
    """A webhook refused for another reason, or of a foreign task, asks no name server."""
    config = {"url": "https://receiver.example.com/hook", **change}
    to = task_id if whose == "mine" else "nobody"
    params: dict[str, Any] = {"taskId": to, **config}
    if method != CREATE:
        configuration = {**LATER, "taskPushNotificationConfig": config}
        params = {"message": message(taskId=to), "configuration": configuration}
    refused = await agent.call(method, params)
    foreign = {"TASK_NOT_FOUND"} if (method, whose) == (CREATE, "nobody's") else {"INVALID_PARAMS"}
    assert {refused.reason} == foreign
    assert asked.empty()


async def test_a_slow_name_server_stops_nobody_else(
    agent: Agent, task_id: str, asked: queue.Queue[str], may_answer: threading.Event
) -> None:
    """A receiver's host is resolved once; meanwhile the process answers other requests."""
    may_answer.clear()
    config = {"taskId": task_id, "url": "https://receiver.example.com/hook"}
    registering = asyncio.create_task(agent.call(CREATE, config))
    assert await asyncio.to_thread(asked.get, timeout=10) == "receiver.example.com"
    assert (await agent.call("GetTask", {"id": task_id})).task["id"] == task_id
    assert not registering.done()
    may_answer.set()
    assert not (await registering).reason
    assert asked.empty()


async def test_an_unknown_name(agent: Agent, task_id: str, monkeypatch: Any) -> None:
    """It is refused without an address of the network; a listed one may be known elsewhere only."""
    error = socket.gaierror(socket.EAI_NONAME, "asked 10.0.0.2")
    monkeypatch.setattr(socket, "getaddrinfo", Mock(side_effect=error))
    unknown = {"taskId": task_id, "url": "https://receiver.example.com/hook"}
    refused = await agent.call(CREATE, unknown)
    assert refused.reason == "INVALID_PARAMS"
    assert "10.0.0.2" not in refused.response.text
    listed = {"taskId": task_id, "url": "http://receiver.vpc.example/hook"}
    assert not (await agent.call(CREATE, listed)).reason


async def test_secrets_go_to_the_deliverer(agent: Agent, task_id: str, backends: Backends) -> None:
    """Token and credentials are stored in the configuration, and not in the task's log."""
    secrets = {"token": "t", "authentication": {"scheme": "Bearer", "credentials": "c"}}
    config = {"id": "mine", "url": f"https://{PUBLIC}/", **secrets}
    await agent.call(CREATE, {"taskId": task_id, **config})
    configuration = {**LATER, "taskPushNotificationConfig": config}
    inline = (await agent.send("ask", configuration=configuration)).task["id"]
    for told in (task_id, inline):
        storage = backends.storage.for_scope(ANONYMOUS)
        push = present(await storage.webhooks.get(told, "mine"))
        assert (push.config.token, push.config.authentication.credentials) == ("t", "c")
        request = present(await storage.read(told)).fold().opening(1)[0]
        assert isinstance(request, SendMessageRequest)
        assert not request.configuration.HasField("task_push_notification_config")


async def test_a_webhook_is_open_until_it_was_told_of_the_end() -> None:
    """All of a caller's tenants count; what was deleted, or has been told, does not."""
    world = World(push_events="ends")
    head = await world.open("https://10.1.2.3/a", "https://10.1.2.3/b")
    webhooks = world.storage.webhooks
    assert await webhooks.count_open() == 2
    await webhooks.delete(head.task_id, "hook-2")
    assert await webhooks.count_open() == 1
    elsewhere = world.storage.for_scope(Scope.of("tenant", "")).webhooks
    assert await elsewhere.count_open() == 1
    assert await world.storage.for_scope(Scope.of("", "bob")).webhooks.count_open() == 0
    await world.say(head, COMPLETED)
    assert await webhooks.count_open() == 1
    await world.pump()  # it is given up: the address is private
    assert await webhooks.count_open() == 0
    world.clock.advance(1)
    await world.open("https://10.1.2.3/c")
    world.clock.advance(world.storage.timing.ttl_s)
    assert await webhooks.count_open() == 0


async def test_most_webhooks_cost_no_request() -> None:
    """They are counted once for many; near the limit more often, and never beyond it."""
    opened, counts = 0, 0

    async def count() -> int:
        nonlocal counts
        counts += 1
        return opened

    bound = Allowance(1000)
    while await bound.admits("ann", 0, count):
        opened += 1
        if opened == 250:
            assert counts == 1
    assert opened == 1000
    assert counts < 40
    before: Any = counts
    assert not await bound.admits("ann", 0, count)
    assert counts == before
    assert await Allowance(0).admits("ann", 0, count)


async def test_how_long_a_key_set_is_served(monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty one is not kept; that of before serves for five minutes without its store."""
    clock = ManualClock()
    store = memory_keys(clock)
    served = KeySet(store, clock)
    assert await fetched(served) == (200, [], "no-store")
    await store.publish(KEY)
    clock.advance(1)
    assert await fetched(served) == (200, ["first"], "public, max-age=300")
    with monkeypatch.context() as patched:
        patched.setattr(store, "keys", AsyncMock(side_effect=UnavailableError))
        clock.advance(299)
        assert (await fetched(served))[1] == ["first"]
        clock.advance(1)
        assert (await fetched(served))[0] == 503
    clock.advance(1)
    assert (await fetched(served))[1] == ["first"]


async def fetched(served: KeySet) -> tuple[int, list[str], str]:
    """Status, the keys' ids, and Cache-Control."""
    response = await served.answer(Request({"type": "http"}))
    keys = json.loads(bytes(response.body)).get("keys", [])
    control = response.headers.get("Cache-Control", "")
    return response.status_code, [key["kid"] for key in keys], control
