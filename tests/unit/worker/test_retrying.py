"""What happens after an attempt failed: another one, or the end of the task."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest
from a2a.server.agent_execution import RequestContext
from a2a.server.events import EventQueue
from a2a.utils.errors import UnsupportedOperationError

from a2a_serverless.errors import UnavailableError
from a2a_serverless.storage.durable import DurableStorage
from a2a_serverless.tasks.fold import Log
from a2a_serverless.tasks.head import LOST, AttemptEnd
from a2a_serverless.tasks.rules import Commit
from a2a_serverless.worker import FinalError
from tests.support.workers import (
    Agent,
    Bench,
    Execute,
    PacedClock,
    S,
    artifact_texts,
    chunk,
    complete,
    status,
    status_text,
)

FIXED = re.compile(r"The agent could not finish the task\. Correlation id: [0-9a-f]{16}\.")


class OwnFinalError(Exception):
    """An agent's own exception that says no attempt can help."""

    final = True


def raising(error: Exception) -> Execute:
    async def execute(context: RequestContext, queue: EventQueue) -> None:
        await queue.enqueue_event(chunk(context, "partial"))
        raise error

    return execute


@pytest.mark.parametrize("max_attempts", [1, 3])
async def test_an_agent_is_started_max_attempts_times(
    max_attempts: int, caplog: pytest.LogCaptureFixture
) -> None:
    """After the last attempt the task fails, with a fixed sentence that the log can be found by."""
    agent = Agent(raising(ValueError("database password is hunter2")))
    bench = Bench(agent, max_attempts=max_attempts, retry_base_s=0)
    task = await bench.send()
    outcomes = [await bench.work() for _ in range(max_attempts)]
    assert outcomes == [False] * (max_attempts - 1) + [True]
    assert len(agent.started) == max_attempts
    head = await bench.head(task)
    assert (head.state, head.turn.attempts) == (S.TASK_STATE_FAILED, max_attempts)
    text = status_text(await bench.task(task))
    assert FIXED.fullmatch(text)
    logged = [r for r in caplog.records if getattr(r, "action", "") == "gave_up"]
    assert text.split()[-1].rstrip(".") in logged[0].getMessage()
    assert logged[0].exc_info is not None
    assert logged[0].__dict__["task_id"] == task.task_id


async def test_a_failed_attempt_waits_longer_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The delivery is hidden for the back-off of the attempts that HEAD has counted."""
    delays: list[float] = []
    clock = PacedClock()
    bench = Bench(Agent(raising(ValueError())), clock=clock, max_attempts=4, retry_base_s=2)
    object.__setattr__(bench.adapter.retry, "jitter", lambda: 1.0)
    task = await bench.send()
    for _ in range(3):
        await clock.pass_time(sum(delays[-1:]))
        handle = await bench.deliver()

        async def nack(*, delay_s: float = 0, handle: Any = handle) -> None:
            delays.append(delay_s)
            await type(handle).nack(handle, delay_s=0)

        monkeypatch.setattr(handle, "nack", nack)
        assert await bench.adapter.process(handle) is False
    assert delays == [2, 4, 8]
    assert (await bench.head(task)).state == S.TASK_STATE_WORKING


async def test_receives_that_never_ran_are_no_attempts() -> None:
    """SQS counts throttled receives; an agent still gets all of its attempts."""
    agent = Agent(raising(ValueError()))
    bench = Bench(agent, max_attempts=2, retry_base_s=0)
    task = await bench.send()
    for _ in range(5):
        await (await bench.deliver()).nack()
    assert await bench.work() is False
    await (await bench.deliver()).nack()
    assert await bench.work() is True
    assert len(agent.started) == 2
    assert (await bench.head(task)).state == S.TASK_STATE_FAILED


async def test_attempts_that_died_count() -> None:
    """A turn whose workers all died fails without another start; its commit says so of the last."""
    agent = Agent(complete)
    bench = Bench(agent, max_attempts=3)
    task = await bench.send()
    head = task
    for token in "abc":
        head = await bench.storage.commit(head, Commit(token=token, claims=True))
    assert await bench.work() is True
    assert agent.started == []
    assert FIXED.fullmatch(status_text(await bench.task(task)))
    assert (await bench.records(task))[-1].ended == AttemptEnd(token="c", reason=LOST)


async def test_a_cancel_comes_before_the_end_of_used_up_attempts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A cancel between the read of a used-up turn and its end is not overtaken by a failure."""
    bench = Bench(Agent(complete), max_attempts=1)
    task = await bench.send()
    await bench.storage.commit(task, Commit(token="a", claims=True))
    read = DurableStorage.read

    async def late(self: DurableStorage, *args: Any, **options: Any) -> Log | None:
        log = await read(self, *args, **options)
        await bench.storage.request_cancel(task.task_id)
        return log

    with monkeypatch.context() as patch:
        patch.setattr(DurableStorage, "read", late)
        assert await bench.work() is True
    assert (await bench.head(task)).state == S.TASK_STATE_WORKING
    await bench.cancel(task)
    assert await bench.work() is True
    assert (await bench.head(task)).state == S.TASK_STATE_CANCELED


