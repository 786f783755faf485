"""How things go wrong: what is counted of it and of repairs, and one sentence for an end."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable
from unittest import mock

import httpx
import pytest
from a2a.server.agent_execution import RequestContext
from a2a.server.events import EventQueue
from starlette.types import Receive, Send
from starlette.types import Scope as AsgiScope

from a2a_serverless.clock import SystemClock
from a2a_serverless.errors import ConcurrencyError, UnavailableError
from a2a_serverless.http.function import observed
from a2a_serverless.http.intake import Wait, cancel
from a2a_serverless.observability import metrics
from a2a_serverless.storage.durable import DurableStorage
from a2a_serverless.storage.endings import _CANCELED, never_started
from a2a_serverless.tasks.head import FailedBy, Head, Operation, plain_state
from a2a_serverless.tasks.identity import ANONYMOUS
from a2a_serverless.tasks.rules import Commit
from a2a_serverless.worker import failures
from a2a_serverless.worker.meter import BudgetError
from a2a_serverless.worker.settlement import failed_by
from a2a_serverless.worker.steps import NonDeterminismError
from a2a_serverless.worker.sweeper import DeadLetters, Sweeper
from a2a_serverless_tools.contract import Storage
from tests.support.clocks import ManualClock
from tests.support.observed import counted, logged
from tests.support.workers import Agent, Execute, S, chunk, complete, params_of, status
from tests.unit.tasks.heads import opened
from tests.unit.worker.stand import Patch, Repairs, Stand, beside, sent
from tests.unit.worker.test_canceling import silent
from tests.unit.worker.test_retrying import answer


async def test_a_fenced_attempt_is_counted() -> None:
    """An attempt that lost its turn to another one, and could not write, counts as fenced."""

    async def robbed(context: RequestContext, queue: EventQueue) -> None:
        await stand.storage.commit(await stand.head(), Commit(token="another", claims=True))
        await complete(context, queue)

    stand = await sent(Agent(robbed))
    with counted() as seen:
        assert await stand.bench.work() is False
    assert (seen.values("FencedWrites"), seen.values("TimeToEnd")) == ([1.0], [])


async def test_a_task_that_ends_by_itself_is_no_forced_cancel(monkeypatch: Patch) -> None:
    """The agent was faster than the API's own end of the task, which was refused."""
    stand = await sent(Agent(silent), clock=SystemClock())
    end = Storage(stand.storage).update_task(stand.task.task_id, S.TASK_STATE_COMPLETED)
    beside(monkeypatch, "commit", lambda: end)
    with counted() as seen, logged() as lines:
        await by_the_api(stand)
    assert (await stand.state(), seen.values("ForcedCancels")) == (S.TASK_STATE_COMPLETED, [])
    assert seen.values("TasksEnded", state="completed") == [1.0]
    assert "cancel_forced" not in {line.get("action") for line in lines}


async def test_a_cancel_in_trouble_is_counted_once(monkeypatch: Patch) -> None:
    """Lost races are no cancels; a cancel comes true without the queue, whose fault is counted."""
    commit, races = DurableStorage.commit, iter(range(3))

    async def slower(self: DurableStorage, head: Head, wanted: Commit) -> Head:
        for _ in races:
            raise ConcurrencyError
        return await commit(self, head, wanted)

    stand = await sent(Agent(silent), clock=SystemClock())
    monkeypatch.setattr(DurableStorage, "commit", slower)
    monkeypatch.setattr(stand.queue, "send", mock.AsyncMock(side_effect=OSError))
    with counted() as seen:
        await by_the_api(stand)
    assert await stand.state() == S.TASK_STATE_CANCELED
    assert seen.values("ForcedCancels") == seen.values("SendFailures") == [1.0]


async def test_dead_letters_are_counted_by_their_outcome() -> None:
    """Resent, failed, dropped, undecodable; lines name the task, its conversation and its turn."""
    repairs = Repairs(attempts=1)
    head = await repairs.open()
    body = Operation.to_run(params_of(head)).model_dump_json()
    with counted() as seen, logged() as lines:
        await repairs.dead_letters.handle(body)
        await repairs.claim(await repairs.head(head))
        for letter in (body, body, "no operation"):
            await repairs.dead_letters.handle(letter)
    for outcome in ("resent", "failed", "dropped", "undecodable"):
        assert seen.values("DeadLetters", outcome=outcome) == [1.0]
    ids = {"task_id": head.task_id, "context_id": "context", "turn": 1}
    told = {line.get("action"): ids.items() <= line.items() for line in lines}
    assert (told["dead_letter_failed"], told["dead_letter_dropped"]) == (True, True)


@pytest.mark.parametrize("state", [S.TASK_STATE_COMPLETED, S.TASK_STATE_REJECTED])
async def test_an_end_is_counted_once(state: S) -> None:
    """The commit that ends a task is counted, and none that is refused after it."""
    repairs = Repairs()
    head = await repairs.open()
    with counted() as seen:
        await repairs.move(head, S.TASK_STATE_WORKING)
        await asyncio.gather(*(repairs.move(head, state) for _ in range(3)), return_exceptions=True)
    assert seen.values("TasksEnded", state=plain_state(state)) == [1.0]
    assert len(seen.values("TimeToEnd")) == 1


async def test_stream_function_writes_its_metrics_with_each_answer() -> None:
    """Behind the Lambda Web Adapter a request is an invocation, with its own id and end."""

    async def app(scope: AsgiScope, receive: Receive, send: Send) -> None:
        metrics.count("TurnsAccepted")
        logging.getLogger("a2a_serverless.test").info("asked")
        headers = {"type": "http.response.start", "status": 204, "headers": []}
        await send(headers)
        await send({"type": "http.response.body"})

    transport = httpx.ASGITransport(observed(app))
    invocations = [json.dumps({"request_id": "0a-1b"}), '{"request_id": "<script>"}', "[]", "{"]
    with counted() as seen, logged() as lines:
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            for number, invocation in enumerate(invocations, start=1):
                await client.get("/", headers={"x-amzn-lambda-context": invocation})
                assert len(seen.lines) == number
    assert [line.get("request_id") for line in lines] == ["0a-1b", None, None, None]


