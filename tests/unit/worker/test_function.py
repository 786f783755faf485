"""The worker behind an SQS event source: batches, groups and partial failures."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from a2a.server.agent_execution import RequestContext
from a2a.server.events import EventQueue

from a2a_serverless.errors import InvalidArgumentError
from a2a_serverless.queues.table import TableQueue
from a2a_serverless.tasks.head import Head
from a2a_serverless.worker.function import WorkerFunction
from tests.support.handlers import LambdaContext
from tests.support.queues import take
from tests.support.workers import Agent, Bench, S, complete, status

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


@pytest.mark.parametrize("event", [{}, {"Records": "x"}, {"detail-type": "Scheduled Event"}])
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
