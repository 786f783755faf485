"""The worker function with shared turns: what one invocation does with several tasks."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from a2a.server.agent_execution import RequestContext
from a2a.server.events import EventQueue

from a2a_serverless.errors import ConfigurationError, InvalidArgumentError, UnavailableError
from a2a_serverless.queues.table import TableQueue
from a2a_serverless.settings import Settings
from a2a_serverless.tasks.head import Head, Operation
from a2a_serverless.tasks.rules import Commit
from a2a_serverless.worker.function import WorkerFunction
from tests.support.handlers import LambdaContext
from tests.support.queues import is_empty, left, take
from tests.support.workers import Agent, Bench, PacedClock, S, complete, status

TURNS = 3
LIMIT_S = 30.0


class Function:
    """The worker function in a test's event loop. Its agent works as the message says.

    `SECONDS NAME` takes so long and completes. `raises` raises in its first start, `asks` asks.
    """

    def __init__(self) -> None:
        self.clock = PacedClock()
        self.bench = Bench(
            Agent(self._work),
            clock=self.clock,
            worker_turns=TURNS,
            turn_limit_s=LIMIT_S,
            retry_base_s=0.01,
        )
        queue, quarantine = self.bench.operations, self.bench.backends.quarantine
        assert isinstance(queue, TableQueue)
        assert isinstance(quarantine, TableQueue)
        self.queue, self.quarantine = queue, quarantine
        self.function = WorkerFunction(
            self.bench.backends, self.bench.adapter.agent, self.bench.settings
        )
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

    async def send(self, text: str) -> Head:
        """Send a message, a moment after the one before: they are received in this order."""
        await self.clock.pass_time(0.001)
        return await self.bench.send(text)

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
        await self.bench.storage.commit(
            await self.bench.head(task), Commit(token="dead", claims=True)
        )

    async def state(self, task: Head) -> S:
        return (await self.bench.head(task)).state


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
    """A pulled turn that fails comes again by its visibility, and is none of the event's."""
    function = Function()
    long = await function.send("20 long")
    failing = await function.send("2 raises")
    invocation = await function.invoke()
    await function.clock.pass_time(60)
    assert await invocation == {"batchItemFailures": []}
    assert function.starts.count("raises") == 2
    assert await function.state(long) == S.TASK_STATE_COMPLETED
    assert await function.state(failing) == S.TASK_STATE_COMPLETED


async def test_the_events_own_failure_is_reported() -> None:
    """The turn of the invocation's own event, if it fails, is named when the invocation returns."""
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
    assert (await function.bench.head(head)).turn.attempts == 2
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

    async def vanished(*_: object, **__: object) -> None:
        raise UnavailableError("the table does not answer")

    storage = type(function.bench.storage)
    for name in ("commit", "read", "head", "change", "look"):
        monkeypatch.setattr(storage, name, vanished)
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

    async def unanswered(_: Operation) -> None:
        raise UnavailableError("the queue does not answer")

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


async def test_without_a_quarantine_queue_no_turns_are_shared() -> None:
    """The function does not start, and says which setting is missing."""
    bench = Bench(Agent(complete))
    settings = Settings(worker_turns=2, turn_limit_s=30)
    with pytest.raises(ConfigurationError, match="A2A_QUARANTINE_QUEUE is not set"):
        WorkerFunction(bench.backends, bench.adapter.agent, settings)


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"worker_turns": 2}, "A2A_TURN_LIMIT_S"),
        ({"worker_turns": 2, "turn_limit_s": 826}, "from 1 to 825"),
        ({"worker_turns": 2, "turn_limit_s": 30, "max_attempts": 1}, "A2A_MAX_ATTEMPTS"),
    ],
)
def test_settings_that_do_not_fit_are_refused(settings: dict[str, Any], named: str) -> None:
    """A function whose shared turns could not end in time, or could not fail, does not start."""
    bench = Bench(Agent(complete))
    with pytest.raises(ConfigurationError, match=named):
        WorkerFunction(bench.backends, bench.adapter.agent, Settings(**settings))


# -- batches of an event source ------------------------------------------------------------------

MEETS_IN_S = 20


class Source:
    """A function, and the records that an event source would pass to it."""

    def __init__(self, agent: Agent, **settings: Any) -> None:
        self.bench = Bench(agent, **settings)
        self.function = WorkerFunction(self.bench.backends, agent, self.bench.settings)

    def send(self, text: str = "hello") -> tuple[Head, dict[str, Any]]:
        """A new task and the record of its first turn."""

        async def send() -> tuple[Head, dict[str, Any]]:
            head = await self.bench.send(text)
            queue = self.bench.operations
            assert isinstance(queue, TableQueue)
            record = take(queue)
            assert record is not None
            return head, record

        return asyncio.run(send())

    def state(self, head: Head) -> S:
        return asyncio.run(self.bench.head(head)).state

    def handle(self, *records: dict[str, Any]) -> list[str]:
        """The ids of the records to deliver again."""
        answer = self.function.handle({"Records": list(records)}, LambdaContext())
        assert set(answer) == {"batchItemFailures"}
        return [failure["itemIdentifier"] for failure in answer["batchItemFailures"]]


async def play(context: RequestContext, queue: EventQueue) -> None:
    """Do what the user's text says."""
    match context.get_user_input():
        case "raise":
            raise ValueError
        case "ask":
            await queue.enqueue_event(status(context, S.TASK_STATE_INPUT_REQUIRED))
        case _:
            await complete(context, queue)


@pytest.fixture
def source() -> Iterator[Source]:
    made = Source(Agent(play))
    yield made
    made.function.close()


def test_the_function_lives_through_many_invocations(source: Source) -> None:
    """Every invocation uses the same event loop, and leaves nothing running in it."""
    for _ in range(3):
        head, record = source.send()
        assert source.handle(record) == []
        assert source.state(head) == S.TASK_STATE_COMPLETED
        assert asyncio.all_tasks(source.function._loop) == set()


def test_a_failure_is_reported_alone(source: Source) -> None:
    """A turn that fails is reported alone; the other groups of the batch are done."""
    (good, first), (bad, second), (other, third) = (
        source.send(text) for text in ("go", "raise", "go")
    )
    assert source.handle(first, second, third) == [second["messageId"]]
    states = [source.state(head) for head in (good, bad, other)]
    assert states == [S.TASK_STATE_COMPLETED, S.TASK_STATE_WORKING, S.TASK_STATE_COMPLETED]


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
