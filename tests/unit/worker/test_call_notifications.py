"""Notifications of called agents: what wakes the turn, and what happens without one."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from a2a.server.agent_execution import AgentExecutor
from a2a.server.request_handlers import DefaultRequestHandler
from a2a.server.routes import create_jsonrpc_routes
from a2a.server.tasks import (
    BasePushNotificationSender,
    InMemoryPushNotificationConfigStore,
    InMemoryTaskStore,
)
from a2a.types import AgentCard
from starlette.applications import Starlette
from starlette.types import ASGIApp

from a2a_serverless.http.app import create_app
from a2a_serverless.worker import TaskContext, Worker
from a2a_serverless_tools.testing import AgentBench
from tests.conformance.sides import CARD, stock
from tests.support.peers import Peer
from tests.unit.worker.test_calls import go_on, text_of

PUSHING = AgentCard()
PUSHING.CopyFrom(CARD)
PUSHING.capabilities.push_notifications = True


class Mailbox(httpx.AsyncBaseTransport):
    """Keeps what a server posts, until a test delivers it."""

    def __init__(self) -> None:
        self.posted: list[httpx.Request] = []

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        await request.aread()
        self.posted.append(request)
        return httpx.Response(200)


class Buyer(Worker):
    """Calls an agent that works until it is told to go on."""

    def __init__(self, peer: Peer) -> None:
        self.agents = {"books": peer.remote()}
        self.starts = 0

    async def handle(self, ctx: TaskContext) -> None:
        self.starts += 1
        reply = await ctx.call_agent("books", "wait", timeout_s=7200)
        await ctx.complete(reply.text)


class Waiting(AgentBench):
    """A bench that calls a function while a turn sleeps; it may post, or let time pass."""

    def __init__(self, *given: Any, **settings: Any) -> None:
        super().__init__(*given, auth="none", **settings)
        app = create_app(self._settings, self._backends, CARD)
        self._app = httpx.ASGITransport(app)
        self.plan: list[Any] = []
        """What happens in the next sleeps: each returns a request to post, or None."""

    async def _wake(self, due_at: int) -> None:
        step = self.plan.pop(0) if self.plan else lambda: None
        given = step()
        if given is None:
            await super()._wake(due_at)
            return
        async with httpx.AsyncClient(transport=self._app) as client:
            answer = await client.post(given.url, content=given.content, headers=given.headers)
        assert answer.status_code == 200


@pytest.fixture
def mail() -> Mailbox:
    return Mailbox()


@pytest.fixture
def peer(mail: Mailbox) -> Iterator[Peer]:
    """A clerk behind the SDK's server, which posts its notifications into the mailbox."""

    @asynccontextmanager
    async def pushing(executor: AgentExecutor) -> AsyncIterator[ASGIApp]:
        store = InMemoryPushNotificationConfigStore()
        async with httpx.AsyncClient(transport=mail) as client:
            handler = DefaultRequestHandler(
                executor,
                InMemoryTaskStore(),
                PUSHING,
                push_config_store=store,
                push_sender=BasePushNotificationSender(client, store),
            )
            yield Starlette(routes=create_jsonrpc_routes(handler, "/"))
            await handler.aclose()

    with Peer(pushing, PUSHING) as peer:
        yield peer


def ended(peer: Peer, mail: Mailbox) -> httpx.Request:
    """Let the other task end; return the notification of that."""
    go_on(peer)
    while not (found := [each for each in mail.posted if b"COMPLETED" in each.content]):
        peer.states  # noqa: B018 - a request to the server, while its notification is on its way
    return found[-1]


def test_a_notification_wakes_the_turn(peer: Peer, mail: Mailbox) -> None:
    """It leaves its process for an hour at once, and goes on with the POST, after one look."""
    buyer = Buyer(peer)
    with Waiting(buyer) as bench:
        bench.plan = [lambda: ended(peer, mail)]
        assert text_of(bench.send("go")) == "waited"
        assert bench.clock.monotonic() < 30
    assert (buyer.starts, len(peer.clerk.said)) == (2, 1)
    assert len(requests(peer, "GetTask")) <= 9
    assert len(requests(peer, "CreateTaskPushNotificationConfig")) == 1


def requests(peer: Peer, method: str) -> list[httpx.Request]:
    """The requests of a method."""
    return [each for each in peer.requests if f'"{method}"'.encode() in each.content]


def forged(peer: Peer, state: str, **form: Any) -> httpx.Request:
    """Return a notification that is not true of the other agent's task."""
    asked = requests(peer, "CreateTaskPushNotificationConfig")[-1]
    url = str(json.loads(asked.content)["params"]["url"])
    content = f'{{"statusUpdate": {{"status": {{"state": "{state}"}}}}}}'
    return httpx.Request("POST", url, **{"content": content, **form})


def test_no_notification_is_believed(peer: Peer, mail: Mailbox) -> None:
    """One that says nothing of an end does nothing, and one that lies makes the turn look.

    A second one that lies wakes nobody. The turn looks itself, as without notifications: so the end
    is found in minutes, though its own notification is one too many, too.
    """
    buyer, starts = Buyer(peer), 1

    def is_unchanged() -> None:
        assert buyer.starts == starts

    def lies_again() -> httpx.Request:
        nonlocal starts
        starts = buyer.starts
        return forged(peer, "TASK_STATE_COMPLETED")

    with Waiting(buyer) as bench:
        bench.plan = [
            lambda: forged(peer, "TASK_STATE_WORKING"),
            is_unchanged,
            lambda: forged(peer, "TASK_STATE_COMPLETED"),
            lies_again,
            is_unchanged,
            lambda: ended(peer, mail),
        ]
        assert text_of(bench.send("go")) == "waited"
        assert 3600 < bench.clock.monotonic() < 3900
    assert bench.plan == []


@pytest.mark.parametrize(
    "form",
    [{"content": b"x" * 262_145}, {"headers": {"Content-Encoding": "gzip"}}],
    ids=["long", "compressed"],
)
def test_a_notification_that_cannot_be_read_wakes_the_turn(
    peer: Peer, form: dict[str, Any]
) -> None:
    """It may tell of an end, which the turn reads from the task."""

    def ends() -> httpx.Request:
        go_on(peer)
        return forged(peer, "?", **form)

    with Waiting(Buyer(peer)) as bench:
        bench.plan = [ends]
        assert text_of(bench.send("go")) == "waited"
        assert bench.clock.monotonic() < 60


@pytest.mark.parametrize("url", ["", "https://10.0.0.1", "https://agent.example"])
def test_where_nobody_can_be_notified_it_is_looked_for(url: str) -> None:
    """The caller's own address is unknown or private, or the card lies: the looks are the usual."""
    with Peer(stock, PUSHING) as peer, Waiting(Buyer(peer), public_url=url) as bench:
        bench.plan = [lambda: None, lambda: go_on(peer)]
        assert text_of(bench.send("go")) == "waited"
        assert 180 < bench.clock.monotonic() < 400
        asked = requests(peer, "CreateTaskPushNotificationConfig")
        assert bool(asked) is (url == "https://agent.example")
