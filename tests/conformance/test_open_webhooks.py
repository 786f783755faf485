"""The open webhooks of a caller are bounded."""

from __future__ import annotations

from typing import Any

import pytest

from a2a_serverless.settings import Settings
from a2a_serverless.storage.allowance import Allowance
from a2a_serverless.tasks.identity import Scope
from tests.conformance.conftest import ServedAgent
from tests.unit.push.world import COMPLETED, World

URL = "https://93.184.216.34/hook"
CREATE = "CreateTaskPushNotificationConfig"
DELETE = "DeleteTaskPushNotificationConfig"
MOST = 3

pytestmark = pytest.mark.usefixtures("worker")


@pytest.fixture
def settings() -> Settings:
    return Settings(
        auth="none", blocking_limit_s=4, push_queue="pushes.fifo", webhooks_per_caller=MOST
    )


async def test_one_webhook_too_many_is_refused_with_a_sentence(
    agent: ServedAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also beside a message, which opens no task then; one that is there is set again."""
    monkeypatch.setattr("a2a_serverless.storage.allowance._FULL_S", 0)
    task_id = (await agent.send("ask")).task["id"]
    for number in range(MOST):
        made = await agent.call(CREATE, {"taskId": task_id, "id": f"c{number}", "url": URL})
        assert not made.reason
    refused = await agent.call(CREATE, {"taskId": task_id, "id": "more", "url": URL})
    assert refused.reason == "UNSUPPORTED_OPERATION"
    assert f"You have {MOST} open webhooks" in refused.response.text
    hook = {"taskPushNotificationConfig": {"url": URL}}
    beside = await agent.send("ask", configuration=hook)
    assert beside.reason == "UNSUPPORTED_OPERATION"
    again = await agent.call(CREATE, {"taskId": task_id, "id": "c0", "url": f"{URL}2"})
    assert not again.reason
    assert not (await agent.call(DELETE, {"taskId": task_id, "id": "c1"})).reason
    made = await agent.call(CREATE, {"taskId": task_id, "id": "more", "url": URL})
    assert not made.reason


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
