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
from a2a.types import TaskState
from starlette.types import Receive, Send
from starlette.types import Scope as AsgiScope

from a2a_serverless.errors import ConcurrencyError, UnavailableError
from a2a_serverless.http.function import observed
from a2a_serverless.http.intake import Wait, cancel
from a2a_serverless.observability import metrics
from a2a_serverless.settings import Settings
from a2a_serverless.storage.durable import DurableStorage
from a2a_serverless.storage.endings import _CANCELED, never_started
from a2a_serverless.tasks.attempts import RetryPolicy
from a2a_serverless.tasks.head import FailedBy, Head, Operation
from a2a_serverless.tasks.identity import ANONYMOUS
from a2a_serverless.tasks.rules import Commit
from a2a_serverless.wiring import Backends, memory_backends
from a2a_serverless.worker.failures import (
    DeadlineError,
    FinalError,
    RetryLater,
    StaleStateError,
    WrongCallError,
)
from a2a_serverless.worker.meter import BudgetError
from a2a_serverless.worker.settlement import failed_by
from a2a_serverless.worker.steps import NonDeterminismError
from a2a_serverless.worker.sweeper import DeadLetters, Sweeper
from a2a_serverless_tools.contract import Storage
from tests.support.clocks import ManualClock
from tests.support.messages import request
from tests.support.observed import Metrics, counted, logged
from tests.support.present import present
from tests.support.workers import (
    Agent,
    Bench,
    PacedClock,
    chunk,
    complete,
    params_of,
    status,
    status_text,
)
from tests.unit.tasks.heads import opened


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def backends(clock: ManualClock) -> Backends:
    return memory_backends(Settings(), clock)


def dead_letters_of(backends: Backends) -> DeadLetters:
    """A consumer for which one attempt is all that a turn gets."""
    retry = RetryPolicy(max_attempts=1)
    return DeadLetters(backends.storage, backends.operations, retry=retry)


async def test_a_fenced_attempt_is_counted() -> None:
    """An attempt that lost its turn to another one, and could not write, counts as fenced."""

    async def robbed(context: RequestContext, queue: EventQueue) -> None:
        head = await bench.storage.head(context.task_id or "")
        assert head is not None
        await bench.storage.commit(head, Commit(token="another", claims=True))
        await complete(context, queue)

    bench = Bench(Agent(robbed))
    await bench.send()
    with counted() as seen:
        assert await bench.work() is False
    assert seen.values("FencedWrites") == [1.0]
    assert seen.values("TimeToEnd") == []


async def canceled(backends: Backends | None = None) -> tuple[TaskState, Metrics]:
    """Cancel a new task, whose agent does nothing; its state, and what was counted."""
    backends = backends or memory_backends(Settings())
    head = (await backends.storage.open_task("ctx", request())).head
    with counted() as seen:
        tail = await cancel(backends, ANONYMOUS, head.task_id, wait=Wait(None, ""), timeout_s=0.01)
    return tail.head.state, seen


