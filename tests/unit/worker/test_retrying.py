"""Running a turn, and what happens after a failed attempt: tries, waits for what passes."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from typing import Any
from unittest.mock import AsyncMock

import httpx
import pytest
from a2a.server.agent_execution import RequestContext
from a2a.server.events import EventQueue
from a2a.types import TaskStatus
from a2a.utils.errors import UnsupportedOperationError

from a2a_serverless.errors import UnavailableError
from a2a_serverless.queues.fifo import send_copy
from a2a_serverless.steps import sleep
from a2a_serverless.storage.deletion import count_data, delete_data, delete_task
from a2a_serverless.storage.durable import DurableStorage
from a2a_serverless.tasks import attempts
from a2a_serverless.tasks.attempts import MOST_STARTS, RetryPolicy, after_passing
from a2a_serverless.tasks.entries import Caller, StatusChanged
from a2a_serverless.tasks.head import LOST, AttemptEnd, Head, Operation, Uncounted
from a2a_serverless.tasks.rules import Commit
from a2a_serverless.worker import FinalError, RetryLater, TaskContext
from a2a_serverless_tools.contract import Storage
from tests.support.messages import request, said
from tests.support.present import present
from tests.support.workers import Agent, Execute, S, chunk, complete, params_of, status
from tests.unit.worker.stand import Log, Patch, Stand, actions, beside, lines, run, sent
from tests.unit.worker.test_ends_of_attempts import begin


async def returning(context: RequestContext, queue: EventQueue) -> None:
    """Asks and returns; takes the next message for the credentials."""
    if context.current_task is None:
        await queue.enqueue_event(chunk(context, "public"))
        await queue.enqueue_event(status(context, S.TASK_STATE_AUTH_REQUIRED, "log in"))
    else:
        await queue.enqueue_event(chunk(context, context.get_user_input(), artifact_id="b"))
        await queue.enqueue_event(status(context, S.TASK_STATE_COMPLETED, "done"))


async def sleeping(context: RequestContext, queue: EventQueue) -> None:
    """Asks, sleeps until the credentials are there, then asks for more; completes the next turn."""
    if context.get_user_input() == "hello":
        await queue.enqueue_event(status(context, S.TASK_STATE_AUTH_REQUIRED, "log in"))
        await sleep(3600)
        await queue.enqueue_event(status(context, S.TASK_STATE_INPUT_REQUIRED, "more?"))
    else:
        await queue.enqueue_event(status(context, S.TASK_STATE_COMPLETED, "done"))


def inputs(stand: Stand) -> list[str]:
    return [context.get_user_input() for context in stand.agent.started]


@pytest.mark.parametrize("in_line", [False, True])
async def test_an_answer_to_a_turn_that_is_left_holds_no_worker(*, in_line: bool) -> None:
    """Its delivery ends while the turn sleeps or waits for a share; it runs behind that."""
    conversations = "serial" if in_line else "parallel"
    stand, left = await run(Agent(sleeping), conversations=conversations)
    if in_line:  # its copy came late
        assert await stand.storage.requeue(left)
        assert await stand.storage.park(await stand.head(), "share")
        left = await stand.head()
    parked = "share" if in_line else "asleep"
    assert (left.turn.parked, left.state) == (parked, S.TASK_STATE_AUTH_REQUIRED)
    await stand.follow_up("here")
    assert await stand.bench.work()  # `tests.support.rounds` has counted how often it read the task
    assert inputs(stand) == ["hello"]
    await stand.clock.pass_time(3600)
    await send_copy(stand.queue, present(await stand.storage.requeue(await stand.head())))
    assert (await stand.work()).state == S.TASK_STATE_COMPLETED
    assert inputs(stand) == ["hello", "hello", "here"]
    assert said(await stand.shown()) == ["hello", "log in", "here", "more?"]


async def test_a_dead_queue_leaves_a_turn_to_the_sweeper(caplog: Log, monkeypatch: Patch) -> None:
    """The end of the turn before it is stored and acknowledged all the same."""
    credentials = asyncio.Event()

    async def staying(context: RequestContext, queue: EventQueue) -> None:
        await queue.enqueue_event(status(context, S.TASK_STATE_AUTH_REQUIRED, "log in"))
        await credentials.wait()
        await queue.enqueue_event(status(context, S.TASK_STATE_INPUT_REQUIRED, "more?"))

    stand = Stand(Agent(staying))
    working = await stand.begin(0.5)
    await stand.follow_up("here")
    monkeypatch.setattr(stand.queue, "send", AsyncMock(side_effect=UnavailableError("away")))
    credentials.set()
    await stand.clock.pass_time(0.5)
    assert await working
    assert actions(caplog) == ["next_turn_failed"]
    head = await stand.head()
    assert (head.state, head.turn.is_open) == (S.TASK_STATE_INPUT_REQUIRED, True)
    assert (head.due_at or 0) > stand.clock.now_ms()


@pytest.mark.parametrize("has_follow_up", [False, True])
async def test_a_worker_dies_before_a_returning_agents_turn_ended(*, has_follow_up: bool) -> None:
    """Auth-required was stored, its return was not: the turn starts over, the message waits."""
    stand = Stand(Agent(returning))
    asked = StatusChanged(TaskStatus(state=S.TASK_STATE_AUTH_REQUIRED), archive=True)
    claim = Commit(token="dead", claims=True, entries=(asked,))
    await stand.storage.commit(await stand.send(), claim)
    if has_follow_up:
        await stand.follow_up("password")
    assert await stand.bench.work()
    assert await stand.state() == S.TASK_STATE_AUTH_REQUIRED
    if not has_follow_up:
        assert not (await stand.head()).turn.is_open
        await stand.follow_up("password")
    assert await stand.bench.work()
    assert await stand.state() == S.TASK_STATE_COMPLETED
    assert await stand.artifacts() == {"a": ["public"], "b": ["password"]}
    answers = ["password", "log in"] if has_follow_up else ["log in", "password"]
    assert said(await stand.shown()) == ["hello", *answers]
    assert inputs(stand) == ["hello", "password"]


# -- running ---------------------------------------------------------------------------------------


async def test_a_fenced_attempt_stops_and_writes_nothing() -> None:
    """An attempt whose turn another one has claimed ends its agent and reports failure."""
    stopped: list[bool] = []

    async def stubborn(context: RequestContext, queue: EventQueue) -> None:
        try:
            await stand.clock.sleep(5)
        except asyncio.CancelledError:
            stopped.append(True)
            await queue.enqueue_event(status(context, S.TASK_STATE_COMPLETED, "zombie"))
            raise

    stand = Stand(Agent(stubborn))
    working = await stand.begin(1.1)
    taken = await stand.storage.commit(await stand.head(), Commit(token="other", claims=True))
    await stand.clock.pass_time(1)
    assert await working is False
    assert (stopped, await stand.head()) == ([True], taken)


async def test_a_write_by_others_is_rebased_over() -> None:
    """Metadata that another writer adds while the agent runs fails no attempt."""

    async def other(context: RequestContext, queue: EventQueue) -> None:
        await Storage(stand.storage).update_task(stand.task.task_id, task_metadata={"seen": True})
        await complete(context, queue)

    stand = Stand(Agent(other))
    head = await stand.work()
    assert (head.state, head.turn.attempts) == (S.TASK_STATE_COMPLETED, 1)
    assert (await stand.shown()).metadata["seen"] is True


@pytest.mark.parametrize("fate", ["deleted", "another incarnation", "another scope"])
async def test_an_operation_without_its_task_is_dropped(fate: str) -> None:
    """An operation whose task is gone, new or of another scope is acknowledged without a run."""
    stand = Stand(Agent(complete))
    head = (await stand.storage.open_task("ctx", request("hello"))).head
    changed = {"another incarnation": {"incarnation": "x"}, "another scope": {"scope": "x"}}
    params = params_of(head).model_copy(update=changed.get(fate, {}))
    if fate == "deleted":
        await delete_task(stand.storage, head.task_id)
    await stand.queue.send(Operation.to_run(params))
    assert await stand.bench.work()
    assert stand.agent.started == []


async def test_a_task_that_is_deleted_while_it_runs_ends() -> None:
    """The agent of a deleted task is stopped, the operation acknowledged, and nothing is left."""
    ended: list[str] = []

    async def endless(context: RequestContext, queue: EventQueue) -> None:
        await queue.enqueue_event(chunk(context, "half"))
        assert (await delete_data(stand.storage)).tasks == 1
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(context.task_id or "")

    stand = Stand(Agent(endless))
    working = await stand.begin(2)
    assert await working
    assert (ended, (await count_data(stand.storage)).tasks) == ([stand.task.task_id], 0)
    assert (await delete_data(stand.storage)).is_done


async def test_the_caller_comes_to_the_agent() -> None:
    """User, tenant and extensions of the request are in the executor's call context."""
    stand = Stand(Agent(complete))
    await stand.send(caller=Caller("ann", "acme", ("urn:x",)))
    await stand.work()
    call = stand.agent.started[0].call_context
    assert (call.user.user_name, call.user.is_authenticated, call.tenant) == ("ann", True, "acme")
    assert call.requested_extensions == {"urn:x"}


