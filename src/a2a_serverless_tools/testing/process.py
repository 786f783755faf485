"""A worker's process in a test: an event loop of its own, which a kill stops for good."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Iterator,
    Mapping,
    Sequence,
)
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager, nullcontext, suppress
from contextvars import Context
from dataclasses import dataclass, field
from typing import Any, Final, ParamSpec, TypeVar, cast

from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.events import EventQueue
from a2a.types import SendMessageRequest, Task

from a2a_serverless.errors import TaskNotFoundError
from a2a_serverless.settings import Settings
from a2a_serverless.storage.durable import DurableStorage
from a2a_serverless.tasks.entries import UNTIL, Caller, Entry, Recorded, StepId, TurnOpened
from a2a_serverless.tasks.fold import Event
from a2a_serverless.tasks.head import Head, Operation, OperationParams
from a2a_serverless.tasks.identity import Scope
from a2a_serverless.tasks.rules import Commit
from a2a_serverless.tasks.waits import SLEEP, ids_in
from a2a_serverless.wiring import Backends
from a2a_serverless.worker.adapter import WorkerAdapter
from a2a_serverless.worker.calls import Remote
from a2a_serverless.worker.failures import is_library, place
from a2a_serverless.worker.heartbeat import Heartbeat, Job, OnBlocked
from a2a_serverless.worker.lease import POLL_S
from a2a_serverless.worker.loops import run_to_end
from a2a_serverless.worker.turn import ActiveTurn
from a2a_serverless_tools.testing.agents import StandIn
from a2a_serverless_tools.testing.clock import PacedClock, idle
from a2a_serverless_tools.testing.run import When

T = TypeVar("T")


class _InlineHeartbeat(Heartbeat):
    """A heartbeat without a thread: its jobs follow the clock of the test's own loop."""

    @asynccontextmanager
    async def over(
        self,
        *jobs: Job,
        on_blocked: OnBlocked | None = None,  # noqa: ARG002 - without a thread nothing is noticed
        later: bool = False,  # noqa: ARG002 - it costs nothing here
    ) -> AsyncIterator[None]:
        stop = asyncio.Event()
        running = [asyncio.create_task(job(stop)) for job in jobs]
        try:
            yield
        finally:
            stop.set()
            await asyncio.gather(*running)


class _Engine:
    """Storage, queue and one worker: `open` and `go_on` accept messages, `adapter` runs turns."""

    def __init__(self, backends: Backends, adapter: WorkerAdapter) -> None:
        self.storage = backends.storage
        self.operations = backends.operations
        self.adapter = adapter

    async def open(
        self, request: SendMessageRequest, *, context_id: str, caller: Caller, scope: Scope
    ) -> Head:
        """Create a task and enqueue its first turn; return HEAD as it is then."""
        storage = self._seen_by(scope)
        opened = await storage.open_task(context_id, request, caller=caller)
        await self.enqueue(opened.head)
        return opened.head

    async def go_on(
        self, task: Head, request: SendMessageRequest, *, caller: Caller, scope: Scope
    ) -> Head:
        """Accept a message for a task that waits for one, and enqueue its turn.

        Raises:
            TaskNotFoundError: the task is gone, or belongs to another scope.
            TaskTerminalStateError, TaskNotAcceptingMessagesError: the task takes no message.
        """
        storage = self._seen_by(scope)
        now = _found(await storage.head(task.task_id))
        head = await storage.commit(now, Commit(entries=(TurnOpened(request, caller),)))
        await self.enqueue(head, turn=head.next_turn or head.turn.number)
        return head

    async def enqueue(self, head: Head, *, turn: int | None = None, copy_number: int = 0) -> None:
        """Send the operation that runs a turn; by default the current one."""
        params = OperationParams.of(head, turn or head.turn.number, copy_number)
        await self.operations.send(Operation.to_run(params))

    async def cancel(self, head: Head) -> None:
        """Ask to cancel a task: mark HEAD and send the operation.

        Raises:
            TaskTerminalStateError: the task has ended.
        """
        await self.storage_of(head).request_cancel(head.task_id)
        await self.operations.send(Operation.to_cancel(OperationParams.of(head, head.turn.number)))

    async def head(self, task: Head) -> Head:
        """Return the task's newest HEAD.

        Raises:
            TaskNotFoundError: the task is gone.
        """
        return _found(await self.storage_of(task).head(task.task_id))

    async def task(self, task: Head) -> Task:
        """Return the Task as a client sees it; raise what `head` raises."""
        return _found(await self.storage_of(task).load_task(task.task_id))

    def storage_of(self, task: Head) -> DurableStorage:
        """Return the storage in the scope of a task."""
        return self._seen_by(Scope(task.scope))

    def _seen_by(self, scope: Scope) -> DurableStorage:
        return self.storage if scope == self.storage.scope else self.storage.for_scope(scope)


