"""Push behind its two event sources: batches, groups, deadlines and partial failures."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from typing import Any

import jwt
import pytest

from a2a_serverless.clock import SystemClock
from a2a_serverless.errors import ConfigurationError, InvalidArgumentError
from a2a_serverless.push.function import PushFunction
from a2a_serverless.push.jobs import PushJob
from a2a_serverless.queues.sqs import SqsFifoQueue
from a2a_serverless.storage.dictionaries import MemoryTable
from a2a_serverless.storage.layout import INDEXES
from a2a_serverless.storage.leases import Slots, _Slot
from a2a_serverless.tasks.head import Head
from tests.support.handlers import LambdaContext
from tests.support.queues import aside, done, take
from tests.unit.push.receivers import OK, Receiver, silence, status
from tests.unit.push.world import COMPLETED, WORKING, World, stream_record


class Source:
    """A function on real time, and what the event sources would pass to it."""

    def __init__(self, *, slots: Slots | None = None, **settings: Any) -> None:
        self.world = World(clock=SystemClock(), **{"push_issuer": "", **settings})
        self.function = self.of(slots=slots)

    def of(self, **others: Any) -> PushFunction:
        """The function on these backends in the place of the world's."""
        world = self.world
        return PushFunction(world.storage, replace(world.backends, **others), world.settings)

    def open(self, *urls: str) -> Head:
        """A task with a configuration for each URL; what is committed up to here is forgotten."""
        head: Head = asyncio.run(self.world.open(*urls))
        self.world.committed.clear()
        return head

    def say(self, head: Head, state: Any) -> None:
        asyncio.run(self.world.say(head, state))

    def tell(self, *urls: str) -> None:
        """Commit to a task with these receivers; their jobs are on the queue."""
        self.say(self.open(*urls), WORKING)
        assert self.handle(self.stream_event()) == []

    def stream_event(self) -> dict[str, Any]:
        """What the table's stream has."""
        records = [stream_record(c, n) for n, c in enumerate(self.world.committed, start=1)]
        self.world.committed.clear()
        return {"Records": records}

    def jobs(self) -> list[Mapping[str, Any]]:
        """All jobs that are visible."""
        return list(iter(lambda: take(self.world.jobs), None))

    def handle(self, event: dict[str, Any], context: Any = None) -> list[str]:
        answer = self.function.handle(event, context or LambdaContext())
        assert set(answer) == {"batchItemFailures"}
        return [failure["itemIdentifier"] for failure in answer["batchItemFailures"]]


@pytest.fixture
def source() -> Iterator[Source]:
    made = Source()
    yield made
    made.function.close()


class Taken(Slots):
    """Slots that others have; `asked` are the numbers of those that were wanted."""

    def __init__(self) -> None:
        super().__init__(MemoryTable(INDEXES))
        self.asked: set[int] = set()

    async def claim(self, slot: _Slot, token: str, *, until_ms: int) -> bool:
        self.asked.add(slot.number)
        return False


def test_a_callers_places_are_a_fifth_of_the_functions() -> None:
    """After a failure a request needs one of PushConcurrency / 5 places, or it is not made."""
    slots = Taken()
    source = Source(slots=slots, push_concurrency=15, push_retry_base_s=0.001)
    with Receiver(lambda _: status(503)) as receiver, closing(source.function):
        source.say(source.open(receiver.url()), COMPLETED)
        assert source.handle(source.stream_event()) == []
        [job] = source.jobs()
        for _ in range(2):  # as if it came again
            assert source.handle({"Records": [job]}) == [job["messageId"]]
        assert len(receiver.requests) == 1
    assert slots.asked == {0, 1, 2}


def test_from_a_commit_to_a_receiver(receiver: Receiver, source: Source) -> None:
    """A stream event makes jobs, an SQS event of one is a delivery, with a signature to check."""
    head = source.open(receiver.url())
    for state in (WORKING, COMPLETED):  # one event loop, many invocations
        source.say(head, state)
        assert source.handle(source.stream_event()) == []
        assert source.handle({"Records": source.jobs()}) == []
        assert asyncio.all_tasks(source.function._loop) == set()
    assert receiver.states == ["WORKING", "COMPLETED"]
    [published] = asyncio.run(source.world.keys.keys())
    token, key = receiver.requests[0].headers["x-a2a-signature"], jwt.PyJWK(dict(published.jwk))
    expected: dict[str, Any] = {"audience": receiver.url(path=""), "issuer": "a2a-serverless"}
    claims = jwt.decode(token, key, algorithms=["ES256"], **expected)
    assert claims["event_id"] == receiver.requests[0].event_id
    assert claims["sub"] == head.task_id


