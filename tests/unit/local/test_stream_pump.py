from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, suppress
from typing import Any

import pytest

from a2a_serverless_tools.local.sources import Consume, StreamSource
from tests.support.simulation import pumps
from tests.support.simulation.environments import Environments, Handler
from tests.support.simulation.pumps import StreamFilter, StreamPump

MakeFunction = Callable[[Handler], Environments]


def record(number: str) -> dict[str, Any]:
    return {"dynamodb": {"SequenceNumber": number}}


def numbers(event: dict[str, Any]) -> list[str]:
    return [each["dynamodb"]["SequenceNumber"] for each in event["Records"]]


class ListSource(StreamSource):
    """One batch after the other."""

    def __init__(self, *batches: str) -> None:
        self.batches = batches
        self.settled: list[str] = []
        self.done = asyncio.Event()

    async def feed(self, consume: Consume) -> None:
        for batch in self.batches:
            await consume([record(number) for number in batch])
            self.settled.append(batch)
        self.done.set()
        await asyncio.Event().wait()


@pytest.fixture
def make_function(monkeypatch: pytest.MonkeyPatch) -> Iterator[MakeFunction]:
    """Makes the environments of a handler; what fails is tried again without a pause."""
    monkeypatch.setattr(pumps, "FIRST_RETRY_S", 0)
    monkeypatch.setattr(pumps, "LONGEST_RETRY_S", 0)
    with ExitStack() as closing:

        def make(handler: Handler) -> Environments:
            function = Environments("push", lambda _: handler, limit=2, timeout_s=30)
            closing.callback(function.close)
            return function

        yield make


@asynccontextmanager
async def pumping(
    source: StreamSource, function: Environments, filter_: StreamFilter | None = None
) -> AsyncIterator[None]:
    """A pump that runs for the block."""
    task = asyncio.create_task(StreamPump(lambda: source, function, filter_).run())
    try:
        async with asyncio.timeout(10):
            yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


@pytest.mark.parametrize(
    ("failures", "calls"),
    [
        ({"abc": ["b"]}, ["abc", "bc", "de"]),
        ({"abc": ["c", "b"], "bc": ["c"]}, ["abc", "bc", "c", "de"]),
        ({"abc": ["x"]}, ["abc", "abc", "de"]),
        ({"abc": [""]}, ["abc", "abc", "de"]),
        ({}, ["abc", "de"]),
    ],
)
async def test_a_batch_is_settled_before_the_next_one(
    make_function: MakeFunction, failures: dict[str, list[str]], calls: list[str]
) -> None:
    """A batch comes again from its first failed record; an unknown id returns the whole batch."""
    left = dict(failures)
    called: list[str] = []

    def handler(event: dict[str, Any], _: Any) -> dict[str, Any]:
        batch = "".join(numbers(event))
        called.append(batch)
        failed = left.pop(batch, [])
        return {"batchItemFailures": [{"itemIdentifier": number} for number in failed]}

    source = ListSource("abc", "de")
    async with pumping(source, make_function(handler)):
        await source.done.wait()

    assert called == calls


async def test_an_exception_fails_the_whole_batch(make_function: MakeFunction) -> None:
    """After an exception or a senseless answer the whole batch is tried again."""
    answers: list[Any] = [LookupError(), {"batchItemFailures": [{}]}, {"batchItemFailures": 1}]
    called: list[list[str]] = []

    def handler(event: dict[str, Any], _: Any) -> Any:
        called.append(numbers(event))
        answer = answers.pop(0) if answers else None
        if isinstance(answer, Exception):
            raise answer
        return answer

    source = ListSource("ab", "c")
    async with pumping(source, make_function(handler)):
        await source.done.wait()

    assert called == [["a", "b"]] * 4 + [["c"]]


async def test_only_what_passes_the_filter_is_an_invocation(make_function: MakeFunction) -> None:
    """Records that the filter drops cause no invocation, as on AWS."""
    called: list[list[str]] = []

    def handler(event: dict[str, Any], _: Any) -> None:
        called.append(numbers(event))

    wanted = StreamFilter(['{"dynamodb": {"SequenceNumber": ["a", "d"]}}'])
    source = ListSource("ab", "c", "d")
    async with pumping(source, make_function(handler), wanted):
        await source.done.wait()

    assert called == [["a"], ["d"]]


async def test_a_stream_that_fails_is_read_again(make_function: MakeFunction) -> None:
    """An error of the stream does not end the pump."""

    class Flaky(ListSource):
        is_broken = True

        async def feed(self, consume: Consume) -> None:
            if self.is_broken:
                self.is_broken = False
                raise ConnectionError
            await super().feed(consume)

    source = Flaky("a")
    async with pumping(source, make_function(lambda *_: None)):
        await source.done.wait()

    assert source.settled == ["a"]