# -- after a failure -------------------------------------------------------------------------------

FIXED = re.compile(r"The agent could not finish the task\. Correlation id: [0-9a-f]{16}\.")


def raising(error: Exception) -> Execute:
    async def execute(context: RequestContext, queue: EventQueue) -> None:
        await queue.enqueue_event(chunk(context, "partial"))
        raise error

    return execute


@pytest.mark.parametrize("max_attempts", [1, 3])
async def test_an_agent_is_started_max_attempts_times(max_attempts: int, caplog: Log) -> None:
    """After the last attempt the task fails, with a fixed sentence that the log can be found by."""
    error = ValueError("database password is hunter2")
    stand = await sent(Agent(raising(error)), max_attempts=max_attempts)
    outcomes = [await stand.bench.work() for _ in range(max_attempts)]
    assert outcomes == [False] * (max_attempts - 1) + [True]
    assert len(stand.agent.started) == max_attempts
    head = await stand.head()
    assert (head.state, head.turn.attempts) == (S.TASK_STATE_FAILED, max_attempts)
    text = await stand.text()
    assert FIXED.fullmatch(text)
    (logged,) = lines(caplog, "gave_up")
    assert text.split()[-1].rstrip(".") in logged["said"]
    assert logged["exc_info"] is not None
    assert logged["task_id"] == stand.task.task_id


