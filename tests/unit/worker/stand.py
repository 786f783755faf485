"""One bench for the worker's tests: an agent, a task, and a clock that a test moves."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Literal

import pytest
from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.events import EventQueue
from a2a.types import Task, TaskState

from a2a_serverless.clock import SystemClock
from a2a_serverless.queues.table import TableQueue
from a2a_serverless.storage.durable import DurableStorage
from a2a_serverless.tasks.attempts import RetryPolicy
from a2a_serverless.tasks.entries import Caller, Entry
from a2a_serverless.tasks.head import AttemptEnd, Head, Operation
from a2a_serverless.tasks.identity import ANONYMOUS, Scope
from a2a_serverless.tasks.rules import Commit
from a2a_serverless.worker import TaskContext, Worker
from a2a_serverless.worker.context import WorkerExecutor
from a2a_serverless.worker.function import WorkerFunction
from a2a_serverless.worker.sweeper import DeadLetters, Sweeper, SweepReport
from a2a_serverless_tools.contract import Storage
from tests.support.clocks import ManualClock
from tests.support.handlers import LambdaContext
from tests.support.memory import memory_storage
from tests.support.messages import request
from tests.support.present import present
from tests.support.queues import MemoryQueue, left, take
from tests.support.workers import Bench, PacedClock, S, artifact_texts, status, status_text

Handle = Callable[[TaskContext], Awaitable[object]]
Log = pytest.LogCaptureFixture
Patch = pytest.MonkeyPatch


class Script(Worker):
    """A worker made of a function; it counts its starts."""

    def __init__(self, handle: Handle) -> None:
        self._handle = handle
        self.starts = 0

    async def handle(self, ctx: TaskContext) -> None:
        self.starts += 1
        await self._handle(ctx)


class Stand:
    """A task of an agent, or of a worker that is a function, and the clock of its deliveries.

    With ManualClock each sleep is over at once, also the ones of the worker itself: its deadline of
    5,400 s may pass before the script has begun. That is for scripts that sleep in their process.
    """

    task: Head
    """The task that was sent last."""

    def __init__(self, does: Handle | AgentExecutor, *, clock: Any = None, **settings: Any) -> None:
        self.clock: Any = clock or PacedClock()
        if isinstance(does, AgentExecutor):
            self.agent: Any = does
        else:
            self.script = Script(does)
            self.agent = WorkerExecutor(self.script)
        # As an event source on Lambda: a delivery lasts as long as its worker may run.
        options = {"retry_base_s": 0, "visibility_s": 5400, **settings}
        self.bench = Bench(self.agent, clock=self.clock, **options)
        self.storage = self.bench.storage
        assert isinstance(self.bench.operations, TableQueue)
        self.queue = self.bench.operations
        self.sweeper = Sweeper(self.storage, self.queue, clock=self.clock)

    async def send(self, text: str = "hello", *, caller: Caller | None = None) -> Head:
        self.task = await self.bench.send(text, caller=caller)
        return self.task

    async def cancel(self) -> None:
        await self.bench.cancel(self.task)

    async def follow_up(self, text: str, **options: Any) -> Head:
        return await self.bench.follow_up(self.task, text, **options)

    async def head(self, task: Head | None = None) -> Head:
        return await self.bench.head(task or self.task)

    async def state(self, task: Head | None = None) -> S:
        return (await self.head(task)).state

    async def shown(self) -> Task:
        """The task as a client sees it."""
        return await self.bench.task(self.task)

    async def text(self) -> str:
        return status_text(await self.shown())

    async def artifacts(self) -> dict[str, list[str]]:
        return artifact_texts(await self.shown())

    async def released(self) -> AttemptEnd:
        """How the last attempt has given its turn back."""
        return present((await self.head()).turn.released)

    async def ends(self) -> list[AttemptEnd]:
        return [each.ended for each in await self.bench.records(self.task) if each.ended]

    async def entries(self) -> list[Entry]:
        return [entry for each in await self.bench.records(self.task) for entry in each.entries]

    async def kinds(self) -> list[str]:
        return [type(entry).__name__ for entry in await self.entries()]

    async def work(self, *, deadline_s: float | None = None) -> Head:
        """Run the deliveries that there are; send the first message, if none was sent."""
        if not hasattr(self, "task"):
            await self.send()
        for _ in range(20):
            if not left(self.queue):
                return await self.head()
            deadline = None if deadline_s is None else self.clock.monotonic() + deadline_s
            await self.bench.work(deadline=deadline)
        raise AssertionError("deliveries without an end")

    async def begin(self, seconds: float = 0, *, deadline: float | None = None) -> Any:
        """Send a message, and begin its delivery; return when so many seconds have passed."""
        await self.send()
        working = asyncio.create_task(self.bench.work(deadline=deadline))
        await self.clock.pass_time(seconds)
        return working

    async def pass_time(self, seconds: float) -> None:
        """Let time pass at once, and sweep."""
        await self.last(seconds)
        await self.sweeper.sweep()

    async def last(self, seconds: float) -> None:
        """Do what takes so long."""
        if isinstance(self.clock, PacedClock):
            self.clock._now += seconds  # in one go: no look at HEAD each second
            await self.clock.pass_time(0)
        else:
            self.clock.advance(seconds)


class Polls:
    """Notes the polls of a queue: when each came, and for how many messages."""

    def __init__(self, queue: TableQueue[Operation]) -> None:
        self.pull: Any = queue.pull
        self.at: list[float] = []
        self.limits: list[int] = []
        self.open = self.most = 0
        """How many are under way, and were at most."""
        self._clock = queue._clock
        queue.pull = self._noted  # type: ignore[method-assign]

    async def _noted(self, limit: int, wait_s: float) -> Any:
        self.at.append(self._clock.monotonic())
        self.limits.append(limit)
        self.open += 1
        self.most = max(self.most, self.open)
        try:
            return await self.pull(limit, wait_s)
        finally:
            self.open -= 1


class Repairs:
    """A storage and its queue, the sweeper and the consumer of dead letters, and no worker."""

    def __init__(self, scope: Scope = ANONYMOUS, *, attempts: int = 2) -> None:
        self.clock = ManualClock()
        self.storage = memory_storage(clock=self.clock).for_scope(scope)
        self.queue = MemoryQueue(Operation, clock=self.clock)
        retry = RetryPolicy(max_attempts=attempts)
        self.dead_letters = DeadLetters(self.storage, self.queue, retry=retry)

    async def sweep(self, **options: Any) -> SweepReport:
        return await Sweeper(self.storage, self.queue, clock=self.clock, **options).sweep()

    async def open(self) -> Head:
        """A task whose turn waits, and whose message was never sent."""
        return (await self.storage.open_task("context", request())).head

    async def claim(self, head: Head, token: str = "t") -> Head:
        """An attempt that has claimed the turn."""
        return await self.storage.commit(head, Commit(token=token, claims=True))

    async def move(self, head: Head, state: TaskState, **more: Any) -> Head:
        await Storage(self.storage).update_task(head.task_id, state, **more)
        return await self.head(head)

    async def head(self, head: Head) -> Head:
        return present(await self.storage.head(head.task_id))

    async def task(self, head: Head) -> Task:
        return present(await self.storage.load_task(head.task_id))


async def run(does: Handle | AgentExecutor, **settings: Any) -> tuple[Stand, Head]:
    """A task behind all its deliveries, and its HEAD."""
    stand = Stand(does, **settings)
    return stand, await stand.work()


async def sent(does: Handle | AgentExecutor, **settings: Any) -> Stand:
    """A task whose first turn waits."""
    stand = Stand(does, **settings)
    await stand.send()
    return stand


class Source:
    """A function, and the records that an event source would pass to it."""

    def __init__(self, agent: AgentExecutor, **settings: Any) -> None:
        self._stand = Stand(agent, clock=SystemClock(), **settings)
        bench = self._stand.bench
        self.function = WorkerFunction(bench.backends, agent, bench.settings)

    def send(self, text: str = "hello") -> tuple[Head, dict[str, Any]]:
        """A new task and the record of its first turn."""
        head = asyncio.run(self._stand.send(text))
        return head, present(take(self._stand.queue))

    def state(self, head: Head) -> S:
        return asyncio.run(self._stand.bench.head(head)).state

    def handle(self, *records: dict[str, Any]) -> list[str]:
        """The ids of the records to deliver again."""
        answer = self.function.handle({"Records": list(records)}, LambdaContext())
        assert set(answer) == {"batchItemFailures"}
        return [failure["itemIdentifier"] for failure in answer["batchItemFailures"]]


async def ask(context: RequestContext, queue: EventQueue) -> None:
    await queue.enqueue_event(status(context, S.TASK_STATE_INPUT_REQUIRED, "which?"))


def lines(caplog: Log, action: str) -> list[dict[str, Any]]:
    """The fields of the lines of the log with an action; `said` is the text."""
    found = [record for record in caplog.records if vars(record).get("action") == action]
    return [{**vars(record), "said": record.getMessage()} for record in found]


def line(caplog: Log, action: str) -> dict[str, Any]:
    """The fields of the one line of the log with an action."""
    (found,) = lines(caplog, action)
    return found


def actions(caplog: Log) -> list[str]:
    return [vars(record)["action"] for record in caplog.records if "action" in vars(record)]


def beside(
    monkeypatch: Patch,
    method: str,
    does: Callable[[], Awaitable[object]],
    *,
    when: Literal["before", "behind"] = "before",
) -> None:
    """Let another process do something before, or right behind, the storage's next `method`."""
    real = getattr(DurableStorage, method)

    async def met(*args: Any, **options: Any) -> Any:
        monkeypatch.setattr(DurableStorage, method, real)
        if when == "before":
            await does()
        answer = await real(*args, **options)
        if when == "behind":
            await does()
        return answer

    monkeypatch.setattr(DurableStorage, method, met)
