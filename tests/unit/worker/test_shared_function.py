"""Turns that share an invocation: what is pulled, who may not, and what becomes of all."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
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
from a2a_serverless.tasks.head import AttemptEnd, Head, Operation, OperationParams
from a2a_serverless.tasks.rules import Commit, releasing, runs_alone
from a2a_serverless.worker.function import POLL_S, SPARE_S, WorkerFunction, _Sharing
from tests.support.handlers import LambdaContext
from tests.support.queues import MemoryQueue, is_empty, left, take
from tests.support.workers import Agent, Bench, PacedClock, S, complete, status
from tests.unit.worker.stand import Source, Stand, actions

LIMIT_S = 30.0


class Polls(MemoryQueue[Operation]):
    """A queue in memory that notes when it was pulled, and for how many."""

    def __init__(self, clock: PacedClock) -> None:
        super().__init__(Operation, visibility_s=600, clock=clock)
        self._paced = clock
        self.asked: list[tuple[float, int]] = []
        self.open = 0
        self.failure: Exception | None = None

    async def pull(self, limit: int, wait_s: float) -> list[Handle[Operation]]:
        self.asked.append((self._paced.monotonic(), limit))
        if self.failure is not None:
            raise self.failure
        self.open += 1
        try:
            return await super().pull(limit, wait_s)
        finally:
            self.open -= 1


class Invocation:
    """One invocation; a delivery lasts a second less than its turn's number."""

    def __init__(self, *, turns: int = 5, deadline: float | None = 900, lag_s: float = 0) -> None:
        self.clock = PacedClock()
        self.queue = Polls(self.clock)
        self.lag_s = lag_s
        self.begun: dict[str, float] = {}
        self.ended: dict[str, float] = {}
        self.sharing = _Sharing(
            operations=self.queue,
            process=self.process,
            clock=self.clock,
            turns=turns,
            turn_limit_s=LIMIT_S,
            deadline=deadline,
            lag_s=lambda: self.lag_s,
        )

    async def send(self, *names: str, seconds: int = 10) -> None:
        """Send messages whose deliveries last so long."""
        for name in names:
            await self.queue.send(Operation.to_run(_params(name, seconds)))

    async def process(self, handle: Handle[Operation]) -> bool:
        params = handle.message.params
        self.begun[params.task_id] = self.clock.monotonic()
        await self.clock.sleep(params.turn - 1)
        self.ended[params.task_id] = self.clock.monotonic()
        await handle.ack()
        return True

    @asynccontextmanager
    async def running(
        self, seconds: int = 10, *, beside: str = "", each: int = 10
    ) -> AsyncIterator[asyncio.Task[bool]]:
        """An invocation whose event holds `own`, of so many seconds; others wait in the queue."""
        await self.send("own", seconds=seconds)
        await self.send(*beside.split(), seconds=each)
        record = take(self.queue)
        assert record is not None
        handle = self.queue.decode_record(record)
        task = asyncio.create_task(self.sharing.beside(self.sharing.run(handle)))
        await self.clock.pass_time(0)
        yield task
        await self.clock.pass_time(200)
        assert task.done()
        assert self.queue.open == 0

    @property
    def asked_at(self) -> list[float]:
        return [at for at, _ in self.queue.asked]


def _params(name: str, seconds: int) -> OperationParams:
    return OperationParams(scope="s", task_id=name, incarnation="i", turn=1 + seconds)


# -- when others are pulled ------------------------------------------------------------------


async def test_a_quick_turn_pulls_nothing() -> None:
    """Where every turn ends within a second, an invocation pays for no poll."""
    invocation = Invocation()
    async with invocation.running(seconds=0):
        pass
    assert invocation.queue.asked == []


async def test_others_are_pulled_beside_a_turn_that_lasts() -> None:
    """After a second the first poll begins, for as many as find a place, ten at most."""
    invocation = Invocation(turns=15)
    async with invocation.running(beside=" ".join("abcdefghijklmnopqr")):
        await invocation.clock.pass_time(1.5)
        assert len(invocation.begun) == 15
    assert [limit for _, limit in invocation.queue.asked[:2]] == [10, 4]
    assert invocation.asked_at[0] == pytest.approx(1.0)
    assert invocation.begun["a"] < 1.5
    assert len(invocation.ended) == 19


