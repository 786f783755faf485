"""Registering receivers: what is looked up and when; the key set and who keeps it for how long.

What clients see of configurations, in each binding and of each function, is in
`tests/conformance`.
"""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Mapping
from typing import Any

import pytest
from a2a.types import SendMessageRequest
from starlette.requests import Request

from a2a_serverless.errors import UnavailableError
from a2a_serverless.http.receivers import KeySet
from a2a_serverless.settings import Settings
from a2a_serverless.storage.dictionaries import MemoryTable
from a2a_serverless.storage.keys import KeyStore, PublishedKey
from a2a_serverless.storage.layout import INDEXES
from a2a_serverless.tasks.identity import ANONYMOUS
from a2a_serverless.wiring import Backends
from tests.support.a2a_calls import Agent, message
from tests.support.clocks import ManualClock
from tests.support.memory import memory_keys

CREATE = "CreateTaskPushNotificationConfig"
PUBLIC = "93.184.216.34"
KEY = {"kty": "EC", "crv": "P-256", "x": "x", "y": "y", "kid": "first", "use": "sig"}


@pytest.fixture
def settings() -> Settings:
    return Settings(auth="none", blocking_limit_s=20, push_queue="pushes.fifo")


class Resolver:
    """A name server that answers with a public address when it is let."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.is_asked = threading.Event()
        self.may_answer = threading.Event()
        self.may_answer.set()

    def getaddrinfo(self, host: str, port: int, *_: Any) -> list[Any]:
        self.asked.append(host)
        self.is_asked.set()
        assert self.may_answer.wait(10)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (PUBLIC, port))]


@pytest.fixture
def resolver(monkeypatch: pytest.MonkeyPatch) -> Resolver:
    resolver = Resolver()
    monkeypatch.setattr(socket, "getaddrinfo", resolver.getaddrinfo)
    return resolver


@pytest.fixture
async def task_id(agent: Agent) -> str:
    sent = await agent.send("ask", configuration={"returnImmediately": True})
    return str(sent.task["id"])


async def test_a_name_is_looked_up(agent: Agent, task_id: str, resolver: Resolver) -> None:
    """A receiver's host is resolved when it is registered, once."""
    config = {"taskId": task_id, "url": "https://receiver.example.com/hook"}
    assert not (await agent.call(CREATE, config)).reason
    assert resolver.asked == ["receiver.example.com"]


@pytest.mark.parametrize(
    ("whose", "change"),
    [
        ("nobody's", {}),
        ("mine", {"authentication": {"scheme": "Digest", "credentials": "x"}}),
        ("mine", {"url": "https://receiver.internal/"}),
    ],
)
async def test_no_name_is_looked_up_in_vain(
    agent: Agent, task_id: str, resolver: Resolver, whose: str, change: Mapping[str, Any]
) -> None:
    """A configuration refused for another reason, or of a foreign task, asks no name server."""
    config = {"url": "https://receiver.example.com/hook", **change}
    refused = await agent.call(CREATE, {"taskId": task_id if whose == "mine" else "t", **config})
    assert refused.reason in {"TASK_NOT_FOUND", "INVALID_PARAMS"}
    assert resolver.asked == []


@pytest.mark.parametrize(
    ("whose", "change", "reason"),
    [
        ("nobody's", {"token": "two\nlines"}, "INVALID_PARAMS"),
        ("mine", {"taskId": "another"}, "INVALID_PARAMS"),
        ("mine", {"url": "http://receiver.example.com/"}, "INVALID_PARAMS"),
    ],
)
async def test_no_name_is_looked_up_for_a_message_in_vain(
    agent: Agent,
    task_id: str,
    resolver: Resolver,
    whose: str,
    change: Mapping[str, Any],
    reason: str,
) -> None:
    """A message that is refused for another reason asks no name server for its webhook."""
    config = {"url": "https://receiver.example.com/hook", **change}
    configuration = {"returnImmediately": True, "taskPushNotificationConfig": config}
    addressed = message(taskId=task_id if whose == "mine" else "nobody")
    sent = {"message": addressed, "configuration": configuration}
    for method in ("SendMessage", "SendStreamingMessage"):
        assert (await agent.call(method, sent)).reason == reason
    assert resolver.asked == []