async def test_a_task_that_ends_by_itself_is_no_forced_cancel(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The agent was faster than the API's own end of the task, which was refused."""
    commit = DurableStorage.commit

    async def completed_first(self: DurableStorage, head: Head, wanted: Commit) -> Head:
        monkeypatch.setattr(DurableStorage, "commit", commit)
        await Storage(self).update_task(head.task_id, TaskState.TASK_STATE_COMPLETED)
        return await commit(self, head, wanted)

    monkeypatch.setattr(DurableStorage, "commit", completed_first)
    with logged() as lines:
        state, seen = await canceled()
    assert state == TaskState.TASK_STATE_COMPLETED
    assert seen.values("ForcedCancels") == []
    assert seen.values("TasksEnded", state="completed") == [1.0]
    assert "cancel_forced" not in {line.get("action") for line in lines}


async def test_a_cancel_in_trouble_is_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The agent writes on while the API wants to end its task: the lost races are no cancels.

    A client's cancel comes true without the queue, too; that it is down has to be seen.
    """
    commit, races, backends = DurableStorage.commit, iter(range(3)), memory_backends(Settings())

    async def slower(self: DurableStorage, head: Head, wanted: Commit) -> Head:
        for _ in races:
            raise ConcurrencyError
        return await commit(self, head, wanted)

    monkeypatch.setattr(DurableStorage, "commit", slower)
    monkeypatch.setattr(backends.operations, "send", mock.AsyncMock(side_effect=OSError))
    state, seen = await canceled(backends)
    assert state == TaskState.TASK_STATE_CANCELED
    assert seen.values("ForcedCancels") == seen.values("SendFailures") == [1.0]


async def test_dead_letters_are_counted_by_their_outcome(backends: Backends) -> None:
    """A turn sent again, a failed task, a dropped operation, a message that is no operation.

    The lines of the log name the task, its conversation and its turn.
    """
    head = (await backends.storage.open_task("ctx", request())).head
    body = Operation.to_run(params_of(head)).model_dump_json()
    dead_letters = dead_letters_of(backends)
    with counted() as seen, logged() as lines:
        await dead_letters.handle(body)
        now = present(await backends.storage.head(head.task_id))
        await backends.storage.commit(now, Commit(token="t", claims=True))
        for letter in (body, body, "no operation"):
            await dead_letters.handle(letter)
    for outcome in ("resent", "failed", "dropped", "undecodable"):
        assert seen.values("DeadLetters", outcome=outcome) == [1.0]
    ids = {"task_id": head.task_id, "context_id": "ctx", "turn": 1}
    told = {line.get("action"): ids.items() <= line.items() for line in lines}
    assert (told["dead_letter_failed"], told["dead_letter_dropped"]) == (True, True)


@pytest.mark.parametrize("state", [TaskState.TASK_STATE_COMPLETED, TaskState.TASK_STATE_REJECTED])
async def test_an_end_is_counted_once(backends: Backends, state: TaskState) -> None:
    """The commit that ends a task is counted, and none that is refused after it."""
    storage: DurableStorage = backends.storage
    head = (await storage.open_task("ctx", request())).head
    with counted() as seen:
        await Storage(storage).update_task(head.task_id, TaskState.TASK_STATE_WORKING)
        ends = (Storage(storage).update_task(head.task_id, state) for _ in range(3))
        await asyncio.gather(*ends, return_exceptions=True)
    name = TaskState.Name(state).removeprefix("TASK_STATE_").lower()
    assert seen.values("TasksEnded", state=name) == [1.0]
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


def answered(status_code: int) -> httpx.HTTPStatusError:
    request = httpx.Request("GET", "https://model")
    return httpx.HTTPStatusError("no", request=request, response=httpx.Response(status_code))


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (ValueError(), "raised"),
        (ExceptionGroup("all", [FinalError()]), "raised"),
        (ExceptionGroup("all", [BudgetError()]), "budget"),
        (answered(401), "refused"),
        (answered(503), "unavailable"),
        (RetryLater(1), "unavailable"),
        (WrongCallError(), "raised"),
    ],
)
async def test_a_failure_is_counted_by_its_reason(error: Exception, reason: str) -> None:
    """What the agent has raised says whose failure it is: each task counts once."""

    async def raising(_: RequestContext, __: EventQueue) -> None:
        raise error

    bench = Bench(Agent(raising), max_attempts=1, retry_minutes=0)
    await bench.send()
    assert await reasons_of(bench) == [(reason, 1)]


async def reasons_of(bench: Bench) -> list[tuple[str, float]]:
    """Run the next delivery; how many tasks have failed for which reasons."""
    with counted() as seen:
        await bench.work()
    assert seen.total("TasksEnded", state="failed") == 1
    found = [(by, seen.total("TasksFailed", reason=by)) for by in FailedBy]
    return [(by, count) for by, count in found if count]


async def test_an_end_of_the_agents_own_is_its_failure() -> None:
    """A task that the agent fails counts as the agent's; one that it leaves open is its fault."""

    async def fails(context: RequestContext, queue: EventQueue) -> None:
        await queue.enqueue_event(status(context, TaskState.TASK_STATE_FAILED))

    async def returns(_: RequestContext, __: EventQueue) -> None: ...

    for execute, reason in ((fails, "agent"), (returns, "at_fault")):
        bench = Bench(Agent(execute))
        await bench.send()
        assert await reasons_of(bench) == [(reason, 1)]


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (DeadlineError("step"), "deadline"),
        (NonDeterminismError("its steps differ"), "non_determinism"),
        (StaleStateError(), "stale"),
        (UnavailableError(), "unavailable"),
    ],
)
def test_the_runtimes_own_errors_have_reasons(error: Exception, reason: str) -> None:
    """An attempt that the runtime itself has stopped fails its task for a reason of its own."""
    assert failed_by(error, None) == reason