async def test_a_place_that_gets_free_is_filled() -> None:
    """As one turn ends, the next is pulled: a worker is full as long as there is work."""
    invocation = Invocation(turns=2)
    async with invocation.running(seconds=20, beside="a b", each=3):
        await invocation.clock.pass_time(10)
    assert invocation.begun["b"] - invocation.ended["a"] <= 0.25


async def test_nothing_is_pulled_that_could_not_end_in_time() -> None:
    """The last poll leaves time for itself, a whole turn, and its end."""
    invocation = Invocation(deadline=60)
    async with invocation.running(seconds=45):
        pass
    last = 60 - LIMIT_S - SPARE_S - POLL_S
    assert 0 < invocation.asked_at[-1] <= last


async def test_a_late_loop_gets_no_more_turns() -> None:
    """While an agent keeps the loop busy, nothing is pulled; after it, there is again."""
    invocation = Invocation(lag_s=0.3)
    async with invocation.running(seconds=20, beside="a", each=1):
        await invocation.clock.pass_time(5)
        assert invocation.queue.asked == []
        invocation.lag_s = 0.1
        await invocation.clock.pass_time(1)
        assert "a" in invocation.begun


async def test_no_poll_outlives_its_invocation(capsys: pytest.CaptureFixture[str]) -> None:
    """What a poll brings after the last turn has ended is worked on; then it returns."""
    invocation = Invocation()
    async with invocation.running(seconds=2) as task:
        await invocation.clock.pass_time(2.5)
        assert not task.done()
        assert invocation.queue.open == 1
        await invocation.send("late", seconds=1)
        await invocation.clock.pass_time(0)
        assert "late" in invocation.begun
    assert await task is True
    assert invocation.ended["late"] == pytest.approx(3.5, abs=0.1)


async def test_a_queue_that_vanishes_ends_the_pulling(caplog: pytest.LogCaptureFixture) -> None:
    """The turns that run go on to their end; the reason is logged once."""
    invocation = Invocation()
    invocation.queue.failure = ConfigurationError("The queue q does not exist.")
    async with invocation.running():
        pass
    assert "own" in invocation.ended
    assert len(invocation.queue.asked) == 1
    assert actions(caplog) == ["pull_failed"]


async def test_metrics_are_written_each_minute() -> None:
    """An invocation of minutes does not keep its counts until it returns."""
    lines: list[str] = []
    metrics.start(metrics.Emf("test", service="test", write=lines.append))
    try:
        invocation = Invocation(deadline=None)
        async with invocation.running(seconds=150):
            metrics.count("Attempts")
            await invocation.clock.pass_time(59)
            assert lines == []
            await invocation.clock.pass_time(2)
            assert len(lines) == 1
    finally:
        metrics.stop()


async def test_the_works_exception_comes_after_its_neighbours() -> None:
    """What ends the event's own work does not cut off the turns that were pulled beside it."""
    invocation = Invocation()
    await invocation.send("a")

    async def work() -> None:
        await invocation.sharing.run((await invocation.queue.pull(1, 0))[0])
        raise RuntimeError("the work itself")

    await invocation.send("b")
    task = asyncio.create_task(invocation.sharing.beside(work()))
    await invocation.clock.pass_time(60)
    with pytest.raises(RuntimeError, match="the work itself"):
        await task
    assert invocation.ended.keys() == {"a", "b"}


# -- who runs alone --------------------------------------------------------------------------


async def test_head_says_who_runs_alone() -> None:
    """An open turn whose last attempt has neither ended it nor given it back.

    Once it has lost a worker, it runs alone to its end, also when an attempt gives it back.
    """
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

TURNS = 3