def group(*errors: Exception) -> ExceptionGroup[Exception]:
    return ExceptionGroup("as a TaskGroup raises it", errors)


def nested(error: Exception) -> Exception:
    for _ in range(3000):
        error = group(error)
    return error


def chained() -> Exception:
    error: Exception = ValueError()
    for _ in range(3000):
        cause, error = error, ValueError()
        error.__cause__ = cause
    return error


@pytest.mark.parametrize("deep", [nested(ValueError()), chained()], ids=["group", "chain"])
async def test_an_exception_of_any_depth_is_one_failed_attempt(deep: Exception) -> None:
    """Deeper than Python recurses, it is looked at and logged: `MaxAttempts` starts, no more."""
    agent = Agent(raising(deep))
    bench = Bench(agent, max_attempts=3, retry_base_s=0)
    task = await bench.send()
    assert [await bench.work() for _ in range(3)] == [False, False, True]
    assert (await bench.head(task)).state == S.TASK_STATE_FAILED
    assert len(agent.started) == 3


@pytest.mark.parametrize(
    "error",
    [
        FinalError("no"),
        OwnFinalError(),
        UnsupportedOperationError("no"),
        group(FinalError("no")),
        group(ValueError(), group(UnsupportedOperationError("no"), TimeoutError())),
        pytest.param(nested(FinalError("no")), id="deep"),
    ],
)
async def test_a_final_exception_fails_the_task_at_once(error: Exception) -> None:
    """A final error fails the task on its first attempt; what was emitted before is kept."""
    agent = Agent(raising(error))
    bench = Bench(agent)
    task = await bench.send()
    assert await bench.work() is True
    done = await bench.task(task)
    assert done.status.state == S.TASK_STATE_FAILED
    assert FIXED.fullmatch(status_text(done))
    assert artifact_texts(done) == {"a": ["partial"]}
    assert len(agent.started) == 1


@pytest.mark.parametrize("state", [S.TASK_STATE_COMPLETED, S.TASK_STATE_INPUT_REQUIRED])
async def test_an_exception_after_the_end_changes_nothing(
    state: S, caplog: pytest.LogCaptureFixture
) -> None:
    """The turn has ended; what its agent raises then is logged."""

    async def late(context: RequestContext, queue: EventQueue) -> None:
        await queue.enqueue_event(status(context, state))
        raise ValueError

    bench = Bench(Agent(late))
    task = await bench.send()
    assert await bench.work() is True
    head = await bench.head(task)
    assert (head.state, head.version) == (state, 2)
    assert [r.__dict__["action"] for r in caplog.records if r.exc_info] == ["error_after_end"]


async def test_what_a_failed_attempt_had_not_committed_is_gone() -> None:
    """The next attempt starts over, so that nothing more of the failed one is stored for it."""
    clock = PacedClock()

    async def execute(context: RequestContext, queue: EventQueue) -> None:
        await queue.enqueue_event(chunk(context, "stored"))
        await clock.sleep(0.05)
        await queue.enqueue_event(chunk(context, "waits for others"))
        raise ValueError

    bench = Bench(Agent(execute), clock=clock, retry_base_s=0)
    task = await bench.send()
    working = asyncio.create_task(bench.work())
    await clock.pass_time(1)
    assert await working is False
    now = await bench.task(task)
    assert now.status.state == S.TASK_STATE_WORKING
    assert artifact_texts(now) == {"a": ["stored"]}


async def test_an_unanswered_commit_is_left_to_the_next_attempt(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A commit without an answer gives the turn back, and the next attempt completes it."""
    bench = Bench(Agent(complete), retry_base_s=0)
    task = await bench.send()

    async def unavailable(*_: object) -> None:
        raise UnavailableError

    with monkeypatch.context() as broken:
        broken.setattr(type(bench.storage), "commit", unavailable)
        assert await bench.work() is False
    assert (await bench.head(task)).version == 1
    assert await bench.work() is True
    assert (await bench.head(task)).state == S.TASK_STATE_COMPLETED


async def test_an_event_beyond_the_limit_fails_the_task() -> None:
    """A chunk that no transaction takes fails the task, which says the limit and the way out."""

    async def verbose(context: RequestContext, queue: EventQueue) -> None:
        await queue.enqueue_event(chunk(context, "small"))
        large = chunk(context, "large")
        large.metadata["much"] = "x" * 4_100_000  # what is no content of a part is not set apart
        await queue.enqueue_event(large)
        await complete(context, queue)

    agent = Agent(verbose)
    bench = Bench(agent, clock=PacedClock())  # no timer commits the first chunk alone
    task = await bench.send()
    assert await bench.work() is True
    done = await bench.task(task)
    assert done.status.state == S.TASK_STATE_FAILED
    sentence = status_text(done)
    assert "exceeds the limit of 4000000 bytes: artifact 'a' has 4100" in sentence
    assert sentence.endswith(" bytes, split it with append=True.")
    assert artifact_texts(done) == {"a": ["small"]}
