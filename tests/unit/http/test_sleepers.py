"""A caller of whom as many turns sleep as may: what is refused, and what goes on."""

from __future__ import annotations

from typing import Any

import pytest
from a2a.server.agent_execution import RequestContext
from a2a.server.events import EventQueue
from a2a.server.tasks import TaskUpdater
from a2a.types import AgentCard
from pydantic import SecretStr

from a2a_serverless import steps
from a2a_serverless.http.app import create_app
from a2a_serverless.settings import Settings
from a2a_serverless.storage.endings import cancel_task
from a2a_serverless.tasks.identity import Scope
from a2a_serverless.wiring import memory_backends
from tests.support import workers
from tests.support.a2a_calls import LATER, Agent, Answer, client_of
from tests.support.clocks import ManualClock
from tests.support.present import present
from tests.support.workers import complete

MOST = 2
KEYS = {"alice": "alice-has-a-key-of-her-own", "bob": "bob-has-a-key-of-his-own-x"}


async def sleeping(context: RequestContext, queue: EventQueue) -> None:
    """An agent that asks if it is told to; else it sleeps for 20 days, and then answers."""
    if context.get_user_input() == "ask":
        await TaskUpdater(queue, context.task_id or "", context.context_id or "").requires_input()
        return
    await steps.sleep(20 * 86_400)
    await complete(context, queue)


class World:
    """An API with two callers, and a worker."""

    def __init__(self, card: AgentCard) -> None:
        self.clock, self.card = ManualClock(), card
        keys = SecretStr(",".join(f"{name}={key}" for name, key in KEYS.items()))
        most: dict[str, Any] = {"sleeping_turns_per_caller": MOST}
        self.settings = Settings(auth="api-key", api_keys=keys, **most)
        backends = memory_backends(self.settings, self.clock)
        agent = workers.Agent(sleeping)
        self.bench = workers.Bench(agent, backends=backends, clock=self.clock, **most)
        self.agent = self.serve()

    def serve(self) -> Agent:
        """Start a process of the API."""
        return Agent(client_of(create_app(self.settings, self.bench.backends, self.card)))

    async def send(self, user: str, text: str = "go", *, key: str = "", **fields: str) -> Answer:
        """Send a message; the worker runs its turn until it sleeps, or has asked."""
        headers = {"X-API-Key": KEYS[user]} | ({"Idempotency-Key": key} if key else {})
        answer = await self.agent.send(text, configuration=LATER, headers=headers, **fields)
        storage = self.bench.storage.for_scope(Scope.of("", user))
        while not answer.reason:
            head = present(await storage.head(answer.task["id"]))
            if head.turn.parked or head.is_over(head.turn.number):
                break
            await self.bench.work()
        self.clock.advance(3)  # what the API has read is too old
        return answer


@pytest.fixture
def world(card: AgentCard) -> World:
    return World(card)


async def test_a_message_is_refused_while_too_many_turns_sleep(world: World) -> None:
    """With the limit and the way out; another caller's, and a repeated one, are accepted."""
    first = await world.send("alice", key="once")
    for _ in range(MOST - 1):
        assert not (await world.send("alice")).reason
    refused = await world.send("alice")
    assert (refused.response.status_code, refused.reason) == (400, "UNSUPPORTED_OPERATION")
    assert f"{MOST} of your tasks sleep, and no more may: cancel one" in refused.response.text
    world.clock.advance(10 * 86_400)
    assert (await world.send("alice")).reason == "UNSUPPORTED_OPERATION"
    assert not (await world.send("bob")).reason
    again = await world.send("alice", key="once")  # as its answer was lost
    assert again.task["id"] == first.task["id"]
    storage = world.bench.storage.for_scope(Scope.of("", "alice"))
    assert await cancel_task(storage, present(await storage.head(first.task["id"])))
    assert not (await world.send("alice")).reason


async def test_a_process_that_gets_answers_alone_refuses(world: World) -> None:
    """An answer opens a turn like a first message, and counts like one."""
    asked = [await world.send("alice", "ask") for _ in range(2)]
    world.agent = world.serve()
    for _ in range(MOST - 1):
        assert not (await world.send("alice")).reason
    world.agent = world.serve()
    first = await world.send("alice", taskId=asked[0].task["id"], messageId="m-0")
    second = await world.send("alice", taskId=asked[1].task["id"], messageId="m-1")
    assert (first.reason, second.reason) == ("", "UNSUPPORTED_OPERATION")
    again = await world.send("alice", taskId=asked[0].task["id"], messageId="m-0")
    assert (again.reason, again.task["id"]) == ("", first.task["id"])
