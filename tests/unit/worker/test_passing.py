"""Faults that pass: a turn waits for its model, and starts again without using up an attempt."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import httpx
import pytest
from a2a.server.agent_execution import RequestContext
from a2a.server.events import EventQueue

from a2a_serverless.errors import UnavailableError
from a2a_serverless.settings import Settings
from a2a_serverless.tasks.attempts import (
    MOST_INTERRUPTIONS,
    MOST_STARTS,
    RetryPolicy,
    after_interruption,
    after_passing,
)
from a2a_serverless.tasks.head import Head, Operation, Uncounted
from a2a_serverless.wiring import memory_backends
from a2a_serverless.worker import FinalError, RetryLater, TaskContext, Worker
from a2a_serverless_tools.testing import AgentBench
from tests.support.heads import SMALL, with_fields
from tests.support.queues import MemoryQueue
from tests.support.workers import (
    Agent,
    Bench,
    PacedClock,
    S,
    chunk,
    complete,
    status_text,
)

TASKS = 5
LOOKS = 30
"""How often a test looks whether all tasks have ended."""


def answer(status: int, **headers: str) -> httpx.HTTPStatusError:
    """What httpx raises for an answer of a model."""
    request = httpx.Request("POST", "https://model.example/v1")
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    response = httpx.Response(status, headers=names, request=request)
    return httpx.HTTPStatusError("no", request=request, response=response)


class Model:
    """A model that does not answer until `away_s` of the test have passed."""

    def __init__(self, clock: PacedClock, away_s: float, error: Callable[[], Exception]) -> None:
        self.clock, self.away_s, self.error = clock, away_s, error
        self.asked: Counter[str] = Counter()

    async def execute(self, context: RequestContext, queue: EventQueue) -> None:
        assert context.task_id is not None
        self.asked[context.task_id] += 1
        await queue.enqueue_event(chunk(context, "partial"))
        if self.clock.monotonic() < self.away_s:
            raise self.error()
        await complete(context, queue)


def bench_of(agent: Any, clock: PacedClock, **settings: Any) -> Bench:
    """A worker whose queue waits by the test's clock, too."""
    of = Settings().model_copy(update=settings)
    queue = MemoryQueue(Operation, visibility_s=of.visibility_s, clock=clock)
    backends = replace(memory_backends(of, clock), operations=queue)
    return Bench(agent, clock=clock, backends=backends, **settings)


async def served(bench: Bench, clock: PacedClock, tasks: list[Head], within_s: int) -> list[Head]:
    """The tasks' last HEADs after a worker has run them, for at most `within_s`."""
    worker = asyncio.create_task(bench.adapter.serve(concurrency=TASKS))
    try:
        for _ in range(LOOKS):
            await clock.pass_time(within_s / LOOKS)
            heads = [await bench.head(task) for task in tasks]
            if all(head.is_terminal for head in heads):
                break
    finally:
        bench.operations.is_closed = True
        worker.cancel()
        await asyncio.gather(worker, return_exceptions=True)
    return heads


@pytest.mark.parametrize(("away_s", "headers"), [(3, {}), (300, {"retry_after": "7"})])
async def test_a_model_that_comes_back_fails_no_task(away_s: int, headers: dict[str, str]) -> None:
    """With and without Retry-After all tasks complete, each within ten starts and one attempt."""
    clock = PacedClock()
    model = Model(clock, away_s, lambda: answer(429, **headers))
    bench = bench_of(Agent(model.execute), clock)
    tasks = [await bench.send() for _ in range(TASKS)]
    heads = await served(bench, clock, tasks, within_s=2 * away_s + 60)
    assert Counter(head.state for head in heads) == {S.TASK_STATE_COMPLETED: TASKS}
    assert max(model.asked.values()) <= MOST_STARTS
    assert {head.turn.attempts for head in heads} == {1}
    assert {head.turn.uncounted.faults for head in heads} == {n - 1 for n in model.asked.values()}


async def test_refused_credentials_fail_at_once() -> None:
    """A 401 fails each task within 5 s, after one start, with a sentence and no secret."""
    clock = PacedClock()
    model = Model(clock, 3600, lambda: answer(401))
    bench = bench_of(Agent(model.execute), clock)
    tasks = [await bench.send() for _ in range(TASKS)]
    heads = await served(bench, clock, tasks, within_s=5)
    assert Counter(head.state for head in heads) == {S.TASK_STATE_FAILED: TASKS}
    assert set(model.asked.values()) == {1}
    text = status_text(await bench.task(tasks[0]))
    assert text.startswith(
        "A service that the agent calls has refused its credentials (HTTP 401). Correlation id: "
    )


