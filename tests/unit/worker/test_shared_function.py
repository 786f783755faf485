"""Turns that share an invocation: what is pulled, who may not, and what becomes of all."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Iterator
from functools import partial
from typing import Any
from unittest.mock import AsyncMock

import pytest
from a2a.server.agent_execution import RequestContext
from a2a.server.events import EventQueue
from a2a.types import TaskState, TaskStatus

from a2a_serverless.errors import ConfigurationError, InvalidArgumentError, UnavailableError
from a2a_serverless.observability import metrics
from a2a_serverless.queues.fifo import Handle
from a2a_serverless.queues.table import TableQueue
from a2a_serverless.settings import Settings
from a2a_serverless.tasks.entries import StatusChanged
from a2a_serverless.tasks.head import AttemptEnd, Head, Operation
from a2a_serverless.tasks.rules import Commit, releasing, runs_alone
from a2a_serverless.worker.function import POLL_S, SPARE_S, WorkerFunction
from a2a_serverless.worker.heartbeat import Heartbeat
from tests.support.handlers import ALL_DONE, LambdaContext
from tests.support.observed import counted
from tests.support.present import present
from tests.support.queues import is_empty, left, take
from tests.support.workers import Agent, Bench, S, complete, status
from tests.unit.worker.stand import Log, Patch, Polls, Source, Stand, actions

LIMIT_S = 30.0


class Function(Stand):
    """The worker function in a test's loop; a message is `SECONDS NAME`: raises, asks or any."""

    def __init__(self, turns: int = 3, *, limit_s: float = LIMIT_S, left_s: float = 900) -> None:
        options = {"worker_turns": turns, "turn_limit_s": limit_s, "retry_base_s": 0.01}
        super().__init__(Agent(self._work), visibility_s=60, **options)
        self.quarantine: Any = self.bench.backends.quarantine
        self.function = WorkerFunction(self.bench.backends, self.agent, self.bench.settings)
        self.function._loop.close()  # the test's own loop runs its invocations
        self.function._adapter = self.bench.adapter
        self.left_s = left_s
        self.starts: list[str] = []
        self.begun: dict[str, float] = {}
        self.ended: dict[str, float] = {}
        self.polls = Polls(self.queue)

    async def _work(self, context: RequestContext, queue: EventQueue) -> None:
        seconds, _, name = context.get_user_input().partition(" ")
        self.starts.append(name)
        self.begun[name] = self.clock.monotonic()
        await self.clock.sleep(float(seconds))
        self.ended[name] = self.clock.monotonic()
        if name == "raises" and self.starts.count(name) == 1:
            raise ValueError
        if name == "asks":
            await queue.enqueue_event(status(context, S.TASK_STATE_INPUT_REQUIRED))
        else:
            await complete(context, queue)

    async def send(self, text: str = "hello", **options: Any) -> Head:
        """Send a message, a moment after the one before: they are received in this order."""
        await self.clock.pass_time(0.001)
        return await super().send(text, **options)

    async def invoke(self, queue: TableQueue[Operation] | None = None) -> asyncio.Task[Any]:
        """Begin an invocation with the next delivery, by default of the operations queue."""
        event = {"Records": [present(take(queue or self.queue))]}
        ends = LambdaContext(left_s=self.left_s)
        invocation = asyncio.create_task(self.function._answer(event, ends))
        await self.clock.pass_time(0)
        return invocation

    async def sent(self, *texts: str) -> asyncio.Task[Any]:
        """Send messages, and begin an invocation with the first one."""
        for text in texts:
            await self.send(text)
        return await self.invoke()

    async def work_off(self) -> None:
        """Invoke the function until the queue is empty; nothing is ever reported as failed."""
        for queue in (self.queue, self.quarantine):
            while not is_empty(queue):
                invocation = await self.invoke(queue)
                await self.clock.pass_time(200)
                assert await invocation == ALL_DONE

    async def dies(self, task: Head) -> None:
        """Leave the task's turn as a worker does that dies during its first attempt."""
        await self.storage.commit(await self.head(task), Commit(token="dead", claims=True))


# -- when others are pulled ------------------------------------------------------------------


