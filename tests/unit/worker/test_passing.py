"""Faults that pass: a turn waits for its model, and starts again without using up an attempt."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any
from unittest.mock import AsyncMock

import httpx
import pytest
from a2a.server.agent_execution import RequestContext
from a2a.server.events import EventQueue

from a2a_serverless.errors import UnavailableError
from a2a_serverless.storage.durable import DurableStorage
from a2a_serverless.tasks.attempts import (
    MOST_INTERRUPTIONS,
    MOST_STARTS,
    RetryPolicy,
    after_passing,
)
from a2a_serverless.tasks.head import Head, Uncounted
from a2a_serverless.worker import FinalError, RetryLater, TaskContext, Worker
from a2a_serverless_tools.testing import AgentBench
from tests.support.messages import said
from tests.support.workers import Agent, S, chunk, complete
from tests.unit.worker.stand import Log, Patch, Stand, lines, run, sent, told_to_end

TASKS = 5
LOOKS = 30
"""How often a test looks whether all tasks have ended."""


def answer(status: int, **headers: str) -> httpx.HTTPStatusError:
    """What httpx raises for an answer of a model."""
    request = httpx.Request("POST", "https://model.example/v1")
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    response = httpx.Response(status, headers=names, request=request)
    return httpx.HTTPStatusError("no", request=request, response=response)


class Away(Stand):
    """An agent whose model does not answer until `away_s` of the test have passed."""

    def __init__(self, away_s: float, status: int, *, asks: str = "", **settings: Any) -> None:
        self.away_s = away_s
        self.asked: Counter[str] = Counter()

        async def execute(context: RequestContext, queue: EventQueue) -> None:
            self.asked[context.task_id or ""] += 1
            await queue.enqueue_event(chunk(context, "partial"))
            if self.clock.monotonic() < self.away_s:
                raise answer(status, **({"retry_after": asks} if asks else {}))
            await complete(context, queue)

        super().__init__(Agent(execute), retry_base_s=2, visibility_s=60, **settings)


async def served(stand: Stand, within_s: float, count: int = 1) -> list[Head]:
    """The last HEADs of `count` tasks after a worker has run them, for at most `within_s`."""
    tasks = [await stand.send() for _ in range(count)]
    worker = asyncio.create_task(stand.bench.adapter.serve(concurrency=TASKS))
    try:
        for _ in range(LOOKS):
            await stand.clock.pass_time(within_s / LOOKS)
            heads = [await stand.head(task) for task in tasks]
            if all(head.is_terminal for head in heads):
                break
    finally:
        stand.queue.is_closed = True
        worker.cancel()
        await asyncio.gather(worker, return_exceptions=True)
    return heads


@pytest.mark.parametrize(("away_s", "asks"), [(3, ""), (300, "7")])
async def test_a_model_that_comes_back_fails_no_task(away_s: int, asks: str) -> None:
    """With and without Retry-After all tasks complete, each within ten starts and one attempt."""
    stand = Away(away_s, 429, asks=asks)
    heads = await served(stand, 2 * away_s + 60, TASKS)
    assert Counter(head.state for head in heads) == {S.TASK_STATE_COMPLETED: TASKS}
    assert max(stand.asked.values()) <= MOST_STARTS
    assert {head.turn.attempts for head in heads} == {1}
    assert {head.turn.uncounted.faults for head in heads} == {n - 1 for n in stand.asked.values()}


@pytest.mark.parametrize(
    ("status", "asks", "within_s", "starts", "says"),
    [
        (
            *(401, "", 5, 1),
            "A service that the agent calls has refused its credentials (HTTP 401). Correlation",
        ),
        (
            *(503, "", 1000, MOST_STARTS),
            "A service that the agent calls was not there at 10 starts (HTTP 503):",
        ),
        (*(429, "31536000", 3, 1), "will not be there for 525,600 minutes (HTTP 429)"),
        (*(429, "31536000", 3, 1), "of the 15 minutes for which this agent waits 15 minutes are"),
    ],
    ids=["refused", "away", "a year", "what is left"],
)
async def test_a_model_that_stays_away_fails_the_task(
    status: int, asks: str, within_s: int, starts: int, says: str
) -> None:
    """At once where no wait helps; else after ten starts: the client reads what was not there."""
    stand = Away(10**6, status, asks=asks)
    (head,) = await served(stand, within_s)
    assert (head.state, stand.asked[head.task_id]) == (S.TASK_STATE_FAILED, starts)
    assert says in await stand.text()


async def test_the_wait_stands_on_the_task() -> None:
    """Client and operator read what the turn waits for and until when; partial work is gone."""
    stand = Away(3600, 429, asks="40")
    await stand.send()
    assert await stand.bench.work() is False
    head, released = await stand.head(), await stand.released()
    waits_ms = released.until - stand.clock.now_ms()
    uncounted = Uncounted(faults=1, waited=waits_ms)
    assert (head.turn.attempts, head.turn.uncounted) == (0, uncounted)
    assert released.reason == "HTTPStatusError: HTTP 429"
    assert 40_000 <= waits_ms <= 44_000
    assert head.state == S.TASK_STATE_WORKING
    assert (await stand.text()).startswith(
        "The agent waits for a service that it calls (HTTP 429) and starts again at 2023-11-14T22:"
    )
    stand.away_s = 0
    await stand.clock.pass_time(45)
    assert await stand.bench.work() is True
    assert (await stand.text(), said(await stand.shown())) == ("done", ["hello"])


@pytest.mark.parametrize("wrong", [-1, float("nan"), pytest.param(10**5000, id="huge"), "30", True])
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
    stand = Away(3600, 503, retry_minutes=0)
    (head,) = await served(stand, 30)
    assert (head.state, stand.asked[head.task_id]) == (S.TASK_STATE_FAILED, 3)


async def test_other_failures_keep_their_attempts() -> None:
    """Faults that pass between failures of the agent take none of its attempts, and give none."""
    raises = AsyncMock(side_effect=[*[ValueError(), answer(503)] * 2, ValueError()])
    (head,) = await served(Stand(Agent(raises)), 60)
    found = (head.state, head.turn.attempts, raises.await_count)
    assert found == (S.TASK_STATE_FAILED, 3, 5)


async def test_a_delivery_that_comes_early_starts_nothing(monkeypatch: Patch) -> None:
    """If the queue was not told of the wait, the message goes back for what is left of it."""
    stand = Away(3600, 429, asks="100")
    task = await stand.send()
    handle = await stand.bench.deliver()
    monkeypatch.setattr(handle, "nack", AsyncMock(side_effect=UnavailableError("no answer")))
    assert await stand.bench.adapter.process(handle) is False
    head = await stand.head()
    await stand.clock.pass_time(61)
    assert await stand.bench.work() is False
    assert (stand.asked[task.task_id], await stand.head()) == (1, head)
    stand.away_s = 0
    await stand.clock.pass_time(50)
    assert await stand.bench.work() is True


async def test_a_fault_is_one_commit(monkeypatch: Patch) -> None:
    """What the turn waits for, and that the attempt does not count, are stored or not together."""
    stand = Away(3600, 503, max_attempts=1)
    await stand.send()
    unheard = AsyncMock(side_effect=UnavailableError("no answer"))
    monkeypatch.setattr(DurableStorage, "change", unheard)
    assert await stand.bench.work() is False
    turn = (await stand.head()).turn
    assert (turn.attempts, turn.uncounted.faults, turn.released is not None) == (0, 1, True)


@pytest.mark.parametrize("text", ["half \ud800 of a character", "x" * 2_000_000])
async def test_a_text_that_cannot_be_stored_as_it_is(text: str) -> None:
    """A final text is cut and mended, so that the task fails with it."""
    error = FinalError("for the log", client_text=text)
    stand, head = await run(Agent(AsyncMock(side_effect=error)))
    assert (head.state, len(stand.agent.started)) == (S.TASK_STATE_FAILED, 1)
    shown = await stand.text()
    assert shown.startswith((text[:5], "xxxxx"))
    assert len(shown) < 1100


async def test_interruptions_are_bounded(caplog: Log) -> None:
    """A turn whose workers are always told to stop ends; a line says when that begins to count."""

    async def begin(context: RequestContext, queue: EventQueue) -> None:
        await queue.enqueue_event(chunk(context, "begun"))
        await asyncio.Event().wait()

    stand = await sent(Agent(begin))
    stand.queue._max_receives = 100  # its deliveries do not run out before its attempts
    attempts = list[int]()
    for _ in range(40):
        head = await stand.head()
        if head.is_terminal:
            break
        attempts.append(head.turn.attempts)
        worker = asyncio.create_task(stand.bench.adapter.serve(concurrency=1))
        await stand.clock.pass_time(0.5)
        await told_to_end(stand.bench, worker)
    assert await stand.state() == S.TASK_STATE_FAILED
    assert len(stand.agent.started) == MOST_INTERRUPTIONS + 3
    assert attempts == [0] * (MOST_INTERRUPTIONS + 1) + [1, 2, 3]
    told = [line["interruptions"] for line in lines(caplog, "interrupted_often")]
    assert told == [21, 22, 23]


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