async def test_failures_outside_of_an_attempt_have_reasons(
    backends: Backends, clock: ManualClock
) -> None:
    """A dead letter of a turn whose attempts are used up, and a turn that no worker has started."""
    dead = (await backends.storage.open_task("ctx", request())).head
    await backends.storage.commit(dead, Commit(token="t", claims=True))
    body = Operation.to_run(params_of(dead)).model_dump_json()
    with counted() as seen:
        await dead_letters_of(backends).handle(body)
        await backends.storage.open_task("ctx", request())
        clock.advance(25 * 3600)
        await Sweeper(backends.storage, backends.operations, clock=clock).sweep()
    assert seen.total("TasksFailed", reason="used_up") == 1
    assert seen.total("TasksFailed", reason="never_started") == seen.total("TurnsGivenUp") == 1
    assert seen.total("TasksEnded", state="failed") == 2


async def test_the_time_to_the_first_chunk() -> None:
    """It ends with the commit of a turn's first chunk, once; the attempt's own time goes on."""
    clock = PacedClock()

    async def streams(context: RequestContext, queue: EventQueue) -> None:
        for text in ("one", "two"):
            await clock.sleep(3)
            await queue.enqueue_event(chunk(context, text))
        await clock.sleep(3)
        await complete(context, queue)

    bench = Bench(Agent(streams), clock=clock)
    await bench.send()
    with counted() as seen:
        working = asyncio.create_task(bench.work())
        await clock.pass_time(10)
        await working
    (first_ms,), (running_ms,) = seen.values("TimeToFirstChunk"), seen.values("TimeRunning")
    assert 3000 <= first_ms < 6000
    assert running_ms >= 9000


# -- sentences ------------------------------------------------------------------------------------

Ends = Callable[[Bench, Head], Awaitable[object]]


async def deaf(_context: RequestContext, _queue: EventQueue) -> None:
    await asyncio.Event().wait()


async def by_the_api(bench: Bench, task: Head) -> None:
    await cancel(bench.backends, ANONYMOUS, task.task_id, wait=Wait(None, ""), timeout_s=0.01)


async def by_the_worker(bench: Bench, task: Head) -> None:
    await bench.cancel(task)
    await bench.work()


async def by_the_sweeper(bench: Bench, task: Head) -> None:
    await bench.storage.request_cancel(task.task_id)
    later = ManualClock(start_ms=bench.clock.now_ms() + 3_600_000)
    await Sweeper(bench.storage, bench.operations, clock=later).sweep()


async def by_a_dead_letter(bench: Bench, task: Head) -> None:
    letters = DeadLetters(bench.storage, bench.operations, retry=bench.settings.retry())
    await letters.handle(Operation.to_cancel(params_of(task)).model_dump_json())


@pytest.mark.parametrize("was_claimed", [False, True])
@pytest.mark.parametrize("end", [by_the_api, by_the_worker, by_the_sweeper, by_a_dead_letter])
async def test_a_canceled_task_says_the_same_whoever_ends_it(
    end: Ends, *, was_claimed: bool
) -> None:
    """A canceled task has the same sentence, whichever process ends it, claimed or not."""
    bench = Bench(Agent(deaf, deaf), cancel_timeout_s=0.05)
    task = await bench.send()
    if was_claimed:
        await bench.storage.commit(task, Commit(token="attempt", claims=True))
    await end(bench, task)
    ended = await bench.task(task)
    assert ended.status.state == TaskState.TASK_STATE_CANCELED
    assert status_text(ended) == _CANCELED
    assert ended.status.message.task_id == task.task_id


@pytest.mark.parametrize(
    ("hours", "spoken"), [(1, "1 hour,"), (24, "24 hours,"), (0.5, "0.5 hours,")]
)
def test_hours_are_spoken_as_one_says_them(hours: float, spoken: str) -> None:
    """The reason of a task that was given up names the time that a deployment has chosen."""
    (entry,) = never_started(opened(), hours * 3600).entries
    assert f"within {spoken}" in str(entry)