async def test_a_poll_has_a_turn_beside_it_and_a_turns_time_behind_it() -> None:
    """Where every turn ends within a second, none is paid for; the last one leaves time for all."""
    function = Function()
    assert (await (await function.sent("0 own")), function.polls.at) == (ALL_DONE, [])
    function = Function(left_s=60)
    await function.sent("29 own")
    await function.clock.pass_time(200)
    assert 0 < function.polls.at[-1] <= 60 - LIMIT_S - SPARE_S - POLL_S


async def test_others_are_pulled_beside_a_turn_that_lasts() -> None:
    """After a second others are polled for, ten at most; as one turn ends, the next is pulled."""
    function = Function(turns=15)
    invocation = await function.sent(*(f"10 {name}" for name in "abcdefghijklmnopqrs"))
    await function.clock.pass_time(1.5)
    assert (len(function.begun), function.polls.limits[:2]) == (15, [10, 4])
    assert function.polls.at[0] - function.begun["a"] == pytest.approx(1.0)
    await function.clock.pass_time(200)
    assert (await invocation, len(function.ended)) == (ALL_DONE, 19)
    assert sorted(function.begun.values())[15] - function.ended["a"] <= 0.25


async def test_a_late_loop_gets_no_more_turns(monkeypatch: Patch) -> None:
    """While an agent keeps the loop busy, nothing is pulled; after it, there is again."""
    function = Function()
    monkeypatch.setattr(Heartbeat, "lag_s", 0.3)
    await function.sent("20 own", "1 a")
    await function.clock.pass_time(5)
    assert function.polls.at == []
    monkeypatch.setattr(Heartbeat, "lag_s", 0.1)
    await function.clock.pass_time(1)
    assert "a" in function.begun


async def test_no_poll_outlives_its_invocation() -> None:
    """What a poll brings after the last turn has ended is worked on; then it returns."""
    function = Function()
    invocation = await function.sent("2 own")
    await function.clock.pass_time(2.5)
    assert (invocation.done(), function.polls.open) == (False, 1)
    await function.send("1 late")
    await function.clock.pass_time(0)
    assert "late" in function.begun
    await function.clock.pass_time(3)
    assert (await invocation, function.polls.open) == (ALL_DONE, 0)
    assert function.ended["late"] == pytest.approx(3.5, abs=0.1)


async def test_a_queue_that_vanishes_ends_the_pulling(caplog: Log) -> None:
    """The turns that run go on to their end; the reason is logged once."""
    function = Function()
    function.polls.pull = AsyncMock(side_effect=ConfigurationError("q does not exist."))
    invocation = await function.sent("10 own")
    await function.clock.pass_time(10)
    assert (await invocation, [*function.ended], len(function.polls.at)) == (ALL_DONE, ["own"], 1)
    assert actions(caplog) == ["pull_failed"]


async def test_metrics_are_written_each_minute() -> None:
    """An invocation of minutes does not keep its counts until it returns."""
    with counted() as seen:
        function = Function(limit_s=600)
        await function.sent("150 own")
        await function.clock.pass_time(58)
        metrics.count("Attempts")
        before = len(seen.lines)
        await function.clock.pass_time(1)
        assert len(seen.lines) == before
        await function.clock.pass_time(2)
        assert len(seen.lines) == before + 1


async def test_the_works_exception_comes_after_its_neighbours() -> None:
    """What ends the event's own work does not cut off the turns that were pulled beside it."""
    function = Function()
    process = function.bench.adapter.process

    async def ends(handle: Handle[Operation], **options: Any) -> bool:
        is_done = await process(handle, **options)
        if len(function.ended) == 1:
            raise RuntimeError("the work itself")
        return is_done

    function.bench.adapter.process = ends  # type: ignore[method-assign]
    invocation = await function.sent("2 own", "10 other")
    await function.clock.pass_time(60)
    with pytest.raises(RuntimeError, match="the work itself"):
        await invocation
    assert function.ended.keys() == {"own", "other"}


# -- who runs alone --------------------------------------------------------------------------


