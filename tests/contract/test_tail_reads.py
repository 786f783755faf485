"""How often a tail reads, counted on the wire; the clock is set, so the tests do not wait."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from a2a_serverless.storage.durable import DurableStorage
from a2a_serverless.storage.tail import Tail
from a2a_serverless.tasks.entries import ArtifactWritten
from a2a_serverless.tasks.head import Head
from a2a_serverless.tasks.rules import Commit
from tests.support.clocks import Timetable
from tests.support.databases import moto_database, on_dynamo
from tests.support.messages import artifact, request


class Wire:
    """Every request of a client: its operation, and the monotonic second that it was sent in."""

    def __init__(self, client: Any, clock: Timetable) -> None:
        self._clock = clock
        self.requests: list[tuple[str, float]] = []
        client.meta.events.register("before-call.dynamodb.*", self._note)

    def _note(self, model: Any, **_: Any) -> None:
        self.requests.append((model.name, self._clock.monotonic()))

    def between(self, start: float, end: float) -> list[str]:
        return [name for name, at in self.requests if start <= at < end]


@pytest.fixture
def clock() -> Timetable:
    return Timetable()


@pytest.fixture
def watched(clock: Timetable) -> Iterator[DurableStorage]:
    """A storage on DynamoDB whose clock is set by the tail's own waiting."""
    with moto_database() as moto:
        yield moto.storage(clock=clock)


def never(_: Head) -> bool:
    return False


async def follow(tail: Tail, deadline: float) -> int:
    return len([d async for d in tail.events(until=never, deadline=deadline)])


async def test_an_idle_stream_reads_once_a_second(
    watched: DurableStorage, clock: Timetable
) -> None:
    """After 10 s of silence it is exactly 1 request a second (at most 1.2 are allowed)."""
    head = (await watched.open_task("context", request())).head
    tail = await Tail.open(watched, head.task_id)
    wire = Wire(on_dynamo(watched).client, clock)

    assert await follow(tail, deadline=30) == 0

    assert wire.between(10, 30) == ["Query"] * 20
    # On the way there: every 25 ms at first, then after a tenth of the silence.
    assert len(wire.between(0, 10)) == 48


@pytest.mark.long
async def test_an_event_makes_the_stream_quick_again(
    watched: DurableStorage, clock: Timetable
) -> None:
    """While events come each poll is one Query, 25 ms after the last one."""
    head = (await watched.open_task("context", request())).head
    tail = await Tail.open(watched, head.task_id)
    written: list[Head] = [head]

    async def commit() -> None:
        entry = ArtifactWritten(artifact("a", "x"), append=True)
        written.append(await watched.commit(written[-1], Commit(entries=(entry,))))

    for number in range(20):
        clock.at(30 + number * 0.2, commit)
    wire = Wire(on_dynamo(watched).client, clock)

    assert await follow(tail, deadline=34) == 20

    # The first event comes within a second, those after it within 25 ms each.
    active = [name for name in wire.between(31, 33.8) if name != "TransactWriteItems"]
    assert set(active) == {"Query"}
    assert len(active) == pytest.approx(2.8 / 0.025, abs=2)


async def test_a_poll_is_one_request_whatever_it_finds(watched: DurableStorage) -> None:
    """HEAD and the new events come with one consistent Query; nothing else is asked."""
    head = (await watched.open_task("context", request())).head
    tail = await Tail.open(watched, head.task_id)
    consistent: list[bool] = []

    def note(model: Any, params: dict[str, Any], **_: Any) -> None:
        assert model.name == "Query"
        consistent.append(json.loads(params["body"])["ConsistentRead"])

    for found in ("", "x", "x" * 400_000):
        if found:
            entry = ArtifactWritten(artifact("a", found))
            head = await watched.commit(head, Commit(entries=(entry,)))
        events = on_dynamo(watched).client.meta.events
        events.register("before-call.dynamodb.*", note)
        await tail.poll()
        events.unregister("before-call.dynamodb.*", note)
        assert tail.head == head
    assert consistent == [True, True, True]