def _found(value: T | None) -> T:
    if value is None:
        raise TaskNotFoundError
    return value


@dataclass(slots=True, kw_only=True)
class Points:
    """The points at which a turn is cancelled or its worker killed, and what happened so far."""

    name: str
    """What the test calls the turn: the message that it answers."""
    timeout_s: float
    """Seconds of the machine's time that all of its attempts may take."""
    ask_to_cancel: Callable[[], Awaitable[None]]
    dies_behind: Callable[[Sequence[StepId]], bool]
    """Takes the records of each commit; True: the worker dies behind it."""
    cancel_after: When | None = None
    kill_after: When | None = None
    is_asked: bool = False
    """True if the cancel was asked for."""
    is_late: bool = False
    """True if the point at which to cancel has ended the turn, or put it to sleep: ask then."""
    queue: ActiveTurn | None = None
    """The queue of the running attempt."""
    attempts: int = 0
    errors: list[BaseException] = field(default_factory=list)
    running: Awaitable[None] | None = None
    """The agent's call of the running attempt."""
    _seen: int = 0
    _began_at: float = field(default_factory=time.monotonic)

    def check_time(self, goes_on: str = "") -> None:
        """Check that the turn is over in time; `goes_on`: with what, if not with its agent.

        Raises:
            StuckError: it is not.
        """
        if time.monotonic() - self._began_at < self.timeout_s:
            return
        raise StuckError(
            f"The turn of {self.name} is not over within {self.timeout_s:g} s: start"
            f" {self.attempts} {goes_on or self._waits()}. Give it a fake for what it waits for,"
            " or an end for what it repeats; AgentBench(…, timeout_s=…) gives it more time."
        )

    def _waits(self) -> str:
        """Return where the agent is: its line, and its steps that are under way."""
        steps = [] if self.queue is None else [each.id.name for each in self.queue.journal.active]
        within = f", in step {', '.join(map(repr, steps))}" if steps else ""
        return f"waits at {_line_of(self.running) or 'no line of the agent'}{within}"

    @property
    def awaits_hearing(self) -> bool:
        """Return True while the worker does not know of a cancel that was asked for."""
        return self.is_asked and not (self.queue is not None and self.queue.is_cancelled)

    def dies_at_start(self) -> bool:
        """Return True if the worker has to die before the agent's first event, but only once."""
        dies = self.kill_after == 0
        self.kill_after = None if dies else self.kill_after
        return dies

    def take(self, seen: Event | Recorded) -> tuple[bool, bool]:
        """Count an event; return whether the worker has to die now, and whether to cancel now.

        A record counts for the points that name it. Each of the two is True only once.
        """
        self._seen += not isinstance(seen, Recorded)
        dies, hears = self._is_at(self.kill_after, seen), self._is_at(self.cancel_after, seen)
        if dies:
            self.kill_after = None
        if hears:
            self.cancel_after = None
        return dies, hears

    def _is_at(self, point: When | None, seen: Event | Recorded) -> bool:
        if isinstance(seen, Recorded):
            return point in ids_in(seen) and _is_result(seen)
        if point is None or isinstance(point, StepId):
            return False
        return point(seen) if callable(point) else self._seen == point


def _is_result(entry: Recorded) -> bool:
    """Return True unless a record only says until when the code waits; that of a sleep counts."""
    return entry.form != UNTIL or entry.id.name == SLEEP


def _line_of(work: Any) -> str:
    """Return the author's innermost line at which a coroutine waits; empty if there is none."""
    line = ""
    while (frame := getattr(work, "cr_frame", None)) is not None:
        if not is_library(frame.f_code.co_filename):
            line = place(frame.f_code.co_filename, frame.f_lineno)
        work = work.cr_await
    return line