async def test_head_says_who_runs_alone() -> None:
    """Whose attempt neither ended nor gave it back; who lost a worker, stays alone to its end."""
    stand = Stand(Agent(complete))

    async def claimed(token: str) -> Head:
        return await stand.storage.commit(await stand.head(), Commit(token=token, claims=True))

    async def given_back(token: str) -> Head:
        end = AttemptEnd(token=token, reason="raised")
        await stand.storage.change(await stand.head(), partial(releasing, end=end))
        return await stand.head()

    assert not runs_alone(await stand.send())
    assert runs_alone(await claimed("one"))
    released = await given_back("one")
    assert not runs_alone(released)
    ended = await stand.storage.commit(released, Commit(token="one", ends_turn=True))
    assert not runs_alone(ended)
    await stand.send()
    await claimed("lost")
    await claimed("alone")
    lost = await given_back("alone")
    assert runs_alone(lost)
    asks = StatusChanged(TaskStatus(state=TaskState.TASK_STATE_INPUT_REQUIRED))
    await stand.storage.commit(lost, Commit(entries=(asks,), token="alone"))
    assert not runs_alone(await stand.follow_up("next"))


# -- several tasks ---------------------------------------------------------------------------------


async def test_an_invocation_runs_several_turns() -> None:
    """The event's turn and those beside it complete; each is acknowledged as it ends."""
    function = Function()
    heads = [await function.send(f"10 {name}") for name in "abcde"]
    invocation = await function.invoke()
    await function.clock.pass_time(1.5)
    assert function.starts == ["a", "b", "c"]
    await function.clock.pass_time(8.7)
    assert len(left(function.queue)) == len(heads) - 1
    assert not invocation.done()
    await function.clock.pass_time(30)
    assert await invocation == ALL_DONE
    assert {await function.state(head) for head in heads} == {S.TASK_STATE_COMPLETED}
    assert is_empty(function.queue)


async def test_only_the_events_own_failure_is_reported() -> None:
    """It is named as the invocation returns; a pulled turn comes again by its visibility."""
    function = Function()
    long, failing = await function.send("20 long"), await function.send("2 raises")
    invocation = await function.invoke()
    await function.clock.pass_time(60)
    assert (await invocation, function.starts.count("raises")) == (ALL_DONE, 2)
    assert {await function.state(each) for each in (long, failing)} == {S.TASK_STATE_COMPLETED}
    function = Function()
    await function.send("2 raises")
    (sent,) = await function.queue.waiting()
    invocation = await function.invoke()
    await function.clock.pass_time(60)
    assert await invocation == {"batchItemFailures": [{"itemIdentifier": sent.message_id}]}


async def test_a_turn_ends_at_its_own_limit() -> None:
    """A turn is given back at its own limit, with minutes left, and fails after its attempts."""
    function = Function()
    head = await function.send("500 slow")
    invocation = await function.invoke()
    await function.clock.pass_time(LIMIT_S - 1)
    assert function.starts == ["slow"]
    await function.clock.pass_time(2)
    assert (await function.head(head)).turn.attempts == 2
    await function.clock.pass_time(200)
    assert invocation.done()
    await function.work_off()
    assert (await function.state(head), function.starts) == (S.TASK_STATE_FAILED, ["slow"] * 3)


async def test_a_table_that_vanishes_gives_back_all_turns(monkeypatch: Patch) -> None:
    """Each is given back as if it were alone; when the table is there again, all complete."""
    function = Function()
    heads = [await function.send(f"2 {name}") for name in "abc"]
    invocation = await function.invoke()
    await function.clock.pass_time(1.5)
    assert sorted(function.starts) == ["a", "b", "c"]  # those that are pulled start together
    storage = type(function.storage)
    for name in ("commit", "read", "head", "change", "look"):
        monkeypatch.setattr(storage, name, AsyncMock(side_effect=UnavailableError("no answer")))
    await function.clock.pass_time(200)
    assert invocation.done()
    assert len(left(function.queue)) == len(heads)
    monkeypatch.undo()
    await function.clock.pass_time(300)
    await function.work_off()
    assert {await function.state(head) for head in heads} == {S.TASK_STATE_COMPLETED}


