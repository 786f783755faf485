"""Turns of one conversation: one after the other where the agent keeps a state."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from a2a_serverless.queues.fifo import Handle
from a2a_serverless.storage.conversation import conversation_queue, start_next_turn
from a2a_serverless.storage.deletion import delete_task
from a2a_serverless.storage.durable import DurableStorage
from a2a_serverless.tasks.head import Head, Operation
from a2a_serverless.tasks.rules import PARKED_MS
from a2a_serverless.worker import RetryLater, TaskContext, Worker
from a2a_serverless.worker.context import WorkerExecutor
from a2a_serverless.worker.sweeper import Sweeper
from tests.support.workers import Bench, PacedClock, S, idle, status_text
from tests.unit.worker.stand import Log, lines


class Keeping(Worker):
    """An agent that keeps what was said, and what it does of the words of a message."""

    keeps_conversation = True

    def __init__(self) -> None:
        self.runs: list[str] = []
        self.running = self.most = 0

    async def handle(self, ctx: TaskContext) -> None:
        self.runs.append(ctx.user_text)
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            await self._answer(ctx)
        finally:
            self.running -= 1

    async def _answer(self, ctx: TaskContext) -> None:
        said = await ctx.load_context() or []
        await ctx.sleep(1)
        if "later" in ctx.user_text and self.runs.count(ctx.user_text) == 1:
            raise RetryLater(7200, "a quota")
        await ctx.update_context([*said, ctx.user_text])
        if "ask" in ctx.user_text:
            await ctx.request_input("Which?")
        else:
            await ctx.respond(" ".join([*said, ctx.user_text]))


class Talk(Bench):
    """A bench whose worker runs as many deliveries at once as there are."""

    clock: PacedClock
    first: asyncio.Task[bool]
    """The delivery of the turn for which the others wait, see `waiting`."""

    def __init__(self, **settings: Any) -> None:
        self.agent = Keeping()
        super().__init__(
            WorkerExecutor(self.agent),
            clock=PacedClock(),
            **{"conversations": "serial", "retry_minutes": 600, **settings},
        )

    async def work_off(self) -> None:
        """Run all that is visible, at once, until nothing is."""
        running = set[asyncio.Task[bool]]()
        while True:
            while handles := await self.operations.pull(10, 0):
                running |= {asyncio.create_task(self.adapter.process(h)) for h in handles}
            if not running:
                return
            await asyncio.sleep(0)
            running = {task for task in running if not task.done() or task.result() is None}
            await self.clock.pass_time(0.1)

    async def sweep(self, after_s: float) -> None:
        await self.clock.pass_time(after_s)
        await Sweeper(self.storage, self.operations).sweep()

    async def line(self) -> list[str]:
        line = await conversation_queue(self.storage, "ctx")
        return [place.task_id for place in line.positions]

    async def texts(self, *tasks: Head) -> list[str]:
        return [status_text(await self.task(task)) for task in tasks]


async def test_ten_messages_at_once_are_answered_in_order() -> None:
    """Each turn sees what those before it have kept, and the model runs once for each."""
    talk = Talk()
    words = [f"m{number}" for number in range(10)]
    tasks = [await talk.send(word) for word in words]
    await talk.work_off()
    assert (talk.agent.runs, talk.agent.most) == (words, 1)
    assert await talk.texts(*tasks) == [" ".join(words[: n + 1]) for n in range(10)]
    assert [(await talk.head(task)).turn.attempts for task in tasks] == [1] * 10
    assert await talk.line() == []


async def test_a_conflict_never_counts_as_an_attempt() -> None:
    """Where nothing keeps turns apart, those that come second start over, and none fails."""
    talk = Talk(conversations="parallel", max_attempts=1)
    tasks = [await talk.send(f"m{number}") for number in range(4)]
    await talk.work_off()
    for _ in range(20):
        await talk.clock.pass_time(10)
        await talk.work_off()
    assert {(await talk.head(task)).state for task in tasks} == {S.TASK_STATE_COMPLETED}
    assert len(talk.agent.runs) > len(tasks)
    assert {(await talk.head(task)).turn.attempts for task in tasks} == {1}


async def test_a_turn_that_asks_gives_up_the_conversation() -> None:
    """Its turn has ended: the next message runs, and the answer takes a place behind."""
    talk = Talk()
    asking, second, third = [await talk.send(word) for word in ("ask", "two", "three")]
    await talk.work_off()
    answer = await talk.follow_up(asking, "answer")
    assert await talk.line() == [answer.task_id]
    await talk.work_off()
    said = await talk.texts(asking, second, third)
    assert said == ["ask two three answer", "ask two", "ask two three"]
    assert await talk.line() == []


async def received(talk: Talk, tasks: list[Head]) -> list[Handle[Operation]]:
    handles = {handle.message.task_id: handle for handle in await talk.operations.pull(10, 0)}
    return [handles.pop(task.task_id) for task in tasks]


async def waiting(talk: Talk, *words: str) -> list[Head]:
    """Tasks of one conversation that were all received and left, but for the first, which runs."""
    tasks = [await talk.send(word) for word in words]
    first, *others = await received(talk, tasks)
    talk.first = asyncio.create_task(talk.adapter.process(first))
    await idle()
    for handle in others:
        assert await talk.adapter.process(handle)
    assert {(await talk.head(task)).turn.parked for task in tasks[1:]} == {"conversation"}
    assert not await talk.operations.pull(10, 0)
    return tasks


async def test_a_waiting_turn_holds_no_worker_and_no_message() -> None:
    """It stands in the table, uses up no attempt, and is not given up while it waits."""
    talk = Talk()
    _, second = await waiting(talk, "one", "two")
    head, due_at = await talk.head(second), talk.clock.now_ms() + PARKED_MS["conversation"]
    assert (head.turn.attempts, head.turn.token, head.due_at) == (0, None, due_at)
    await talk.clock.pass_time(2)
    await talk.first
    await talk.work_off()
    assert await talk.texts(second) == ["one two"]


@pytest.mark.parametrize("has_queue", [True, False])
async def test_a_deleted_holder_passes_the_conversation_on(*, has_queue: bool) -> None:
    """At once where there is a queue; after a command on the table alone, with the next sweep."""
    talk = Talk()
    first, second, third = await waiting(talk, "one", "two", "three")
    storage = talk.storage if has_queue else DurableStorage(talk.storage.table, clock=talk.clock)
    assert await delete_task(storage, first.task_id)
    if not has_queue:
        assert not await talk.operations.pull(10, 0)
        await talk.sweep(after_s=0)
    await talk.work_off()
    assert await talk.texts(second, third) == ["two", "two three"]


async def test_a_turn_that_does_not_run_keeps_the_conversation_for_an_hour() -> None:
    """A turn that waits for its model keeps its place for that long; then it joins again."""
    talk = Talk()
    late, second = [await talk.send(word) for word in ("later", "two")]
    await talk.work_off()
    for _ in range(11):
        await talk.sweep(after_s=310)
        await talk.work_off()
    assert (await talk.head(second)).turn.parked == "conversation"
    for _ in range(2):
        await talk.sweep(after_s=310)
        await talk.work_off()
    assert await talk.texts(second) == ["two"]
    await talk.sweep(after_s=7200)
    await talk.work_off()
    assert (await talk.texts(late), await talk.line()) == (["two later"], [])


async def test_a_turn_that_waits_for_a_share_keeps_its_conversation() -> None:
    """It takes no part in the hour after which one that does not run loses its place."""
    talk = Talk()
    first, second = [await talk.send(word) for word in ("one", "two")]
    assert await talk.storage.park(first, "share")
    assert await talk.storage.park(second, "conversation")
    await talk.clock.pass_time(2 * 3600)
    await start_next_turn(talk.storage, "ctx")
    assert await talk.line() == [first.task_id, second.task_id]


@pytest.mark.parametrize("is_serial", [True, False])
async def test_a_worker_tells_if_its_api_is_set_otherwise(caplog: Log, *, is_serial: bool) -> None:
    """Its turns run at once all the same; a message that came before the worker is no sign."""
    talk = Talk()
    talk.storage.is_serial = is_serial
    await talk.send("one")
    await talk.clock.pass_time(1)
    talk.adapter.since = talk.clock.now_ms() - 1
    after = await talk.send("two")
    talk.storage.is_serial = True
    await talk.work_off()
    told = {line["task_id"] for line in lines(caplog, "no_place")}
    assert (told, set(talk.agent.runs)) == (set() if is_serial else {after.task_id}, {"one", "two"})