class _StoppedAgent(AgentExecutor):
    """Runs the agent of the present turn, up to that turn's points.

    Args:
        kill: ends the worker's process; called in its event loop.
        others: the stand-ins of the agents that it calls.
    """

    def __init__(self, kill: Callable[[], None], others: Mapping[str, StandIn]) -> None:
        self._kill = kill
        self._others = others
        self.agent: AgentExecutor | None = None
        self.points: Points | None = None

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        agent, points, queue = self._of_turn(event_queue)
        points.attempts += 1

        async def taken(event: Event) -> None:
            dies, hears = points.take(event)
            if dies or hears:
                await queue.drain()
            if dies:
                await self._die()
            if hears:
                await _canceled(points, queue)

        async def stored(entries: tuple[Entry, ...]) -> None:
            records = [entry for entry in entries if isinstance(entry, Recorded)]
            met = [points.take(entry) for entry in records]
            is_due = points.dies_behind([entry.id for entry in records if _is_result(entry)])
            if is_due or any(dies for dies, _ in met):
                await self._die()
            if any(hears for _, hears in met):
                await _canceled(points, queue)

        queue.on_taken = taken
        queue.outbox.on_stored = stored
        if points.dies_at_start():
            await self._die()
        points.running = agent.execute(context, queue)
        try:
            await points.running
        except BaseException as error:
            task, is_end = asyncio.current_task(), isinstance(error, asyncio.CancelledError)
            was_ended = is_end and task is not None and task.cancelling()
            was_ended = was_ended or queue.parking is not None or isinstance(error, GeneratorExit)
            if not (was_ended or queue.exit):
                points.errors.append(error)
            raise
        finally:
            points.errors += [] if queue.exit is None else [queue.exit]

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        agent, _, queue = self._of_turn(event_queue)
        await agent.cancel(context, queue)

    def _of_turn(self, queue: EventQueue) -> tuple[AgentExecutor, Points, ActiveTurn]:
        if self.agent is None or self.points is None or not isinstance(queue, ActiveTurn):
            raise RuntimeError("An agent of the testing kit runs in its bench only.")
        self.points.queue = queue
        queue.agents = {**queue.agents, **cast("Mapping[str, Remote]", self._others)}
        return self.agent, self.points, queue

    async def _die(self) -> None:
        self._kill()
        await asyncio.get_running_loop().create_future()  # waits for ever: the loop stops here


async def _canceled(points: Points, queue: ActiveTurn) -> None:
    """Ask for the cancel; CancelledError is raised in the agent before this returns."""
    if queue.has_ended or queue.parking is not None:
        points.is_late = True
        return
    await points.ask_to_cancel()
    while not queue.is_cancelled:  # noqa: ASYNC110 - the clock is moved beside it
        await asyncio.sleep(0)
    await idle()


P = ParamSpec("P")

TICK_S: Final = 0.005
"""Seconds of the machine's time between two looks at an agent that waits for something real."""
WAIT_S: Final = 1.0
"""Seconds of the test's time between two looks at the queue."""
LONGEST_WAIT_S: Final = 12 * 3600.0
"""The longest invisibility of a message."""
CLOSE_S: Final = 1.0
"""Seconds of the machine's time within which left behind tasks have to end with the test."""


class KilledError(Exception):
    """The process was killed before the work was done."""


class StuckError(AssertionError):
    """The agent has not ended its turn in time; the message says where it is.

    >>> with pytest.raises(StuckError):
    ...     AgentBench("agent.py:agent", timeout_s=1).send("Wait for ever")
    """


