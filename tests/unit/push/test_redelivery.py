"""Webhooks that an operator has told again, by the deliverer and the sweeper that tell them."""

from __future__ import annotations

from collections.abc import AsyncIterator

from a2a_serverless_tools.operate.acts import Acts
from a2a_serverless_tools.operate.inspector import Inspector
from tests.unit.push.receivers import OK, Receiver, status
from tests.unit.push.world import COMPLETED, INPUT_REQUIRED, WORKING, World


class Desk:
    """A world of push, and an operator."""

    def __init__(self) -> None:
        # One attempt, and then it is given up: a receiver may fail for no time at all.
        self.world = World(push_retry_s=0.001)
        inspector = Inspector(self.world.storage, self.world.settings, place="memory")
        self.inspector, self.acts = inspector, Acts(inspector, by="pat")

    async def numbers(self, task_id: str) -> tuple[int | None, int, int]:
        """How many events were told, given up, and are owed."""
        (shown,) = await self.inspector.timelines(task_id)
        one = shown.webhooks[0]
        return one.told_count, one.given_up.count if one.given_up else 0, one.owed


async def test_what_was_given_up_is_told_again_in_order(receiver: Receiver) -> None:
    """With what was told in between, under the same ids; the three numbers say so at each time."""
    world = (desk := Desk()).world
    receiver.script = lambda _: status(404)
    head = await world.open(receiver.url(), states=[WORKING])
    await world.pump()
    assert await desk.numbers(head.task_id) == (0, 1, 0)
    receiver.script = lambda _: OK
    await world.say(head, INPUT_REQUIRED)
    await world.pump()
    assert await desk.numbers(head.task_id) == (1, 1, 0)
    receiver.script = lambda _: status(410)
    await world.say(head, WORKING, COMPLETED)
    await world.pump()
    assert await desk.numbers(head.task_id) == (1, 3, 0)
    receiver.script = lambda _: OK
    before = [request.event_id for request in receiver.requests]
    receiver.requests.clear()
    await desk.acts.on_one("redeliver", head.task_id, head.scope)
    assert await desk.numbers(head.task_id) == (0, 0, 4)
    await world.pump()
    assert receiver.states == ["WORKING", "INPUT_REQUIRED", "WORKING", "COMPLETED"]
    assert [request.event_id for request in receiver.requests] == before
    assert await desk.numbers(head.task_id) == (4, 0, 0)
    assert await world.storage.webhooks.count_open() == 0


async def test_a_url_that_refuses_no_more_is_called_again(receiver: Receiver) -> None:
    """Its ten refusals are forgotten: the task's other webhook with the URL goes on, too."""
    world = (desk := Desk()).world
    receiver.script = lambda _: status(404)
    head = await world.open(receiver.url(), receiver.url())
    await world.say(head, *([WORKING, INPUT_REQUIRED] * 5))
    await world.pump()
    assert (await world.push(head)).is_given_up  # by refusals of that whose job came first
    receiver.script = lambda _: OK
    await desk.acts.on_one("redeliver", head.task_id, head.scope)
    await world.run(seconds=7200, step=600)  # the host may be called again by then
    for push in (await world.push(head), await world.push(head, "hook-2")):
        assert (push.given_up, push.is_given_up, push.told_count) == (None, False, 10)


async def test_a_cursor_that_goes_back_stays_there(receiver: Receiver) -> None:
    """The event under way does not carry it beyond what was given up: all is told afterwards."""
    world = (desk := Desk()).world
    receiver.script = lambda _: status(404)
    head = await world.open(receiver.url(), states=[WORKING])
    await world.pump()
    receiver.script = lambda _: OK
    await world.say(head, INPUT_REQUIRED, COMPLETED)
    receiver.requests.clear()

    async def acting() -> AsyncIterator[bytes]:
        """Answer the first request after an operator has acted."""
        await desk.acts.on_one("redeliver", head.task_id, head.scope)
        yield OK

    receiver.script = lambda _: acting() if len(receiver.requests) == 1 else OK
    await world.pump()
    await world.run(seconds=5)
    assert receiver.states == ["INPUT_REQUIRED", "WORKING", "INPUT_REQUIRED", "COMPLETED"]
    assert await desk.numbers(head.task_id) == (3, 0, 0)
