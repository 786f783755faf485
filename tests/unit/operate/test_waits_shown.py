"""What is shown of a turn whose code waits for something else than its client."""

from __future__ import annotations

from typing import cast

from a2a_serverless.storage.signals import signal
from a2a_serverless.tasks.head import Head
from a2a_serverless.tasks.waits import Signal, open_waits
from a2a_serverless.worker import Remote, Retry, TaskContext
from a2a_serverless.worker.context import active_turn
from a2a_serverless_tools.operate.timeline import Timeline
from a2a_serverless_tools.operate.view import facts
from a2a_serverless_tools.testing import Outcome, StandIn
from tests.support.clocks import ManualClock
from tests.support.present import present
from tests.unit.operate.timelines import timeline_of
from tests.unit.worker.test_steps import Handle, Stand


class Desk:
    """The worker of a script, and an operator who looks at its task."""

    def __init__(self, handle: Handle, clock: ManualClock | None = None) -> None:
        self.stand = Stand(handle, clock=clock, public_url="https://agent.example")

    async def begin(self) -> Timeline:
        await self.stand.send()
        return await self.seen(await self.stand.work())

    async def seen(self, head: Head) -> Timeline:
        records = await self.stand.bench.records(head)
        return timeline_of(head, records, now_ms=self.stand.clock.now_ms())


def waits(shown: Timeline) -> list[str]:
    return [fact.text for fact in facts(shown) if fact.name == "waits"]


async def test_a_callback_and_a_poll_are_shown_until_they_are_over() -> None:
    """With their keys and times, and what ends them."""

    async def handle(ctx: TaskContext) -> None:
        callback = await ctx.callback("paid", key="a")
        poll = ctx.poll("export", lambda: None, every_s=300, timeout_s=7200)
        await ctx.gather(callback.wait(timeout_s=3600), poll)

    desk = Desk(handle)
    shown = await desk.begin()
    callback, poll = waits(shown)
    assert callback.startswith("for the callback paid [a] until 20")
    ends, since = callback.split("; ")[1:]
    assert ends == "a POST to its address ends that, or `a2a-serverless tasks signal`"
    assert since.startswith("waits since 20")
    assert poll.startswith("for the poll export, which looks again at 20")
    assert "; waits since 20" in poll
    assert "; gives up at 20" in poll
    storage = desk.stand.bench.storage
    log = present(await storage.read(shown.head.task_id))
    where = (shown.head.task_id, shown.head.incarnation)
    step_id = next(iter(open_waits(log)))
    await signal(storage, *where, turn=1, step_id=step_id, given=Signal(b"7"))
    assert [each[:19] for each in waits(await desk.seen(await desk.stand.work()))] == [
        "for the poll export"
    ]


async def test_a_called_agent_is_shown_with_its_task() -> None:
    """Where an operator finds what this task waits for."""
    found: list[str] = []

    async def handle(ctx: TaskContext) -> None:
        turn = active_turn(ctx)
        books = StandIn("books", lambda _: Outcome("a book", after_s=72_000), turn.lease.clock)
        turn.agents = {"books": cast("Remote", books)}
        try:
            await ctx.call_agent("books", "wait", timeout_s=36_000)
        finally:
            found.extend(books._tasks)

    (text,) = waits(await Desk(handle, ManualClock()).begin())
    (task_id,) = found
    assert text.startswith(f"for the task {task_id} of the agent books")
    assert ", which is looked at again at 20" in text
    assert "; gives up at 20" in text


async def test_a_step_that_is_tried_again_is_shown_and_a_sleep_is_not() -> None:
    """A sleep is a row of its own, and nothing says that it is over."""

    async def fails() -> None:
        raise ConnectionError

    async def handle(ctx: TaskContext) -> None:
        await ctx.sleep(90)
        await ctx.step("plan", fails, retry=Retry(tries=3, base_s=900, cap_s=900))

    desk = Desk(handle)
    assert waits(await desk.begin()) == []
    await desk.stand.pass_time(91)
    (text,) = waits(await desk.seen(await desk.stand.work()))
    assert text.startswith("for the next try of the step plan at 20")