async def test_a_failed_attempt_waits_longer_each_time(monkeypatch: Patch) -> None:
    """The delivery is hidden for the back-off of the attempts that HEAD has counted."""
    delays: list[float] = []
    stand = Stand(Agent(raising(ValueError())), max_attempts=4, retry_base_s=2)
    object.__setattr__(stand.bench.adapter.retry, "jitter", lambda: 1.0)
    await stand.send()
    for _ in range(3):
        await stand.clock.pass_time(sum(delays[-1:]))
        handle = await stand.bench.deliver()

        async def nack(*, delay_s: float = 0, handle: Any = handle) -> None:
            delays.append(delay_s)
            await type(handle).nack(handle, delay_s=0)

        monkeypatch.setattr(handle, "nack", nack)
        assert await stand.bench.adapter.process(handle) is False
    assert (delays, await stand.state()) == ([2, 4, 8], S.TASK_STATE_WORKING)


async def test_receives_that_never_ran_are_no_attempts() -> None:
    """SQS counts throttled receives; an agent still gets all of its attempts."""
    stand = await sent(Agent(raising(ValueError())), max_attempts=2)
    for _ in range(5):
        await (await stand.bench.deliver()).nack()
    assert await stand.bench.work() is False
    await (await stand.bench.deliver()).nack()
    assert await stand.bench.work() is True
    assert (len(stand.agent.started), await stand.state()) == (2, S.TASK_STATE_FAILED)


async def test_attempts_that_died_count() -> None:
    """A turn whose workers all died fails without another start; its commit says so of the last."""
    stand = Stand(Agent(complete), max_attempts=3)
    head = await stand.send()
    for token in "abc":
        head = await stand.storage.commit(head, Commit(token=token, claims=True))
    assert await stand.bench.work() is True
    assert stand.agent.started == []
    assert FIXED.fullmatch(await stand.text())
    ended = (await stand.bench.records(head))[-1].ended
    assert ended == AttemptEnd(token="c", reason=LOST)


async def test_a_cancel_comes_before_the_end_of_used_up_attempts(monkeypatch: Patch) -> None:
    """A cancel between the read of a used-up turn and its end is not overtaken by a failure."""
    stand = Stand(Agent(complete), max_attempts=1)
    task = await stand.send()
    await stand.storage.commit(task, Commit(token="a", claims=True))
    beside(monkeypatch, "read", lambda: stand.storage.request_cancel(task.task_id), when="behind")
    assert await stand.bench.work() is True
    assert await stand.state() == S.TASK_STATE_WORKING
    await stand.cancel()
    assert (await stand.work()).state == S.TASK_STATE_CANCELED


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
    stand, head = await run(Agent(raising(deep)), max_attempts=3)
    assert (head.state, len(stand.agent.started)) == (S.TASK_STATE_FAILED, 3)


