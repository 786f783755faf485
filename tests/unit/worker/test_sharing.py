"""Turns that share an invocation: what is pulled and when, who may not, and how it all ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import pytest
from a2a.types import TaskState, TaskStatus

from a2a_serverless.errors import ConfigurationError
from a2a_serverless.observability import metrics
from a2a_serverless.queues.fifo import Handle
from a2a_serverless.tasks.entries import StatusChanged
from a2a_serverless.tasks.head import AttemptEnd, Operation, OperationParams
from a2a_serverless.tasks.rules import Commit, releasing, runs_alone
from a2a_serverless.worker.function import POLL_S, SPARE_S, _Sharing
from tests.support.queues import MemoryQueue, take
from tests.support.workers import Agent, Bench, PacedClock, complete

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
    assert [r.__dict__["action"] for r in caplog.records] == ["pull_failed"]


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
    """An open turn whose last attempt has neither ended it nor given it back."""
    bench = Bench(Agent(complete))
    head = await bench.send()
    assert not runs_alone(head)
    head = await bench.storage.commit(head, Commit(token="one", claims=True))
    assert runs_alone(head)
    end = AttemptEnd(token="one", reason="raised")
    released = await bench.storage.change(head, partial(releasing, end=end))
    assert released is not None
    assert not runs_alone(released)
    ended = await bench.storage.commit(released, Commit(token="one", ends_turn=True))
    assert not runs_alone(ended)


async def test_a_turn_that_lost_a_worker_runs_alone_to_its_end() -> None:
    """Also when its next attempt gives it back in order: all its operations go the same way."""
    bench = Bench(Agent(complete))
    head = await bench.send()
    for token in ("lost", "alone"):
        head = await bench.storage.commit(head, Commit(token=token, claims=True))
    await bench.storage.change(
        head, partial(releasing, end=AttemptEnd(token="alone", reason="raised"))
    )
    given_back = await bench.head(head)
    assert given_back.turn.released is not None
    assert runs_alone(given_back)
    asks = StatusChanged(TaskStatus(state=TaskState.TASK_STATE_INPUT_REQUIRED))
    head = await bench.storage.commit(given_back, Commit(entries=(asks,), token="alone"))
    assert not runs_alone(await bench.follow_up(head, "next"))