class Function(Stand):
    """The worker function in a test's event loop. Its agent works as the message says.

    `SECONDS NAME` takes so long and completes. `raises` raises in its first start, `asks` asks.
    """

    def __init__(self) -> None:
        options = {"worker_turns": TURNS, "turn_limit_s": LIMIT_S, "retry_base_s": 0.01}
        super().__init__(Agent(self._work), visibility_s=60, **options)
        quarantine = self.bench.backends.quarantine
        assert isinstance(quarantine, TableQueue)
        self.quarantine = quarantine
        self.function = WorkerFunction(self.bench.backends, self.agent, self.bench.settings)
        self.function._loop.close()  # the test's own loop runs its invocations
        self.function._adapter = self.bench.adapter
        self.starts: list[str] = []
        self.running: set[str] = set()
        self.together: list[set[str]] = []
        """The turns that ran whenever a turn began."""

    async def _work(self, context: RequestContext, queue: EventQueue) -> None:
        seconds, _, name = context.get_user_input().partition(" ")
        self.starts.append(name)
        self.running.add(name)
        self.together.append(set(self.running))
        try:
            await self.clock.sleep(float(seconds))
        finally:
            self.running.discard(name)
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

    async def invoke(
        self, queue: TableQueue[Operation] | None = None
    ) -> asyncio.Task[dict[str, Any]]:
        """Begin an invocation with the next delivery, by default of the operations queue."""
        record = take(queue or self.queue)
        assert record is not None
        invocation = asyncio.create_task(
            self.function._answer({"Records": [record]}, LambdaContext())
        )
        await self.clock.pass_time(0)
        return invocation

    async def work_off(self) -> None:
        """Invoke the function until the queue is empty; nothing is ever reported as failed."""
        for queue in (self.queue, self.quarantine):
            while not is_empty(queue):
                invocation = await self.invoke(queue)
                await self.clock.pass_time(200)
                assert await invocation == {"batchItemFailures": []}

    async def dies(self, task: Head) -> None:
        """Leave the task's turn as a worker does that dies during its first attempt."""
        await self.storage.commit(await self.head(task), Commit(token="dead", claims=True))


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
    assert await invocation == {"batchItemFailures": []}
    assert {await function.state(head) for head in heads} == {S.TASK_STATE_COMPLETED}
    assert is_empty(function.queue)


async def test_only_the_events_own_failure_is_reported() -> None:
    """A pulled turn that fails comes again by its visibility, and is none of the event's.

    The turn of the invocation's own event, if it fails, is named when the invocation returns.
    """
    function = Function()
    long, failing = await function.send("20 long"), await function.send("2 raises")
    invocation = await function.invoke()
    await function.clock.pass_time(60)
    assert await invocation == {"batchItemFailures": []}
    assert function.starts.count("raises") == 2
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
    assert function.running == {"slow"}
    await function.clock.pass_time(2)
    assert (await function.head(head)).turn.attempts == 2
    await function.clock.pass_time(200)
    assert invocation.done()
    await function.work_off()
    assert await function.state(head) == S.TASK_STATE_FAILED
    assert function.starts == ["slow"] * 3


async def test_a_table_that_vanishes_gives_back_all_turns(monkeypatch: pytest.MonkeyPatch) -> None:
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
    assert await shared == await alone == {"batchItemFailures": []}
    assert {await function.state(head) for head in (*heads, suspect)} == {S.TASK_STATE_COMPLETED}
    assert is_empty(function.queue)


async def test_a_delivery_that_cannot_be_quarantined_comes_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
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
    assert function.starts == ["suspect"]
    assert await function.state(suspect) == S.TASK_STATE_COMPLETED


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
    """Every invocation uses the same event loop, and leaves nothing running in it."""
    for _ in range(3):
        head, record = source.send()
        assert source.handle(record) == []
        assert source.state(head) == S.TASK_STATE_COMPLETED
        assert asyncio.all_tasks(source.function._loop) == set()


@pytest.mark.parametrize("event", [{"Records": "x"}, {"detail-type": "Scheduled Event"}])
def test_an_event_of_another_source_is_refused(source: Source, event: dict[str, Any]) -> None:
    """A wrong wiring is an error, not a batch that was processed."""
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