async def test_the_turn_of_a_dead_worker_runs_alone() -> None:
    """It is quarantined at its first redelivery, and runs in an invocation without neighbours."""
    function = Function()
    first = await function.send("8 one")
    suspect = await function.send("8 suspect")
    await function.dies(suspect)
    heads = [first, await function.send("8 two"), await function.send("8 three")]
    shared = await function.invoke()
    await function.clock.pass_time(2)
    assert function.starts == ["one", "two", "three"]
    (waiting,) = left(function.quarantine)
    assert waiting.params.task_id == suspect.task_id
    alone = await function.invoke(function.quarantine)
    await function.clock.pass_time(2)
    await function.send("1 four")
    await function.clock.pass_time(200)
    assert await shared == await alone == ALL_DONE
    assert {await function.state(head) for head in (*heads, suspect)} == {S.TASK_STATE_COMPLETED}
    assert is_empty(function.queue)


async def test_a_delivery_that_cannot_be_quarantined_comes_again(monkeypatch: Patch) -> None:
    """While the quarantine queue does not answer, the turn is given back, and no agent starts."""
    function = Function()
    unanswered = AsyncMock(side_effect=UnavailableError("the queue does not answer"))
    monkeypatch.setattr(function.quarantine, "send", unanswered)
    await function.dies(await function.send("8 suspect"))
    (sent,) = await function.queue.waiting()
    invocation = await function.invoke()
    await function.clock.pass_time(1)
    assert await invocation == {"batchItemFailures": [{"itemIdentifier": sent.message_id}]}
    monkeypatch.undo()
    await function.clock.pass_time(5)
    await function.work_off()
    assert function.starts == ["suspect"]


async def test_a_quarantined_turn_that_is_sent_twice_runs_once() -> None:
    """A worker that dies between its send and its acknowledgement has doubled nothing."""
    function = Function()
    suspect = await function.send("8 suspect")
    await function.dies(suspect)
    operation = left(function.queue)[0]
    await function.quarantine.send(operation)
    await function.work_off()
    assert (function.starts, await function.state(suspect)) == (["suspect"], S.TASK_STATE_COMPLETED)


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"turn_limit_s": 30}, "A2A_QUARANTINE_QUEUE is not set"),
        ({}, "A2A_TURN_LIMIT_S"),
        ({"turn_limit_s": 826}, "from 1 to 825"),
        ({"turn_limit_s": 30, "max_attempts": 1}, "A2A_MAX_ATTEMPTS"),
    ],
)
def test_settings_that_do_not_fit_are_refused(settings: dict[str, Any], named: str) -> None:
    """A function whose shared turns could not end in time, or could not fail, does not start."""
    bench = Bench(Agent(complete))
    with pytest.raises(ConfigurationError, match=named):
        WorkerFunction(bench.backends, bench.adapter.agent, Settings(worker_turns=2, **settings))


# -- batches of an event source ------------------------------------------------------------------

MEETS_IN_S = 20


@pytest.fixture
def source() -> Iterator[Source]:
    made = Source(Agent(complete))
    yield made
    made.function.close()


def test_the_function_lives_through_many_invocations(source: Source) -> None:
    """All use one event loop, and leave nothing running; an event of another source is an error."""
    for _ in range(3):
        head, record = source.send()
        assert (source.handle(record), source.state(head)) == ([], S.TASK_STATE_COMPLETED)
        assert asyncio.all_tasks(source.function._loop) == set()
    for event in ({"Records": "x"}, {"detail-type": "Scheduled Event"}):
        with pytest.raises(InvalidArgumentError, match="not one of SQS"):
            source.function.handle(event, LambdaContext())


def test_blocking_calls_of_all_places_run_at_once() -> None:
    """Turns that wait in threads share a worker like those that await: none waits for a thread."""
    places = (os.cpu_count() or 1) + 8
    meeting = threading.Barrier(places)

    async def meet(context: RequestContext, queue: EventQueue) -> None:
        await asyncio.to_thread(meeting.wait, MEETS_IN_S)
        await complete(context, queue)

    source = Source(Agent(meet), worker_turns=places, turn_limit_s=60)
    try:
        sent = [source.send() for _ in range(places)]
        assert source.handle(*(record for _, record in sent)) == []
        assert {source.state(head) for head, _ in sent} == {S.TASK_STATE_COMPLETED}
    finally:
        source.function.close()