class Process:
    """Runs the operations of a queue with one agent, as long as it lives.

    While the agent works, time passes as on the machine. It passes faster while the agent only
    sleeps by its `ctx`, while a cancel is on its way to it, and while a message is invisible.
    """

    def __init__(
        self,
        backends: Backends,
        settings: Settings,
        clock: PacedClock,
        others: Mapping[str, StandIn],
    ) -> None:
        self._clock = clock
        self._settings = settings
        self._is_dead = False
        self._agent = _StoppedAgent(self._kill, others)
        self._loop = asyncio.new_event_loop()
        self._threads = _Threads()
        self._loop.set_default_executor(self._threads)
        self._is_waiting = False
        self._asides: set[asyncio.Task[None]] = set()
        adapter = WorkerAdapter(backends, self._agent, settings, heartbeat=_TellingHeartbeat())
        self.engine = _Engine(backends, adapter)

    def turn(self, agent: AgentExecutor, points: Points) -> None:
        """Run the operations that follow as a turn of `agent`."""
        self._agent.agent, self._agent.points = agent, points

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run `work` to its end in the process's loop.

        Raises:
            KilledError: the process was killed meanwhile.
            RuntimeError: this thread runs an event loop already.
        """
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            pass
        else:
            work.close()
            raise RuntimeError(
                "AgentBench runs the agent in an event loop of its own: call it from a plain test"
                " function, `def test_…`, not from an async one."
            )
        try:
            return run_to_end(self._loop, work, may_stop=lambda: self._is_dead)
        except RuntimeError as error:
            if not self._is_dead:
                raise
            self._clock.forget_sleepers()
            raise KilledError from error

    def soon(self, work: Coroutine[Any, Any, None]) -> None:
        """Run `work` while the agent runs; the agent may call this in any of its threads."""
        self._loop.call_soon_threadsafe(self._begin, work, context=Context())

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        aside = self._loop.create_task(work)
        self._asides.add(aside)
        aside.add_done_callback(self._asides.discard)

    async def work(self, points: Points) -> None:
        """Take the next delivery, as soon as there is one, and run it as one of a turn.

        Raises:
            StuckError: the turn takes longer than it may.
        """
        working = asyncio.create_task(self._next())
        while not working.done():
            await self._pass_time(working)
            if not working.done():
                points.check_time()
        await working

    async def _next(self) -> None:
        self._is_waiting = True
        handles = await self.engine.operations.pull(1, LONGEST_WAIT_S)
        self._is_waiting = False
        for handle in handles:
            deadline = self._clock.monotonic() + self._settings.run_limit_s
            await self.engine.adapter.process(handle, deadline=deadline)

    async def _pass_time(self, working: asyncio.Task[None]) -> None:
        await idle()
        if working.done():
            return
        seconds = self._to_skip()
        if seconds is None:
            began = time.monotonic()
            await asyncio.wait([working], timeout=TICK_S)
            seconds = time.monotonic() - began
        await self._clock.pass_time(seconds)

    def _to_skip(self) -> float | None:
        """Return the seconds to skip; None if the agent waits for something other than time."""
        if self._is_waiting:
            return WAIT_S
        points = self._agent.points
        if points is not None and points.awaits_hearing:
            return POLL_S
        wakes_at = self._clock.agent_wakes_at
        if wakes_at is None or self._threads.working:
            return None
        return max(0.0, wakes_at - self._clock.monotonic())

    def _kill(self) -> None:
        self._is_dead = True
        self._loop.stop()

    def close(self) -> None:
        """End what is left of the process; if it is dead, log nothing."""
        self._loop.set_exception_handler(lambda *_: None)  # of tasks that do not end
        with _silence() if self._is_dead else nullcontext():
            with suppress(RuntimeError):
                self._loop.run_until_complete(_ended(asyncio.all_tasks(self._loop)))
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.close()


@contextmanager
def _silence() -> Iterator[None]:
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)


async def _ended(tasks: set[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks, timeout=CLOSE_S)


class _Threads(ThreadPoolExecutor):
    """The threads of a loop; `working` is how many of them run a function."""

    def __init__(self) -> None:
        super().__init__(thread_name_prefix="agent")
        self._calls: set[Future[Any]] = set()

    @property
    def working(self) -> int:
        return sum(not call.done() for call in tuple(self._calls))

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        call = super().submit(fn, *args, **kwargs)
        self._calls = {other for other in self._calls if not other.done()} | {call}
        return call


class _TellingHeartbeat(_InlineHeartbeat):
    """An inline heartbeat that also notices, in a thread, that the agent blocks its loop."""

    def __init__(self) -> None:
        super().__init__()
        self._noticing = Heartbeat()

    @asynccontextmanager
    async def over(
        self, *jobs: Job, on_blocked: OnBlocked | None = None, later: bool = False
    ) -> AsyncIterator[None]:
        async with super().over(*jobs, later=later), self._noticing.over(on_blocked=on_blocked):
            yield