async def test_a_model_that_stays_away_fails_the_task() -> None:
    """After ten starts, or the time of `retry_minutes`, the client reads what was not there."""
    clock = PacedClock()
    model = Model(clock, 10**6, lambda: answer(503))
    bench = bench_of(Agent(model.execute), clock)
    task = await bench.send()
    (head,) = await served(bench, clock, [task], within_s=1000)
    assert (head.state, model.asked[task.task_id]) == (S.TASK_STATE_FAILED, MOST_STARTS)
    text = status_text(await bench.task(task))
    assert text.startswith("A service that the agent calls was not there at 10 starts (HTTP 503):")


async def test_a_service_that_asks_for_a_year_fails_the_task_at_once() -> None:
    """A wait that is longer than `retry_minutes` cannot help; the sentence has both times."""
    clock = PacedClock()
    model = Model(clock, 10**6, lambda: answer(429, retry_after=str(365 * 86_400)))
    bench = bench_of(Agent(model.execute), clock)
    task = await bench.send()
    (head,) = await served(bench, clock, [task], within_s=3)
    assert (head.state, model.asked[task.task_id]) == (S.TASK_STATE_FAILED, 1)
    text = status_text(await bench.task(task))
    assert "will not be there for 525,600 minutes (HTTP 429)" in text
    assert "of the 15 minutes for which this agent waits 15 minutes are left" in text


async def test_the_wait_stands_on_the_task() -> None:
    """Client and operator read what the turn waits for and until when; partial work is gone."""
    clock = PacedClock()
    model = Model(clock, 3600, lambda: answer(429, retry_after="40"))
    bench = bench_of(Agent(model.execute), clock)
    task = await bench.send()
    assert await bench.work() is False
    head, shown = await bench.head(task), await bench.task(task)
    assert head.turn.released is not None
    assert (head.turn.attempts, head.turn.uncounted.faults) == (0, 1)
    assert head.turn.uncounted.waited == head.turn.released.until - clock.now_ms()
    assert head.turn.released.reason == "HTTPStatusError: HTTP 429"
    assert 40_000 <= head.turn.released.until - clock.now_ms() <= 44_000
    assert shown.status.state == S.TASK_STATE_WORKING
    assert status_text(shown).startswith(
        "The agent waits for a service that it calls (HTTP 429) and starts again at 2023-11-14T22:"
    )
    model.away_s = 0
    await clock.pass_time(45)
    assert await bench.work() is True
    done = await bench.task(task)
    assert status_text(done) == "done"
    assert [message.parts[0].text for message in done.history] == ["hello"]


def test_an_agent_says_that_it_has_to_wait() -> None:
    """`RetryLater` is a fault that passes, with the agent's own wait and reason."""

    class Indexed(Worker):
        async def handle(self, ctx: TaskContext) -> None:
            if not ready:
                ready.append(True)
                raise RetryLater(90, "the index is being built")
            await ctx.respond("found")

    ready: list[bool] = []
    with AgentBench(Indexed()) as bench:
        began = bench.clock.monotonic()
        run = bench.send("find it")
        assert (run.state, run.text) == ("completed", "found")
        assert bench.clock.monotonic() - began >= 90
        assert run.head.turn.attempts == 1


@pytest.mark.parametrize(
    "wrong",
    [-1, float("nan"), pytest.param(10**5000, id="huge"), "30", True],
)
def test_a_wrong_wait_fails_the_task_with_the_right_call(wrong: Any) -> None:
    """`RetryLater(-1)` is the author's mistake: one sentence, one start."""

    class Wrong(Worker):
        async def handle(self, ctx: TaskContext) -> None:
            raise RetryLater(wrong)

    with AgentBench(Wrong()) as bench:
        run = bench.send("go")
    assert (run.state, run.attempts) == ("failed", 1)
    assert "takes the seconds to wait, a number from 0 to 10,000,000,000," in str(run.errors[0])


async def test_without_retry_minutes_a_fault_uses_up_attempts() -> None:
    """`retry_minutes=0` turns it off: three starts, then the fixed sentence."""
    clock = PacedClock()
    model = Model(clock, 3600, lambda: answer(503))
    bench = bench_of(Agent(model.execute), clock, retry_minutes=0)
    task = await bench.send()
    (head,) = await served(bench, clock, [task], within_s=30)
    assert (head.state, model.asked[task.task_id]) == (S.TASK_STATE_FAILED, 3)


async def test_other_failures_keep_their_attempts() -> None:
    """Faults that pass between failures of the agent take none of its attempts, and give none."""
    clock = PacedClock()
    errors = [ValueError(), answer(503), ValueError(), answer(503), ValueError()]

    async def execute(context: RequestContext, queue: EventQueue) -> None:
        raise errors.pop(0)

    bench = bench_of(Agent(execute), clock)
    task = await bench.send()
    (head,) = await served(bench, clock, [task], within_s=60)
    assert (head.state, head.turn.attempts, errors) == (S.TASK_STATE_FAILED, 3, [])