def raising(error: Exception) -> Execute:
    return mock.AsyncMock(side_effect=error)


async def fails(context: RequestContext, queue: EventQueue) -> None:
    await queue.enqueue_event(status(context, S.TASK_STATE_FAILED))


async def returns(_: RequestContext, __: EventQueue) -> None: ...


@pytest.mark.parametrize(
    ("execute", "reason"),
    [
        (raising(ValueError()), "raised"),
        (raising(ExceptionGroup("all", [failures.FinalError()])), "raised"),
        (raising(ExceptionGroup("all", [BudgetError()])), "budget"),
        (raising(answer(401)), "refused"),
        (raising(answer(503)), "unavailable"),
        (raising(failures.RetryLater(1)), "unavailable"),
        (raising(failures.WrongCallError()), "raised"),
        (fails, "agent"),
        (returns, "at_fault"),
    ],
)
async def test_a_failure_is_counted_by_its_reason(execute: Execute, reason: str) -> None:
    """What is raised says whose it is; a task that the agent leaves open is its fault."""
    stand = await sent(Agent(execute), max_attempts=1, retry_minutes=0)
    with counted() as seen:
        await stand.bench.work()
    assert seen.total("TasksEnded", state="failed") == 1
    found = {by: seen.total("TasksFailed", reason=by) for by in FailedBy}
    assert {by: count for by, count in found.items() if count} == {reason: 1}


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (failures.DeadlineError("step"), "deadline"),
        (NonDeterminismError("its steps differ"), "non_determinism"),
        (failures.StaleStateError(), "stale"),
        (UnavailableError(), "unavailable"),
    ],
)
def test_the_runtimes_own_errors_have_reasons(error: Exception, reason: str) -> None:
    """An attempt that the runtime itself has stopped fails its task for a reason of its own."""
    assert failed_by(error, None) == reason


async def test_failures_outside_of_an_attempt_have_reasons() -> None:
    """A dead letter of a turn whose attempts are used up, and a turn that no worker has started."""
    repairs = Repairs(attempts=1)
    dead = await repairs.claim(await repairs.open())
    with counted() as seen:
        await repairs.dead_letters.handle(Operation.to_run(params_of(dead)).model_dump_json())
        await repairs.open()
        repairs.clock.advance(25 * 3600)
        await repairs.sweep()
    assert seen.total("TasksFailed", reason="used_up") == 1
    assert seen.total("TasksFailed", reason="never_started") == seen.total("TurnsGivenUp") == 1
    assert seen.total("TasksEnded", state="failed") == 2


async def test_the_time_to_the_first_chunk() -> None:
    """It ends with the commit of a turn's first chunk, once; the attempt's own time goes on."""

    async def streams(context: RequestContext, queue: EventQueue) -> None:
        for text in ("one", "two"):
            await stand.clock.sleep(3)
            await queue.enqueue_event(chunk(context, text))
        await stand.clock.sleep(3)
        await complete(context, queue)

    stand = Stand(Agent(streams))
    with counted() as seen:
        await (await stand.begin(10))
    (first_ms,), (running_ms,) = seen.values("TimeToFirstChunk"), seen.values("TimeRunning")
    assert 3000 <= first_ms < 6000
    assert running_ms >= 9000


async def by_the_api(stand: Stand) -> None:
    wait, task_id = Wait(None, ""), stand.task.task_id
    await cancel(stand.bench.backends, ANONYMOUS, task_id, wait=wait, timeout_s=0.01)


async def by_the_worker(stand: Stand) -> None:
    await stand.cancel()
    await stand.bench.work()


async def by_the_sweeper(stand: Stand) -> None:
    await stand.storage.request_cancel(stand.task.task_id)
    later = ManualClock(start_ms=stand.clock.now_ms() + 3_600_000)
    await Sweeper(stand.storage, stand.queue, clock=later).sweep()


async def by_a_dead_letter(stand: Stand) -> None:
    letters = DeadLetters(stand.storage, stand.queue, retry=stand.bench.settings.retry())
    await letters.handle(Operation.to_cancel(params_of(stand.task)).model_dump_json())


@pytest.mark.parametrize("was_claimed", [False, True])
@pytest.mark.parametrize("end", [by_the_api, by_the_worker, by_the_sweeper, by_a_dead_letter])
async def test_a_canceled_task_says_the_same_whoever_ends_it(
    end: Callable[[Stand], Awaitable[None]], *, was_claimed: bool
) -> None:
    """A canceled task has the same sentence, whichever process ends it, claimed or not."""
    stand = await sent(Agent(silent, silent), clock=SystemClock(), cancel_timeout_s=0.05)
    if was_claimed:
        await stand.storage.commit(stand.task, Commit(token="attempt", claims=True))
    await end(stand)
    assert (await stand.state(), await stand.text()) == (S.TASK_STATE_CANCELED, _CANCELED)
    assert (await stand.shown()).status.message.task_id == stand.task.task_id


@pytest.mark.parametrize(("hours", "spoken"), [(1, "1 hour"), (24, "24 hours"), (0.5, "0.5 hours")])
def test_hours_are_spoken_as_one_says_them(hours: float, spoken: str) -> None:
    """The reason of a task that was given up names the time that a deployment has chosen."""
    (entry,) = never_started(opened(), hours * 3600).entries
    assert f"within {spoken}," in str(entry)