async def test_a_slow_name_server_stops_nobody_else(
    agent: Agent, task_id: str, resolver: Resolver
) -> None:
    """While it is waited for, the process answers other requests."""
    resolver.may_answer.clear()
    config = {"taskId": task_id, "url": "https://receiver.example.com/hook"}
    registering = asyncio.create_task(agent.call(CREATE, config))
    await asyncio.to_thread(resolver.is_asked.wait, 10)
    assert (await agent.call("GetTask", {"id": task_id})).task["id"] == task_id
    assert not registering.done()
    resolver.may_answer.set()
    assert not (await registering).reason


class TestAnUnknownName:
    @pytest.fixture
    def settings(self) -> Settings:
        return Settings(
            auth="none", push_queue="pushes.fifo", push_allowed_hosts="receiver.vpc.example"
        )

    @pytest.fixture(autouse=True)
    def nobody_knows(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def unknown(*_: Any, **__: Any) -> list[Any]:
            raise socket.gaierror(socket.EAI_NONAME, "asked 10.0.0.2")

        monkeypatch.setattr(socket, "getaddrinfo", unknown)

    async def test_it_is_refused(self, agent: Agent, task_id: str) -> None:
        """An unknown name is refused in a sentence without any address of the network."""
        config = {"taskId": task_id, "url": "https://receiver.example.com/hook"}
        refused = await agent.call(CREATE, config)
        assert refused.reason == "INVALID_PARAMS"
        assert "10.0.0.2" not in refused.response.text

    async def test_the_deployment_vouches_for_it(self, agent: Agent, task_id: str) -> None:
        """A listed name may be known only where notifications are sent from."""
        config = {"taskId": task_id, "url": "http://receiver.vpc.example/hook"}
        assert not (await agent.call(CREATE, config)).reason


async def test_secrets_are_kept_for_the_deliverer(
    agent: Agent, task_id: str, backends: Backends
) -> None:
    """Token and credentials are stored in the configuration, and not in the task's log."""
    secrets = {"token": "t", "authentication": {"scheme": "Bearer", "credentials": "c"}}
    config = {"id": "mine", "url": f"https://{PUBLIC}/", **secrets}
    await agent.call(CREATE, {"taskId": task_id, **config})
    configuration = {"returnImmediately": True, "taskPushNotificationConfig": config}
    inline = (await agent.send("ask", configuration=configuration)).task["id"]
    for told in (task_id, inline):
        push = await backends.storage.for_scope(ANONYMOUS).webhooks.get(told, "mine")
        assert push is not None
        assert (push.config.token, push.config.authentication.credentials) == ("t", "c")
        log = await backends.storage.for_scope(ANONYMOUS).read(told)
        assert log is not None
        request = log.fold().opening(1)[0]
        assert isinstance(request, SendMessageRequest)
        assert not request.configuration.HasField("task_push_notification_config")


class TestKeySet:
    @pytest.fixture
    def clock(self) -> ManualClock:
        return ManualClock()

    @pytest.fixture
    def store(self, clock: ManualClock) -> KeyStore:
        return memory_keys(clock)

    async def test_an_empty_set_is_not_kept(self, store: KeyStore, clock: ManualClock) -> None:
        """An empty set is not cached, so that the first key is found as soon as it is published."""
        served = KeySet(store, clock)
        assert await fetched(served) == (200, [], "no-store")
        await store.publish(KEY)
        clock.advance(1)
        assert await fetched(served) == (200, ["first"], "public, max-age=300")

    async def test_a_store_that_does_not_answer(self, clock: ManualClock) -> None:
        """The set of before serves for five minutes, then nothing does: it might miss a key."""
        store = Unreliable()
        served = KeySet(store, clock)
        assert (await fetched(served))[1] == ["first"]
        store.answers = False
        clock.advance(299)
        assert (await fetched(served))[1] == ["first"]
        clock.advance(1)
        assert (await fetched(served))[0] == 503
        store.answers = True
        clock.advance(1)
        assert (await fetched(served))[1] == ["first"]


class Unreliable(KeyStore):
    """Has one key, and says so or not."""

    answers = True

    def __init__(self) -> None:
        super().__init__(MemoryTable(INDEXES))

    async def keys(self) -> list[PublishedKey]:
        if not self.answers:
            raise UnavailableError
        return [PublishedKey(jwk=KEY, published_at=0, expires_at=1)]


async def fetched(served: KeySet) -> tuple[int, list[str], str]:
    """Status, the keys' ids, and Cache-Control."""
    response = await served.answer(Request({"type": "http"}))
    keys = json.loads(bytes(response.body)).get("keys", [])
    control = response.headers.get("Cache-Control", "")
    return response.status_code, [key["kid"] for key in keys], control