@pytest.mark.parametrize(
    "error",
    [
        FinalError("no"),
        type("OwnError", (Exception,), {"final": True})(),
        UnsupportedOperationError("no"),
        group(FinalError("no")),
        group(ValueError(), group(UnsupportedOperationError("no"), TimeoutError())),
        pytest.param(nested(FinalError("no")), id="deep"),
    ],
)
async def test_a_final_exception_fails_the_task_at_once(error: Exception) -> None:
    """A final error fails the task on its first attempt; what was emitted before is kept."""
    stand, head = await run(Agent(raising(error)))
    assert (head.state, len(stand.agent.started)) == (S.TASK_STATE_FAILED, 1)
    assert FIXED.fullmatch(await stand.text())
    assert await stand.artifacts() == {"a": ["partial"]}


@pytest.mark.parametrize("state", [S.TASK_STATE_COMPLETED, S.TASK_STATE_INPUT_REQUIRED])
async def test_an_exception_after_the_end_changes_nothing(state: S, caplog: Log) -> None:
    """The turn has ended; what its agent raises then is logged."""

    async def late(context: RequestContext, queue: EventQueue) -> None:
        await queue.enqueue_event(status(context, state))
        raise ValueError

    _, head = await run(Agent(late))
    assert (head.state, head.version) == (state, 2)
    assert [r.__dict__["action"] for r in caplog.records if r.exc_info] == ["error_after_end"]


async def test_an_event_beyond_the_limit_fails_the_task() -> None:
    """A chunk that no transaction takes fails the task, which says the limit and the way out."""

    async def verbose(context: RequestContext, queue: EventQueue) -> None:
        await queue.enqueue_event(chunk(context, "small"))
        large = chunk(context, "large")
        large.metadata["much"] = "x" * 4_100_000  # what is no content of a part is not set apart
        await queue.enqueue_event(large)
        await complete(context, queue)

    stand, head = await run(Agent(verbose))
    assert (head.state, await stand.artifacts()) == (S.TASK_STATE_FAILED, {"a": ["small"]})
    says = r".* limit of 4000000 bytes: artifact 'a' has 4100.* bytes, split it with append=True\."
    assert re.fullmatch(says, await stand.text())


# -- faults that pass ----------------------------------------------------------------------------


MANY = 5
LOOKS = 30
"""How often a test looks whether all tasks have ended."""


def answer(status: int, **headers: str) -> httpx.HTTPStatusError:
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
    worker = asyncio.create_task(stand.bench.adapter.serve(concurrency=MANY))
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
    heads = await served(stand, 2 * away_s + 60, MANY)
    assert Counter(head.state for head in heads) == {S.TASK_STATE_COMPLETED: MANY}
    assert max(stand.asked.values()) <= MOST_STARTS
    assert {head.turn.attempts for head in heads} == {1}
    assert {head.turn.uncounted.faults for head in heads} == {n - 1 for n in stand.asked.values()}


@pytest.mark.parametrize(
    ("status", "asks", "within_s", "starts", "says"),
    [
        (401, "", 5, 1, "A service that the agent calls has refused its credentials (HTTP 401)."),
        (503, "", 1000, MOST_STARTS, "that the agent calls was not there at 10 starts (HTTP 503):"),
        (429, "31536000", 3, 1, "will not be there for 525,600 minutes (HTTP 429)"),
        (429, "31536000", 3, 1, "of the 15 minutes for which this agent waits 15 minutes are"),
    ],
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
async def test_a_wrong_wait_fails_the_task_with_the_right_call(wrong: Any, caplog: Log) -> None:
    """`RetryLater(-1)` is the author's mistake: one sentence, one start."""

    async def handle(_: TaskContext) -> None:
        raise RetryLater(wrong)

    stand, head = await run(handle)
    assert (head.state, stand.script.starts) == (S.TASK_STATE_FAILED, 1)
    assert "takes the seconds to wait, a number from 0 to 10,000,000,000," in caplog.text


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
    stand = await sent(Agent(begin))
    stand.queue._max_receives = 100  # its deliveries do not run out before its attempts
    tried = list[int]()
    for _ in range(40):
        head = await stand.head()
        if head.is_terminal:
            break
        tried.append(head.turn.attempts)
        worker = asyncio.create_task(stand.bench.adapter.serve(concurrency=1))
        await stand.clock.pass_time(0.5)
        stand.queue.is_closed = True
        worker.cancel()
        await asyncio.wait([worker])
        stand.queue.is_closed = False
    assert await stand.state() == S.TASK_STATE_FAILED
    assert len(stand.agent.started) == attempts.MOST_INTERRUPTIONS + 3
    assert tried == [0] * (attempts.MOST_INTERRUPTIONS + 1) + [1, 2, 3]
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