BOTH = {"push_issuer": "https://a.example", "public_url": "https://b.example"}


@pytest.mark.parametrize(
    ("settings", "issuer"),
    [
        (BOTH, "https://a.example"),
        ({"public_url": "https://b.example/me/"}, "https://b.example/me"),
    ],
)
def test_who_signs(receiver: Receiver, settings: dict[str, Any], issuer: str) -> None:
    """The issuer's own setting, else the public URL, without a slash at its end."""
    source = Source(**settings)
    with closing(source.function):
        source.tell(receiver.url())
        source.handle({"Records": source.jobs()})
    token = receiver.requests[0].headers["x-a2a-signature"]
    assert jwt.decode(token, options={"verify_signature": False})["iss"] == issuer


def test_groups_are_told_beside_each_other(source: Source) -> None:
    """A receiver that answers slowly keeps no other one of its batch waiting."""
    told = threading.Event()

    async def after_the_other() -> AsyncIterator[bytes]:
        assert await asyncio.to_thread(told.wait, 10)
        yield OK

    def note(_: object) -> bytes:
        told.set()
        return OK

    with Receiver(lambda _: after_the_other()) as slow, Receiver(note) as quick:
        source.tell(slow.url(), quick.url())
        assert source.handle({"Records": source.jobs()}) == []
        assert len(slow.requests) == len(quick.requests) == 1


def strange(record: Mapping[str, Any], name: str) -> dict[str, Any]:
    """A record like another one, in a group of its own, which is no job."""
    group = {**record["attributes"], "MessageGroupId": name}
    return {**record, "messageId": name, "body": "no job", "attributes": group}


def test_an_undecodable_record_is_kept(
    receiver: Receiver, source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It holds up no other; if keeping it fails, or raises, it alone is reported failed."""
    source.tell(receiver.url())
    [good] = source.jobs()
    bad = strange(good, "bad")
    assert source.handle({"Records": [bad, good]}) == []
    assert len(receiver.requests) == 1
    assert [kept.body for kept in done(aside(source.world.jobs).waiting())] == ["no job"]
    function = source.of(jobs=SqsFifoQueue(PushJob, "https://queue.example/jobs.fifo"))
    with closing(function):
        answer = function.handle({"Records": [bad]}, LambdaContext())
    assert answer == {"batchItemFailures": [{"itemIdentifier": "bad"}]}

    async def no_thread(*_: object, **__: object) -> bool:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(source.world.jobs, "keep_undecodable", no_thread)
    source.tell(receiver.url())
    [good] = source.jobs()
    bodiless = strange(good, "bodiless")
    del bodiless["body"]
    records = [strange(good, "bad"), bodiless, good]
    assert source.handle({"Records": records}) == ["bad", "bodiless"]
    assert len(receiver.requests) == 2


def test_a_receiver_has_his_time_and_no_more(receiver: Receiver) -> None:
    """A request ends before the invocation does, however long the setting allows it to take."""
    receiver.script = lambda _: silence()
    source, clock = Source(push_timeout_s=30), SystemClock()
    with closing(source.function):
        head = source.open(receiver.url())
        source.say(head, WORKING)
        source.handle(source.stream_event())
        [record] = source.jobs()
        began = clock.monotonic()
        failed = source.handle({"Records": [record]}, LambdaContext(left_s=0.5))
        assert failed == [record["messageId"]]
        assert clock.monotonic() - began < 10
    [push] = asyncio.run(source.world.storage.webhooks.all(head.task_id))
    assert push.failures == 1


def test_without_a_deadline_the_setting_alone_counts(source: Source, receiver: Receiver) -> None:
    """As on this machine, where no invocation ends."""
    source.tell(receiver.url())
    answer = source.function.handle({"Records": source.jobs()}, None)
    assert (answer, receiver.states) == ({"batchItemFailures": []}, ["WORKING"])


@pytest.mark.parametrize(
    "event",
    [
        {},
        {"Records": [{}]},
        {"Records": [{"eventSource": "aws:s3"}]},
        {"Records": [{"eventSource": "aws:sqs"}, {"eventSource": "aws:dynamodb"}]},
    ],
)
def test_an_event_of_another_source_is_refused(source: Source, event: dict[str, Any]) -> None:
    """A wrong wiring is an error, not a batch that was processed."""
    with pytest.raises(InvalidArgumentError, match="neither"):
        source.function.handle(event, LambdaContext())


def test_an_unreadable_list_of_hosts_stops_the_start() -> None:
    """An unreadable list of allowed hosts stops the function's start."""
    with pytest.raises(ConfigurationError, match="A2A_PUSH_ALLOWED_HOSTS"):
        Source(push_allowed_hosts="http://example.com")