async def test_a_delivery_that_comes_early_starts_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the queue was not told of the wait, the message goes back for what is left of it."""
    clock = PacedClock()
    model = Model(clock, 3600, lambda: answer(429, retry_after="100"))
    bench = bench_of(Agent(model.execute), clock)
    task = await bench.send()
    handle = await bench.deliver()

    async def unheard(*, delay_s: float = 0) -> None:
        raise UnavailableError("no answer")

    monkeypatch.setattr(handle, "nack", unheard)
    assert await bench.adapter.process(handle) is False
    head = await bench.head(task)
    await clock.pass_time(61)
    assert await bench.work() is False
    assert (model.asked[task.task_id], await bench.head(task)) == (1, head)
    model.away_s = 0
    await clock.pass_time(50)
    assert await bench.work() is True


async def test_a_fault_is_one_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the turn waits for, and that the attempt does not count, are stored or not together."""
    clock = PacedClock()
    model = Model(clock, 3600, lambda: answer(503))
    bench = bench_of(Agent(model.execute), clock, max_attempts=1)
    task = await bench.send()

    async def unheard(*_: Any, **__: Any) -> bool:
        raise UnavailableError("no answer")

    monkeypatch.setattr(type(bench.storage), "change", unheard)
    assert await bench.work() is False
    head = await bench.head(task)
    assert (head.turn.attempts, head.turn.uncounted.faults, head.turn.released is not None) == (
        0,
        1,
        True,
    )


@pytest.mark.parametrize("text", ["half \ud800 of a character", "x" * 2_000_000])
async def test_a_text_that_cannot_be_stored_as_it_is(text: str) -> None:
    """A final text is cut and mended, so that the task fails with it."""
    clock = PacedClock()

    async def execute(context: RequestContext, queue: EventQueue) -> None:
        raise FinalError("for the log", client_text=text)

    bench = bench_of(Agent(execute), clock)
    task = await bench.send()
    assert await bench.work() is True
    said = status_text(await bench.task(task))
    assert said.startswith((text[:5], "xxxxx"))
    assert len(said) < 1100


async def test_interruptions_are_bounded(caplog: pytest.LogCaptureFixture) -> None:
    """A turn whose workers are always told to stop ends; a line says when that begins to count."""
    clock = PacedClock()

    async def begin(context: RequestContext, queue: EventQueue) -> None:
        await queue.enqueue_event(chunk(context, "begun"))
        await asyncio.Event().wait()

    agent = Agent(begin)
    bench = bench_of(agent, clock)
    task = await bench.send()
    for _ in range(40):
        if (await bench.head(task)).is_terminal:
            break
        bench.operations.is_closed = False
        worker = asyncio.create_task(bench.adapter.serve(concurrency=1))
        await clock.pass_time(0.5)
        bench.operations.is_closed = True
        worker.cancel()
        await asyncio.gather(worker, return_exceptions=True)
    head = await bench.head(task)
    assert head.state == S.TASK_STATE_FAILED
    assert len(agent.started) == MOST_INTERRUPTIONS + 3
    said = [r for r in caplog.records if getattr(r, "action", "") == "interrupted_often"]
    assert [r.__dict__["interruptions"] for r in said] == [21, 22, 23]


@pytest.mark.parametrize(
    ("interruptions", "attempts"),
    [(0, 1), (MOST_INTERRUPTIONS - 1, 1), (MOST_INTERRUPTIONS, 2), (MOST_INTERRUPTIONS + 1, 2)],
)
def test_the_first_interruptions_use_up_no_attempt(interruptions: int, attempts: int) -> None:
    """Up to the bound the count of attempts stays; beyond it each one counts."""
    head = with_fields(SMALL, attempts=1, uncounted=Uncounted(interruptions=interruptions))
    counted, uncounted = after_interruption(head.turn, head.turn.attempts)
    assert (counted, uncounted.interruptions) == (attempts, interruptions + 1)


@pytest.mark.parametrize(
    ("jitter", "minutes"), [(0.0, 0.05), (1.0, 0.05), (0.5, 15), (0.0, 600), (1.0, 600)]
)
def test_the_starts_are_spread_over_the_window(jitter: float, minutes: float) -> None:
    """Ten starts cover a third of the window or more, and all of them lie within it."""
    retry = RetryPolicy(window_s=minutes * 60, jitter=lambda: jitter)
    uncounted = Uncounted()
    while (later := after_passing(uncounted, retry)) is not None:
        uncounted = later
    assert uncounted.faults == MOST_STARTS - 1
    assert retry.window_s / 3 <= uncounted.waited / 1000 <= retry.window_s
